//! Adj-RIB-Out: what each peer is told, and the export rules that decide it.
//!
//! Peers for which the rules come out the same form an update group: the export of a route is
//! computed once per group, stored once, and shared as one `Arc`. What differs inside a group is
//! only that nobody gets back what it sent itself.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use caracal_model::net::{Family, Prefix};
use serde::{Deserialize, Serialize};

use super::add_path::AdvertisedPaths;
use super::advertised::{Advertised, AdvertisedRoutes, Before};
use super::dest_id::DestId;
use super::import::{DecidedBy, NamedFilter, run_filters};
use super::intern::Interner;
use super::next_hops::NextHopTable;
use super::{DEFAULT_LOCAL_PREF, PeerId};
use crate::attrs::PathAttrs;
use crate::config::{NextHopMode, PathCount};
use crate::policy::{PeerKind, RouteView, Source, Verdict};
use crate::types::{AnyCommunity, Asn, ClusterId, Community, ExtCommunity, RouterId};

/// Everything that makes the export to one peer differ from the export to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupKey {
    pub(super) kind: PeerKind,
    /// Our AS towards the peer.
    pub(super) own_as: Asn,
    /// Some: the peers are our reflector clients.
    pub(super) client_of: Option<ClusterId>,
    pub(super) next_hop: NextHopMode,
    /// Our own NEXT_HOP for IPv4 and IPv6 prefixes.
    pub(super) own_next_hops: [Option<IpAddr>; 2],
    pub(super) families: Vec<Family>,
    /// IPv4 prefixes may have IPv6 next hops (RFC 8950).
    pub(super) extended_next_hop: bool,
    /// The peer understands LLGR_STALE (RFC 9494).
    pub(super) long_lived: bool,
    /// Routes with LLGR_STALE go to peers inside the AS that do not understand it (RFC 9494 §4.6).
    pub(super) partial_deployment: bool,
    /// Our link-local address, on a link that we share with the peers (RFC 2545 §3).
    pub(super) link_local: Option<Ipv6Addr>,
    /// How many paths per prefix the peer takes, in which families (RFC 7911).
    pub(super) add_path: Option<(PathCount, Vec<Family>)>,
    pub(super) filters: Vec<Arc<NamedFilter>>,
    /// Some filter asks for the interface of a route's next hop.
    pub(super) asks_for_interface: bool,
}

/// Where a route that is to be exported came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathSource {
    /// We originate it.
    Local,
    /// A peer sent it.
    Peer {
        kind: PeerKind,
        client_of: Option<ClusterId>,
        router_id: RouterId,
    },
}

/// Why a best path is not announced to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Withheld {
    /// The session does not carry the family.
    Family,
    /// The peer sent it to us.
    SplitHorizon,
    /// Learned from an internal peer, and neither side is our reflector client (RFC 4271 §9.2, RFC
    /// 4456 §6).
    InternalToInternal,
    /// Community NO_ADVERTISE (RFC 1997).
    NoAdvertise,
    /// Community NO_EXPORT or NO_EXPORT_SUBCONFED (RFC 1997).
    NoExport,
    /// Kept as a last resort, and the peer has not announced that it understands that (RFC 9494
    /// §4.3).
    LongLivedStale,
    /// Its NEXT_HOP would be the peer's own address (RFC 4271 §5.1.3).
    PeerIsNextHop,
    /// The session has no address of the family that could be the NEXT_HOP.
    NoNextHop,
    /// An export filter rejected it.
    Policy(DecidedBy),
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Family => "the session does not carry the family",
            Self::SplitHorizon => "the peer sent it to us",
            Self::InternalToInternal => "learned from an internal peer, and no reflector client",
            Self::NoAdvertise => "community NO_ADVERTISE",
            Self::NoExport => "community NO_EXPORT",
            Self::LongLivedStale => {
                "community LLGR_STALE, and the peer has no long-lived graceful restart"
            }
            Self::PeerIsNextHop => "the next hop would be the peer itself",
            Self::NoNextHop => "no address of the family for the next hop",
            Self::Policy(by) => return write!(f, "rejected by {by}"),
        })
    }
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The peer.
    pub peer: PeerId,
    /// The peer's end of the session.
    address: IpAddr,
}

