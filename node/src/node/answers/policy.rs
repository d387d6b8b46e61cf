//! Policies of this node's endpoints, and what becomes of a packet between two endpoints.

use caracal_model::{Packet, PolicyData, PolicyDirection, PolicyEndpoint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Owners, to_value};
use crate::admin::AskPacket;
use crate::node::kernel::policy::Enforced;

/// Policies that judge an endpoint of this node, in their order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JudgedEndpoint {
    /// `NAMESPACE/NAME`.
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
    /// `NAMESPACE/NAME`.
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
    pub(super) fn policy(&self, me: &str, packet: Option<AskPacket>) -> Result<Value, String> {
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
            Some(packet) => to_value(&judged(data, &packet)),
            None => to_value(&endpoints(data, me, &enforced)),
        }
    }
}

const fn is_off(enforced: &Enforced) -> bool {
    matches!(enforced, Enforced::Off)
}

fn endpoints(data: &PolicyData, me: &str, enforced: &Enforced) -> Vec<JudgedEndpoint> {
    let own = data.endpoints().filter(|(_, endpoint)| endpoint.node == me);
    own.map(|(name, endpoint)| {
        let titles = |direction| {
            let policies = data.policies_of(endpoint, direction).into_iter();
            policies.map(|policy| policy.title()).collect()
        };
        JudgedEndpoint {
            endpoint: name.to_owned(),
            interface: endpoint.interface.clone(),
            in_force: enforced.lacks(&endpoint.interface).is_none(),
            ingress: titles(PolicyDirection::Ingress),
            egress: titles(PolicyDirection::Egress),
        }
    })
    .collect()
}

/// Out of the endpoint that has the one address, and into the one that has the other.
fn judged(data: &PolicyData, asked: &AskPacket) -> Vec<JudgedPacket> {
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
            all.push(JudgedPacket {
                endpoint: name.to_owned(),
                node: endpoint.node.clone(),
                direction: direction.as_str().to_owned(),
                allowed: verdict.allowed,
                by: verdict.by.to_string(),
            });
        }
    }
    all
}
