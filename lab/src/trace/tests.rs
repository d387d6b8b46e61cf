//! The walk over a small world: two nodes with a pod each, VXLAN between them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::walk::walk;
use super::*;

/// Simulated answers of kernels, by question.
#[derive(Default)]
struct World {
    interfaces: BTreeMap<String, Vec<Interface>>,
    /// By place and destination.
    lookups: BTreeMap<(String, IpAddr), Lookup>,
    neighbours: BTreeMap<(String, IpAddr), Neighbour>,
    fdb: BTreeMap<(String, String), IpAddr>,
    sysctls: BTreeMap<String, String>,
    masqueraded: bool,
    translated: Option<Translation>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn interface(name: &str, kind: &str, mtu: u32, address: &str, mac: &str) -> Interface {
    Interface {
        name: name.to_owned(),
        up: true,
        carrier: true,
        mtu,
        kind: kind.to_owned(),
        addresses: address.parse().into_iter().collect(),
        mac: mac.to_owned(),
        vxlan: None,
    }
}

fn out(dev: &str, gateway: Option<&str>) -> Lookup {
    Lookup::Out {
        dev: dev.to_owned(),
        gateway: gateway.map(ip),
        mtu: None,
    }
}

impl World {
    fn healthy() -> Self {
        let mut world = Self::default();
        for (node, n, other) in [("a", 1, 2), ("b", 2, 1)] {
            let pod = format!("{node}/p");
            let underlay = format!("10.0.0.{n}");
            let mut vxlan = interface(
                "vxlan.calico",
                "vxlan",
                1450,
                &format!("10.244.{n}.1"),
                &format!("66:00:00:00:00:0{n}"),
            );
            vxlan.vxlan = Some((4096, 4789, Some(ip(&underlay))));
            world.interfaces.insert(
                node.to_owned(),
                vec![
                    interface("eth0", "veth", 1500, &underlay, "02:00:00:00:00:01"),
                    interface("cali1", "veth", 1450, "", "ee:ee:ee:ee:ee:ee"),
                    vxlan,
                ],
            );
            let own = format!("10.244.{n}.5");
            let far = ip(&format!("10.244.{other}.5"));
            world.interfaces.insert(
                pod.clone(),
                vec![interface("eth0", "veth", 1450, &own, "02:00:00:00:00:05")],
            );
            let vtep = format!("10.244.{other}.1");
            let mac = format!("66:00:00:00:00:0{other}");
            let mut put = |place: &str, to: IpAddr, lookup| {
                world.lookups.insert((place.to_owned(), to), lookup);
            };
            put(&pod, far, out("eth0", Some("169.254.1.1")));
            put(&pod, ip(&own), Lookup::Local);
            put(node, far, out("vxlan.calico", Some(&vtep)));
            put(node, ip(&own), out("cali1", None));
            put(node, ip(&underlay), Lookup::Local);
            put(node, ip(&format!("10.0.0.{other}")), out("eth0", None));
            let entry = Neighbour {
                mac: mac.clone(),
                permanent: true,
            };
            world.neighbours.insert((node.to_owned(), ip(&vtep)), entry);
            let remote = ip(&format!("10.0.0.{other}"));
            world.fdb.insert((node.to_owned(), mac), remote);
        }
        world
    }

    fn interface(&mut self, place: &str, name: &str) -> &mut Interface {
        let all = self.interfaces.get_mut(place).unwrap();
        all.iter_mut().find(|i| i.name == name).unwrap()
    }

