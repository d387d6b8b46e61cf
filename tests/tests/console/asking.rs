//! One node asks another over its console, by certificate: what is answered, who is refused, and
//! what happens when certificates change and nodes die. On both datastores.

use std::path::{Path, PathBuf};
use std::process::Command;

use caracal_lab::{Lab, run_in_netns, wait_until};
use caracal_tests::{
    Browser, Processes, SECOND, await_settled, await_status, exit_code, has_no_problem,
    has_problem, logs, on_kubernetes_datastore, possible, up_text,
};
use serde_json::Value;

use super::{PORT, pod_address};

const TOKEN: &str = "a-token-for-all-consoles";

/// Files of certificates below a folder, made by the program `openssl`.
struct Certificates(PathBuf);

impl Certificates {
    /// An authority for each name, and a certificate of the first for each node.
    fn make(folder: &Path) -> Self {
        let made = Self(folder.to_owned());
        for name in ["authority", "other"] {
            made.authority(name);
        }
        for n in 1..=3 {
            made.issue(&format!("node{n}"), "authority", &format!("node{n}"));
        }
        made.issue("stranger", "other", "node2");
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn openssl(&self, name: &str, subject: &str, more: &[&str]) {
        let mut command = Command::new("openssl");
        command
            .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-subj", &format!("/CN={subject}")])
            .arg("-keyout")
            .arg(self.path(&format!("{name}.key")))
            .arg("-out")
            .arg(self.path(&format!("{name}.pem")))
            .args(more);
        let output = command.output().expect("openssl can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl req for {name}: {said}");
    }

    fn authority(&self, name: &str) {
        self.openssl(name, name, &["-addext", "keyUsage=critical,keyCertSign"]);
    }

    /// A certificate for a server and a client of that name.
    fn issue(&self, name: &str, authority: &str, subject: &str) {
        let (certificate, key) = (format!("{authority}.pem"), format!("{authority}.key"));
        let named = format!("subjectAltName=DNS:{subject}");
        let more = [
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            "extendedKeyUsage=serverAuth,clientAuth",
            "-addext",
            &named,
            "-CA",
            &self.text(&certificate),
            "-CAkey",
            &self.text(&key),
        ];
        self.openssl(name, subject, &more);
    }

    /// Puts one in the place of another, as who renews them does.
    fn replace(&self, name: &str, by: &str) {
        for kind in ["pem", "key"] {
            let new = self.path(&format!("{name}.{kind}.new"));
            std::fs::copy(self.path(&format!("{by}.{kind}")), &new).unwrap();
            std::fs::rename(new, self.path(&format!("{name}.{kind}"))).unwrap();
        }
    }
}

fn by_certificate(files: &Certificates) -> String {
    topology(|n| {
        format!(
            "CARACAL_CONSOLE_CERT_FILE: '{}', CARACAL_CONSOLE_KEY_FILE: '{}', CARACAL_CONSOLE_CA_CERT_FILE: '{}'",
            files.text(&format!("node{n}.pem")),
            files.text(&format!("node{n}.key")),
            files.text("authority.pem")
        )
    })
}

/// Three nodes with consoles, and the variables of each.
fn topology(variables: impl Fn(u8) -> String) -> String {
    let node = |n: u8| {
        format!(
            "  - {{name: node{n}, segment: lan, address: 10.0.0.{n}, pods: 1, env: {{CARACAL_CONSOLE: '0.0.0.0:{PORT}', {}}}}}\n",
            variables(n)
        )
    };
    let nodes: String = (1..=3).map(node).collect();
    format!(
        "
name: asking
description: three nodes that ask each other
pool:
  cidr: 10.244.0.0/24
  blockSize: 28
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
{nodes}"
    )
}

/// A command on node1 with other files; its code and all that it printed.
fn with_files(lab: &Lab, files: &[(&str, String)], arguments: &[&str]) -> (i32, String) {
    let netns = lab.netns("node1").unwrap();
    let mut command = lab.caracal_command("node1", arguments).unwrap();
    for (name, value) in files {
        command.env(format!("CARACAL_CONSOLE_{name}_FILE"), value);
    }
    let output = run_in_netns(&netns, || command.output()).unwrap().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

fn asked(lab: &Lab, arguments: &[&str]) -> (i32, String) {
    with_files(lab, &[], arguments)
}

/// Waits until a command on node1 ends with a code and says a part.
fn await_said(lab: &Lab, arguments: &[&str], code: i32, part: &str) -> String {
    let what = format!("{arguments:?} to end with {code} and say {part:?}");
    let said = wait_until(120 * SECOND, &what, || match asked(lab, arguments) {
        (seen, text) if seen == code && text.contains(part) => Ok(text),
        (seen, text) => Err(format!("{seen}: {text}")),
    });
    said.unwrap_or_else(|e| panic!("{e}\n{}", logs(lab.name())))
}

/// A question to a console from node3, with the certificate of that name or none.
fn curl(
    lab: &Lab,
    files: &Certificates,
    of: Option<&str>,
    node: u8,
    path: &str,
) -> (String, Value) {
    let mut command = Command::new("curl");
    let host = format!("node{node}:{PORT}:10.0.0.{node}");
    command
        .args(["--silent", "--show-error", "--max-time", "20"])
        .args(["--write-out", "\n%{http_code}", "--resolve", &host])
        .args(["--cacert", &files.text("authority.pem")]);
    if let Some(name) = of {
        let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
        command.args(["--cert", &files.text(&certificate)]);
        command.args(["--key", &files.text(&key)]);
    }
    command.arg(format!("https://node{node}:{PORT}/api/v1/{path}"));
    let netns = lab.netns("node3").unwrap();
    let output = run_in_netns(&netns, || command.output()).unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap();
    let value = serde_json::from_str(body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&output.stderr).into_owned()));
    (status.to_owned(), value)
}

