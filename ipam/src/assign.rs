//! Automatic assignment: [`Assign`] takes as many addresses as asked for, all or none (IPAM-11).
//!
//! Level-triggered: after each answer it looks at all it has read, and asks for what is still
//! missing. From an own block that is one read of the rules, one of the own blocks, and one
//! transaction; with a right guess in [`AssignRequest::block_hints`], one read and one transaction.
//! All blocks of the cluster are read only when a new block is needed.

use std::collections::BTreeMap;

use caracal_model::{
    AffinityState, AllowedUse, Block, BlockOwner, Family, IpPool, Key, KeyRange, Kind, Prefix,
    Timestamp, Txn,
};

use crate::block;
use crate::error::{AssignError, LimitSource, MAX_ADDRESSES, MAX_BLOCKS, NoPool, RequestFault};
use crate::plan::{DEFAULT_MAX_BLOCKS, Need, Pick, Planner, Source};
use crate::pools::{self, Asker, Candidate};
use crate::request::{AssignRequest, Assigned, Assignment};
use crate::step::{Input, Machine, Step};
use crate::txn_builder::TxnBuilder;
use crate::view::{self, IpamData, Known};
use crate::{handle, namespace};

/// An automatic assignment.
#[derive(Clone, Debug)]
pub struct Assign {
    request: AssignRequest,
    owner: BlockOwner,
    now: Timestamp,
    view: IpamData,
    state: AssignState,
    /// Blocks to read together with everything else: the caller's guess, then those of a lost race,
    /// so that the next try is a round trip shorter.
    hints: Vec<Prefix>,
}

#[derive(Clone, Debug)]
enum AssignState {
    /// Nothing asked.
    Idle,
    /// Waiting for these.
    Reading(Vec<KeyRange>),
    /// Dropping own affinities that are of no use any more.
    Tidying,
    /// Writing own affinities as pending.
    Claiming(Txn, Vec<Pick>),
    /// Taking the addresses.
    Taking(Assigned),
}

type AssignStep = Step<Assigned, AssignError>;

impl Machine for Assign {
    type Output = Assigned;
    type Error = AssignError;

    fn step(&mut self, seen: Input) -> AssignStep {
        match (std::mem::replace(&mut self.state, AssignState::Idle), seen) {
            (AssignState::Reading(asked), Input::Read(reading)) => {
                self.view.absorb(&asked, reading);
                self.view.collect(self.now);
                self.decide().unwrap_or_else(Step::Failed)
            }
            (AssignState::Claiming(txn, picks), Input::Committed(revision)) => {
                self.view.apply(&txn, revision);
                self.take(&picks)
            }
            (AssignState::Taking(assigned), Input::Committed(revision)) => Step::Done(Assigned {
                revision,
                ..assigned
            }),
            // The start, a lost race, or tidied up: look at everything afresh.
            _ => self.begin(),
        }
    }
}

impl Assign {
    /// A request at a point in time, which dates blocks and allocations.
    #[must_use]
    pub fn new(request: AssignRequest, now: Timestamp) -> Self {
        Self {
            owner: request.owner(),
            hints: request.block_hints.clone(),
            request,
            now,
            view: IpamData::default(),
            state: AssignState::Idle,
        }
    }

    fn families(&self) -> impl Iterator<Item = Family> + '_ {
        [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter(|family| self.request.count(*family) > 0)
    }

    fn begin(&mut self) -> AssignStep {
        if let Err(fault) = check(&self.request) {
            return Step::Failed(AssignError::Request(fault));
        }
        self.view = IpamData::default();
        let in_use = self.request.in_use.iter().copied();
        self.view.reserved.extend(in_use.map(Prefix::host));
        let mut ranges = vec![
            view::key(&Key::IpamConfig),
            view::kind(Kind::IpPool),
            view::kind(Kind::IpReservation),
            view::key(&Key::Handle(self.request.handle.clone())),
        ];
        if let Some(node) = self.owner.node() {
            ranges.push(view::key(&Key::node(node)));
        }
        ranges.extend(
            self.request
                .namespace()
                .map(|n| view::key(&namespace::namespace_key(n))),
        );
        ranges.extend(self.families().map(|f| view::affinities(&self.owner, f)));
        let hints = self.hints.iter().take(MAX_BLOCKS);
        ranges.extend(hints.map(|cidr| view::key(&Key::Block(*cidr))));
        self.read(ranges)
    }