impl Member {
    pub(super) const fn address(&self) -> IpAddr {
        self.address
    }
}

fn visible<'a>(sent: Option<&'a Advertised>, member: &Member) -> Option<&'a Arc<PathAttrs>> {
    sent.and_then(|sent| sent.visible_to(member).ok())
}

/// A change of what a group is told about one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRoute {
    /// The destination.
    pub prefix: Prefix,
    before: Option<Before>,
    after: Option<Advertised>,
}

/// One export computation for all members of an update group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupUpdate {
    /// The members.
    pub members: Vec<Member>,
    /// The changes.
    pub routes: Vec<GroupRoute>,
}

impl GroupUpdate {
    /// What one member must be told: announcements (`Some`) and withdrawals (`None`).
    pub fn for_member<'a>(
        &'a self,
        member: &'a Member,
    ) -> impl Iterator<Item = (Prefix, Option<Arc<PathAttrs>>)> + 'a {
        self.routes
            .iter()
            .filter_map(|route| route.for_member(member))
    }
}

impl GroupRoute {
    pub(super) const fn before(&self) -> Option<&Before> {
        self.before.as_ref()
    }

    pub(super) const fn after(&self) -> Option<&Advertised> {
        self.after.as_ref()
    }

    /// True when another change says the same of another prefix.
    pub(super) fn means(&self, other: &Self) -> bool {
        let same = match (&self.after, &other.after) {
            (None, None) => true,
            (Some(a), Some(b)) => a.is(b),
            _ => false,
        };
        same && self.before == other.before
    }

    /// What one member must be told.
    pub(super) fn for_member(&self, member: &Member) -> Option<(Prefix, Option<Arc<PathAttrs>>)> {
        let before = self.before.filter(|before| before.visible_to(member));
        let after = visible(self.after.as_ref(), member);
        let changed = match (before, after) {
            (None, None) => false,
            (Some(before), Some(_)) => !before.same,
            _ => true,
        };
        changed.then(|| (self.prefix, after.cloned()))
    }
}

/// Interned sets: another pointer is another set.
fn changed(before: Option<&Arc<PathAttrs>>, after: Option<&Arc<PathAttrs>>) -> bool {
    match (before, after) {
        (None, None) => false,
        (Some(a), Some(b)) => !Arc::ptr_eq(a, b),
        _ => true,
    }
}

/// The last export that did not depend on the prefix: in a run of routes with the same attributes
/// it answers all but the first.
#[derive(Debug, Default)]
pub(super) struct ExportCache {
    base: Option<(Arc<PathAttrs>, PeerId, Arc<PathAttrs>)>,
    done: Option<(Arc<PathAttrs>, PeerId, Arc<PathAttrs>)>,
    /// The family of `done`.
    family: Option<Family>,
}

fn cached(
    entry: &Option<(Arc<PathAttrs>, PeerId, Arc<PathAttrs>)>,
    attrs: &Arc<PathAttrs>,
    peer: PeerId,
) -> Option<Arc<PathAttrs>> {
    let (key, from, value) = entry.as_ref()?;
    (*from == peer && Arc::ptr_eq(key, attrs)).then(|| value.clone())
}

/// A route that is to be exported.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExportRoute<'a> {
    pub(super) prefix: Prefix,
    pub(super) attrs: &'a Arc<PathAttrs>,
    pub(super) peer: PeerId,
    /// The path's own handle; that of the peer unless it sends several paths.
    pub(super) handle: PeerId,
    pub(super) source: PathSource,
    pub(super) next_hops: &'a NextHopTable,
}

