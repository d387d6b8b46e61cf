//! The difference between two configurations, by what has to happen.

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::{Prefix, merge_join};

use super::{PeerConfig, SpeakerConfig};
use crate::types::PeerName;

/// Difference of two configurations, as steps of the speaker. Empty when they are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// The listening socket is another one.
    pub listen: bool,
    /// The speaker's AS or BGP Identifier is another one; every session is named in `peers`.
    pub speaker: bool,
    /// Peers that only the new configuration has.
    pub added: BTreeSet<PeerName>,
    /// Peers that are gone.
    pub removed: BTreeSet<PeerName>,
    /// Peers that differ, and how. A peer that is not here is not touched.
    pub peers: BTreeMap<PeerName, PeerChange>,
    /// Routes to originate that are new or differ.
    pub originated: BTreeSet<Prefix>,
    /// Routes that are no longer originated.
    pub withdrawn: BTreeSet<Prefix>,
    /// Filters that are new, gone or different.
    pub filters: BTreeSet<String>,
    /// Monitoring stations that are new, gone or different.
    pub stations: BTreeSet<String>,
}

/// Difference of a peer between two configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerChange {
    /// Something was agreed in the OPEN messages: a new session is needed.
    pub reset: bool,
    /// It is another peer, or we are another one to it: with the session, all routes go. Implies
    /// `reset`.
    pub replaced: bool,
    /// Something that the session takes over while it runs: password, TTL, passive, what its next
    /// OPEN says of times.
    pub session: bool,
    /// The rules for received routes differ: they are run again over the stored routes.
    pub import: bool,
    /// The rules for announced routes differ: the difference is announced.
    pub export: bool,
    /// It is disabled now, or is no longer.
    pub disabled: Option<bool>,
}

impl PeerChange {
    const fn is_empty(self) -> bool {
        !(self.reset || self.replaced || self.session || self.import || self.export)
            && self.disabled.is_none()
    }
}

impl ConfigChange {
    /// True when nothing has to happen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares two configurations of the speaker.
#[must_use]
pub fn compare_configs(old: &SpeakerConfig, new: &SpeakerConfig) -> ConfigChange {
    let (originated, withdrawn) = differing(&old.originate, &new.originate)
        .partition(|prefix| new.originate.contains_key(prefix));
    ConfigChange {
        originated,
        withdrawn,
        ..compare_all_but_routes(old, new)
    }
}

/// The same without the routes to originate, which may be many.
pub(crate) fn compare_all_but_routes(old: &SpeakerConfig, new: &SpeakerConfig) -> ConfigChange {
    let filters: BTreeSet<String> = differing(&old.filters, &new.filters).cloned().collect();
    let speaker = old.local_as != new.local_as || old.router_id != new.router_id;
    let common = new
        .peers
        .iter()
        .filter_map(|(name, peer)| Some((name, old.peers.get(name)?, peer)));
    let peers = common
        .map(|(name, before, after)| (name, peer_change((old, before), (new, after), &filters)))
        .filter(|(_, change)| !change.is_empty())
        .map(|(name, change)| (name.clone(), change))
        .collect();
    let missing = |name: &&PeerName, from: &SpeakerConfig| !from.peers.contains_key(*name);
    ConfigChange {
        listen: old.listen != new.listen,
        speaker,
        added: new
            .peers
            .keys()
            .filter(|name| missing(name, old))
            .cloned()
            .collect(),
        removed: old
            .peers
            .keys()
            .filter(|name| missing(name, new))
            .cloned()
            .collect(),
        peers,
        originated: BTreeSet::new(),
        withdrawn: BTreeSet::new(),
        filters,
        stations: differing(&old.stations, &new.stations).cloned().collect(),
    }
}

/// Renamed peers (same address, port and AS): from the old name to the new. Applied before
/// [`compare_configs`], their sessions stay up.
#[cfg(feature = "speaker")]
#[must_use]
pub(crate) fn renamed(old: &SpeakerConfig, new: &SpeakerConfig) -> BTreeMap<PeerName, PeerName> {
    let identity = |peer: &PeerConfig| {
        let interface = peer.interface.clone();
        (peer.address, interface, peer.port, peer.remote_as)
    };
    let only_in = |some: &SpeakerConfig, other: &SpeakerConfig| {
        let mut by_identity = BTreeMap::new();
        for (name, peer) in &some.peers {
            if !other.peers.contains_key(name) {
                by_identity
                    .entry(identity(peer))
                    .or_insert_with(Vec::new)
                    .push(name.clone());
            }
        }
        by_identity
    };
    let mut added = only_in(new, old);
    let pair =
        |(identity, names): (_, Vec<PeerName>)| match (&names[..], &added.remove(&identity)?[..]) {
            ([before], [after]) => Some((before.clone(), after.clone())),
            // Several peers with one address, port and AS: ambiguous.
            _ => None,
        };
    only_in(old, new).into_iter().filter_map(pair).collect()
}

/// The keys under which two maps differ.
fn differing<'a, K: Ord, V: Eq>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    merge_join(old, new)
        .filter(|(_, before, after)| before != after)
        .map(|(key, ..)| key)
}