/// What another node answers is what it says itself.
fn the_answers_are_those_of_the_node(lab: &Lab) {
    await_said(lab, &["status", "--node", "node2"], 0, "Node node2 (");
    let destination = pod_address(lab, "node3");
    for arguments in [
        &["bgp", "routes", "-o", "json"][..],
        &["bgp", "received", "10.0.0.3", "-o", "json"],
        &["bgp", "advertised", "10.0.0.1", "-o", "json"],
    ] {
        let (code, own) = exit_code(lab, "node2", arguments);
        assert_eq!(code, 0, "{own}");
        let (code, of_other) = exit_code(lab, "node1", &[arguments, &["--node", "node2"]].concat());
        assert_eq!((code, &of_other), (0, &own), "{arguments:?}");
        assert!(own.contains("10.244.0."), "{arguments:?}: {own}");
    }
    let explain = ["explain", &*destination, "--node", "node2"];
    let text = await_said(lab, &explain, 0, "as node node2 sees it");
    assert!(text.contains("via 10.0.0.3"), "{text}");
    await_said(
        lab,
        &["audit", "--node", "node2"],
        0,
        "node2: nothing is wrong",
    );
    await_said(lab, &["bgp", "peers", "--node", "node2"], 0, "10.0.0.3");
    await_said(
        lab,
        &["bgp", "peer", "10.0.0.3", "--node", "node2"],
        0,
        "Established",
    );
    await_said(
        lab,
        &["bgp", "explain", &destination, "--node", "node2"],
        0,
        "best",
    );
    await_said(
        lab,
        &["bgp", "peer", "nobody", "--node", "node2"],
        3,
        "no peer nobody",
    );
    await_said(
        lab,
        &["status", "--node", "node9"],
        3,
        "there is no node node9",
    );
    let service = ["explain", "10.96.0.10:80", "--node", "node2"];
    await_said(lab, &service, 1, "run the command on node2");
}

