//! The export rules of an update group, and what a route becomes by them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use caracal_model::{Family, Prefix};

use super::advertised::Withheld;
use super::sent::SentLimit;
use crate::attrs::{PathAttrs, RouteType};
use crate::config::{BgpRole, NextHopMode, NextHopModes, Origination, Originations, PathCount};
use crate::policy::{Asks, FilterVerdict, PeerKind, RouteSource, RouteView, Sender};
use crate::rib::DEFAULT_LOCAL_PREF;
use crate::rib::import::{DecidedBy, NamedFilter, run_filters};
use crate::rib::intern::Interner;
use crate::rib::next_hops::NextHopTable;
use crate::rib::peer_id::PeerId;
use crate::types::{AnyCommunity, Asn, ClusterId, Community, ExtCommunity, RouterId};

/// Everything that makes the export to one peer differ from the export to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rib) struct GroupKey {
    pub(in crate::rib) kind: PeerKind,
    /// Our AS towards the peer.
    pub(in crate::rib) own_as: Asn,
    /// Our role towards external peers (RFC 9234).
    pub(in crate::rib) role: Option<BgpRole>,
    /// Some: the peers are our reflector clients.
    pub(in crate::rib) client_of: Option<ClusterId>,
    /// The peers are external, and clients of a route server (RFC 7947): they get routes as they
    /// came.
    pub(in crate::rib) transparent: bool,
    pub(in crate::rib) next_hop: NextHopModes,
    /// Our own NEXT_HOP for IPv4 and IPv6 prefixes.
    pub(in crate::rib) own_next_hops: [Option<IpAddr>; 2],
    pub(in crate::rib) families: Vec<Family>,
    /// IPv4 prefixes may have IPv6 next hops (RFC 8950).
    pub(in crate::rib) extended_next_hop: bool,
    /// The peer understands LLGR_STALE (RFC 9494).
    pub(in crate::rib) long_lived: bool,
    /// Routes with LLGR_STALE go to peers inside the AS that do not understand it (RFC 9494 §4.6).
    pub(in crate::rib) partial_deployment: bool,
    /// Our link-local address, on a link that we share with the peers (RFC 2545 §3).
    pub(in crate::rib) link_local: Option<Ipv6Addr>,
    /// The subnets of the link that we share with the peers.
    pub(in crate::rib) link: Vec<Prefix>,
    /// Limit of paths per prefix, and the families in which the peer takes several (RFC 7911).
    pub(in crate::rib) add_path: Option<(PathCount, Vec<Family>)>,
    /// Limit of the prefixes of the only peer of the group.
    pub(in crate::rib) limit: Option<SentLimit>,
    pub(in crate::rib) filters: Vec<Arc<NamedFilter>>,
    /// What filters ask of a route beyond its attributes.
    pub(in crate::rib) asks: Asks,
}

/// Where a route that is to be exported came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rib) enum PathSource {
    /// We originate it.
    Local,
    /// A peer sent it.
    Peer {
        kind: PeerKind,
        client_of: Option<ClusterId>,
        router_id: RouterId,
    },
}

/// The last export that did not depend on the prefix: in a run of routes with the same attributes
/// it answers all but the first.
#[derive(Debug, Default)]
pub(in crate::rib) struct ExportCache {
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

/// Knows the peers of paths as filters see them.
pub(in crate::rib) trait Senders: std::fmt::Debug {
    /// `None`: there is no such peer.
    fn of(&self, peer: PeerId) -> Option<Sender<'_>>;
}

/// A route that is to be exported.
#[derive(Clone, Copy, Debug)]
pub(in crate::rib) struct ExportRoute<'a> {
    pub(in crate::rib) prefix: Prefix,
    pub(in crate::rib) attrs: &'a Arc<PathAttrs>,
    pub(in crate::rib) peer: PeerId,
    /// The path's own handle; that of the peer unless it sends several paths.
    pub(in crate::rib) handle: PeerId,
    pub(in crate::rib) source: PathSource,
    pub(in crate::rib) senders: &'a dyn Senders,
    pub(in crate::rib) next_hops: &'a NextHopTable,
    /// Routes of ours.
    pub(in crate::rib) own: &'a Originations,
}

