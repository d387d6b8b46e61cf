//! The contract of the command line, docs/cli.md, with the examples of its table run on a node of a
//! lab.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "cli/bundle.rs"]
mod bundle;
#[path = "cli/codes.rs"]
mod codes;
#[path = "cli/top.rs"]
mod top;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use caracal_lab::{Lab, error_chain, spawn_in_netns, wait_until};
use caracal_tests::{SECOND, await_settled, binary_with_labs, possible, up_text};
use serde_json::Value;

const TOPOLOGY: &str = "
name: cli
description: two nodes
pool:
  cidr: 10.244.0.0/24
  blockSize: 29
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 1}
  - {name: node2, segment: lan, address: 10.0.0.2, pods: 1}
";

/// Not run: the one is a daemon, the other writes into folders of the host.
const LEFT_OUT: [&str; 2] = ["node", "install-cni"];

/// A row of the table of commands.
struct Row {
    name: String,
    codes: Vec<i32>,
    changes: bool,
    output: bool,
    example: Vec<String>,
}

fn rows() -> Vec<Row> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("## Commands").unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, changes, output, _, codes, example] = cells[..] else {
            panic!("six cells are needed: {line}")
        };
        let words = example.trim_matches('`').split_whitespace().skip(1);
        let words = words.map(|word| word.trim_matches('\''));
        let codes = codes.split(", ").filter(|code| !code.is_empty());
        Row {
            name: name.trim_matches('`').to_owned(),
            codes: codes.map(|code| code.parse().unwrap()).collect(),
            changes: changes == "yes",
            output: output == "yes",
            example: words.map(str::to_owned).collect(),
        }
    };
    table
        .lines()
        .filter(|l| l.starts_with("| `"))
        .map(row)
        .collect()
}

/// How a command ended, and what it said.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

/// A command for node1.
fn command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = lab.caracal_command("node1", arguments).unwrap();
    // What ships has no labs.
    if matches!(arguments, ["lab" | "trace", ..]) {
        let mut with_labs = Command::new(binary_with_labs());
        with_labs.args(command.get_args());
        let set = command.get_envs();
        with_labs.envs(set.filter_map(|(name, value)| Some((name, value?))));
        command = with_labs;
    }
    command
}

/// Runs a command on node1 whose standard output is on a full disk.
fn run_on_full_disk(lab: &Lab, folder: &Path, arguments: &[&str]) -> Output {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = command(lab, arguments);
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(full.unwrap())
        .stderr(Stdio::piped());
    let child = spawn_in_netns(&lab.netns("node1").unwrap(), &mut command).unwrap();
    child.wait_with_output().unwrap()
}

/// Runs a command on node1. `reader` false: nobody reads its standard output.
fn run(
    lab: &Lab,
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
    reader: bool,
) -> Ended {
    let mut command = command(lab, arguments);
    command
        .env("COLUMNS", "80")
        .envs(environment.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn_in_netns(&lab.netns("node1").unwrap(), &mut command).unwrap();
    let mut stdout = String::new();
    let pipe = child.stdout.take().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).unwrap();
        text
    });
    if reader {
        let mut pipe = pipe;
        pipe.read_to_string(&mut stdout).unwrap();
    } else {
        drop(pipe);
    }
    Ended {
        status: child.wait().unwrap(),
        stdout,
        stderr: errors.join().unwrap(),
    }
}

/// The keys of all objects.
fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                into.insert(key.clone());
                keys(inner, into);
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| keys(inner, into)),
        _ => {}
    }
}

