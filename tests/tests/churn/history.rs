//! Events of a cluster in thirty days, drawn by a seed. An event that makes no sense at its time
//! does nothing, so any part of a history is a history.

use std::time::Duration;

use caracal_agent::{ActualRoute, ActualTarget, ForwardingTarget, NextHop};
use caracal_ipam::{Assign, AssignRequest, ReleaseHandle, ReleaseNode};
use caracal_model::{
    EncapMode, HandleId, IpPool, IpPoolSpec, Key, Kind, Node, NodeBgp, NodeSpec, Prefix,
    WorkloadEndpoint, WorkloadEndpointSpec, kind_prefix,
};

use crate::agent::Agent;
use crate::cluster::{Cluster, Machine, addresses, gateways};
use crate::dice::Dice;
use crate::kernel::UPLINK;

/// Machines there may be.
pub const MACHINES: usize = 4;

/// Something that happens. Numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A machine joins: its Node is registered and its process starts.
    Join(usize),
    /// A machine leaves for good: drained, deleted.
    Leave(usize),
    /// A process dies; the kernel stays as it is.
    Crash(usize),
    /// A process starts.
    Start(usize),
    /// A pod on a machine.
    AddPod(usize),
    /// A pod goes.
    RemovePod(usize),
    /// A pod's interface is made anew.
    RemakeInterface(usize),
    /// The encapsulation of the IPv4 pool.
    Mode(u8),
    /// The encapsulation of the IPv6 pool.
    Mode6(u8),
    /// The datastore goes.
    EtcdDown,
    /// The datastore is back.
    EtcdUp,
    /// A process has to list everything anew.
    Relist(usize),
    /// Somebody adds a route; which, and whether the agent hears of it.
    AddForeign(usize, u8, bool),
    /// Somebody replaces a route of ours by one of theirs, or puts one beside it.
    Usurp(usize, u8, bool),
    /// Somebody takes a route of theirs away.
    RemoveForeign(usize, u8, bool),
    /// Somebody flushes our routes.
    Flush(usize, bool),
    /// Somebody deletes a tunnel device of ours, or turns it off.
    LoseDevice(usize, u8, bool),
    /// The uplink goes down.
    LinkDown(usize),
    /// The uplink comes up.
    LinkUp(usize),
    /// The kernel refuses some of the next requests.
    Moody(usize),
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dated {
    /// Since the start.
    pub at: Duration,
    pub event: Event,
}

/// Thirty days.
pub const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

/// A month of a seed with so many events.
pub fn month(seed: u64, events: usize) -> Vec<Dated> {
    let mut dice = Dice::new(seed);
    let mut history = Vec::new();
    let mut at = Duration::ZERO;
    let mean = MONTH.as_millis() * 3 / 2 / events as u128;
    let mean = u64::try_from(mean).unwrap();
    for n in 0..events {
        // One in three comes in the middle of what the one before has caused.
        at += Duration::from_millis(match n {
            0..MACHINES => 0,
            _ if dice.one_in(3) => dice.below(20_000),
            _ => 600_000 + dice.below(2 * mean - 1_200_000),
        });
        let event = match n {
            0..MACHINES => Event::Join(n),
            _ => draw(&mut dice),
        };
        history.push(Dated { at, event });
    }
    history
}

fn draw(dice: &mut Dice) -> Event {
    let mut n = || usize::try_from(dice.below(1000)).unwrap();
    let which = u8::try_from(n() % 250).unwrap();
    let (machine, heard) = (n() % MACHINES, n() % 4 > 0);
    // Damage is repaired soon, or the cluster would never be whole.
    match n() % 55 {
        0..4 => Event::Join(machine),
        4 => Event::Leave(machine),
        5..7 => Event::Crash(machine),
        7..15 => Event::Start(machine),
        15..24 => Event::AddPod(machine),
        24..28 => Event::RemovePod(n()),
        28 => Event::RemakeInterface(n()),
        29..32 => Event::Mode(which),
        32..34 => Event::Mode6(which),
        34 => Event::EtcdDown,
        35..39 => Event::EtcdUp,
        39 => Event::Relist(machine),
        40..42 => Event::AddForeign(machine, which, heard),
        42 => Event::Usurp(machine, which, heard),
        43..47 => Event::RemoveForeign(machine, which, heard),
        47 => Event::Flush(machine, heard),
        48 => Event::LoseDevice(machine, which, heard),
        49 => Event::LinkDown(machine),
        50..54 => Event::LinkUp(machine),
        _ => Event::Moody(machine),
    }
}

