//! What of the table does not depend on policies: the chains that the kernel calls, and the maps in
//! which they look.

use std::fmt::Write as _;

use super::PolicySettings;

/// Name of the table, of family `inet`.
pub(crate) const POLICY_TABLE: &str = "caracal-policy";
/// Maps from interfaces to the chains that judge: packets of endpoints that are forwarded, those to
/// this node itself, and packets to endpoints.
pub(super) const FROM: &str = "from-pods";
pub(super) const FROM_TO_NODE: &str = "from-pods-to-node";
pub(super) const TO: &str = "to-pods";
pub(super) const MAPS: [&str; 3] = [FROM, FROM_TO_NODE, TO];
/// Where a packet goes that may leave its endpoint.
pub(super) const DISPATCH: &str = "to-dispatch";
pub(super) const TO_NODE: &str = "to-node";

/// Where a packet of a flow goes that is not allowed any more.
const REVOKED_CHAIN: &str = "revoked";
/// The bit of a flow's mark (`ct mark`) by which such a flow is known. No bit of Calico's, of
/// kube-proxy's or of clouds' that we know.
pub(crate) const REVOKED: u32 = 0x2000;

const INFALLIBLE: &str = "writing to a String does not fail";
/// Chains that the kernel calls, and what is after them.
const BASE: [(&str, &str); 5] = [
    (REVOKED_CHAIN, ""),
    (TO_NODE, ""),
    (DISPATCH, ""),
    (
        "forward",
        " { type filter hook forward priority 0; policy accept; }",
    ),
    (
        "input",
        " { type filter hook input priority 0; policy accept; }",
    ),
];

/// True for a name of an interface, or the beginning of one, that `nft` takes for nothing else. The
/// interface of an endpoint that has another one stays closed.
pub(super) fn is_plain(name: &str) -> bool {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"._-@:".contains(&octet);
    !name.is_empty() && name.bytes().all(is_plain)
}

/// The chains that do not depend on policies.
pub(super) fn base(settings: &PolicySettings) -> String {
    let mut text = String::new();
    for (chain, hook) in BASE {
        writeln!(text, "add chain inet {POLICY_TABLE} {chain}{hook}").expect(INFALLIBLE);
        writeln!(text, "flush chain inet {POLICY_TABLE} {chain}").expect(INFALLIBLE);
    }
    let mut rule = |chain: &str, rule: &str| {
        writeln!(text, "add rule inet {POLICY_TABLE} {chain} {rule}").expect(INFALLIBLE);
    };
    rule(
        TO_NODE,
        if settings.nodes_take {
            "accept"
        } else {
            "drop"
        },
    );
    let pods = settings.interfaces.iter().filter(|name| is_plain(name));
    let pods: Vec<String> = pods.map(|name| format!("\"{name}*\"")).collect();
    let nothing_else = |rule: &mut dyn FnMut(&str, &str), chain: &str, word: &str| {
        for pods in &pods {
            rule(chain, &format!("{word} {pods} counter drop"));
        }
    };
    rule(DISPATCH, &format!("oifname vmap @{TO}"));
    nothing_else(&mut rule, DISPATCH, "oifname");
    rule(DISPATCH, "accept");
    rule(REVOKED_CHAIN, "meta l4proto 6 reject with tcp reset");
    rule(REVOKED_CHAIN, "drop");
    let is = |not: &str| format!("ct mark and {REVOKED:#x} {not}= 0x0");
    let known = format!("{} ct state established,related accept", is("="));
    rule("forward", &known);
    rule("forward", &format!("{} goto {REVOKED_CHAIN}", is("!")));
    rule("forward", &format!("iifname vmap @{FROM}"));
    nothing_else(&mut rule, "forward", "iifname");
    rule("forward", &format!("goto {DISPATCH}"));
    // Answers to the node itself always come, as kubelet's probes need them.
    let begun = format!("ct direction original {}", is("!"));
    rule("input", &format!("{begun} goto {REVOKED_CHAIN}"));
    rule("input", "ct state established,related accept");
    for pods in &pods {
        // Without neighbours there is no IPv6: listeners, routers and neighbours.
        for types in ["130-133", "135-136"] {
            rule(
                "input",
                &format!("iifname {pods} icmpv6 type {types} accept"),
            );
        }
    }
    rule("input", &format!("iifname vmap @{FROM_TO_NODE}"));
    nothing_else(&mut rule, "input", "iifname");
    text
}

pub(super) fn is_base(chain: &str) -> bool {
    BASE.iter().any(|(name, _)| *name == chain)
}
