//! Exit codes: every command with a name that does not exist, with a file that is not valid, and
//! with a datastore and a node that are away.

use std::path::Path;
use std::time::{Duration, Instant};

use caracal_lab::{Lab, scaled_time};

use super::{Row, rows, run};

/// Commands that run until they are told to end, or write into folders of the host.
const LEFT_OUT: [&str; 3] = ["node", "flannel", "install-cni"];

/// Where the datastore and the node are not: etcd, and Kubernetes' API.
const AWAY: [&[(&str, &str)]; 2] = [
    &[
        ("ETCD_ENDPOINTS", "http://127.0.0.1:9"),
        ("CARACAL_RUN_DIR", "/nonexistent"),
    ],
    &[
        ("DATASTORE_TYPE", "kubernetes"),
        ("KUBECONFIG", "away.kubeconfig"),
        ("CARACAL_RUN_DIR", "/nonexistent"),
    ],
];
const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "x",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": true}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}"#;
/// Longest time until a command says that something is away.
const TOLD: Duration = Duration::from_secs(40);

/// A command with what it says to a name that does not exist, to a file that is not valid, and
/// while the datastore and the node are away. Each cell is `CODE: ARGUMENTS`, several with `;`
/// between, or empty for a command that takes no such thing. What a running node forbids is under
/// names.
const CASES: &[(&str, [&str; 3])] = &[
    (
        "node delete",
        ["3: nobody --dry-run", "", "1: nobody --dry-run"],
    ),
    ("node takeover", ["3: nobody", "", "1:"]),
    (
        "speaker",
        [
            "",
            "5: --check bad; 5: -c bad; 1: --check /nonexistent.conf",
            "",
        ],
    ),
    ("speaker reload", ["", "", "1:"]),
    (
        "flannel docker-opts",
        ["", "1: -f bad; 1: -f /nonexistent", ""],
    ),
    (
        "flannel show",
        ["", "", "1: --etcd-endpoints http://127.0.0.1:9"],
    ),
    (
        "flannel migrate plan",
        ["", "", "1: --etcd-endpoints http://127.0.0.1:9"],
    ),
    (
        "flannel migrate apply",
        ["", "", "1: --etcd-endpoints http://127.0.0.1:9"],
    ),
    (
        "flannel migrate end",
        ["", "", "1: --etcd-endpoints http://127.0.0.1:9"],
    ),
    (
        "flannel migrate undo",
        ["", "", "1: --etcd-endpoints http://127.0.0.1:9"],
    ),
    (
        "status",
        [
            "3: --node nobody",
            "",
            "1:; 1: --all-nodes; 1: --node node1",
        ],
    ),
    (
        "bgp peers",
        [
            "3: --node nobody",
            "",
            "1:; 1: --all-nodes; 1: --node node1",
        ],
    ),
    ("bgp peer", ["3: nobody", "", "1: 10.0.0.2"]),
    ("bgp disable", ["3: nobody", "", "1: 10.0.0.2"]),
    ("bgp enable", ["3: nobody", "", "1: 10.0.0.2"]),
    (
        "bgp reset",
        ["3: nobody; 3: nobody --soft in", "", "1: 10.0.0.2"],
    ),
    (
        "bgp routes",
        [
            "3: 192.0.2.0/24; 3: --peer nobody; 3: --peer nobody --count",
            "",
            "1:",
        ],
    ),
    (
        "bgp received",
        ["3: nobody; 3: 10.0.0.2 192.0.2.0/24", "", "1: 10.0.0.2"],
    ),
    (
        "bgp advertised",
        ["3: nobody; 3: 10.0.0.2 192.0.2.0/24", "", "1: 10.0.0.2"],
    ),
    ("bgp refresh", ["3: nobody", "", "1: 10.0.0.2"]),
    ("bgp mrt", ["", "", "1: table.mrt"]),
    ("bgp explain", ["3: 192.0.2.0/24", "", "1: 10.244.0.0/26"]),
    ("get", ["3: ippool nobody; 2: nothing", "", "1: ippools"]),
    (
        "apply",
        ["", "5: -f bad; 1: -f /nonexistent.yaml", "1: -f pool"],
    ),
    (
        "create",
        ["", "5: -f bad; 1: -f /nonexistent.yaml", "1: -f pool"],
    ),
    (
        "replace",
        [
            "3: -f pool",
            "5: -f bad; 1: -f /nonexistent.yaml",
            "1: -f pool",
        ],
    ),
    (
        "delete",
        [
            "3: bgppeer nobody; 3: -f pool",
            "5: -f bad",
            "1: bgppeer nobody",
        ],
    ),
    (
        "patch",
        ["3: ippool nobody -p {}", "", "1: ippool nobody -p {}"],
    ),
    ("label", ["3: node nobody a=b", "", "1: node nobody a=b"]),
    (
        "render",
        [
            "3: --node nobody; 3: --style frr --peer 192.0.2.1",
            "5: --node node1 --input bad; 5: --node node1 --templates templates",
            "1: --node node1",
        ],
    ),
    (
        "services apply",
        ["", "5: bad; 5: pool; 1: /nonexistent.yaml", "1: service"],
    ),
    ("policy show", ["", "", "1:"]),
    (
        "policy explain",
        ["", "", "1: 10.244.0.1 10.244.1.1:80/tcp"],
    ),
    ("services show", ["", "", "1:; 1: --here"]),
    (
        "topology plan",
        [
            "3: --delete-peer nobody",
            "5: --change bad; 5: --auto --input bad",
            "1: --auto",
        ],
    ),
    (
        "topology apply",
        [
            "3: --delete-peer nobody; 3: --auto --skip nobody; 1: --abort",
            "5: --change bad",
            "1: --auto",
        ],
    ),
    ("datastore accept", ["", "", "1:"]),
    ("datastore lock", ["", "", "1:"]),
    ("datastore unlock", ["", "", "1:"]),
    ("datastore export", ["", "", "1:"]),
    (
        "datastore import",
        [
            "",
            "5: -f bad; 5: -f empty; 1: -f /nonexistent",
            "1: -f export",
        ],
    ),
    (
        "mode plan",
        [
            "3: nobody --vxlan Always",
            "",
            "1: default-ipv4-ippool --vxlan Always",
        ],
    ),
    (
        "mode apply",
        [
            "3: nobody --vxlan Always; 3: default-ipv4-ippool --vxlan Always --skip nobody",
            "",
            "1: default-ipv4-ippool --vxlan Always",
        ],
    ),
    ("uninstall", ["5: --node", "", ""]),
    ("ipam show", ["3: --ip 192.0.2.1", "", "1:"]),
    ("ipam check", ["", "", "1:"]),
    (
        "ipam release",
        [
            "3: --ip 10.244.0.254",
            "5: --from-report bad; 5: --from-report empty; 1: --from-report /nonexistent",
            "1: --ip 10.244.0.254",
        ],
    ),
    ("ipam configure", ["", "", "1: --strictaffinity false"]),
    (
        "ipam split",
        ["3: 2 --name nobody --dry-run", "", "1: 2 --name nobody"],
    ),
    ("ipam why", ["3: nobody", "", "1: node1"]),
    (
        "audit",
        [
            "3: --node nobody",
            "",
            "1:; 1: --all-nodes; 1: --node node1",
        ],
    ),
    ("events", ["", "", "1:; 1: --follow"]),
    ("top", ["", "", "1:; 1: --once"]),
    (
        "explain",
        [
            "3: 2001:db8::/64; 3: 10.244.0.0/26 --node nobody",
            "",
            "1: 10.244.0.0/26",
        ],
    ),
    ("explain-code", ["3: CRL-X999", "", ""]),
    ("drain", ["", "", "1: --undo"]),
    (
        "trace",
        [
            "3: nobody/p1 node1/p1; 3: node1/p1 node2/p1 --lab nothing; 3: nobody 10.244.0.1",
            "",
            "1: node1 10.244.0.1",
        ],
    ),
    ("migrate plan", ["", "", "1:"]),
    ("migrate services plan", ["", "", "1:"]),
    ("migrate services apply", ["", "", "1:"]),
    ("migrate services undo", ["5:", "", ""]),
    ("migrate back", ["5:", "", ""]),
    (
        "bundle",
        ["", "1: --out /nonexistent/bundle", "0: --out away"],
    ),
    ("doctor", ["", "", "4:"]),
    ("log-level", ["5: loud", "", "1:; 1: debug"]),
    ("version", ["2: nothing", "", ""]),
    ("completion", ["2: nothing", "", ""]),
    ("man", ["", "1: --out /dev/null/man", ""]),
    ("lab up", ["", "5: bad; 1: /nonexistent.yaml", ""]),
    ("lab status", ["3: nothing", "", ""]),
    (
        "lab exec",
        ["3: --lab nothing node1 -- true; 3: nobody -- true", "", ""],
    ),
    ("lab kill", ["3: nobody; 3: node1 --lab nothing", "", ""]),
    ("lab stop", ["3: nobody; 3: node1 --lab nothing", "", ""]),
    ("lab start", ["3: nobody; 3: node1 --lab nothing", "", ""]),
    ("lab cut", ["3: nobody; 3: node1 --lab nothing", "", ""]),
    ("lab heal", ["3: nobody; 3: node1 --lab nothing", "", ""]),
    ("lab down", ["0: nothing", "", ""]),
    ("lab list", ["2: nothing", "", ""]),
    ("lab demo", ["", "5: bad; 1: /nonexistent.yaml", ""]),
];