fn peer_change(
    (old_speaker, old): (&SpeakerConfig, &PeerConfig),
    (new_speaker, new): (&SpeakerConfig, &PeerConfig),
    filters: &BTreeSet<String>,
) -> PeerChange {
    // Every field by name: a new field does not compile until somebody has decided what it changes.
    let PeerConfig {
        address,
        interface,
        port,
        remote_as,
        local_as,
        source,
        disabled,
        passive,
        hold_time,
        families,
        client_of,
        rs_client,
        role,
        require_roles,
        next_hop,
        own_next_hops,
        graceful_restart,
        ttl,
        ttl_security,
        password,
        import,
        export,
        allow_own_as,
        enforce_first_as,
        range,
        dynamic_name,
        preference,
        disable_after,
        prefix_limits,
        import_limits,
        export_limits,
        require_policy,
        extended_next_hop,
        add_path,
        long_lived,
        long_lived_partial,
        bfd,
        kind,
    } = new;
    let own_as = local_as.unwrap_or(new_speaker.local_as);
    let replaced = *address != old.address
        || *interface != old.interface
        || *range != old.range
        || *remote_as != old.remote_as
        || own_as != old.local_as.unwrap_or(old_speaker.local_as);
    let uses_changed = |names: &[String]| names.iter().any(|name| filters.contains(name));
    PeerChange {
        replaced,
        reset: replaced
            || *port != old.port
            || new_speaker.router_id != old_speaker.router_id
            || *source != old.source
            || *hold_time != old.hold_time
            || *families != old.families
            || *role != old.role
            || *require_roles != old.require_roles
            || graceful_restart.is_some() != old.graceful_restart.is_some()
            || *extended_next_hop != old.extended_next_hop
            || *add_path != old.add_path
            || long_lived.is_some() != old.long_lived.is_some(),
        // How long our routes are to be kept binds nobody before we go: the next OPEN will do.
        session: differ(graceful_restart, &old.graceful_restart)
            || differ(long_lived, &old.long_lived)
            || *passive != old.passive
            || *ttl != old.ttl
            || *ttl_security != old.ttl_security
            || *password != old.password
            || *prefix_limits != old.prefix_limits
            || *import_limits != old.import_limits
            || *export_limits != old.export_limits
            || *bfd != old.bfd
            || *disable_after != old.disable_after
            || *dynamic_name != old.dynamic_name
            || *kind != old.kind,
        import: *import != old.import
            || *allow_own_as != old.allow_own_as
            || *enforce_first_as != old.enforce_first_as
            || *preference != old.preference
            || *import_limits != old.import_limits
            || *require_policy != old.require_policy
            || uses_changed(import),
        export: *export != old.export
            || *next_hop != old.next_hop
            || *own_next_hops != old.own_next_hops
            || *export_limits != old.export_limits
            || *long_lived_partial != old.long_lived_partial
            || *client_of != old.client_of
            || *rs_client != old.rs_client
            || *require_policy != old.require_policy
            || uses_changed(export),
        disabled: (*disabled != old.disabled).then_some(*disabled),
    }
}

