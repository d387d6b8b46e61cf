//! The same warning about many nodes is one problem.

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::{Problem, ProblemCode};

use crate::problem::problem;

/// Most names spelled out in a problem.
const NAMED: usize = 3;

/// Warnings by code, subject and sentence; the sentence holds `{}` where the names go.
#[derive(Default)]
pub(super) struct GroupedWarnings {
    by_sentence: BTreeMap<(ProblemCode, String, String), BTreeSet<String>>,
}

impl GroupedWarnings {
    /// Adds a name to a warning.
    pub(super) fn add(&mut self, code: ProblemCode, subject: &str, sentence: String, name: &str) {
        self.by_sentence
            .entry((code, subject.to_owned(), sentence))
            .or_default()
            .insert(name.to_owned());
    }

    pub(super) fn into_problems(self) -> impl Iterator<Item = Problem> {
        self.by_sentence
            .into_iter()
            .map(|((code, subject, sentence), names)| {
                problem(code, &subject, sentence.replacen("{}", &list(&names), 1))
            })
    }
}

fn list(names: &BTreeSet<String>) -> String {
    let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    let more = names.len() - first.len();
    if more == 0 {
        first.join(", ")
    } else {
        format!("{} and {more} more", first.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_make_one_problem() {
        let mut warnings = GroupedWarnings::default();
        for n in 1..=5 {
            warnings.add(
                ProblemCode::AgentNoVtep,
                "pool p",
                "routes to {} are not installed".into(),
                &format!("n{n}"),
            );
        }
        let problems: Vec<_> = warnings.into_problems().collect();
        assert_eq!(problems.len(), 1);
        assert_eq!(
            problems[0].reason,
            "routes to n1, n2, n3 and 2 more are not installed"
        );
    }
}
