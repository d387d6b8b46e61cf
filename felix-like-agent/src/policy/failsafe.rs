//! Ports that no host endpoint closes: a node that is cut off from its datastore, from its routers
//! or from whoever administers it cannot be opened again from afar.

use caracal_model::{Packet, PolicyDirection, Prefix};
use serde_json::Value;

use super::rule::{Action, End, FilterRule, Match};
use crate::transport::Transport;

/// SSH, BGP, etcd, Typha, the API server of Kubernetes, and etcd at its port of old; and DHCP.
const INBOUND: [(Transport, u16); 9] = [
    (Transport::Tcp, 22),
    (Transport::Tcp, 179),
    (Transport::Tcp, 2379),
    (Transport::Tcp, 2380),
    (Transport::Tcp, 5473),
    (Transport::Tcp, 6443),
    (Transport::Tcp, 6666),
    (Transport::Tcp, 6667),
    (Transport::Udp, 68),
];
/// The same, without SSH and with DNS.
const OUTBOUND: [(Transport, u16); 9] = [
    (Transport::Udp, 53),
    (Transport::Udp, 67),
    (Transport::Tcp, 179),
    (Transport::Tcp, 2379),
    (Transport::Tcp, 2380),
    (Transport::Tcp, 5473),
    (Transport::Tcp, 6443),
    (Transport::Tcp, 6666),
    (Transport::Tcp, 6667),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailsafePort {
    protocol: Transport,
    port: u16,
    /// Where it comes from or goes; `None` = everywhere.
    net: Option<Prefix>,
}

/// Ports that no host endpoint closes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailsafePorts {
    inbound: Vec<FailsafePort>,
    outbound: Vec<FailsafePort>,
}

impl Default for FailsafePorts {
    fn default() -> Self {
        let ports = |list: [(Transport, u16); 9]| {
            let each = |(protocol, port)| FailsafePort {
                protocol,
                port,
                net: None,
            };
            list.into_iter().map(each).collect()
        };
        Self {
            inbound: ports(INBOUND),
            outbound: ports(OUTBOUND),
        }
    }
}

impl FailsafePorts {
    /// Takes a list of FelixConfiguration, or a text as the environment has it: `none`, or
    /// `tcp:22,udp:10.0.0.0/8:53`.
    ///
    /// # Errors
    /// What cannot be read: nothing of the list is taken then.
    pub fn set(&mut self, direction: PolicyDirection, given: &Value) -> Result<(), String> {
        let ports = match given {
            Value::String(text) => match text.trim() {
                "" => return Ok(()),
                "none" => Vec::new(),
                text => text.split(',').map(of_text).collect::<Result<_, _>>()?,
            },
            Value::Array(list) => list.iter().map(of_value).collect::<Result<_, _>>()?,
            _ => return Err(format!("expected a list of ports, found {given}")),
        };
        match direction {
            PolicyDirection::Ingress => self.inbound = ports,
            PolicyDirection::Egress => self.outbound = ports,
        }
        Ok(())
    }

    const fn of(&self, direction: PolicyDirection) -> &Vec<FailsafePort> {
        match direction {
            PolicyDirection::Ingress => &self.inbound,
            PolicyDirection::Egress => &self.outbound,
        }
    }

    /// True for a packet to the node, or from it, that no host endpoint keeps back.
    #[must_use]
    pub fn let_pass(&self, direction: PolicyDirection, packet: &Packet) -> bool {
        let peer = match direction {
            PolicyDirection::Ingress => packet.source,
            PolicyDirection::Egress => packet.destination,
        };
        self.of(direction).iter().any(|of| {
            (of.protocol.number(), of.port) == (packet.protocol, packet.ports.1)
                && of.net.is_none_or(|net| net.contains(peer))
        })
    }

    /// Rules of the table that accept them.
    pub(super) fn rules(&self, direction: PolicyDirection) -> impl Iterator<Item = FilterRule> {
        let end = match direction {
            PolicyDirection::Ingress => End::Source,
            PolicyDirection::Egress => End::Destination,
        };
        self.of(direction).iter().map(move |of| {
            let net = of.net.map(|net| Match::Net {
                end,
                net,
                not: false,
            });
            let [protocol, port] = to_port(of.protocol, of.port);
            FilterRule {
                matches: net.into_iter().chain([protocol, port]).collect(),
                action: Action::Accept,
            }
        })
    }
}

