//! After any history of changes, what is planned by key is what is planned whole.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use caracal_model::{AllocationAttribute, Block, BlockOwner, Key, SharedMap};
use proptest::prelude::*;

use super::*;
use crate::actual::Actual;
use crate::diff::{Comparison, Phase, conflicts, diff};
use crate::op::Op;
use crate::paths::{PathMtu, PathMtus};
use crate::plan::plan;
use crate::slice::take_looks;
use crate::testing::apply_op;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A cluster as it changes, and the plan that follows it.
struct History {
    snapshot: Snapshot,
    learned: SharedMap<Prefix, Learned>,
    links: Links,
    settings: Settings,
    kernel: KernelSupport,
    paths: Arc<PathMtus>,
    planning: KernelPlanner,
    last: Desired,
    by_key: usize,
    /// The machine that the plans are carried out on.
    machine: Actual,
    /// Its interfaces as the plan sees them.
    seen: Links,
    comparison: Comparison,
    /// How much is planned and compared at a time.
    slice: usize,
}

#[derive(Clone, Debug)]
enum Step {
    Pool(u8, u8),
    Node(u8, u8),
    Block(u8, u8, Vec<(u8, u8)>),
    Workload(u8, u8, u8),
    Interface(u8, u8),
    Learned(u8, u8, u8),
    Setting(u8),
    Path(u8),
    Invalid(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<u8>;
    prop_oneof![
        3 => (any(), any()).prop_map(|(a, b)| Step::Pool(a, b)),
        4 => (any(), any()).prop_map(|(a, b)| Step::Node(a, b)),
        6 => (any(), any(), proptest::collection::vec((any(), any()), 0..3))
            .prop_map(|(a, b, guests)| Step::Block(a, b, guests)),
        3 => (any(), any(), any()).prop_map(|(a, b, c)| Step::Workload(a, b, c)),
        2 => (any(), any()).prop_map(|(a, b)| Step::Interface(a, b)),
        6 => (any(), any(), any()).prop_map(|(a, b, c)| Step::Learned(a, b, c)),
        1 => any().prop_map(Step::Setting),
        1 => any().prop_map(Step::Path),
        1 => proptest::bool::ANY.prop_map(Step::Invalid),
    ]
}

impl History {
    fn new(objects: bool) -> Self {
        let eth0 = Link::new(2, "eth0")
            .with_address("10.0.0.1/24".parse().unwrap())
            .with_address("fd00:a::1/64".parse().unwrap());
        let lo = Link::new(1, "lo").with_address("127.0.0.1/8".parse().unwrap());
        let mut history = Self {
            snapshot: Snapshot::default(),
            learned: SharedMap::default(),
            links: [lo, eth0].into_iter().collect(),
            settings: Settings {
                objects,
                ..Settings::default()
            },
            kernel: KernelSupport {
                objects: Ok(()),
                ..KernelSupport::default()
            },
            paths: Arc::default(),
            planning: KernelPlanner::default(),
            last: Desired::default(),
            by_key: 0,
            machine: Actual::default(),
            seen: Links::default(),
            comparison: Comparison::default(),
            slice: usize::MAX,
        };
        history.snapshot.whole_blocks_of = Some("a".into());
        history.step(&Step::Pool(0, 3));
        history.step(&Step::Pool(2, 3));
        for node in 0..3 {
            history.step(&Step::Node(node, 1));
            history.step(&Step::Block(node, node, Vec::new()));
        }
        history
    }