impl<'a> ExportRoute<'a> {
    /// The interface by which the next hop is reached; none for what is ours.
    fn interface(&self) -> Option<&'a str> {
        let next_hop = self.attrs.next_hop.as_ref();
        let learned = next_hop.filter(|_| self.source != PathSource::Local);
        self.next_hops.interface(learned?)
    }
}

impl GroupKey {
    /// How many paths of a family the members take; `None`: one, without identifier.
    pub(super) fn paths_of(&self, family: Family) -> Option<PathCount> {
        let (count, families) = self.add_path.as_ref()?;
        families.contains(&family).then_some(*count)
    }

    /// The attributes with which the route goes to a peer of this group.
    pub(super) fn export(
        &self,
        route: ExportRoute<'_>,
        cache: &mut ExportCache,
        interner: &mut Interner,
    ) -> Result<Arc<PathAttrs>, Withheld> {
        let ExportRoute {
            prefix,
            attrs,
            peer,
            source,
            ..
        } = route;
        let family = prefix.family();
        // What was allowed once is allowed again; only filters look at the prefix. NEXT_HOP depends
        // on the family, so the cache holds for one.
        let same_family = cache.family == Some(family);
        if self.filters.is_empty()
            && same_family
            && let Some(done) = cached(&cache.done, attrs, peer)
        {
            return Ok(done);
        }
        self.allows(family, attrs, source)?;
        if self.filters.is_empty() {
            let done = interner.intern(self.finish(self.base(attrs, source), route)?);
            cache.done = Some((attrs.clone(), peer, done.clone()));
            cache.family = Some(family);
            return Ok(done);
        }
        let base = match cached(&cache.base, attrs, peer) {
            Some(base) => base,
            None => {
                // Not interned: nobody compares it and nothing keeps it.
                let base = Arc::new(self.base(attrs, source));
                cache.base = Some((attrs.clone(), peer, base.clone()));
                base
            }
        };
        let mut view = RouteView {
            prefix,
            attrs: Cow::Borrowed(&base),
            peer: self.kind,
            source: if source == PathSource::Local {
                Source::Static
            } else {
                Source::Bgp
            },
            interface: match self.asks_for_interface {
                true => route.interface(),
                false => None,
            },
        };
        let (verdict, by) = run_filters(&self.filters, &mut view);
        if let (Verdict::Reject, Some((filter, term))) = (verdict, by) {
            return Err(Withheld::Policy(DecidedBy {
                filter: filter.to_owned(),
                term,
            }));
        }
        match view.attrs {
            Cow::Owned(changed) => Ok(interner.intern(self.finish(changed, route)?)),
            Cow::Borrowed(_) => {
                let known = cached(&cache.done, attrs, peer);
                if let Some(done) = known.filter(|_| same_family) {
                    return Ok(done);
                }
                let done = interner.intern(self.finish((*base).clone(), route)?);
                cache.done = Some((attrs.clone(), peer, done.clone()));
                cache.family = Some(family);
                Ok(done)
            }
        }
    }

    /// The rules that come before policy and do not depend on the prefix.
    fn allows(
        &self,
        family: Family,
        attrs: &PathAttrs,
        source: PathSource,
    ) -> Result<(), Withheld> {
        if !self.families.contains(&family) {
            return Err(Withheld::Family);
        }
        let has = |community| attrs.communities.binary_search(&community).is_ok();
        if has(Community::NO_ADVERTISE) {
            return Err(Withheld::NoAdvertise);
        }
        if !self.long_lived && !self.partial_deployment && has(Community::LLGR_STALE) {
            return Err(Withheld::LongLivedStale);
        }
        match self.kind {
            PeerKind::External => {
                // Without confederations both mean the same (RFC 1997).
                if has(Community::NO_EXPORT) || has(Community::NO_EXPORT_SUBCONFED) {
                    return Err(Withheld::NoExport);
                }
            }
            PeerKind::Internal => {
                // RFC 4456 §6: from a client to everyone, from a non-client to clients only.
                if let PathSource::Peer {
                    kind: PeerKind::Internal,
                    client_of: None,
                    ..
                } = source
                    && self.client_of.is_none()
                {
                    return Err(Withheld::InternalToInternal);
                }
            }
        }
        Ok(())
    }

