//! A group's changes in buckets that can be encoded once for all members.
//!
//! RIB-3 says that what a member is told is a function of the group's change and of the member. For
//! nearly all members that function is the same: only who sent a route, or whose address is its
//! next hop, is told something else. A bucket holds changes for which every member's function is
//! the same, exceptions included: what it keeps of a change is the prefix.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::Prefix;
use foldhash::{HashMap, HashSet};

use super::advertised::Member;
use super::change::{GroupRoute, GroupUpdate};
use crate::attrs::PathAttrs;
use crate::rib::peer_id::PeerId;

/// Update of a bucket's prefixes for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberUpdate<'a> {
    /// Nothing changes for it.
    Nothing,
    /// The prefixes are withdrawn.
    Withdraw,
    /// The prefixes are announced with these attributes.
    Announce(&'a Arc<PathAttrs>),
}

/// Changes that mean the same to each member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackingBucket {
    /// Prefixes with one change in common.
    pub prefixes: Vec<Prefix>,
    /// The attributes afterwards; `None`: there is no route any more.
    attrs: Option<Arc<PathAttrs>>,
    key: Key,
}

/// A group's change in buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// The buckets; no prefix is in two of them.
    pub buckets: Vec<PackingBucket>,
    by_source: HashMap<PeerId, Vec<usize>>,
    by_address: HashMap<IpAddr, Vec<usize>>,
}

/// From whom a route is hidden, before or after the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HiddenFrom {
    Absent,
    /// From these members.
    Hidden {
        /// The member that sent it, if one did.
        source: Option<PeerId>,
        /// The member whose address is its next hop, if one's is.
        address: Option<IpAddr>,
    },
}

/// Key of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    before: HiddenFrom,
    after: HiddenFrom,
    /// The attributes are the same before and after.
    same: bool,
    /// The attributes afterwards. Interned sets: the address is the identity.
    attrs: usize,
}

impl HiddenFrom {
    fn visible_to(self, member: Option<&Member>) -> bool {
        match self {
            Self::Absent => false,
            Self::Hidden { source, address } => !member.is_some_and(|member| {
                source == Some(member.peer) || address == Some(member.address())
            }),
        }
    }

    const fn parts(self) -> (Option<PeerId>, Option<IpAddr>) {
        match self {
            Self::Absent => (None, None),
            Self::Hidden { source, address } => (source, address),
        }
    }
}

impl PackingBucket {
    /// Update for the members that are no exception.
    #[must_use]
    pub fn common_update(&self) -> MemberUpdate<'_> {
        self.update_of(None)
    }

    /// Update for a member.
    #[must_use]
    pub fn update_for(&self, member: &Member) -> MemberUpdate<'_> {
        self.update_of(Some(member))
    }

    fn update_of(&self, member: Option<&Member>) -> MemberUpdate<'_> {
        let before = self.key.before.visible_to(member);
        match &self.attrs {
            Some(attrs) if self.key.after.visible_to(member) => {
                if before && self.key.same {
                    MemberUpdate::Nothing
                } else {
                    MemberUpdate::Announce(attrs)
                }
            }
            _ if before => MemberUpdate::Withdraw,
            _ => MemberUpdate::Nothing,
        }
    }
}

impl GroupUpdate {
    /// The changes in buckets.
    #[must_use]
    pub fn pack(&self) -> Buckets {
        let mut packer = Packer::new(&self.members);
        packer.pack(&self.routes)
    }
}

/// The members of a group as routes refer to them.
#[derive(Debug)]
pub(crate) struct Packer {
    peers: HashSet<PeerId>,
    addresses: HashSet<IpAddr>,
    /// The last answer: most routes of a change come from one peer, over one next hop.
    last: Option<((PeerId, Option<IpAddr>), HiddenFrom)>,
}

impl Packer {
    pub(crate) fn new(members: &[Member]) -> Self {
        Self {
            peers: members.iter().map(|member| member.peer).collect(),
            addresses: members.iter().map(Member::address).collect(),
            last: None,
        }
    }

