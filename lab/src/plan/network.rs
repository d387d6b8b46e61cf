//! Namespaces, cables, addresses and the routes of the underlay, as `ip -batch` lines.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use caracal_model::{Family, Prefix};

use super::{Bridge, InterfaceLayout, Layout, StaticRoute, Step};

/// The part of the bring-up that makes namespaces and links.
#[must_use]
pub(crate) fn network(layout: &Layout) -> Vec<Step> {
    let mut steps = vec![Step::Namespaces(layout.namespaces())];
    let switch = layout.switch_netns();
    for family in ["iptables", "ip6tables", "arptables"] {
        // 1 in every new namespace of a kernel with br_netfilter: bridged frames would pass
        // iptables.
        let key = format!("net/bridge/bridge-nf-call-{family}");
        steps.push(Step::Sysctl {
            netns: switch.clone(),
            key,
            value: "0",
            optional: true,
        });
    }
    for scope in ["all", "default"] {
        // Neighbour discovery of the switch's own ports is noise in every capture.
        let key = format!("net/ipv6/conf/{scope}/disable_ipv6");
        steps.push(Step::Sysctl {
            netns: switch.clone(),
            key,
            value: "1",
            optional: true,
        });
    }
    for router in &layout.routers {
        let has = |family| router.legs.iter().any(|l| l.address_of(family).is_some());
        for (family, key) in [
            (Family::Ipv4, "net/ipv4/ip_forward"),
            (Family::Ipv6, "net/ipv6/conf/all/forwarding"),
        ] {
            if has(family) {
                steps.push(Step::Sysctl {
                    netns: router.netns.clone(),
                    key: key.to_owned(),
                    value: "1",
                    optional: false,
                });
            }
        }
    }
    let members = layout.routers.iter().map(|r| &r.netns);
    for netns in members.chain(layout.nodes.iter().map(|n| &n.netns)) {
        for scope in ["all", "default"] {
            let key = format!("net/ipv4/conf/{scope}/rp_filter");
            steps.push(Step::Sysctl {
                netns: netns.clone(),
                key,
                value: "0",
                optional: false,
            });
        }
    }
    steps.push(Step::Ip {
        netns: switch,
        lines: switch_lines(layout),
    });
    steps.push(Step::Ip {
        netns: layout.etcd_netns(),
        lines: host_lines(&layout.etcd, &[]),
    });
    for router in &layout.routers {
        let lines = host_lines(&router.legs, &router.routes);
        steps.push(Step::Ip {
            netns: router.netns.clone(),
            lines,
        });
    }
    for node in &layout.nodes {
        let lines = host_lines(std::slice::from_ref(&node.uplink), &node.routes);
        steps.push(Step::Ip {
            netns: node.netns.clone(),
            lines,
        });
    }
    steps
}

/// A hardware address for everything that stands in a segment, and a permanent entry for it in
/// every neighbour table of that segment. Linux counts the learned entries of all namespaces
/// against one limit, and permanent ones not at all.
#[must_use]
pub(crate) fn known_neighbours(layout: &Layout) -> Vec<Step> {
    let hosts = hosts(layout);
    let known: Vec<_> = (0_u32..)
        .zip(&hosts)
        .map(|(n, (_, i))| (mac(n), *i))
        .collect();
    let mut lines: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for ((netns, own), (own_mac, _)) in hosts.iter().zip(&known) {
        let lines = lines.entry(netns).or_default();
        let device = &own.device;
        lines.push(format!("link set dev {device} address {own_mac}"));
        let others = known
            .iter()
            .filter(|(mac, other)| other.segment == own.segment && mac != own_mac);
        for (mac, other) in others {
            for (address, _) in other.addresses() {
                lines.push(format!(
                    "neighbor replace {address} lladdr {mac} dev {device} nud permanent"
                ));
            }
        }
    }
    lines
        .into_iter()
        .map(|(netns, lines)| Step::Ip {
            netns: netns.clone(),
            lines,
        })
        .collect()
}

/// Locally administered MAC address with this number.
fn mac(n: u32) -> String {
    let [a, b, c, d] = n.to_be_bytes();
    format!("02:ca:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Everything that stands in a segment, with its namespace.
fn hosts(layout: &Layout) -> Vec<(String, &InterfaceLayout)> {
    let etcd_netns = layout.etcd_netns();
    let etcd = layout.etcd.iter().map(|i| (etcd_netns.clone(), i));
    let routers = layout
        .routers
        .iter()
        .flat_map(|r| r.legs.iter().map(move |i| (r.netns.clone(), i)));
    let nodes = layout.nodes.iter().map(|n| (n.netns.clone(), &n.uplink));
    etcd.chain(routers).chain(nodes).collect()
}

/// Device names always follow a keyword: iproute2 takes a bare `p1` or `m` for a keyword's prefix.
fn switch_lines(layout: &Layout) -> Vec<String> {
    let mut lines = Vec::new();
    for bridge in &layout.bridges {
        let Bridge { device, mtu, .. } = bridge;
        lines.push(format!(
            "link add name {device} mtu {mtu} type bridge mcast_snooping 0"
        ));
        lines.push(format!("link set dev {device} up"));
    }
    for (netns, interface) in hosts(layout) {
        let InterfaceLayout {
            device,
            port,
            mtu,
            segment,
            ..
        } = interface;
        lines.push(format!(
            "link add name {port} mtu {mtu} type veth peer name {device} mtu {mtu} netns {netns}"
        ));
        lines.push(format!("link set dev {port} master br-{segment} up"));
    }
    lines
}

fn host_lines(interfaces: &[InterfaceLayout], routes: &[StaticRoute]) -> Vec<String> {
    let mut lines = vec!["link set dev lo up".to_owned()];
    for interface in interfaces {
        let device = &interface.device;
        for (address, len) in interface.addresses() {
            // The lab gave it to nobody else, and a tentative address could not be bound for a
            // second.
            let dad = if address.is_ipv6() { " nodad" } else { "" };
            lines.push(format!("address add {address}/{len} dev {device}{dad}"));
        }
        lines.push(format!("link set dev {device} up"));
    }
    lines.extend(routes.iter().map(
        |StaticRoute {
             destination,
             next_hop,
         }| {
            if *destination == Prefix::v4(Ipv4Addr::UNSPECIFIED, 0) {
                format!("route add default via {next_hop}")
            } else {
                format!("route add {destination} via {next_hop}")
            }
        },
    ));
    lines
}
