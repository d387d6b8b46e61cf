//! Namespaces, cables, addresses and the routes of the underlay, as `ip -batch` lines.

use std::net::Ipv4Addr;

use caracal_model::{Family, Prefix};

use super::{Bridge, Interface, Layout, Step, Via};

/// The part of the bring-up that makes namespaces and links.
#[must_use]
pub fn network(layout: &Layout) -> Vec<Step> {
    let mut steps = vec![Step::Namespaces(layout.namespaces())];
    let switch = layout.switch_netns();
    for family in ["iptables", "ip6tables", "arptables"] {
        // 1 in every new namespace of a kernel with br_netfilter: bridged frames would pass iptables.
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
    let etcd_netns = layout.etcd_netns();
    let etcd = layout.etcd.iter().map(|i| (&etcd_netns, i));
    let routers = layout
        .routers
        .iter()
        .flat_map(|r| r.legs.iter().map(move |i| (&r.netns, i)));
    let nodes = layout.nodes.iter().map(|n| (&n.netns, &n.uplink));
    for (netns, interface) in etcd.chain(routers).chain(nodes) {
        let Interface {
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

fn host_lines(interfaces: &[Interface], routes: &[Via]) -> Vec<String> {
    let mut lines = vec!["link set dev lo up".to_owned()];
    for interface in interfaces {
        let device = &interface.device;
        for (address, len) in interface.addresses() {
            // The lab gave it to nobody else, and a tentative address could not be bound for a second.
            let dad = if address.is_ipv6() { " nodad" } else { "" };
            lines.push(format!("address add {address}/{len} dev {device}{dad}"));
        }
        lines.push(format!("link set dev {device} up"));
    }
    lines.extend(routes.iter().map(
        |Via {
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
