//! The machine that takes and renews the lease of a node: read, decide, one transaction. Renewal,
//! the way back after an outage and the first start are one and the same.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use caracal_model::{Family, KeyRange, LeasedTxn, LeasedValue, Mac, Prefix, Txn};

use crate::config::{Backend, FlannelConfig, SubnetRange, VXLAN_PORT};
use crate::free::{CHOICE, free_subnets};
use crate::lease::{NodeSubnets, SubnetLease, Vtep};

/// Flannel's keys in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlannelKeys {
    prefix: String,
}

impl FlannelKeys {
    /// The keys below a prefix, such as `/coreos.com/network`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.trim_end_matches('/').to_owned(),
        }
    }

    /// The key of the network's configuration.
    #[must_use]
    pub fn config(&self) -> String {
        format!("{}/config", self.prefix)
    }

    /// What the keys of all leases begin with.
    #[must_use]
    pub fn leases(&self) -> String {
        format!("{}/subnets/", self.prefix)
    }

    /// The key of a lease.
    #[must_use]
    pub fn lease(&self, subnets: &NodeSubnets) -> String {
        self.leases() + &subnets.to_key()
    }

    /// The subnets that a key names; `None` = it is no lease's.
    #[must_use]
    pub fn subnets(&self, key: &str) -> Option<NodeSubnets> {
        NodeSubnets::parse_key(key.strip_prefix(&self.leases())?)
    }
}

/// MAC address of a VXLAN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceMac {
    /// The device is there and has it.
    Kept(Mac),
    /// The device will be made. What an own lease in etcd says goes before it, so that a machine
    /// that was started anew is found where it was.
    Fresh(Mac),
}

/// What a node wants in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// Where leases are.
    pub keys: FlannelKeys,
    /// The network.
    pub config: FlannelConfig,
    /// Address by which other nodes reach this one; an own lease is known by it.
    pub public_ip: Option<Ipv4Addr>,
    /// The same of IPv6; an own lease is known by it where the network has no IPv4.
    pub public_ipv6: Option<Ipv6Addr>,
    /// MAC address of the device for IPv4, and of that for IPv6.
    pub macs: [DeviceMac; 2],
    /// The devices of the network's backend are there. Until then an own lease of another backend
    /// stays that one's: other nodes send as the lease says.
    pub devices_stand: bool,
    /// Subnets of an earlier time, taken again when they are free.
    pub previous: Option<NodeSubnets>,
    /// What this process wrote last for them; by it the lease is known as ours, whatever addresses
    /// the machine has meanwhile.
    pub written: Option<SubnetLease>,
    /// How long the lease lasts unless it is renewed.
    pub ttl: Duration,
    /// Picks one of many free subnets.
    pub seed: u64,
}

impl AcquireRequest {
    /// True for a lease that this machine wrote when it had another address: its subnets of before,
    /// and the MAC address of a device that is still there.
    fn has_moved(&self, subnets: &NodeSubnets, lease: &SubnetLease) -> bool {
        let families = [Family::Ipv4, Family::Ipv6].into_iter();
        let has_device = families.zip(self.macs).any(|(family, mac)| {
            let said = lease.vtep(family).map(|vtep| vtep.mac);
            matches!(mac, DeviceMac::Kept(mac) if said == Some(mac))
        });
        self.previous == Some(*subnets) && (has_device || self.written.as_ref() == Some(lease))
    }

    /// # Errors
    /// The network has a family of which the node has no address.
    pub(crate) fn check_addresses(&self) -> Result<(), AcquireError> {
        let missing = match (self.config.families(), self.public_ip, self.public_ipv6) {
            (families, None, _) if families.v4 => Family::Ipv4,
            (families, _, None) if families.v6 => Family::Ipv6,
            _ => return Ok(()),
        };
        Err(AcquireError::NoAddress(missing))
    }

    /// What is to be said of this node, where this was said before.
    #[must_use]
    pub fn lease(&self, before: Option<&SubnetLease>) -> SubnetLease {
        let lease = self.lease_of_backend(before);
        match before {
            Some(before) if !self.devices_stand && !self.config.backend.is_that_of(before) => {
                SubnetLease {
                    public_ip: lease.public_ip,
                    public_ipv6: lease.public_ipv6,
                    ..before.clone()
                }
            }
            _ => lease,
        }
    }

