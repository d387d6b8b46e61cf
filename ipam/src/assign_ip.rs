//! Assignment of one explicit address: [`AssignIp`]. Selectors and reservations do not matter:
//! somebody chose this address. A block that nobody has is claimed for the node, within the limit
//! that somebody configured; Calico's default of 20 blocks, which only ends a search there, does
//! not stand in the way of a choice. The block is guessed to be of the default size and read
//! together with everything else.
//!
//! A workload that was killed without a DEL holds its address under the handle of a container that
//! is no more. Asked to, the machine takes the address over for the same workload's next container
//! on the same node (decision 0175).

use caracal_model::{
    AffinityState, AllocationAttribute, Block, BlockOwner, ENDPOINT_ATTRIBUTE, Family, HandleId,
    INTERFACE_ATTRIBUTE, Key, KeyRange, Kind, PoolName, Prefix, Timestamp, Txn, default_block_len,
};

use crate::allocation::{Allocation, Purpose};
use crate::assign::check_names;
use crate::block;
use crate::error::AssignIpError;
use crate::handle;
use crate::pools::{self, Candidate, PoolRefusal};
use crate::request::{AssignIpRequest, Assignment, attribute};
use crate::step::{Input, Machine, Step};
use crate::txn_builder::TxnBuilder;
use crate::view::{self, IpamData, Known};

/// An explicit assignment.
#[derive(Clone, Debug)]
pub struct AssignIp {
    request: AssignIpRequest,
    now: Timestamp,
    takes_over: bool,
    view: IpamData,
    state: AssignIpState,
}

#[derive(Clone, Debug)]
enum AssignIpState {
    Idle,
    Reading(Vec<KeyRange>),
    Claiming(Txn),
    Taking(Assignment),
}

type AssignIpStep = Step<Assignment, AssignIpError>;

impl Machine for AssignIp {
    type Output = Assignment;
    type Error = AssignIpError;

    fn step(&mut self, seen: Input) -> AssignIpStep {
        match (
            std::mem::replace(&mut self.state, AssignIpState::Idle),
            seen,
        ) {
            (AssignIpState::Reading(asked), Input::Read(reading)) => {
                self.view.absorb(&asked, reading);
                self.view.collect(self.now);
                self.decide().unwrap_or_else(Step::Failed)
            }
            (AssignIpState::Claiming(txn), Input::Committed(revision)) => {
                self.view.apply(&txn, revision);
                self.decide().unwrap_or_else(Step::Failed)
            }
            (AssignIpState::Taking(assignment), Input::Committed(_)) => Step::Done(assignment),
            _ => self.begin(),
        }
    }
}

impl AssignIp {
    /// A request at a point in time.
    #[must_use]
    pub fn new(request: AssignIpRequest, now: Timestamp) -> Self {
        Self {
            request,
            now,
            takes_over: false,
            view: IpamData::default(),
            state: AssignIpState::Idle,
        }
    }

    /// The address may be taken from an earlier container of the same workload on the same node:
    /// the caller has seen that its interface is gone.
    #[must_use]
    pub const fn taking_over(mut self) -> Self {
        self.takes_over = true;
        self
    }

    fn begin(&mut self) -> AssignIpStep {
        let request = &self.request;
        if let Err(fault) = check_names(&request.handle, &request.node, request.usage) {
            return Step::Failed(AssignIpError::Request(fault));
        }
        self.view = IpamData::default();
        let handle = Key::Handle(request.handle.clone());
        let (address, family) = (request.address, Family::of(request.address));
        let guess = Prefix::truncated(address, default_block_len(family));
        self.read(vec![
            view::key(&Key::IpamConfig),
            view::kind(Kind::IpPool),
            view::key(&handle),
            view::affinities(&request.owner(), family),
            view::key(&Key::Block(guess)),
        ])
    }

    fn read(&mut self, ranges: Vec<KeyRange>) -> AssignIpStep {
        self.state = AssignIpState::Reading(ranges.clone());
        Step::Read(ranges)
    }

    fn decide(&mut self) -> Result<AssignIpStep, AssignIpError> {
        let handle = Key::Handle(self.request.handle.clone());
        self.view.readable(&[Key::IpamConfig, handle])?;
        let pool = self.pool()?;
        let cidr = Prefix::truncated(self.request.address, pool.block_len);
        self.view.readable(&[Key::Block(cidr)])?;
        let owner = self.request.owner();
        self.view.readable(&[Key::Affinity(owner.clone(), cidr)])?;
        match self.view.block(cidr) {
            Known::Unknown | Known::Unreadable => Ok(self.read(vec![view::key(&Key::Block(cidr))])),
            Known::Present(known) => {
                let value = known.value.clone();
                self.take(value, &pool.name, &owner)
            }
            Known::Absent => {
                let key = (owner.clone(), cidr);
                let state = self.view.affinities.get(&key).map(|a| a.value.state);
                self.within_limit(&owner, cidr)?;
                if state != Some(AffinityState::Pending) {
                    let mut txn = TxnBuilder::default();
                    txn.put_affinity(&self.view, &owner, cidr, AffinityState::Pending);
                    let txn = txn.into_txn();
                    self.state = AssignIpState::Claiming(txn.clone());
                    return Ok(Step::Commit(txn));
                }
                let value = block::create(cidr, &owner, self.now);
                self.take(value, &pool.name, &owner)
            }
        }
    }

    /// Refuses a further block to a host that has as many as somebody configured.
    fn within_limit(&self, owner: &BlockOwner, cidr: Prefix) -> Result<(), AssignIpError> {
        let limit = self.view.config().max_blocks_per_host;
        let own = self.view.affinities_of(owner, cidr.family());
        let held = own.iter().filter(|(held, _)| *held != cidr).count();
        if limit > 0 && u32::try_from(held).map_or(true, |held| held >= limit) {
            return Err(AssignIpError::BlockLimit {
                address: self.request.address,
                block: cidr,
                node: self.request.node.clone(),
                limit,
            });
        }
        Ok(())
    }

