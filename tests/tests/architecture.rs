//! The rules of `docs/architecture.md`, held against `cargo metadata` and the sources.

#[path = "architecture/rules.rs"]
mod rules;
#[path = "architecture/syntax.rs"]
mod syntax;

use caracal_model::{AuditCode, DoctorCode, IpamCode, ProblemCode, code_entries};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Folders of the product's crates; the last is the program.
const PRODUCT: [&str; 13] = [
    "model",
    "datastore",
    "bgp",
    "ipam",
    "topologies",
    "templates",
    "felix-like-agent",
    "cni",
    "flannel",
    "console",
    "lab",
    "bench",
    "node",
];

/// The crates of [`PRODUCT`] that run on a node: all but the tools `lab` and `bench`.
fn on_nodes() -> impl Iterator<Item = &'static str> {
    PRODUCT
        .into_iter()
        .filter(|f| !["lab", "bench"].contains(f))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the workspace")
        .to_owned()
}

/// cargo's metadata of the workspace's members.
fn packages() -> Vec<serde_json::Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().expect("a name").to_owned()
}

/// Direct dependencies of each workspace member, dev-dependencies left out.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    packages()
        .iter()
        .map(|package| {
            let deps = package["dependencies"].as_array().expect("dependencies");
            let deps = deps
                .iter()
                .filter(|d| d["kind"].is_null())
                .map(|d| text(&d["name"]));
            (text(&package["name"]), deps.collect())
        })
        .collect()
}

#[test]
fn crates_import_only_what_the_design_allows() {
    let allowed: &[(&str, &[&str])] = &[
        ("caracal-model", &[]),
        ("caracal-datastore", &["caracal-model"]),
        ("caracal-bgp", &["caracal-model"]),
        ("caracal-ipam", &["caracal-model", "caracal-datastore"]),
        ("caracal-topologies", &["caracal-model", "caracal-bgp"]),
        ("caracal-templates", &["caracal-model", "caracal-bgp"]),
        ("caracal-agent", &["caracal-model"]),
        // Of flannel the core alone, which reads `subnet.env`.
        (
            "caracal-cni",
            &[
                "caracal-model",
                "caracal-ipam",
                "caracal-datastore",
                "caracal-flannel",
            ],
        ),
        // The agent's core alone, for its vocabulary of plans.
        (
            "caracal-flannel",
            &["caracal-model", "caracal-datastore", "caracal-agent"],
        ),
        ("caracal-console", &["caracal-model"]),
        // The datastore for the test API server alone, which has a feature of its own; of flannel
        // the core alone, which reads a network's configuration and `subnet.env`.
        (
            "caracal-lab",
            &["caracal-model", "caracal-datastore", "caracal-flannel"],
        ),
        // Few, for `make test` builds it as what ships is built.
        ("caracal-hot-paths", &["caracal-model", "caracal-bgp"]),
        (
            "caracal-bench",
            &[
                "caracal-hot-paths",
                "caracal-model",
                "caracal-agent",
                "caracal-bgp",
                "caracal-datastore",
                "caracal-lab",
                "caracal-topologies",
            ],
        ),
        (
            "caracal-tests",
            &[
                "caracal-model",
                "caracal-lab",
                "caracal-datastore",
                "caracal-ipam",
            ],
        ),
    ];
    let dependencies = dependencies();
    for (name, deps) in &dependencies {
        if name == "caracal" {
            continue;
        }
        let (_, allowed) = allowed.iter().find(|(n, _)| n == name).unwrap_or_else(|| {
            panic!("{name} is a new crate: give it a row here and in docs/architecture.md")
        });
        for dep in deps.iter().filter(|d| d.starts_with("caracal")) {
            assert!(
                allowed.contains(&dep.as_str()),
                "{name} must not import {dep}"
            );
        }
    }
}

#[test]
fn what_a_crate_declares_it_names() {
    let dependencies = dependencies();
    for package in packages() {
        let name = text(&package["name"]);
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let folder = manifest
            .parent()
            .and_then(|f| f.strip_prefix(root()).ok()?.to_str())
            .expect("a folder");
        let code: String = sources(folder)
            .into_iter()
            .map(|(_, text)| text.as_str())
            .collect();
        for dep in &dependencies[&name] {
            let word = dep.replace('-', "_");
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let named = code.match_indices(&word).any(|(at, _)| {
                let before = code[..at].chars().next_back();
                let after = code[at + word.len()..].chars().next();
                !before.is_some_and(is_word) && !after.is_some_and(is_word)
            });
            assert!(named, "{name} declares {dep} and never names it");
        }
    }
}

/// The test API server is a program of the tests: the program of the product is built without its
/// feature.
#[test]
fn the_test_api_server_is_no_part_of_the_product() {
    let mut users = BTreeMap::new();
    for package in packages() {
        let deps = package["dependencies"].as_array().expect("dependencies");
        for dep in deps.iter().filter(|d| d["name"] == "caracal-lab") {
            let features = dep["features"].as_array().expect("features");
            let has = features.iter().any(|f| f == "api-server");
            users.insert(text(&package["name"]), has);
        }
        if package["name"] == "caracal-lab" {
            assert!(package["features"]["default"].is_null(), "off by default");
        }
    }
    let users: Vec<_> = users.into_iter().filter(|(_, has)| *has).collect();
    assert_eq!(users, [("caracal-tests".to_owned(), true)]);
}

