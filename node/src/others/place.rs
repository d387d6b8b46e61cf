//! Where a node's console answers: what a node publishes of it, and what others read.

use std::net::{IpAddr, SocketAddr};

use caracal_datastore::{Datastore, Store};
use caracal_model::{Family, Key, KeyRange, Kind, Node, NodeName};

use super::{NoAnswer, Place};
use crate::cluster_status::{PublishedStatus, status_path};

const HTTPS: &str = "https://";
const HTTP: &str = "http://";

/// What a node publishes of the console at that address, if others reach it: `https://10.0.0.1:9095`.
/// A console that is served on all addresses is asked at the node's own.
pub(crate) fn published_place(
    served: SocketAddr,
    has_tls: bool,
    node: Option<&Node>,
) -> Option<String> {
    let address = served.ip().to_canonical();
    let address = match address {
        address if address.is_loopback() => return None,
        address if address.is_unspecified() => {
            // A socket of IPv6 takes both, one of IPv4 its own.
            let families: &[Family] = match served.ip() {
                IpAddr::V4(_) => &[Family::Ipv4],
                IpAddr::V6(_) => &[Family::Ipv4, Family::Ipv6],
            };
            let mut own = families
                .iter()
                .filter_map(|family| node?.spec.address(*family));
            own.next()?
        }
        address => address,
    };
    let scheme = if has_tls { HTTPS } else { HTTP };
    Some(format!(
        "{scheme}{}",
        SocketAddr::new(address, served.port())
    ))
}

/// Reads what a node has published of its console.
pub(crate) async fn find(store: &Datastore, name: &str) -> Result<Place, NoAnswer> {
    let node = NodeName::from(name);
    let ours = |reason: String| NoAnswer::Ours {
        node: name.to_owned(),
        reason,
    };
    let ranges = [
        KeyRange::Key(Key::resource(Kind::Node, name).to_path()),
        KeyRange::Key(status_path(&node)),
    ];
    let answer = store.read(&ranges).await;
    let answer = answer.map_err(|error| ours(format!("{error}; {}", store.advice())))?;
    let mut values = answer
        .ranges
        .into_iter()
        .map(|range| range.into_iter().next());
    let (known, record) = (values.next().flatten(), values.next().flatten());
    if known.is_none() {
        return Err(NoAnswer::NoSuchNode(name.to_owned()));
    }
    let record: Option<PublishedStatus> =
        record.and_then(|stored| serde_json::from_slice(&stored.value).ok());
    place(name, record)
}

fn place(name: &str, record: Option<PublishedStatus>) -> Result<Place, NoAnswer> {
    let none = |reason: String| NoAnswer::NoConsole {
        node: name.to_owned(),
        reason,
    };
    let Some(record) = record else {
        let reason = "it has published nothing of itself; does Caracal run there?";
        return Err(none(reason.to_owned()));
    };
    let Some(text) = record.console else {
        return Err(none(format!(
            "set CARACAL_CONSOLE to an address there that others reach, with certificates or a token; `caracal status` there says when it is not served (it runs caracal {})",
            record.version
        )));
    };
    let (has_tls, rest) = match (text.strip_prefix(HTTPS), text.strip_prefix(HTTP)) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => (false, ""),
    };
    let Ok(address) = rest.parse() else {
        return Err(none(format!(
            "it has published {text:?}, which is no place"
        )));
    };
    Ok(Place {
        node: name.to_owned(),
        has_tls,
        address,
        version: record.version,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn node(bgp: &serde_json::Value) -> Node {
        let node = serde_json::json!({"metadata": {"name": "n1"}, "spec": {"bgp": bgp}});
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_node_publishes_what_others_reach() {
        let both =
            node(&serde_json::json!({"ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::1/64"}));
        let v6 = node(&serde_json::json!({"ipv6Address": "fd00::1/64"}));
        for (served, tls, node, published) in [
            ("127.0.0.1:1", true, &both, None),
            ("[::1]:1", true, &both, None),
            ("[::ffff:127.0.0.1]:1", true, &both, None),
            ("10.0.0.9:1", false, &both, Some("http://10.0.0.9:1")),
            ("[fd00::9]:1", true, &both, Some("https://[fd00::9]:1")),
            ("0.0.0.0:1", true, &both, Some("https://10.0.0.1:1")),
            ("[::]:1", true, &both, Some("https://10.0.0.1:1")),
            ("[::]:1", true, &v6, Some("https://[fd00::1]:1")),
            ("0.0.0.0:1", true, &v6, None),
        ] {
            let told = published_place(served.parse().unwrap(), tls, Some(node));
            assert_eq!(told.as_deref(), published, "{served}");
        }
        assert_eq!(
            published_place("0.0.0.0:1".parse().unwrap(), true, None),
            None
        );
    }

    #[test]
    fn what_was_published_is_read_and_what_was_not_is_said() {
        let record = |console: Option<&str>| {
            Some(PublishedStatus {
                version: "0.1.0".to_owned(),
                console: console.map(str::to_owned),
                ..PublishedStatus::default()
            })
        };
        let told = place("n2", record(Some("https://[fd00::9]:7"))).unwrap();
        assert!(told.has_tls && told.address == "[fd00::9]:7".parse().unwrap());
        assert!(
            !place("n2", record(Some("http://10.0.0.2:7")))
                .unwrap()
                .has_tls
        );
        for (record, part) in [
            (None, "it has published nothing"),
            (record(None), "set CARACAL_CONSOLE"),
            (record(Some("ftp://10.0.0.2:7")), "is no place"),
            (record(Some("https://name:7")), "is no place"),
        ] {
            let error = place("n2", record).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.status(), 409);
        }
    }
}