#[test]
fn the_command_line_keeps_its_contract() {
    if !possible("the_command_line_keeps_its_contract", &[]) {
        return;
    }
    let mut lab = up_text(TOPOLOGY, "cli", "e2e-cli");
    await_settled(&lab);
    let folder = Folder::new();
    let examples = rows().into_iter();
    for row in examples.filter(|row| !LEFT_OUT.contains(&&*row.name)) {
        let arguments: Vec<&str> = row.example.iter().map(String::as_str).collect();
        check(&lab, &folder.0, &row, &arguments);
        // A session that was ended is back, and its routes are in the next tables.
        if row.name == "bgp enable" {
            await_settled(&lab);
        }
    }
    let status = run(&lab, &folder.0, &["status", "-o", "json"], &[], true);
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    let datastore = &status["datastore"];
    assert_eq!(datastore["kind"], "etcd", "{datastore}");
    let at = datastore["endpoints"].as_str().unwrap_or_default();
    assert!(at.starts_with("http") && at.ends_with(":2379"), "{at}");
    names_are_completed(&lab, &folder.0);
    codes::are_as_documented(&lab, &folder.0);
    bundle::keeps_no_secret(&mut lab, &folder.0);
}

/// What bash gets for a line, whose last word is the one that is typed.
fn completed(lab: &Lab, folder: &Path, line: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let script = "source <(\"$CARACAL\" completion bash)\n\
                  caracal() { \"$CARACAL\" \"$@\"; }\n\
                  IFS=' ' read -r -a COMP_WORDS <<<\"$1\"; [ \"${1% }\" = \"$1\" ] || COMP_WORDS+=('')\n\
                  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9\n\
                  _clap_complete_caracal caracal \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"\n\
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let asked = lab.caracal_command("node1", &[]).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", line]);
    let set = asked.get_envs();
    command
        .env("CARACAL", asked.get_program())
        .envs(set.filter_map(|(name, value)| Some((name, value?))))
        .envs(environment.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = spawn_in_netns(&lab.netns("node1").unwrap(), &mut command).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "", "{line}");
    let words = String::from_utf8(output.stdout).unwrap();
    let words = words.lines().filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// Names of the datastore and of the running daemon; nothing, silently, where they cannot be had.
fn names_are_completed(lab: &Lab, folder: &Path) {
    for (line, wanted) in [
        ("caracal get ippo", &["ippool"][..]),
        ("caracal get nodes ", &["node1", "node2"]),
        ("caracal get node/", &["node/node1", "node/node2"]),
        ("caracal delete ippool d", &["default-ipv4-ippool"]),
        ("caracal mode plan ", &["default-ipv4-ippool"]),
        ("caracal ipam why node", &["node1", "node2"]),
        ("caracal bgp peer 10", &["10.0.0.2"]),
        ("caracal bgp peer M", &["Mesh_10_0_0_2"]),
    ] {
        let offered = completed(lab, folder, line, &[]);
        for word in wanted {
            assert!(offered.iter().any(|o| o == word), "{line}: {offered:?}");
        }
    }
    let away = [
        ("ETCD_ENDPOINTS", "http://127.0.0.1:9"),
        ("CARACAL_RUN_DIR", "/nonexistent"),
    ];
    for line in ["caracal get nodes n", "caracal bgp peer 1"] {
        assert_eq!(completed(lab, folder, line, &away), Vec::<String>::new());
    }
}

fn check(lab: &Lab, folder: &Path, row: &Row, arguments: &[&str]) {
    let what = arguments.join(" ");
    // A reader that is gone before the first octet.
    let ended = run(lab, folder, arguments, &[], false);
    let sane = ended.status.signal().is_none() && !ended.stderr.contains("panicked");
    assert!(sane, "{what} | true: {}: {}", ended.status, ended.stderr);
    assert!(
        !ended.stderr.contains("roken pipe"),
        "{what} | true: {}",
        ended.stderr
    );

    let shown = run(lab, folder, arguments, &[], true);
    println!("{what}: {}", shown.status);
    assert_ne!(shown.status.code(), Some(2), "{what}: {}", shown.stderr);
    if shown.status.success() && !row.changes {
        assert!(!shown.stderr.contains("WARN"), "{what}: {}", shown.stderr);
    }
    on_full_disk(lab, folder, row, arguments, &shown);
    if !row.output {
        return;
    }
    for line in table_lines(&shown.stdout) {
        let columns = line.trim_end().chars().count();
        assert!(columns <= 80, "{what}: {columns} columns: {line}");
    }
    let form = |name| run(lab, folder, &[arguments, &["-o", name]].concat(), &[], true);
    // Sessions and pings of a lab may come or go between two calls; exit codes that stay different
    // are a fault.
    let mut plain = shown;
    let json = wait_until(60 * SECOND, "one exit code of both forms", || {
        let json = form("json");
        if json.status.code() == plain.status.code() {
            return Ok(json);
        }
        let wrong = format!("{} and {}: {}", plain.status, json.status, json.stderr);
        plain = run(lab, folder, arguments, &[], true);
        Err(wrong)
    });
    let json = json.unwrap_or_else(|e| panic!("{what} -o json: {}", error_chain(&e)));
    let yaml = form("yaml");
    let refused = json.stdout.trim().is_empty() && !json.status.success();
    if refused {
        assert!(!json.stderr.trim().is_empty(), "{what}: no reason");
        return;
    }
    // One document, or one a line.
    let documents: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&json.stdout)
        .into_iter()
        .collect();
    let documents = documents.unwrap_or_else(|e| panic!("{what} -o json: {e}: {}", json.stdout));
    let mut found = BTreeSet::new();
    documents.iter().for_each(|value| keys(value, &mut found));
    let wrong: Vec<&String> = found.iter().filter(|key| is_snake(key)).collect();
    assert!(wrong.is_empty(), "{what} -o json: not camelCase: {wrong:?}");
    let again: Result<Value, _> = serde_saphyr::from_str(&yaml.stdout);
    assert!(
        again.is_ok() || documents.len() != 1,
        "{what} -o yaml: {}",
        yaml.stdout
    );
}

