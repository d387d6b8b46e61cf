//! ADD: addresses, veth pair, the pod's side, the endpoint, and then the agent's route. The
//! addresses and the pair are made at the same time. What an earlier call of the same attachment
//! left is used (CNI-1). When the call fails, everything of the attachment is removed (CNI-2),
//! unless an earlier call had completed it: a pod that works keeps working.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use caracal_datastore::Store;
use caracal_model::{Announcement, Cidr, Compare, Family, Mac, Prefix, format_mac};

use crate::addresses::{self, Holding};
use crate::assignment_stop;
use crate::attachment::{Workload, handle_of_alias};
use crate::call::{Call, Milestone, Progress};
use crate::del;
use crate::endpoint::{self, Fresh, Known};
use crate::error::{CniError, chain};
use crate::gates;
use crate::kernel::link::{KernelError, Link, Links};
use crate::kernel::netns::Netns;
use crate::kernel::pod::{self, PodPlan};
use crate::kernel::pod_routes;
use crate::kernel::route_wait::RouteWait;
use crate::kernel::sysctl;
use crate::kernel::veth::VethPair;
use crate::kernel::{self, HOST_MAC};
use crate::node_process::{self, NodeProcessError};
use crate::pending_releases::{self, Patience};
use crate::second;
use crate::settings;
use crate::spec::outcome::Route;
use crate::spec::{Command, Interface, IpConfig, Outcome, Wishes};

/// Longest wait for other calls of the same container (CNI-7): longer than the default waits of one
/// ADD together, and shorter than a runtime's patience.
const TURN: Duration = Duration::from_secs(30);

/// Interval of questions to a node's process that starts.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Addresses for the pod.
#[derive(Debug)]
struct Obtained {
    addresses: Vec<Prefix>,
    destinations: Vec<Prefix>,
    /// Precondition of writing the endpoint.
    precondition: Option<Compare>,
}

/// Attaches the container.
///
/// # Errors
/// [`CniError`]; nothing of the attachment stays then, unless an earlier call had completed it.
pub(crate) async fn add<S: Store>(
    call: &Call,
    store: &S,
    progress: Progress<'_>,
) -> Result<Outcome, CniError> {
    let netns = Netns::open(call.netns()?)?;
    if !netns.take_turn(TURN).await {
        let seconds = TURN.as_secs();
        return Err(CniError::Busy { seconds });
    }
    if let Some(owner) = second::occupant(&Links::here()?, &call.attachment).await? {
        return Err(second::occupied(&call.attachment, owner).into());
    }
    assignment_stop::check(&call.dirs.run)?;
    gates::wait(&call.conf.gates()?).await?;
    pending_releases::replay_of(store, &call.dirs.lib, &call.attachment, Patience::Endless).await?;
    let known = endpoint::read(store, &call.attachment).await?;
    let complete = known.own_endpoint(&call.attachment).is_some();
    let outcome = attach(call, store, &netns, known, progress).await;
    if let Err(error) = &outcome {
        if complete {
            tracing::warn!(%error, "ADD failed; what an earlier ADD made stays");
        } else {
            tracing::warn!(%error, "ADD failed; removing what there is of the attachment");
            undo(call, store).await;
        }
    }
    outcome
}

/// Inputs that stay the same during an ADD.
struct Site<'a> {
    call: &'a Call,
    netns: &'a Netns,
    host: Links,
    inside: Links,
    wishes: Wishes,
    mac: Mac,
    families: Vec<Family>,
    progress: Progress<'a>,
}