/// Both are there, and they are not the same.
fn differ<T: PartialEq>(new: &Option<T>, old: &Option<T>) -> bool {
    new.is_some() && old.is_some() && new != old
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{
        BfdOptions, BgpRole, GracefulRestart, Listen, NextHopMode, Origination, Password,
        PrefixLimit,
    };
    use crate::policy::Filter;
    use crate::types::{Asn, ClusterId, RouterId};

    fn config() -> SpeakerConfig {
        let peer = |n: u8| {
            let mut peer = PeerConfig::new([10, 0, 0, n].into(), Asn(64512));
            peer.import = vec![format!("in-{n}")];
            peer.export = vec!["out".to_owned()];
            (PeerName::from(format!("p{n}")), peer)
        };
        let filter = |name: &str| (name.to_owned(), Filter::from(vec![]));
        SpeakerConfig {
            local_as: Asn(64512),
            router_id: RouterId([10, 0, 0, 1].into()),
            listen: None,
            peers: BTreeMap::from([peer(2), peer(3)]),
            originate: [(prefix(1), Origination::default())].into(),
            filters: BTreeMap::from([filter("in-2"), filter("in-3"), filter("out")]),
            stations: BTreeMap::new(),
        }
    }

    fn prefix(n: u8) -> Prefix {
        Prefix::v4([10, 244, n, 0].into(), 26)
    }

    fn names(names: &[&str]) -> BTreeSet<PeerName> {
        names.iter().map(|name| PeerName::from(*name)).collect()
    }

    const RESET: PeerChange = PeerChange {
        reset: true,
        replaced: false,
        session: false,
        import: false,
        export: false,
        disabled: None,
    };
    const REPLACED: PeerChange = PeerChange {
        replaced: true,
        ..RESET
    };
    const SESSION: PeerChange = PeerChange {
        reset: false,
        session: true,
        ..RESET
    };
    const IMPORT: PeerChange = PeerChange {
        reset: false,
        import: true,
        ..RESET
    };
    const EXPORT: PeerChange = PeerChange {
        reset: false,
        export: true,
        ..RESET
    };

    #[test]
    fn equal_configurations_do_not_differ() {
        assert!(compare_configs(&config(), &config()).is_empty());
    }

    #[test]
    fn each_field_of_a_peer_touches_that_peer_only_and_only_so_much() {
        type Change = fn(&mut PeerConfig);
        let table: [(Change, PeerChange); 36] = [
            (|p| p.address = [10, 0, 0, 9].into(), REPLACED),
            (|p| p.port = 1179, RESET),
            (|p| p.remote_as = Asn(1), REPLACED),
            (|p| p.local_as = Some(Asn(1)), REPLACED),
            (|p| p.source = Some([10, 0, 0, 1].into()), RESET),
            (|p| p.hold_time = Duration::from_secs(3), RESET),
            (|p| p.families = vec![caracal_model::Family::Ipv6], RESET),
            (|p| p.graceful_restart = None, RESET),
            (|p| p.role = Some(BgpRole::Customer), RESET),
            (|p| p.require_roles = true, RESET),
            (
                |p| {
                    let restart_time = Duration::from_secs(1);
                    p.graceful_restart = Some(GracefulRestart { restart_time });
                },
                SESSION,
            ),
            (|p| p.passive = true, SESSION),
            (|p| p.dynamic_name = Some("x".into()), SESSION),
            (|p| p.ttl = Some(1), SESSION),
            (|p| p.ttl_security = Some(1), SESSION),
            (|p| p.password = Some(Password("x".into())), SESSION),
            (|p| p.kind = "node".into(), SESSION),
            (|p| p.import.clear(), IMPORT),
            (|p| p.allow_own_as = 1, IMPORT),
            (|p| p.preference = 120, IMPORT),
            (|p| p.disable_after.error = true, SESSION),
            (|p| p.enforce_first_as = true, IMPORT),
            (|p| p.export.clear(), EXPORT),
            (|p| p.next_hop.ipv6 = NextHopMode::Own, EXPORT),
            (|p| p.rs_client = true, EXPORT),
            (
                |p| p.range = Some(Prefix::v4([10, 0, 0, 0].into(), 8)),
                REPLACED,
            ),
            (
                |p| p.prefix_limits.ipv4 = Some(PrefixLimit::new(9)),
                SESSION,
            ),
            (
                |p| p.import_limits.ipv4 = Some(PrefixLimit::new(9)),
                PeerChange {
                    session: true,
                    ..IMPORT
                },
            ),
            (
                |p| p.export_limits.ipv4 = Some(PrefixLimit::new(9)),
                PeerChange {
                    session: true,
                    ..EXPORT
                },
            ),
            (
                |p| p.require_policy = true,
                PeerChange {
                    export: true,
                    ..IMPORT
                },
            ),
            (|p| p.extended_next_hop = true, RESET),
            (
                |p| p.own_next_hops.set(std::net::Ipv6Addr::LOCALHOST.into()),
                EXPORT,
            ),
            (|p| p.add_path.receive = true, RESET),
            (|p| p.long_lived = Some(Duration::from_secs(1)), RESET),
            (|p| p.bfd = Some(BfdOptions::default()), SESSION),
            (
                |p| p.disabled = true,
                PeerChange {
                    disabled: Some(true),
                    ..PeerChange::default()
                },
            ),
        ];
        for (change, expected) in table {
            let mut new = config();
            let name = PeerName::from("p2");
            change(new.peers.get_mut(&name).expect("configured"));
            let seen = compare_configs(&config(), &new);
            let only = ConfigChange {
                peers: BTreeMap::from([(name, expected)]),
                ..Default::default()
            };
            assert_eq!(seen, only, "{:?}", new.peers);
        }
        let mut new = config();
        let cluster = Some(ClusterId([1, 1, 1, 1].into()));
        new.peers
            .get_mut(&PeerName::from("p3"))
            .expect("configured")
            .client_of = cluster;
        assert_eq!(
            compare_configs(&config(), &new).peers[&PeerName::from("p3")],
            EXPORT
        );
    }

    #[test]
    fn how_long_routes_are_kept_is_for_the_next_open() {
        let with = |seconds| {
            let mut config = config();
            let peer = config.peers.get_mut(&PeerName::from("p2"));
            peer.expect("configured").long_lived = Some(Duration::from_secs(seconds));
            config
        };
        let change = compare_configs(&with(60), &with(3600));
        assert_eq!(change.peers, BTreeMap::from([("p2".into(), SESSION)]));
    }

    #[test]
    fn the_own_as_said_twice_is_no_change() {
        let mut new = config();
        new.peers
            .get_mut(&PeerName::from("p2"))
            .expect("configured")
            .local_as = Some(Asn(64512));
        assert!(compare_configs(&config(), &new).is_empty());
    }

    #[test]
    fn a_filter_touches_the_peers_that_use_it() {
        let mut new = config();
        let term = crate::policy::FilterTerm {
            conditions: vec![],
            actions: vec![],
            verdict: None,
        };
        new.filters
            .get_mut("in-2")
            .expect("configured")
            .terms
            .push(term.clone());
        let change = compare_configs(&config(), &new);
        assert_eq!(
            change.peers,
            BTreeMap::from([(PeerName::from("p2"), IMPORT)])
        );
        assert_eq!(change.filters, BTreeSet::from(["in-2".to_owned()]));
        new = config();
        new.filters.remove("out");
        let change = compare_configs(&config(), &new);
        assert_eq!(change.peers.len(), 2);
        assert!(change.peers.values().all(|change| *change == EXPORT));
    }

    #[test]
    fn peers_routes_and_socket() {
        let mut new = config();
        new.peers.remove(&PeerName::from("p2"));
        new.peers
            .insert("p4".into(), PeerConfig::new([10, 0, 0, 4].into(), Asn(1)));
        new.originate = [(prefix(2), Origination::default())].into();
        new.listen = Some(Listen {
            address: None,
            second: None,
            port: 179,
        });
        let change = compare_configs(&config(), &new);
        assert_eq!(
            change,
            ConfigChange {
                listen: true,
                added: names(&["p4"]),
                removed: names(&["p2"]),
                originated: BTreeSet::from([prefix(2)]),
                withdrawn: BTreeSet::from([prefix(1)]),
                ..ConfigChange::default()
            }
        );
        let mut med = new.clone();
        med.originate.insert(
            prefix(2),
            Origination {
                med: Some(1),
                ..Origination::default()
            },
        );
        assert_eq!(
            compare_configs(&new, &med).originated,
            BTreeSet::from([prefix(2)])
        );
    }

    #[test]
    fn the_speakers_own_numbers_reset_the_sessions_that_carry_them() {
        let mut old = config();
        old.peers
            .get_mut(&PeerName::from("p3"))
            .expect("configured")
            .local_as = Some(Asn(7));
        let mut new = old.clone();
        new.local_as = Asn(64513);
        let change = compare_configs(&old, &new);
        assert!(change.speaker);
        assert_eq!(
            change.peers,
            BTreeMap::from([(PeerName::from("p2"), REPLACED)])
        );
        new.router_id = RouterId([10, 0, 0, 9].into());
        let change = compare_configs(&old, &new);
        assert_eq!(change.peers[&PeerName::from("p3")], RESET);
        assert_eq!(change.peers.len(), 2);
    }
}
