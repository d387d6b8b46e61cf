//! Announcements of a node: its own blocks, the addresses that it borrows from other nodes' blocks,
//! addresses of services, and the export policy for all other routes.
//!
//! Never announced: a block while its affinity is pending (two nodes may be competing for it), and
//! anything of a pool with `disableBGPExport`. A pool that is *disabled* hands out no new
//! addresses, but the workloads that have one keep it, so its blocks stay announced. So do blocks
//! in use whose pool was deleted (decision 0169).

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_bgp::{
    AnyCommunity, Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, Origination,
    PrefixPattern, RouteSource,
};
use caracal_model::{
    AffinityState, Block, BlockOwner, Family, InsertEach, Key, NodeName, Prefix, Problem,
    ProblemCode, Snapshot,
};

use crate::common::FAMILIES;
use crate::view::NodeView;

/// Name of the filter that every peer has as its last on export; Calico's name for the same thing.
pub const EXPORT_FILTER: &str = "calico_export_to_bgp_peers";

/// What a node announces of a prefix, whatever block it is of: all that this depends on besides the
/// blocks.
#[derive(Debug)]
pub(crate) struct Announcer {
    /// False while the node is not registered: then it announces nothing.
    registered: bool,
    /// The pools' ranges, the most specific first, and whether their routes stay inside.
    pools: Vec<(Prefix, bool)>,
    addresses: [Option<IpAddr>; 2],
    local_pref: [u32; 2],
    advertisements: Vec<(Prefix, Vec<AnyCommunity>)>,
}

