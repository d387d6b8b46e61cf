//! Peers that are known by their range only: each address that connects from it becomes a peer of
//! its own, with the range's options, and goes again when it has stayed away.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Core, now};
use crate::config::{PeerConfig, SpeakerConfig};
use crate::speaker::log_limit::LogKind;
use crate::types::PeerName;

/// Peers of one range at most: an address range must not be a way to fill the memory.
const MAX_PEERS: usize = 4096;
/// Such a peer is forgotten after this time without a session, or after the time for which its
/// routes are kept, if that is longer.
const IDLE: Duration = Duration::from_secs(60);

/// A peer that came from a range. It is known by its address; the names are labels.
#[derive(Clone, Debug)]
pub(super) struct Dynamic {
    /// The present name of its range.
    range: PeerName,
    /// Its own name in the configuration in force: the range's and the address.
    name: PeerName,
    /// Time at which it is forgotten; `None` while it has a session or is disabled.
    until: Option<Instant>,
}

/// A range by its name.
pub(super) type NamedRange = (PeerName, PeerConfig);

/// The ranges of a configuration, which are no peers themselves.
pub(super) fn take_ranges(config: &mut SpeakerConfig) -> Vec<NamedRange> {
    let is_range = |(_, peer): &(&PeerName, &PeerConfig)| peer.range.is_some();
    let ranges: Vec<_> = config
        .peers
        .iter()
        .filter(is_range)
        .map(|(name, peer)| (name.clone(), peer.clone()))
        .collect();
    config.peers.retain(|_, peer| peer.range.is_none());
    ranges
}

/// The peer at an address of a range.
fn member(range: &PeerConfig, address: IpAddr) -> PeerConfig {
    PeerConfig {
        address,
        range: None,
        dynamic_name: None,
        passive: true,
        ..range.clone()
    }
}

/// The name of that peer.
fn member_name(range: &PeerName, template: &PeerConfig, address: IpAddr) -> PeerName {
    let suffix = address.to_string().replace(['.', ':'], "_");
    match &template.dynamic_name {
        Some(beginning) => PeerName::from(format!("{beginning}_{suffix}")),
        None => PeerName::from(format!("{range}_{suffix}")),
    }
}

/// The range among `new` that `old` has become, for its peer at `address`. A range is the same when
/// its addresses, its port and its AS are, whatever its name; failing that, when it has the name
/// and covers the peer.
fn successor<'a>(
    (name, old): &NamedRange,
    new: &'a [NamedRange],
    address: IpAddr,
) -> Option<&'a NamedRange> {
    let identity = |range: &PeerConfig| (range.range, range.port, range.remote_as);
    let named = new.iter().find(|(other, _)| other == name);
    let same = named.filter(|(_, range)| identity(range) == identity(old));
    let mut alike = new
        .iter()
        .filter(|(_, range)| identity(range) == identity(old));
    let only = match (alike.next(), alike.next()) {
        (Some(only), None) => Some(only),
        // Several ranges with the same addresses, port and AS: ambiguous.
        _ => None,
    };
    let covers = |range: &PeerConfig| range.range.is_some_and(|range| range.contains(address));
    let covering = named.filter(|(_, range)| covers(range));
    same.or(only).or(covering)
}

impl Core {
    /// The configuration with the peers that came from its ranges.
    pub(super) fn with_dynamic(&mut self, mut config: SpeakerConfig) -> SpeakerConfig {
        let ranges = take_ranges(&mut config);
        let old = &self.ranges;
        self.dynamic.retain(|address, dynamic| {
            let before = old.iter().find(|(name, _)| *name == dynamic.range);
            let after = before.and_then(|before| successor(before, &ranges, *address));
            let Some((range, template)) = after else {
                return false;
            };
            let name = member_name(range, template, *address);
            let taken = config.peers.contains_key(&name)
                || config.peers.values().any(|peer| peer.address == *address);
            if !taken {
                config
                    .peers
                    .insert(name.clone(), member(template, *address));
                (dynamic.range, dynamic.name) = (range.clone(), name);
            }
            !taken
        });
        self.ranges = ranges;
        config
    }