const POOL: &str = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: nobody}\n\
                    spec: {cidr: 192.0.2.0/24}\n";

/// What the cases read, in the folder where they run.
fn write_files(folder: &Path) {
    let export = r#"{"kind": "CaracalDatastoreExport", "version": 1, "values": []}"#;
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {}\n";
    std::fs::create_dir(folder.join("templates")).unwrap();
    for (name, text) in [
        ("bad", "{ nothing: [ that is valid"),
        ("templates/bad.hbs", "{{#if"),
        ("empty", "{}"),
        ("export", export),
        ("pool", POOL),
        ("service", service),
        ("away.kubeconfig", KUBECONFIG),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

/// `CODE: ARGUMENTS` of a cell.
fn cell(text: &str) -> impl Iterator<Item = (i32, Vec<&str>)> {
    let calls = text.split(';').filter(|call| !call.trim().is_empty());
    calls.map(|call| {
        let (code, arguments) = call.split_once(':').unwrap();
        let code = code.trim().parse().unwrap();
        (code, arguments.split_whitespace().collect())
    })
}

/// The commands are those of docs/cli.md, which another test compares with the program: a new one
/// needs a case. A code beside 0, 1 and 2 is in its row.
#[test]
fn every_command_has_a_case() {
    let all: Vec<Row> = rows();
    let known = |name: &str| CASES.iter().any(|(case, _)| *case == name);
    let without = |row: &&Row| !known(&row.name) && !LEFT_OUT.contains(&&*row.name);
    let missing: Vec<_> = all.iter().filter(without).map(|row| &row.name).collect();
    assert!(missing.is_empty(), "CASES needs rows for {missing:?}");
    for (name, cells) in CASES {
        let row = all.iter().find(|row| row.name == *name);
        let row = row.unwrap_or_else(|| panic!("there is no command {name}"));
        assert!(cells.iter().any(|text| !text.is_empty()), "{name}: no case");
        for (code, _) in cells.iter().flat_map(|text| cell(text)) {
            let told = code < 3 || row.codes.contains(&code);
            assert!(told, "docs/cli.md, {name}: code {code} is missing");
        }
    }
}

/// Walks all cases; those that wait for a datastore wait side by side.
pub(super) fn are_as_documented(lab: &Lab, folder: &Path) {
    write_files(folder);
    let mut wrong = Vec::new();
    for (command, [names, files, _]) in CASES {
        for (code, arguments) in cell(names).chain(cell(files)) {
            wrong.extend(fault(lab, folder, command, &arguments, code, &[]));
        }
    }
    std::thread::scope(|scope| {
        let away = CASES.iter().flat_map(|(command, [_, _, away])| {
            cell(away).flat_map(move |(code, arguments)| {
                AWAY.map(|away| {
                    // Nobody writes Kubernetes' own Services with it.
                    let is_refused = *command == "services apply" && away.len() == 3;
                    let code = if is_refused { 5 } else { code };
                    let arguments = arguments.clone();
                    scope.spawn(move || {
                        let begun = Instant::now();
                        let wrong = fault(lab, folder, command, &arguments, code, away);
                        let late =
                            || format!("{command}, {away:?}: told after {:?}", begun.elapsed());
                        wrong.or_else(|| (begun.elapsed() > scaled_time(TOLD)).then(late))
                    })
                })
            })
        });
        let away: Vec<_> = away.collect();
        wrong.extend(away.into_iter().filter_map(|case| case.join().unwrap()));
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a call does otherwise than it should.
fn fault(
    lab: &Lab,
    folder: &Path,
    command: &str,
    arguments: &[&str],
    code: i32,
    environment: &[(&str, &str)],
) -> Option<String> {
    let words: Vec<&str> = command
        .split(' ')
        .chain(arguments.iter().copied())
        .collect();
    let ended = run(lab, folder, &words, environment, true);
    let what = words.join(" ");
    println!("{what}: {}", ended.status);
    let told = code == 0
        || code == 4
        || !format!("{}{}", ended.stderr, ended.stdout)
            .trim()
            .is_empty();
    let as_wanted = ended.status.code() == Some(code) && told && !ended.stderr.contains("panicked");
    (!as_wanted).then(|| format!("{what}: {}, not {code}: {}", ended.status, ended.stderr))
}
