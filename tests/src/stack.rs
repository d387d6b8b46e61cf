//! The same scenario over IPv4, over IPv6, and over both at once.
//!
//! Examples are written for IPv4; the other stacks are derived from them by one rule, so that a
//! scenario says nothing of families: `10.0.1.11` becomes `fd00:10:0:1::11`, `10.0.1.0/24` becomes
//! `fd00:10:0:1::/64`, a /26 block a /122.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use caracal_lab::Lab;
use caracal_model::{Family, Prefix};
use serde_json::{Value, json};

use crate::datastore::{on_kubernetes_datastore, put_calico_resource};
use crate::program::possible;
use crate::scenario::{example, up_text};

/// Which families a cluster speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone: no IPv4 address on any node, and etcd over IPv6.
    Ipv6,
    /// Both on every node and every pod.
    Dual,
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Dual => "dual stack",
        })
    }
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ipv4, Self::Ipv6, Self::Dual];

    /// IPv4 first.
    #[must_use]
    pub const fn families(self) -> &'static [Family] {
        match self {
            Self::Ipv4 => &[Family::Ipv4],
            Self::Ipv6 => &[Family::Ipv6],
            Self::Dual => &[Family::Ipv4, Family::Ipv6],
        }
    }

    /// A topology's text with other pools, as `pool` and `pool6`: small ones have no counterpart by
    /// rule.
    ///
    /// # Panics
    /// When it is no topology.
    #[must_use]
    pub fn with_pools(self, text: &str, pool_of: impl Fn(Family) -> Value) -> String {
        let mut topology: Value =
            serde_saphyr::from_str(&self.topology(text)).expect("a topology is YAML");
        for (key, family) in ["pool", "pool6"].into_iter().zip(self.families()) {
            topology[key] = pool_of(*family);
        }
        topology.to_string()
    }

    /// The name of a scenario's lab on this stack.
    #[must_use]
    pub fn lab(self, name: &str) -> String {
        match self {
            Self::Ipv4 => name.to_owned(),
            Self::Ipv6 => format!("{name}-6"),
            Self::Dual => format!("{name}-46"),
        }
    }

    /// An IPv4 topology's text for this stack.
    ///
    /// # Panics
    /// When it is no topology, or its addresses are not IPv4.
    #[must_use]
    pub fn topology(self, text: &str) -> String {
        if self == Self::Ipv4 {
            return text.to_owned();
        }
        let mut topology: Value = serde_saphyr::from_str(text).expect("a topology is YAML");
        for segment in list(&mut topology, "segments") {
            self.put(segment, "cidr", &|text| subnet(text, 64));
        }
        for router in list(&mut topology, "routers") {
            for leg in list(router, "legs") {
                self.put(leg, "address", &address);
            }
        }
        for node in list(&mut topology, "nodes") {
            self.put(node, "address", &address);
        }
        let pool = pool(&topology["pool"]);
        match self {
            Self::Dual => topology["pool6"] = pool,
            _ => topology["pool"] = pool,
        }
        topology.to_string()
    }

    /// Puts the IPv6 counterpart of a value beside it or in its place.
    fn put(self, object: &mut Value, key: &str, counterpart: &dyn Fn(&str) -> String) {
        let Some(text) = object[key].as_str() else {
            return;
        };
        let value = json!(counterpart(text));
        match self {
            Self::Dual => object[format!("{key}6")] = value,
            _ => object[key] = value,
        }
    }
}

fn list<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    let list = value.get_mut(key).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

fn address(text: &str) -> String {
    let address: Ipv4Addr = text.parse().expect("an IPv4 address");
    let [a, b, c, d] = address.octets();
    format!("fd00:{a}:{b}:{c}::{d}")
}

fn subnet(text: &str, len: u8) -> String {
    let prefix: Prefix = text.parse().expect("an IPv4 subnet");
    let network = address(&prefix.address().to_string());
    let network: Ipv6Addr = network.parse().expect("an IPv6 address");
    Prefix::v6(network, len).to_string()
}

fn pool(pool: &Value) -> Value {
    let cidr = pool["cidr"].as_str().unwrap_or("10.244.0.0/16");
    let block = pool["blockSize"].as_u64().unwrap_or(26);
    let mut counterpart = json!({
        "cidr": subnet(cidr, 64),
        "blockSize": block + 96,
        "natOutgoing": pool["natOutgoing"].as_bool().unwrap_or(true),
    });
    if !pool["vxlanMode"].is_null() {
        counterpart["vxlanMode"] = pool["vxlanMode"].clone();
    }
    counterpart
}

