//! The sessions of a plan as a picture: before and after in one sign for each pair of nodes, or of
//! zones where there are many nodes.

use std::collections::BTreeMap;

use caracal_model::{NodeName, Snapshot, pair_picture};
use caracal_topologies::ZONE_LABEL;

use crate::node::plans::label;
use crate::node::plans::topology::{TopologyPlan, session_lines};

/// Nodes, or zones, that fit a screen.
const MOST: usize = 40;

/// What happens to the sessions of a pair.
#[derive(Clone, Copy, Debug, Default)]
struct Happens {
    stay: bool,
    appear: bool,
    disappear: bool,
}

impl Happens {
    const fn sign(self) -> char {
        match (self.appear, self.disappear) {
            (true, true) => '±',
            (true, false) => '+',
            (false, true) => '-',
            (false, false) if self.stay => '●',
            (false, false) => '·',
        }
    }
}

/// The picture with its legend; `None`: there are too many nodes and zones, or no sessions between
/// nodes. `snapshot` has the zones.
pub(super) fn picture(plan: &TopologyPlan, snapshot: &Snapshot) -> Option<String> {
    let nodes = plan.nodes();
    let by_zone = nodes.len() > MOST;
    let place = |node: &NodeName| match by_zone {
        true => zone(snapshot, node),
        false => node.to_string(),
    };
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for node in &nodes {
        *sizes.entry(place(node)).or_default() += 1;
    }
    let at: BTreeMap<&String, usize> = sizes.keys().zip(0..).collect();
    let places: BTreeMap<String, usize> = nodes
        .iter()
        .map(|node| (node.to_string(), at[&place(node)]))
        .collect();
    let mut pairs: BTreeMap<(usize, usize), Happens> = BTreeMap::new();
    for ((from, to), was_and_is) in session_lines(&plan.before, &plan.after) {
        let (Some(&a), Some(&b)) = (places.get(&from), places.get(&to)) else {
            continue;
        };
        let pair = pairs.entry((a.max(b), a.min(b))).or_default();
        match was_and_is {
            [true, true] => pair.stay = true,
            [false, _] => pair.appear = true,
            [_, false] => pair.disappear = true,
        }
    }
    if sizes.len() > MOST || pairs.is_empty() {
        return None;
    }
    let sign = |row, column| {
        pairs
            .get(&(row, column))
            .copied()
            .unwrap_or_default()
            .sign()
    };
    let name = |(place, (name, nodes)): (usize, (&String, &usize))| match by_zone {
        true => format!("{} {name} ({nodes} nodes)", sign(place, place)),
        false => name.clone(),
    };
    let names: Vec<String> = sizes.iter().enumerate().map(name).collect();
    let legend = match by_zone {
        true => {
            "Sessions of zones, the last sign for those inside: ● stay  + some appear  - some disappear  ± both  · none"
        }
        false => "Sessions: ● stays  + appears  - disappears  · none",
    };
    Some(format!("{legend}\n{}", pair_picture(&names, sign)))
}

fn zone(snapshot: &Snapshot, node: &NodeName) -> String {
    match label(snapshot, node, ZONE_LABEL) {
        "" => "-".to_owned(),
        zone => zone.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node::plans::topology::{KnownPasswords, TopologySwitch};

    /// The picture of a mesh that becomes reflectors, or of one that stays.
    fn drawn(nodes: usize, zones: usize, is_changed: bool) -> Option<String> {
        let mut before = Snapshot::default();
        for n in 0..nodes {
            let name = format!("n{n:02}");
            let path = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
            let labels = json!({ZONE_LABEL: format!("z{:02}", n % zones)});
            let address = format!("10.0.0.{}/24", n + 1);
            let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"bgp": {"ipv4Address": address}}});
            before.apply(&path, Some(node.to_string().as_bytes()), 7);
        }
        let mut after = before.clone();
        if is_changed {
            let switch = TopologySwitch::Auto {
                limit: Some(2),
                reflectors: Some(1),
                levels: None,
            };
            switch.make(&mut after).expect("a change");
        }
        let plan = TopologyPlan::new(&before, &after, &KnownPasswords::new(), false);
        picture(&plan, &after)
    }

    #[test]
    fn sessions_that_stay_and_those_that_go_are_drawn() {
        let mesh = drawn(3, 1, false);
        let wanted = "Sessions: ● stays  + appears  - disappears  · none\nn00\n● n01\n● ● n02\n";
        assert_eq!(mesh.as_deref(), Some(wanted));
        let text = drawn(5, 1, true).expect("a picture");
        // A reflector and its standby, and three clients that lose each other.
        assert_eq!(text.matches('-').count(), 3 + 1, "{text}");
        assert_eq!(text.matches('●').count(), 7 + 1, "{text}");
        assert_eq!(text.matches(['+', '·']).count(), 2, "{text}");
    }

    #[test]
    fn of_many_nodes_the_zones_are_drawn() {
        let text = drawn(42, 3, true).expect("a picture");
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "- z00 (14 nodes)",
                "- - z01 (14 nodes)",
                "- - - z02 (14 nodes)"
            ],
            "{text}"
        );
        assert_eq!(drawn(42, 42, true), None);
        assert_eq!(drawn(1, 1, false), None);
    }
}