    /// Makes a peer of an address that lies in a range, the narrowest if there are several.
    pub(super) fn welcome(&mut self, address: IpAddr) -> Option<PeerName> {
        let covering = self
            .ranges
            .iter()
            .filter(|(_, peer)| peer.range.is_some_and(|range| range.contains(address)));
        let (range, template) =
            covering.max_by_key(|(_, peer)| peer.range.map(|range| range.len()))?;
        let siblings = self.dynamic.values().filter(|peer| peer.range == *range);
        if siblings.count() >= MAX_PEERS {
            if self.log.allows(now(), (range.clone(), LogKind::RangeFull)) {
                warn!(%range, %address, "the range has {MAX_PEERS} peers already: connection closed");
            }
            return None;
        }
        let name = member_name(range, template, address);
        let (range, peer) = (range.clone(), member(template, address));
        if self.config.peers.contains_key(&name) {
            return None;
        }
        if self.log.allows(now(), (range.clone(), LogKind::NewPeer)) {
            info!(peer = %name, %range, %address, "new peer from a range");
        }
        let dynamic = Dynamic {
            range,
            name: name.clone(),
            until: Some(now() + IDLE),
        };
        self.dynamic.insert(address, dynamic);
        let mut config = self.config.clone();
        config.peers.insert(name.clone(), peer);
        self.go_over_to(config);
        Some(name)
    }

    /// A session of a peer has begun (`true`) or ended.
    pub(super) fn note_session(&mut self, name: &PeerName, up: bool) {
        let Some(peer) = self.config.peers.get(name) else {
            return;
        };
        let Some(dynamic) = self.dynamic.get_mut(&peer.address) else {
            return;
        };
        let restart = peer.graceful_restart.map(|gr| gr.restart_time);
        let kept = restart.unwrap_or_default() + peer.long_lived.unwrap_or_default();
        dynamic.until = (!up).then(|| now() + IDLE.max(kept));
    }

    /// A disabled peer does not go for having no session, or it would come back enabled.
    pub(super) fn hold_dynamic(&mut self, name: &PeerName, hold: bool) {
        let address = self.config.peers.get(name).map(|peer| peer.address);
        if let Some(dynamic) = address.and_then(|address| self.dynamic.get_mut(&address)) {
            dynamic.until = (!hold).then(|| now() + IDLE);
        }
    }

    pub(super) fn next_departure(&self) -> Option<Instant> {
        self.dynamic.values().filter_map(|peer| peer.until).min()
    }