    fn lease_of_backend(&self, before: Option<&SubnetLease>) -> SubnetLease {
        let request = self;
        let vtep = |family: Family, mac: DeviceMac| match (&request.config.backend, mac) {
            (Backend::Vxlan(options), mac) => {
                let said = before.and_then(|lease| lease.vtep(family));
                let mac = match (mac, said) {
                    (DeviceMac::Fresh(_), Some(said)) => said.mac,
                    (DeviceMac::Kept(mac) | DeviceMac::Fresh(mac), _) => mac,
                };
                let vni = Some(options.vni);
                let port = (options.port != VXLAN_PORT).then_some(options.port);
                Some(Vtep { vni, mac, port }.to_data())
            }
            (Backend::Ipip { .. } | Backend::Udp { .. } | Backend::HostGw | Backend::Alloc, _) => {
                None
            }
        };
        let families = request.config.families();
        let data = |family, mac| vtep(family, mac).filter(|_| families.has(family));
        let [mac, mac_v6] = request.macs;
        SubnetLease {
            public_ip: request.public_ip.filter(|_| families.v4),
            public_ipv6: request.public_ipv6.filter(|_| families.v6),
            backend_type: request.config.backend.lease_type().to_owned(),
            backend_data: data(Family::Ipv4, mac),
            backend_v6_data: data(Family::Ipv6, mac_v6),
            unknown: before.map(|b| b.unknown.clone()).unwrap_or_default(),
        }
    }
}

/// Where the subnets of a lease came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOrigin {
    /// Our own lease was there.
    Renewed,
    /// Those of an earlier time, which were free.
    Previous,
    /// They were picked.
    Picked,
}

impl LeaseOrigin {
    /// The words in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Renewed => "own lease",
            Self::Previous => "subnet of before",
            Self::Picked => "new subnet",
        }
    }
}

/// The lease of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnLease {
    /// Its subnets.
    pub subnets: NodeSubnets,
    /// The value in etcd.
    pub lease: SubnetLease,
    /// Revision of the value.
    pub revision: i64,
    /// True for a reservation: its key stays without renewal.
    pub reserved: bool,
    /// Where the subnets came from.
    pub origin: LeaseOrigin,
}

/// Why there is no lease. Lost races are never reported here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Every subnet is somebody's.
    #[error(
        "out of subnets: every /{len} of {network} between the first and the last one that may be given out is taken ({leases} leases); leases of nodes that are gone end by themselves, or delete their keys"
    )]
    OutOfSubnets {
        /// All of the cluster's addresses.
        network: Prefix,
        /// Prefix length of a subnet.
        len: u8,
        /// Leases of all nodes.
        leases: usize,
    },
    /// The network has a family of which the node has no address.
    #[error(
        "the network has {0}, and this node has no {0} address: give one with --public-ip or --public-ipv6"
    )]
    NoAddress(Family),
    /// Kubernetes' Node is not as it has to be.
    #[error("node {node:?} {reason}")]
    Node {
        /// Its name.
        node: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The outcome of the machine's last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireInput {
    /// Nothing yet: the first step.
    Start,
    /// All values that were asked for.
    Read {
        /// The revision at which they were read.
        revision: i64,
        /// The values, with their leases.
        values: Vec<LeasedValue>,
    },
    /// The transaction was carried out at this revision.
    Committed(i64),
    /// The transaction found something changed; nothing was written.
    Conflict,
}

/// The next step of the machine.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one at a time, and seldom"
)]
pub enum AcquireStep {
    /// Read these, with their leases.
    Read(KeyRange),
    /// Carry this out.
    Commit(LeasedTxn),
    /// The node has a lease.
    Done(OwnLease),
    /// There is none to be had now.
    Failed(AcquireError),
}

/// Takes or renews the lease of a node. Call [`Acquire::step`] with [`AcquireInput::Start`], carry
/// out what it returns, and call again with the outcome. After an error of the datastore begin
/// anew: it is always safe.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    request: AcquireRequest,
    /// What the transaction under way leads to.
    next: Option<OwnLease>,
}

/// A lease as it was read.
struct Stored<'a> {
    subnets: NodeSubnets,
    value: &'a LeasedValue,
    lease: Option<SubnetLease>,
}

impl Acquire {
    /// A machine at its first step.
    #[must_use]
    pub const fn new(request: AcquireRequest) -> Self {
        Self {
            request,
            next: None,
        }
    }

    /// The next step, given the outcome of the last.
    pub fn step(&mut self, seen: AcquireInput) -> AcquireStep {
        match seen {
            AcquireInput::Read { revision, values } => match self.decide(revision, &values) {
                Ok(step) => step,
                Err(error) => AcquireStep::Failed(error),
            },
            AcquireInput::Committed(revision) => match self.next.take() {
                Some(lease) => AcquireStep::Done(OwnLease { revision, ..lease }),
                None => self.read(),
            },
            AcquireInput::Start => self.read(),
            AcquireInput::Conflict => {
                // Whoever was faster may want the same once more.
                self.request.seed = scramble(self.request.seed);
                self.read()
            }
        }
    }

    fn read(&mut self) -> AcquireStep {
        self.next = None;
        AcquireStep::Read(KeyRange::Prefix(self.request.keys.leases()))
    }

