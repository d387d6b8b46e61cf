//! Release of a node that is gone for good, and of its data: [`ReleaseNode`]. Every address whose
//! attributes name the node is released wherever it lies, then its blocks are given back. Whoever
//! calls this has made sure that the node is gone; nothing here looks for signs of life.

use std::net::IpAddr;

use caracal_model::{BlockOwner, Family, HandleId, NodeName, Prefix, Timestamp};

use crate::affinity::ReleaseAffinity;
use crate::error::{AffinityError, ReleaseError};
use crate::release::ReleaseIps;
use crate::request::ReleaseTarget;
use crate::step::{Input, Machine, Step};
use crate::view::{self, IpamData};

/// Addresses of one release; more would be cut into several transactions anyway.
const BATCH: usize = 40;

/// Data that was released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleasedNode {
    /// Addresses that the node held, in any pool.
    pub addresses: Vec<IpAddr>,
    /// Blocks that the node had an affinity to.
    pub blocks: Vec<Prefix>,
}

/// Why a node's data could not be released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseNodeError {
    /// While releasing addresses.
    #[error(transparent)]
    Addresses(ReleaseError),
    /// While giving blocks back.
    #[error(transparent)]
    Blocks(AffinityError),
}

/// Releases all that a node holds.
#[derive(Clone, Debug)]
pub struct ReleaseNode {
    node: NodeName,
    now: Timestamp,
    state: ReleaseNodeState,
    targets: Vec<ReleaseTarget>,
    affinities: Vec<(BlockOwner, Prefix)>,
    left: ReleasedNode,
}

#[derive(Clone, Debug)]
enum ReleaseNodeState {
    Idle,
    Reading,
    Addresses(Box<ReleaseIps>),
    Blocks(Box<ReleaseAffinity>, Prefix),
}

type ReleaseNodeStep = Step<ReleasedNode, ReleaseNodeError>;

impl ReleaseNode {
    /// For a node that is gone.
    #[must_use]
    pub const fn new(node: NodeName, now: Timestamp) -> Self {
        Self {
            node,
            now,
            state: ReleaseNodeState::Idle,
            targets: Vec::new(),
            affinities: Vec::new(),
            left: ReleasedNode {
                addresses: Vec::new(),
                blocks: Vec::new(),
            },
        }
    }

    fn survey(&mut self, view: &IpamData) {
        self.targets = view
            .blocks
            .values()
            .flat_map(|known| {
                let numbers = &known.value.sequence_number_for_allocation;
                known.value.allocated().map(move |found| (found, numbers))
            })
            .filter(|((_, _, attribute), _)| attribute.node() == Some(self.node.as_str()))
            .map(|((ordinal, address, attribute), numbers)| ReleaseTarget {
                address,
                handle: attribute.handle_id.as_deref().map(HandleId::from),
                sequence: numbers.get(&ordinal.to_string()).copied(),
            })
            .collect();
        let owner = BlockOwner::Host(self.node.clone());
        let mut blocks: Vec<Prefix> = view
            .affinities
            .keys()
            .filter(|(holder, _)| *holder == owner)
            .map(|(_, cidr)| *cidr)
            .collect();
        // A block may name the node though the affinity is gone.
        let named = view.blocks.values();
        let named = named.filter(|known| known.value.owner().as_ref() == Some(&owner));
        blocks.extend(named.map(|known| known.value.cidr));
        blocks.sort_unstable();
        blocks.dedup();
        self.affinities = blocks.into_iter().map(|c| (owner.clone(), c)).collect();
    }

    fn next(&mut self) -> ReleaseNodeStep {
        if !self.targets.is_empty() {
            let batch = self.targets.len().min(BATCH);
            let targets = self.targets.drain(..batch).collect();
            let machine = Box::new(ReleaseIps::new(targets, self.now));
            return self.addresses(machine, Input::Start);
        }
        match self.affinities.pop() {
            Some((owner, cidr)) => {
                let machine = ReleaseAffinity::new(owner, cidr, false, self.now);
                self.blocks(Box::new(machine), cidr, Input::Start)
            }
            None => Step::Done(std::mem::take(&mut self.left)),
        }
    }

    fn addresses(&mut self, mut machine: Box<ReleaseIps>, seen: Input) -> ReleaseNodeStep {
        match machine.step(seen) {
            Step::Done(released) => {
                self.left.addresses.extend(released.addresses);
                self.next()
            }
            // Released and taken by another since the survey: look again at what is left.
            Step::Failed(ReleaseError::OtherHandle { .. } | ReleaseError::OtherSequence { .. }) => {
                self.begin()
            }
            step => {
                self.state = ReleaseNodeState::Addresses(machine);
                step.map(|_| ReleasedNode::default(), ReleaseNodeError::Addresses)
            }
        }
    }

    fn blocks(
        &mut self,
        mut machine: Box<ReleaseAffinity>,
        cidr: Prefix,
        seen: Input,
    ) -> ReleaseNodeStep {
        match machine.step(seen) {
            Step::Done(_) => {
                self.left.blocks.push(cidr);
                self.next()
            }
            step => {
                self.state = ReleaseNodeState::Blocks(machine, cidr);
                step.map(|_| ReleasedNode::default(), ReleaseNodeError::Blocks)
            }
        }
    }

    fn begin(&mut self) -> ReleaseNodeStep {
        let owner = BlockOwner::Host(self.node.clone());
        let ranges = [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .flat_map(|f| [view::blocks(f), view::affinities(&owner, f)]);
        self.state = ReleaseNodeState::Reading;
        Step::Read(ranges.collect())
    }
}

impl Machine for ReleaseNode {
    type Output = ReleasedNode;
    type Error = ReleaseNodeError;

    fn step(&mut self, seen: Input) -> ReleaseNodeStep {
        match (
            std::mem::replace(&mut self.state, ReleaseNodeState::Idle),
            seen,
        ) {
            (ReleaseNodeState::Reading, Input::Read(reading)) => {
                let mut view = IpamData::default();
                view.absorb(&[], reading);
                self.survey(&view);
                self.next()
            }
            (ReleaseNodeState::Addresses(machine), seen) => self.addresses(machine, seen),
            (ReleaseNodeState::Blocks(machine, cidr), seen) => self.blocks(machine, cidr, seen),
            (ReleaseNodeState::Idle | ReleaseNodeState::Reading, _) => self.begin(),
        }
    }
}
