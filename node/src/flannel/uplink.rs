//! Which interface leads to other nodes, and which addresses of it count: flanneld's rules.

use std::net::{IpAddr, UdpSocket};

use caracal_agent::{Actual, Link, Links};
use caracal_flannel::{Families, Uplink};
use caracal_model::{Family, Prefix};
use regex_lite::Regex;

use super::args::FlannelArgs;

/// The interface, with its addresses of the network's families.
///
/// # Errors
/// No interface fits, with a reason.
pub(super) fn choose(
    args: &FlannelArgs,
    actual: &Actual,
    families: Families,
) -> Result<Uplink, String> {
    let link = find(args, actual, families.first())?;
    let address = |family| match best_address(link, family).filter(|_| families.has(family)) {
        None if families.has(family) => Err(format!(
            "the network has {family}, and {} has no {family} address",
            link.name
        )),
        found => Ok(found),
    };
    Ok(Uplink {
        name: link.name.clone(),
        addresses: [address(Family::Ipv4)?, address(Family::Ipv6)?],
        mtu: link.mtu,
    })
}

/// The same interface as it is now: an address that counts goes on to count while it is there.
///
/// # Errors
/// It is gone, or has no address.
pub(super) fn again(known: &Uplink, links: &Links) -> Result<Uplink, String> {
    let name = &known.name;
    let link = links.by_name(name.as_str());
    let link = link.ok_or_else(|| format!("there is no interface {name}"))?;
    let mut now = Uplink {
        mtu: link.mtu,
        ..known.clone()
    };
    for (address, family) in now.addresses.iter_mut().zip([Family::Ipv4, Family::Ipv6]) {
        let Some(before) = *address else { continue };
        if !link.addresses.iter().any(|cidr| cidr.address == before) {
            let other = best_address(link, family);
            let missing = || format!("{name} has no {family} address; {before} counted so far");
            *address = Some(other.ok_or_else(missing)?);
        }
    }
    Ok(now)
}

/// `family` = where the default route and the public address count that choose it.
fn find<'a>(args: &FlannelArgs, actual: &'a Actual, family: Family) -> Result<&'a Link, String> {
    let links = &actual.links;
    let named = args
        .iface
        .iter()
        .find_map(|wanted| match wanted.parse::<IpAddr>() {
            Ok(address) => links.holding(address),
            Err(_) => links.by_name(wanted),
        });
    if let Some(link) = named {
        return Ok(link);
    }
    for text in &args.iface_regex {
        let regex = Regex::new(text).map_err(|e| format!("--iface-regex {text}: {e}"))?;
        let by_address = links.iter().find(|l| {
            l.addresses
                .iter()
                .any(|a| regex.is_match(&a.address.to_string()))
        });
        let by_name = || links.iter().find(|l| regex.is_match(l.name.as_str()));
        if let Some(link) = by_address.or_else(by_name) {
            return Ok(link);
        }
    }
    if let Some(target) = args.iface_can_reach {
        let source = source_towards(target)
            .ok_or_else(|| format!("--iface-can-reach {target}: there is no route to it"))?;
        return links
            .holding(source)
            .ok_or_else(|| format!("--iface-can-reach {target}: no interface has {source}"));
    }
    if !args.iface.is_empty() || !args.iface_regex.is_empty() {
        let seen: Vec<&str> = links.iter().map(|l| l.name.as_str()).collect();
        return Err(format!(
            "no interface matches --iface or --iface-regex; there are {}",
            seen.join(", ")
        ));
    }
    let (flag, public) = args.public_address(family);
    if let Some(public) = public {
        return links.holding(public).ok_or_else(|| {
            format!("no interface has the address {public} of {flag}; name one with --iface")
        });
    }
    let any = match family {
        Family::Ipv4 => IpAddr::from([0; 4]),
        Family::Ipv6 => IpAddr::from([0; 16]),
    };
    let default = Prefix::truncated(any, 0);
    let route = actual.route_to(&default);
    let link = route.and_then(|route| links.by_name(route.link()?.as_str()));
    link.ok_or_else(|| {
        "there is no default route, whose interface would be taken; name one with --iface"
            .to_owned()
    })
}

/// Global addresses go before link-local ones.
fn best_address(link: &Link, family: Family) -> Option<IpAddr> {
    let of_family = link.addresses.iter().map(|cidr| cidr.address);
    of_family
        .filter(|address| Family::of(*address) == family)
        .min_by_key(|address| match address {
            IpAddr::V4(a) => a.is_link_local(),
            IpAddr::V6(a) => a.is_unicast_link_local(),
        })
}

