//! What the user calls peers: the name of the BGPPeer beside Calico's name of the session.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_bgp::PeerName;
use caracal_model::PeerStatusJson;
use serde_json::Value;

/// The BGPPeer of each peer outside the mesh.
type BgpPeers = BTreeMap<PeerName, String>;

/// Puts the name of the session in the place of that of its BGPPeer. Names of sessions and
/// addresses stay as they are.
pub(super) fn resolve(bgp_peers: &BgpPeers, wanted: &mut String) -> Result<(), String> {
    let of_session = bgp_peers.contains_key(&PeerName::from(wanted.as_str()));
    if of_session || wanted.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let of_resource = bgp_peers.iter().filter(|(_, name)| *name == wanted);
    let names: Vec<&str> = of_resource.map(|(name, _)| name.as_str()).collect();
    match names.as_slice() {
        [] => {}
        [only] => *wanted = (*only).to_owned(),
        several => {
            return Err(format!(
                "BGPPeer {wanted} gives this node {} peers: {}; name one of them",
                several.len(),
                several.join(", ")
            ));
        }
    }
    Ok(())
}

/// Says in the status of peers what the user calls them.
pub(super) fn name_all(bgp_peers: &BgpPeers, peers: &mut [PeerStatusJson]) {
    for peer in peers {
        peer.bgp_peer = bgp_peers.get(&PeerName::from(peer.name.as_str())).cloned();
    }
}

/// The same of a peer in full.
pub(super) fn named(bgp_peers: &BgpPeers, mut peer: Value) -> Value {
    let name = peer["name"].as_str().map(PeerName::from);
    if let Some(bgp_peer) = name.and_then(|name| bgp_peers.get(&name)) {
        peer["bgpPeer"] = bgp_peer.as_str().into();
    }
    peer
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn bgp_peers() -> BgpPeers {
        let peer = |name: &str, of: &str| (PeerName::from(name), of.to_owned());
        [
            peer("Global_10_0_0_31", "tor"),
            peer("Node_10_0_0_2", "rack"),
            peer("Node_10_0_0_3", "rack"),
            peer("Node_10_0_0_4", "10.0.0.3"),
            peer("Node_10_0_0_5", "Node_10_0_0_4"),
        ]
        .into()
    }

    #[test]
    fn a_bgp_peer_stands_for_its_session_and_for_no_other() {
        let resolved = |wanted: &str| {
            let mut wanted = wanted.to_owned();
            resolve(&bgp_peers(), &mut wanted).map(|()| wanted)
        };
        assert_eq!(resolved("tor").unwrap(), "Global_10_0_0_31");
        for same in [
            "Global_10_0_0_31",
            "Node_10_0_0_4",
            "10.0.0.3",
            "Mesh_10_0_0_9",
        ] {
            assert_eq!(resolved(same).unwrap(), same);
        }
        let several = resolved("rack").unwrap_err();
        assert_eq!(
            several,
            "BGPPeer rack gives this node 2 peers: Node_10_0_0_2, Node_10_0_0_3; name one of them"
        );
    }

    #[test]
    fn a_peer_is_shown_with_its_bgp_peer() {
        let mut peers = ["Global_10_0_0_31", "Mesh_10_0_0_9"].map(|name| PeerStatusJson {
            name: name.to_owned(),
            ..PeerStatusJson::default()
        });
        name_all(&bgp_peers(), &mut peers);
        let shown = peers.map(|peer| peer.bgp_peer);
        assert_eq!(shown, [Some("tor".to_owned()), None]);
        let full = named(&bgp_peers(), json!({"name": "Global_10_0_0_31"}));
        assert_eq!(full["bgpPeer"], "tor");
        assert_eq!(named(&bgp_peers(), Value::Null), Value::Null);
    }
}
