//! Addresses of a node's tunnel devices, under Calico's handles: [`EnsureTunnel`]. Decides which
//! address the Node should name, and takes or releases; writing it into the Node is the caller's.

mod kind;

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_model::{
    AllocationAttribute, AllowedUse, Block, Family, HandleId, IpPool, IpamHandle, Key, KeyRange,
    Kind, NodeName, PoolName, Prefix, Timestamp,
};

use crate::assign::Assign;
use crate::error::{AssignError, MAX_BLOCKS, ReleaseError};
use crate::release::{ReleaseHandle, ReleaseIps};
use crate::request::{AssignRequest, ReleaseTarget};
use crate::step::{Input, Machine, Step};
use crate::txn_builder::TxnBuilder;
use crate::view::{self, IpamData};
use crate::{block, handle};
pub use kind::TunnelKind;

/// Finds the address that a node's tunnel device must have.
#[derive(Clone, Debug)]
pub struct EnsureTunnel {
    kind: TunnelKind,
    node: NodeName,
    now: Timestamp,
    /// Pools of which workloads have addresses.
    in_use: BTreeSet<PoolName>,
    view: IpamData,
    state: EnsureTunnelState,
}

#[derive(Clone, Debug)]
enum EnsureTunnelState {
    Idle,
    Reading(Vec<KeyRange>),
    /// Taking a new address.
    Assigning(Box<Assign>),
    /// Releasing everything: no pool qualifies.
    Releasing(Box<ReleaseHandle>),
    /// Releasing what is left over beside this address.
    Cleaning(Box<ReleaseIps>, IpAddr),
    /// Putting an old, nameless allocation under the handle.
    Adopting(IpAddr),
}

type EnsureTunnelStep = Step<Option<IpAddr>, AssignError>;

impl EnsureTunnel {
    /// For a node, at a point in time.
    #[must_use]
    pub fn new(kind: TunnelKind, node: NodeName, now: Timestamp) -> Self {
        Self {
            kind,
            node,
            now,
            in_use: BTreeSet::new(),
            view: IpamData::default(),
            state: EnsureTunnelState::Idle,
        }
    }

    /// Names the pools of which workloads of any node have addresses: while no pool lends a new
    /// one, an address of theirs stays (decision 0168).
    #[must_use]
    pub fn with_pools_in_use(mut self, in_use: BTreeSet<PoolName>) -> Self {
        self.in_use = in_use;
        self
    }

    fn begin(&mut self) -> EnsureTunnelStep {
        self.view = IpamData::default();
        self.read(vec![
            view::key(&Key::IpamConfig),
            view::kind(Kind::IpPool),
            view::key(&Key::node(&self.node)),
            view::key(&Key::Handle(self.kind.handle(&self.node))),
        ])
    }

    fn read(&mut self, ranges: Vec<KeyRange>) -> EnsureTunnelStep {
        self.state = EnsureTunnelState::Reading(ranges.clone());
        Step::Read(ranges)
    }

    fn decide(&mut self) -> Result<EnsureTunnelStep, AssignError> {
        let id = self.kind.handle(&self.node);
        self.view
            .readable(&[Key::IpamConfig, Key::Handle(id.clone())])?;
        let Some(node) = self.view.nodes.get(&self.node) else {
            let node = self.node.clone();
            return Err(AssignError::UnknownNode { node });
        };
        let lenders: Vec<(&PoolName, &IpPool)> = self
            .view
            .pools
            .iter()
            .filter(|(_, pool)| self.kind.qualifies(pool, &node.labels))
            .filter(|_| {
                let node = node.node.as_ref();
                !self.kind.is_wireguard() || node.is_some_and(|node| self.kind.is_wanted_by(node))
            })
            .collect();
        let names: Vec<String> = lenders.iter().map(|(n, _)| n.to_string()).collect();
        let qualifying = match lenders.is_empty() {
            true => self.keepers(),
            false => lenders,
        };
        if qualifying.is_empty() {
            let release = ReleaseHandle::new(id, Vec::new(), self.now);
            return Ok(self.releasing(release, Input::Start));
        }
        let current = node.node.as_ref().and_then(|n| self.kind.current(n));
        let current =
            current.filter(|a| qualifying.iter().any(|(_, p)| p.spec.prefix().contains(*a)));
        let handle = self.view.handles.get(&id).map(|h| &h.value);
        let wanted = self.blocks(current, handle);
        let unknown = self.view.unread_blocks(&wanted);
        if !unknown.is_empty() {
            return Ok(self.read(unknown));
        }
        if let Some(address) = current
            && let Some(txn) = self.adoption(address, &id)
        {
            self.state = EnsureTunnelState::Adopting(address);
            return Ok(Step::Commit(txn.into_txn()));
        }
        let (good, left_over) = self.held(&wanted, &id, &qualifying);
        let kept = current.filter(|a| good.contains(a));
        // A host that died between taking an address and writing it into the Node finds it again.
        match kept.or_else(|| good.first().copied()) {
            Some(address) => {
                let stale = good.iter().copied().filter(|a| *a != address);
                let stale: Vec<IpAddr> = stale.chain(left_over).collect();
                Ok(self.clean(address, stale, &id))
            }
            // A pool that lends nothing new lends nothing here either.
            None if names.is_empty() => {
                let release = ReleaseHandle::new(id, Vec::new(), self.now);
                Ok(self.releasing(release, Input::Start))
            }
            None => Ok(self.assign(names, id)),
        }
    }