/// Packets are followed from node to node.
fn a_trace_goes_from_node_to_node(lab: &Lab) {
    let destination = pod_address(lab, "node3");
    let text = await_said(lab, &["trace", "node2", &destination], 0, "it is there");
    let hops = [
        "  node2: ",
        " to node node3\n",
        "  node3: ",
        " on node node3",
    ];
    let mut rest = &*text;
    for hop in hops {
        let at = rest.find(hop);
        let at = at.unwrap_or_else(|| panic!("{hop:?} is missing: {text}"));
        rest = &rest[at..];
    }
    // node3 has the block of 16, and nobody has its last address.
    let (network, last) = destination.rsplit_once('.').unwrap();
    let last = last.parse::<u8>().unwrap() | 0xf;
    let (code, text) = asked(lab, &["trace", "node2", &format!("{network}.{last}")]);
    let is_said = text.contains("  node3: ") && text.contains("the address is not in use");
    assert!(code == 4 && is_said, "{code}: {text}");
    let (code, text) = asked(lab, &["trace", "node9", &destination]);
    assert!(
        code == 3 && text.contains("there is no node node9"),
        "{code}: {text}"
    );
}

/// A console asks for its client, and goes no further than one node.
fn a_console_asks_others(lab: &Lab, files: &Certificates) {
    let ask = |path: &str| curl(lab, files, Some("node3"), 1, path);
    for path in [
        "status",
        "sessions",
        "routes?limit=2",
        "audit",
        "kernel",
        "blocks",
    ] {
        let (status, value) = ask(&format!("nodes/node2/{path}"));
        assert_eq!(status, "200", "{path}: {value}");
        let there = curl(lab, files, Some("node3"), 2, path);
        assert_eq!(there.0, "200", "{path}: {}", there.1);
        let keys = |value: &Value| -> Vec<String> {
            let object = value.as_object().unwrap();
            object.keys().cloned().collect()
        };
        assert_eq!(keys(&value), keys(&there.1), "{path}");
    }
    let (status, value) = ask("nodes/node2/kernel");
    assert_eq!(
        (&*status, &value["node"]),
        ("200", &"node2".into()),
        "{value}"
    );
    for (path, wanted, part) in [
        ("nodes/node9/status", "404", "there is no node node9"),
        ("nodes/node2/nodes/node3/status", "404", "no such path"),
        ("nodes/node2/routes?limit=0", "400", "expected a number"),
        ("nodes/node2/sessions/nobody", "404", "no peer nobody"),
    ] {
        let (status, value) = ask(path);
        assert_eq!(status, wanted, "{path}: {value}");
        assert!(value["error"].as_str().unwrap().contains(part), "{value}");
    }
}

