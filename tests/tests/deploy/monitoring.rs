//! Alert rules and dashboard: valid for their programs, tested, and about metrics that there are.

use std::collections::BTreeSet;

use super::{deploy, documents, read, root, run};

/// Names that docs/monitoring.md lists; the end-to-end test `health` compares that page with a real
/// node.
fn documented() -> BTreeSet<String> {
    let text = read(&root().join("docs/monitoring.md"));
    let rows = text.lines().filter_map(|l| l.strip_prefix("| `"));
    let names = rows.filter_map(|l| l.split('`').next());
    names
        .filter(|name| !name.starts_with('/'))
        .map(str::to_owned)
        .collect()
}

/// Words of an expression that are names of metrics of ours, without what a summary adds.
fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|w| w.starts_with("caracal_") || w.starts_with("process_"));
    ours.map(|w| {
        let base = w.strip_suffix("_sum").or_else(|| w.strip_suffix("_count"));
        base.unwrap_or(w).to_owned()
    })
    .collect()
}

fn assert_known(expression: &str, known: &BTreeSet<String>) {
    for name in metrics(expression) {
        assert!(
            known.contains(&name),
            "{name} is no metric (docs/monitoring.md): {expression}"
        );
    }
}

/// Every name in docs/monitoring.md stands in the sources, and the other way round.
#[test]
fn the_page_lists_what_the_program_has() {
    let mut sources = String::new();
    for entry in std::fs::read_dir(root().join("node/src/metrics"))
        .unwrap()
        .flatten()
    {
        if entry.file_name() != "tests.rs" {
            sources.push_str(&read(&entry.path()));
        }
    }
    let mut written = BTreeSet::new();
    for family in sources.split("Family::new(").skip(1) {
        let mut words = family.split('"');
        let name = words.nth(1).unwrap();
        let kind = family.split("Kind::").nth(1).unwrap();
        let suffix = match kind {
            kind if kind.starts_with("Counter") => "_total",
            kind if kind.starts_with("Info") => "_info",
            _ => "",
        };
        if name.starts_with("caracal_") || name.starts_with("process_") {
            written.insert(format!("{name}{suffix}"));
        }
    }
    // Those that a helper makes.
    for name in sources
        .split("gauge(")
        .skip(1)
        .filter_map(|s| s.split('"').nth(1))
    {
        if name.starts_with("caracal_") {
            written.insert(name.to_owned());
        }
    }
    assert!(written.len() > 25, "{written:?}");
    assert_eq!(written, documented());
}

#[test]
fn promtool_takes_the_rules_and_their_tests() {
    let rules = deploy("monitoring/alerts.yaml");
    let tests = deploy("monitoring/alerts.test.yaml");
    let required = std::env::var("CARACAL_E2E_REQUIRED").is_ok_and(|v| v == "1");
    for arguments in [
        ["check", "rules", rules.to_str().unwrap()],
        ["test", "rules", tests.to_str().unwrap()],
    ] {
        match run("promtool", &arguments) {
            Some((ok, said)) => assert!(ok, "{said}"),
            None => assert!(!required, "promtool is not installed (package prometheus)"),
        }
    }
    let known = documented();
    let [rules] = &documents(&read(&rules), "alerts.yaml")[..] else {
        panic!("one document");
    };
    let tested = read(&tests);
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 8);
    for rule in rules {
        assert_known(rule["expr"].as_str().unwrap(), &known);
        let name = rule["alert"].as_str().unwrap();
        let fires = tested.matches(&format!("alertname: {name}\n")).count();
        assert!(fires > 0, "{name} is not tested to fire");
    }
}

#[test]
fn the_dashboard_shows_what_there_is() {
    let text = read(&deploy("monitoring/dashboard.json"));
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let known = documented();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut shown = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            assert_known(expression, &known);
            shown.extend(metrics(expression));
        }
    }
    assert!(shown.len() >= 20, "{shown:?}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        assert_known(&variable["query"].to_string(), &known);
    }
}
