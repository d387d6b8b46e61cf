//! What `ip -j`, `bridge -j` and `nft` print, as data.

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

/// The elements of a set in a listing of `nft`.
pub(super) fn set_elements(listing: &str, set: &str) -> Vec<String> {
    let Some((_, rest)) = listing.split_once(&format!("set {set} {{")) else {
        return Vec::new();
    };
    // Up to the end of this set, which stands on a line of its own.
    let body = rest.split("\n\t}").next().unwrap_or_default();
    let Some((_, elements)) = body.split_once("elements = {") else {
        return Vec::new();
    };
    let elements = elements.split('}').next().unwrap_or_default();
    elements
        .split(',')
        .map(|element| element.trim().to_owned())
        .filter(|element| !element.is_empty())
        .collect()
}

/// True when an element of an interval set (address, prefix or range) holds an address.
pub(super) fn holds(element: &str, address: IpAddr) -> bool {
    if let Some((first, last)) = element.split_once('-') {
        let (first, last) = (
            first.trim().parse::<IpAddr>(),
            last.trim().parse::<IpAddr>(),
        );
        return matches!((first, last), (Ok(first), Ok(last)) if first <= address && address <= last);
    }
    if let Ok(prefix) = element.parse::<Prefix>() {
        return prefix.contains(address);
    }
    element.parse() == Ok(address)
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
    fn sets_as_nft_prints_them() {
        let listing = "table inet caracal {\n\tset ip_masquerade {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\tauto-merge\n\t\telements = { 10.244.0.0/16 }\n\t}\n\n\tset ip_exempt {\n\t\ttype ipv4_addr\n\t\telements = { 10.244.0.0-10.245.255.255,\n\t\t\t     192.0.2.1 }\n\t}\n}\n";
        assert_eq!(set_elements(listing, "ip_masquerade"), ["10.244.0.0/16"]);
        let exempt = set_elements(listing, "ip_exempt");
        let within = |text: &str| exempt.iter().any(|e| holds(e, ip(text)));
        assert!(within("10.245.1.1") && within("192.0.2.1"));
        assert!(!within("10.246.0.0") && !within("192.0.2.2"));
        assert_eq!(set_elements(listing, "ip6_exempt"), Vec::<String>::new());
    }
}
