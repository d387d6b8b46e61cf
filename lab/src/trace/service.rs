//! A service's address as the destination: what the table of services on the pod's node makes of
//! it, and the way to each endpoint.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::walk::walk;
use super::{Direction, Hop, Look, parse};

/// `ADDRESS:PORT`, and `/udp` or `/sctp` behind it where it is not TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServicePort {
    pub(super) at: SocketAddr,
    pub(super) protocol: &'static str,
}

impl FromStr for ServicePort {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (at, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let known = ["tcp", "udp", "sctp"];
        let protocol = known
            .into_iter()
            .find(|known| known.eq_ignore_ascii_case(protocol));
        Ok(Self {
            at: at.parse().map_err(drop)?,
            protocol: protocol.ok_or(())?,
        })
    }
}

impl std::fmt::Display for ServicePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.at, self.protocol)
    }
}

/// What a node's table of services makes of a pod's packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// It goes to one of these.
    To(Vec<SocketAddr>),
    /// Nothing is behind the service: the verdict's words.
    Refused(String),
    /// Nothing is known of it.
    Unknown,
}

impl Translation {
    /// Reads nft's listing of the table. A pod is a client inside the cluster, for which policies
    /// for external traffic do not count.
    pub(super) fn read(listing: &str, to: ServicePort) -> Self {
        let n = if to.at.is_ipv4() { '4' } else { '6' };
        let port = to.at.port();
        let key = format!("{} . {} . {port}", to.at.ip(), to.protocol);
        let leads = |map: &str| parse::map_value(listing, map, &key);
        let Some(mut verdict) = leads(&format!("services{n}")) else {
            return match leads(&format!("refused{n}")) {
                Some(verdict) => Self::Refused(verdict.to_owned()),
                None => Self::Unknown,
            };
        };
        if verdict == "goto by-sender" {
            verdict = leads(&format!("inside{n}")).unwrap_or(verdict);
        }
        if let Some(affine) = verdict.strip_prefix("goto affine") {
            // Clients that are not known yet.
            verdict = leads(&format!("picks{affine}")).unwrap_or(verdict);
        }
        let Some((kind, _)) = verdict
            .strip_prefix("goto pick-")
            .and_then(|rest| rest.rsplit_once('-'))
        else {
            return Self::Refused(verdict.to_owned());
        };
        let map = format!("{kind}{n}-{}", to.protocol);
        let endpoints = parse::map_values(listing, &map, format!("{key} . "));
        Self::To(endpoints.filter_map(endpoint).collect())
    }
}

/// `10.244.0.1 . 8080`.
fn endpoint(value: &str) -> Option<SocketAddr> {
    let (address, port) = value.split_once(" . ")?;
    Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
}

/// A place and one of its addresses.
pub(super) type Holder<'a> = (&'a str, IpAddr);

