//! What of the table does not depend on policies: the chains that the kernel calls, and the maps in
//! which they look.

use std::fmt::Write as _;

use caracal_model::PolicyDirection;

use super::PolicySettings;
use super::failsafe::to_port;
use crate::nat::BFD_PORTS;
use crate::transport::Transport;

/// Name of the table, of family `inet`.
pub(crate) const POLICY_TABLE: &str = "caracal-policy";
/// Maps from interfaces to the chains that judge: packets of endpoints that are forwarded, those to
/// this node itself, and packets to endpoints.
pub(super) const FROM: &str = "from-pods";
pub(super) const FROM_TO_NODE: &str = "from-pods-to-node";
pub(super) const TO: &str = "to-pods";
/// The same for host endpoints: packets to the node itself, from it, and those that pass through
/// it, as they come in and as they go out. Behind each is the map of who judges all interfaces that
/// the map does not have, by family.
pub(super) const HOST_IN: [&str; 2] = ["host-in", "host-in-others"];
pub(super) const HOST_OUT: [&str; 2] = ["host-out", "host-out-others"];
pub(super) const THROUGH_IN: [&str; 2] = ["through-in", "through-in-others"];
pub(super) const THROUGH_OUT: [&str; 2] = ["through-out", "through-out-others"];
/// And for what comes in by their interfaces, before translation.
pub(super) const EARLY: [&str; 2] = ["early", "early-others"];
/// All maps, and what their keys are.
pub(super) const MAPS: [(&str, &str); 13] = [
    (FROM, IFNAME),
    (FROM_TO_NODE, IFNAME),
    (TO, IFNAME),
    (HOST_IN[0], IFNAME),
    (HOST_IN[1], FAMILY),
    (HOST_OUT[0], IFNAME),
    (HOST_OUT[1], FAMILY),
    (THROUGH_IN[0], IFNAME),
    (THROUGH_IN[1], FAMILY),
    (THROUGH_OUT[0], IFNAME),
    (THROUGH_OUT[1], FAMILY),
    (EARLY[0], IFNAME),
    (EARLY[1], FAMILY),
];
const IFNAME: &str = "ifname";
const FAMILY: &str = "nf_proto";
/// Where a packet goes that host endpoints let in, one that may leave its endpoint, and one that
/// may enter one.
pub(super) const FROM_DISPATCH: &str = "from-dispatch";
pub(super) const DISPATCH: &str = "to-dispatch";
pub(super) const LEAVE: &str = "leave";
pub(super) const TO_NODE: &str = "to-node";
/// Where one goes that a policy allows before translation: it has passed its host endpoint.
pub(super) const ALLOWED_EARLY: &str = "allowed-early";

/// Where a packet of a flow goes that is not allowed any more.
const REVOKED_CHAIN: &str = "revoked";
/// The bit of a flow's mark (`ct mark`) by which such a flow is known. No bit of Calico's, of
/// kube-proxy's or of clouds' that we know.
pub(crate) const REVOKED: u32 = 0x2000;
/// The bit of a flow that was allowed before translation.
const EARLY_MARK: u32 = 0x1000;

