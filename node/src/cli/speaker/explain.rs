//! `caracal speaker --check FILE --explain`: what each protocol and filter of a file came to, with
//! defaults, templates and names put in.

use std::fmt::{self, Formatter};
use std::time::Duration;

use caracal_bgp::{
    Counted, InterfacePattern, LimitAction, NextHopMode, Origination, PathCount, PeerConfig,
    PrefixLimit, StaticGateway, StaticWay,
};
use caracal_model::{Family, Prefix};
use caracal_templates::{Direct, File, KernelTable};

/// A file, to be printed in full.
pub(super) struct Explained<'a>(pub(super) &'a File);

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let speaker = &self.0.speaker;
        if let Some(listen) = speaker.listen {
            let any = |one: caracal_bgp::Listen| match one.address {
                Some(address) => address.to_string(),
                None => "all addresses".to_owned(),
            };
            let addresses: Vec<String> = listen.sockets().map(any).collect();
            writeln!(
                f,
                "listens on {}, port {}",
                addresses.join(" and "),
                listen.port
            )?;
        }
        for (name, config) in &speaker.peers {
            let own = config.local_as.unwrap_or(speaker.local_as);
            write!(f, "\npeer {name}: ")?;
            peer(f, config, own)?;
        }
        if !speaker.originate.is_empty() {
            writeln!(f, "\nroutes of our own")?;
        }
        for (prefix, route) in speaker.originate.iter() {
            own_route(f, prefix, route)?;
        }
        for (family, table) in &self.0.kernel {
            kernel(f, *family, table)?;
        }
        for (name, filter) in &speaker.filters {
            let kind = match &filter.program {
                Some(_) => "a program; what it does not decide is rejected".to_owned(),
                None => format!("{} terms", filter.terms.len()),
            };
            let family = filter.family.map(|family| format!(", {family} alone"));
            writeln!(f, "\nfilter {name}: {kind}{}", family.unwrap_or_default())?;
            write!(f, "{filter}")?;
        }
        for (name, station) in &speaker.stations {
            writeln!(f, "\nmonitoring station {name}: {}", station.address)?;
        }
        for (name, cache) in &self.0.caches {
            let (rtr, tables) = (&cache.rtr, cache.tables.values());
            let tables: Vec<&str> = tables.map(String::as_str).collect();
            let times = [&rtr.refresh, &rtr.retry, &rtr.expire];
            let [refresh, retry, expire] = times.map(|time| {
                let kept = if time.keep { " (kept)" } else { "" };
                format!("{} s{kept}", time.seconds)
            });
            writeln!(f, "\nRPKI cache {name}: {} port {}", rtr.host, rtr.port)?;
            writeln!(f, "  fills: {}", tables.join(", "))?;
            writeln!(
                f,
                "  asked every {refresh}; after a failure within {retry}; its entries expire after {expire}"
            )?;
        }
        for direct in &self.0.direct {
            interfaces(f, direct)?;
        }
        for (name, dump) in &self.0.dumps {
            let period = seconds(dump.period);
            writeln!(f, "\ndump {name}: {} every {period}", dump.filename)?;
        }
        Ok(())
    }
}

fn peer(f: &mut Formatter<'_>, peer: &PeerConfig, own: caracal_bgp::Asn) -> fmt::Result {
    let internal = own == peer.remote_as;
    let kind = if internal { "internal" } else { "external" };
    let place = match &peer.range {
        Some(range) => format!("everybody from {range}"),
        None => match &peer.interface {
            Some(link) => format!("{}%{link} port {}", peer.address, peer.port),
            None => format!("{} port {}", peer.address, peer.port),
        },
    };
    writeln!(f, "{place}, AS {}, {kind}; our AS {own}", peer.remote_as)?;
    writeln!(f, "  session: {}", session(peer).join(", "))?;
    let families: Vec<String> = peer.families.iter().map(ToString::to_string).collect();
    writeln!(f, "  families: {}", families.join(", "))?;
    let denied = peer.require_policy && !internal;
    let import = [Counted::Received, Counted::Accepted];
    writeln!(
        f,
        "  import: {}",
        policy(peer, &peer.import, denied, &import)
    )?;
    writeln!(
        f,
        "  export: {}",
        policy(peer, &peer.export, denied, &[Counted::Sent])
    )?;
    writeln!(f, "  next hop: {}", next_hop(peer, internal))
}

