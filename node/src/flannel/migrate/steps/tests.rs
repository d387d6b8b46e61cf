#![allow(clippy::unwrap_used)]

use caracal_agent::{Actual, ActualRoute, FLANNEL_PROTOCOL, ForwardingTarget, Link, Route};
use caracal_flannel::{FlannelKeys, LeaseTable, SubnetEnv};
use caracal_ipam::{Reading, all_ranges};
use caracal_model::{Block, IpPool, IpamConfig, Key, KeyValue, Kind};

use super::*;
use crate::flannel::migrate::end::hindrance;

const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// Node n1 with the lease 10.5.1.0/24 and a bridge, beside 10.5.2.0/24; everything by hand is done.
struct World {
    facts: Facts,
    cni: Option<CniConfiguration>,
    held: Option<BTreeMap<IpAddr, LocalHolder>>,
    stored: Vec<KeyValue>,
    runs: bool,
}

fn route(prefix: &str, metric: u32) -> ActualRoute {
    let target = ForwardingTarget::via(None, &"flannel.1".into(), false);
    ActualRoute::from(Route {
        prefix: prefix.parse().unwrap(),
        metric,
        protocol: FLANNEL_PROTOCOL,
        target,
        mtu: None,
        source: None,
    })
}

impl World {
    fn new() -> Self {
        let keys = FlannelKeys::new("/n");
        let mut table = LeaseTable::new(keys);
        for node in [1, 2] {
            let key = format!("/n/subnets/10.5.{node}.0-24");
            let value = format!(
                r#"{{"PublicIP":"10.0.0.{node}","BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:00:00:00:00:0{node}"}}}}"#
            );
            table.change(&key, Some(value.as_bytes()), 3);
        }
        let mut bridge = Link::new(3, "cni0").with_address("10.5.1.1/24".parse().unwrap());
        bridge.kind = "bridge".to_owned();
        let mut actual = Actual {
            links: [bridge].into_iter().collect(),
            ..Actual::default()
        };
        actual.push_route(route("10.5.2.0/24", 100));
        let env = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        let facts = Facts {
            place: "/n/config".to_owned(),
            config: FlannelConfig::parse(CONFIG.as_bytes()).map_err(|e| e.to_string()),
            table,
            left: BTreeMap::new(),
            env: SubnetEnv::parse(env).map_err(|e| e.to_string()),
            actual,
        };
        let ours = LocalHolder::Container("abc".to_owned(), "eth0".to_owned());
        Self {
            facts,
            cni: Some(CniConfiguration {
                file: "10-flannel.conflist".to_owned(),
                ours: Some("net".to_owned()),
            }),
            held: Some([(IpAddr::from([10, 5, 1, 2]), ours)].into()),
            stored: Vec::new(),
            runs: false,
        }
    }

    fn put(&mut self, key: &Key, value: Vec<u8>) {
        self.stored.push(KeyValue {
            key: key.to_path(),
            value,
            mod_revision: 7,
        });
    }