    /// The pools that lend no new address and of which the one that is held stays: all that this
    /// kind carries, as long as workloads of one of them need the tunnel.
    fn keepers(&self) -> Vec<(&PoolName, &IpPool)> {
        let pools = self.view.pools.iter();
        let carried: Vec<_> = pools.filter(|(_, pool)| self.kind.carries(pool)).collect();
        let is_used = carried.iter().any(|(name, _)| self.in_use.contains(*name));
        match is_used && !self.kind.is_wireguard() {
            true => carried,
            false => Vec::new(),
        }
    }

    /// Blocks that may hold an address of ours: those of the handle, and the one of the Node's
    /// address.
    fn blocks(&self, current: Option<IpAddr>, handle: Option<&IpamHandle>) -> Vec<Prefix> {
        let mut cidrs: Vec<Prefix> = handle
            .into_iter()
            .flat_map(|handle| handle.block.keys().copied())
            .take(MAX_BLOCKS)
            .collect();
        let current = current.and_then(|address| {
            let (_, pool) = self.view.pool_of(&Prefix::host(address))?;
            Some(Prefix::truncated(address, pool.spec.block_len()))
        });
        cidrs.extend(current.filter(|cidr| !cidrs.contains(cidr)));
        cidrs
    }

    /// The allocation that this kind of device on this node has.
    fn wanted_attribute(&self, id: &HandleId) -> AllocationAttribute {
        AllocationAttribute {
            handle_id: Some(id.to_string()),
            secondary: [
                ("node".to_owned(), self.node.to_string()),
                ("type".to_owned(), self.kind.attribute().to_owned()),
            ]
            .into(),
            ..AllocationAttribute::default()
        }
    }