    fn put(&mut self, kind: &str, name: &str, spec: Option<&str>) {
        let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
        let name = name.rsplit('/').next().unwrap();
        let value = spec.map(|spec| {
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"x"}},"spec":{{{spec}}}}}"#)
        });
        let revision = self.snapshot.revision + 1;
        let value = value.as_ref().map(|value| value.as_bytes());
        self.snapshot.apply(&path, value, revision);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Pool(which, mode) => self.pool(*which, *mode),
            Step::Node(which, how) => self.node(*which, *how),
            Step::Block(which, owner, guests) => self.block(*which, *owner, guests),
            Step::Workload(which, interface, address) => {
                let address = prefix(*address);
                let spec = format!(
                    r#""node":"a","interfaceName":"cali{}","ipNetworks":["{address}"],"mac":"02:00:00:00:00:0{}""#,
                    interface % 3,
                    which % 9
                );
                let spec = (which % 5 > 0).then_some(spec);
                self.put(
                    "workloadendpoints",
                    &format!("x/w{}", which % 3),
                    spec.as_deref(),
                );
            }
            Step::Interface(which, how) => {
                let name = format!("cali{}", which % 3);
                self.links.remove(&name);
                let mut link = Link::new(u32::from(which % 3) + 10, &name);
                link.up = how % 3 != 1;
                if how % 7 == 0 {
                    link = link.with_address("192.0.2.1/24".parse().unwrap());
                }
                if how % 3 > 0 {
                    self.links.insert(link);
                }
            }
            Step::Learned(at, hop, _) if hop % 4 == 0 => drop(self.learned.remove(&prefix(*at))),
            Step::Learned(at, hop, how) => {
                let hop = match how % 4 {
                    0 => format!("fd00:a::{}", hop % 6).parse().unwrap(),
                    1 => [10, 0, 1, hop % 6].into(),
                    _ => [10, 0, 0, hop % 6].into(),
                };
                self.learned.insert(prefix(*at), Learned::internal(hop));
            }
            Step::Setting(how) => {
                self.settings.workload_routes = how % 8 == 7;
                self.settings.vxlan_mtu = (how % 4 == 1).then_some(1400);
                self.kernel.vxlan = match how % 5 {
                    4 => Err("no".to_owned()),
                    _ => Ok(()),
                };
            }
            Step::Path(how) => {
                let path = PathMtu {
                    mtu: if how % 2 == 0 { 1500 } else { 1400 },
                    interface: 1500,
                };
                self.paths = Arc::new([([10, 0, 0, how % 4].into(), path)].into());
            }
            Step::Invalid(invalid) => {
                let value = if *invalid {
                    "1"
                } else {
                    r#"{"spec":{"cidr":"10.9.0.0/24"}}"#
                };
                let path = "/calico/resources/v3/projectcalico.org/ippools/broken";
                let revision = self.snapshot.revision + 1;
                self.snapshot.apply(path, Some(value.as_bytes()), revision);
            }
        }
    }

    fn pool(&mut self, which: u8, how: u8) {
        let cidr = [
            "10.244.0.0/16",
            "10.244.1.0/24",
            "fd00:10::/64",
            // Over the machines.
            "10.0.0.0/23",
        ][usize::from(which % 4)];
        let modes = [
            "",
            r#","ipipMode":"Always""#,
            r#","vxlanMode":"CrossSubnet""#,
            r#","vxlanMode":"Always","natOutgoing":true"#,
        ];
        let mode = match (which % 4, how % 4) {
            (2, 1) => "",
            (_, mode) => modes[usize::from(mode)],
        };
        let uses = match how / 16 {
            13.. => r#","allowedUses":["LoadBalancer"]"#,
            _ => "",
        };
        let spec = format!(r#""cidr":"{cidr}"{mode}{uses}"#);
        let spec = (mode.len() + usize::from(which) % 11 > 3).then_some(spec);
        self.put("ippools", &format!("p{}", which % 4), spec.as_deref());
    }

    fn node(&mut self, which: u8, how: u8) {
        let which = which % 5;
        let n = which + 1;
        let subnet = u8::from(how % 4 == 3);
        // Now and then one has the address of a pod.
        let network = match how % 11 {
            10 => "10.244.1".to_owned(),
            _ => format!("10.0.{subnet}"),
        };
        let mut spec = format!(
            r#""bgp":{{"ipv4Address":"{network}.{n}/24","ipv6Address":"fd00:a::{n}/64","ipv4IPIPTunnelAddr":"10.244.{which}.1"}}"#
        );
        if !how.is_multiple_of(5) {
            // Now and then two have one address.
            let vtep = if how % 16 == 15 { 1 } else { which };
            spec += &format!(
                r#","ipv4VXLANTunnelAddr":"10.244.{vtep}.0","ipv6VXLANTunnelAddr":"fd00:10::{vtep}:1""#
            );
        }
        if how % 13 == 12 {
            // An address that routes to blocks would cover.
            spec += r#","addresses":[{"address":"10.244.1.5","type":"InternalIP"},{"address":"fd00:10::1:1"}]"#;
        }
        let spec = (how % 7 < 6).then_some(spec);
        self.put("nodes", NAMES[usize::from(which)], spec.as_deref());
    }

    fn block(&mut self, which: u8, owner: u8, guests: &[(u8, u8)]) {
        let which = which % 11;
        let cidr: Prefix = match which {
            0..=4 => Prefix::v4([10, 244, which, 0].into(), 26),
            5..=7 => format!("fd00:10::{}:0/122", which - 5).parse().unwrap(),
            8 => "10.244.9.9/32".parse().unwrap(),
            9 => "10.0.1.0/26".parse().unwrap(),
            _ => "10.245.0.0/26".parse().unwrap(),
        };
        let key = Key::Block(cidr).to_path();
        let revision = self.snapshot.revision + 1;
        if owner % 9 == 8 {
            self.snapshot.apply(&key, None, revision);
            return;
        }
        let owner = match owner % 9 {
            7 => BlockOwner::Virtual("load-balancer".into()),
            at => BlockOwner::Host(NAMES[usize::from(at % 5)].into()),
        };
        let mut block = Block::new(cidr, Some(&owner), 1);
        for (ordinal, node) in guests {
            let ordinal = usize::from(*ordinal) % block.allocations.len().min(4);
            let node = NAMES[usize::from(node % 5)].to_owned();
            block.allocations[ordinal] = Some(block.attributes.len());
            block.unallocated.retain(|free| *free != ordinal);
            block.attributes.push(AllocationAttribute {
                secondary: [("node".to_owned(), node)].into(),
                ..AllocationAttribute::default()
            });
        }
        self.snapshot.apply(&key, Some(&block.to_json()), revision);
    }

    fn check(&mut self) {
        let host_routes = HostRoutes::default().with_paths(Arc::clone(&self.paths));
        let none = BTreeSet::new();
        let inputs = PlanInputs {
            snapshot: &self.snapshot,
            me: &"a".into(),
            learned: &self.learned,
            links: &self.links,
            host_routes: &host_routes,
            settings: &self.settings,
            kernel: &self.kernel,
            lifelines: &none,
        };
        let resolved = inputs.resolved();
        let inputs = PlanInputs {
            learned: &resolved,
            ..inputs
        };
        let mut job = self.planning.begin(&inputs);
        while !job.step(self.slice) {}
        let planned = self.planning.end(job);
        let whole = plan(&inputs);
        assert_eq!(planned.desired, whole);
        assert_eq!(planned.kinds, whole.count_by_kind());
        let index = self.planning.0.as_ref().and_then(|s| s.blocks.as_ref());
        let anew = BlocksByNode::from_snapshot(&self.snapshot);
        for name in NAMES.map(NodeName::from) {
            let of = |index: &BlocksByNode| index.of_node(&name).iter().copied().collect();
            let anew: BTreeSet<Prefix> = of(&anew);
            assert!(index.is_none_or(|index| of(index) == anew), "{name}");
        }
        if let Changed::Keys(keys) = &planned.changed {
            self.by_key += 1;
            let same = |prefix: &Prefix| {
                let kept = |d: &Desired| {
                    (
                        d.routes.get(prefix).cloned(),
                        d.deferred.get(prefix).copied(),
                    )
                };
                kept(&self.last) == kept(&whole)
            };
            let routes = whole.routes.keys().chain(self.last.routes.keys());
            for prefix in routes.filter(|prefix| !keys.prefixes.contains(prefix)) {
                assert!(same(prefix), "{prefix} changed and was not named");
            }
            let neighbours = whole.neighbours.changed_since(&self.last.neighbours);
            assert!(neighbours.iter().all(|key| keys.neighbours.contains(key)));
            let fdb = whole.fdb.changed_since(&self.last.fdb);
            assert!(fdb.iter().all(|key| keys.fdb.contains(key)));
            assert_eq!(whole.tunnels, self.last.tunnels);
            assert!(keys.nat || whole.nat == self.last.nat);
        }
        self.apply_changes(&planned.changed, &whole);
        self.last = whole;
    }
}