    fn configure(&mut self, backend: &str) {
        let text = CONFIG.replace(r#""Backend":{"Type":"vxlan"}"#, backend);
        let config = FlannelConfig::parse(text.as_bytes());
        self.facts.config = config.map_err(|e| e.to_string());
    }

    fn put_block(&mut self, cidr: &str, node: &str) {
        let owner = BlockOwner::Host(node.into());
        let block = Block::new(cidr.parse().unwrap(), Some(&owner), 1);
        self.put(&Key::Block(block.cidr), block.to_json());
    }

    fn put_pool(&mut self, change: impl FnOnce(&mut IpPoolSpec)) {
        let config = self.facts.config.clone().unwrap();
        let mut spec = pool_spec(&config.backend, config.v4.as_ref().unwrap(), true);
        change(&mut spec);
        let pool = IpPool::new("old", spec);
        self.put(&Key::resource(Kind::IpPool, "old"), pool.to_json());
    }

    fn steps(&self) -> Vec<MigrationStep> {
        self.with(steps)
    }

    fn with<T>(&self, answer: impl FnOnce(&Seen<'_>) -> T) -> T {
        let mut data = IpamData::default();
        let ranges = vec![self.stored.clone()];
        let reading = Reading {
            revision: 7,
            ranges,
        };
        data.absorb(&all_ranges(), reading);
        answer(&Seen {
            facts: &self.facts,
            node: &"n1".into(),
            cni: self.cni.clone(),
            held: self.held.clone(),
            data: &data,
            runs: self.runs,
        })
    }

    /// A step's state and text.
    fn step(&self, name: &str) -> (StepState, String) {
        let found = self.steps().into_iter().find(|step| step.name == name);
        let step = found.unwrap_or_else(|| panic!("{name}: {:?}", self.steps()));
        (step.state, step.text)
    }

    #[track_caller]
    fn assert(&self, name: &str, state: StepState, says: &str) {
        let (seen, text) = self.step(name);
        assert!(
            seen == state && text.contains(says),
            "{name}: {seen:?} {text}"
        );
    }
}

#[test]
fn a_node_that_is_ready_goes_over() {
    use StepState::{Apply, Done, Later};
    let mut world = World::new();
    let states: Vec<_> = world.steps().iter().map(|s| (s.name, s.state)).collect();
    assert_eq!(
        states,
        [
            ("network", Done),
            ("lease", Done),
            ("routes", Done),
            ("cni", Done),
            ("ipam", Apply),
            ("pool", Apply),
            ("block", Apply),
            ("node", Later),
            ("other", Later),
            ("end", Later),
        ]
    );
    world.assert("block", Apply, "with 1 addresses of host-local's");
    world.assert(
        "pool",
        Apply,
        "blockSize 24, vxlanMode Always, natOutgoing true",
    );
    world.assert("other", Later, "10.5.2.0/24 (10.0.0.2)");
    // Afterwards.
    let config = IpamConfig {
        strict_affinity: true,
        auto_allocate_blocks: false,
        ..IpamConfig::default()
    };
    world.put(&Key::IpamConfig, config.to_json());
    world.put_pool(|_| {});
    world.put_block("10.5.1.0/24", "n1");
    world.put_block("10.5.2.0/24", "n2");
    for step in ["ipam", "pool", "block"] {
        assert_eq!(world.step(step).0, Done, "{step}");
    }
    assert!(world.steps().iter().all(|step| step.name != "other"));
    world.assert("end", Later, "every lease is a block");
}

#[test]
fn what_has_to_be_done_first_is_named() {
    use StepState::{Before, Refused};
    let mut world = World::new();
    world.facts.actual.push_route(route("10.5.2.0/24", 0));
    world.assert("routes", Before, "to 10.5.2.0/24 have the metric 0");
    world.facts.actual.routes.clear();
    world.assert(
        "routes",
        Before,
        "no route of flannel's to 10.5.2.0/24 (10.0.0.2)",
    );
    world.cni = world.cni.map(|cni| CniConfiguration { ours: None, ..cni });
    world.assert("cni", Before, "CNI_CONF_NAME=10-flannel.conflist");
    world.cni = None;
    world.assert("cni", Before, "caracal install-cni");
    // Another cluster's data are there.
    world.put_block("10.244.0.0/26", "x");
    world.assert("ipam", Before, "--auto-allocate-blocks=false");
    world.put_block("10.5.1.64/26", "x");
    world.assert("block", Refused, "block 10.5.1.64/26 is host:x's");
    world.held = None;
    world.assert("block", Refused, "--networks-dir");
}

#[test]
fn pools_that_are_not_flannels_are_refused() {
    use StepState::{Done, Refused};
    type Change = fn(&mut IpPoolSpec);
    let changes: [(Change, &str); 5] = [
        (|spec| spec.block_size = 26, "blockSize 26"),
        (|spec| spec.cidr = "10.5.0.0/17".to_owned(), "10.5.0.0/17"),
        (|spec| spec.vxlan_mode = EncapMode::Never, "vxlanMode Never"),
        (|spec| spec.ipip_mode = EncapMode::Always, "cannot be read"),
        (|spec| spec.disabled = true, "disabled true"),
    ];
    for (change, says) in changes {
        let mut world = World::new();
        world.put_pool(change);
        world.assert("pool", Refused, says);
    }
    for (backend, mode) in [
        (r#""Backend":{"Type":"host-gw"}"#, EncapMode::Never),
        (
            r#""Backend":{"Type":"vxlan","DirectRouting":true}"#,
            EncapMode::CrossSubnet,
        ),
    ] {
        let mut world = World::new();
        world.configure(backend);
        world.put_pool(|spec| assert_eq!(spec.vxlan_mode, mode));
        world.assert("pool", Done, "IPPool old");
    }
}

#[test]
fn networks_that_cannot_go_over_are_refused() {
    for (backend, says) in [
        (r#""Backend":{"Type":"udp"}"#, "change the Backend"),
        (r#""Backend":{"Type":"alloc"}"#, "change the Backend"),
        (
            r#""Backend":{"Type":"vxlan","VNI":4096,"Port":4789}"#,
            "that of vxlan.calico",
        ),
        (
            r#""SubnetLen":18,"Backend":{"Type":"vxlan"}"#,
            "a block is a /20 or smaller",
        ),
        (
            r#""EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}"#,
            "IPv4 alone",
        ),
        (r#""SubnetLen":7"#, "SubnetLen: 7 is not between"),
    ] {
        let mut world = World::new();
        world.configure(backend);
        let steps = world.steps();
        assert_eq!(steps.len(), 1, "nothing comes after it: {steps:?}");
        world.assert("network", StepState::Refused, says);
    }
    let mut world = World::new();
    if let Ok(env) = &mut world.facts.env {
        env.masquerades = false;
    }
    world.assert("masquerading", StepState::Note, "drops a packet");
    let longer = r#"{"PublicIP":"10.0.0.3","BackendType":"host-gw"}"#;
    let table = &mut world.facts.table;
    table.change("/n/subnets/10.5.3.128-25", Some(longer.as_bytes()), 3);
    world.assert(
        "lease",
        StepState::Refused,
        "10.5.3.128/25 (10.0.0.3) is no /24",
    );
    world.facts.table = LeaseTable::new(FlannelKeys::new("/n"));
    world.assert(
        "lease",
        StepState::Refused,
        "run `caracal flannel` here first",
    );
}

#[test]
fn flannel_ends_when_nobody_needs_it() {
    let mut world = World::new();
    let own = "10.5.1.0/24".parse().unwrap();
    let hindrance = |world: &World| world.with(|seen| hindrance(seen, own));
    #[track_caller]
    fn assert_says(reason: Option<String>, says: &str) {
        let reason = reason.expect(says);
        assert!(reason.contains(says), "{reason}");
    }
    assert_says(hindrance(&world), "10.5.1.0/24 is no block of n1");
    world.put_pool(|_| {});
    world.put_block("10.5.1.0/24", "n1");
    assert_says(
        hindrance(&world),
        "10.5.2.0/24 (10.0.0.2) is flannel's alone",
    );
    world.put_block("10.5.2.0/24", "n2");
    assert_says(hindrance(&world), "`caracal node` does not answer");
    world.runs = true;
    assert_says(hindrance(&world), "does not reach 10.5.2.0/24 yet");
    let mut agents = route("10.5.2.0/24", 0);
    agents.protocol = 80;
    world.facts.actual.push_route(agents);
    assert_says(hindrance(&world), "is not reached from there");
    let node = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"n2"},
        "spec":{"bgp":{"ipv4Address":"10.0.0.2/24"},"ipv4VXLANTunnelAddr":"10.5.2.3"}}"#;
    world.put(&Key::node(&"n2".into()), node.as_bytes().to_vec());
    assert_eq!(hindrance(&world), None);
    let table = &mut world.facts.table;
    table.change("/n/subnets/10.5.9.0-24", Some(b"{"), 3);
    assert_says(hindrance(&world), "10.5.9.0-24 cannot be read");
    // As another node has left it.
    world.facts.config = Err("there is none".to_owned());
    world.assert(
        "end",
        StepState::Later,
        "there is none; every lease is a block",
    );
    world.runs = false;
    world
        .stored
        .retain(|kv| !kv.key.contains("10-5-1-0") && !kv.key.contains("10.5.1.0"));
    world.assert("network", StepState::Refused, "there is none");
}