/// Standard output that takes nothing: one line that says so more than there would be, and exit
/// code 1; in each form.
fn on_full_disk(lab: &Lab, folder: &Path, row: &Row, arguments: &[&str], shown: &Ended) {
    let forms: &[&[&str]] = match row.output {
        true => &[&[], &["-o", "json"], &["-o", "yaml"]],
        false => &[&[]],
    };
    for form in forms {
        let arguments = [arguments, form].concat();
        let what = format!("{} > /dev/full", arguments.join(" "));
        let full = run_on_full_disk(lab, folder, &arguments);
        let said = String::from_utf8_lossy(&full.stderr);
        println!("{what}: {}: {said}", full.status);
        let sane = full.status.signal().is_none() && !said.contains("panicked");
        assert!(sane, "{what}: {}: {said}", full.status);
        // It has nothing to print in this form, or no datastore of its kind to ask.
        let prints_nothing = || {
            let prints = || run(lab, folder, &arguments, &[], true).stdout;
            shown.stdout.is_empty() || (!row.changes && prints().is_empty())
        };
        if !said.contains("standard output") && prints_nothing() {
            let code = full.status.code();
            assert!(row.changes || code == shown.status.code(), "{what}: {said}");
            continue;
        }
        // A change that was made is not made again, and may be refused the second time.
        if row.changes && !said.contains("standard output") {
            assert!(!full.status.success(), "{what}: {said}");
            continue;
        }
        assert_eq!(full.status.code(), Some(1), "{what}: {said}");
        let told = said
            .lines()
            .filter(|line| line.contains("to standard output: No space left"));
        assert_eq!(told.count(), 1, "{what}: {said}");
        let lines = shown.stderr.lines().count() + 1;
        assert!(
            row.changes || said.lines().count() <= lines,
            "{what}: {said}"
        );
    }
}

/// The lines of tables: from a header in capitals to the next empty line. A terminal wraps
/// sentences by itself.
fn table_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let capitals = !line.is_empty() && !line.chars().any(char::is_lowercase);
        inside = !line.is_empty() && (inside || capitals);
        inside
    })
}

/// `local_pref`; not names, which are data.
fn is_snake(key: &str) -> bool {
    let lower = key
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    lower && key.contains('_')
}

/// A folder for what commands write; it goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("caracal-cli-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}