    fn read(&mut self, ranges: Vec<KeyRange>) -> AssignStep {
        self.state = AssignState::Reading(ranges.clone());
        Step::Read(ranges)
    }

    /// Looks at what is known and goes on.
    fn decide(&mut self) -> Result<AssignStep, AssignError> {
        let needs = self.needs()?;
        let mut planners: Vec<_> = needs.iter().map(|need| self.planner(need)).collect();
        for planner in &mut planners {
            planner.take_own(&self.hints);
        }
        if planners.iter().all(|p| p.missing() == 0) {
            let picks = planners.into_iter().flat_map(|p| p.picks).collect();
            return Ok(self.claim(picks));
        }
        let unknown = self.unknown_own_blocks(&needs);
        if !unknown.is_empty() {
            return Ok(self.read(unknown));
        }
        if let Some(txn) = self.tidy(&needs) {
            self.state = AssignState::Tidying;
            return Ok(Step::Commit(txn));
        }
        for planner in &mut planners {
            planner.take_interrupted();
        }
        let config = self.view.config();
        let may_look_further = config.auto_allocate_blocks || !config.strict_affinity;
        let unlisted: Vec<KeyRange> = planners
            .iter()
            .filter(|p| p.missing() > 0 && !self.view.knows_all_blocks(p.need.family))
            .map(|p| view::blocks(p.need.family))
            .collect();
        if may_look_further && !unlisted.is_empty() {
            return Ok(self.read(unlisted));
        }
        for planner in &mut planners {
            if config.auto_allocate_blocks {
                planner.take_new();
            }
            if !config.strict_affinity {
                planner.borrow();
            }
        }
        if let Some(short) = planners.iter().find(|p| p.missing() > 0) {
            let shortage = short.shortage(&self.request.node);
            return Err(AssignError::NoAddress(Box::new(shortage)));
        }
        let picks: Vec<Pick> = planners.into_iter().flat_map(|p| p.picks).collect();
        let unknown = self.unknown_owners(&picks);
        if !unknown.is_empty() {
            return Ok(self.read(unknown));
        }
        Ok(self.claim(picks))
    }

    fn planner<'a>(&'a self, need: &'a Need) -> Planner<'a> {
        Planner {
            view: &self.view,
            owner: &self.owner,
            host: match &self.owner {
                BlockOwner::Host(node) => node.as_str(),
                BlockOwner::Virtual(name) => name,
            },
            now: self.now,
            need,
            picks: Vec::new(),
        }
    }

    /// Requested number by family, with the pools to use.
    fn needs(&self) -> Result<Vec<Need>, AssignError> {
        self.view.readable(&[
            Key::IpamConfig,
            Key::Handle(self.request.handle.clone()),
            Key::node(&self.request.node),
        ])?;
        let labels = self.labels()?;
        let (limit, limit_source) = self.limit();
        self.families()
            .map(|family| {
                Ok(Need {
                    family,
                    count: self.request.count(family),
                    pools: self.candidates(family, &labels)?,
                    limit,
                    limit_source,
                })
            })
            .collect()
    }

    fn labels(&self) -> Result<BTreeMap<String, String>, AssignError> {
        let Some(node) = self.owner.node() else {
            return Ok(BTreeMap::new());
        };
        match self.view.nodes.get(node) {
            Some(view) => Ok(view.labels.clone()),
            None => Err(AssignError::UnknownNode { node: node.clone() }),
        }
    }

    fn limit(&self) -> (u32, LimitSource) {
        let config = match self.view.config().max_blocks_per_host {
            0 => None,
            limit => Some((limit, LimitSource::Config)),
        };
        let request = match self.request.max_blocks {
            None | Some(0) => None,
            Some(limit) => Some((limit, LimitSource::Request)),
        };
        let smaller = [config, request].into_iter().flatten().min_by_key(|l| l.0);
        smaller.unwrap_or((DEFAULT_MAX_BLOCKS, LimitSource::Default))
    }

