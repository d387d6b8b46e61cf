//! The peers as the table knows them: rules, session, counters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use caracal_model::{Family, Prefix};

use super::families::slot;
use super::import::{ImportRules, NamedFilter};
use super::next_hops::{NextHopTable, plain};
use super::out::{GroupKey, Member, PathSource, Senders, SentLimit};
use super::path_handles::PathHandles;
use super::peer_id::PeerId;
use super::session::SessionInfo;
use super::table::Staleness;
use crate::attrs::PathAttrs;
use crate::config::{BgpRole, PeerConfig, SpeakerConfig};
use crate::policy::{Asks, Filter, FilterTerm, FilterVerdict, PeerKind, Sender};
use crate::types::{Asn, ClusterId, PeerName, RouterId};
use crate::wire::format::MessageFormat;
use crate::wire::update::{EncodeError, encode_announce};

/// The filters of a configuration, shared by the peers that use them.
pub(super) type Filters = BTreeMap<String, Arc<NamedFilter>>;

/// The filters of a configuration by name.
pub(super) fn filters(config: &SpeakerConfig) -> Filters {
    let named = |(name, filter): (&String, &Filter)| {
        let named = NamedFilter {
            name: name.clone(),
            filter: filter.clone(),
        };
        (name.clone(), Arc::new(named))
    };
    config.filters.iter().map(named).collect()
}

/// A filter that lets nothing pass.
fn reject_all(name: String) -> Arc<NamedFilter> {
    let reject = FilterTerm {
        conditions: vec![],
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    };
    Arc::new(NamedFilter {
        name,
        filter: Filter::from(vec![reject]),
    })
}

/// The filters of these names. One that is not defined rejects everything: a missing rule must not
/// open a door.
fn resolve(names: &[String], filters: &Filters) -> Vec<Arc<NamedFilter>> {
    let missing = |name: &String| reject_all(format!("{name} (not defined)"));
    names
        .iter()
        .map(|name| filters.get(name).cloned().unwrap_or_else(|| missing(name)))
        .collect()
}

fn asks(filters: &[Arc<NamedFilter>]) -> Asks {
    let asks = filters.iter().map(|named| named.filter.asks());
    asks.fold(Asks::default(), Asks::or)
}

#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) name: PeerName,
    pub(super) config: PeerConfig,
    /// Our AS on the session, and the speaker's.
    pub(super) own_as: [Asn; 2],
    pub(super) import: Vec<Arc<NamedFilter>>,
    pub(super) export: Vec<Arc<NamedFilter>>,
    /// The session, or the last one while its routes are kept.
    pub(super) session: Option<SessionInfo>,
    /// The session is established.
    pub(super) up: bool,
    /// Families whose End-of-RIB has not come in this session. A peer without graceful restart need
    /// not send it (RFC 4724 §2), and is not waited for.
    pub(super) unfinished: BTreeSet<Family>,
    /// Index of its update group while it is up.
    pub(super) group: Option<usize>,
    /// Prefixes in its Adj-RIB-In.
    pub(super) received: usize,
    /// Number of paths that were accepted.
    pub(super) accepted: usize,
    /// Number of received paths that are IPv6.
    pub(super) received_ipv6: usize,
    /// Number of accepted paths that are IPv6.
    accepted_ipv6: usize,
    /// Stale routes are kept until then.
    pub(super) stale_until: Option<Instant>,
    /// End of the first of several restarts in a row; none of the next ones gives stale routes more
    /// time.
    pub(super) restart_ends: Option<Instant>,
    /// Routes that are kept as a last resort go then, by family (RFC 9494).
    pub(super) long_lived_until: [Option<Instant>; 2],
    /// The peer sends everything again, until then at most, by family (RFC 7313).
    pub(super) refreshing: [Option<Instant>; 2],
    /// The peer has announced more than it may; nothing is taken from it until its next session.
    pub(super) over_limit: bool,
    /// The warning about its number of prefixes has been given, by limit and family.
    pub(super) warned: [[bool; 2]; 3],
    /// Its stale paths by kind and family: kept over a restart, a last resort, awaited in a
    /// refresh.
    stale: [[usize; 2]; 3],
    /// Its paths are on their way out of the table.
    pub(super) forgetting: bool,
    /// It is no longer configured, and goes with its last path.
    removed: bool,
}

