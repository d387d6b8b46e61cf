//! The daemon: configuration, interface, lease, kernel, `subnet.env`, and then following.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use caracal_agent::{Actual, Sweep, read_kernel, spawn_planned};
use caracal_datastore::{PUBLIC_MODE, make_folder, put_file, read_text_file};
use caracal_flannel::{
    AcquireRequest, Backend, DeviceMac, FlannelConfig, FlannelKeys, FlannelNetwork, FollowOptions,
    LeaseStore, LeaseView, NodeSubnets, OwnLease, SubnetFile, Uplink, acquire_lease, container_mtu,
    flannel_device, follow_leases, plan_flannel,
};
use caracal_model::{Family, Mac};
use tokio::sync::watch;

use super::args::FlannelArgs;
use super::forward::keep_forwarding;
use super::health::{FlannelHealth, Following};
use super::masquerade::Masquerade;
use super::relay::Relay;
use super::stores::{AGAIN, Stores};
use super::uplink;
use crate::signals::Signals;

/// Pause after rules that could not be written.
const RULES_AGAIN: Duration = Duration::from_secs(30);

/// Serves until a signal; what was made stays.
pub(super) async fn serve(mut args: FlannelArgs) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen().context("listening for signals")?;
    let (following, followed) = watch::channel(None);
    let subnet_file = args.subnet_file.clone();
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
    let stores = Stores::open(args).await?;
    let mut config = stores.config.wait().await;
    let actual = read_kernel().await?;
    let uplink = uplink::choose(args, &actual, config.v6.is_some()).map_err(anyhow::Error::msg)?;
    let request = request(args, stores.keys, &config, &uplink, &actual)?;
    tracing::info!(
        interface = %uplink.name, public = %request.public_ip, mtu = uplink.mtu,
        backend = config.backend.lease_type(), network = %config.v4.network, "starting"
    );
    warn_of_forwarding();
    let own = await_lease(&stores.leases, &request).await;
    config.take_lengths(&own.subnets);
    let network = FlannelNetwork {
        config,
        uplink,
        blackhole: args.ip_blackhole_route,
    };
    let options = FollowOptions {
        request,
        renew_after: args.renew_after(),
        settle: args.settle(),
    };
    let mut views = follow_leases(stores.leases, options, own);
    let relay = match network.config.backend {
        Backend::Udp { port } => Some(Relay::start(&network, port, views.clone()).await?),
        _ => None,
    };
    let planned = network.clone();
    let mut status = spawn_planned(views.clone(), move |view: &LeaseView, links| {
        let sweep = match view.settled {
            true => Sweep::Unwanted,
            false => Sweep::Nothing,
        };
        (plan_flannel(&planned, view, links), sweep)
    })?;
    status
        .wait_for(|status| status.passes > 0)
        .await
        .context("the writer has ended")?;
    following.send_replace(Some(Following {
        views: views.clone(),
        status: status.clone(),
        relay: relay.as_ref().map(Relay::observer),
    }));
    let mut masquerade = Masquerade::new(args, &network.config);
    let mut forwarding = pin!(keep_forwarding(args, &network.config));
    let mut written = None;
    loop {
        let subnets = views.borrow_and_update().own.subnets;
        let masquerades = match &mut masquerade {
            Some(rules) => rules.put(&network.config, subnets).await,
            None => false,
        };
        // Who does not masquerade says so, and the container runtime does it.
        let content = (subnets, masquerades);
        if written != Some(content) {
            let file = write_subnet_file(&args.subnet_file, &network, subnets, masquerades);
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
            changed = views.changed() => changed.context("the leases are not followed any more")?,
            () = rules_changed => {}
            () = &mut forwarding => {}
        }
    }
}

async fn await_lease(store: &LeaseStore, request: &AcquireRequest) -> OwnLease {
    loop {
        match acquire_lease(store, request).await {
            Ok(own) => return own,
            Err(error) => tracing::error!(%error, "no lease yet; tried again"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn request(
    args: &FlannelArgs,
    keys: FlannelKeys,
    config: &FlannelConfig,
    uplink: &Uplink,
    actual: &Actual,
) -> anyhow::Result<AcquireRequest> {
    let [v4, v6] = uplink.addresses;
    let Some(IpAddr::V4(own)) = v4 else {
        anyhow::bail!("{} has no IPv4 address", uplink.name);
    };
    let own_v6: Option<Ipv6Addr> = v6.and_then(|address| match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    let public_ip = args.public_ip.unwrap_or(own);
    if config.backend == Backend::HostGw && public_ip != own {
        anyhow::bail!(
            "host-gw: the public address {public_ip} is not the address {own} of {}, and other nodes could not send to it on their link",
            uplink.name
        );
    }
    Ok(AcquireRequest {
        keys,
        config: config.clone(),
        public_ip,
        public_ipv6: args.public_ipv6.or(own_v6),
        macs: [
            device_mac(config, actual, Family::Ipv4)?,
            device_mac(config, actual, Family::Ipv6)?,
        ],
        previous: read_text_file(&args.subnet_file)
            .ok()
            .and_then(|text| SubnetFile::read_subnets(&text)),
        ttl: args.ttl(),
        seed: u64::from_ne_bytes(random()?),
    })
}

/// The MAC address of the device that is there, else a new one.
fn device_mac(
    config: &FlannelConfig,
    actual: &Actual,
    family: Family,
) -> anyhow::Result<DeviceMac> {
    let Backend::Vxlan(options) = &config.backend else {
        return Ok(DeviceMac::Fresh(Mac::default()));
    };
    let device = flannel_device(family, options.vni);
    let link = actual.links.by_name(device.as_str());
    let there = link
        .filter(|link| link.kind == "vxlan")
        .and_then(|link| link.mac);
    if let Some(mac) = there {
        return Ok(DeviceMac::Kept(mac));
    }
    let mut mac: Mac = random()?;
    // One device's own, and nobody's who sells devices.
    mac[0] = (mac[0] | 2) & !1;
    Ok(DeviceMac::Fresh(mac))
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut octets = [0; N];
    let source = "/dev/urandom";
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut octets))
        .context(source)?;
    Ok(octets)
}

/// False when it could not be written.
fn write_subnet_file(
    path: &Path,
    network: &FlannelNetwork,
    subnets: NodeSubnets,
    masquerades: bool,
) -> bool {
    let mtu = container_mtu(&network.config, &network.uplink);
    let file = SubnetFile::new(&network.config, subnets, mtu, masquerades);
    let folder = path.parent().map_or(Ok(()), make_folder);
    let written = folder.and_then(|()| put_file(path, file.render().as_bytes(), PUBLIC_MODE));
    match &written {
        Ok(()) => tracing::info!(%subnets, mtu, "{} is written", path.display()),
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
