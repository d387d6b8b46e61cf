//! Which address of this machine is the node's: Calico's autodetection methods as a pure choice
//! over the list of interfaces. Ambiguity and failure are answered with the table of candidates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::{Cidr, Family, Prefix};
use regex_lite::Regex;

/// An interface with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Index in the kernel.
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Addresses in the kernel's order.
    pub(crate) addresses: Vec<Cidr>,
}

/// `IP_AUTODETECTION_METHOD`.
#[derive(Clone, Debug)]
pub(crate) enum Method {
    /// The first global address outside the built-in exclusions.
    FirstFound,
    /// The source address towards this destination.
    CanReach(String),
    /// Interfaces whose name matches one of these.
    Interface(Vec<Regex>),
    /// First found, with more exclusions.
    SkipInterface(Vec<Regex>),
    /// An address inside one of these.
    Cidr(Vec<Prefix>),
    /// The `InternalIP` that Kubernetes' Node has.
    KubernetesInternalIp,
}

impl PartialEq for Method {
    fn eq(&self, other: &Self) -> bool {
        // Regex has no equality; its text has.
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Method {
    /// Reads the variable's value.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let regexes = |list: &str| {
            list.split(',')
                .map(|part| {
                    Regex::new(part.trim())
                        .map_err(|_| format!("{part:?} is not a regular expression"))
                })
                .collect::<Result<Vec<_>, _>>()
        };
        match text.split_once('=') {
            None if text == "first-found" => Ok(Self::FirstFound),
            None if text == "kubernetes-internal-ip" => Ok(Self::KubernetesInternalIp),
            Some(("can-reach", target)) if !target.is_empty() => {
                Ok(Self::CanReach(target.to_owned()))
            }
            Some(("interface", list)) if !list.is_empty() => Ok(Self::Interface(regexes(list)?)),
            Some(("skip-interface", list)) if !list.is_empty() => {
                Ok(Self::SkipInterface(regexes(list)?))
            }
            Some(("cidr", list)) if !list.is_empty() => list
                .split(',')
                .map(|part| part.trim().parse::<Prefix>().map_err(|e| e.to_string()))
                .collect::<Result<_, _>>()
                .map(Self::Cidr),
            _ => Err("expected first-found, can-reach=HOST, interface=REGEX,…, \
                      skip-interface=REGEX,…, cidr=CIDR,… or kubernetes-internal-ip"
                .into()),
        }
    }
}

/// Interfaces that never carry a node's address: bridges, tunnels and workload interfaces. Names
/// that start with one of these, as Calico excludes them.
const EXCLUDED: &[&str] = &[
    "docker",
    "cbr",
    "dummy",
    "podman",
    "virbr",
    "lxcbr",
    "veth",
    "lo",
    "br-",
    "cali",
    "tunl",
    "flannel",
    "kube-ipvs",
    "cni",
    "vxlan.calico",
    "vxlan-v6.calico",
    "wireguard.cali",
    "wg-v6.cali",
    "nodelocaldns",
];

/// Why no address was found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no {family} address found by {method}; seen: {seen}; set {variable}=ADDRESS/LENGTH or another method"
)]
pub(crate) struct DetectError {
    family: Family,
    method: String,
    variable: &'static str,
    seen: String,
}

/// Chooses the address. `internal` is what Kubernetes' Node has; `source_towards` answers for
/// `can-reach`: the kernel's source address to a host.
pub(crate) fn detect(
    method: &Method,
    family: Family,
    interfaces: &[Interface],
    internal: Option<IpAddr>,
    source_towards: impl FnOnce(&str) -> Option<IpAddr>,
) -> Result<Cidr, DetectError> {
    // Newest interface first, as Calico scans them.
    let mut order: Vec<&Interface> = interfaces.iter().collect();
    order.sort_by_key(|interface| std::cmp::Reverse(interface.index));
    let first = |wanted: &dyn Fn(&Interface) -> bool, usable: &dyn Fn(IpAddr) -> bool| {
        order.iter().filter(|i| wanted(i)).find_map(|i| {
            i.addresses
                .iter()
                .copied()
                .find(|c| Family::of(c.address) == family && usable(c.address))
        })
    };
    let included = |i: &Interface| !EXCLUDED.iter().any(|prefix| i.name.starts_with(prefix));
    let found = match method {
        Method::FirstFound => first(&included, &is_global_unicast),
        Method::Interface(regexes) => first(
            &|i| regexes.iter().any(|r| r.is_match(&i.name)),
            &is_global_unicast,
        ),
        Method::SkipInterface(regexes) => first(
            &|i| included(i) && !regexes.iter().any(|r| r.is_match(&i.name)),
            &is_global_unicast,
        ),
        Method::Cidr(ranges) => first(&|_| true, &|address| {
            ranges.iter().any(|range| range.contains(address))
        }),
        Method::CanReach(host) => source_towards(host)
            .filter(|address| Family::of(*address) == family)
            .map(|address| complete(address, interfaces)),
        Method::KubernetesInternalIp => internal.map(|address| complete(address, interfaces)),
    };
    found.ok_or_else(|| DetectError {
        family,
        method: describe(method),
        variable: if family == Family::Ipv4 { "IP" } else { "IP6" },
        seen: candidates(&order, family),
    })
}

