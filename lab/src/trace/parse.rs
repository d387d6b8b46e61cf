//! Parsers for the output of `ip -j`, `bridge -j` and `nft`.

use std::net::IpAddr;

use caracal_model::Prefix;
use serde::Deserialize;

use super::{Interface, Lookup, Neighbour};

#[derive(Deserialize)]
struct Address {
    local: Option<IpAddr>,
}

#[derive(Default, Deserialize)]
struct LinkInfo {
    #[serde(default)]
    info_kind: String,
    #[serde(default)]
    info_data: serde_json::Value,
}

#[derive(Deserialize)]
struct Link {
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    address: String,
    #[serde(default)]
    addr_info: Vec<Address>,
    #[serde(default)]
    linkinfo: LinkInfo,
}

/// `ip -d -j address show`.
pub(super) fn interfaces(text: &str) -> Result<Vec<Interface>, serde_json::Error> {
    let links: Vec<Link> = serde_json::from_str(text)?;
    Ok(links.into_iter().map(interface).collect())
}

fn interface(link: Link) -> Interface {
    let has = |flag: &str| link.flags.iter().any(|f| f == flag);
    let data = &link.linkinfo.info_data;
    let number = |key: &str| data[key].as_u64();
    let local = data["local"].as_str().or_else(|| data["local6"].as_str());
    let vxlan = (link.linkinfo.info_kind == "vxlan").then(|| {
        let vni = number("id").and_then(|n| n.try_into().ok());
        let port = number("port").and_then(|n| n.try_into().ok());
        let local = local.and_then(|text| text.parse().ok());
        (vni.unwrap_or_default(), port.unwrap_or_default(), local)
    });
    Interface {
        up: has("UP"),
        carrier: !has("NO-CARRIER"),
        mtu: link.mtu,
        addresses: link.addr_info.iter().filter_map(|a| a.local).collect(),
        mac: link.address,
        kind: link.linkinfo.info_kind,
        vxlan,
        name: link.ifname,
    }
}

#[derive(Deserialize)]
struct Metrics {
    mtu: Option<u32>,
}

#[derive(Deserialize)]
struct Via {
    host: IpAddr,
}

#[derive(Deserialize)]
struct RouteGet {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    gateway: Option<IpAddr>,
    via: Option<Via>,
    dev: Option<String>,
    #[serde(default)]
    metrics: Vec<Metrics>,
}

/// `ip -j route get`. A kernel that refuses says so on standard error, after `RTNETLINK answers:`.
pub(super) fn lookup(text: &str, stderr: &str) -> Result<Lookup, String> {
    if let Some((_, words)) = stderr.split_once("answers: ") {
        let words = words.lines().next().unwrap_or_default();
        return Ok(Lookup::Refused(words.to_owned()));
    }
    let routes: Vec<RouteGet> = serde_json::from_str(text)
        .map_err(|error| format!("ip route get printed {text:?} {stderr:?}: {error}"))?;
    let Some(route) = routes.into_iter().next() else {
        return Ok(Lookup::Refused("no answer".to_owned()));
    };
    Ok(match (route.kind.as_deref(), route.dev) {
        (Some("local"), _) => Lookup::Local,
        (None | Some("unicast"), Some(dev)) => Lookup::Out {
            dev,
            gateway: route.gateway.or_else(|| route.via.map(|via| via.host)),
            mtu: route.metrics.iter().find_map(|metrics| metrics.mtu),
        },
        (kind, _) => Lookup::Refused(kind.unwrap_or("no device").to_owned()),
    })
}

#[derive(Deserialize)]
struct NeighbourEntry {
    dst: Option<IpAddr>,
    lladdr: Option<String>,
    #[serde(default)]
    state: Vec<String>,
}

