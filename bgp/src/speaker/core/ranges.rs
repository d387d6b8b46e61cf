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
/// How long such a peer may be without a session; or as long as its routes are kept, if that is
/// more.
const IDLE: Duration = Duration::from_secs(60);

/// A peer that came from a range.
#[derive(Clone, Debug)]
pub(super) struct Dynamic {
    range: PeerName,
    address: IpAddr,
    /// It goes then, unless it has a session.
    until: Option<Instant>,
}

/// The ranges of a configuration, which are no peers themselves.
pub(super) fn take_ranges(config: &mut SpeakerConfig) -> Vec<(PeerName, PeerConfig)> {
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
        passive: true,
        ..range.clone()
    }
}

impl Core {
    /// The configuration with the peers that came from its ranges.
    pub(super) fn with_dynamic(&mut self, mut config: SpeakerConfig) -> SpeakerConfig {
        let ranges = take_ranges(&mut config);
        self.dynamic.retain(|name, dynamic| {
            let range = ranges.iter().find(|(range, _)| *range == dynamic.range);
            let covers = |range: &PeerConfig| {
                range
                    .range
                    .is_some_and(|prefix| prefix.contains(dynamic.address))
            };
            let Some((_, range)) = range.filter(|(_, range)| covers(range)) else {
                return false;
            };
            let taken = config.peers.contains_key(name)
                || config
                    .peers
                    .values()
                    .any(|peer| peer.address == dynamic.address);
            if !taken {
                config
                    .peers
                    .insert(name.clone(), member(range, dynamic.address));
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
        let suffix = address.to_string().replace(['.', ':'], "_");
        let name = PeerName::from(format!("{range}_{suffix}"));
        let (range, peer) = (range.clone(), member(template, address));
        if self.config.peers.contains_key(&name) {
            return None;
        }
        if self.log.allows(now(), (range.clone(), LogKind::NewPeer)) {
            info!(peer = %name, %range, %address, "new peer from a range");
        }
        let dynamic = Dynamic {
            range,
            address,
            until: Some(now() + IDLE),
        };
        self.dynamic.insert(name.clone(), dynamic);
        let mut config = self.config.clone();
        config.peers.insert(name.clone(), peer);
        self.go_over_to(config);
        Some(name)
    }

    /// A session of a peer has begun (`true`) or ended.
    pub(super) fn note_session(&mut self, name: &PeerName, up: bool) {
        let Some(dynamic) = self.dynamic.get_mut(name) else {
            return;
        };
        let kept = self.config.peers.get(name).map(|peer| {
            let restart = peer.graceful_restart.map(|gr| gr.restart_time);
            restart.unwrap_or_default() + peer.long_lived.unwrap_or_default()
        });
        dynamic.until = (!up).then(|| now() + IDLE.max(kept.unwrap_or_default()));
    }

    /// A disabled peer does not go for having no session, or it would come back enabled.
    pub(super) fn hold_dynamic(&mut self, name: &PeerName, hold: bool) {
        if let Some(dynamic) = self.dynamic.get_mut(name) {
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
        self.dynamic.retain(|name, peer| {
            let stays = peer.until.is_none_or(|until| until > now);
            if !stays {
                let kind = LogKind::PeerForgotten;
                if self.log.allows(now, (peer.range.clone(), kind)) {
                    info!(peer = %name, "peer of a range has stayed away and is forgotten");
                }
                let config = config.get_or_insert_with(|| self.config.clone());
                config.peers.remove(name);
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

    use caracal_model::net::Prefix;
    use tokio::sync::watch;

    use super::*;
    use crate::config::Originations;
    use crate::speaker::status::Convergence;
    use crate::speaker::{SpeakerOptions, Tasks};
    use crate::types::{Asn, RouterId};

    fn core() -> Core {
        let range = |len| PeerConfig {
            range: Some(Prefix::v4([10, 0, 0, 0].into(), len)),
            ..PeerConfig::new([10, 0, 0, 0].into(), Asn(64512))
        };
        let config = SpeakerConfig {
            local_as: Asn(64512),
            router_id: RouterId([1, 0, 0, 1].into()),
            listen: None,
            peers: BTreeMap::from([("wide".into(), range(8)), ("narrow".into(), range(24))]),
            originate: Originations::default(),
            filters: BTreeMap::new(),
            stations: BTreeMap::new(),
        };
        let (publish, _) = watch::channel(Convergence::default());
        let tasks = Tasks {
            session: |_| Box::pin(std::future::pending()),
            listener: |_| Box::pin(std::future::pending()),
        };
        Core::new(config, SpeakerOptions::default(), publish, tasks).0
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
        let range = core.ranges[0].0.clone();
        for n in 0..u32::try_from(MAX_PEERS).unwrap() {
            let dynamic = Dynamic {
                range: range.clone(),
                address: IpAddr::V4((0x0a00_0000 + n).into()),
                until: None,
            };
            core.dynamic.insert(format!("x{n}").into(), dynamic);
        }
        assert_eq!(core.welcome([10, 0, 0, 1].into()), None);
    }
}
