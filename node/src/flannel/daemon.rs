//! The daemon: configuration, interface, lease, kernel, `subnet.env`, and then following.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use caracal_agent::{Actual, Sweep, read_kernel, spawn_planned};
use caracal_datastore::{PUBLIC_MODE, Rarely, make_folder, put_file, read_text_file};
use caracal_flannel::{
    AcquireRequest, Backend, DeviceMac, FlannelConfig, FlannelKeys, FlannelNetwork, FlannelState,
    FollowOptions, LeaseStore, NodeSubnets, OwnLease, SubnetFile, acquire_lease, container_mtu,
    device_mac, follow_leases, plan_flannel,
};
use caracal_model::{Family, Mac};
use tokio::sync::watch;

use super::args::FlannelArgs;
use super::control::{Control, check_public_ip, take_facts};
use super::forward::keep_forwarding;
use super::health::{FlannelHealth, Following};
use super::masquerade::Masquerade;
use super::offload::keep_checksums;
use super::presence;
use super::stores::{Stores, again};
use super::uplink;
use crate::kernel_answer::await_kernel;
use crate::signals::Signals;

/// Pause after rules that could not be written.
const RULES_AGAIN: Duration = Duration::from_secs(30);

/// Serves until a signal; what was made stays.
pub(super) async fn serve(mut args: FlannelArgs) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen().context("listening for signals")?;
    let (following, followed) = watch::channel(None);
    let subnet_file = args.subnet_file.clone();
    // Held until the end. Without it one command knows less.
    let _sign = presence::announce(u64::from_ne_bytes(random()?)).inspect_err(
        |error| tracing::warn!(%error, "`caracal flannel migrate end` does not see this process"),
    );
    if args.healthz_port != 0 {
        let address = (args.healthz_ip, args.healthz_port).into();
        tokio::spawn(crate::http::serve(address, FlannelHealth(followed)));
    }
    let signal = tokio::select! {
        // Nothing of ours is in the kernel half written: each write is one message.
        signal = signals.end() => signal,
        end = work(&mut args, &following) => match end? {},
    };
    tracing::info!(
        "{signal}: leaving; the lease, routes, devices and {} stay",
        subnet_file.display()
    );
    Ok(ExitCode::SUCCESS)
}

async fn work(
    args: &mut FlannelArgs,
    following: &watch::Sender<Option<Following>>,
) -> anyhow::Result<std::convert::Infallible> {
    let Stores {
        config: place,
        leases,
        keys,
    } = Stores::open(args).await?;
    let found = place.wait().await;
    let read = async || read_kernel().await.context("reading the kernel's state");
    let actual = await_kernel(read, |_| {}).await?;
    let uplink = uplink::choose(args, &actual, found.families()).map_err(anyhow::Error::msg)?;
    let macs = [fresh_mac()?, fresh_mac()?];
    let mut network = FlannelNetwork {
        config: found.clone(),
        before: Vec::new(),
        uplink,
        blackhole: args.ip_blackhole_route,
        metric: args.route_metric,
        macs,
        refused: Vec::new(),
    };
    let request = request(args, keys, &network, &actual)?;
    tracing::info!(
        interface = %network.uplink.name, public = %request.lease(None).node(), mtu = network.uplink.mtu,
        backend = found.backend.lease_type(), networks = ?found.networks().collect::<Vec<_>>(), "starting"
    );
    warn_of_forwarding();
    let own = await_lease(&leases, &request).await;
    if !place.gives_subnets() {
        network.config.take_lengths(&own.subnets);
    }
    let (requests, requested) = watch::channel(request);
    let options = FollowOptions {
        request: requested,
        renew_after: args.renew_after(),
        settle: args.settle(),
    };
    let views = follow_leases(leases, options, own);
    let view = Arc::clone(&views.borrow());
    let (states, state) = watch::channel(Arc::new(FlannelState { network, view }));
    let planned = Arc::new(Mutex::new(None));
    let under_way = Arc::clone(&planned);
    let status = spawn_planned(state.clone(), move |state: &FlannelState, links| {
        let mut planned = under_way.lock().unwrap_or_else(PoisonError::into_inner);
        *planned = Some(state.network.config.clone());
        let sweep = match state.view.settled {
            true => Sweep::Unwanted,
            false => Sweep::Nothing,
        };
        (plan_flannel(&state.network, &state.view, links), sweep)
    })?;
    let links = status.clone();
    let control = Control {
        args,
        place: place.name(),
        gives_subnets: place.gives_subnets(),
        configs: place.follow(found),
        views,
        status,
        planned,
        requests,
        states,
        relay: None,
        following,
    };
    tokio::select! {
        end = control.run() => end,
        end = write_rules_and_file(args, state.clone(), following.subscribe()) => end,
        () = keep_checksums(args, state.clone(), links) => anyhow::bail!("the writer has ended"),
        () = keep_forwarding(args, state) => anyhow::bail!("nobody looks at iptables any more"),
    }
}

