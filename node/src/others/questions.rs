//! Requests as paths of the API.

use caracal_model::Prefix;

use crate::admin::{Request, RouteFilter};

/// Routes that are asked for at a time: the most that a page has.
const PAGE: &str = "1000";

/// The path of a request that has one answer, and the part of the answer that is that of the admin
/// socket.
pub(crate) fn value_path(request: &Request) -> Option<(String, Option<&'static str>)> {
    Some(match request {
        Request::Status => ("status".to_owned(), None),
        Request::Audit => ("audit".to_owned(), None),
        Request::Peer { peer } => (format!("sessions/{}", encoded(peer)), None),
        Request::ExplainPath { prefix } => (explain(*prefix), None),
        Request::Explain { prefix } => (explain(*prefix), Some("bgp")),
        _ => return None,
    })
}

fn explain(destination: Prefix) -> String {
    let text = destination.to_string();
    format!("explain?destination={}", encoded(&text))
}

/// The path of a page of routes: those behind `after`.
pub(crate) fn routes_path(request: &Request, after: Option<&str>) -> Option<String> {
    let (table, peer, filter): (_, Option<&str>, &RouteFilter) = match request {
        Request::Routes { filter } => ("routes", filter.peer.as_deref(), filter),
        Request::Received { peer, filter } => ("received", Some(peer), filter),
        Request::Advertised { peer, filter } => ("advertised", Some(peer), filter),
        _ => return None,
    };
    let prefix = filter.prefix.map(|prefix| prefix.to_string());
    let first = filter.after.map(|prefix| prefix.to_string());
    let mut path = format!("routes?table={table}&limit={PAGE}");
    for (name, value) in [
        ("peer", peer),
        ("prefix", prefix.as_deref()),
        ("longer", filter.longer.then_some("true")),
        ("best", filter.best.then_some("true")),
        ("after", after.or(first.as_deref())),
    ] {
        if let Some(value) = value {
            path.push('&');
            path.push_str(name);
            path.push('=');
            path.push_str(&encoded(value));
        }
    }
    Some(path)
}

/// Percent-encoded (RFC 3986 §2.3: what is not unreserved).
fn encoded(text: &str) -> String {
    let mut path = String::with_capacity(text.len());
    for octet in text.bytes() {
        match octet {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'.' | b'_' | b'~' => {
                path.push(char::from(octet));
            }
            _ => path.push_str(&format!("%{octet:02X}")),
        }
    }
    path
}
