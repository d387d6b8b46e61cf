//! Operations of hosts, and the exhaustive search through every interleaving of them with a crash
//! at any step. The search keeps one schedule for each end that it found, so that the same
//! histories can be replayed on a real etcd.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;

use caracal_ipam::{
    AffinityWord, Assign, AssignIp, AssignIpRequest, AssignRequest, EnsureTunnel, Inconsistency,
    ReleaseAffinity, ReleaseHandle, ReleaseIps, ReleaseNode, ReleaseTarget, TunnelKind, check,
};
use caracal_model::{AllowedUse, BlockOwner, EncapMode, HandleId, Prefix};

use super::world::actor::{
    Actor, Any, End, counts_too_much, faults, held_by, is_excused, run, view,
};
use super::world::{World, after, config, node, pool_with};

/// One thing that a host does. Each host has its own handles, numbered.
#[derive(Clone, Debug)]
pub enum Deed {
    Assign(u8, usize),
    AssignIp(u8, u8),
    Release(u8),
    /// Releases an address if it is under the host's handle of that number (IPAM-8).
    ReleaseIp(u8, u8),
    GiveBack(u8, bool),
    Tunnel,
    Leave,
}

const POOL: &str = "10.0.0.0/28";

pub fn handle(host: usize, number: u8) -> HandleId {
    HandleId::from(format!("h{host}.{number}"))
}

pub fn address(n: u8) -> IpAddr {
    POOL.parse::<Prefix>()
        .unwrap()
        .nth(u128::from(n % 16))
        .unwrap()
}

/// The machine for a deed. Time passes between deeds, so that empty blocks become old enough to
/// reclaim.
pub fn machine(host: usize, deed: &Deed, block_len: u8, minute: u64) -> Any {
    let name = format!("node-{host}");
    let now = after(minute * 61);
    match deed {
        Deed::Assign(number, count) => {
            let mut request = AssignRequest::workload(name.as_str().into(), handle(host, *number));
            request.num_v4 = *count;
            Any::Assign(Assign::new(request, now))
        }
        Deed::AssignIp(number, n) => {
            let request = AssignIpRequest {
                address: address(*n),
                node: name.as_str().into(),
                handle: handle(host, *number),
                attributes: BTreeMap::new(),
                usage: AllowedUse::Workload,
            };
            Any::AssignIp(AssignIp::new(request, now))
        }
        Deed::Release(number) => {
            let handle = handle(host, *number);
            Any::ReleaseHandle(ReleaseHandle::new(handle, Vec::new(), now))
        }
        Deed::ReleaseIp(number, n) => {
            let target = ReleaseTarget {
                address: address(*n),
                handle: Some(handle(host, *number)),
                sequence: None,
            };
            Any::ReleaseIps(ReleaseIps::new(vec![target], now))
        }
        Deed::GiveBack(n, must_be_empty) => {
            let owner = BlockOwner::Host(name.as_str().into());
            let cidr = Prefix::truncated(address(*n), block_len);
            let machine = ReleaseAffinity::new(owner, cidr, *must_be_empty, now);
            Any::ReleaseAffinity(machine)
        }
        Deed::Tunnel => {
            let machine = EnsureTunnel::new(TunnelKind::Ipip, name.as_str().into(), now);
            Any::Tunnel(machine)
        }
        Deed::Leave => Any::ReleaseNode(ReleaseNode::new(name.as_str().into(), now)),
    }
}

/// A client: the host it runs on, what it does, and the clients that have to be done or dead before
/// it begins (who deletes a node has made sure that it is gone).
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub host: usize,
    pub deeds: &'static [Deed],
    pub behind: &'static [usize],
}

const fn script(host: usize, deeds: &'static [Deed]) -> Script {
    Script {
        host,
        deeds,
        behind: &[],
    }
}

/// Clients that race in a pool of blocks of four addresses.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub pool: &'static str,
    pub strict: bool,
    pub crashes: usize,
    pub clients: &'static [Script],
}