/// What a session is like, the defaults too.
fn session(peer: &PeerConfig) -> Vec<String> {
    let mut words = Vec::new();
    let mut say = |told: bool, words_of_it: String| {
        if told {
            words.push(words_of_it);
        }
    };
    say(peer.disabled, "disabled".to_owned());
    say(peer.passive, "passive".to_owned());
    say(true, format!("hold time {}", seconds(peer.hold_time)));
    match peer.graceful_restart {
        Some(restart) => {
            let time = seconds(restart.restart_time);
            say(true, format!("graceful restart of {time}"));
        }
        None => say(true, "no graceful restart".to_owned()),
    }
    if let Some(time) = peer.long_lived {
        say(true, format!("long-lived for {}", seconds(time)));
    }
    match (peer.ttl, peer.ttl_security) {
        (_, Some(hops)) => say(true, format!("TTL security, {hops} hops at most")),
        (Some(ttl), None) => say(true, format!("TTL {ttl}")),
        (None, None) => say(true, "any distance".to_owned()),
    }
    if let Some(source) = peer.source {
        say(true, format!("from {source}"));
    }
    say(peer.password.is_some(), "TCP MD5".to_owned());
    if let Some(cluster) = peer.client_of {
        say(true, format!("our reflector client in cluster {cluster}"));
    }
    say(peer.rs_client, "client of our route server".to_owned());
    if let Some(role) = peer.role {
        let strict = if peer.require_roles {
            ", the peer's is required"
        } else {
            ""
        };
        say(true, format!("our role is {role}{strict}"));
    }
    say(peer.bfd.is_some(), "BFD".to_owned());
    say(peer.add_path.receive, "takes several paths".to_owned());
    match peer.add_path.send {
        Some(PathCount::All) => say(true, "sends all paths".to_owned()),
        Some(PathCount::Best(count)) => say(true, format!("sends the best {count} paths")),
        None => {}
    }
    let times = peer.allow_own_as;
    say(times > 0, format!("our AS may be in a path {times} times"));
    say(
        peer.enforce_first_as,
        "its AS is the first of each path".to_owned(),
    );
    let preference = peer.preference;
    let differs = preference != PeerConfig::PREFERENCE;
    say(differs, format!("preference {preference}"));
    say(
        peer.disable_after.error,
        "disabled after an error".to_owned(),
    );
    if let Some(words) = peer.disable_after.cease_words() {
        say(true, format!("disabled after a Cease: {words}"));
    }
    words
}

/// What passes in a direction, and how much of it.
fn policy(peer: &PeerConfig, filters: &[String], denied: bool, limits: &[Counted]) -> String {
    let mut text = match filters {
        [] if denied => "nothing, for there is no policy (RFC 8212)".to_owned(),
        [] => "all".to_owned(),
        filters => format!("filter {}", filters.join(", then ")),
    };
    for counted in limits {
        let limits = peer.limits(*counted);
        let of = |family: &Family| limits.for_family(*family);
        let first = peer.families.first().and_then(of);
        let alike = peer.families.iter().all(|family| of(family) == first);
        let told = if alike { 1 } else { peer.families.len() };
        for family in peer.families.iter().take(told) {
            if let Some(limit) = of(family) {
                let family = (!alike).then_some(*family);
                text.push_str("; ");
                text.push_str(&limit_words(*counted, limit, family));
            }
        }
    }
    text
}

/// `family`: the one that the limit is of, where the other has another one.
fn limit_words(counted: Counted, limit: PrefixLimit, family: Option<Family>) -> String {
    let what = match counted {
        Counted::Received => "received",
        Counted::Accepted => "accepted",
        Counted::Sent => "sent",
    };
    let then = match limit.action {
        LimitAction::Warn => "a warning beyond".to_owned(),
        LimitAction::Block => "no more beyond".to_owned(),
        LimitAction::Disable => "the session ends beyond".to_owned(),
        LimitAction::Restart(pause) => {
            format!("the session ends beyond, for {}", seconds(pause))
        }
    };
    let family = family
        .map(|family| format!("{family} "))
        .unwrap_or_default();
    format!("{} {family}prefixes {what} at most, {then}", limit.max)
}