#[test]
fn one_crate_names_etcd_and_two_open_netlink() {
    let importers = |dep: &str| -> Vec<String> {
        dependencies()
            .into_iter()
            .filter(|(_, d)| d.contains(dep))
            .map(|(n, _)| n)
            .collect()
    };
    assert_eq!(importers("etcd-client"), ["caracal-datastore"]);
    assert_eq!(importers("hyper-rustls"), ["caracal-datastore"]);
    assert_eq!(importers("rtnetlink"), ["caracal-cni"]);
    assert_eq!(importers("netlink-proto"), ["caracal-agent"]);
    assert_eq!(importers("handlebars"), ["caracal-templates"]);
}

/// All Rust sources below a folder, with their text; read once.
fn sources(folder: &str) -> Vec<&'static (String, String)> {
    static READ: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
        let mut paths = Vec::new();
        for folder in PRODUCT.iter().chain(&["tests", "fuzz"]) {
            walk(&root().join(folder), &mut paths);
        }
        paths.sort();
        let root = root();
        let name = |path: &Path| {
            path.strip_prefix(&root)
                .expect("inside")
                .display()
                .to_string()
        };
        paths
            .iter()
            .map(|p| (name(p), std::fs::read_to_string(p).expect("readable")))
            .collect()
    });
    let below = |name: &str| {
        name.strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    let found: Vec<_> = READ.iter().filter(|(name, _)| below(name)).collect();
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        // The fuzz targets are built in folders of their own.
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            walk(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The code of a file without its tests and comments.
fn product_code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("tests.rs") || name.contains("/testing")
}

#[test]
fn product_code_starts_no_programs() {
    // The packet filter has no library that replaces a table atomically; the CNI specification
    // delegates to other plugins by starting them. `caracal render` runs the user's check and
    // reload commands: what a foreign daemon accepts is known to that daemon alone. A kubeconfig
    // names the program that gives a command its credentials.
    let exceptions = [
        "felix-like-agent/src/dataplane/write/programs",
        "cni/src/delegate",
        "node/src/cli/render/programs",
        "datastore/src/kubernetes/program",
    ];
    for folder in on_nodes() {
        for (name, text) in sources(&format!("{folder}/src")) {
            if is_test(name) || exceptions.iter().any(|e| name.starts_with(e)) {
                continue;
            }
            assert!(
                !product_code(text).contains("Command::new"),
                "{name} starts a program"
            );
        }
    }
}

/// Letters and digits only, so that spelling as words or as an identifier makes no difference.
fn squeezed(text: &str) -> String {
    let kept = text.chars().filter(|c| c.is_alphanumeric());
    kept.flat_map(char::to_lowercase).collect()
}

/// docs/glossary.md names files and folders that exist and have the word.
#[test]
fn every_word_of_the_glossary_has_its_home() {
    let page = std::fs::read_to_string(root().join("docs/glossary.md")).expect("docs/glossary.md");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| word |"));
    let mut words = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, word, meaning, home, elsewhere, _] = cells[..] else {
            panic!("docs/glossary.md: four cells are needed: {row}")
        };
        assert!(words.insert(word), "docs/glossary.md has {word:?} twice");
        assert!(!meaning.is_empty() && !elsewhere.is_empty(), "{row}");
        let home = home.trim_matches('`');
        assert!(
            root().join(home).exists(),
            "docs/glossary.md: {word}: there is no {home}"
        );
        let mut files = vec![root().join(home)];
        if files[0].is_dir() {
            files.clear();
            walk(&root().join(home), &mut files);
        }
        let text: String = files
            .iter()
            .map(|file| squeezed(&std::fs::read_to_string(file).expect("a source")))
            .collect();
        let plain = word.split('(').next().unwrap_or_default();
        for part in plain.split([',', ':']) {
            assert!(
                text.contains(&squeezed(part)),
                "docs/glossary.md: {home} does not say {part:?}"
            );
        }
    }
    assert!(words.len() > 40, "{words:?}");
}

/// The walks of docs/architecture.md name files that exist, and stay short enough to be followed.
#[test]
fn walks_can_be_followed() {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).expect("the page");
    let (_, walks) = page.split_once("## Four walks").expect("the walks");
    let files = |walk: &str| -> BTreeSet<String> {
        let quoted = walk.split('`').skip(1).step_by(2);
        let files = quoted.filter(|word| word.ends_with(".rs"));
        files.map(str::to_owned).collect()
    };
    let is_whole = |file: &&String| PRODUCT.iter().any(|f| file.starts_with(&format!("{f}/")));
    let all = files(walks);
    for file in all.iter().filter(is_whole) {
        assert!(root().join(file).is_file(), "there is no {file}");
    }
    let walks_and_most = [
        ("**A BGP UPDATE", 30),
        ("**A link that flaps", 30),
        ("**CNI ADD", 35),
    ];
    for (title, most) in walks_and_most {
        let (_, walk) = walks
            .split_once(title)
            .unwrap_or_else(|| panic!("no walk {title}"));
        let walk = walk.split("\n\n**").next().unwrap_or_default();
        let count = files(walk).len();
        assert!(
            (4..=most).contains(&count),
            "{title}: {count} files, at most {most}"
        );
    }
}