    fn walk(&self) -> Direction {
        walk(self, ("a/p", ip("10.244.1.5")), ("b/p", ip("10.244.2.5")))
    }
}

impl Look for World {
    fn interfaces(&self, place: &str) -> Result<Vec<Interface>, String> {
        Ok(self.interfaces[place].clone())
    }
    fn lookup(&self, place: &str, packet: &Packet, _: Option<&str>) -> Result<Lookup, String> {
        let key = (place.to_owned(), packet.destination);
        let none = Lookup::Refused("Network is unreachable".to_owned());
        Ok(self.lookups.get(&key).cloned().unwrap_or(none))
    }
    fn neighbour(&self, place: &str, _: &str, to: IpAddr) -> Result<Option<Neighbour>, String> {
        Ok(self.neighbours.get(&(place.to_owned(), to)).cloned())
    }
    fn fdb(&self, place: &str, _: &str, mac: &str) -> Result<Option<IpAddr>, String> {
        Ok(self.fdb.get(&(place.to_owned(), mac.to_owned())).copied())
    }
    fn sysctl(&self, place: &str, key: &str) -> Option<String> {
        self.sysctls.get(&format!("{place} {key}")).cloned()
    }
    fn masquerades(&self, _: &str, _: &Packet) -> Result<bool, String> {
        Ok(self.masqueraded)
    }
    fn translation(&self, _: &str, _: ServicePort) -> Result<Translation, String> {
        self.translated.clone().ok_or_else(|| "no table".to_owned())
    }
    fn beside(&self, place: &str, dev: &str) -> Vec<(String, String)> {
        let end = |place: &str, dev: &str| vec![(place.to_owned(), dev.to_owned())];
        match (place, dev) {
            ("a", "eth0") => end("b", "eth0"),
            ("b", "eth0") => end("a", "eth0"),
            ("a" | "b", "cali1") => end(&format!("{place}/p"), "eth0"),
            (pod, _) => end(pod.split('/').next().unwrap(), "cali1"),
        }
    }
    fn is_pod(&self, place: &str) -> bool {
        place.contains('/')
    }
}

#[test]
fn an_intact_way_is_walked_to_its_end() {
    let direction = World::healthy().walk();
    assert_eq!(direction.broken(), None, "{direction:#?}");
    let places: Vec<&str> = direction.hops.iter().map(|h| h.place.as_str()).collect();
    assert_eq!(places, ["a/p", "a", "a", "a", "b", "b/p"]);
}

#[test]
fn the_tunnel_of_the_other_family_is_passed_over() {
    let mut world = World::healthy();
    for node in ["a", "b"] {
        let mut other = interface(
            "vxlan-v6.calico",
            "vxlan",
            1430,
            "fd00::1",
            "66:06:06:06:06:06",
        );
        other.vxlan = Some((4096, 4789, Some(ip("fd00:10::1"))));
        world.interfaces.get_mut(node).unwrap().insert(0, other);
    }
    let direction = world.walk();
    assert_eq!(direction.broken(), None, "{direction:#?}");
}

type Fault = fn(&mut World);

/// Fault, place where packets stop, and words of the reason.
const TABLE: &[(Fault, &str, &str)] = &[
    (
        |w| w.interface("a/p", "eth0").up = false,
        "a/p",
        "eth0 is down",
    ),
    (
        |w| w.interface("a", "cali1").up = false,
        "a",
        "cali1 is down",
    ),
    (
        |w| w.interface("a", "eth0").carrier = false,
        "a",
        "no carrier",
    ),
    (|w| w.interface("b", "eth0").up = false, "b", "eth0 is down"),
    (
        |w| w.interface("a", "eth0").mtu = 1490,
        "a",
        "1500 octets do not fit",
    ),
    (|w| w.masqueraded = true, "a", "NAT changes the source"),
    (
        |w| drop(w.lookups.remove(&("a".to_owned(), ip("10.244.2.5")))),
        "a",
        "no route to 10.244.2.5 for what arrives on cali1",
    ),
    (
        |w| drop(w.lookups.remove(&("a/p".to_owned(), ip("10.244.2.5")))),
        "a/p",
        "no route to 10.244.2.5 (",
    ),
    (
        |w| {
            let words = Lookup::Refused("Invalid cross-device link".to_owned());
            w.lookups.insert(("b".to_owned(), ip("10.244.2.5")), words);
        },
        "b",
        "rp_filter of vxlan.calico drops it",
    ),
    (
        |w| {
            let words = Lookup::Refused("Invalid argument".to_owned());
            w.lookups.insert(("b".to_owned(), ip("10.244.2.5")), words);
        },
        "b",
        "blackhole",
    ),
    (
        |w| {
            let key = "b net/ipv4/conf/vxlan.calico/forwarding".to_owned();
            w.sysctls.insert(key, "0".to_owned());
        },
        "b",
        "not forwarded",
    ),
    (
        |w| {
            let key = "a net/ipv4/conf/cali1/proxy_arp".to_owned();
            w.sysctls.insert(key, "0".to_owned());
        },
        "a",
        "nobody answers for the pod's gateway",
    ),
    (
        |w| drop(w.neighbours.remove(&("a".to_owned(), ip("10.244.2.1")))),
        "a",
        "no neighbour entry for 10.244.2.1",
    ),
    (|w| w.fdb.clear(), "a", "no FDB entry"),
    (
        |w| {
            let key = ("a".to_owned(), "66:00:00:00:00:02".to_owned());
            w.fdb.insert(key, ip("10.0.0.77"));
        },
        "a",
        "no route to 10.0.0.77",
    ),
    (
        |w| w.interface("b", "vxlan.calico").mac = "66:00:00:00:00:99".to_owned(),
        "b",
        "drops frames",
    ),
    (
        |w| w.interface("b", "vxlan.calico").vxlan = Some((1, 4789, None)),
        "b",
        "no VXLAN device with VNI 4096",
    ),
    (
        |w| w.interface("b", "vxlan.calico").up = false,
        "b",
        "vxlan.calico is down",
    ),
    (
        |w| w.interface("b/p", "eth0").addresses.clear(),
        "b",
        "nobody on the link of cali1 has 10.244.2.5",
    ),
    (
        |w| {
            drop(
                w.lookups
                    .insert(("b".to_owned(), ip("10.244.2.5")), Lookup::Local),
            )
        },
        "b",
        "takes 10.244.2.5 for itself",
    ),
    (
        |w| {
            let entry = Neighbour {
                mac: "02:00:00:00:00:99".to_owned(),
                permanent: true,
            };
            w.neighbours
                .insert(("b".to_owned(), ip("10.244.2.5")), entry);
        },
        "b",
        "the neighbour entry of 10.244.2.5",
    ),
    (
        |w| {
            let back = out("vxlan.calico", Some("10.244.1.1"));
            w.lookups.insert(("b".to_owned(), ip("10.244.2.5")), back);
            let forth = out("vxlan.calico", Some("10.244.2.1"));
            w.lookups.insert(("a".to_owned(), ip("10.244.2.5")), forth);
        },
        "b",
        "in circles",
    ),
];

#[test]
fn each_fault_is_the_broken_hop() {
    for (number, (fault, place, words)) in TABLE.iter().enumerate() {
        let mut world = World::healthy();
        fault(&mut world);
        let direction = world.walk();
        let broken = direction.broken();
        let Some(hop) = broken else {
            panic!("case {number} ({words}): {direction:#?}")
        };
        assert_eq!(
            hop,
            direction.hops.last().unwrap(),
            "nothing comes after it"
        );
        assert_eq!(hop.place, *place, "case {number}: {hop:?}");
        assert!(hop.seen.contains(words), "case {number}: {hop:?}");
    }
}

#[test]
fn a_report_names_the_first_broken_hop_and_distrusts_itself() {
    let mut world = World::healthy();
    let mut report = TraceReport {
        directions: vec![world.walk()],
        ping: Some(Err("no answer".to_owned())),
        connection: None,
    };
    assert!(!report.is_intact());
    assert!(report.render().contains("look for firewall rules"));
    report.ping = Some(Ok("answer".to_owned()));
    assert!(report.is_intact());
    world.fdb.clear();
    report.directions.push(world.walk());
    assert!(!report.is_intact());
    assert!(
        report
            .render()
            .contains("first broken hop: a: vxlan.calico has no FDB entry")
    );
}

#[test]
fn a_service_is_followed_to_each_endpoint() {
    let mut world = World::healthy();
    let ways = |world: &World| {
        let holder = |address: IpAddr| match address.to_string().as_str() {
            "10.244.1.5" => Some("a/p".to_owned()),
            "10.244.2.5" => Some("b/p".to_owned()),
            _ => None,
        };
        let to = "10.96.0.10:80".parse().unwrap();
        service::ways(world, ("a/p", ip("10.244.1.5")), "a", to, holder)
    };
    let to = |all: &[&str]| {
        let all = all.iter().map(|at| at.parse().unwrap());
        Some(Translation::To(all.collect()))
    };
    world.translated = to(&["10.244.2.5:8080", "10.244.1.5:8080", "192.0.2.1:443"]);
    let seen = ways(&world);
    let ends: Vec<(&str, &str)> = seen.iter().map(|d| (&*d.from, &*d.to)).collect();
    let expected = [
        ("a/p", "b/p"),
        ("b/p", "a/p"),
        ("a/p", "a/p"),
        ("a/p", "192.0.2.1:443"),
    ];
    assert_eq!(ends, expected);
    assert!(seen.iter().all(|d| d.broken().is_none()), "{seen:#?}");
    let first = &seen[0].hops[0];
    let becomes = "10.96.0.10:80/tcp becomes 10.244.2.5:8080, one of 3";
    assert_eq!((&*first.place, &*first.seen), ("a", becomes));
    // What is wrong behind the translation is found, too.
    world.fdb.clear();
    assert!(
        ways(&world)[0]
            .broken()
            .is_some_and(|hop| hop.seen.contains("no FDB entry"))
    );
    let refused = Translation::Refused("goto refusal".to_owned());
    let cases = [
        (None, "no table"),
        (
            Some(Translation::Unknown),
            "does not have 10.96.0.10:80/tcp",
        ),
        (Some(refused), "no endpoint for this client (goto refusal)"),
        (to(&[]), "finds no endpoint"),
    ];
    for (translated, words) in cases {
        world.translated = translated;
        let [only] = &ways(&world)[..] else {
            panic!("{words}")
        };
        assert!(
            only.broken().is_some_and(|hop| hop.seen.contains(words)),
            "{only:?}"
        );
    }
}
