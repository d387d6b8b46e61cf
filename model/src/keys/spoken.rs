//! Keys as people know what is behind them, for a datastore that has objects and no keys.

use super::{CALICO_ROOT, Key, RESOURCES};
use crate::ipam::BlockOwner;

/// Prefix of what nodes keep beside Calico's data.
const CARACAL_ROOT: &str = "/caracal/";

impl Key {
    /// The object by its kind and name: `Node c1`, `IPAMBlock 10.244.0.0/26`.
    fn spoken(&self) -> String {
        match self {
            Self::Resource {
                kind,
                namespace: Some(namespace),
                name,
            } => format!("{kind} {namespace}/{name}"),
            Self::Resource {
                kind,
                namespace: None,
                name,
            } => format!("{kind} {name}"),
            Self::Block(cidr) => format!("IPAMBlock {cidr}"),
            Self::Affinity(BlockOwner::Host(owner), cidr) => {
                format!("BlockAffinity {owner} {cidr}")
            }
            Self::Affinity(BlockOwner::Virtual(owner), cidr) => {
                format!("BlockAffinity {owner} {cidr}")
            }
            Self::Handle(id) => format!("IPAMHandle {id}"),
            Self::IpamConfig => "IPAMConfig default".to_owned(),
            Self::IpamHost(node) => format!("IPAM's marker of node {node}"),
            Self::Document {
                kind,
                namespace,
                name,
            } => format!("{} {namespace}/{name}", kind.names().1),
            Self::ServicesCheck => "the check of Services".to_owned(),
        }
    }

    /// A text with objects in the place of the keys in it. What is no key stays.
    #[must_use]
    pub fn spoken_in(text: &str) -> String {
        let words = text.split_inclusive(|c: char| c.is_whitespace() || c == '"');
        words
            .map(|word| spoken_word(word).unwrap_or_else(|| word.to_owned()))
            .collect()
    }
}

/// A word that has a key in it, with what stands around the key.
fn spoken_word(word: &str) -> Option<String> {
    let roots = [CALICO_ROOT, CARACAL_ROOT];
    let start = roots.iter().filter_map(|root| word.find(root)).min()?;
    let (before, rest) = word.split_at(start);
    // The folder of a file, as in /var/lib/calico/; not the end of a colour in a terminal's log.
    let shown = before.strip_suffix("\u{1b}[0m").unwrap_or(before);
    if shown.ends_with(|c: char| c.is_alphanumeric() || "/._-".contains(c)) {
        return None;
    }
    let path = rest.trim_end_matches(|c: char| c.is_whitespace() || ".,:;!?)]}\"'`\\".contains(c));
    let after = &rest[path.len()..];
    Some(format!("{before}{}{after}", object(path)?))
}

fn object(path: &str) -> Option<String> {
    if let Ok(key) = Key::parse(path) {
        return Some(key.spoken());
    }
    if let Some(rest) = path.strip_prefix(CARACAL_ROOT) {
        let (area, name) = rest.split_once('/')?;
        return Some(format!("Lease caracal-{area}.{name}"));
    }
    // A kind that is only named, such as a policy's: its plural, and the name if there is one.
    let rest = path.strip_prefix(RESOURCES).filter(|r| !r.is_empty())?;
    Some(rest.replacen('/', " ", 1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_key_is_spoken_of_as_an_object() {
        for (path, said) in [
            ("resources/v3/projectcalico.org/nodes/c1", "Node c1"),
            ("resources/v3/projectcalico.org/ippools/x", "IPPool x"),
            (
                "resources/v3/projectcalico.org/workloadendpoints/default/c1-k8s-web-eth0",
                "WorkloadEndpoint default/c1-k8s-web-eth0",
            ),
            (
                "ipam/v2/assignment/ipv4/block/10.244.0.0-26",
                "IPAMBlock 10.244.0.0/26",
            ),
            (
                "ipam/v2/host/c1/ipv6/block/fd00:10:244::40-122",
                "BlockAffinity c1 fd00:10:244::40/122",
            ),
            (
                "ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.0-26",
                "BlockAffinity load-balancer 10.0.0.0/26",
            ),
            (
                "ipam/v2/handle/k8s-pod-network.8f2c",
                "IPAMHandle k8s-pod-network.8f2c",
            ),
            ("ipam/v2/config", "IPAMConfig default"),
            ("ipam/v2/host/c1", "IPAM's marker of node c1"),
            (
                "caracal/v1/endpointslices/default/web-x2b9k",
                "EndpointSlice default/web-x2b9k",
            ),
            ("caracal/v1/services-check", "the check of Services"),
        ] {
            let key = Key::parse(&format!("{CALICO_ROOT}{path}")).unwrap();
            assert_eq!(key.spoken(), said);
        }
    }

    #[test]
    fn keys_in_a_text_become_objects_and_all_else_stays() {
        const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes";
        let block = "/calico/ipam/v2/assignment/ipv6/block/fd00::40-122";
        for (text, said) in [
            (format!("{NODES}/c1"), "Node c1"),
            (format!("{NODES}/c1 spec.bgpp"), "Node c1 spec.bgpp"),
            (
                format!("the route of {block}: see \"{NODES}/c1\", and ({NODES}/c2)."),
                "the route of IPAMBlock fd00::40/122: see \"Node c1\", and (Node c2).",
            ),
            (format!("key={NODES}/c1  x\n"), "key=Node c1  x\n"),
            (format!("=\u{1b}[0m{NODES}/c1"), "=\u{1b}[0mNode c1"),
            (
                format!(r#"{{"subject":"{NODES}/c1","message":"\"{NODES}/c2\" is gone"}}"#),
                r#"{"subject":"Node c1","message":"\"Node c2\" is gone"}"#,
            ),
            (
                "/caracal/lease/c1 was deleted".to_owned(),
                "Lease caracal-lease.c1 was deleted",
            ),
            (
                "/calico/resources/v3/projectcalico.org/networkpolicies".to_owned(),
                "networkpolicies",
            ),
            (
                "/calico/resources/v3/projectcalico.org/networkpolicies/a/b".to_owned(),
                "networkpolicies a/b",
            ),
        ] {
            assert_eq!(Key::spoken_in(&text), said);
        }
        for text in [
            "",
            "listening socket",
            "/var/lib/calico/caracal/drain",
            "/var/run/caracal/admin.sock: no space",
            "/calico/",
            "/calico/resources/v3/projectcalico.org/",
            "10.244.0.0/26 /caracal/ x",
        ] {
            assert_eq!(Key::spoken_in(text), text);
        }
    }
}