impl<'a> ExportRoute<'a> {
    /// The interface by which the next hop is reached, and the gateway; none for what is ours and
    /// leads nowhere.
    fn way(&self) -> (Option<&'a str>, Option<IpAddr>) {
        match self.source {
            PathSource::Local => self.next_hops.own_way(&self.prefix),
            PathSource::Peer { .. } => {
                let way = self.attrs.way();
                way.map(|way| self.next_hops.way(&way)).unwrap_or_default()
            }
        }
    }

    /// Who brought it.
    fn sender(&self) -> Sender<'a> {
        let sender = match self.source {
            PathSource::Local => self.own.get(&self.prefix).map(Origination::sender),
            PathSource::Peer { .. } => self.senders.of(self.peer),
        };
        sender.unwrap_or_default()
    }
}

impl GroupKey {
    /// Limit of paths per prefix of a family; `None`: one, without identifier.
    pub(in crate::rib) fn paths_of(&self, family: Family) -> Option<PathCount> {
        let (count, families) = self.add_path.as_ref()?;
        families.contains(&family).then_some(*count)
    }

    /// The attributes with which the route goes to a peer of this group.
    pub(in crate::rib) fn export(
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
        if attrs.route_type == RouteType::Recursive {
            // What the next hop leads to may be another by now.
            *cache = ExportCache::default();
        }
        // A cached result holds for further prefixes; only filters look at the prefix. NEXT_HOP
        // depends on the family, so the cache holds for one.
        let same_family = cache.family == Some(family);
        if self.filters.is_empty()
            && same_family
            && let Some(done) = cached(&cache.done, attrs, peer)
        {
            return Ok(done);
        }
        self.allows(family, attrs, source)?;
        if self.filters.is_empty() {
            let mut base = self.base(route);
            self.keep_med(&mut base, source, false);
            let done = interner.intern(self.finish(base, route, None)?);
            cache.done = Some((attrs.clone(), peer, done.clone()));
            cache.family = Some(family);
            return Ok(done);
        }
        let base = match cached(&cache.base, attrs, peer) {
            Some(base) => base,
            None => {
                // Not interned: nobody compares it and nothing keeps it.
                let base = Arc::new(self.base(route));
                cache.base = Some((attrs.clone(), peer, base.clone()));
                base
            }
        };
        let from = match source {
            PathSource::Local => RouteSource::Static,
            PathSource::Peer { .. } => RouteSource::Bgp,
        };
        let mut view = RouteView::new(prefix, Cow::Borrowed(&base), self.kind, from);
        if self.asks.way {
            (view.interface, view.gateway) = route.way();
        }
        if self.asks.sender {
            view.sender = route.sender();
        }
        let (verdict, by) = run_filters(&self.filters, &mut view);
        if let (FilterVerdict::Reject, Some((filter, decision))) = (verdict, by) {
            return Err(Withheld::Policy(DecidedBy::new(filter, &decision)));
        }
        let (is_set, told) = (view.med_is_set, view.told_next_hop);
        if told.is_some() {
            view.attrs.to_mut();
        }
        match view.attrs {
            Cow::Owned(mut changed) => {
                self.keep_med(&mut changed, source, is_set);
                Ok(interner.intern(self.finish(changed, route, told)?))
            }
            Cow::Borrowed(_) => {
                let known = cached(&cache.done, attrs, peer);
                if let Some(done) = known.filter(|_| same_family) {
                    return Ok(done);
                }
                let mut base = (*base).clone();
                self.keep_med(&mut base, source, is_set);
                let done = interner.intern(self.finish(base, route, None)?);
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
                // RFC 9234 §5.
                let goes_up = self.role.is_some_and(|role| !role.is_above());
                if goes_up && attrs.only_to_customer().is_some() {
                    return Err(Withheld::OnlyToCustomer);
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
    fn base(&self, route: ExportRoute<'_>) -> PathAttrs {
        let mut base = PathAttrs::clone(route.attrs);
        if route.source == PathSource::Local {
            let way = || route.next_hops.own_gateway(&base, &route.prefix);
            if base.route_type == RouteType::Recursive && way().is_none() {
                (base.route_type, base.next_hop) = (RouteType::Unreachable, None);
            }
            return base;
        }
        base.local_pref.get_or_insert(DEFAULT_LOCAL_PREF);
        base
    }

    /// RFC 4271 §5.1.4: a received MED goes no further than the AS. Export filters see it, and may
    /// set a new one.
    fn keep_med(&self, attrs: &mut PathAttrs, source: PathSource, is_set: bool) {
        let is_inside = self.kind == PeerKind::Internal || source == PathSource::Local;
        if !is_inside && !self.transparent && !is_set {
            attrs.med = None;
        }
    }

    /// Sets the attributes that the protocol demands after policy, which may have set the next hop.
    fn finish(
        &self,
        mut attrs: PathAttrs,
        route: ExportRoute<'_>,
        told: Option<IpAddr>,
    ) -> Result<PathAttrs, Withheld> {
        let ExportRoute { prefix, source, .. } = route;
        let own = self.next_hop.for_family(prefix.family()) == NextHopMode::Own;
        let next_hop = match told.filter(|_| !own) {
            Some(told) if self.carries(prefix.family(), told) => told,
            Some(_) => return Err(Withheld::NoNextHop),
            None if attrs.route_type.is_way() => self.gateway(&attrs, route)?,
            None => self.next_hop(&attrs, prefix.family(), source)?,
        };
        attrs.next_hop = Some(next_hop);
        attrs.route_type = RouteType::default();
        // RFC 2545 §3: the link-local address is that of the next hop, on a link with the peer.
        let own = next_hop.is_ipv6() && self.own_next_hop(prefix.family()) == Some(next_hop);
        attrs.link_local_next_hop = self.link_local.filter(|_| own);
        match self.kind {
            PeerKind::External => {
                attrs.local_pref = None;
                attrs.originator_id = None;
                attrs.cluster_list.clear();
                if !self.transparent {
                    attrs.as_path.prepend(self.own_as);
                }
                keep_transitive(&mut attrs);
                // RFC 9234 §5: from here on it goes down alone.
                if self.role.is_some_and(tells_customers_alone)
                    && attrs.only_to_customer().is_none()
                {
                    attrs.set_only_to_customer(Some(self.own_as));
                }
            }
            PeerKind::Internal => {
                attrs.local_pref.get_or_insert(DEFAULT_LOCAL_PREF);
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

    /// True when a route of the family can have such a next hop on this session, whose peer may be
    /// on another link.
    fn carries(&self, family: Family, next_hop: IpAddr) -> bool {
        (Family::of(next_hop) == family || (self.extended_next_hop && family == Family::Ipv4))
            && !matches!(next_hop, IpAddr::V6(v6) if v6.is_unicast_link_local())
    }

    /// The NEXT_HOP of a route of ours with a gateway, as BIRD has it: the gateway for internal
    /// peers, and for external ones on a link with it; else ourselves.
    fn gateway(&self, attrs: &PathAttrs, route: ExportRoute<'_>) -> Result<IpAddr, Withheld> {
        let family = route.prefix.family();
        let is_told = |gateway: &IpAddr| {
            let shared = || self.link.iter().any(|subnet| subnet.contains(*gateway));
            self.next_hop.for_family(family) != NextHopMode::Own
                && self.carries(family, *gateway)
                && (self.kind == PeerKind::Internal || shared())
        };
        let gateway = route.next_hops.own_gateway(attrs, &route.prefix);
        let chosen = gateway
            .filter(is_told)
            .or_else(|| self.own_next_hop(family));
        chosen.ok_or(Withheld::NoNextHop)
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
        // RFC 7947 §2.2.1.
        let mode = match self.next_hop.for_family(family) {
            NextHopMode::Auto if self.transparent => NextHopMode::Keep,
            mode => mode,
        };
        let chosen = match (mode, self.kind, source) {
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

/// What a peer in this role is told of is for its customers alone.
const fn tells_customers_alone(role: BgpRole) -> bool {
    role.is_above() || matches!(role, BgpRole::Peer)
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

#[cfg(test)]
mod tests;