/// What is not netlink's, once the kernel's part is written.
async fn write_rules_and_file(
    args: &FlannelArgs,
    mut states: watch::Receiver<Arc<FlannelState>>,
    mut following: watch::Receiver<Option<Following>>,
) -> anyhow::Result<std::convert::Infallible> {
    following
        .wait_for(Option::is_some)
        .await
        .context("the daemon has ended")?;
    let mut masquerade = Masquerade::new(args, &states.borrow().network.config);
    let mut written = None;
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        let (network, subnets) = (&state.network, state.view.own.subnets);
        let masquerades = match &mut masquerade {
            Some(rules) => rules.put(&network.config, subnets).await,
            None => false,
        };
        // Who does not masquerade says so, and the container runtime does it.
        let content = subnet_file(network, subnets, masquerades);
        if written.as_ref() != Some(&content) {
            let file = write_subnet_file(&args.subnet_file, &content);
            written = file.then_some(content);
            notify_ready();
        }
        let rules_changed = async {
            match &mut masquerade {
                Some(rules) if masquerades => rules.changed_by_others().await,
                Some(_) => tokio::time::sleep(RULES_AGAIN).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = states.changed() => changed.context("the leases are not followed any more")?,
            () = rules_changed => {}
        }
    }
}

async fn await_lease(store: &LeaseStore, request: &AcquireRequest) -> OwnLease {
    let mut told = Rarely::default();
    loop {
        match acquire_lease(store, request).await {
            Ok(own) => return own,
            Err(error) => again(&mut told, "no lease yet; tried again", error.to_string()).await,
        }
    }
}

fn request(
    args: &FlannelArgs,
    keys: FlannelKeys,
    network: &FlannelNetwork,
    actual: &Actual,
) -> anyhow::Result<AcquireRequest> {
    let uplink = &network.uplink;
    check_public_ip(args, &network.config, uplink).map_err(anyhow::Error::msg)?;
    let mac = |family, fresh| mac_of_device(&network.config, actual, family, fresh);
    let [v4, v6] = network.macs;
    let mut request = AcquireRequest {
        keys,
        config: network.config.clone(),
        public_ip: None,
        public_ipv6: None,
        macs: [mac(Family::Ipv4, v4), mac(Family::Ipv6, v6)],
        // Whatever is there: who takes a lease of another backend over makes its devices first.
        devices_stand: false,
        previous: read_text_file(&args.subnet_file)
            .ok()
            .and_then(|text| SubnetFile::read_subnets(&text)),
        written: None,
        ttl: args.ttl(),
        seed: u64::from_ne_bytes(random()?),
    };
    take_facts(&mut request, args, network);
    Ok(request)
}

/// The MAC address of the device that is there, else a new one.
fn mac_of_device(config: &FlannelConfig, actual: &Actual, family: Family, fresh: Mac) -> DeviceMac {
    let there = match &config.backend {
        Backend::Vxlan(options) => device_mac(family, options, &actual.links),
        _ => None,
    };
    there.map_or(DeviceMac::Fresh(fresh), DeviceMac::Kept)
}

/// One device's own, and nobody's who sells devices.
fn fresh_mac() -> anyhow::Result<Mac> {
    let mut mac: Mac = random()?;
    mac[0] = (mac[0] | 2) & !1;
    Ok(mac)
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut octets = [0; N];
    let source = "/dev/urandom";
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut octets))
        .context(source)?;
    Ok(octets)
}

fn subnet_file(network: &FlannelNetwork, subnets: NodeSubnets, masquerades: bool) -> SubnetFile {
    let mtu = container_mtu(&network.config, &network.uplink);
    SubnetFile::new(&network.config, subnets, mtu, masquerades)
}

/// False when it could not be written.
fn write_subnet_file(path: &Path, file: &SubnetFile) -> bool {
    let text = file.render();
    let folder = path.parent().map_or(Ok(()), make_folder);
    let written = folder.and_then(|()| put_file(path, text.as_bytes(), PUBLIC_MODE));
    match &written {
        Ok(()) => tracing::info!(
            content = text.trim_end().replace('\n', " "),
            "{} is written",
            path.display()
        ),
        Err(error) => {
            tracing::error!(%error, "{} is not written, and containers will not start", path.display())
        }
    }
    written.is_ok()
}

/// flanneld leaves forwarding to others, and so does this; without it nothing arrives.
fn warn_of_forwarding() {
    let path = "/proc/sys/net/ipv4/ip_forward";
    if fs::read_to_string(path).is_ok_and(|text| text.trim() == "0") {
        tracing::warn!(
            "{path} is 0: this machine does not forward packets of containers; the container runtime or an administrator has to set it"
        );
    }
}

/// Tells systemd, where it asked for it (`sd_notify`).
fn notify_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1", &path));
    if let Err(error) = sent {
        tracing::debug!(%error, "systemd is not told that the daemon is ready");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_datastore::{EtcdConfig, EtcdStore, TestLog};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_etcd_that_is_not_there_yet_is_told_at_once_and_then_rarely() {
        let log = TestLog::capture();
        let config = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#;
        let request = AcquireRequest {
            keys: FlannelKeys::new("/coreos.com/network"),
            config: FlannelConfig::parse(config.as_bytes()).unwrap(),
            public_ip: Some([10, 0, 0, 1].into()),
            public_ipv6: None,
            macs: [DeviceMac::Fresh([2, 0, 0, 0, 0, 1]); 2],
            devices_stand: true,
            previous: None,
            written: None,
            ttl: Duration::from_secs(86_400),
            seed: 0,
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let store = LeaseStore::Etcd(EtcdStore::new(EtcdConfig::new([endpoint])).unwrap());
        let hour = Duration::from_secs(3600);
        let lease = tokio::time::timeout(hour, await_lease(&store, &request)).await;
        assert!(lease.is_err(), "{lease:?}");
        // At once, and after 30, 90, 210, 450, 930 and 1,890 s.
        let lines = log.lines("no lease yet");
        assert!((6..=8).contains(&lines.len()), "{lines:#?}");
    }
}