/// One bundle has what each node answers, and the reason where one does not.
fn a_bundle_has_the_other_nodes(lab: &Lab, files: &Certificates, dead: Option<&str>) {
    let out = files.text("bundle.tar.gz");
    let (code, said) = asked(lab, &["bundle", "--all-nodes", "--out", &out]);
    assert_eq!(code, 0, "{said}");
    let file = |name: &str| {
        let mut tar = Command::new("tar");
        let path = format!("caracal-bundle/{name}");
        let output = tar.args(["-xzOf", &out, &path]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let index = file("INDEX");
    let mut seen = Vec::new();
    for name in ["nodes/01.json", "nodes/02.json"] {
        let about = index.lines().find(|line| line.starts_with(name));
        let about = about.unwrap_or_else(|| panic!("no {name}: {index}"));
        if let Some(dead) = dead.filter(|dead| about.contains(dead)) {
            let is_said = about.contains("MISSING") && about.contains("does not answer at");
            assert!(
                is_said && said.contains(&format!("node {dead} does not")),
                "{said}: {index}"
            );
            continue;
        }
        let told: Value = serde_json::from_str(&file(name)).unwrap();
        let node = told["status"]["node"].as_str().unwrap();
        assert!(
            about.contains(&format!("what node {node} answers")),
            "{about}"
        );
        assert_eq!(told["audit"]["node"], node);
        assert!(told["routes"]["count"].as_u64() > Some(0), "{told}");
        seen.push(node.to_owned());
    }
    let mut wanted = vec!["node2", "node3"];
    wanted.retain(|name| Some(*name) != dead);
    seen.sort();
    assert_eq!(seen, wanted, "{index}");
}

fn others_are_refused(lab: &Lab, files: &Certificates) {
    let (status, value) = curl(lab, files, None, 2, "status");
    assert_eq!(status, "403", "{value}");
    let reason = value["error"].as_str().unwrap();
    assert!(
        reason.contains("a client's certificate is needed"),
        "{reason}"
    );
    // The handshake ends it.
    let (status, value) = curl(lab, files, Some("stranger"), 2, "status");
    assert_eq!(status, "000", "{value}");

    let ask = ["status", "--node", "node2"];
    let file = |name: &str| files.text(name);
    let both = ["authority.pem", "other.pem"];
    let both = both.map(|name| std::fs::read_to_string(files.path(name)).unwrap());
    std::fs::write(files.path("both.pem"), both.concat()).unwrap();
    let stranger = |authorities: &str| {
        vec![
            ("CERT", file("stranger.pem")),
            ("KEY", file("stranger.key")),
            ("CA_CERT", file(authorities)),
        ]
    };
    for (given, part) in [
        (
            vec![("CERT", String::new()), ("KEY", String::new())],
            "a client's certificate is needed",
        ),
        (stranger("both.pem"), "node node2 refuses us"),
        (stranger("other.pem"), "is not believed to be node node2"),
        (
            vec![("CA_CERT", String::new())],
            "CARACAL_CONSOLE_CA_CERT_FILE",
        ),
    ] {
        let (code, text) = with_files(lab, &given, &ask);
        assert!(code == 1 && text.contains(part), "{part}: {code}: {text}");
    }
}

/// The subject of the certificate that node2 shows.
fn shown(lab: &Lab) -> String {
    let mut command = Command::new("openssl");
    let place = format!("10.0.0.2:{PORT}");
    command.args(["s_client", "-connect", &place]);
    let netns = lab.netns("node1").unwrap();
    let ask = || command.stdin(std::process::Stdio::null()).output();
    let output = run_in_netns(&netns, ask).unwrap().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Files count as they are, without a restart.
fn certificates_are_renewed(lab: &Lab, files: &Certificates) {
    let ask = ["status", "--node", "node2"];
    let uptime = |lab: &Lab| {
        let (_, text) = exit_code(lab, "node2", &["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&text).unwrap();
        status["uptimeSeconds"].as_u64().unwrap()
    };
    let before = uptime(lab);
    let is_shown = |name: &str| {
        let certificate = std::fs::read_to_string(files.path(&format!("{name}.pem"))).unwrap();
        let seen = wait_until(60 * SECOND, &format!("node2 to show {name}"), || {
            let shown = shown(lab);
            let is_it = shown.contains(certificate.trim());
            is_it.then_some(()).ok_or(shown)
        });
        seen.unwrap_or_else(|e| panic!("{e}"));
    };
    files.issue("renewed", "authority", "node2");
    files.replace("node2", "renewed");
    is_shown("renewed");
    await_said(lab, &ask, 0, "Node node2 (");

    files.replace("node2", "stranger");
    let spoilt = |status: &_| has_problem(status, "node.console", "is not signed by an authority");
    await_status(lab, "node2", 60 * SECOND, "the problem", spoilt);
    let (code, text) = asked(lab, &ask);
    assert!(code == 1 && text.contains("node node2 "), "{code}: {text}");

    files.issue("again", "authority", "node2");
    files.replace("node2", "again");
    let sound = |status: &_| has_no_problem(status, "node.console");
    await_status(lab, "node2", 60 * SECOND, "no problem", sound);
    is_shown("again");
    await_said(lab, &ask, 0, "Node node2 (");
    assert!(uptime(lab) >= before, "it was started anew");
}

fn who_is_dead_is_said(lab: &mut Lab, files: &Certificates) {
    let ask = ["status", "--node", "node2"];
    lab.kill9_node("node2").unwrap();
    await_said(lab, &ask, 1, "node node2 does not answer at 10.0.0.2");
    a_bundle_has_the_other_nodes(lab, files, Some("node2"));
    lab.start_node("node2").unwrap();
    await_said(lab, &ask, 0, "Node node2 (");
}

fn scenario(mut lab: Lab, files: &Certificates) {
    await_settled(&lab);
    the_answers_are_those_of_the_node(&lab);
    a_trace_goes_from_node_to_node(&lab);
    a_console_asks_others(&lab, files);
    a_bundle_has_the_other_nodes(&lab, files, None);
    others_are_refused(&lab, files);
    certificates_are_renewed(&lab, files);
    who_is_dead_is_said(&mut lab, files);
}

#[test]
fn nodes_ask_each_other_by_certificate() {
    if !possible("asking nodes", &["curl", "kubectl", "openssl"]) {
        return;
    }
    let kept = Processes::new("console-certificates");
    std::thread::scope(|scope| {
        for (name, in_kubernetes) in [("asking", false), ("asking-k8", true)] {
            let folder = kept.folder().join(name);
            scope.spawn(move || {
                std::fs::create_dir_all(&folder).unwrap();
                let files = Certificates::make(&folder);
                let text = by_certificate(&files);
                let text = match in_kubernetes {
                    true => on_kubernetes_datastore(&text),
                    false => text,
                };
                scenario(up_text(&text, "asking", name), &files);
            });
        }
    });
}

/// With one token for all, the page of a node shows the others.
#[test]
fn the_page_shows_other_nodes() {
    if !possible("the page of other nodes", &["chromium", "mkfifo"]) {
        return;
    }
    let kept = Processes::new("console-shared-token");
    let token = kept.folder().join("token");
    std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let text = topology(|_| format!("CARACAL_CONSOLE_TOKEN_FILE: '{}'", token.display()));
    let lab = up_text(&text, "other pages", "otherpages");
    await_settled(&lab);
    await_said(&lab, &["status", "--node", "node2"], 0, "Node node2 (");
    await_said(&lab, &["status", "--node", "node3"], 0, "Node node3 (");
    let unknown = [("TOKEN", token.with_extension("gone").display().to_string())];
    let (code, said) = with_files(&lab, &unknown, &["status", "--node", "node2"]);
    assert!(
        code == 1 && said.contains("CARACAL_CONSOLE_TOKEN_FILE"),
        "{code}: {said}"
    );

    let page = format!("http://127.0.0.1:{PORT}/");
    let mut browser = Browser::start(&lab.netns("node1").unwrap());
    browser.open(&page);
    browser.await_true(30 * SECOND, "document.getElementById('token') !== null");
    browser.value(&format!(
        "document.getElementById('token').value = '{TOKEN}'; document.querySelector('#main form').requestSubmit()"
    ));
    let link = "document.querySelector('[aria-label=Nodes] a[href=\"#node/node2\"]')";
    browser.await_true(30 * SECOND, &format!("{link} !== null"));
    browser.value(&format!("{link}.click()"));
    browser.await_true(
        30 * SECOND,
        "document.querySelector('#main h2').textContent === 'node2'",
    );
    let sessions = "[...document.querySelectorAll('[aria-label=Sessions] tbody tr')].map((row) => row.innerText).join()";
    browser.await_true(
        30 * SECOND,
        &format!("{sessions}.includes('10.0.0.1') && !{sessions}.includes('10.0.0.2')"),
    );
    browser.value("document.getElementById('compare').click()");
    browser.await_true(
        30 * SECOND,
        "document.getElementById('main').innerText.includes('compared at revision')",
    );

    let destination = pod_address(&lab, "node3");
    browser.open(&format!("{page}#prefix/{destination}"));
    browser.await_true(30 * SECOND, "document.getElementById('each') !== null");
    browser.value("document.getElementById('each').click()");
    let rows = "[...document.querySelectorAll('[aria-label=\"Each node\"] tbody tr')].map((row) => row.innerText)";
    browser.await_true(30 * SECOND, &format!("{rows}.length === 3"));
    let rows = browser.value(rows);
    let rows: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for (row, (node, way)) in rows.iter().zip([
        ("node1", "via 10.0.0.3"),
        ("node2", "via 10.0.0.3"),
        ("node3", " dev cali"),
    ]) {
        assert!(row.starts_with(node) && row.contains(way), "{rows:?}");
    }
    assert!(rows[1].contains("best: "), "{rows:?}");
}