/// The one table of codes.
const CODES: &str = "model/src/code/";

/// Codes come from the table, by their types: no other product code spells one, and every row is
/// used.
#[test]
fn codes_are_named_by_their_types_and_all_are_used() {
    let mut used = BTreeSet::new();
    let spelled: BTreeSet<String> = code_entries().map(|e| format!("\"{}\"", e.code)).collect();
    for folder in on_nodes() {
        for (name, text) in sources(&format!("{folder}/src")) {
            if is_test(name) || name.starts_with(CODES) {
                continue;
            }
            let code = product_code(text);
            for word in &spelled {
                // Names of other things too: a group of nodes, clocks in general.
                let other = ["\"nodes\"", "\"policies\"", "\"clock\""].contains(&word.as_str());
                assert!(other || !code.contains(word), "{name} spells {word}");
            }
            for (at, _) in code.match_indices("Code::") {
                let word = |c: char| c.is_alphanumeric();
                let before = code[..at].rfind(|c| !word(c)).map_or(0, |i| i + 1);
                let name: String = code[at + 6..].chars().take_while(|c| word(*c)).collect();
                used.insert(format!("{}Code::{name}", &code[before..at]));
            }
        }
    }
    let rows = |of: &str, names: Vec<String>| -> Vec<String> {
        names
            .into_iter()
            .map(|name| format!("{of}::{name}"))
            .collect()
    };
    let debug = |code: &dyn std::fmt::Debug| format!("{code:?}");
    let all = [
        rows(
            "AuditCode",
            AuditCode::ALL.iter().map(|c| debug(c)).collect(),
        ),
        rows(
            "ProblemCode",
            ProblemCode::ALL.iter().map(|c| debug(c)).collect(),
        ),
        rows(
            "DoctorCode",
            DoctorCode::ALL.iter().map(|c| debug(c)).collect(),
        ),
        rows("IpamCode", IpamCode::ALL.iter().map(|c| debug(c)).collect()),
    ];
    let unused: Vec<_> = all
        .concat()
        .into_iter()
        .filter(|c| !used.contains(c))
        .collect();
    assert!(
        unused.is_empty(),
        "rows of {CODES} that nothing uses: {unused:?}"
    );
}

#[test]
fn nothing_is_unbounded_and_nothing_unfinished() {
    for folder in PRODUCT {
        for (name, text) in sources(&format!("{folder}/src")) {
            for word in [
                "unbounded_channel",
                "mpsc::unbounded",
                "todo!(",
                "unimplemented!(",
            ] {
                assert!(!product_code(text).contains(word), "{name} has {word}");
            }
        }
    }
}

#[test]
fn unsafe_code_stands_where_it_is_explained() {
    for folder in PRODUCT {
        for (name, text) in sources(&format!("{folder}/src")) {
            let lines: Vec<&str> = text.lines().collect();
            for (number, line) in lines
                .iter()
                .enumerate()
                .filter(|(_, l)| l.contains("allow(unsafe_code"))
            {
                let shown = lines[number..lines.len().min(number + 4)].join(" ");
                assert!(
                    shown.contains("reason"),
                    "{name}:{}: say why: {line}",
                    number + 1
                );
            }
        }
    }
}

#[test]
fn every_file_and_test_in_the_standards_exists() {
    let table = std::fs::read_to_string(root().join("docs/standards.md")).expect("readable");
    let sources: Vec<_> = [
        "bgp",
        "templates",
        "tests/tests",
        "model",
        "node/src",
        "felix-like-agent",
    ]
    .into_iter()
    .flat_map(sources)
    .collect();
    let mut tests = 0;
    for row in table.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [standard, state, files, names] = cells[..] else {
            panic!("a row has four cells: {row}");
        };
        let quoted = |cell: &str| -> Vec<String> {
            let parts = cell.split('`').skip(1).step_by(2);
            parts.map(str::to_owned).collect()
        };
        for file in quoted(files) {
            assert!(
                root().join(&file).is_file(),
                "{standard}: there is no {file}"
            );
        }
        for name in quoted(names) {
            tests += 1;
            let definition = format!("fn {name}(");
            let exists = |(_, text): &&(String, String)| text.contains(&definition);
            assert!(
                sources.iter().any(exists),
                "{standard}: there is no test {name}"
            );
        }
        let is_done = state.starts_with("done");
        assert!(
            !is_done || !quoted(names).is_empty(),
            "{standard}: done without a test"
        );
    }
    assert!(
        tests > 80,
        "only {tests} tests are named: is the table read?"
    );
}
