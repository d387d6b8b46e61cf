//! [`Client`]: drives machines against a [`Store`]. The only place with a real clock and with
//! retries: a lost race is tried again at most [`ATTEMPTS`] times, after a pause that is drawn at
//! random and grows with the races lost and with the time a try takes, so that those who collided
//! do not collide again.

mod logged_store;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use caracal_datastore::{Store, StoreError};
use caracal_model::{BlockOwner, HandleId, NodeName, PoolName, Prefix, Timestamp, TxnOutcome};
use tokio::time::Instant;

use crate::affinity::{AffinityOutcome, ReleaseAffinity};
use crate::assign::Assign;
use crate::assign_ip::AssignIp;
use crate::check::{self, Inconsistency};
use crate::error::{AffinityError, AssignError, AssignIpError, ReleaseError, Unreadable};
use crate::handle_addresses::{HandleAddresses, Held};
use crate::release::{ReleaseHandle, ReleaseIps};
use crate::release_node::{ReleaseNode, ReleaseNodeError, ReleasedNode};
use crate::request::{
    AssignIpRequest, AssignRequest, Assigned, Assignment, ReleaseTarget, Released,
};
use crate::step::{Input, Machine, Reading, Step};
use crate::tunnel::{EnsureTunnel, TunnelKind};
use crate::view::{self, IpamData};

pub use logged_store::LoggedStore;

/// Lost races before giving up, as in Calico.
pub(crate) const ATTEMPTS: u32 = 100;

/// A try is taken to last at least this long: about one round trip to an idle etcd.
const SHORTEST_TRY: Duration = Duration::from_millis(2);

/// The first pause is up to one try long, the next up to two, and so on up to two to this power:
/// then fifty clients on one key leave each other room.
const MOST_DOUBLINGS: u32 = 5;

/// No pause is longer, however slow etcd is.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why a call failed. `E` is the operation's own, final reason.
#[derive(Debug, thiserror::Error)]
pub enum ClientError<E: std::error::Error + 'static> {
    /// The request cannot be met; trying again does not help.
    #[error(transparent)]
    Refused(E),
    /// Others kept changing the same keys.
    #[error(
        "gave up after losing {attempts} races for the same IPAM keys; too many clients change one block at \
         a time: try again later, or use smaller blocks"
    )]
    Contended {
        /// How many.
        attempts: u32,
    },
    /// The datastore failed. A transaction that was under way may have been carried out: release by
    /// handle before trying again.
    #[error("the datastore failed")]
    Store(#[source] StoreError),
}

impl<E: std::error::Error + 'static> ClientError<E> {
    /// True when the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Refused(_) => false,
            Self::Contended { .. } => true,
            Self::Store(error) => error.is_transient(),
        }
    }
}

/// IPAM on a datastore. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client<S> {
    store: S,
}

impl<S: Store> Client<S> {
    /// A client on a store.
    pub const fn new(store: S) -> Self {
        Self { store }
    }

    /// Takes addresses: all that are asked for, or none.
    ///
    /// # Errors
    /// [`ClientError`], with [`AssignError`] when the request cannot be met.
    pub async fn auto_assign(
        &self,
        request: AssignRequest,
    ) -> Result<Assigned, ClientError<AssignError>> {
        let handle = request.handle.clone();
        let assigned = self.drive(Assign::new(request, now())).await?;
        tracing::debug!(%handle, revision = assigned.revision, "assigned {:?}",
            assigned.all().map(|a| a.address).collect::<Vec<_>>());
        Ok(assigned)
    }

    /// Takes one explicit address.
    ///
    /// # Errors
    /// [`ClientError`], with [`AssignIpError`] when it cannot be had.
    pub async fn assign_ip(
        &self,
        request: AssignIpRequest,
    ) -> Result<Assignment, ClientError<AssignIpError>> {
        self.drive(AssignIp::new(request, now())).await
    }

    /// Takes one explicit address, also from an earlier container of the same workload on the same
    /// node; the caller has seen that its interface is gone.
    ///
    /// # Errors
    /// [`ClientError`], with [`AssignIpError`] when it cannot be had.
    pub async fn take_over_ip(
        &self,
        request: AssignIpRequest,
    ) -> Result<Assignment, ClientError<AssignIpError>> {
        self.drive(AssignIp::new(request, now()).taking_over())
            .await
    }

    /// Releases all addresses of a handle. A handle that does not exist releases nothing. Blocks of
    /// `hints` may save a round trip and may be empty.
    ///
    /// # Errors
    /// [`ClientError`], with [`Unreadable`] when stored data does not parse.
    pub async fn release_by_handle(
        &self,
        handle: &HandleId,
        hints: &[Prefix],
    ) -> Result<Released, ClientError<Unreadable>> {
        let machine = ReleaseHandle::new(handle.clone(), hints.to_vec(), now());
        self.drive(machine).await
    }

    /// Releases addresses. Those that nobody holds are returned as unknown.
    ///
    /// # Errors
    /// [`ClientError`], with [`ReleaseError`] when a condition does not hold.
    pub async fn release_ips(
        &self,
        targets: Vec<ReleaseTarget>,
    ) -> Result<Released, ClientError<ReleaseError>> {
        self.drive(ReleaseIps::new(targets, now())).await
    }