impl PeerState {
    fn new(
        name: PeerName,
        config: &PeerConfig,
        speaker: &SpeakerConfig,
        filters: &Filters,
    ) -> Self {
        let mut peer = Self {
            name,
            config: config.clone(),
            own_as: [speaker.local_as; 2],
            import: Vec::new(),
            export: Vec::new(),
            session: None,
            up: false,
            unfinished: BTreeSet::new(),
            group: None,
            received: 0,
            accepted: 0,
            received_ipv6: 0,
            accepted_ipv6: 0,
            stale_until: None,
            restart_ends: None,
            long_lived_until: [None; 2],
            refreshing: [None; 2],
            over_limit: false,
            warned: [[false; 2]; 3],
            stale: [[0; 2]; 3],
            forgetting: false,
            removed: false,
        };
        peer.configure(config, speaker, filters);
        peer
    }

    /// Takes new rules. True when they may treat received routes differently.
    pub(super) fn configure(
        &mut self,
        config: &PeerConfig,
        speaker: &SpeakerConfig,
        filters: &Filters,
    ) -> bool {
        let own_as = [
            config.local_as.unwrap_or(speaker.local_as),
            speaker.local_as,
        ];
        // RFC 8212 §2: towards another AS, no policy means no routes.
        let denied = config.require_policy && own_as[0] != config.remote_as;
        let rules = |names: &[String]| {
            if denied && names.is_empty() {
                return vec![reject_all("(no policy, RFC 8212)".to_owned())];
            }
            resolve(names, filters)
        };
        let import = rules(&config.import);
        let changed = import != self.import
            || own_as != self.own_as
            || config.allow_own_as != self.config.allow_own_as
            || config.enforce_first_as != self.config.enforce_first_as
            || config.preference != self.config.preference
            || config.import_limits != self.config.import_limits
            || config.remote_as != self.config.remote_as;
        self.import = import;
        self.own_as = own_as;
        self.export = rules(&config.export);
        self.config = config.clone();
        changed
    }

    /// A path of it has another staleness.
    pub(super) fn note_staleness(&mut self, family: Family, was: Staleness, is: Staleness) {
        let index = |staleness| match staleness {
            Staleness::Fresh => None,
            Staleness::Restart => Some(0),
            Staleness::LongLived => Some(1),
            Staleness::Refresh => Some(2),
        };
        if let Some(kind) = index(was) {
            self.stale[kind][slot(family)] -= 1;
        }
        if let Some(kind) = index(is) {
            self.stale[kind][slot(family)] += 1;
        }
    }

    /// True when some of its paths are kept past the end of a session.
    pub(super) fn keeps_stale(&self) -> bool {
        self.stale[..2].iter().flatten().any(|count| *count > 0)
    }

    /// Number of paths of a family that are kept over a restart.
    pub(super) const fn kept_for_restart(&self, family: Family) -> usize {
        self.stale[0][slot(family)]
    }

    /// Number of paths of a family that are a last resort.
    pub(super) const fn kept_long(&self, family: Family) -> usize {
        self.stale[1][slot(family)]
    }

    /// Number of paths of a family that await a refresh.
    pub(super) const fn refreshed(&self, family: Family) -> usize {
        self.stale[2][slot(family)]
    }

    /// True while some of its routes may be kept past the end of a session: there is a timer for
    /// them.
    pub(super) fn has_stale(&self) -> bool {
        self.stale_until.is_some() || self.long_lived_until.iter().any(Option::is_some)
    }

    /// The families that the session, or the last one, wants to be kept beyond the restart time.
    pub(super) fn long_lived_families(&self) -> Vec<Family> {
        let session = self.session.as_ref();
        let entries = session.and_then(|session| session.options.long_lived.as_ref());
        entries
            .into_iter()
            .flatten()
            .map(|entry| entry.family)
            .collect()
    }

    /// Number of prefixes of a family in its Adj-RIB-In.
    pub(super) const fn received_of(&self, family: Family) -> usize {
        match family {
            Family::Ipv4 => self.received - self.received_ipv6,
            Family::Ipv6 => self.received_ipv6,
        }
    }