async fn attach<S: Store>(
    call: &Call,
    store: &S,
    netns: &Netns,
    known: Known,
    progress: Progress<'_>,
) -> Result<Outcome, CniError> {
    let wishes = Wishes::read(&call.env, &call.conf, call.pod.as_ref())?;
    for sentence in &wishes.unmet {
        tracing::warn!("{sentence}");
    }
    let families = expected_families(call, &wishes);
    let allow_forwarding = call.conf.container_settings.allow_ip_forwarding;
    let site = Site {
        call,
        netns,
        host: Links::here()?,
        inside: Links::inside(netns, || pod::prepare(&families, allow_forwarding))?,
        mac: wishes.mac.unwrap_or_else(|| call.attachment.mac()),
        wishes,
        families,
        progress,
    };
    let wait = match call.conf.route_wait() {
        0 => None,
        seconds => Some((RouteWait::subscribe()?, seconds)),
    };
    let (obtained, pair) = if !site.wishes.without_ipam.is_empty() {
        with_named_addresses(&site).await?
    } else if call.has_own_addresses() {
        with_own_addresses(&site, store, &known).await?
    } else {
        with_delegated_addresses(&site, &known).await?
    };
    let plan = PodPlan {
        addresses: obtained.addresses,
        destinations: obtained.destinations,
    };
    configure(&site, &pair, &plan).await?;
    progress(Milestone::PodConfigured);

    let mac = pair.pod.mac.unwrap_or(site.mac);
    let fresh = Fresh {
        addresses: &plan.addresses,
        mac: &mac,
        precondition: obtained.precondition.as_ref(),
        pod: call.pod.as_ref(),
    };
    let revision = endpoint::write(store, &call.attachment, &fresh, known).await?;
    progress(Milestone::EndpointWritten);

    let routed = async {
        if let Some((wait, seconds)) = wait {
            let node = call.attachment.node.as_str();
            wait.wait(&pair.host, &plan.addresses, seconds, node)
                .await?;
            progress(Milestone::RouteSeen);
        }
        Ok::<_, CniError>(())
    };
    let ask = || announced(call, &plan.addresses, revision);
    let ((), mut told) = tokio::try_join!(routed, async { Ok(ask().await) })?;
    // A node that was starting could not tell; one that has made the route can, or will.
    let begun = Instant::now();
    let patience = announce_wait(call);
    while let Err(NodeProcessError::Unreachable { .. } | NodeProcessError::Refused(_)) = told
        && call.conf.route_wait() > 0
        && begun.elapsed() < patience
    {
        tokio::time::sleep(ASK_AGAIN).await;
        told = ask().await;
    }
    match told {
        Ok(Announcement {
            missing: Some(reason),
            ..
        }) => {
            let seconds = patience.as_secs();
            tracing::warn!(reason, seconds, "not announced yet; going on");
        }
        Ok(announcement) => tracing::debug!(?announcement, "announced"),
        Err(error) => {
            tracing::warn!(error = chain(&error), "cannot tell whether it is announced");
        }
    }
    progress(Milestone::Announced);
    outcome(call, &plan, &pair, &mac)
}

fn announce_wait(call: &Call) -> Duration {
    Duration::from_secs(u64::from(call.conf.announce_wait()))
}

/// Waits until other nodes have been told of the addresses, a while at most: a pod that is not
/// announced yet is better than none. Where the while is zero nobody is asked.
async fn announced(
    call: &Call,
    addresses: &[Prefix],
    revision: i64,
) -> Result<Announcement, NodeProcessError> {
    let wait = announce_wait(call);
    if wait.is_zero() {
        return Ok(Announcement::default());
    }
    let addresses = addresses.iter().map(Prefix::address).collect();
    let socket = call.dirs.admin_socket();
    node_process::announced(&socket, addresses, revision, wait).await
}

async fn configure(site: &Site<'_>, pair: &Pair, plan: &PodPlan) -> Result<(), KernelError> {
    let wait = match plan.families().contains(&Family::Ipv6) {
        true => Some(RouteWait::inside(site.netns)?),
        false => None,
    };
    pod::configure(&site.inside, &pair.pod, plan).await?;
    match wait {
        Some(wait) => wait.wait_for_addresses(&pair.pod, &plan.addresses).await,
        None => Ok(()),
    }
}

/// The families to prepare for. A delegated plugin tells only afterwards.
fn expected_families(call: &Call, wishes: &Wishes) -> Vec<Family> {
    if call.has_own_addresses() || !wishes.without_ipam.is_empty() {
        return wishes.wanted_families();
    }
    let mut families = vec![Family::Ipv4];
    families.extend(sysctl::has_ipv6().then_some(Family::Ipv6));
    families
}

fn default_routes(call: &Call, addresses: &[Prefix]) -> Vec<Prefix> {
    if call.conf.include_default_routes == Some(false) {
        return Vec::new();
    }
    let any = |family| Prefix::truncated(kernel::gateway(family), 0);
    pod::families(addresses).into_iter().map(any).collect()
}

