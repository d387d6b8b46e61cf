//! The sessions between the nodes of a lab as a picture.

use std::collections::BTreeMap;

use caracal_model::pair_picture;

use crate::report::LabReport;

/// Nodes that fit a screen.
const MOST: usize = 40;

/// A sign for each pair of nodes, by what both ends say; `None`: there are no sessions between
/// nodes, or it would be wider than `columns`.
pub(crate) fn picture(report: &LabReport, columns: Option<u16>) -> Option<String> {
    let nodes = &report.nodes;
    let mut places = BTreeMap::new();
    for (place, node) in nodes.iter().enumerate() {
        for text in node.address6.iter().chain([&node.address]) {
            let address = text.split('/').next().unwrap_or(text);
            places.insert(address.to_owned(), place);
        }
    }
    // Of each pair, whether all of its sessions are up; there is one of each family.
    let mut pairs: BTreeMap<(usize, usize), bool> = BTreeMap::new();
    for (place, node) in nodes.iter().enumerate() {
        for peer in node.status.iter().flat_map(|status| &status.peers) {
            let address = peer.address.map(|address| address.to_string());
            let Some(&other) = address.and_then(|address| places.get(&address)) else {
                continue;
            };
            let pair = (place.max(other), place.min(other));
            *pairs.entry(pair).or_insert(true) &= peer.state == "Established";
        }
    }
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let wide = |(place, name): (usize, &String)| 2 * place + name.chars().count();
    let width = names.iter().enumerate().map(wide).max().unwrap_or(0);
    let fits = nodes.len() <= MOST && columns.is_none_or(|columns| width <= usize::from(columns));
    if pairs.is_empty() || !fits {
        return None;
    }
    let picture = pair_picture(&names, |row, column| match pairs.get(&(row, column)) {
        Some(true) => '●',
        Some(false) => '▲',
        None => '·',
    });
    Some(format!("Sessions  ● up  ▲ down  · none\n{picture}"))
}

#[cfg(test)]
mod tests {
    use caracal_model::{NodeStatus, PeerStatusJson};

    use super::*;
    use crate::report::NodeReport;

    /// Nodes `n1`, `n2` …, and the peers of each: the other's number, and whether it is up.
    fn report(peers: &[&[(u8, bool)]]) -> LabReport {
        let nodes = (1_u8..).zip(peers).map(|(n, peers)| NodeReport {
            name: format!("n{n}"),
            kind: "caracal",
            address: format!("10.0.0.{n}/24"),
            address6: Some(format!("fd00::{n}/64")),
            segment: "lan".to_owned(),
            running: true,
            status: Some(NodeStatus {
                peers: peers
                    .iter()
                    .map(|&(other, is_up)| PeerStatusJson {
                        address: Some([10, 0, 0, other].into()),
                        state: if is_up { "Established" } else { "Active" }.to_owned(),
                        ..PeerStatusJson::default()
                    })
                    .collect(),
                ..NodeStatus::default()
            }),
            flannel: None,
            error: None,
            routes: BTreeMap::new(),
            pods: 0,
        });
        LabReport {
            lab: "t".to_owned(),
            nodes: nodes.collect(),
            matrix: None,
            matrix6: None,
        }
    }

    #[test]
    fn a_session_is_up_where_both_ends_say_so() {
        let seen = report(&[
            &[(2, true), (3, true)],
            &[(1, true)],
            // One end has not noticed yet; 9 is no node.
            &[(1, false), (9, true)],
        ]);
        let wanted = "Sessions  ● up  ▲ down  · none\nn1\n● n2\n▲ · n3\n";
        assert_eq!(picture(&seen, None).as_deref(), Some(wanted));
        assert_eq!(picture(&seen, Some(5)), None);
        assert!(picture(&seen, Some(6)).is_some());
        assert_eq!(picture(&report(&[&[(9, true)], &[]]), None), None);
        let mut sixth = report(&[&[], &[]]);
        let mut peer = PeerStatusJson {
            state: "Established".to_owned(),
            ..PeerStatusJson::default()
        };
        peer.address = Some("fd00::2".parse().expect("an address"));
        if let Some(status) = &mut sixth.nodes[0].status {
            status.peers.push(peer);
        }
        assert!(picture(&sixth, None).is_some_and(|text| text.ends_with("n1\n● n2\n")));
    }

    #[test]
    fn more_nodes_than_fit_a_screen_are_not_drawn() {
        let peers: [&[(u8, bool)]; MOST + 1] = [&[(1, true)]; MOST + 1];
        assert!(picture(&report(&peers[..MOST]), None).is_some());
        assert_eq!(picture(&report(&peers), None), None);
    }
}