/// An address of a node in each family of its lab.
///
/// # Panics
/// When there is no such node.
#[must_use]
pub fn addresses(lab: &Lab, node: &str) -> Vec<std::net::IpAddr> {
    let layout = lab.layout().node(node).expect("a node of the lab");
    layout.uplink.addresses().map(|(a, _)| a).collect()
}

/// The family that a scenario of one family looks at: IPv6 where the lab speaks it. IPv4 has a lab
/// of its own.
#[must_use]
pub fn focus(lab: &Lab) -> Family {
    match speaks(lab, Family::Ipv6) {
        true => Family::Ipv6,
        false => Family::Ipv4,
    }
}

/// The same in either family.
#[must_use]
pub const fn either<T>(family: Family, ipv4: T, ipv6: T) -> T
where
    T: Copy,
{
    match family {
        Family::Ipv4 => ipv4,
        Family::Ipv6 => ipv6,
    }
}

/// `caracal ipam why …`, which is of IPv4 unless it is told otherwise.
#[must_use]
pub fn ipam_why<'a>(family: Family, arguments: &[&'a str]) -> Vec<&'a str> {
    let flags: &[&str] = match family {
        Family::Ipv4 => &[],
        Family::Ipv6 => &["-6"],
    };
    [&["ipam", "why"], arguments, flags].concat()
}

/// The address of a node in a family.
///
/// # Panics
/// When there is no such node, or it has none.
#[must_use]
pub fn address_of(lab: &Lab, node: &str, family: Family) -> std::net::IpAddr {
    let layout = lab.layout().node(node).expect("a node of the lab");
    layout.uplink.address_of(family).expect("of this family").0
}

/// The number of families of a lab.
#[must_use]
pub fn family_count(lab: &Lab) -> usize {
    lab.topology().families().len()
}

/// One more pool with VXLAN, which a running cluster does not have yet: written into its datastore.
/// Of IPv6 where the lab speaks it. Gives the tunnel that it brings.
///
/// # Panics
/// When the datastore does not take it.
#[must_use]
pub fn late_pool(lab: &Lab) -> &'static str {
    let (cidr, device) = match speaks(lab, Family::Ipv6) {
        true => ("fd00:99::/64", "vxlan-v6.calico"),
        false => ("10.99.0.0/16", "vxlan.calico"),
    };
    let pool = json!({
        "kind": "IPPool",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "late"},
        "spec": {"cidr": cidr, "vxlanMode": "Always"},
    });
    put_calico_resource(lab, "ippools", &pool);
    device
}

/// True when a lab speaks a family.
#[must_use]
pub fn speaks(lab: &Lab, family: Family) -> bool {
    lab.topology().families().contains(&family)
}

/// Runs a scenario on labs of all stacks, side by side: what it waits for, it waits for once.
/// `name` begins the names of the labs.
///
/// # Panics
/// When the scenario does on any of them.
pub fn on_each_stack(
    scenario: &str,
    programs: &[&str],
    topology: &str,
    name: &str,
    body: impl Fn(Lab) + Sync,
) {
    let text = std::fs::read_to_string(example(topology)).expect("an example");
    on_each_stack_of(scenario, programs, &text, name, body);
}

/// The same on an IPv4 topology's text.
///
/// # Panics
/// When the scenario does on any of them.
pub fn on_each_stack_of(
    scenario: &str,
    programs: &[&str],
    text: &str,
    name: &str,
    body: impl Fn(Lab) + Sync,
) {
    on_stacks(scenario, programs, name, |stack| stack.topology(text), body);
}

/// The same on a text for each stack, where no rule derives one from the other.
///
/// # Panics
/// When the scenario does on any of them.
pub fn on_stacks(
    scenario: &str,
    programs: &[&str],
    name: &str,
    text: impl Fn(Stack) -> String,
    body: impl Fn(Lab) + Sync,
) {
    let place = |stack: Stack| Place {
        what: stack.to_string(),
        lab: stack.lab(name),
        text: text(stack),
    };
    side_by_side(scenario, programs, || Stack::ALL.map(place).into(), body);
}