/// Addresses that the pod brings; nobody is asked for them.
async fn with_named_addresses(site: &Site<'_>) -> Result<(Obtained, Pair), CniError> {
    let pair = make_pair(site).await?;
    let named = &site.wishes.without_ipam;
    let addresses: Vec<_> = named.iter().copied().map(Prefix::host).collect();
    let destinations = default_routes(site.call, &addresses);
    Ok((Obtained::new(addresses, destinations), pair))
}

/// Addresses from the datastore and the pair from the kernel: at the same time, or one after the
/// other where the pod asks for certain addresses.
async fn with_own_addresses<S: Store>(
    site: &Site<'_>,
    store: &S,
    known: &Known,
) -> Result<(Obtained, Pair), CniError> {
    let call = site.call;
    let addresses = async {
        let handle = known.handle.as_ref();
        let held = addresses::hold(store, &call.dirs, &call.attachment, &site.wishes, handle).await;
        if held.is_ok() {
            (site.progress)(Milestone::AddressesHeld);
        }
        held
    };
    // Who takes an address over looks at the interface of an earlier container first: a pair that
    // is half made would be taken for it.
    let (Holding { held, precondition }, pair) = if site.wishes.addresses.is_empty() {
        let (held, pair) = tokio::join!(addresses, make_pair(site));
        (held?, pair?)
    } else {
        (addresses.await?, make_pair(site).await?)
    };
    let addresses: Vec<_> = held.iter().map(|h| Prefix::host(h.address)).collect();
    let obtained = Obtained {
        destinations: default_routes(call, &addresses),
        addresses,
        precondition,
    };
    Ok((obtained, pair))
}

/// The pair first: when an earlier call of this attachment went through, the pair says so, and the
/// other plugin is not asked again.
async fn with_delegated_addresses(
    site: &Site<'_>,
    known: &Known,
) -> Result<(Obtained, Pair), CniError> {
    let call = site.call;
    let pair = make_pair(site).await?;
    if let Some(endpoint) = known.own_endpoint(&call.attachment)
        && !pair.fresh
    {
        let addresses = endpoint.spec.ip_networks;
        let mut destinations = default_routes(call, &addresses);
        for family in pod::families(&addresses) {
            destinations.extend(pod_routes::destinations(&site.inside, &pair.pod, family).await?);
        }
        return Ok((Obtained::new(addresses, destinations), pair));
    }
    let obtained = ask_delegate(call)?;
    (site.progress)(Milestone::AddressesHeld);
    Ok((obtained, pair))
}

fn ask_delegate(call: &Call) -> Result<Obtained, CniError> {
    let nothing = || CniError::NoAddress(call.conf.ipam.kind.clone());
    let delegate = call.delegate()?.ok_or_else(nothing)?;
    // A plugin may refuse because an earlier call was killed after it had given an address.
    let result = delegate.add().or_else(|error| {
        tracing::debug!(%error, "the IPAM plugin refused; once more after a DEL");
        delegate.run(Command::Del)?;
        delegate.add()
    })?;
    let addresses: Vec<_> = result.addresses().map(Prefix::host).collect();
    if addresses.is_empty() {
        return Err(nothing());
    }
    let mut destinations: Vec<_> = result.routes.iter().map(|r| r.dst.prefix()).collect();
    destinations.extend(default_routes(call, &addresses));
    Ok(Obtained::new(addresses, destinations))
}

impl Obtained {
    fn new(addresses: Vec<Prefix>, mut destinations: Vec<Prefix>) -> Self {
        let families = pod::families(&addresses);
        destinations.retain(|d| families.contains(&d.family()));
        destinations.sort_unstable();
        destinations.dedup();
        Self {
            addresses,
            destinations,
            precondition: None,
        }
    }
}

/// The two ends of the pod's pair.
#[derive(Debug)]
struct Pair {
    host: Link,
    pod: Link,
    fresh: bool,
}