    fn candidates(
        &self,
        family: Family,
        labels: &BTreeMap<String, String>,
    ) -> Result<Vec<Candidate>, AssignError> {
        let (wanted, usage) = (self.request.pools(family), self.request.usage);
        if !wanted.is_empty() {
            return pools::explicit(&self.view.pools, wanted, family, usage)
                .map_err(AssignError::Pool);
        }
        let named = self.request.namespace();
        let selective = |pool: &IpPool| !pools::selects_namespace(pool, None);
        if let Some(namespace) = named
            && self.view.pools.values().any(selective)
        {
            self.view.readable(&[namespace::namespace_key(namespace)])?;
        }
        let read = named.map(|namespace| {
            let labels = self.view.namespaces.get(namespace).cloned();
            labels.unwrap_or_else(|| namespace::namespace_named(namespace))
        });
        let asker = Asker {
            node: labels,
            namespace: self.request.namespace_labels.as_ref().or(read.as_ref()),
            usage,
        };
        let (candidates, refused) = pools::automatic(&self.view.pools, family, &asker);
        if !candidates.is_empty() {
            return Ok(candidates);
        }
        let unreadable = self.view.unreadable.iter().filter(|(path, _)| {
            matches!(
                Key::parse(path),
                Ok(Key::Resource {
                    kind: Kind::IpPool,
                    ..
                })
            )
        });
        Err(AssignError::NoPool(Box::new(NoPool {
            node: self.request.node.clone(),
            family,
            refused,
            unreadable: unreadable.map(|(k, r)| (k.clone(), r.clone())).collect(),
        })))
    }

    /// Own blocks that matter and were not read yet: in usable pools, or in pools that turned away
    /// from this node.
    fn unknown_own_blocks(&self, needs: &[Need]) -> Vec<KeyRange> {
        let mut ranges = Vec::new();
        for need in needs {
            for (cidr, _) in self.view.affinities_of(&self.owner, need.family) {
                let matters = need.pools.iter().any(|pool| pool.cidr.covers(&cidr))
                    || self.is_deserted(&cidr);
                if matters && self.view.block(cidr) == Known::Unknown {
                    ranges.push(view::key(&Key::Block(cidr)));
                }
            }
        }
        ranges
    }

    /// True when a block's pool does not select this node any more.
    fn is_deserted(&self, cidr: &Prefix) -> bool {
        let node = self.owner.node().and_then(|n| self.view.nodes.get(n));
        match (node, self.view.pool_of(cidr)) {
            (Some(node), Some((_, pool))) => pools::turns_away(pool, &node.labels),
            _ => false,
        }
    }

    /// Drops own affinities to blocks of others, and own empty blocks of pools that do not select
    /// this node.
    fn tidy(&self, needs: &[Need]) -> Option<Txn> {
        let mut txn = TxnBuilder::default();
        let own = needs
            .iter()
            .flat_map(|need| self.view.affinities_of(&self.owner, need.family));
        for (cidr, _) in own.take(MAX_BLOCKS) {
            let Known::Present(block) = self.view.block(cidr) else {
                if self.is_deserted(&cidr) && self.view.block(cidr) == Known::Absent {
                    txn.unchanged_block(&self.view, cidr);
                    txn.delete_affinity(&self.view, &self.owner, cidr);
                }
                continue;
            };
            if block.value.owner().as_ref() != Some(&self.owner) {
                txn.unchanged_block(&self.view, cidr);
                txn.delete_affinity(&self.view, &self.owner, cidr);
            } else if block::is_empty(&block.value) && self.is_deserted(&cidr) {
                txn.delete_block(&self.view, cidr);
                txn.delete_affinity(&self.view, &self.owner, cidr);
            }
        }
        (!txn.is_empty()).then(|| txn.into_txn())
    }

    /// Affinities of hosts whose empty blocks are to be taken, as far as they were not read yet.
    fn unknown_owners(&self, picks: &[Pick]) -> Vec<KeyRange> {
        let keys = picks.iter().filter_map(|pick| match &pick.source {
            Source::Reclaim(owner) => Some(Key::Affinity(owner.clone(), pick.cidr)),
            _ => None,
        });
        keys.filter(|key| !self.view.was_asked(key))
            .map(|key| view::key(&key))
            .collect()
    }