/// `ip -j neighbour show`: the entry of an address.
pub(super) fn neighbour(
    text: &str,
    address: IpAddr,
) -> Result<Option<Neighbour>, serde_json::Error> {
    let entries: Vec<NeighbourEntry> = serde_json::from_str(text)?;
    let of_address = entries.into_iter().find(|e| e.dst == Some(address));
    Ok(of_address.and_then(|entry| {
        Some(Neighbour {
            mac: entry.lladdr?,
            permanent: entry.state.iter().any(|s| s == "PERMANENT"),
        })
    }))
}

#[derive(Deserialize)]
struct FdbEntry {
    mac: String,
    dst: Option<IpAddr>,
}

/// `bridge -j fdb show`: where a MAC is.
pub(super) fn fdb(text: &str, mac: &str) -> Result<Option<IpAddr>, serde_json::Error> {
    let entries: Vec<FdbEntry> = serde_json::from_str(text)?;
    let of_mac = |e: &FdbEntry| e.mac.eq_ignore_ascii_case(mac).then_some(e.dst).flatten();
    Ok(entries.iter().find_map(of_mac))
}

/// True when our table changes the source of a packet, given its listing by `nft`: what leaves a
/// masqueraded pool goes through a chain of its own, from which what is exempt returns.
pub(super) fn masquerades(
    listing: &str,
    family: &str,
    source: IpAddr,
    destination: IpAddr,
) -> bool {
    let names = |line: &str, field: &str, address| {
        let mut words = line.split_whitespace();
        words.any(|word| word == field)
            && words
                .next()
                .is_some_and(|what| match what.strip_prefix('@') {
                    Some(set) => set_elements(listing, set).any(|element| holds(element, address)),
                    None => holds(what, address),
                })
    };
    let chain = format!("{family}_outgoing");
    let jump = format!("jump {chain}");
    let leaves = listing
        .lines()
        .any(|line| line.ends_with(&jump) && names(line, "saddr", source));
    let exempt = body(listing, &format!("chain {chain} {{"))
        .lines()
        .any(|line| line.ends_with(" return") && names(line, "daddr", destination));
    leaves && !exempt
}

/// Content of the first block that begins so.
fn body<'a>(listing: &'a str, begin: &str) -> &'a str {
    let rest = listing.split_once(begin).map_or("", |(_, rest)| rest);
    // Up to its end, which stands on a line of its own.
    rest.split("\n\t}").next().unwrap_or_default()
}

/// What a key of a map leads to.
pub(super) fn map_value<'a>(listing: &'a str, map: &str, key: &str) -> Option<&'a str> {
    map_values(listing, map, format!("{key} : ")).next()
}

/// What the keys of a map that begin so lead to.
pub(super) fn map_values<'a>(
    listing: &'a str,
    map: &str,
    begin: String,
) -> impl Iterator<Item = &'a str> + use<'a> {
    elements(listing, &format!("map {map} {{"))
        .filter(move |element| element.starts_with(&begin))
        .filter_map(|element| Some(element.split_once(" : ")?.1))
}

/// The elements of a set.
fn set_elements<'a>(listing: &'a str, set: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    elements(listing, &format!("set {set} {{"))
}

/// The elements of the first block that begins so.
fn elements<'a>(listing: &'a str, begin: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let body = body(listing, begin);
    let elements = body.split_once("elements = {").map_or("", |(_, rest)| rest);
    let elements = elements.split('}').next().unwrap_or_default();
    elements.split(',').map(str::trim).filter(|e| !e.is_empty())
}