/// A pod, as far as its machine's programs know.
#[derive(Clone, Debug)]
pub struct Pod {
    pub machine: usize,
    pub name: String,
    pub interface: String,
    pub addresses: Vec<Prefix>,
}

/// The pools that every history starts with: fewer blocks than machines would like, so that
/// addresses are borrowed.
pub fn pool(name: &str, mode: u8) -> (String, Vec<u8>) {
    let mut pool = IpPool::new(name, IpPoolSpec::default());
    let modes = [EncapMode::Never, EncapMode::Always, EncapMode::CrossSubnet];
    let mode = usize::from(mode);
    if name == "four" {
        pool.spec.cidr = "10.244.0.0/27".to_owned();
        pool.spec.block_size = 29;
        match mode % 5 {
            n @ 0..3 => pool.spec.ipip_mode = modes[n],
            n => pool.spec.vxlan_mode = modes[n - 2],
        }
    } else {
        pool.spec.cidr = "fd00:244::/120".to_owned();
        pool.spec.block_size = 124;
        pool.spec.vxlan_mode = modes[mode % 3];
    }
    pool.spec.nat_outgoing = mode.is_multiple_of(2);
    (Key::resource(Kind::IpPool, name).to_path(), pool.to_json())
}

/// The world of a history: the cluster and its pods.
pub struct World {
    pub cluster: Cluster,
    pub pods: Vec<Pod>,
    born: usize,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let cluster = Cluster::new(seed);
        for (key, value) in [pool("four", 3), pool("six", 0)] {
            cluster.store.put(key, value);
        }
        Self {
            cluster,
            pods: Vec::new(),
            born: 0,
        }
    }

    /// Makes an event happen.
    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Join(n) => self.join(n),
            Event::Leave(n) => self.leave(n),
            Event::Crash(n) => {
                if let Some(machine) = self.cluster.machines.get_mut(&n) {
                    machine.agent = None;
                }
            }
            Event::Start(n) => self.start(n),
            Event::AddPod(n) => self.add_pod(n),
            Event::RemovePod(n) => self.remove_pod(n),
            Event::RemakeInterface(n) => self.remake_interface(n),
            Event::Mode(mode) => self.put_pool("four", mode),
            Event::Mode6(mode) => self.put_pool("six", mode),
            Event::EtcdDown => self.cluster.etcd_up = false,
            Event::EtcdUp => self.cluster.etcd_up = true,
            Event::Relist(n) => {
                let reaches = self.cluster.reaches(n);
                let machine = self.cluster.machines.get_mut(&n);
                if let Some(agent) = machine.and_then(|m| m.agent.as_mut()).filter(|_| reaches) {
                    agent.relist();
                }
            }
            Event::AddForeign(n, which, heard) => self.add_foreign(n, which, heard),
            Event::Usurp(n, which, heard) => self.usurp(n, which, heard),
            Event::RemoveForeign(n, which, heard) => {
                self.on(n, heard, |m| m.kernel.remove_foreign(which.into()));
            }
            Event::Flush(n, heard) => self.on(n, heard, |m| m.kernel.flush(80)),
            Event::LoseDevice(n, which, heard) => self.on(n, heard, |m| {
                let devices = ["vxlan.calico", "vxlan-v6.calico", "tunl0"];
                match devices[usize::from(which) % 3] {
                    // It cannot be deleted.
                    "tunl0" => m.kernel.set_link("tunl0", false),
                    name if which < 100 => m.kernel.set_link(name, false),
                    name => m.kernel.remove_link(name),
                }
            }),
            Event::LinkDown(n) => self.on(n, true, |m| m.kernel.set_link(UPLINK, false)),
            Event::LinkUp(n) => self.on(n, true, |m| {
                if !m.is_connected() {
                    m.kernel.set_link(UPLINK, true);
                    m.kernel.underlay(gateways(m.number));
                }
            }),
            Event::Moody(n) => self.on(n, true, |m| m.kernel.moody = 12),
        }
    }

    fn on(&mut self, number: usize, heard: bool, act: impl FnOnce(&mut Machine)) {
        if let Some(machine) = self.cluster.machines.get_mut(&number) {
            act(machine);
            self.cluster.changed(number, heard);
        }
    }

    fn put_pool(&self, name: &str, mode: u8) {
        if self.cluster.etcd_up {
            let (key, value) = pool(name, mode);
            self.cluster.store.put(key, value);
        }
    }

    fn join(&mut self, number: usize) {
        if self.cluster.machines.contains_key(&number) || !self.cluster.etcd_up {
            return;
        }
        let machine = Machine::boot(number);
        let [v4, v6] = addresses(number);
        let spec = NodeSpec {
            bgp: Some(NodeBgp {
                ipv4_address: Some(v4),
                ipv6_address: Some(v6),
                ..NodeBgp::default()
            }),
            ..NodeSpec::default()
        };
        let node = Node::new(machine.name.as_str(), spec);
        self.cluster
            .store
            .put(Key::node(&machine.name).to_path(), node.to_json());
        self.cluster.machines.insert(number, machine);
        self.start(number);
    }

    fn start(&mut self, number: usize) {
        if let Some(machine) = self.cluster.machines.get_mut(&number)
            && machine.agent.is_none()
        {
            machine.agent = Some(Agent::start(machine.name.clone(), &machine.kernel));
        }
    }

    fn leave(&mut self, number: usize) {
        if !self.cluster.etcd_up || self.cluster.machines.len() < 2 {
            return;
        }
        let Some(machine) = self.cluster.machines.remove(&number) else {
            return;
        };
        let name = machine.name;
        self.pods.retain(|pod| pod.machine != number);
        for kv in self
            .cluster
            .store
            .list(&kind_prefix(Kind::WorkloadEndpoint))
        {
            if String::from_utf8_lossy(&kv.value).contains(&format!("\"node\":\"{name}\"")) {
                self.cluster.store.delete(kv.key);
            }
        }
        let leave = ReleaseNode::new(name.clone(), self.cluster.clock());
        assert!(self.cluster.request(leave).is_some(), "leaving is possible");
        self.cluster.store.delete(Key::node(&name).to_path());
    }

    fn add_pod(&mut self, number: usize) {
        if !self.cluster.reaches(number) {
            return;
        }
        self.born += 1;
        let (name, interface) = (format!("pod-{}", self.born), format!("cali{}", self.born));
        let node = self.cluster.machines[&number].name.clone();
        let mut request = AssignRequest::workload(node.clone(), handle(&name));
        request.num_v6 = usize::from(self.born.is_multiple_of(3));
        let now = self.cluster.clock();
        let Some(taken) = self.cluster.request(Assign::new(request, now)) else {
            return;
        };
        let addresses: Vec<Prefix> = taken.all().map(|a| Prefix::host(a.address)).collect();
        let mut endpoint = WorkloadEndpoint::new(&name, WorkloadEndpointSpec::default());
        endpoint.metadata.namespace = Some("default".to_owned());
        endpoint.spec.node = node.to_string();
        endpoint.spec.pod.clone_from(&name);
        endpoint.spec.interface_name.clone_from(&interface);
        endpoint.spec.mac = "02:00:00:00:00:05".to_owned();
        endpoint.spec.ip_networks.clone_from(&addresses);
        let made = interface.clone();
        self.on(number, true, |m| m.kernel.add_workload(&made));
        let key = Key::workload("default", &name).to_path();
        self.cluster.store.put(key, endpoint.to_json());
        self.pods.push(Pod {
            machine: number,
            name,
            interface,
            addresses,
        });
    }

    fn remove_pod(&mut self, n: usize) {
        if self.pods.is_empty() {
            return;
        }
        let index = n % self.pods.len();
        if !self.cluster.reaches(self.pods[index].machine) {
            return;
        }
        let pod = self.pods.remove(index);
        let key = Key::workload("default", &pod.name).to_path();
        self.cluster.store.delete(key);
        self.on(pod.machine, true, |m| m.kernel.remove_link(&pod.interface));
        let release = ReleaseHandle::new(handle(&pod.name), Vec::new(), self.cluster.clock());
        assert!(self.cluster.request(release).is_some());
    }

    fn remake_interface(&mut self, n: usize) {
        if self.pods.is_empty() {
            return;
        }
        let pod = self.pods[n % self.pods.len()].clone();
        self.on(pod.machine, true, |m| {
            m.kernel.remove_link(&pod.interface);
            m.kernel.add_workload(&pod.interface);
        });
    }

    fn add_foreign(&mut self, number: usize, which: u8, heard: bool) {
        let [gateway, _] = gateways(number);
        self.on(number, heard, |m| {
            // Far away; inside the pool, worse than ours; inside the pool, in the place of ours; a
            // host; nothing.
            let (prefix, metric, link, hop) = match which % 5 {
                0 => (format!("172.16.{which}.0/24"), 0, UPLINK, Some(gateway)),
                1 => (format!("10.244.0.{}/29", which % 4 * 8), 50, "dummy0", None),
                2 => (format!("10.244.0.{}/29", which % 4 * 8), 0, "dummy0", None),
                3 => (format!("10.244.0.{}/32", which % 32), 0, "dummy0", None),
                _ => (format!("192.0.2.{which}/32"), 20, "dummy0", None),
            };
            let target = match which % 7 {
                6 => ForwardingTarget::Blackhole,
                _ => ForwardingTarget::Via(vec![NextHop {
                    gateway: hop,
                    link: link.into(),
                    onlink: false,
                    extra_weight: 0,
                }]),
            };
            let up = m.kernel.actual.links.by_name(link).is_some_and(|l| l.up);
            if up || target == ForwardingTarget::Blackhole {
                m.kernel
                    .add_foreign(foreign(prefix.parse().unwrap(), metric, which, target));
            }
        });
    }

    fn usurp(&mut self, number: usize, which: u8, heard: bool) {
        self.on(number, heard, |m| {
            let ours = m.kernel.actual.all_routes().filter(|r| r.protocol == 80);
            let ours: Vec<ActualRoute> = ours.cloned().collect();
            if ours.is_empty() {
                return;
            }
            let victim = &ours[usize::from(which) % ours.len()];
            let target = ForwardingTarget::Via(vec![NextHop {
                gateway: None,
                link: "dummy0".into(),
                onlink: false,
                extra_weight: 0,
            }]);
            let theirs = foreign(victim.prefix, victim.metric, which, target);
            if which >= 125 && victim.prefix.family() == caracal_model::Family::Ipv4 {
                m.kernel.append_foreign(theirs);
                return;
            }
            m.kernel.actual.routes.remove(&victim.key());
            m.kernel.add_foreign(theirs);
        });
    }
}

fn handle(pod: &str) -> HandleId {
    HandleId::from(format!("net.{pod}"))
}

/// Zebra, DHCP, BGP, Babel. Not BIRD: what it writes inside pools is what a Calico node left
/// (decision 0024).
fn foreign(prefix: Prefix, metric: u32, which: u8, target: ForwardingTarget) -> ActualRoute {
    let metric = match (prefix.family(), metric) {
        (caracal_model::Family::Ipv6, 0) => 1024,
        (_, metric) => metric,
    };
    ActualRoute {
        prefix,
        metric,
        tos: 0,
        protocol: [11, 16, 186, 42][usize::from(which) % 4],
        target: ActualTarget::Known(target),
        mtu: None,
        source: None,
    }
}
