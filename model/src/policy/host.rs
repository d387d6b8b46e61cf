//! Calico's host endpoints: interfaces of the nodes themselves.

use serde_json::Value;

use super::calico::{WithFaults, in_spec, labels, noted};
use super::fields::{Fault, Fields, Read, bad, port, protocol};
use super::{ALL_INTERFACES, NamedPort, PolicyEndpoint};
use crate::net::Prefix;

/// Longest name of an interface in Linux.
const LONGEST: usize = 15;

/// Reads a host endpoint, and what of it cannot be understood. What it lacks then allows nothing;
/// without a node or an interface it is of nowhere (`None`).
pub(super) fn endpoint(value: &Value) -> WithFaults<Option<PolicyEndpoint>> {
    let mut faults = Vec::new();
    let spec = noted(&mut faults, Fields::of(&value["spec"], "spec"));
    let spec = spec.unwrap_or_else(Fields::none);
    let metadata = noted(&mut faults, Fields::of(&value["metadata"], "metadata"));
    let metadata = metadata.unwrap_or_else(Fields::none);
    let Some((node, interface)) = in_spec(&mut faults, place(spec)) else {
        return (None, faults);
    };
    let expected = in_spec(&mut faults, spec.prefixes("expectedIPs")).unwrap_or_default();
    let endpoint = PolicyEndpoint {
        node: node.to_owned(),
        interface: interface.to_owned(),
        addresses: expected.iter().map(Prefix::address).collect(),
        labels: noted(&mut faults, labels(metadata, "labels")).unwrap_or_default(),
        profiles: in_spec(&mut faults, profiles(spec)).unwrap_or_default(),
        ports: in_spec(&mut faults, named_ports(spec)).unwrap_or_default(),
    };
    if interface.is_empty() && endpoint.addresses.is_empty() {
        let nothing = "neither this nor expectedIPs says which interface is meant";
        let Fault(fault) = Fault::new("interfaceName", nothing).inside("spec");
        faults.push(fault);
        return (None, faults);
    }
    (Some(endpoint), faults)
}

/// Node and interface.
fn place(spec: Fields<'_>) -> Read<(&str, &str)> {
    let (node, interface) = (spec.text("node")?, spec.text("interfaceName")?);
    if node.is_empty() {
        return Err(bad("node", spec.get("node"), "the name of a node"));
    }
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"._-@:".contains(&octet);
    let is_name = interface.len() <= LONGEST && interface.bytes().all(is_plain);
    match is_name || interface == ALL_INTERFACES {
        true => Ok((node, interface)),
        false => Err(bad(
            "interfaceName",
            spec.get("interfaceName"),
            "the name of an interface, or *",
        )),
    }
}

/// Profiles. Where one cannot be read there are none: they would only allow.
fn profiles(spec: Fields<'_>) -> Read<Vec<String>> {
    let each = |value: &Value| {
        let text = value
            .as_str()
            .ok_or_else(|| bad("profiles", value, "a text"));
        text.map(str::to_owned)
    };
    spec.list("profiles")?.iter().map(each).collect()
}

/// Ports with names. One of another protocol than have ports is left out.
pub(super) fn named_ports(spec: Fields<'_>) -> Read<Vec<NamedPort>> {
    let mut ports = Vec::new();
    for value in spec.list("ports")? {
        let fields = Fields::of(value, "ports")?;
        if let (Some(protocol), Some(port)) =
            (protocol(fields.get("protocol")), port(fields.get("port")))
        {
            ports.push(NamedPort {
                name: fields.text("name")?.to_owned(),
                protocol,
                port,
            });
        }
    }
    Ok(ports)
}