/// The source address that the kernel takes towards a destination; nothing is sent.
fn source_towards(target: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match target {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((target, 53)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use caracal_agent::{ActualRoute, ForwardingTarget, Route};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: FlannelArgs,
    }

    fn chosen(line: &str, v6: bool) -> Result<String, String> {
        let words = std::iter::once("flannel").chain(line.split_whitespace());
        let args = Line::try_parse_from(words).unwrap().args;
        let link = |index, name: &str, addresses: &[&str]| {
            let link = Link::new(index, name);
            addresses
                .iter()
                .fold(link, |l, a| l.with_address(a.parse().unwrap()))
        };
        let mut actual = Actual {
            links: [
                link(1, "lo", &["127.0.0.1/8"]),
                link(2, "eth0", &["10.0.2.15/24"]),
                link(
                    3,
                    "eth1",
                    &[
                        "169.254.3.3/16",
                        "192.168.64.3/24",
                        "fe80::3/64",
                        "fd00::3/64",
                    ],
                ),
            ]
            .into_iter()
            .collect(),
            ..Actual::default()
        };
        if !line.contains("no-such") {
            actual.push_route(ActualRoute::from(Route {
                prefix: "0.0.0.0/0".parse().unwrap(),
                metric: 0,
                protocol: 3,
                target: ForwardingTarget::via(
                    Some("10.0.2.2".parse().unwrap()),
                    &"eth0".into(),
                    false,
                ),
                mtu: None,
                source: None,
            }));
        }
        let found = choose(&args, &actual, Families { v4: true, v6 })?;
        let [v4, v6] = found
            .addresses
            .map(|a| a.map(|a| a.to_string()).unwrap_or_default());
        Ok(format!("{} {v4} {v6}", found.name))
    }

    #[test]
    fn interfaces_are_chosen_as_flanneld_does() {
        for (line, ipv6, expected) in [
            ("", false, "eth0 10.0.2.15 "),
            ("--iface=eth9 --iface=eth1", false, "eth1 192.168.64.3 "),
            ("--iface=192.168.64.3", true, "eth1 192.168.64.3 fd00::3"),
            ("--iface-regex=192\\.168", false, "eth1 192.168.64.3 "),
            ("--iface-regex=eth.", false, "eth0 10.0.2.15 "),
            ("--public-ip=192.168.64.3", false, "eth1 192.168.64.3 "),
            (
                "--public-ip=203.0.113.1 --iface=eth1",
                false,
                "eth1 192.168.64.3 ",
            ),
        ] {
            assert_eq!(chosen(line, ipv6).unwrap(), expected, "{line}");
        }
        for (line, ipv6, says) in [
            ("--iface=no-such", false, "there are lo, eth0, eth1"),
            ("--public-ip=203.0.113.1", false, "name one with --iface"),
            ("--iface-regex=(", false, "--iface-regex ("),
            ("", true, "eth0 has no IPv6 address"),
        ] {
            let reason = chosen(line, ipv6).unwrap_err();
            assert!(reason.contains(says), "{line}: {reason}");
        }
    }

    #[test]
    fn the_interface_is_followed() {
        let known = Uplink {
            name: "eth0".into(),
            addresses: [Some("10.0.0.1".parse().unwrap()), None],
            mtu: 1500,
        };
        let again = |addresses: &[&str]| {
            let mut link = Link::new(2, "eth0");
            link.mtu = 1400;
            let link = addresses
                .iter()
                .fold(link, |l, a| l.with_address(a.parse().unwrap()));
            let now = super::again(&known, &std::iter::once(link).collect())?;
            Ok::<_, String>((now.addresses[0].map(|a| a.to_string()), now.mtu))
        };
        let is = |address: &str| Ok((Some(address.to_owned()), 1400));
        // What counts goes on to count beside another one.
        assert_eq!(again(&["10.0.0.7/24", "10.0.0.1/24"]), is("10.0.0.1"));
        assert_eq!(again(&["169.254.1.1/16", "10.0.0.7/24"]), is("10.0.0.7"));
        let gone = again(&["fd00::1/64"]).unwrap_err();
        assert!(
            gone.contains("eth0 has no IPv4 address; 10.0.0.1"),
            "{gone}"
        );
        let none = super::again(&known, &Links::default()).unwrap_err();
        assert!(none.contains("there is no interface eth0"), "{none}");
    }
}