    /// Marks claims as pending where that is not done yet, then takes.
    fn claim(&mut self, picks: Vec<Pick>) -> AssignStep {
        if picks.len() > MAX_BLOCKS {
            let count = picks.iter().map(|p| p.count).sum();
            let fault = RequestFault::TooScattered(count, picks.len());
            return Step::Failed(AssignError::Request(fault));
        }
        self.hints = picks.iter().map(|pick| pick.cidr).collect();
        let mut txn = TxnBuilder::default();
        for pick in &picks {
            if !matches!(pick.source, Source::Claim | Source::Reclaim(_)) {
                continue;
            }
            let state = |owner: &BlockOwner| {
                let key = (owner.clone(), pick.cidr);
                self.view.affinities.get(&key).map(|a| a.value.state)
            };
            if state(&self.owner) != Some(AffinityState::Pending) {
                let pending = AffinityState::Pending;
                txn.put_affinity(&self.view, &self.owner, pick.cidr, pending);
            }
            if let Source::Reclaim(other) = &pick.source
                && !matches!(state(other), None | Some(AffinityState::PendingDeletion))
            {
                let leaving = AffinityState::PendingDeletion;
                txn.unchanged_block(&self.view, pick.cidr);
                txn.put_affinity(&self.view, other, pick.cidr, leaving);
            }
        }
        if txn.is_empty() {
            return self.take(&picks);
        }
        let txn = txn.into_txn();
        self.state = AssignState::Claiming(txn.clone(), picks);
        Step::Commit(txn)
    }

    /// The one transaction that changes hands: blocks, affinities, handle.
    fn take(&mut self, picks: &[Pick]) -> AssignStep {
        let mut txn = TxnBuilder::default();
        let mut assigned = Assigned::default();
        let attribute = self.request.attribute(self.now);
        let known = self.view.handles.get(&self.request.handle);
        let mut held = known.map(|k| k.value.clone()).unwrap_or_default();
        held.deleted = false;
        for pick in picks {
            let known_block = self.view.blocks.get(&pick.cidr).map(|known| &known.value);
            let keeps = match pick.source {
                Source::Own | Source::Borrow => true,
                Source::Claim => known_block.and_then(Block::owner).as_ref() == Some(&self.owner),
                Source::Reclaim(_) => false,
            };
            let kept = known_block.filter(|_| keeps).cloned();
            let mut value = kept.unwrap_or_else(|| block::create(pick.cidr, &self.owner, self.now));
            let taken = block::take(&mut value, pick.count, &attribute, &self.view.reserved);
            let count = u64::try_from(taken.len()).unwrap_or(u64::MAX);
            handle::add(&mut held, pick.cidr, count);
            txn.put_block(&self.view, value);
            self.put_affinities(&mut txn, pick);
            let list = match pick.cidr.family() {
                Family::Ipv4 => &mut assigned.v4,
                Family::Ipv6 => &mut assigned.v6,
            };
            list.extend(taken.into_iter().map(|(address, sequence)| Assignment {
                address,
                block: pick.cidr,
                pool: pick.pool.clone(),
                borrowed: pick.source == Source::Borrow,
                sequence,
            }));
        }
        txn.put_handle(&self.request.handle, known, &held);
        self.state = AssignState::Taking(assigned);
        Step::Commit(txn.into_txn())
    }

    /// Writes the affinities: confirmed, or moved to this host.
    fn put_affinities(&self, txn: &mut TxnBuilder, pick: &Pick) {
        let key = (self.owner.clone(), pick.cidr);
        let state = self.view.affinities.get(&key).map(|a| a.value.state);
        match &pick.source {
            Source::Borrow => {}
            Source::Own if state == Some(AffinityState::Confirmed) => {}
            Source::Reclaim(other) => {
                txn.delete_affinity(&self.view, other, pick.cidr);
                let confirmed = AffinityState::Confirmed;
                txn.put_affinity(&self.view, &self.owner, pick.cidr, confirmed);
            }
            Source::Own | Source::Claim => {
                let confirmed = AffinityState::Confirmed;
                txn.put_affinity(&self.view, &self.owner, pick.cidr, confirmed);
            }
        }
    }
}

fn check(request: &AssignRequest) -> Result<(), RequestFault> {
    let count = request.num_v4.saturating_add(request.num_v6);
    match count {
        0 => return Err(RequestFault::Nothing),
        n if n > MAX_ADDRESSES => return Err(RequestFault::TooMany(n)),
        _ => {}
    }
    check_names(&request.handle, &request.node, request.usage)
}

pub(crate) fn check_names(
    handle: &caracal_model::HandleId,
    node: &caracal_model::NodeName,
    usage: AllowedUse,
) -> Result<(), RequestFault> {
    if handle.as_str().is_empty() || handle.as_str().contains('/') {
        return Err(RequestFault::Handle(handle.clone()));
    }
    if node.as_str().is_empty() && usage != AllowedUse::LoadBalancer {
        return Err(RequestFault::Node);
    }
    Ok(())
}