/// The address with the prefix length of the interface that has it; a host prefix when none has.
pub(crate) fn complete(address: IpAddr, interfaces: &[Interface]) -> Cidr {
    interfaces
        .iter()
        .flat_map(|i| &i.addresses)
        .copied()
        .find(|cidr| cidr.address == address)
        .unwrap_or_else(|| Cidr {
            address,
            len: Family::of(address).bits(),
        })
}

fn describe(method: &Method) -> String {
    let names = |regexes: &[Regex]| {
        regexes
            .iter()
            .map(Regex::as_str)
            .collect::<Vec<_>>()
            .join(",")
    };
    match method {
        Method::FirstFound => "first-found".to_owned(),
        Method::CanReach(host) => format!("can-reach={host}"),
        Method::KubernetesInternalIp => {
            "kubernetes-internal-ip (status.addresses of Kubernetes' Node)".to_owned()
        }
        Method::Interface(list) => format!("interface={}", names(list)),
        Method::SkipInterface(list) => format!("skip-interface={}", names(list)),
        Method::Cidr(list) => {
            let list: Vec<String> = list.iter().map(ToString::to_string).collect();
            format!("cidr={}", list.join(","))
        }
    }
}

fn candidates(order: &[&Interface], family: Family) -> String {
    let seen: Vec<String> = order
        .iter()
        .flat_map(|i| i.addresses.iter().map(move |c| (i, c)))
        .filter(|(_, c)| Family::of(c.address) == family)
        .map(|(i, c)| {
            let excluded = EXCLUDED.iter().any(|prefix| i.name.starts_with(prefix));
            let why = if excluded {
                " (excluded name)"
            } else if !is_global_unicast(c.address) {
                " (not global)"
            } else {
                ""
            };
            format!("{} {c}{why}", i.name)
        })
        .collect();
    if seen.is_empty() {
        "none".to_owned()
    } else {
        seen.join(", ")
    }
}

fn is_global_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            !(a.is_unspecified()
                || a.is_loopback()
                || a.is_multicast()
                || a.is_link_local()
                || a == Ipv4Addr::BROADCAST)
        }
        IpAddr::V6(a) => {
            let link_local = a.segments()[0] & 0xffc0 == 0xfe80;
            !(a == Ipv6Addr::UNSPECIFIED || a.is_loopback() || a.is_multicast() || link_local)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> Vec<Interface> {
        let interface = |index, name: &str, addresses: &[&str]| Interface {
            index,
            name: name.to_owned(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        };
        vec![
            interface(1, "lo", &["127.0.0.1/8", "::1/128"]),
            interface(2, "eth0", &["10.0.0.5/24", "fe80::1/64", "fd00::5/64"]),
            interface(3, "eth1", &["192.168.7.5/16"]),
            interface(9, "docker0", &["172.17.0.1/16"]),
            interface(10, "eth2", &["169.254.3.3/16"]),
        ]
    }

    fn run(method: &str, family: Family) -> Result<String, String> {
        let method = Method::parse(method)?;
        let towards = |host: &str| (host == "10.0.0.1").then(|| "10.0.0.5".parse().unwrap());
        let internal = (family == Family::Ipv4).then(|| "192.168.7.5".parse().unwrap());
        detect(&method, family, &interfaces(), internal, towards)
            .map(|c| c.to_string())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn each_method_chooses_as_calico_does() {
        for (method, expected) in [
            ("first-found", "192.168.7.5/16"),
            ("interface=eth0", "10.0.0.5/24"),
            ("interface=wlan.*,docker.*", "172.17.0.1/16"),
            ("skip-interface=eth1", "10.0.0.5/24"),
            ("cidr=10.0.0.0/8,172.16.0.0/12", "172.17.0.1/16"),
            ("cidr=10.0.0.0/8", "10.0.0.5/24"),
            ("can-reach=10.0.0.1", "10.0.0.5/24"),
            ("kubernetes-internal-ip", "192.168.7.5/16"),
        ] {
            assert_eq!(
                run(method, Family::Ipv4).as_deref(),
                Ok(expected),
                "{method}"
            );
        }
        assert_eq!(
            run("first-found", Family::Ipv6).as_deref(),
            Ok("fd00::5/64")
        );
    }

    #[test]
    fn failure_shows_the_candidates() {
        let error = run("interface=wlan0", Family::Ipv4).unwrap_err();
        assert!(
            error.contains("eth1 192.168.7.5/16, eth0 10.0.0.5/24"),
            "{error}"
        );
        assert!(
            error.contains("docker0 172.17.0.1/16 (excluded name)"),
            "{error}"
        );
        assert!(
            error.contains("eth2 169.254.3.3/16 (not global)"),
            "{error}"
        );
        assert!(run("can-reach=192.0.2.1", Family::Ipv4).is_err());
        let error = run("kubernetes-internal-ip", Family::Ipv6).unwrap_err();
        assert!(
            error.contains("status.addresses of Kubernetes' Node"),
            "{error}"
        );
        for bad in [
            "",
            "magic",
            "interface=",
            "interface=(",
            "cidr=10.0.0.0/99",
            "can-reach=",
        ] {
            assert!(Method::parse(bad).is_err(), "{bad}");
        }
    }
}