/// The ways from a pod on `node` to each endpoint of a service, and back.
pub(super) fn ways(
    look: &dyn Look,
    from: Holder<'_>,
    node: &str,
    to: ServicePort,
    holder: impl Fn(IpAddr) -> Option<String>,
) -> Vec<Direction> {
    let hop = |seen, broken| Hop {
        place: node.to_owned(),
        seen,
        broken,
    };
    let stops = |seen: String| {
        vec![Direction {
            from: from.0.to_owned(),
            to: to.to_string(),
            hops: vec![hop(seen, true)],
        }]
    };
    let endpoints = match look.translation(node, to) {
        Err(why) => return stops(why),
        Ok(Translation::Unknown) => {
            return stops(format!("the table of services does not have {to}"));
        }
        Ok(Translation::Refused(verdict)) => {
            return stops(format!("{to} has no endpoint for this client ({verdict})"));
        }
        Ok(Translation::To(endpoints)) if endpoints.is_empty() => {
            return stops(format!("{to} leads to a chain that finds no endpoint"));
        }
        Ok(Translation::To(endpoints)) => endpoints,
    };
    let mut directions = Vec::new();
    for endpoint in &endpoints {
        let seen = format!("{to} becomes {endpoint}, one of {}", endpoints.len());
        let translated = hop(seen, false);
        let Some(place) = holder(endpoint.ip()) else {
            let outside = hop(format!("{endpoint} is no pod or node of this lab"), false);
            directions.push(Direction {
                from: from.0.to_owned(),
                to: endpoint.to_string(),
                hops: vec![translated, outside],
            });
            continue;
        };
        if place == from.0 {
            let seen = "it is the client itself: the node sends it back from another address";
            directions.push(Direction {
                from: from.0.to_owned(),
                to: place,
                hops: vec![translated, hop(seen.to_owned(), false)],
            });
            continue;
        }
        let mut there = walk(look, from, (&place, endpoint.ip()));
        there.hops.insert(0, translated);
        directions.push(there);
        directions.push(walk(look, (&place, endpoint.ip()), from));
    }
    directions
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LISTING: &str = "table inet caracal-services {
\tmap services4 {
\t\ttype ipv4_addr . inet_proto . inet_service : verdict
\t\telements = { 10.96.0.10 . tcp . 80 : goto pick-endpoints-2,
\t\t\t     10.96.0.11 . udp . 53 : goto affine4/shop/dns,
\t\t\t     10.0.0.1 . tcp . 30080 : goto by-sender }
\t}

\tmap inside4 {
\t\ttype ipv4_addr . inet_proto . inet_service : verdict
\t\telements = { 10.0.0.1 . tcp . 30080 : goto pick-endpoints-1 }
\t}

\tmap refused4 {
\t\ttype ipv4_addr . inet_proto . inet_service : verdict
\t\telements = { 10.96.0.12 . tcp . 80 : goto refusal }
\t}

\tmap picks4/shop/dns {
\t\ttype ipv4_addr . inet_proto . inet_service : verdict
\t\telements = { 10.96.0.11 . udp . 53 : goto pick-here-1 }
\t}

\tmap endpoints4-tcp {
\t\ttypeof ip daddr . tcp dport . numgen random mod 65536 : ip daddr . tcp dport
\t\telements = { 10.96.0.10 . tcp . 80 . 0 : 10.244.0.1 . 8080,
\t\t\t     10.96.0.10 . tcp . 80 . 1 : 10.244.0.65 . 8080,
\t\t\t     10.0.0.1 . tcp . 30080 . 0 : 10.244.0.1 . 8080 }
\t}

\tmap here4-udp {
\t\ttypeof ip daddr . udp dport . numgen random mod 65536 : ip daddr . udp dport
\t\telements = { 10.96.0.11 . udp . 53 . 0 : 10.244.0.2 . 5353 }
\t}
}
";

    #[test]
    fn a_service_is_followed_through_the_maps_of_its_table() {
        let read = |to: &str| Translation::read(LISTING, to.parse().unwrap());
        let to = |all: &[&str]| Translation::To(all.iter().map(|a| a.parse().unwrap()).collect());
        assert_eq!(
            read("10.96.0.10:80"),
            to(&["10.244.0.1:8080", "10.244.0.65:8080"])
        );
        assert_eq!(read("10.96.0.11:53/UDP"), to(&["10.244.0.2:5353"]));
        assert_eq!(read("10.0.0.1:30080/tcp"), to(&["10.244.0.1:8080"]));
        let refused = Translation::Refused("goto refusal".to_owned());
        assert_eq!(read("10.96.0.12:80"), refused);
        for unknown in ["10.96.0.10:81", "10.96.0.10:80/udp", "[fd00:96::10]:80"] {
            assert_eq!(read(unknown), Translation::Unknown, "{unknown}");
        }
        for no_port in ["10.96.0.10", "node1/p1", "10.96.0.10:80/icmp", ":80"] {
            assert!(no_port.parse::<ServicePort>().is_err(), "{no_port}");
        }
    }
}