    /// Number of prefixes of a family that were accepted.
    pub(super) const fn accepted_of(&self, family: Family) -> usize {
        match family {
            Family::Ipv4 => self.accepted - self.accepted_ipv6,
            Family::Ipv6 => self.accepted_ipv6,
        }
    }

    /// A prefix of this family was accepted or not, and is or is not now.
    pub(super) fn count_accepted(&mut self, family: Family, was: bool, is: bool) {
        let counted = |count: usize| count + usize::from(is) - usize::from(was);
        self.accepted = counted(self.accepted);
        if family == Family::Ipv6 {
            self.accepted_ipv6 = counted(self.accepted_ipv6);
        }
    }

    pub(super) fn kind(&self) -> PeerKind {
        if self.config.remote_as == self.own_as[0] {
            PeerKind::Internal
        } else {
            PeerKind::External
        }
    }

    /// Our role towards an external peer, and its AS (RFC 9234).
    pub(super) fn role_and_as(&self) -> Option<(BgpRole, Asn)> {
        let role = self.config.role?;
        (self.kind() == PeerKind::External).then_some((role, self.config.remote_as))
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.config.address, self.config.port)
    }

    pub(super) fn import_rules<'a>(
        &'a self,
        router_id: RouterId,
        clusters: &'a BTreeSet<ClusterId>,
        next_hops: &'a NextHopTable,
    ) -> ImportRules<'a> {
        ImportRules {
            kind: self.kind(),
            role: self.role_and_as(),
            own_as: self.own_as,
            allow_own_as: self.config.allow_own_as,
            first_as: (self.config.enforce_first_as && self.kind() == PeerKind::External)
                .then_some(self.config.remote_as),
            router_id,
            clusters,
            own_addresses: self.session.as_ref().map_or([None; 3], |session| {
                let own = self.config.own_next_hops;
                [
                    Some(session.local_address),
                    session.own_next_hop(own, Family::Ipv4),
                    session.own_next_hop(own, Family::Ipv6),
                ]
            }),
            sender: self.sender(),
            filters: &self.import,
            next_hops,
        }
    }

    /// What import policy asks of a route beyond its attributes.
    pub(super) fn import_asks(&self) -> Asks {
        asks(&self.import)
    }

    /// The peer as filters see it.
    pub(super) fn sender(&self) -> Sender<'_> {
        Sender {
            name: self.name.as_str(),
            address: Some(plain(self.config.address)),
            preference: self.config.preference,
        }
    }

    /// The export rules; `None` while there is no session.
    pub(super) fn group_key(&self, id: PeerId) -> Option<GroupKey> {
        let session = self.session.as_ref().filter(|_| self.up)?;
        Some(GroupKey {
            kind: self.kind(),
            own_as: self.own_as[0],
            role: self.role_and_as().map(|(role, _)| role),
            client_of: self.config.client_of,
            transparent: self.config.rs_client && self.kind() == PeerKind::External,
            next_hop: self.config.next_hop,
            own_next_hops: [Family::Ipv4, Family::Ipv6]
                .map(|family| session.own_next_hop(self.config.own_next_hops, family)),
            families: session.families.clone(),
            extended_next_hop: session.options.extended_next_hop,
            long_lived: session.options.long_lived.is_some(),
            partial_deployment: self.config.long_lived_partial && self.kind() == PeerKind::Internal,
            link_local: session.options.link_local,
            link: match self.kind() {
                PeerKind::External => session.options.link.clone(),
                PeerKind::Internal => Vec::new(),
            },
            add_path: self
                .config
                .add_path
                .send
                .map(|count| (count, session.options.path_ids_out.clone())),
            limit: self.config.export_limits.is_some().then(|| SentLimit {
                member: Member::new(id, session.remote_address),
                limits: self.config.export_limits,
            }),
            filters: self.export.clone(),
            asks: asks(&self.export),
        })
    }

    /// True when a route with these attributes fits into a message of the session.
    pub(super) fn has_room_for(&self, prefix: &Prefix, attrs: &PathAttrs) -> bool {
        let Some(session) = self.session.as_ref() else {
            return true;
        };
        if attrs.octets() < SURELY_SHORT {
            return true;
        }
        let format = MessageFormat {
            four_octet_as: session.options.four_octet_as,
            extended_send: session.options.extended_messages,
            internal: self.kind() == PeerKind::Internal,
            extended_next_hop: session.options.extended_next_hop,
            ..MessageFormat::default()
        };
        let mut scratch = BytesMut::new();
        let encoded = encode_announce(prefix.family(), attrs, &[*prefix], &format, &mut scratch);
        !matches!(encoded, Err(EncodeError::TooLong { .. }))
    }

    /// This peer as the source of a route.
    pub(super) fn source(&self) -> Option<PathSource> {
        let session = self.session.as_ref()?;
        Some(PathSource::Peer {
            kind: self.kind(),
            client_of: self.config.client_of,
            router_id: session.router_id,
        })
    }
}