    /// The addresses held through a handle, with their blocks; empty when it does not exist.
    ///
    /// # Errors
    /// [`ClientError`], with [`Unreadable`] when stored data does not parse.
    pub async fn addresses_of(
        &self,
        handle: &HandleId,
    ) -> Result<Vec<Held>, ClientError<Unreadable>> {
        self.drive(HandleAddresses::new(handle.clone())).await
    }

    /// The address that a node's tunnel device must have; `None` when no pool needs that device.
    /// Keeps an address that is still good, takes a new one, or releases. The caller writes it to
    /// the Node and then calls again, which releases what the Node had before. `in_use`: the pools
    /// of which workloads of any node have addresses.
    ///
    /// # Errors
    /// [`ClientError`], with [`AssignError`] when there is no address.
    pub async fn ensure_tunnel_address(
        &self,
        kind: TunnelKind,
        node: &NodeName,
        in_use: &BTreeSet<PoolName>,
    ) -> Result<Option<IpAddr>, ClientError<AssignError>> {
        let machine = EnsureTunnel::new(kind, node.clone(), now());
        let machine = machine.with_pools_in_use(in_use.clone());
        self.drive(machine).await
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// [`ClientError`], with [`AffinityError`] when it must be empty and is not.
    pub async fn release_block_affinity(
        &self,
        owner: &BlockOwner,
        block: Prefix,
        must_be_empty: bool,
    ) -> Result<AffinityOutcome, ClientError<AffinityError>> {
        let machine = ReleaseAffinity::new(owner.clone(), block, must_be_empty, now());
        self.drive(machine).await
    }

    /// Releases all that a node holds: addresses used by it, wherever they are, and its blocks. For
    /// a node that is gone for good.
    ///
    /// # Errors
    /// [`ClientError`], with [`ReleaseNodeError`] when stored data is unreadable.
    pub async fn release_node(
        &self,
        node: &NodeName,
    ) -> Result<ReleasedNode, ClientError<ReleaseNodeError>> {
        self.drive(ReleaseNode::new(node.clone(), now())).await
    }

    /// All of IPAM's data at one revision.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn view(&self) -> Result<IpamData, StoreError> {
        let ranges = view::all_ranges();
        let answer = self.store.read(&ranges).await?;
        let mut view = IpamData::default();
        view.absorb(&ranges, reading(answer));
        Ok(view)
    }

    /// Checks the data for inconsistencies; empty when all is well.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn check(&self) -> Result<Vec<Inconsistency>, StoreError> {
        Ok(check::check(&self.view().await?, now()))
    }

    /// Carries out a machine's wishes until it is done, has failed, or lost too often.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn drive<M: Machine>(
        &self,
        mut machine: M,
    ) -> Result<M::Output, ClientError<M::Error>>
    where
        M::Error: std::error::Error + 'static,
    {
        let mut lost = 0;
        let mut seen = Input::Start;
        let mut start = Instant::now();
        loop {
            seen = match machine.step(seen) {
                Step::Done(output) => return Ok(output),
                Step::Failed(error) => return Err(ClientError::Refused(error)),
                Step::Read(ranges) => {
                    let answer = self.store.read(&ranges).await;
                    Input::Read(reading(answer.map_err(ClientError::Store)?))
                }
                Step::Commit(txn) => match self.store.commit(&txn).await {
                    Ok(TxnOutcome::Committed(revision)) => Input::Committed(revision),
                    Ok(TxnOutcome::Conflict) => Input::Conflict,
                    Err(error) => return Err(ClientError::Store(error)),
                },
            };
            if seen == Input::Conflict {
                lost += 1;
                if lost >= ATTEMPTS {
                    return Err(ClientError::Contended { attempts: lost });
                }
                tokio::time::sleep(pause(lost, start.elapsed())).await;
                start = Instant::now();
            }
        }
    }
}

fn reading(answer: caracal_datastore::ReadAnswer) -> Reading {
    Reading {
        revision: answer.revision,
        ranges: answer.ranges,
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Anything up to a ceiling ("full jitter"): of those who wait, some come early and the rest stay
/// out of their way.
fn pause(lost: u32, one_try: Duration) -> Duration {
    let ceiling = one_try
        .max(SHORTEST_TRY)
        .saturating_mul(1 << (lost - 1).min(MOST_DOUBLINGS))
        .min(LONGEST_PAUSE);
    // The keys of a RandomState are random: that is all the randomness needed here.
    let random = u32::try_from(RandomState::new().hash_one(lost) >> 32).unwrap_or_default();
    ceiling.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_races_and_tries_up_to_a_limit_and_differ() {
        for (lost, one_try, most) in [
            (1, 0, 2),
            (2, 0, 4),
            (6, 1, 64),
            (99, 1, 64),
            (1, 30, 30),
            (3, 30, 120),
            (99, 30, 960),
            (6, 500, 1000),
        ] {
            let (one_try, most) = (Duration::from_millis(one_try), Duration::from_millis(most));
            let pauses: Vec<_> = (0..50).map(|_| pause(lost, one_try)).collect();
            assert!(pauses.iter().all(|p| *p <= most), "{lost}: {pauses:?}");
            assert!(pauses.iter().any(|p| *p > most / 2), "{lost}: {pauses:?}");
            assert!(pauses.iter().any(|p| *p < most / 2), "{lost}: {pauses:?}");
        }
    }
}
