//! Machines on two subnets with a router between them, one datastore, and the sessions between
//! their speakers, in virtual time. Nothing here decides anything that the product decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use caracal_bgp::{
    Changes, Outbound, PeerName, RemoteRestart, SessionInfo, SessionOptions, UpdateMessage,
};
use caracal_datastore::MemoryStore;
use caracal_ipam::{EnsureTunnel, Input, Machine as Request, Reading, Step, TunnelKind};
use caracal_model::{Cidr, Family, Key, KeyRange, Node, NodeName, Timestamp, TxnOutcome};

use crate::agent::{Agent, RESYNC};
use crate::dice::Dice;
use crate::kernel::{Kernel, UPLINK};

/// Time that a session takes to come up.
const CONNECT: Duration = Duration::from_secs(2);
/// Passes at one instant that are no coming to rest.
const RESTLESS: usize = 60;
/// 2026-01-05T10:12:00Z.
const EPOCH: u64 = 1_767_607_920_000_000_000;

pub struct Machine {
    pub number: usize,
    pub name: NodeName,
    pub kernel: Kernel,
    /// Its process, when it runs.
    pub agent: Option<Agent>,
    tunnels_for: Option<(i64, Vec<String>)>,
}

/// Machines 0 and 1 are on one subnet, 2 and 3 on another.
pub fn addresses(number: usize) -> [Cidr; 2] {
    let (subnet, host) = (number / 2, number + 1);
    [
        format!("10.0.{subnet}.{host}/24").parse().unwrap(),
        format!("fd00:{subnet}::{host}/64").parse().unwrap(),
    ]
}

/// The router on a machine's subnet.
pub fn gateways(number: usize) -> [IpAddr; 2] {
    let subnet = number / 2;
    [
        format!("10.0.{subnet}.254").parse().unwrap(),
        format!("fd00:{subnet}::fe").parse().unwrap(),
    ]
}

fn address(number: usize, family: Family) -> IpAddr {
    let both = addresses(number);
    match family {
        Family::Ipv4 => both[0].address,
        Family::Ipv6 => both[1].address,
    }
}

impl Machine {
    pub fn boot(number: usize) -> Self {
        Self {
            number,
            name: format!("node-{number}").as_str().into(),
            kernel: Kernel::boot(&addresses(number), gateways(number)),
            agent: None,
            tunnels_for: None,
        }
    }

    pub fn is_connected(&self) -> bool {
        let uplink = self.kernel.actual.links.by_name(UPLINK);
        uplink.is_some_and(|link| link.up)
    }

    fn devices_up(&self) -> Vec<String> {
        let up = self.kernel.actual.links.iter().filter(|link| link.up);
        up.map(|link| link.name.to_string()).collect()
    }
}

/// The two ends of a session: a machine, and what it calls the other.
type End = (usize, PeerName);

/// A session; the smaller end first.
type Session = (End, End);

pub struct Cluster {
    pub now: Instant,
    started: Instant,
    pub store: MemoryStore,
    pub etcd_up: bool,
    pub machines: BTreeMap<usize, Machine>,
    sessions: BTreeSet<Session>,
    connecting: BTreeMap<Session, Instant>,
    mail: VecDeque<(Session, End, UpdateMessage)>,
    /// Machines that left in good order: their sessions end with a NOTIFICATION.
    pub dice: Dice,
}

impl Cluster {
    pub fn new(seed: u64) -> Self {
        let now = Instant::now();
        Self {
            now,
            started: now,
            store: MemoryStore::new(),
            etcd_up: true,
            machines: BTreeMap::new(),
            sessions: BTreeSet::new(),
            connecting: BTreeMap::new(),
            mail: VecDeque::new(),
            dice: Dice::new(seed),
        }
    }

    /// The virtual time of day.
    pub fn clock(&self) -> Timestamp {
        let passed = u64::try_from((self.now - self.started).as_nanos()).unwrap();
        Timestamp::from_nanos(EPOCH + passed)
    }

    /// Since the start.
    pub fn age(&self) -> Duration {
        self.now - self.started
    }

    /// True when this machine's programs reach the datastore.
    pub fn reaches(&self, number: usize) -> bool {
        let machine = self.machines.get(&number);
        self.etcd_up && machine.is_some_and(Machine::is_connected)
    }