impl History {
    /// Operations by key and by the whole comparison are the same, pass by pass.
    fn apply_changes(&mut self, changed: &Changed, whole: &Desired) {
        if self.seen != self.links {
            self.follow_links();
        }
        let mut changed = changed.clone();
        for _ in 0..4 {
            let phase = Phase::Synced;
            let expected = diff(whole, &self.machine, phase);
            let comparison = &mut self.comparison;
            let mut comparing = comparison.begin(&changed, whole, &self.machine, phase);
            while !comparing.step(self.slice) {}
            let (ops, found) = comparison.end(comparing);
            assert_eq!(found, conflicts(whole, &self.machine));
            let text = |ops: &[Op]| ops.iter().map(Op::to_string).collect::<Vec<_>>();
            assert_eq!(text(&ops), text(&expected));
            let all = ops.iter().all(|op| {
                let done = apply_op(&mut self.machine, op).is_ok();
                // Others follow these, and are seen when the kernel is read.
                done && !matches!(
                    op,
                    Op::AddTunnel(_) | Op::DeleteTunnel(_) | Op::SetTunnel(_)
                )
            });
            if all {
                self.comparison.is_done(whole, phase);
            }
            if ops.is_empty() {
                return;
            }
            changed = Changed::Keys(ChangedKeys::default());
        }
    }