/// True when an address or a prefix holds an address.
fn holds(element: &str, address: IpAddr) -> bool {
    match element.parse::<Prefix>() {
        Ok(prefix) => prefix.contains(address),
        Err(_) => element.parse() == Ok(address),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn interfaces_as_ip_prints_them() {
        let text = r#"[{"ifindex":4,"link":"eth0","ifname":"vxlan.calico","flags":["BROADCAST","MULTICAST","UP","LOWER_UP"],
            "mtu":1450,"address":"66:d2:b8:48:7d:e4","linkinfo":{"info_kind":"vxlan","info_data":{"id":4096,"local":"10.0.1.11",
            "port":4789,"learning":false}},"addr_info":[{"family":"inet","local":"10.244.36.64","prefixlen":32}]},
            {"ifindex":5,"ifname":"eth0","flags":["NO-CARRIER","UP"],"mtu":1500,"addr_info":[]}]"#;
        let [vxlan, eth0] = <[Interface; 2]>::try_from(interfaces(text).unwrap()).unwrap();
        assert_eq!(vxlan.vxlan, Some((4096, 4789, Some(ip("10.0.1.11")))));
        assert_eq!(vxlan.addresses, [ip("10.244.36.64")]);
        assert!(vxlan.up && vxlan.carrier);
        assert!(eth0.up && !eth0.carrier);
        assert_eq!(eth0.vxlan, None);
    }

    #[test]
    fn lookups_as_ip_prints_them() {
        let get = |text| lookup(text, "").unwrap();
        assert_eq!(
            get(
                r#"[{"dst":"10.244.1.2","from":"10.244.0.2","gateway":"10.244.1.1","dev":"vxlan.calico","flags":[],"metrics":[{"mtu":1450}],"cache":["iif cali1"]}]"#
            ),
            Lookup::Out {
                dev: "vxlan.calico".to_owned(),
                gateway: Some(ip("10.244.1.1")),
                mtu: Some(1450),
            }
        );
        assert_eq!(
            get(r#"[{"type":"local","dst":"10.0.0.1","dev":"lo"}]"#),
            Lookup::Local
        );
        let refused = |stderr| lookup("", stderr).unwrap();
        assert_eq!(
            refused("RTNETLINK answers: Invalid cross-device link\n"),
            Lookup::Refused("Invalid cross-device link".to_owned())
        );
        assert!(lookup("", "ip: no such option").is_err());
    }

    #[test]
    fn entries_as_ip_and_bridge_print_them() {
        let text = r#"[{"dst":"10.244.1.1","lladdr":"66:00:00:00:00:01","state":["PERMANENT"]},{"dst":"10.0.0.9","state":["FAILED"]}]"#;
        let entry = neighbour(text, ip("10.244.1.1")).unwrap().unwrap();
        assert!(entry.permanent);
        assert_eq!(neighbour(text, ip("10.0.0.9")).unwrap(), None);
        let text = r#"[{"mac":"66:00:00:00:00:01","ifname":"vxlan.calico","dst":"10.0.0.2","flags":["self"],"state":"permanent"}]"#;
        assert_eq!(
            fdb(text, "66:00:00:00:00:01").unwrap(),
            Some(ip("10.0.0.2"))
        );
        assert_eq!(fdb(text, "66:00:00:00:00:02").unwrap(), None);
    }

    #[test]
    fn who_is_masqueraded_as_nft_prints_it() {
        let listing = "table inet caracal {
\tchain ip_outgoing {
\t\tip daddr @ip_exempt return
\t\tip daddr 10.244.0.0/16 return
\t\tmasquerade
\t}

\tset ip_exempt {
\t\ttype ipv4_addr
\t\telements = { 192.0.2.1,
\t\t\t     192.0.2.2 }
\t}

\tchain postrouting {
\t\ttype nat hook postrouting priority srcnat; policy accept;
\t\toifname \"eth*\" ip saddr 10.244.0.0/16 jump ip_outgoing
\t}
}
";
        let leaves = |from: &str, to: &str| masquerades(listing, "ip", ip(from), ip(to));
        assert!(leaves("10.244.1.1", "192.0.2.3"));
        for exempt in ["192.0.2.1", "192.0.2.2", "10.244.7.7"] {
            assert!(!leaves("10.244.1.1", exempt), "{exempt}");
        }
        assert!(!leaves("10.245.1.1", "192.0.2.3"), "of no masqueraded pool");
        assert!(!masquerades(listing, "ip6", ip("fd00::1"), ip("fd01::1")));
        assert!(!masquerades("", "ip", ip("10.244.1.1"), ip("192.0.2.3")));
    }
}
