//! What nodes log while something goes on.

use std::collections::BTreeMap;
use std::fs;

use caracal_lab::Lab;

use crate::scenario::caracals;

/// Lines of the same text that a node may log in an outage of up to three minutes: at once, after
/// 30 s, and after 90 s.
const SAME: usize = 3;
/// Lines of all texts: each task has some.
const ALL: usize = 40;

/// The logs of nodes from a moment on.
pub struct LogLines(Vec<(String, usize)>);

impl LogLines {
    /// Of all nodes, from now on.
    #[must_use]
    pub fn on_all(lab: &Lab) -> Self {
        let from = |node: String| {
            let read = text(lab, &node).len();
            (node, read)
        };
        Self(caracals(lab).into_iter().map(from).collect())
    }

    /// None of these nodes has said the same again and again.
    ///
    /// # Panics
    /// One has, or it has said nothing at all.
    pub fn assert_few(&self, lab: &Lab, nodes: &[&str], what: &str) {
        let asked = |(node, _): &&(String, usize)| nodes.contains(&node.as_str());
        for (node, from) in self.0.iter().filter(asked) {
            let said = text(lab, node);
            let said = &said[*from..];
            let mut same: BTreeMap<String, usize> = BTreeMap::new();
            let warnings = said.lines().filter_map(warning);
            for line in warnings {
                *same.entry(line).or_default() += 1;
            }
            let all: usize = same.values().sum();
            println!("{what}: {node} has said {all} lines: {same:#?}");
            let most = same.values().max().copied().unwrap_or_default();
            assert!((1..=SAME).contains(&most), "{what}: {node}: {said}");
            assert!(all <= ALL, "{what}: {node}: {said}");
        }
    }
}

fn text(lab: &Lab, node: &str) -> String {
    fs::read_to_string(lab.folder().log(node)).unwrap_or_default()
}

/// What a warning or an error says, without time and numbers.
fn warning(line: &str) -> Option<String> {
    let (_, said) = line
        .split_once(" WARN ")
        .or_else(|| line.split_once(" ERROR "))?;
    Some(said.replace(|c: char| c.is_ascii_digit(), ""))
}