    /// The interfaces of the machine, but for its tunnels, are these from now on.
    fn follow_links(&mut self) {
        let is_other = |link: &&Link| !is_tunnel_device(link.name.as_str());
        let there: Vec<Link> = self
            .machine
            .links
            .iter()
            .filter(is_other)
            .cloned()
            .collect();
        for link in there {
            if self.links.by_name(link.name.as_str()) != Some(&link) {
                self.machine.remove_link(&link.name);
            }
        }
        for link in self.links.iter() {
            self.machine.links.insert(link.clone());
        }
        self.seen = self.links.clone();
        self.comparison.kernel_was_read();
    }
}

/// Blocks, addresses inside and outside, and what covers nodes.
fn prefix(at: u8) -> Prefix {
    let n = at % 5;
    match at % 8 {
        0 | 1 => Prefix::v4([10, 244, n, 0].into(), 26),
        2 => Prefix::v4([10, 244, n, at % 4].into(), 32),
        3 => Prefix::v4([10, 244, n, 32].into(), 27),
        4 => Prefix::v4([10, 0, 1, 0].into(), 24 + n),
        5 => Prefix::v4([192, 168, n, 0].into(), 24),
        6 => format!("fd00:10::{}:0/122", n % 3).parse().unwrap(),
        _ => format!("fd00:10::{}:{}", n % 3, at % 3).parse().unwrap(),
    }
}

proptest! {
    #[test]
    fn after_any_history_by_key_is_whole(
        history in proptest::collection::vec(proptest::collection::vec(step(), 1..3), 1..25),
        objects: bool,
        slice in prop_oneof![1usize..6, Just(usize::MAX)],
    ) {
        let mut world = History::new(objects);
        world.slice = slice;
        world.check();
        for steps in &history {
            for step in steps {
                world.step(step);
            }
            world.check();
        }
    }
}