const INFALLIBLE: &str = "writing to a String does not fail";
/// Chains that the kernel calls, and what is after them.
const BASE: [(&str, &str); 10] = [
    (REVOKED_CHAIN, ""),
    (TO_NODE, ""),
    (FROM_DISPATCH, ""),
    (DISPATCH, ""),
    (LEAVE, ""),
    (ALLOWED_EARLY, ""),
    (
        "prerouting",
        " { type filter hook prerouting priority -150; policy accept; }",
    ),
    (
        "forward",
        " { type filter hook forward priority 0; policy accept; }",
    ),
    (
        "input",
        " { type filter hook input priority 0; policy accept; }",
    ),
    (
        "output",
        " { type filter hook output priority 0; policy accept; }",
    ),
];
/// IPIP; its senders are judged by another table of ours.
const IPIP: u8 = 4;

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
    rule(FROM_DISPATCH, &format!("iifname vmap @{FROM}"));
    nothing_else(&mut rule, FROM_DISPATCH, "iifname");
    rule(FROM_DISPATCH, &format!("goto {DISPATCH}"));
    rule(DISPATCH, &format!("oifname vmap @{TO}"));
    nothing_else(&mut rule, DISPATCH, "oifname");
    rule(DISPATCH, &format!("goto {LEAVE}"));
    by_host(&mut rule, LEAVE, "oifname", THROUGH_OUT);
    rule(LEAVE, "accept");
    rule(REVOKED_CHAIN, "meta l4proto 6 reject with tcp reset");
    rule(REVOKED_CHAIN, "drop");
    let is = |not: &str| format!("ct mark and {REVOKED:#x} {not}= 0x0");
    let known = format!("{} ct state established,related accept", is("="));
    rule("forward", &known);
    rule("forward", &format!("{} goto {REVOKED_CHAIN}", is("!")));
    let has_passed = format!("ct mark and {EARLY_MARK:#x} != 0x0");
    rule("forward", &format!("{has_passed} goto {FROM_DISPATCH}"));
    by_host(&mut rule, "forward", "iifname", THROUGH_IN);
    rule("forward", &format!("goto {FROM_DISPATCH}"));
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
    never_closed(&mut rule, "input", PolicyDirection::Ingress, settings);
    rule("input", &format!("{has_passed} accept"));
    of_node(&mut rule, "input", "iifname", HOST_IN);
    rule("output", "ct state established,related accept");
    never_closed(&mut rule, "output", PolicyDirection::Egress, settings);
    // What the node sends to its endpoints always passes.
    for pods in &pods {
        rule("output", &format!("oifname {pods} accept"));
    }
    of_node(&mut rule, "output", "oifname", HOST_OUT);
    rule("prerouting", "ct state established,related accept");
    never_closed(&mut rule, "prerouting", PolicyDirection::Ingress, settings);
    of_node(&mut rule, "prerouting", "iifname", EARLY);
    let mark = format!("ct mark set ct mark or {EARLY_MARK:#x} accept");
    rule(ALLOWED_EARLY, &mark);
    text
}

/// Adds a rule to a chain.
type AddRule<'a> = &'a mut dyn FnMut(&str, &str);

/// The host endpoint of an interface judges, or that of all others.
fn by_host(rule: AddRule<'_>, chain: &str, word: &str, [named, others]: [&str; 2]) {
    rule(chain, &format!("{word} vmap @{named}"));
    rule(chain, &format!("meta nfproto vmap @{others}"));
}

/// The same of packets of the node itself. What it sends to itself is judged by nobody who does not
/// name that interface.
fn of_node(rule: AddRule<'_>, chain: &str, word: &str, [named, others]: [&str; 2]) {
    rule(chain, &format!("{word} vmap @{named}"));
    rule(chain, &format!("{word} \"lo\" accept"));
    rule(chain, &format!("meta nfproto vmap @{others}"));
}

/// What no host endpoint closes: neighbours, routers and listeners of IPv6, tunnels between nodes
/// and BFD, whose packets are no answers to each other, and the ports of failsafe.
fn never_closed(
    rule: AddRule<'_>,
    chain: &str,
    direction: PolicyDirection,
    settings: &PolicySettings,
) {
    for types in ["130-136", "143"] {
        rule(chain, &format!("icmpv6 type {types} accept"));
    }
    rule(chain, &format!("meta l4proto {IPIP} accept"));
    for port in BFD_PORTS.into_iter().chain([settings.vxlan_port]) {
        let [protocol, port] = to_port(Transport::Udp, port);
        rule(chain, &format!("{protocol} {port} accept"));
    }
    for of in settings.failsafe.rules(direction) {
        rule(chain, &of.to_string());
    }
}

pub(super) fn is_base(chain: &str) -> bool {
    BASE.iter().any(|(name, _)| *name == chain)
}