    /// Sorts the changes into buckets.
    pub(crate) fn pack(&mut self, routes: &[GroupRoute]) -> Buckets {
        let mut buckets = Buckets::default();
        let mut known: HashMap<Key, usize> = HashMap::default();
        // Changes that mean the same come in runs: each is looked up once, and copied at once.
        for run in routes.chunk_by(GroupRoute::means) {
            let key = self.key(&run[0]);
            let at = *known
                .entry(key)
                .or_insert_with(|| buckets.open(key, &run[0]));
            let prefixes = &mut buckets.buckets[at].prefixes;
            prefixes.extend(run.iter().map(|route| route.prefix));
        }
        for bucket in &mut buckets.buckets {
            bucket.prefixes.shrink_to_fit();
        }
        buckets
    }

    fn key(&mut self, route: &GroupRoute) -> Key {
        let before = route.before();
        let after = route.after();
        Key {
            before: self.hidden_from(before.map(|before| (before.source, before.next_hop))),
            after: self.hidden_from(after.map(|after| (after.source(), after.attrs().next_hop))),
            same: before.is_some_and(|before| before.same),
            attrs: after.map_or(0, |after| Arc::as_ptr(after.attrs()).addr()),
        }
    }

    fn hidden_from(&mut self, from: Option<(PeerId, Option<IpAddr>)>) -> HiddenFrom {
        let Some((source, hop)) = from else {
            return HiddenFrom::Absent;
        };
        if let Some((of, side)) = self.last
            && of == (source, hop)
        {
            return side;
        }
        let side = HiddenFrom::Hidden {
            source: Some(source).filter(|peer| self.peers.contains(peer)),
            address: hop.filter(|hop| self.addresses.contains(hop)),
        };
        self.last = Some(((source, hop), side));
        side
    }
}

impl Buckets {
    /// Octets of memory that it holds, about; attributes of several buckets count in each.
    #[must_use]
    pub fn octets(&self) -> usize {
        let of = |bucket: &PackingBucket| {
            let attrs = bucket.attrs.as_ref().map_or(0, |attrs| attrs.octets());
            size_of_val(bucket) + size_of_val(&*bucket.prefixes) + attrs
        };
        self.buckets.iter().map(of).sum()
    }

    fn open(&mut self, key: Key, route: &GroupRoute) -> usize {
        let at = self.buckets.len();
        self.buckets.push(PackingBucket {
            prefixes: Vec::new(),
            attrs: route.after().map(|sent| sent.attrs().clone()),
            key,
        });
        for side in [key.before, key.after] {
            let (source, address) = side.parts();
            if let Some(source) = source {
                note(self.by_source.entry(source).or_default(), at);
            }
            if let Some(address) = address {
                note(self.by_address.entry(address).or_default(), at);
            }
        }
        at
    }

    /// Indices of the buckets that may say something else to this member, ascending.
    #[must_use]
    pub fn exceptions(&self, member: &Member) -> Vec<usize> {
        let sent = self.by_source.get(&member.peer).into_iter().flatten();
        let hops = self.by_address.get(&member.address()).into_iter().flatten();
        let mut found: Vec<usize> = sent.chain(hops).copied().collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// True when there is something in it for this member.
    #[must_use]
    pub fn concerns(&self, member: &Member) -> bool {
        let exceptions = self.exceptions(member);
        exceptions.len() < self.buckets.len()
            || exceptions
                .iter()
                .any(|at| self.buckets[*at].update_for(member) != MemberUpdate::Nothing)
    }

    /// The announcements (`Some`) and withdrawals (`None`) for one member.
    pub fn for_member<'a>(
        &'a self,
        member: &'a Member,
    ) -> impl Iterator<Item = (Prefix, Option<Arc<PathAttrs>>)> + 'a {
        self.buckets.iter().flat_map(|bucket| {
            let (prefixes, attrs) = match bucket.update_for(member) {
                MemberUpdate::Nothing => (&[][..], None),
                MemberUpdate::Withdraw => (&bucket.prefixes[..], None),
                MemberUpdate::Announce(attrs) => (&bucket.prefixes[..], Some(attrs)),
            };
            prefixes.iter().map(move |prefix| (*prefix, attrs.cloned()))
        })
    }
}

/// Notes a bucket, the latest, once.
fn note(list: &mut Vec<usize>, at: usize) {
    if list.last() != Some(&at) {
        list.push(at);
    }
}
