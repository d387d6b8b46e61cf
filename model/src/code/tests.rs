#![allow(clippy::unwrap_used)]
//! The table against itself and against `docs/troubleshooting.md`.

use std::collections::BTreeSet;

use super::*;
use crate::snapshot::Problem;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/troubleshooting.md");
const BEGIN: &str = "<!-- begin codes -->\n";
const END: &str = "<!-- end codes -->\n";

/// The section of the page that is generated from the table.
fn section() -> String {
    let mut text = String::new();
    for reporter in Reporter::ALL {
        text += &format!("\n### Codes of {}\n\n", reporter.command());
        text += "| code | severity | grace, s | meaning | what to do |\n|---|---|---|---|---|\n";
        for e in code_entries().filter(|e| e.reporter == reporter) {
            let (severity, grace) = (e.severity.as_str(), e.grace.as_secs());
            let (code, meaning, remedy) = (e.code, e.meaning, e.remedy);
            text += &format!("| `{code}` | {severity} | {grace} | {meaning} | {remedy} |\n");
        }
    }
    text + "\n"
}

/// The documentation has these tables and nothing else. With `CARACAL_WRITE_DOCS` set, it gets
/// them.
#[test]
fn the_documentation_has_the_table() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (has, after) = rest.split_once(END).unwrap();
    let wanted = section();
    if std::env::var_os("CARACAL_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
        return;
    }
    for text in [before, after] {
        assert!(!text.contains("\n| `CRL-"), "codes outside of the section");
    }
    assert!(
        has == wanted,
        "docs/troubleshooting.md differs from the table; write it with\n\
         CARACAL_WRITE_DOCS=1 cargo test -p caracal-model the_documentation_has_the_table"
    );
}

#[test]
fn every_code_is_there_once_and_says_what_to_do() {
    let mut codes = BTreeSet::new();
    for entry in code_entries() {
        assert!(codes.insert(entry.code), "{} is there twice", entry.code);
        assert!(!entry.meaning.is_empty() && !entry.remedy.is_empty());
        for text in [entry.meaning, entry.remedy] {
            assert!(!text.contains('|') && !text.ends_with('.'), "{text}");
        }
        assert_eq!(find_code(&entry.code.to_ascii_uppercase()), Some(entry));
    }
}

#[test]
fn what_is_suggested_is_near() {
    let codes = |typed: &str| {
        nearest_codes(typed)
            .iter()
            .map(|e| e.code)
            .collect::<Vec<_>>()
    };
    assert_eq!(codes("CRL-X001").len(), 1);
    assert_eq!(codes("bgp.pasword"), ["bgp.password"]);
    assert_eq!(
        codes("rp_filter"),
        ["agent.strict_rp_filter", "sysctl.rp_filter"]
    );
    assert_eq!(codes("something quite different"), Vec::<&str>::new());
    assert_eq!(codes("").len(), 0);
}

#[test]
fn a_code_is_the_same_in_text_and_json() {
    for code in ProblemCode::ALL {
        let text = serde_json::to_string(code).unwrap();
        assert_eq!(text, format!("\"{code}\""));
        assert_eq!(ProblemCode::from_text(code.as_str()), Some(*code));
        assert_eq!(*code, code.as_str());
    }
}

/// A client and a node of two versions understand each other.
#[test]
fn a_problem_of_another_version_is_read() {
    let text = r#"{"code":"agent.of_tomorrow","subject":"x","reason":"y"}"#;
    let problem: Problem = serde_json::from_str(text).unwrap();
    assert_eq!(problem.code, ProblemCode::NodeOtherVersion);
    assert_eq!(problem.reason, "agent.of_tomorrow: y");
}