    /// Forgets the peers that have stayed away.
    pub(super) fn expire_dynamic(&mut self) {
        let now = now();
        let before = self.dynamic.len();
        let mut config = None;
        self.dynamic.retain(|_, peer| {
            let stays = peer.until.is_none_or(|until| until > now);
            if !stays {
                let kind = LogKind::PeerForgotten;
                if self.log.allows(now, (peer.range.clone(), kind)) {
                    info!(peer = %peer.name, "peer of a range has stayed away and is forgotten");
                }
                let config = config.get_or_insert_with(|| self.config.clone());
                config.peers.remove(&peer.name);
            }
            stays
        });
        if self.dynamic.len() != before
            && let Some(config) = config
        {
            self.go_over_to(config);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use caracal_model::Prefix;
    use tokio::sync::watch;

    use super::*;
    use crate::config::Originations;
    use crate::speaker::message::PeerKey;
    use crate::speaker::status::Convergence;
    use crate::speaker::{SpeakerOptions, Tasks};
    use crate::types::{Asn, RouterId, SessionState};

    fn config() -> SpeakerConfig {
        let range = |len| PeerConfig {
            range: Some(Prefix::v4([10, 0, 0, 0].into(), len)),
            ..PeerConfig::new([10, 0, 0, 0].into(), Asn(64512))
        };
        SpeakerConfig {
            local_as: Asn(64512),
            router_id: RouterId([1, 0, 0, 1].into()),
            listen: None,
            peers: BTreeMap::from([("wide".into(), range(8)), ("narrow".into(), range(24))]),
            originate: Originations::default(),
            filters: BTreeMap::new(),
            stations: BTreeMap::new(),
        }
    }

    fn core() -> Core {
        let (publish, _) = watch::channel(Convergence::default());
        let tasks = Tasks {
            session: |_| Box::pin(std::future::pending()),
            listener: |_| Box::pin(std::future::pending()),
        };
        Core::new(config(), SpeakerOptions::default(), publish, tasks).0
    }

    fn peers(core: &Core) -> Vec<&str> {
        core.config.peers.keys().map(PeerName::as_str).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_of_a_range_goes_when_it_has_stayed_away() {
        let mut core = core();
        assert_eq!(peers(&core), [""; 0], "a range is no peer");
        let near = core.welcome([10, 0, 0, 9].into()).unwrap();
        core.welcome([10, 7, 0, 9].into()).unwrap();
        assert_eq!(core.welcome([11, 0, 0, 9].into()), None);
        assert_eq!(peers(&core), ["narrow_10_0_0_9", "wide_10_7_0_9"]);
        assert!(core.config.peers[&near].passive);
        core.note_session(&near, true);
        tokio::time::advance(IDLE).await;
        core.expire_dynamic();
        assert_eq!(
            peers(&core),
            ["narrow_10_0_0_9"],
            "the other never had a session"
        );
        assert_eq!(core.next_departure(), None);
        core.note_session(&near, false);
        tokio::time::advance(IDLE).await;
        core.expire_dynamic();
        assert_eq!(peers(&core).len(), 1, "its routes are kept for 120 s");
        tokio::time::advance(IDLE).await;
        core.expire_dynamic();
        assert_eq!(peers(&core).len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_has_so_many_peers_and_no_more() {
        let mut core = core();
        let (range, template) = core.ranges[0].clone();
        for n in 0..u32::try_from(MAX_PEERS).unwrap() {
            let address = IpAddr::V4((0x0a00_0100 + n).into());
            let dynamic = Dynamic {
                range: range.clone(),
                name: member_name(&range, &template, address),
                until: None,
            };
            core.dynamic.insert(address, dynamic);
        }
        assert_eq!(core.welcome([10, 0, 0, 1].into()), None);
    }

    /// The key of a peer whose session is established.
    fn established(core: &mut Core, name: &PeerName) -> PeerKey {
        core.note_session(name, true);
        let peer = core.peers.named_mut(name).unwrap();
        peer.enter(SessionState::Established);
        peer.key
    }

    fn is_established(core: &Core, key: PeerKey, name: &str) -> bool {
        let peer = core.peers.get(key).unwrap();
        peer.state == SessionState::Established && peer.name.as_str() == name
    }

    /// The configuration of [`core`] with its ranges under these names.
    fn renamed(wide: &str, narrow: &str) -> SpeakerConfig {
        let mut config = config();
        let old = std::mem::take(&mut config.peers);
        for (name, range) in old {
            let name = if name.as_str() == "wide" {
                wide
            } else {
                narrow
            };
            config.peers.insert(name.into(), range);
        }
        config
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_with_another_name_keeps_the_sessions_of_its_peers() {
        let mut core = core();
        let near = core.welcome([10, 0, 0, 9].into()).unwrap();
        let far = core.welcome([10, 7, 0, 9].into()).unwrap();
        let (near, far) = (established(&mut core, &near), established(&mut core, &far));
        core.reconfigure(renamed("wide", "close"));
        assert_eq!(peers(&core), ["close_10_0_0_9", "wide_10_7_0_9"]);
        assert!(is_established(&core, near, "close_10_0_0_9"));
        assert!(is_established(&core, far, "wide_10_7_0_9"));
        // A name that another range has left.
        core.reconfigure(renamed("close", "rack"));
        assert_eq!(peers(&core), ["close_10_7_0_9", "rack_10_0_0_9"]);
        assert!(is_established(&core, near, "rack_10_0_0_9"));
        assert!(is_established(&core, far, "close_10_7_0_9"));
        // Names for the peers alone, and back.
        let mut config = renamed("close", "rack");
        for range in config.peers.values_mut() {
            range.dynamic_name = Some("dyn".into());
        }
        core.reconfigure(config);
        assert_eq!(peers(&core), ["dyn_10_0_0_9", "dyn_10_7_0_9"]);
        assert!(is_established(&core, near, "dyn_10_0_0_9"));
        core.reconfigure(renamed("close", "rack"));
        assert!(is_established(&core, near, "rack_10_0_0_9"));
        // Under the new name the session's end is noted, and the range has its peer.
        core.note_session(&"rack_10_0_0_9".into(), false);
        assert!(core.next_departure().is_some());
        let of_rack = core
            .dynamic
            .values()
            .filter(|peer| peer.range.as_str() == "rack");
        assert_eq!(of_rack.count(), 1);
        // A range that is gone takes its peers with it.
        let mut config = renamed("close", "rack");
        config.peers.remove(&PeerName::from("close"));
        core.reconfigure(config);
        assert_eq!(peers(&core), ["rack_10_0_0_9"]);
    }
}