#[test]
fn changes_of_few_keys_are_planned_by_key() {
    let mut world = History::new(false);
    world.check();
    for step in [
        Step::Block(3, 1, Vec::new()),
        Step::Block(3, 2, vec![(1, 1)]),
        Step::Node(3, 1),
        Step::Node(3, 6),
        Step::Workload(1, 0, 2),
        Step::Interface(0, 2),
        Step::Learned(5, 2, 2),
        Step::Learned(0, 2, 2),
        Step::Block(3, 8, Vec::new()),
    ] {
        let before = world.by_key;
        world.step(&step);
        world.check();
        assert_eq!(world.by_key, before + 1, "{step:?} was planned whole");
    }
}

/// A pool that needs no other device plans what lies inside it.
#[test]
fn a_pool_plans_its_own_destinations() {
    let mut world = History::new(false);
    // Beside it: another pool of the same kind, so that the device stays.
    world.step(&Step::Pool(1, 3));
    world.step(&Step::Learned(5, 2, 2));
    world.check();
    for step in [
        Step::Pool(1, 2),
        Step::Pool(0, 2),
        Step::Pool(1, 3),
        Step::Pool(0, 3),
    ] {
        let before = world.by_key;
        world.step(&step);
        take_looks();
        world.check();
        assert_eq!(world.by_key, before + 1, "{step:?} was planned whole");
    }
}

/// A pool for load balancers alone makes routes as long as nodes have something of it; the first
/// and the last of that is planned by key.
#[test]
fn a_pool_for_load_balancers_follows_what_is_in_use() {
    const LOAD_BALANCERS: u8 = 16 * 13;
    let mut world = History::new(false);
    world.step(&Step::Block(1, 8, Vec::new()));
    // The device stays: a wider pool needs it, too.
    world.step(&Step::Pool(1, 3));
    world.check();
    let masquerades = |world: &History| {
        let nat = world.last.nat.as_ref().unwrap();
        let pool = "10.244.1.0/24".parse().unwrap();
        nat.ipv4.masquerade.contains(&pool)
    };
    assert!(masquerades(&world));
    for (step, expected) in [
        (Step::Pool(1, 3 + LOAD_BALANCERS), false),
        (Step::Block(1, 1, Vec::new()), true),
        // A load balancer's.
        (Step::Block(1, 7, Vec::new()), false),
        // A workload of this node without a block.
        (Step::Workload(1, 0, 26), true),
        (Step::Workload(10, 0, 26), false),
        (Step::Block(1, 2, vec![(1, 1)]), true),
        (Step::Block(1, 8, Vec::new()), false),
        (Step::Pool(1, 3), true),
    ] {
        let before = world.by_key;
        world.step(&step);
        world.check();
        assert_eq!(world.by_key, before + 1, "{step:?} was planned whole");
        assert_eq!(masquerades(&world), expected, "{step:?}");
    }
}