    /// The route as export filters see it.
    fn base(&self, attrs: &PathAttrs, source: PathSource) -> PathAttrs {
        let mut base = attrs.clone();
        base.local_pref = Some(attrs.local_pref.unwrap_or(DEFAULT_LOCAL_PREF));
        if self.kind == PeerKind::External && source != PathSource::Local {
            // RFC 4271 §5.1.4: a received MED goes no further than the AS; a filter may set a new
            // one.
            base.med = None;
        }
        base
    }

    /// What the protocol demands after policy.
    fn finish(&self, mut attrs: PathAttrs, route: ExportRoute<'_>) -> Result<PathAttrs, Withheld> {
        let ExportRoute { prefix, source, .. } = route;
        let next_hop = self.next_hop(&attrs, prefix.family(), source)?;
        attrs.next_hop = Some(next_hop);
        // RFC 2545 §3: the link-local address is that of the next hop, on a link with the peer.
        let own = next_hop.is_ipv6() && self.own_next_hop(prefix.family()) == Some(next_hop);
        attrs.link_local_next_hop = self.link_local.filter(|_| own);
        match self.kind {
            PeerKind::External => {
                attrs.local_pref = None;
                attrs.originator_id = None;
                attrs.cluster_list.clear();
                attrs.as_path.prepend(self.own_as);
                keep_transitive(&mut attrs);
            }
            PeerKind::Internal => {
                self.reflect(&mut attrs, source);
                if self.partial_deployment && !self.long_lived {
                    depreference(route.attrs, &mut attrs);
                }
            }
        }
        Ok(attrs)
    }

    fn own_next_hop(&self, family: Family) -> Option<IpAddr> {
        let [ipv4, ipv6] = self.own_next_hops;
        match family {
            Family::Ipv4 => ipv4,
            Family::Ipv6 => ipv6,
        }
    }

    /// True when a route of the family can have such a next hop on this session.
    fn carries(&self, family: Family, next_hop: IpAddr) -> bool {
        Family::of(next_hop) == family || (self.extended_next_hop && family == Family::Ipv4)
    }

    /// RFC 4271 §5.1.3.
    fn next_hop(
        &self,
        attrs: &PathAttrs,
        family: Family,
        source: PathSource,
    ) -> Result<IpAddr, Withheld> {
        let own = self.own_next_hop(family);
        let given = attrs.next_hop.filter(|given| self.carries(family, *given));
        let chosen = match (self.next_hop, self.kind, source) {
            (NextHopMode::Own, _, _) | (NextHopMode::Auto, PeerKind::External, _) => {
                // An own route with an explicit next hop still says where a family without own
                // address goes.
                own.or_else(|| given.filter(|_| source == PathSource::Local))
            }
            (NextHopMode::Keep, _, _) | (NextHopMode::Auto, PeerKind::Internal, _) => given.or(own),
        };
        chosen.ok_or(Withheld::NoNextHop)
    }

    /// RFC 4456 §8: a reflected route names its originator and the clusters it passed.
    fn reflect(&self, attrs: &mut PathAttrs, source: PathSource) {
        let PathSource::Peer {
            kind: PeerKind::Internal,
            client_of,
            router_id,
        } = source
        else {
            return;
        };
        attrs.originator_id.get_or_insert(router_id);
        if let Some(cluster) = client_of.or(self.client_of) {
            attrs.cluster_list.edit(|list| list.insert(0, cluster));
        }
    }
}

/// RFC 4360 §6: non-transitive extended communities end at the border of the AS.
fn keep_transitive(attrs: &mut PathAttrs) {
    let leaves = |octets: &[u8; 8]| ExtCommunity(*octets).is_transitive();
    if !attrs.ext_communities.iter().all(leaves) {
        attrs.ext_communities.edit(|list| list.retain(leaves));
    }
}