/// What asks for packets to a port.
pub(super) const fn to_port(protocol: Transport, port: u16) -> [Match; 2] {
    let number = protocol.number();
    let ports = Match::Ports {
        end: End::Destination,
        first: port,
        last: port,
        not: false,
    };
    [Match::Protocol { number, not: false }, ports]
}

fn of_text(text: &str) -> Result<FailsafePort, String> {
    let text = text.trim();
    let read = || {
        let (protocol, rest) = text.split_once(':').unwrap_or(("tcp", text));
        let (net, port) = rest.rsplit_once(':').unwrap_or(("", rest));
        // Addresses of IPv6 may stand between brackets.
        let net: String = net.chars().filter(|c| !"[]".contains(*c)).collect();
        port_of(protocol, port.parse().ok()?, &net)
    };
    read().ok_or_else(|| format!("expected PROTOCOL:PORT or PROTOCOL:RANGE:PORT, found {text}"))
}

fn of_value(value: &Value) -> Result<FailsafePort, String> {
    let text = |field: &str| match &value[field] {
        Value::Null => Some(""),
        value => value.as_str(),
    };
    let read = || {
        let port = value["port"].as_u64()?.try_into().ok()?;
        let protocol = text("protocol")?;
        let protocol = if protocol.is_empty() { "tcp" } else { protocol };
        port_of(protocol, port, text("net")?)
    };
    read().ok_or_else(|| format!("expected protocol, port and perhaps net, found {value}"))
}

fn port_of(protocol: &str, port: u16, net: &str) -> Option<FailsafePort> {
    let net = match net {
        "" => None,
        net => Some(net.parse().ok()?),
    };
    Some(FailsafePort {
        protocol: Transport::from_word(&protocol.to_ascii_lowercase())?,
        port,
        net,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn rules(given: &Value) -> Result<Vec<String>, String> {
        let mut ports = FailsafePorts::default();
        ports.set(PolicyDirection::Ingress, given)?;
        let rules = ports.rules(PolicyDirection::Ingress);
        Ok(rules.map(|rule| rule.to_string()).collect())
    }

    #[test]
    fn lists_are_read_as_felix_reads_them() {
        for (given, wanted) in [
            (json!([]), vec![]),
            (json!("none"), vec![]),
            (
                json!([{"protocol": "UDP", "port": 53}, {"port": 22, "net": "10.0.0.0/8"}]),
                vec![
                    "meta l4proto 17 th dport 53 accept",
                    "ip saddr 10.0.0.0/8 meta l4proto 6 th dport 22 accept",
                ],
            ),
            (
                json!("22, udp:68,tcp:10.0.0.0/8:179,tcp:[fd00::/8]:80"),
                vec![
                    "meta l4proto 6 th dport 22 accept",
                    "meta l4proto 17 th dport 68 accept",
                    "ip saddr 10.0.0.0/8 meta l4proto 6 th dport 179 accept",
                    "ip6 saddr fd00::/8 meta l4proto 6 th dport 80 accept",
                ],
            ),
        ] {
            assert_eq!(rules(&given).unwrap(), wanted, "{given}");
        }
        for given in [
            json!(7),
            json!({}),
            json!([7]),
            json!([{"port": 70_000}]),
            json!([{"protocol": "ICMP", "port": 1}]),
            json!([{"port": 22, "net": "x"}]),
            json!([{"port": 22, "net": 4}]),
            json!("tcp"),
            json!("tcp:22,,udp:53"),
            json!("tcp:22 accept\nadd"),
        ] {
            assert!(rules(&given).is_err(), "{given}");
        }
        // What cannot be read changes nothing.
        let mut ports = FailsafePorts::default();
        assert!(ports.set(PolicyDirection::Egress, &json!(7)).is_err());
        assert_eq!(ports, FailsafePorts::default());
    }
}
