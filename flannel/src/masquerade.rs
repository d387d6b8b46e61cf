//! Rules of `--ip-masq`: what leaves the network gets the node's address. flanneld's, in its order,
//! in the tables of its nftables mode and in the chain of its iptables mode.

use caracal_agent::{IptablesChain, IptablesRule};
use caracal_model::{Family, Prefix};

/// Table of a family's rules: flanneld's name.
#[must_use]
pub const fn masquerade_table(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "flannel-ipv4",
        Family::Ipv6 => "flannel-ipv6",
    }
}

/// The chain of a family, in nft's words. `fully_random` spreads source ports, as flanneld does
/// unless it is told not to.
#[must_use]
pub fn masquerade_rules(network: Prefix, subnet: Prefix, fully_random: bool) -> String {
    let ip = match network.family() {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    };
    let multicast = multicast(network.family());
    let masquerade = match fully_random {
        true => "masquerade fully-random",
        false => "masquerade",
    };
    let rules = [
        // Kubernetes' mark: somebody else masquerades.
        "meta mark & 0x4000 == 0x4000 return".to_owned(),
        format!("{ip} saddr {subnet} {ip} daddr {network} return"),
        format!("{ip} saddr {network} {ip} daddr {subnet} return"),
        format!("{ip} saddr != {subnet} {ip} daddr {network} return"),
        format!("{ip} saddr {network} {ip} daddr != {multicast} {masquerade}"),
        format!("{ip} saddr != {network} {ip} daddr {network} {masquerade}"),
    ];
    let rules: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
    format!(
        "\tchain postrtg {{\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n{rules}\t}}\n"
    )
}

/// The same as a chain of iptables, where `nft` cannot be used.
#[must_use]
pub fn masquerade_chain(network: Prefix, subnet: Prefix, fully_random: bool) -> IptablesChain {
    let multicast = multicast(network.family());
    let masquerade = match fully_random {
        true => "MASQUERADE --random-fully",
        false => "MASQUERADE",
    };
    let rules = [
        ("-m mark --mark 0x4000/0x4000".to_owned(), "RETURN"),
        (format!("-s {subnet} -d {network}"), "RETURN"),
        (format!("-s {network} -d {subnet}"), "RETURN"),
        (format!("! -s {network} -d {subnet}"), "RETURN"),
        (format!("-s {network} ! -d {multicast}"), masquerade),
        (format!("! -s {network} -d {network}"), masquerade),
    ];
    let rules = rules.map(|(packets, target)| IptablesRule { packets, target });
    IptablesChain {
        table: "nat",
        hook: "POSTROUTING",
        name: "FLANNEL-POSTRTG",
        comment: "flanneld masq",
        rules: rules.to_vec(),
    }
}

const fn multicast(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "224.0.0.0/4",
        Family::Ipv6 => "ff00::/8",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_rules_are_flannelds_in_its_order() {
        let rules = |network: &str, subnet: &str, random| {
            let text = masquerade_rules(network.parse().unwrap(), subnet.parse().unwrap(), random);
            let lines = text.lines().map(str::trim);
            lines.skip(2).take(6).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            rules("10.5.0.0/16", "10.5.1.0/24", true),
            [
                "meta mark & 0x4000 == 0x4000 return",
                "ip saddr 10.5.1.0/24 ip daddr 10.5.0.0/16 return",
                "ip saddr 10.5.0.0/16 ip daddr 10.5.1.0/24 return",
                "ip saddr != 10.5.1.0/24 ip daddr 10.5.0.0/16 return",
                "ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random",
                "ip saddr != 10.5.0.0/16 ip daddr 10.5.0.0/16 masquerade fully-random",
            ]
        );
        let v6 = rules("fd00:5::/48", "fd00:5:0:1::/64", false);
        assert_eq!(
            v6[4],
            "ip6 saddr fd00:5::/48 ip6 daddr != ff00::/8 masquerade"
        );
    }

    #[test]
    fn the_chain_of_iptables_has_them_too() {
        let chain = |network: &str, subnet: &str, random| {
            let chain = masquerade_chain(network.parse().unwrap(), subnet.parse().unwrap(), random);
            let rules = chain.rules.iter();
            let rules = rules.map(|rule| format!("{} -j {}", rule.packets, rule.target));
            rules.collect::<Vec<_>>()
        };
        assert_eq!(
            chain("10.5.0.0/16", "10.5.1.0/24", true),
            [
                "-m mark --mark 0x4000/0x4000 -j RETURN",
                "-s 10.5.1.0/24 -d 10.5.0.0/16 -j RETURN",
                "-s 10.5.0.0/16 -d 10.5.1.0/24 -j RETURN",
                "! -s 10.5.0.0/16 -d 10.5.1.0/24 -j RETURN",
                "-s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully",
                "! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE --random-fully",
            ]
        );
        let v6 = chain("fd00:5::/48", "fd00:5:0:1::/64", false);
        assert_eq!(v6[4], "-s fd00:5::/48 ! -d ff00::/8 -j MASQUERADE");
    }
}
