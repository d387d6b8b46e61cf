//! Policies of this node's endpoints, and what becomes of a packet between two endpoints.

use caracal_agent::PolicySettings;
use caracal_model::{Packet, Policy, PolicyData, PolicyDirection, PolicyEndpoint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Owners, to_value};
use crate::admin::AskPacket;
use crate::config::Config;
use crate::node::kernel::policy::{self, Enforced};

/// Policies that judge an endpoint of this node, in their order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JudgedEndpoint {
    /// `NAMESPACE/NAME`, or `HostEndpoint NAME`.
    pub(crate) endpoint: String,
    pub(crate) interface: String,
    /// They are in this node's kernel.
    pub(crate) in_force: bool,
    /// Policies for packets to it.
    pub(crate) ingress: Vec<String>,
    /// And from it.
    pub(crate) egress: Vec<String>,
}

/// What an endpoint's policies say of a packet.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JudgedPacket {
    /// `NAMESPACE/NAME`, or `HostEndpoint NAME`.
    pub(crate) endpoint: String,
    pub(crate) node: String,
    /// `egress` or `ingress`.
    pub(crate) direction: String,
    pub(crate) allowed: bool,
    /// Who has decided.
    pub(crate) by: String,
}

impl Owners {
    /// The endpoints of this node, or what becomes of a packet; a text where no policy is enforced.
    pub(super) fn policy(
        &self,
        config: &Config,
        packet: Option<AskPacket>,
    ) -> Result<Value, String> {
        let me = config.node.as_str();
        let snapshot = self.view.borrow().snapshot.clone();
        let enforced = self.enforced.borrow().clone();
        let Some(data) = snapshot.policy.as_ref().filter(|_| !is_off(&enforced)) else {
            return Ok(match is_off(&enforced) {
                true => "CARACAL_POLICY is off on this node",
                false => "policies are not read yet",
            }
            .into());
        };
        match packet {
            Some(packet) => {
                let (settings, _) = policy::settings(config, &snapshot);
                to_value(&judged(data, &settings, &packet))
            }
            None => to_value(&endpoints(data, me, &enforced)),
        }
    }
}

const fn is_off(enforced: &Enforced) -> bool {
    matches!(enforced, Enforced::Off)
}

fn endpoints(data: &PolicyData, me: &str, enforced: &Enforced) -> Vec<JudgedEndpoint> {
    let row = |endpoint: &PolicyEndpoint, name, interface, in_force| {
        let titles = |direction| {
            let policies = data.policies_of(endpoint, direction).into_iter();
            policies.map(|policy| policy.title()).collect()
        };
        JudgedEndpoint {
            endpoint: name,
            interface,
            in_force,
            ingress: titles(PolicyDirection::Ingress),
            egress: titles(PolicyDirection::Egress),
        }
    };
    let mut rows = Vec::new();
    for (name, endpoint) in data.endpoints().filter(|(_, of)| of.node == me) {
        let in_force = enforced.lacks(&endpoint.interface).is_none();
        let interface = endpoint.interface.clone();
        rows.push(row(endpoint, name.to_owned(), interface, in_force));
    }
    for (name, endpoint) in data.host_endpoints().filter(|(_, of)| of.node == me) {
        let status = enforced.status();
        let judged = status.map_or(&[][..], |status| status.interfaces_of_host(name));
        let interface = match judged {
            [] => endpoint.interface.clone(),
            judged => judged.join(", "),
        };
        let mut row = row(endpoint, title(name), interface, !judged.is_empty());
        let early = data.policies_before_translation(endpoint).into_iter();
        let early: Vec<String> = early.map(before_translation).collect();
        row.ingress.splice(0..0, early);
        rows.push(row);
    }
    rows
}

fn before_translation(policy: &Policy) -> String {
    format!("{} (before translation)", policy.title())
}

/// What a host endpoint is called.
fn title(name: &str) -> String {
    format!("HostEndpoint {name}")
}

/// Out of the endpoint that has the one address, and into the one that has the other.
fn judged(data: &PolicyData, settings: &PolicySettings, asked: &AskPacket) -> Vec<JudgedPacket> {
    let packet = Packet {
        source: asked.source,
        destination: asked.destination,
        protocol: asked.protocol,
        ports: (0, asked.port),
        icmp: (8, 0),
    };
    let mut all = Vec::new();
    for (address, direction) in [
        (asked.source, PolicyDirection::Egress),
        (asked.destination, PolicyDirection::Ingress),
    ] {
        let has = |endpoint: &PolicyEndpoint| endpoint.addresses.contains(&address);
        for (name, endpoint) in data.endpoints().filter(|(_, endpoint)| has(endpoint)) {
            let verdict = data.judge(endpoint, direction, &packet);
            all.push((
                name.to_owned(),
                endpoint,
                direction,
                verdict.allowed,
                verdict.by.to_string(),
            ));
        }
        for (name, endpoint) in data.host_endpoints().filter(|(_, endpoint)| has(endpoint)) {
            let early = match direction {
                PolicyDirection::Ingress => data.judge_before_translation(endpoint, &packet),
                PolicyDirection::Egress => None,
            };
            let (allowed, by) = match (settings.failsafe.let_pass(direction, &packet), early) {
                (true, _) => (true, "a failsafe port".to_owned()),
                (false, Some(early)) => {
                    (early.allowed, format!("{} (before translation)", early.by))
                }
                (false, None) => {
                    let verdict = data.judge(endpoint, direction, &packet);
                    (verdict.allowed, verdict.by.to_string())
                }
            };
            all.push((title(name), endpoint, direction, allowed, by));
        }
    }
    let row = |(name, of, direction, allowed, by): Row<'_>| JudgedPacket {
        endpoint: name,
        node: of.node.clone(),
        direction: direction.as_str().to_owned(),
        allowed,
        by,
    };
    all.into_iter().map(row).collect()
}

/// Who judges, in which direction, what is decided, and because of what.
type Row<'a> = (String, &'a PolicyEndpoint, PolicyDirection, bool, String);