const fn at(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

impl Announcer {
    pub(crate) fn new(view: &NodeView<'_>) -> Self {
        let pools = view.pools();
        Self {
            registered: view.node.is_some(),
            pools: pools
                .map(|(range, pool)| (range, pool.spec.disable_bgp_export))
                .collect(),
            addresses: FAMILIES.map(|family| view.address(family)),
            local_pref: FAMILIES.map(|family| view.settings.local_pref(family)),
            advertisements: view.settings.advertisements.clone(),
        }
    }

    /// The route to a service. A node without an address of the family has no peer in it either.
    pub(crate) fn service(&self, prefix: &Prefix) -> Option<Origination> {
        let next_hop = self.addresses[at(prefix.family())].filter(|_| self.registered)?;
        Some(self.attributes(prefix, next_hop))
    }

    /// True when a pool has the word about a block or an address.
    pub(crate) fn is_pooled(&self, prefix: &Prefix) -> bool {
        self.pools.iter().any(|(range, _)| range.covers(prefix))
    }

    /// The route to a block or to an address of one, and what is wrong with it. No route and
    /// nothing wrong: the pool's owner does not want it announced, or it lies in no pool and no
    /// workload needs it (decision 0169).
    pub(crate) fn origination(
        &self,
        prefix: &Prefix,
        snapshot: &Snapshot,
    ) -> (Option<Origination>, Option<Problem>) {
        let problem = |code, reason| Problem {
            code,
            subject: Key::Block(*prefix).to_path(),
            reason,
        };
        let family = prefix.family();
        let no_address = || {
            let reason = format!("{prefix} is not announced: this node has no {family} address");
            problem(ProblemCode::AnnounceNoAddress, reason)
        };
        let route = |next_hop| Some(self.attributes(prefix, next_hop));
        let next_hop = self.addresses[at(family)];
        let mut pools = self.pools.iter();
        match (pools.find(|(range, _)| range.covers(prefix)), next_hop) {
            (Some((_, true)), _) => (None, None),
            (Some(_), Some(next_hop)) => (route(next_hop), None),
            (Some(_), None) => (None, Some(no_address())),
            // Nobody misses the way to a block that no workload has an address of.
            (None, _) if !is_in_use(prefix, snapshot) => (None, None),
            (None, None) => (None, Some(no_address())),
            (None, Some(next_hop)) => {
                let users = users(prefix, snapshot);
                let reason = format!(
                    "{prefix} lies in no pool, and {users}: it stays announced, but encapsulation and NAT went with the pool, so packets between nodes arrive only where the network knows the pods' addresses, and leave the cluster with them; make the pool again as it was, with a cidr that covers {prefix} and its former ipipMode, vxlanMode and natOutgoing, or delete the pods"
                );
                let problem = problem(ProblemCode::AnnounceNoPool, reason);
                (route(next_hop), Some(problem))
            }
        }
    }

    fn attributes(&self, prefix: &Prefix, next_hop: IpAddr) -> Origination {
        Origination {
            next_hop: Some(next_hop),
            local_pref: Some(self.local_pref[at(prefix.family())]),
            communities: self.communities(prefix),
            ..Origination::default()
        }
    }

    /// The communities of all ranges that hold the prefix, sorted and unique.
    fn communities(&self, prefix: &Prefix) -> Vec<AnyCommunity> {
        let ranges = self.advertisements.iter();
        let values = ranges.filter(|(range, _)| range.covers(prefix));
        let all: BTreeSet<_> = values
            .flat_map(|(_, values)| values.iter().copied())
            .insert_each();
        all.into_iter().collect()
    }

    /// The prefixes that the node announces because of a block: the block itself, or the addresses
    /// of its workloads when the block is not the node's. Addresses of tunnel devices are left out:
    /// they are reached through the tunnel. So are addresses that cool down after their release.
    pub(crate) fn prefixes(&self, snapshot: &Snapshot, me: &NodeName, cidr: Prefix) -> Vec<Prefix> {
        if !self.registered {
            return Vec::new();
        }
        if let Some(affinity) = snapshot
            .affinities
            .get(&(BlockOwner::Host(me.clone()), cidr))
        {
            let announced = affinity.state != AffinityState::Pending && !affinity.deleted;
            return announced.then_some(cidr).into_iter().collect();
        }
        let block = snapshot.blocks.get(&cidr).into_iter();
        let addresses = block.flat_map(|block| block.workloads_of(me));
        addresses.map(Prefix::host).collect()
    }
}

/// How many pods of a block the reason names.
const NAMED_PODS: usize = 3;

/// Who has addresses of a block, or of a single address of another node's block. Of that one only
/// the address is named: a change of its block need not plan it again.
fn users(prefix: &Prefix, snapshot: &Snapshot) -> String {
    let Some(block) = snapshot.blocks.get(prefix) else {
        return "a pod has the address".to_owned();
    };
    let held = block.whole().into_iter().flat_map(Block::allocated);
    let of_pods = held.filter(|(_, _, attribute)| {
        attribute.node().is_some() && attribute.usage().is_none() && attribute.released_at.is_none()
    });
    let named: Vec<String> = of_pods
        .take(NAMED_PODS)
        .map(|(_, address, attribute)| {
            let of = |key: &str| attribute.secondary.get(key);
            match (of("namespace"), of("pod")) {
                (Some(namespace), Some(pod)) => format!("{address} of {namespace}/{pod}"),
                (None, Some(pod)) => format!("{address} of {pod}"),
                (_, None) => address.to_string(),
            }
        })
        .collect();
    let all = block.workloads();
    let more = match all.saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match named.is_empty() {
        true => format!("pods have {all} address(es) of it"),
        false => format!("pods have addresses of it ({}{more})", named.join(", ")),
    }
}

/// True when a workload has an address of a block. A single address is announced only while one
/// has it.
fn is_in_use(prefix: &Prefix, snapshot: &Snapshot) -> bool {
    match snapshot.blocks.get(prefix) {
        Some(block) => block.workloads() > 0,
        None => prefix.is_host() && snapshot.block_of(prefix).is_some(),
    }
}

/// Export filter, tried after the peer's own filters: nothing of a pool with `disableBGPExport`;
/// our own originations; routes learned inside the pools (and, on a reflector, inside the ranges of
/// services, decision 0179); nothing else. Communities are added to what passes, also to what
/// others originate.
pub(crate) fn export_filter(view: &NodeView<'_>, reflects: bool) -> Filter {
    let mut terms = Vec::new();
    let (hidden, open): (Vec<_>, Vec<_>) = view
        .snapshot
        .pools
        .values()
        .map(|pool| (pool.spec.prefix(), pool.spec.disable_bgp_export))
        .partition(|(_, disabled)| *disabled);
    if let Some(condition) = inside(hidden.into_iter().map(|(prefix, _)| prefix)) {
        terms.push(FilterTerm {
            conditions: vec![condition],
            actions: Vec::new(),
            verdict: Some(FilterVerdict::Reject),
        });
    }
    for (range, values) in &view.settings.advertisements {
        terms.push(FilterTerm {
            conditions: inside([*range]).into_iter().collect(),
            actions: values
                .iter()
                .copied()
                .map(FilterAction::AddCommunity)
                .collect(),
            verdict: None,
        });
    }
    terms.push(accept(vec![FilterCondition::Source(RouteSource::Static)]));
    let passed_on = match reflects {
        true => &view.settings.service_ranges[..],
        false => &[],
    };
    let ranges = open.into_iter().map(|(prefix, _)| prefix);
    if let Some(condition) = inside(ranges.chain(passed_on.iter().copied())) {
        terms.push(accept(vec![condition]));
    }
    terms.push(FilterTerm {
        conditions: Vec::new(),
        actions: Vec::new(),
        verdict: Some(FilterVerdict::Reject),
    });
    Filter::from(terms)
}

fn accept(conditions: Vec<FilterCondition>) -> FilterTerm {
    FilterTerm {
        conditions,
        actions: Vec::new(),
        verdict: Some(FilterVerdict::Accept),
    }
}

/// Matches everything inside the ranges; `None` for no ranges, which no condition can say.
fn inside(ranges: impl IntoIterator<Item = Prefix>) -> Option<FilterCondition> {
    let sorted: BTreeSet<_> = ranges.into_iter().insert_each();
    let patterns: Vec<_> = sorted.into_iter().map(PrefixPattern::or_longer).collect();
    (!patterns.is_empty()).then_some(FilterCondition::Prefix {
        patterns,
        negated: false,
    })
}
