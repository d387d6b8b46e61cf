//! What changes while the daemon runs: the configuration and the interface's addresses. In this
//! order: the devices of another backend beside those of before, then the lease that says so; other
//! nodes send as the lease says.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use caracal_agent::{Links, PlannedStatus};
use caracal_flannel::{
    AcquireRequest, Backend, DeviceMac, FlannelConfig, FlannelNetwork, FlannelState, LeaseView,
    OwnLease, device_mac,
};
use caracal_model::Family;
use tokio::sync::watch;

use super::args::FlannelArgs;
use super::health::Following;
use super::relay::Relay;
use super::stores::{FoundConfig, warn_of_notes};
use super::uplink;

/// The owner of the network as this node sees it.
pub(super) struct Control<'a> {
    pub(super) args: &'a FlannelArgs,
    /// Where the configuration is.
    pub(super) place: String,
    /// The configuration says which subnets there are.
    pub(super) gives_subnets: bool,
    pub(super) configs: watch::Receiver<FoundConfig>,
    pub(super) views: watch::Receiver<Arc<LeaseView>>,
    pub(super) status: watch::Receiver<Arc<PlannedStatus>>,
    /// The configuration of the pass that was begun last: an earlier one may yet delete a device.
    pub(super) planned: Arc<Mutex<Option<FlannelConfig>>>,
    pub(super) requests: watch::Sender<AcquireRequest>,
    pub(super) states: watch::Sender<Arc<FlannelState>>,
    pub(super) relay: Option<Relay>,
    pub(super) following: &'a watch::Sender<Option<Following>>,
}

/// Why something is not followed: about what, and the reason.
type Refusal = Option<(String, String)>;

impl Control<'_> {
    /// Follows everything, for ever.
    ///
    /// # Errors
    /// The leases are not followed any more, or the relay's thread is not to be had.
    pub(super) async fn run(mut self) -> anyhow::Result<std::convert::Infallible> {
        let mut of_uplink: Refusal = None;
        loop {
            let view = Arc::clone(&self.views.borrow_and_update());
            // Asked before the status, which is then that of the pass before, or a later one.
            let planned = self.planned.lock();
            let planned = planned.unwrap_or_else(PoisonError::into_inner).clone();
            let status = Arc::clone(&self.status.borrow_and_update());
            let mut network = self.states.borrow().network.clone();
            let before = network.clone();
            let found = self.configs.borrow_and_update().clone();
            let of_config = self.take_config(&mut network, &found, &view);
            if status.passes > 0 {
                of_uplink = take_uplink(&mut network, &status.links);
            }
            network.refused = [&of_config, &of_uplink]
                .into_iter()
                .flatten()
                .cloned()
                .collect();
            let state = Arc::new(FlannelState { network, view });
            tell_of_changes(&before, &state.network);
            self.states.send_if_modified(|known| {
                let is_other = **known != *state;
                *known = Arc::clone(&state);
                is_other
            });
            self.keep_relay(&state)?;
            self.relay.iter_mut().for_each(Relay::look);
            let is_planned = planned.as_ref() == Some(&state.network.config);
            let stands = is_planned && self.stands(&state, &status.links);
            if stands {
                self.renew(&state, &status.links);
            }
            // Without its relay the backend `udp` has nothing at all; devices of others may be
            // somebody's own, which is named, and nodes on the link are reached.
            let is_udp = matches!(state.network.config.backend, Backend::Udp { .. });
            if status.passes > 0 && (stands || !is_udp) {
                self.tell_health();
            }
            let relay = self.relay.as_ref().map(Relay::observer);
            tokio::select! {
                changed = self.views.changed() => {
                    changed.context("the leases are not followed any more")?;
                }
                changed = self.status.changed() => changed.context("the writer has ended")?,
                Ok(()) = self.configs.changed() => {}
                () = async { match relay {
                    Some(mut relay) => relay.turned().await,
                    None => std::future::pending().await,
                } } => {}
            }
        }
    }

    /// Takes over what was found, unless this node cannot follow it.
    fn take_config(
        &self,
        network: &mut FlannelNetwork,
        found: &FoundConfig,
        view: &LeaseView,
    ) -> Refusal {
        let refused = |reason: String| {
            let reason = format!("{reason}; the configuration of before stays in force");
            Some((self.place.clone(), reason))
        };
        let mut config = match found {
            Ok(config) => config.clone(),
            Err(reason) => return refused(reason.clone()),
        };
        let subnets = &view.own.subnets;
        if !self.gives_subnets {
            config.take_lengths(subnets);
        }
        if config == network.config {
            return None;
        }
        if !config.holds(subnets) {
            return refused(format!(
                "{subnets}, from which containers of this node have their addresses, is not among the subnets of the new configuration: restart the daemon, and then the containers, for subnets that are"
            ));
        }
        if let Err(reason) = check_public_ip(self.args, &config, &network.uplink) {
            return refused(reason);
        }
        warn_of_notes(&self.place, &config);
        network.change(config);
        None
    }

    /// Starts the relay once somebody is to be reached by it, and stops it when nobody is any more.
    fn keep_relay(&mut self, state: &FlannelState) -> anyhow::Result<()> {
        let view = &state.view;
        let Some(port) = state.network.relay_port(view) else {
            if view.settled {
                self.relay = None;
            }
            return Ok(());
        };
        let addresses = state.network.uplink.addresses.into_iter().flatten();
        let addresses: Vec<SocketAddr> = addresses
            .map(|address: IpAddr| SocketAddr::new(address, port))
            .collect();
        let is_right = |relay: &Relay| relay.addresses() == addresses;
        let must_wait = self.relay.is_none() && !view.connected;
        if must_wait || self.relay.as_ref().is_some_and(is_right) {
            return Ok(());
        }
        // The device has one owner at a time.
        self.relay = None;
        self.relay = Some(Relay::start(addresses, self.states.subscribe())?);
        Ok(())
    }

    /// True once packets that come as the configuration says are received.
    fn stands(&self, state: &FlannelState, links: &Links) -> bool {
        let relays = match state.network.config.backend {
            Backend::Udp { .. } => self.relay.as_ref().is_some_and(Relay::is_up),
            _ => true,
        };
        relays && state.network.devices_stand(&state.view.own.subnets, links)
    }

    /// Asks for a lease that says what this node is now.
    fn renew(&self, state: &FlannelState, links: &Links) {
        let FlannelState { network, view } = state;
        self.requests.send_if_modified(|sent| {
            let mut request = sent.clone();
            request.devices_stand = true;
            take_facts(&mut request, self.args, network);
            if request.config.backend != sent.config.backend || !sent.devices_stand {
                take_macs(&mut request, &view.own, links);
            }
            let asks = AcquireRequest {
                devices_stand: true,
                ..sent.clone()
            };
            let is_owed = request.lease(Some(&view.own.lease)) != view.own.lease;
            let is_other = request != *sent && (is_owed || request != asks);
            if is_other {
                *sent = request;
            }
            is_other
        });
    }

    fn tell_health(&self) {
        let relay = self.relay.as_ref().map(Relay::observer);
        self.following.send_if_modified(|known| {
            let same = |known: &Following| match (&known.relay, &relay) {
                (Some(known), Some(relay)) => known.is(relay),
                (None, None) => true,
                _ => false,
            };
            if known.as_ref().is_some_and(same) {
                return false;
            }
            *known = Some(Following {
                views: self.views.clone(),
                status: self.status.clone(),
                relay,
            });
            true
        });
    }
}