const ONE_BLOCK: &str = "10.0.0.0/30";
const TWO_BLOCKS: &str = "10.0.0.0/29";
const BLOCK_LEN: u8 = 30;
const HOSTS: usize = 2;

/// Allocate, release, claim, reclaim, give back and delete, by two or three clients on one or two
/// hosts.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "two hosts on one block, two crashes",
        pool: ONE_BLOCK,
        strict: false,
        crashes: 2,
        clients: &[
            script(0, &[Deed::Assign(0, 3), Deed::Release(0)]),
            script(1, &[Deed::Assign(0, 3), Deed::Release(0)]),
        ],
    },
    Scenario {
        name: "two hosts that borrow from each other",
        pool: ONE_BLOCK,
        strict: false,
        crashes: 1,
        clients: &[
            script(0, &[Deed::Assign(0, 2), Deed::Release(0)]),
            script(1, &[Deed::Assign(0, 2), Deed::Release(0)]),
        ],
    },
    Scenario {
        name: "claim, give back and reclaim, two crashes",
        pool: ONE_BLOCK,
        strict: true,
        crashes: 2,
        clients: &[
            script(
                0,
                &[
                    Deed::Assign(0, 1),
                    Deed::Release(0),
                    Deed::GiveBack(0, true),
                ],
            ),
            script(1, &[Deed::Assign(0, 2)]),
        ],
    },
    Scenario {
        name: "two processes of one host",
        pool: TWO_BLOCKS,
        strict: false,
        crashes: 1,
        clients: &[
            script(0, &[Deed::Assign(0, 3)]),
            script(0, &[Deed::Assign(1, 3), Deed::Release(1)]),
        ],
    },
    Scenario {
        name: "three clients on two blocks",
        pool: TWO_BLOCKS,
        strict: false,
        crashes: 1,
        clients: &[
            script(0, &[Deed::Assign(0, 3)]),
            script(0, &[Deed::Assign(1, 2)]),
            script(1, &[Deed::Assign(2, 2), Deed::Release(2)]),
        ],
    },
    Scenario {
        name: "three clients claim one block, two crashes",
        pool: ONE_BLOCK,
        strict: true,
        crashes: 2,
        clients: &[
            script(0, &[Deed::Assign(0, 1)]),
            script(1, &[Deed::Assign(0, 1)]),
            script(0, &[Deed::GiveBack(0, false)]),
        ],
    },
    Scenario {
        name: "a chosen address against any address, two crashes",
        pool: ONE_BLOCK,
        strict: false,
        crashes: 2,
        clients: &[
            script(0, &[Deed::AssignIp(0, 0), Deed::ReleaseIp(0, 0)]),
            script(1, &[Deed::Assign(0, 1), Deed::Release(0)]),
        ],
    },
    Scenario {
        name: "the same chosen address wanted by two hosts",
        pool: ONE_BLOCK,
        strict: false,
        crashes: 1,
        clients: &[
            script(0, &[Deed::AssignIp(0, 1), Deed::Release(0)]),
            script(1, &[Deed::AssignIp(0, 1), Deed::Release(0)]),
        ],
    },
    Scenario {
        name: "a node deleted twice at once while another assigns",
        pool: ONE_BLOCK,
        strict: false,
        crashes: 1,
        clients: &[
            script(0, &[Deed::Assign(0, 2)]),
            Script {
                host: 0,
                deeds: &[Deed::Leave],
                behind: &[0],
            },
            script(1, &[Deed::Assign(0, 1)]),
        ],
    },
    Scenario {
        name: "an old and a new process ensure one tunnel address",
        pool: ONE_BLOCK,
        strict: false,
        crashes: 2,
        clients: &[script(0, &[Deed::Tunnel]), script(0, &[Deed::Tunnel])],
    },
];

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// The client's next I/O, or the start of its next deed.
    Goes(usize),
    /// The client's process dies; it does not come back.
    Dies(usize),
}

/// A schedule that leads to an end, and the data there.
#[derive(Clone, Debug)]
pub struct History {
    pub turns: Vec<Turn>,
    pub end: World,
}