/// However many blocks there are, a step of a plan or a comparison looks at no more than it may.
#[test]
fn the_whole_comes_in_slices() {
    const BLOCKS: usize = 3000;
    const MOST: usize = 100;
    for objects in [false, true] {
        let mut world = History::new(objects);
        for n in 0..u16::try_from(BLOCKS).unwrap() {
            let [high, low] = (n * 8 + 4096).to_be_bytes();
            let cidr = Prefix::v4([10, 244, high, low].into(), 29);
            let owner = BlockOwner::Host(NAMES[usize::from(n % 3)].into());
            let block = Block::new(cidr, Some(&owner), 1).to_json();
            let revision = world.snapshot.revision + 1;
            let key = Key::Block(cidr).to_path();
            world.snapshot.apply(&key, Some(&block), revision);
        }
        let (host_routes, none) = (HostRoutes::default(), BTreeSet::new());
        let inputs = PlanInputs {
            snapshot: &world.snapshot,
            me: &"a".into(),
            learned: &world.learned,
            links: &world.links,
            host_routes: &host_routes,
            settings: &world.settings,
            kernel: &world.kernel,
            lifelines: &none,
        };
        let counted = |step: &mut dyn FnMut() -> bool| {
            let mut all = 0;
            loop {
                take_looks();
                let done = step();
                let looks = take_looks();
                assert!(looks <= MOST, "{looks} in one step");
                all += looks;
                if done {
                    return all;
                }
            }
        };
        let mut job = world.planning.begin(&inputs);
        assert!(counted(&mut || job.step(MOST)) >= BLOCKS);
        let desired = world.planning.end(job).desired;
        assert!(desired.routes.len() >= BLOCKS);
        // Into an empty kernel, in step with it, and with everything unwanted.
        let mut machine = Actual {
            links: world.links.clone(),
            ..Actual::default()
        };
        let nothing = Desired {
            ownership: desired.ownership.clone(),
            ..Desired::default()
        };
        for (wanted, least, left) in [
            (&desired, BLOCKS, BLOCKS),
            (&desired, 0, 0),
            (&nothing, BLOCKS, 0),
        ] {
            for turn in 0..3 {
                let phase = Phase::Synced;
                let changed = Changed::All;
                let mut comparing = world.comparison.begin(&changed, wanted, &machine, phase);
                let looks = counted(&mut || comparing.step(MOST));
                assert!(turn > 0 || looks >= least);
                let (ops, _) = world.comparison.end(comparing);
                for op in &ops {
                    apply_op(&mut machine, op).unwrap();
                }
                if ops.is_empty() {
                    break;
                }
            }
            assert!(machine.routes.len() >= left);
        }
        assert!(
            machine.routes.is_empty(),
            "{:?}",
            machine.routes.keys().next()
        );
    }
}

/// Ways come to be shared and cease to be, objects move on with the node they lead to, and nothing
/// of it needs a look at the whole.
#[test]
fn with_objects_changes_of_few_keys_are_compared_by_key() {
    let mut world = History::new(true);
    // Outside the pools, where learned routes decide.
    world.step(&Step::Learned(5, 2, 2));
    world.check();
    world.check();
    let before = world.machine.objects.len();
    let objects = |world: &History| world.machine.objects.len() - before;
    for (routes, hop, expected) in [
        (&[21][..], 2, 1), // a second route the same way: an object
        (&[37], 2, 1),     // a third
        (&[13], 3, 1),     // another way
        (&[21], 3, 2),     // two gateways that are shared
        (&[13, 21], 5, 2), // all routes over one gateway go over another: the object is changed
        (&[37], 4, 1),     // one route is left over a gateway: its object is needed no more
        (&[13], 3, 0),     // and of the other
        (&[21], 3, 1),
        (&[5, 13, 21], 4, 0),
    ] {
        let before = world.comparison.by_key();
        for at in routes {
            world.step(&Step::Learned(*at, hop, 2));
        }
        world.check();
        let by_key = world.comparison.by_key();
        assert!(by_key > before, "{routes:?} by {hop}: compared whole");
        assert_eq!(objects(&world), expected, "{routes:?} by {hop}");
    }
}

/// A route that waits for its far end keeps everything on its device; what was unwanted meanwhile
/// goes afterwards.
#[test]
fn what_a_held_route_kept_goes_once_none_is_held() {
    let mut world = History::new(false);
    world.check();
    for (step, entries) in [
        (Step::Node(2, 5), 3), // its VTEPs are gone, and its route over IPv4 stays
        (Step::Node(1, 6), 2), // a node leaves, and its entry stays for now
        (Step::Node(2, 1), 2),
    ] {
        world.step(&step);
        world.check();
        assert_eq!(world.machine.fdb.len(), entries, "{step:?}");
    }
}