    /// Carries out a request to IPAM. `None` when it is refused.
    pub fn request<M: Request>(&self, mut machine: M) -> Option<M::Output> {
        let mut seen = Input::Start;
        loop {
            seen = match machine.step(seen) {
                Step::Done(output) => return Some(output),
                Step::Failed(_) => return None,
                Step::Read(ranges) => {
                    let list = |range: &KeyRange| match range {
                        KeyRange::Key(key) => self.store.get(key).into_iter().collect(),
                        KeyRange::Prefix(prefix) => self.store.list(prefix),
                    };
                    Input::Read(Reading {
                        revision: self.store.revision(),
                        ranges: ranges.iter().map(list).collect(),
                    })
                }
                Step::Commit(txn) => match self.store.apply(&txn).unwrap() {
                    TxnOutcome::Committed(revision) => Input::Committed(revision),
                    TxnOutcome::Conflict => Input::Conflict,
                },
            };
        }
    }

    /// The kernel of a machine changed; its agent hears of it, or finds out at its next full
    /// comparison.
    pub fn changed(&mut self, number: usize, heard: bool) {
        let now = self.now;
        if let Some(agent) = self
            .machines
            .get_mut(&number)
            .and_then(|m| m.agent.as_mut())
        {
            agent.wake(if heard { now } else { now + RESYNC });
        }
    }