/// A state of the search: the world, each client's actor and what it still has to do, and how many
/// crashes may still happen.
#[derive(Clone, Debug)]
pub struct Branch {
    pub world: World,
    pub clients: Vec<Client>,
    crashes: usize,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub script: Script,
    pub actor: Option<Actor>,
    pub begun: usize,
    pub took: BTreeSet<IpAddr>,
    pub crashed: bool,
}

impl Client {
    pub fn is_over(&self) -> bool {
        self.crashed || (self.actor.is_none() && self.begun == self.script.deeds.len())
    }

    /// The handle of what it takes; tunnels have one of their own.
    fn handle(&self) -> Option<HandleId> {
        let number = self.script.deeds.iter().find_map(|deed| match deed {
            Deed::Assign(number, _) | Deed::AssignIp(number, _) => Some(*number),
            _ => None,
        })?;
        Some(handle(self.script.host, number))
    }

    /// The machine of its next deed. The later the deed, the later the hour.
    fn begin(&mut self) -> Any {
        let deed = &self.script.deeds[self.begun];
        self.begun += 1;
        if matches!(deed, Deed::Release(_) | Deed::ReleaseIp(..)) {
            self.took.clear();
        }
        let left = self.script.deeds.len() - self.begun;
        let minute = 5 - u64::try_from(left).unwrap();
        machine(self.script.host, deed, BLOCK_LEN, minute)
    }
}

/// The data at the start of a scenario.
pub fn stage(scenario: &Scenario) -> World {
    let ipip = |p: &mut caracal_model::IpPool| p.spec.ipip_mode = EncapMode::Always;
    let mut world = World::default()
        .with(pool_with("p", scenario.pool, BLOCK_LEN, ipip))
        .with(config(|c| c.strict_affinity = scenario.strict));
    for host in 0..HOSTS {
        world.put(node(&format!("node-{host}")));
    }
    world
}

pub fn start(scenario: &Scenario) -> Branch {
    let client = |script: &Script| Client {
        script: *script,
        actor: None,
        begun: 0,
        took: BTreeSet::new(),
        crashed: false,
    };
    Branch {
        world: stage(scenario),
        clients: scenario.clients.iter().map(client).collect(),
        crashes: scenario.crashes,
    }
}

/// Hashes what is written to it: a state is told by its text.
#[derive(Default)]
struct Digest(DefaultHasher);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Every interleaving of a scenario, with the invariants checked after every commit.
pub struct Search {
    size: usize,
    seen: HashSet<u64>,
    path: Vec<Turn>,
    pub histories: Vec<History>,
}

impl Search {
    pub fn through(scenario: &Scenario) -> Self {
        Self::new(scenario, start(scenario))
    }

    /// The same on a store of single objects, where a transaction is an order of writes.
    pub fn object_by_object(scenario: &Scenario) -> Self {
        let mut branch = start(scenario);
        branch.world.ordered = true;
        Self::new(scenario, branch)
    }

    fn new(scenario: &Scenario, branch: Branch) -> Self {
        let pool: Prefix = scenario.pool.parse().unwrap();
        let mut search = Self {
            size: usize::try_from(pool.size()).unwrap(),
            seen: HashSet::new(),
            path: Vec::new(),
            histories: Vec::new(),
        };
        search.explore(branch);
        search
    }

    pub fn states(&self) -> usize {
        self.seen.len()
    }

    fn explore(&mut self, branch: Branch) {
        let mut text = Digest::default();
        write!(text, "{branch:?}").unwrap();
        if !self.seen.insert(text.0.finish()) {
            return;
        }
        let mut leaf = true;
        for index in 0..branch.clients.len() {
            let client = &branch.clients[index];
            let waits = client.script.behind.iter();
            if client.is_over() || !waits.clone().all(|i| branch.clients[*i].is_over()) {
                continue;
            }
            leaf = false;
            let mut next = branch.clone();
            advance(&mut next, index);
            self.path.push(Turn::Goes(index));
            self.explore(next);
            self.path.pop();
            if branch.crashes > 0 && branch.clients[index].actor.is_some() {
                let mut next = branch.clone();
                next.crashes -= 1;
                next.kill(index);
                self.path.push(Turn::Dies(index));
                self.explore(next);
                self.path.pop();
            }
        }
        if leaf {
            self.histories.push(History {
                turns: self.path.clone(),
                end: branch.world.clone(),
            });
            self.inspect_end(branch);
        }
    }