/// What is told as next hop, by family where the families differ.
fn next_hop(peer: &PeerConfig, internal: bool) -> String {
    let of = |family: Family| next_hop_by(peer, peer.next_hop.for_family(family), internal);
    let families = &peer.families[..];
    match families.first().map(|first| of(*first)) {
        Some(first) if families.iter().all(|family| of(*family) == first) => first,
        _ => {
            let each = families
                .iter()
                .map(|family| format!("{family}: {}", of(*family)));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

fn next_hop_by(peer: &PeerConfig, mode: NextHopMode, internal: bool) -> String {
    let own: Vec<String> = [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .filter_map(|family| peer.own_next_hops.for_family(family))
        .map(|address| address.to_string())
        .collect();
    let ourselves = match &own[..] {
        [] => "our end of the session".to_owned(),
        own => own.join(" and "),
    };
    match mode {
        NextHopMode::Own => ourselves,
        NextHopMode::Keep => format!("kept; of our routes {ourselves}"),
        NextHopMode::Auto if internal || peer.rs_client => {
            format!("kept; of our routes {ourselves}")
        }
        NextHopMode::Auto => ourselves,
    }
}

fn own_route(f: &mut Formatter<'_>, prefix: &Prefix, route: &Origination) -> fmt::Result {
    let gateway = |gateway: &StaticGateway| match gateway.extra_weight {
        0 => gateway.to_string(),
        extra => format!("{gateway} with weight {}", u16::from(extra) + 1),
    };
    let way = match &route.way {
        StaticWay::Blackhole => "dropped".to_owned(),
        StaticWay::Unreachable => "unreachable".to_owned(),
        StaticWay::Prohibit => "prohibited".to_owned(),
        StaticWay::Via(gateways) => {
            let gateways: Vec<String> = gateways.iter().map(gateway).collect();
            format!("via {}", gateways.join(", "))
        }
        StaticWay::Recursive(address) => format!("to wherever {address} is"),
        StaticWay::Interface(name) => format!("on the link {name}"),
        StaticWay::Inherited { .. } => "by a route of the kernel's table".to_owned(),
    };
    write!(f, "  {prefix}: {way}")?;
    if let Some(value) = route.local_pref {
        write!(f, ", local preference {value}")?;
    }
    if let Some(value) = route.med {
        write!(f, ", MED {value}")?;
    }
    for community in &route.communities {
        write!(f, ", {community}")?;
    }
    writeln!(f)
}

fn kernel(f: &mut Formatter<'_>, family: Family, table: &KernelTable) -> fmt::Result {
    let KernelTable {
        table,
        metric,
        paths,
        persist,
        protocol,
        export,
        learn,
        near: _,
    } = table;
    write!(f, "\nkernel, {family}: table {table}, metric {metric}, ")?;
    write!(f, "next hops of a route: {paths} at most")?;
    if let Some(protocol) = protocol {
        write!(f, ", protocol {protocol}")?;
    }
    if *persist {
        f.write_str(", routes stay after the end")?;
    }
    if learn.is_some() {
        f.write_str(", routes of others are learned")?;
    }
    match export {
        None => writeln!(f, "; all best routes are written"),
        Some(filter) => write!(f, "; written are those that pass\n{filter}"),
    }
}

/// The interfaces of a direct protocol, and what of their subnets is announced.
fn interfaces(f: &mut Formatter<'_>, direct: &Direct) -> fmt::Result {
    let pattern = |pattern: &InterfacePattern| {
        let sign = if pattern.excludes { "-" } else { "" };
        let name = pattern.interface.as_deref().unwrap_or("*");
        match pattern.prefix {
            Some(prefix) => format!("{sign}{name} with addresses in {prefix}"),
            None => format!("{sign}{name}"),
        }
    };
    let list: Vec<String> = direct.interfaces.iter().map(pattern).collect();
    let list = match &list[..] {
        [] => "all".to_owned(),
        list => list.join(", "),
    };
    writeln!(f, "\nroutes of interfaces: {list}")?;
    for (family, filter) in &direct.import {
        match filter {
            None => writeln!(f, "  {family}: all subnets")?,
            Some(filter) => write!(f, "  {family}: those that pass\n{filter}")?,
        }
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FILE: &str = r#"
router id 10.0.0.1;
define LOW = 64496;
function is_low() -> bool { return bgp_path.last < LOW; }
filter in {
  if net ~ [10.0.0.0/8{16,24}] && is_low() then { bgp_local_pref = 50; accept; }
  case bgp_path.len { 1..3: accept; else: unset(bgp_med); }
  reject;
}
template bgp ours { local as 64512; hold time 30; }
protocol bgp edge from ours {
  neighbor 10.0.0.2 as 65001; local role customer;
  ipv4 { import filter in; import limit 100 action block; export none; next hop self; };
  ipv6 { import filter in; import limit 100 action block; export none; next hop self;
    receive limit 50 action warn; };
}
protocol static { ipv4; route 10.9.0.0/16 via 10.0.0.7 weight 3 via 10.0.0.8; }
protocol kernel { ipv4 { export all; }; metric 7; }
"#;

    #[test]
    fn what_a_file_came_to_is_told_with_its_defaults() {
        let file = caracal_templates::parse_file(FILE).unwrap();
        let text = Explained(&file).to_string();
        println!("{text}");
        for line in [
            "peer edge: 10.0.0.2 port 179, AS 65001, external; our AS 64512",
            "  session: hold time 30 s, graceful restart of 120 s, TTL 1, our role is customer",
            "  import: filter in; 50 IPv6 prefixes received at most, a warning beyond; 100 prefixes accepted at most, no \
             more beyond",
            "  next hop: our end of the session",
            "  10.9.0.0/16: via 10.0.0.7 with weight 3, 10.0.0.8",
            "kernel, IPv4: table 254, metric 7, next hops of a route: 1 at most; all best routes are written",
            "filter in: a program; what it does not decide is rejected",
            "  if ((net ~ [10.0.0.0/8{16,24}]) && is_low()) then {",
            "    bgp_local_pref = 50;",
            "  case bgp_path.len {",
            "    [1..3]:",
            "      unset(bgp_med);",
            "  function is_low {",
            "    return (bgp_path.last < 64496);",
        ] {
            assert!(
                text.lines().any(|one| one == line),
                "no line {line:?} in\n{text}"
            );
        }
    }
}