    /// Lets time pass until then; everything that is due happens.
    ///
    /// # Errors
    /// A rule that was broken.
    pub fn pass_time(&mut self, until: Instant) -> Result<(), String> {
        loop {
            let mut rounds = 0;
            while self.round()? {
                rounds += 1;
                if rounds > RESTLESS {
                    return Err("does not come to rest".to_owned());
                }
            }
            match self.next_due() {
                Some(due) if due <= until => self.now = self.now.max(due),
                _ => {
                    self.now = until;
                    return Ok(());
                }
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let agents = self.machines.values().filter_map(|m| m.agent.as_ref());
        let timers = agents.flat_map(|agent| {
            let speaker = agent.speaker.as_ref();
            let rib = speaker.and_then(|speaker| speaker.rib.next_timeout());
            agent.due.into_iter().chain(rib)
        });
        timers.chain(self.connecting.values().copied()).min()
    }

    /// Everything that is due now, once. True when there was something.
    fn round(&mut self) -> Result<bool, String> {
        let mut busy = false;
        let numbers: Vec<usize> = self.machines.keys().copied().collect();
        for &number in &numbers {
            busy |= self.listen(number);
        }
        busy |= self.connect();
        while let Some((session, (to, peer), update)) = self.mail.pop_front() {
            busy = true;
            if self.sessions.contains(&session) {
                self.speak(to, |rib, now| rib.apply(now, &peer, update));
            }
        }
        let now = self.now;
        for &number in &numbers {
            busy |= self.tunnels(number);
            let Some(machine) = self.machines.get_mut(&number) else {
                continue;
            };
            if let Some(agent) = &mut machine.agent
                && agent.due.is_some_and(|due| due <= now)
            {
                busy = true;
                agent.pass(now, &mut machine.kernel, &mut self.dice)?;
            }
        }
        Ok(busy)
    }

    /// The datastore's news and the speaker's timers.
    fn listen(&mut self, number: usize) -> bool {
        let (now, reachable) = (self.now, self.reaches(number));
        let store = self.store.clone();
        let Some(agent) = self.agent(number) else {
            return false;
        };
        let mut busy = false;
        if let Some(changes) = agent.observe(now, &store, reachable) {
            busy = true;
            self.post(number, changes);
        }
        let due = self.agent(number).and_then(|agent| {
            let speaker = agent.speaker.as_ref()?;
            speaker.rib.next_timeout().filter(|due| *due <= now)
        });
        if due.is_some() {
            busy = true;
            self.speak(number, |rib, now| rib.handle_timeout(now));
        }
        if let Some(agent) = self.agent(number) {
            agent.learn(now);
        }
        busy
    }

    fn agent(&mut self, number: usize) -> Option<&mut Agent> {
        self.machines.get_mut(&number)?.agent.as_mut()
    }

    /// Does something with a machine's table and carries what it says.
    fn speak(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut caracal_bgp::Rib, Instant) -> Changes,
    ) {
        let now = self.now;
        let Some(agent) = self.agent(number) else {
            return;
        };
        let Some(speaker) = &mut agent.speaker else {
            return;
        };
        let changes = act(&mut speaker.rib, now);
        agent.learn(now);
        self.post(number, changes);
    }

    /// Puts what a table says into the mail of its sessions.
    fn post(&mut self, from: usize, changes: Changes) {
        let Some(agent) = self.machines.get(&from).and_then(|m| m.agent.as_ref()) else {
            return;
        };
        let Some(speaker) = &agent.speaker else {
            return;
        };
        let names: BTreeMap<_, _> = speaker
            .config
            .peers
            .keys()
            .filter_map(|name| Some((speaker.rib.peer_id(name)?, name.clone())))
            .collect();
        let mut letters = Vec::new();
        for out in changes.out {
            match out {
                Outbound::Group(group) => {
                    for member in &group.members {
                        for change in group.for_member(member) {
                            letters.push((member.peer, update(change.prefix, change.attrs)));
                        }
                    }
                }
                Outbound::Peer { peer, routes, .. } => {
                    let all = routes.into_iter();
                    letters.extend(all.map(|change| (peer, update(change.prefix, change.attrs))));
                }
                Outbound::EndOfRib { peer, family } => {
                    letters.push((peer, UpdateMessage::end_of_rib(family)));
                }
                // Nobody refreshes, takes several paths or has a limit here.
                _ => {}
            }
        }
        for (peer, update) in letters {
            let Some(name) = names.get(&peer) else {
                continue;
            };
            let here = (from, name.clone());
            let session = self.sessions.iter().find(|s| s.0 == here || s.1 == here);
            if let Some(session) = session.cloned() {
                let there = if session.0 == here {
                    session.1.clone()
                } else {
                    session.0.clone()
                };
                self.mail.push_back((session, there, update));
            }
        }
    }

    /// Sessions that both ends want and that the network allows.
    fn possible(&self) -> BTreeSet<Session> {
        let mut ends: BTreeMap<(usize, usize, Family), PeerName> = BTreeMap::new();
        for machine in self.machines.values().filter(|m| m.is_connected()) {
            let speaker = machine.agent.as_ref().and_then(|a| a.speaker.as_ref());
            for (name, peer) in speaker.into_iter().flat_map(|s| &s.config.peers) {
                let family = Family::of(peer.address);
                let mut others = self.machines.keys();
                if let Some(other) = others.find(|n| address(**n, family) == peer.address) {
                    ends.insert((machine.number, *other, family), name.clone());
                }
            }
        }
        ends.iter()
            .filter(|((a, b, _), _)| a < b)
            .filter_map(|((a, b, family), name)| {
                let other = ends.get(&(*b, *a, *family))?;
                Some(((*a, name.clone()), (*b, other.clone())))
            })
            .collect()
    }

    /// Ends the sessions that cannot be any more, and opens those that can.
    fn connect(&mut self) -> bool {
        let possible = self.possible();
        let lost: Vec<Session> = self.sessions.difference(&possible).cloned().collect();
        let mut busy = !lost.is_empty();
        for session in lost {
            self.sessions.remove(&session);
            self.mail.retain(|(of, ..)| *of != session);
            let (a, b) = &session;
            for ((here, name), (there, _)) in [(a, b), (b, a)] {
                // A process that dies leaves its connection to be reset; a line that dies is found
                // by the hold timer.
                let died = self.machines.get(there);
                let died = died.is_some_and(|m| m.agent.is_none() && m.is_connected());
                self.speak(*here, |rib, now| rib.peer_down(now, name, died));
            }
        }
        let now = self.now;
        self.connecting
            .retain(|session, _| possible.contains(session));
        for session in possible {
            if self.sessions.contains(&session) {
                continue;
            }
            let at = *self
                .connecting
                .entry(session.clone())
                .or_insert(now + CONNECT);
            if at <= now {
                busy = true;
                self.connecting.remove(&session);
                self.sessions.insert(session.clone());
                self.greet(&session.0, &session.1);
                self.greet(&session.1, &session.0);
            }
        }
        busy
    }

    fn greet(&mut self, (here, name): &End, (there, other): &End) {
        let config = |number: &usize| {
            let agent = self.machines.get(number)?.agent.as_ref()?;
            Some((&agent.speaker.as_ref()?.config, agent.is_restarting()))
        };
        let (Some((ours, _)), Some((theirs, restarting))) = (config(here), config(there)) else {
            return;
        };
        let (Some(peer), Some(back)) = (ours.peers.get(name), theirs.peers.get(other)) else {
            return;
        };
        let families: Vec<Family> = peer
            .families
            .iter()
            .copied()
            .filter(|family| back.families.contains(family))
            .collect();
        let restart = back.graceful_restart.as_ref().map(|_| RemoteRestart {
            restarting,
            time: Duration::from_secs(120),
            families: families.iter().map(|family| (*family, true)).collect(),
        });
        let session = SessionInfo {
            families,
            router_id: theirs.router_id,
            local_address: back.address,
            remote_address: peer.address,
            graceful_restart: restart.filter(|_| peer.graceful_restart.is_some()),
            options: SessionOptions::default(),
            capabilities: Vec::new(),
        };
        let name = name.clone();
        self.speak(*here, |rib, now| rib.peer_up(now, &name, session));
    }

    /// Keeps the Node's tunnel addresses, as the node's process does: named once the device is up.
    fn tunnels(&mut self, number: usize) -> bool {
        let (reachable, now) = (self.reaches(number), self.clock());
        let revision = self.store.revision();
        let Some(machine) = self.machines.get_mut(&number) else {
            return false;
        };
        let up = machine.devices_up();
        let inputs = (revision, up.clone());
        if machine.agent.is_none() || !reachable || machine.tunnels_for.as_ref() == Some(&inputs) {
            return false;
        }
        machine.tunnels_for = Some(inputs);
        let name = machine.name.clone();
        for (kind, device) in [
            (TunnelKind::Ipip, "tunl0"),
            (TunnelKind::Vxlan, "vxlan.calico"),
            (TunnelKind::VxlanV6, "vxlan-v6.calico"),
        ] {
            // The second call releases what the Node named before the first one.
            for _ in 0..2 {
                let Some(wanted) = self.request(EnsureTunnel::new(kind, name.clone(), now)) else {
                    break;
                };
                let path = Key::node(&name).to_path();
                let stored = self.store.get(&path);
                let Some(mut node) = stored.and_then(|kv| Node::from_json(&kv.value).ok()) else {
                    break;
                };
                let has = kind.current(&node);
                if has == wanted || (has.is_none() && !up.iter().any(|name| name == device)) {
                    break;
                }
                name_tunnel(&mut node, kind, wanted);
                self.store.put(path, node.to_json());
            }
        }
        self.store.revision() != revision
    }
}

fn name_tunnel(node: &mut Node, kind: TunnelKind, address: Option<IpAddr>) {
    let v4 = address.and_then(|a| match a {
        IpAddr::V4(a) => Some(a),
        IpAddr::V6(_) => None,
    });
    match (kind, address) {
        (TunnelKind::Ipip, _) => {
            node.spec.bgp.get_or_insert_default().ipv4_ipip_tunnel_addr = v4;
        }
        (TunnelKind::VxlanV6, Some(IpAddr::V6(a))) => node.spec.ipv6_vxlan_tunnel_addr = Some(a),
        (TunnelKind::VxlanV6, _) => node.spec.ipv6_vxlan_tunnel_addr = None,
        _ => node.spec.ipv4_vxlan_tunnel_addr = v4,
    }
}

fn update(
    prefix: caracal_model::Prefix,
    attrs: Option<std::sync::Arc<caracal_bgp::PathAttrs>>,
) -> UpdateMessage {
    match attrs {
        Some(attrs) => UpdateMessage {
            announced: vec![prefix],
            attrs: Some(attrs.as_ref().clone()),
            ..UpdateMessage::default()
        },
        None => UpdateMessage {
            withdrawn: vec![prefix],
            ..UpdateMessage::default()
        },
    }
}