/// Octets of attributes in memory up to which a message has room for them whatever its form.
const SURELY_SHORT: usize = 2048;

impl Senders for Peers {
    fn of(&self, peer: PeerId) -> Option<Sender<'_>> {
        self.get(peer).map(PeerState::sender)
    }
}

/// All peers by handle and by name.
#[derive(Debug)]
pub(super) struct Peers {
    /// Slot 0 is [`PeerId::LOCAL`] and always empty.
    slots: Vec<Option<PeerState>>,
    names: BTreeMap<PeerName, PeerId>,
    /// Handles of paths that came with an identifier; each stands for its peer.
    pub(super) paths: PathHandles,
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            slots: vec![None],
            names: BTreeMap::new(),
            paths: PathHandles::default(),
        }
    }
}

impl Peers {
    pub(super) fn id(&self, name: &PeerName) -> Option<PeerId> {
        self.names.get(name).copied()
    }

    pub(super) fn get(&self, id: PeerId) -> Option<&PeerState> {
        self.slots.get(self.paths.owner(id).index())?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut PeerState> {
        self.slots.get_mut(self.paths.owner(id).index())?.as_mut()
    }

    /// True when a path with this handle came from the peer.
    pub(super) fn owns(&self, peer: PeerId, handle: PeerId) -> bool {
        self.paths.owner(handle) == peer
    }

    /// All peers by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerId, &PeerState)> {
        self.names
            .values()
            .filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// Number of paths in the table that came from peers.
    pub(super) fn received(&self) -> usize {
        self.slots.iter().flatten().map(|peer| peer.received).sum()
    }

    pub(super) fn ids(&self) -> Vec<PeerId> {
        self.names.values().copied().collect()
    }

    pub(super) fn add(
        &mut self,
        name: &PeerName,
        config: &PeerConfig,
        speaker: &SpeakerConfig,
        filters: &Filters,
    ) -> PeerId {
        let peer = PeerState::new(name.clone(), config, speaker, filters);
        let free = self
            .slots
            .iter()
            .skip(1)
            .position(Option::is_none)
            .map(|index| index + 1);
        let index = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[index] = Some(peer);
        let id = PeerId(u32::try_from(index).expect("fewer than 2^32 peers"));
        self.names.insert(name.clone(), id);
        id
    }

    pub(super) fn rename(&mut self, old: &PeerName, new: &PeerName) {
        if let Some(id) = self.names.remove(old) {
            self.names.insert(new.clone(), id);
            if let Some(peer) = self.get_mut(id) {
                peer.name = new.clone();
            }
        }
    }

    /// Removes a peer. Its handle is free when its last path has gone.
    pub(super) fn remove(&mut self, id: PeerId) {
        let Some(peer) = self.slots.get_mut(id.index()).and_then(Option::as_mut) else {
            return;
        };
        self.names.remove(&peer.name);
        peer.removed = true;
        if !peer.forgetting {
            self.slots[id.index()] = None;
        }
    }

    /// The last path of a peer has gone.
    pub(super) fn forgotten(&mut self, id: PeerId) {
        let Some(slot) = self.slots.get_mut(id.index()) else {
            return;
        };
        if let Some(peer) = slot {
            peer.forgetting = false;
            if peer.removed {
                *slot = None;
            }
        }
    }
}