    fn pool(&self) -> Result<Candidate, AssignIpError> {
        let address = self.request.address;
        let covering = self.view.pool_of(&Prefix::host(address));
        let (name, pool) = covering.ok_or(AssignIpError::OutsidePools { address })?;
        let refused = |refusal| AssignIpError::Pool {
            address,
            pool: name.clone(),
            refusal,
        };
        pools::usable(pool).map_err(refused)?;
        if !pool.spec.allows(self.request.usage) {
            return Err(refused(PoolRefusal::Use(self.request.usage)));
        }
        Ok(Candidate::new(name, pool))
    }

    fn take(
        &mut self,
        mut value: Block,
        pool: &PoolName,
        owner: &BlockOwner,
    ) -> Result<AssignIpStep, AssignIpError> {
        let request = &self.request;
        let (address, cidr) = (request.address, value.cidr);
        let own = value.owner().as_ref() == Some(owner);
        if !own && self.view.config().strict_affinity {
            return Err(AssignIpError::ForeignBlock {
                address,
                block: cidr,
                owner: value.affinity.unwrap_or_else(|| "nobody".to_owned()),
                node: request.node.clone(),
            });
        }
        let attribute = attribute(
            &request.node,
            &request.handle,
            &request.attributes,
            request.usage,
            self.now,
        );
        let mut txn = TxnBuilder::default();
        let sequence = match block::take_address(&mut value, address, &attribute) {
            Ok(sequence) => sequence,
            Err(holder) => {
                let Some(earlier) = self.predecessor(&value) else {
                    return Err(self.taken(holder));
                };
                let key = Key::Handle(earlier.clone());
                self.view.readable(std::slice::from_ref(&key))?;
                if !self.view.was_asked(&key) {
                    return Ok(self.read(vec![view::key(&key)]));
                }
                if let Some(known) = self.view.handles.get(&earlier) {
                    let mut left = known.value.clone();
                    handle::remove(&mut left, cidr, 1);
                    txn.put_handle(&earlier, Some(known), &left);
                }
                let Some(ordinal) = value.ordinal(address) else {
                    return Err(self.taken(holder));
                };
                block::take_over(&mut value, ordinal, &attribute)
            }
        };
        let id = &request.handle;
        let known = self.view.handles.get(id);
        let mut held = known.map(|k| k.value.clone()).unwrap_or_default();
        held.deleted = false;
        handle::add(&mut held, cidr, 1);
        txn.put_handle(id, known, &held);
        txn.put_block(&self.view, value);
        let key = (owner.clone(), cidr);
        let state = self.view.affinities.get(&key).map(|a| a.value.state);
        if own && state != Some(AffinityState::Confirmed) {
            txn.put_affinity(&self.view, owner, cidr, AffinityState::Confirmed);
        }
        self.state = AssignIpState::Taking(Assignment {
            address,
            block: cidr,
            pool: pool.clone(),
            borrowed: !own,
            sequence,
        });
        Ok(Step::Commit(txn.into_txn()))
    }

    /// The handle of an earlier container of the same workload on the same node, where that is the
    /// holder and may be followed. The caller has seen that the workload's interface is no other
    /// container's, and that no route leads to the address. What the holder's entry says decides
    /// whose the address is:
    ///
    /// * Our plugin's names endpoint and interface: both are the same.
    /// * Calico's plugin's names namespace and pod: both are the same. Calico's plugin gives the
    ///   host's end of a pod's `eth0` the name that we give it, so the look at the interface counts
    ///   there, too. Of a further interface only the route tells whether it lives.
    ///
    /// An address of another main plugin, of a virtual machine or of a tunnel is never taken over.
    fn predecessor(&self, block: &Block) -> Option<HandleId> {
        const WIRING: [&str; 2] = [ENDPOINT_ATTRIBUTE, INTERFACE_ATTRIBUTE];
        const POD: [&str; 2] = ["namespace", "pod"];
        if !self.takes_over {
            return None;
        }
        let request = &self.request;
        let holds = |held: &Allocation| held.address == request.address;
        let holder = Allocation::in_block(block).find(holds)?;
        let is_same = |name: &str| {
            let own = request.attributes.get(name);
            own.is_some() && holder.attributes.get(name) == own
        };
        let is_ours = WIRING
            .iter()
            .any(|name| holder.attributes.contains_key(*name));
        let same_workload = if is_ours {
            WIRING.into_iter().all(is_same)
        } else {
            // Who asks without an interface of ours has not seen that the earlier one is gone.
            let wired = request.attributes.contains_key(INTERFACE_ATTRIBUTE);
            wired && holder.purpose() == Purpose::Workload && POD.into_iter().all(is_same)
        };
        let same_node = holder.node() == Some(request.node.as_str());
        let held = holder.released_at.is_none();
        let earlier = holder.handle.map(HandleId::from);
        earlier.filter(|earlier| held && same_workload && same_node && *earlier != request.handle)
    }

    fn taken(&self, holder: Option<Box<AllocationAttribute>>) -> AssignIpError {
        let address = self.request.address;
        let holder = holder.map_or_else(AllocationAttribute::default, |boxed| *boxed);
        if holder.released_at.is_some() {
            let seconds = self.view.config().ip_cooldown_seconds;
            return AssignIpError::Cooling { address, seconds };
        }
        AssignIpError::Taken {
            address,
            node: holder.node().map(Into::into),
            holder: holder.handle_id.map(HandleId::from),
        }
    }
}