/// RFC 9494 §4.6: to who does not understand LLGR_STALE, a stale route is the last choice, and
/// stays in the AS.
fn depreference(route: &PathAttrs, attrs: &mut PathAttrs) {
    if route
        .communities
        .binary_search(&Community::LLGR_STALE)
        .is_ok()
    {
        attrs.local_pref = Some(0);
        attrs.add_community(AnyCommunity::Standard(Community::NO_EXPORT));
    }
}

/// An update group: its rules, its members, its Adj-RIB-Out.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: GroupKey,
    pub(super) members: Vec<Member>,
    out: AdvertisedRoutes,
    /// The same for families of which the members take several paths.
    pub(super) paths: AdvertisedPaths,
    /// It has all that is in the table.
    pub(super) filled: bool,
    /// Peers on their way to it or from it: it stays although it may have no members.
    pub(super) pins: usize,
}

impl Group {
    pub(super) fn new(key: GroupKey) -> Self {
        Self {
            key,
            members: Vec::new(),
            out: AdvertisedRoutes::default(),
            paths: AdvertisedPaths::default(),
            filled: false,
            pins: 0,
        }
    }

    pub(super) fn join(&mut self, peer: PeerId, address: IpAddr) -> Member {
        let member = Member { peer, address };
        self.members.push(member);
        member
    }

    pub(super) fn leave(&mut self, peer: PeerId) {
        self.members.retain(|member| member.peer != peer);
    }

    pub(super) fn member(&self, peer: PeerId) -> Option<&Member> {
        self.members.iter().find(|member| member.peer == peer)
    }

    /// Recomputes the export of a destination. `None` in: there is no best path. `None` out:
    /// nothing changed.
    pub(super) fn update(
        &mut self,
        id: DestId,
        prefix: Prefix,
        route: Option<ExportRoute<'_>>,
        cache: &mut ExportCache,
        interner: &mut Interner,
    ) -> Option<GroupRoute> {
        let one = self.key.add_path.is_none() || self.key.paths_of(prefix.family()).is_none();
        let after = route.filter(|_| one).and_then(|route| {
            let attrs = self.key.export(route, cache, interner).ok()?;
            Some(Advertised::new(attrs, route.peer))
        });
        let before = self.out.put(id.index(), after.as_ref())?;
        Some(GroupRoute {
            prefix,
            before,
            after,
        })
    }

    /// Has the processor load what [`Group::update`] will read of a destination. The result means
    /// nothing.
    pub(super) fn prefetch(&self, id: DestId) -> usize {
        self.out.prefetch(id.index())
    }

    /// Something has been told about a destination.
    pub(super) fn has_advertised(&self, id: DestId) -> bool {
        self.out.get(id.index()).is_some()
    }

    /// What a member is told about a destination.
    pub(super) fn advertised(&self, id: DestId, member: &Member) -> Option<&Arc<PathAttrs>> {
        visible(self.out.get(id.index()), member)
    }

    /// Why a member is not told about a destination although the group is.
    pub(super) fn withheld(&self, id: DestId, member: &Member) -> Option<Withheld> {
        self.out.get(id.index())?.visible_to(member).err()
    }

    /// What a peer is to be told about a destination that was a member of `self` and is now one of
    /// `other`.
    pub(super) fn difference(
        &self,
        id: DestId,
        prefix: Prefix,
        other: &Self,
        member: &Member,
    ) -> Option<(Prefix, Option<Arc<PathAttrs>>)> {
        let (before, after) = (self.advertised(id, member), other.advertised(id, member));
        changed(before, after).then(|| (prefix, after.cloned()))
    }

    /// For each of these members, the number of routes that it is told.
    pub(super) fn counts(&self, members: &[Member]) -> Vec<usize> {
        let routes = self.out.counts(members).into_iter();
        let paths = self.paths.counts(members);
        routes
            .zip(paths)
            .map(|(routes, paths)| routes + paths)
            .collect()
    }
}

#[cfg(test)]
mod tests;