/// Runs a scenario on labs of all stacks whose datastore is etcd, and on a dual-stack lab whose
/// datastore is Kubernetes' API, side by side. `name` begins the names of the labs.
///
/// # Panics
/// When the scenario does on any of them.
pub fn on_each_stack_and_datastore(
    scenario: &str,
    programs: &[&str],
    topology: &str,
    name: &str,
    body: impl Fn(Lab) + Sync,
) {
    let text = std::fs::read_to_string(example(topology)).expect("an example");
    on_each_stack_and_datastore_of(
        scenario,
        programs,
        name,
        |stack, _lab| stack.topology(&text),
        body,
    );
}

/// The same on a text for each stack and name of a lab.
///
/// # Panics
/// When the scenario does on any of them.
pub fn on_each_stack_and_datastore_of(
    scenario: &str,
    programs: &[&str],
    name: &str,
    text: impl Fn(Stack, &str) -> String,
    body: impl Fn(Lab) + Sync,
) {
    let programs = [programs, &["kubectl", "openssl"][..]].concat();
    let places = || {
        let place = |stack: Stack| {
            let lab = stack.lab(name);
            Place {
                what: stack.to_string(),
                text: text(stack, &lab),
                lab,
            }
        };
        let mut places: Vec<_> = Stack::ALL.map(place).into();
        places.push(place_in_kubernetes(name, |lab| text(Stack::Dual, lab)));
        places
    };
    side_by_side(scenario, &programs, places, body);
}

fn place_in_kubernetes(name: &str, text: impl Fn(&str) -> String) -> Place {
    let lab = format!("{name}-k8");
    Place {
        what: "Kubernetes' API".to_owned(),
        text: on_kubernetes_datastore(&text(&lab)),
        lab,
    }
}

/// Runs a scenario on two IPv4 labs side by side, one for each datastore. `name` begins their
/// names.
///
/// # Panics
/// When the scenario does on any of them.
pub fn on_each_datastore(scenario: &str, text: &str, name: &str, body: impl Fn(Lab) + Sync) {
    let in_etcd = Place {
        what: "etcd".to_owned(),
        text: text.to_owned(),
        lab: Stack::Ipv4.lab(name),
    };
    let in_kubernetes = place_in_kubernetes(name, |_lab| text.to_owned());
    let places = || vec![in_etcd, in_kubernetes];
    side_by_side(scenario, &["kubectl", "openssl"], places, body);
}

/// A lab of a scenario.
struct Place {
    what: String,
    lab: String,
    text: String,
}

fn side_by_side(
    scenario: &str,
    programs: &[&str],
    places: impl FnOnce() -> Vec<Place>,
    body: impl Fn(Lab) + Sync,
) {
    if !possible(scenario, programs) {
        return;
    }
    std::thread::scope(|scope| {
        for place in places() {
            let body = &body;
            std::thread::Builder::new()
                .name(format!("{scenario} ({})", place.what))
                .spawn_scoped(scope, move || {
                    body(up_text(&place.text, scenario, &place.lab));
                })
                .expect("a thread");
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_lab::Topology;

    use super::*;

    #[test]
    fn every_example_has_its_counterparts() {
        for name in ["full-mesh", "cross-subnet", "rr-pair", "mixed-bird"] {
            let text = std::fs::read_to_string(example(name)).unwrap();
            let families = |stack: Stack| {
                let text = stack.topology(&text);
                Topology::parse(&text, name).unwrap().families()
            };
            assert_eq!(families(Stack::Ipv4), [Family::Ipv4]);
            assert_eq!(families(Stack::Ipv6), [Family::Ipv6]);
            assert_eq!(families(Stack::Dual), [Family::Ipv4, Family::Ipv6]);
        }
    }

    #[test]
    fn addresses_keep_their_digits() {
        let text = std::fs::read_to_string(example("cross-subnet")).unwrap();
        let topology = Topology::parse(&Stack::Dual.topology(&text), "t").unwrap();
        let node = topology.node("node3").unwrap();
        let second = node.address6.as_ref().unwrap().value.to_string();
        assert_eq!(second, "fd00:10:0:2::11");
        let pool = topology.pool_of(Family::Ipv6).unwrap();
        assert_eq!(pool.cidr.value.to_string(), "fd00:10:244::/64");
        assert_eq!((pool.block_size(), pool.nat_outgoing()), (122, true));
    }
}