/// The interface as it is now.
fn take_uplink(network: &mut FlannelNetwork, links: &Links) -> Refusal {
    match uplink::again(&network.uplink, links) {
        Ok(uplink) => {
            network.uplink = uplink;
            None
        }
        Err(reason) => {
            let name = network.uplink.name.to_string();
            Some((name, format!("{reason}; what was known of it counts")))
        }
    }
}

fn tell_of_changes(before: &FlannelNetwork, now: &FlannelNetwork) {
    if before.config != now.config {
        tracing::info!(
            networks = ?now.config.networks().collect::<Vec<_>>(), before = ?before.config.backend,
            backend = ?now.config.backend, "the configuration has changed"
        );
    }
    if before.uplink != now.uplink {
        tracing::info!(before = ?before.uplink, now = ?now.uplink, "the interface has changed");
    }
}

/// What other nodes are told of this machine.
pub(super) fn take_facts(
    request: &mut AcquireRequest,
    args: &FlannelArgs,
    network: &FlannelNetwork,
) {
    request.config = network.config.clone();
    let [v4, v6] = network.uplink.addresses;
    if let Some(IpAddr::V4(own)) = v4 {
        request.public_ip = Some(args.public_ip.unwrap_or(own));
    }
    if let Some(IpAddr::V6(own)) = v6 {
        request.public_ipv6 = Some(args.public_ipv6.unwrap_or(own));
    }
}

/// The MAC addresses of the devices that stand, where the lease is to speak of others than it does.
fn take_macs(request: &mut AcquireRequest, own: &OwnLease, links: &Links) {
    let Backend::Vxlan(options) = &request.config.backend else {
        return;
    };
    let wanted = request.lease(Some(&own.lease));
    if (&wanted.backend_data, &wanted.backend_v6_data)
        == (&own.lease.backend_data, &own.lease.backend_v6_data)
    {
        return;
    }
    for (mac, family) in request.macs.iter_mut().zip([Family::Ipv4, Family::Ipv6]) {
        if let Some(there) = device_mac(family, options, links) {
            *mac = DeviceMac::Kept(there);
        }
    }
}

/// # Errors
/// Nobody could send to this node.
pub(super) fn check_public_ip(
    args: &FlannelArgs,
    config: &FlannelConfig,
    uplink: &caracal_flannel::Uplink,
) -> Result<(), String> {
    for (family, own) in [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .zip(uplink.addresses)
    {
        let (_, public) = args.public_address(family);
        let public = public.filter(|public| own.is_some() && own != Some(*public));
        if let (Backend::HostGw, Some(public)) = (&config.backend, public) {
            return Err(format!(
                "host-gw: the public address {public} is not the address of {}, and other nodes could not send to it on their link",
                uplink.name
            ));
        }
    }
    Ok(())
}