async fn make_pair(site: &Site<'_>) -> Result<Pair, CniError> {
    let (call, host, families) = (site.call, &site.host, &site.families);
    let name = call.attachment.host_interface();
    let plan = VethPair {
        host: name.as_str(),
        pod: &call.attachment.ifname,
        mac: site.mac,
        mtu: settings::mtu_soon(&call.conf, &call.dirs).await?,
        queues: call.conf.num_queues,
        alias: call.attachment.alias(),
    };
    let fresh = remove_stale_veth(site, &plan).await?;
    let host_link = if fresh {
        plan.create(host, site.netns, families).await?
    } else {
        plan.configure_host_end(host, families).await?
    };
    let Some(pod_link) = site.inside.by_name(plan.pod).await? else {
        return Err(KernelError::Vanished {
            name: plan.pod.to_owned(),
        }
        .into());
    };
    (site.progress)(Milestone::PairMade);
    Ok(Pair {
        host: host_link,
        pod: pod_link,
        fresh,
    })
}

/// True when the pair must be made: there is none, or only remains, which are deleted. False when
/// an earlier call of the same attachment made it.
async fn remove_stale_veth(site: &Site<'_>, plan: &VethPair<'_>) -> Result<bool, KernelError> {
    let host_link = site.host.by_name(plan.host).await?;
    let pod_link = site.inside.by_name(plan.pod).await?;
    if let Some(host_link) = host_link {
        let pair = pod_link
            .as_ref()
            .is_some_and(|l| l.is_pair_with(&host_link));
        if pair && host_link.alias.as_deref() == Some(plan.alias.as_str()) {
            return Ok(false);
        }
        refuse_others(site.call, plan, &host_link)?;
        site.host.delete(&host_link).await?;
        if pair {
            return Ok(true);
        }
    }
    match pod_link {
        None => Ok(true),
        Some(_) => Err(KernelError::Taken {
            name: plan.pod.to_owned(),
        }),
    }
}

/// An interface of the same name may be an older sandbox's of the same pod, and is in the way then.
/// Of plain containers it is another, living one's.
fn refuse_others(call: &Call, plan: &VethPair<'_>, host_link: &Link) -> Result<(), KernelError> {
    let owner = host_link.alias.as_deref().and_then(handle_of_alias);
    match (owner, &call.attachment.workload) {
        (Some(owner), Workload::Container) if host_link.alias.as_ref() != Some(&plan.alias) => {
            Err(KernelError::Collision {
                name: plan.host.to_owned(),
                owner: owner.to_string(),
            })
        }
        _ => Ok(()),
    }
}

async fn undo<S: Store>(call: &Call, store: &S) {
    let interface = del::delete_interface(call).await.map_err(CniError::from);
    let rest = del::release_or_leave(call, store, &|_| {}).await;
    let delegated = match call.delegate() {
        Ok(Some(delegate)) => delegate.run(Command::Del).map(drop),
        _ => Ok(()),
    };
    for error in [interface, rest, delegated.map_err(CniError::from)]
        .into_iter()
        .filter_map(Result::err)
    {
        tracing::warn!(%error, "something of the failed ADD stays until DEL or GC");
    }
}

fn outcome(call: &Call, plan: &PodPlan, pair: &Pair, mac: &Mac) -> Result<Outcome, CniError> {
    let sandbox = call.env.netns.as_ref();
    let interfaces = vec![
        Interface {
            name: pair.host.name.clone(),
            mac: Some(format_mac(&HOST_MAC)),
            mtu: Some(pair.host.mtu),
            ..Interface::default()
        },
        Interface {
            name: pair.pod.name.clone(),
            mac: Some(format_mac(mac)),
            mtu: Some(pair.pod.mtu),
            sandbox: sandbox.map(|path| path.to_string_lossy().into_owned()),
            ..Interface::default()
        },
    ];
    let cidr = |prefix: &Prefix| Cidr {
        address: prefix.address(),
        len: prefix.len(),
    };
    let ip = |prefix| IpConfig::new(cidr(prefix), Some(1));
    let route = |destination: &Prefix| Route {
        dst: cidr(destination),
        gw: Some(gateway_of(destination)),
        extra: serde_json::Map::new(),
    };
    let ours = Outcome {
        interfaces,
        ips: plan.addresses.iter().map(ip).collect(),
        routes: plan.destinations.iter().map(route).collect(),
        dns: call.conf.dns.clone(),
        extra: serde_json::Map::new(),
    };
    match &call.conf.prev_result {
        None => Ok(ours),
        Some(previous) => {
            let previous = Outcome::from_json(previous).map_err(CniError::PrevResult)?;
            Ok(ours.after(previous))
        }
    }
}

const fn gateway_of(destination: &Prefix) -> IpAddr {
    kernel::gateway(destination.family())
}