    /// Addresses of the handle: in qualifying pools, with the right attributes; and the others.
    fn held(
        &self,
        blocks: &[Prefix],
        id: &HandleId,
        qualifying: &[(&PoolName, &IpPool)],
    ) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let blocks = blocks.iter().filter_map(|cidr| self.view.blocks.get(cidr));
        blocks
            .flat_map(|known| known.value.allocated())
            .filter(|(_, _, attribute)| attribute.handle_id.as_deref() == Some(id.as_str()))
            .map(|(_, address, attribute)| (address, attribute))
            .fold(
                (Vec::new(), Vec::new()),
                |mut lists, (address, attribute)| {
                    let right = attribute.usage() == Some(self.kind.attribute())
                        && attribute.node() == Some(self.node.as_str())
                        && qualifying
                            .iter()
                            .any(|(_, pool)| pool.spec.prefix().contains(address));
                    let list = if right { &mut lists.0 } else { &mut lists.1 };
                    list.push(address);
                    lists
                },
            )
    }

    /// Very old nodes took the address without handle or attributes: put it under the handle.
    fn adoption(&self, address: IpAddr, id: &HandleId) -> Option<TxnBuilder> {
        let mut blocks = self.view.blocks.values();
        let known = blocks.find(|known| known.value.cidr.contains(address))?;
        let mut value: Block = known.value.clone();
        let (ordinal, _, attribute) = value.allocated().find(|(_, a, _)| *a == address)?;
        let nameless = attribute.handle_id.is_none()
            && attribute.secondary.is_empty()
            && attribute.released_at.is_none();
        if !nameless {
            return None;
        }
        block::adopt(&mut value, ordinal, &self.wanted_attribute(id));
        let mut txn = TxnBuilder::default();
        let known = self.view.handles.get(id);
        let mut held = known.map(|k| k.value.clone()).unwrap_or_default();
        handle::add(&mut held, value.cidr, 1);
        txn.put_handle(id, known, &held);
        txn.put_block(&self.view, value);
        Some(txn)
    }

    /// Releases what is held beside `address`. The address that the Node still names stays until
    /// the Node names this one, so that nobody else gets it while it is in use.
    fn clean(
        &mut self,
        address: IpAddr,
        mut stale: Vec<IpAddr>,
        id: &HandleId,
    ) -> EnsureTunnelStep {
        let node = self.view.nodes.get(&self.node);
        let named = node.and_then(|n| self.kind.current(n.node.as_ref()?));
        stale.retain(|a| Some(*a) != named);
        if stale.is_empty() {
            return Step::Done(Some(address));
        }
        let targets = stale.into_iter().map(|address| ReleaseTarget {
            address,
            handle: Some(id.clone()),
            sequence: None,
        });
        let release = ReleaseIps::new(targets.collect(), self.now);
        self.cleaning(release, address, Input::Start)
    }

    fn assign(&mut self, pools: Vec<String>, handle: HandleId) -> EnsureTunnelStep {
        let mut request = AssignRequest::workload(self.node.clone(), handle);
        request.usage = AllowedUse::Tunnel;
        request.attributes = [("type".to_owned(), self.kind.attribute().to_owned())].into();
        match self.kind.family() {
            Family::Ipv4 => request.pools_v4 = pools,
            Family::Ipv6 => {
                request.pools_v6 = pools;
                (request.num_v4, request.num_v6) = (0, 1);
            }
        }
        self.assigning(Assign::new(request, self.now), Input::Start)
    }

    fn assigning(&mut self, mut machine: Assign, seen: Input) -> EnsureTunnelStep {
        let step = machine.step(seen);
        self.state = EnsureTunnelState::Assigning(Box::new(machine));
        step.map(|a| a.all().map(|one| one.address).next(), |error| error)
    }

    fn releasing(&mut self, mut machine: ReleaseHandle, seen: Input) -> EnsureTunnelStep {
        let step = machine.step(seen);
        self.state = EnsureTunnelState::Releasing(Box::new(machine));
        step.map(|_| None, AssignError::Unreadable)
    }

    fn cleaning(
        &mut self,
        mut machine: ReleaseIps,
        address: IpAddr,
        seen: Input,
    ) -> EnsureTunnelStep {
        match machine.step(seen) {
            // Released and taken by somebody else meanwhile: nothing of ours is left to release.
            Step::Failed(ReleaseError::OtherHandle { .. } | ReleaseError::OtherSequence { .. })
            | Step::Done(_) => Step::Done(Some(address)),
            Step::Failed(ReleaseError::Unreadable(key)) => Step::Failed(key.into()),
            Step::Read(ranges) => {
                self.state = EnsureTunnelState::Cleaning(Box::new(machine), address);
                Step::Read(ranges)
            }
            Step::Commit(txn) => {
                self.state = EnsureTunnelState::Cleaning(Box::new(machine), address);
                Step::Commit(txn)
            }
        }
    }
}

impl Machine for EnsureTunnel {
    type Output = Option<IpAddr>;
    type Error = AssignError;

    fn step(&mut self, seen: Input) -> EnsureTunnelStep {
        match (
            std::mem::replace(&mut self.state, EnsureTunnelState::Idle),
            seen,
        ) {
            (_, Input::Start) | (EnsureTunnelState::Idle, _) => self.begin(),
            (EnsureTunnelState::Reading(asked), Input::Read(reading)) => {
                self.view.absorb(&asked, reading);
                self.decide().unwrap_or_else(Step::Failed)
            }
            (EnsureTunnelState::Assigning(machine), seen) => self.assigning(*machine, seen),
            (EnsureTunnelState::Releasing(machine), seen) => self.releasing(*machine, seen),
            (EnsureTunnelState::Cleaning(machine, address), seen) => {
                self.cleaning(*machine, address, seen)
            }
            (EnsureTunnelState::Adopting(address), Input::Committed(_)) => {
                Step::Done(Some(address))
            }
            (EnsureTunnelState::Reading(_) | EnsureTunnelState::Adopting(_), _) => self.begin(),
        }
    }
}