    /// At rest: everybody alive holds what it was told, and nothing is lost: once the dead hosts'
    /// data is released, every address of the pool can be had again.
    fn inspect_end(&self, mut branch: Branch) {
        let deleted = |host| {
            let mut clients = branch.clients.iter();
            clients.any(|c| {
                c.script.host == host && c.script.deeds.iter().any(|d| matches!(d, Deed::Leave))
            })
        };
        for client in &branch.clients {
            if let Some(handle) = client.handle().filter(|_| !client.crashed)
                && !deleted(client.script.host)
            {
                let held = held_by(&branch.world, &handle);
                assert_eq!(held, client.took, "{branch:?}");
            }
        }
        if branch.clients.iter().all(|client| !client.crashed) {
            // A claim that a lost race made needless stays for the next one (IPAM-10).
            let mut findings = check(&view(&branch.world), after(10_000));
            findings
                .retain(|f| !matches!(f, Inconsistency::Unconfirmed(_, _, AffinityWord::Pending)));
            findings.retain(|f| !is_excused(&branch.world, f));
            assert_eq!(findings, [], "{branch:?}");
        }
        let world = &mut branch.world;
        for host in 0..HOSTS {
            let left = run(world, machine(host, &Deed::Leave, BLOCK_LEN, 100));
            assert_eq!(left, End::Finished);
        }
        let mut request = AssignRequest::workload("node-0".into(), "all".into());
        request.num_v4 = self.size;
        let all = run(world, Any::Assign(Assign::new(request, after(20_000))));
        assert!(matches!(all, End::Took(_)), "IPAM-10: {all:?} {world:?}");
        let mut findings = check(&view(world), after(20_000));
        findings.retain(|f| f.is_fault() && !(world.ordered && counts_too_much(f)));
        assert_eq!(findings, []);
    }
}

impl Branch {
    /// Starts the client's next deed when it is between two.
    pub fn begin(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.actor.is_none() {
            let machine = client.begin();
            client.actor = Some(Actor::start(machine));
        }
    }

    /// The client's process dies.
    pub fn kill(&mut self, index: usize) {
        self.clients[index].actor = None;
        self.clients[index].crashed = true;
    }
}

/// One I/O of a client.
pub fn advance(branch: &mut Branch, index: usize) {
    branch.begin(index);
    let client = &mut branch.clients[index];
    let actor = client.actor.as_mut().unwrap();
    assert!(actor.conflicts < 12, "losing for ever: {actor:?}");
    let changed = actor.go(&mut branch.world);
    if let Some(end) = actor.end() {
        if let End::Took(addresses) = end {
            client.took.extend(addresses);
        }
        client.actor = None;
        assert_disjoint(branch);
    }
    if changed {
        let faults = faults(&branch.world, after(10_000));
        assert!(faults.is_empty(), "{faults:?} in {branch:?}");
    }
}

/// IPAM-1, by what the clients were told. Two processes of a host share its tunnel address, and who
/// deletes a node has its addresses given to others.
fn assert_disjoint(branch: &Branch) {
    let takers: Vec<&Client> = branch
        .clients
        .iter()
        .filter(|client| client.handle().is_some())
        .collect();
    let leaves = branch.clients.iter().any(|c| {
        let begun = &c.script.deeds[..c.begun];
        begun.iter().any(|d| matches!(d, Deed::Leave))
    });
    for (n, client) in takers.iter().enumerate() {
        for other in takers.iter().skip(n + 1).filter(|_| !leaves) {
            assert!(client.took.is_disjoint(&other.took), "IPAM-1: {branch:?}");
        }
    }
}