    fn decide(
        &mut self,
        revision: i64,
        values: &[LeasedValue],
    ) -> Result<AcquireStep, AcquireError> {
        let request = &self.request;
        request.check_addresses()?;
        let claim = request.lease_of_backend(None);
        let stored = |value| -> Option<Stored<'_>> {
            let value: &LeasedValue = value;
            Some(Stored {
                subnets: request.keys.subnets(&value.stored.key)?,
                lease: SubnetLease::parse(&value.stored.value).ok(),
                value,
            })
        };
        let leases: Vec<Stored<'_>> = values.iter().filter_map(stored).collect();
        let is_own = |stored: &&Stored<'_>| {
            let lease = stored.lease.as_ref();
            lease.is_some_and(|lease| {
                lease.is_of_same_node(&claim) || request.has_moved(&stored.subnets, lease)
            })
        };
        let mut own: Vec<&Stored<'_>> = leases.iter().filter(is_own).collect();
        // What pods have addresses from goes before what happens to be ours as well.
        own.sort_by_key(|stored| Some(stored.subnets) != request.previous);
        let fitting = own.iter().find(|s| request.config.holds(&s.subnets));
        if let Some(stored) = fitting {
            return Ok(self.renew(stored));
        }
        self.create(revision, &leases, &own)
    }

    /// Writes our own lease again.
    fn renew(&mut self, own: &Stored<'_>) -> AcquireStep {
        let stored = &own.value.stored;
        let reserved = own.value.lease == 0;
        let lease = match &own.lease {
            // Nobody said by what this node is reached.
            Some(before) if reserved && before.backend_type.is_empty() => {
                self.request.lease_of_backend(Some(before))
            }
            before => self.request.lease(before.as_ref()),
        };
        let value = lease.to_json();
        let kept = reserved && value == stored.value;
        let renewed = OwnLease {
            subnets: own.subnets,
            lease,
            revision: stored.mod_revision,
            reserved,
            origin: LeaseOrigin::Renewed,
        };
        if kept {
            return AcquireStep::Done(renewed);
        }
        self.next = Some(renewed);
        AcquireStep::Commit(LeasedTxn {
            txn: Txn::new().update(stored.key.clone(), stored.mod_revision, value),
            ttl: (!reserved).then_some(self.request.ttl),
            unchanged_below: None,
        })
    }

    /// Takes subnets that nobody has; `own` are leases of ours that the network has no use for.
    fn create(
        &mut self,
        revision: i64,
        leases: &[Stored<'_>],
        own: &[&Stored<'_>],
    ) -> Result<AcquireStep, AcquireError> {
        let request = &self.request;
        let (doomed, _reservations): (Vec<&Stored<'_>>, Vec<_>) =
            own.iter().copied().partition(|s| s.value.lease != 0);
        let taken: Vec<NodeSubnets> = leases
            .iter()
            .filter(|l| !doomed.iter().any(|d| d.subnets == l.subnets))
            .map(|l| l.subnets)
            .collect();
        let is_free = |subnets: &NodeSubnets| !taken.iter().any(|t| t.overlap(subnets));
        let previous = request
            .previous
            .filter(|subnets| request.config.holds(subnets) && is_free(subnets));
        let (subnets, origin) = match previous {
            Some(previous) => (previous, LeaseOrigin::Previous),
            None => (pick(request, &taken)?, LeaseOrigin::Picked),
        };
        let lease = self
            .request
            .lease(own.first().and_then(|stored| stored.lease.as_ref()));
        let keys = &self.request.keys;
        let mut txn = Txn::new();
        for stored in doomed.iter().filter(|s| s.subnets != subnets) {
            let stored = &stored.value.stored;
            txn = txn.delete(stored.key.clone(), stored.mod_revision);
        }
        let ttl = Some(self.request.ttl);
        let txn = txn.create(keys.lease(&subnets), lease.to_json());
        // A lease under another key may share addresses with ours: other lengths, another subnet of
        // IPv6. So nobody at all may have written one since we looked (FLANNEL-1).
        let unchanged_below = Some((keys.leases(), revision));
        self.next = Some(OwnLease {
            subnets,
            lease,
            revision: 0,
            reserved: false,
            origin,
        });
        Ok(AcquireStep::Commit(LeasedTxn {
            txn,
            ttl,
            unchanged_below,
        }))
    }
}

fn pick(request: &AcquireRequest, taken: &[NodeSubnets]) -> Result<NodeSubnets, AcquireError> {
    let one = |range: &SubnetRange, family, seed: u64| {
        let taken_of_family = taken.iter().filter_map(|t| t.subnet(family));
        let free = free_subnets(range, taken_of_family, CHOICE);
        let error = AcquireError::OutOfSubnets {
            network: range.network,
            len: range.len,
            leases: taken.len(),
        };
        let count = u64::try_from(free.len()).unwrap_or(u64::MAX);
        let chosen = seed.checked_rem(count).ok_or_else(|| error.clone())?;
        let chosen = usize::try_from(chosen).unwrap_or_default();
        free.get(chosen).copied().ok_or(error)
    };
    let of_family = |family, seed| {
        let range = request.config.range(family);
        range.map(|range| one(range, family, seed)).transpose()
    };
    Ok(NodeSubnets {
        v4: of_family(Family::Ipv4, request.seed)?,
        v6: of_family(Family::Ipv6, scramble(request.seed))?,
    })
}

/// Another number, far from this one (the finalizer of SplitMix64).
const fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
