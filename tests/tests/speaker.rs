//! `caracal speaker` with two real BIRD 2 daemons as reflector clients, on loopback addresses,
//! without a kernel route. Over IPv4 it needs neither root nor a namespace; the machine's loopback
//! has one address of IPv6 only, so that over IPv6 it all runs in a namespace whose loopback has
//! three.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "speaker/admin.rs"]
mod admin;
#[path = "speaker/identity.rs"]
mod identity;
#[path = "speaker/orders.rs"]
mod orders;
#[path = "speaker/rpki.rs"]
mod rpki;

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use caracal_lab::{delete_namespaces, ip_batch, program_command, wait_until};
use caracal_model::Family;
use caracal_tests::{Processes, SECOND, binary, possible, possible_without_root};
use serde_json::Value;

const PROGRAMS: [&str; 3] = ["bird", "birdc", "bgpdump"];

const US: u8 = 1;
const A: u8 = 2;
const B: u8 = 3;

/// The address of a speaker.
fn address(family: Family, n: u8) -> IpAddr {
    match family {
        Family::Ipv4 => [127, 93, 0, n].into(),
        Family::Ipv6 => [0xfd00, 0x93, 0, 0, 0, 0, 0, n.into()].into(),
    }
}

/// Announced prefixes: 1 by `A`, 2 by `B`, and 8 and 9 by us.
fn prefix(family: Family, n: u8) -> String {
    match family {
        Family::Ipv4 => format!("10.93.{n}.0/24"),
        Family::Ipv6 => format!("fd00:93:{n}::/64"),
    }
}

/// The namespace of a run over IPv6; it goes with the value.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("caracal-{name}-{}", std::process::id());
        ip_batch(None, &[format!("netns add {name}")]).unwrap();
        let lines = [US, A, B].map(|n| {
            let address = address(Family::Ipv6, n);
            format!("address add {address}/128 dev lo nodad")
        });
        let namespace = Self(name);
        ip_batch(Some(&namespace.0), &["link set lo up".to_owned()]).unwrap();
        ip_batch(Some(&namespace.0), &lines).unwrap();
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may not be there.
        let _gone = delete_namespaces(std::slice::from_ref(&self.0));
    }
}

/// A port that is free on all three addresses.
fn free_port() -> u16 {
    loop {
        let own = |n| address(Family::Ipv4, n);
        let first = TcpListener::bind((own(US), 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        if [A, B]
            .iter()
            .all(|n| TcpListener::bind((own(*n), port)).is_ok())
        {
            return port;
        }
    }
}

/// A folder with everything, and the processes in it; all of it ends with the test.
struct Site {
    processes: Processes,
    family: Family,
    port: u16,
    namespace: Option<Namespace>,
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Site {
    fn new(name: &str, family: Family) -> Self {
        let (port, namespace) = match family {
            Family::Ipv4 => (free_port(), None),
            Family::Ipv6 => (1179, Some(Namespace::new(name))),
        };
        Self {
            processes: Processes::new(&format!("{name}-{}", std::process::id())),
            family,
            port,
            namespace,
        }
    }

    fn config(&self) -> PathBuf {
        self.folder().join("speaker.conf")
    }

    fn log(&self) -> String {
        self.processes.log("caracal")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.config(), text).unwrap();
    }

    fn folder(&self) -> &Path {
        self.processes.folder()
    }

    fn start(&mut self, name: &str, command: &mut Command) {
        let netns = self.namespace.as_ref().map(|Namespace(name)| &**name);
        self.processes.start(name, netns, command);
    }

    fn caracal(&self) -> Command {
        let mut command = Command::new(binary());
        command.env("CARACAL_RUN_DIR", self.folder());
        command.env("CARACAL_MRT_DIR", self.folder());
        command
    }

    fn start_speaker(&mut self) {
        let mut command = self.caracal();
        command.args(["speaker", "-c"]).arg(self.config());
        self.start("caracal", &mut command);
    }

    /// Starts BIRD, a client in our AS that announces one prefix.
    fn start_bird(&mut self, name: &'static str, n: u8) {
        let (port, family) = (self.port, self.family);
        let (us, own, prefix) = (
            address(family, US),
            address(family, n),
            prefix(family, n - 1),
        );
        let channel = family.as_str();
        let text = format!(
            "log stderr all;
             router id 127.93.0.{n};
             protocol device {{ scan time 60; }}
             protocol static own {{ {channel}; route {prefix} blackhole; }}
             protocol bgp caracal {{
               local {own} port {port} as 64512;
               neighbor {us} port {port} as 64512;
               multihop; strict bind; graceful restart;
               connect delay time 1; connect retry time 1; error wait time 1, 2;
               {channel} {{ import all; export all; }};
             }}"
        );
        let file = self.folder().join(format!("{name}.conf"));
        std::fs::write(&file, text).unwrap();
        let mut command = program_command("bird").unwrap();
        command
            .current_dir(self.folder())
            .args(["-f", "-c"])
            .arg(file);
        command.args(["-s", &format!("{name}.ctl"), "-P", &format!("{name}.pid")]);
        self.start(name, &mut command);
    }

    fn birdc(&self, name: &str, question: &[&str]) -> String {
        let mut command = program_command("birdc").unwrap();
        command.current_dir(self.folder());
        command.args(["-s", &format!("{name}.ctl")]).args(question);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// BIRD's line about its session: it has the time of the last change of state in it.
    /// The session with us as a BIRD shows it.
    fn session(&self, name: &str) -> Session {
        let shown = self.birdc(name, &["show", "protocols"]);
        let line = shown.lines().find(|line| line.starts_with("caracal "));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        let since = words.get(4).and_then(|clock| {
            let parts = clock.split(':').map(|part| part.parse::<f64>().ok());
            parts.collect::<Option<Vec<f64>>>()
        });
        Session {
            since: since.map(|parts| parts.iter().fold(0.0, |sum, part| sum * 60.0 + part)),
            state: words.get(5).copied().unwrap_or_default().to_owned(),
        }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        self.caracal().args(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        let output = self.ask(&[arguments, &["-o", "json"]].concat());
        if output.status.success() && is_list(arguments) {
            lines(&output.stdout)
        } else if output.status.success() {
            serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn signal(&self, name: &str, signal: &str) {
        self.processes.signal(name, signal);
    }

    /// Signals the speaker and waits for its end.
    fn end_speaker(&mut self, signal: &str) {
        let status = self.processes.end("caracal", signal);
        assert!(status.success(), "{status}\n{}", self.log());
    }

    fn await_route(&self, name: &str, prefix: &str, what: &str, holds: impl Fn(&str) -> bool) {
        wait_until(60 * SECOND, what, || {
            let shown = self.birdc(name, &["show", "route", "all", prefix]);
            if holds(&shown) {
                Ok(())
            } else {
                Err(format!("{shown}\n{:?}", self.session(name)))
            }
        })
        .unwrap();
    }

    fn await_sessions(&self) {
        wait_until(60 * SECOND, "both sessions", || {
            let peers = self.json(&["bgp", "peers"])?;
            let up = |p: &&Value| p["state"] == "Established";
            if peers.as_array().unwrap().iter().filter(up).count() == 2 {
                Ok(())
            } else {
                Err(format!("{peers:#}"))
            }
        })
        .unwrap();
    }
}

/// The speaker's file; `hold` is the hold time of B, `own` what we announce, `out` a term of B's
/// export filter.
fn config(site: &Site, hold: u16, own: u8, out: &str) -> String {
    let (port, family) = (site.port, site.family);
    let (us, own) = (address(family, US), prefix(family, own));
    let channel = family.as_str();
    let peer = |name: &str, n: u8, hold: u16, export: &str| {
        let address = address(family, n);
        format!(
            "protocol bgp {name} from client {{
               neighbor {address} port {port} as 64512;
               hold time {hold};
               {channel} {{ import all; export {export}; }};
             }}\n"
        )
    };
    format!(
        "# A reflector.
         router id 127.93.0.1;
         #: listen {us} port {port}
         filter to_b {{ {out} accept; }}
         protocol static {{ {channel}; route {own} blackhole {{ bgp_next_hop = {us}; }}; }}
         template bgp client {{
           local {us} as 64512;
           rr client; rr cluster id 1.1.1.1;
           graceful restart on;
         }}
         {}{}
         protocol bmp watch {{ station address ip {us} port 9; monitoring rib in pre_policy; }}
         protocol mrt {{ table \"*\"; filename \"{}/periodic-%N.mrt\"; period 1; }}",
        peer("a", A, 90, "all"),
        peer("b", B, hold, "filter to_b"),
        site.folder().display(),
    )
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A session at a BIRD. Two are equal when they are the same session: BIRD computes the time of day
/// anew for each answer, and its last digit differs now and then.
#[derive(Clone, Debug)]
struct Session {
    /// Seconds of the day.
    since: Option<f64>,
    state: String,
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        const ROUNDING: f64 = 0.01;
        let same_time = match (self.since, other.since) {
            (Some(a), Some(b)) => (a - b).abs() < ROUNDING,
            (a, b) => a == b,
        };
        same_time && self.state == other.state
    }
}

impl Session {
    fn is_established(&self) -> bool {
        self.state == "Established"
    }
}

#[test]
fn a_reflector_between_two_birds() {
    if possible_without_root("a_reflector_between_two_birds", &PROGRAMS) {
        reflector(Site::new("speaker", Family::Ipv4));
    }
}

#[test]
fn a_reflector_between_two_birds_over_ipv6() {
    let scenario = "a_reflector_between_two_birds_over_ipv6";
    if possible(scenario, &PROGRAMS) {
        reflector(Site::new("speaker6", Family::Ipv6));
    }
}

fn reflector(mut site: Site) {
    let prefix = |n| prefix(site.family, n);
    let [of_a, of_b, ours] = [prefix(1), prefix(2), prefix(9)];
    let next_hop = |n| format!("BGP.next_hop: {}", address(site.family, n));
    let [us, a] = [next_hop(US), next_hop(A)];
    site.write(&config(&site, 90, 9, ""));
    site.start_speaker();
    site.start_bird("a", A);
    site.start_bird("b", B);
    site.await_sessions();

    // RFC 4456: next hop kept, originator and cluster list added.
    site.await_route("b", &of_a, "A's route at B", |shown| {
        shown.contains(&a)
            && shown.contains("BGP.originator_id: 127.93.0.2")
            && shown.contains("BGP.cluster_list: 1.1.1.1")
    });
    site.await_route("a", &of_b, "B's route at A", |shown| {
        shown.contains("BGP.originator_id: 127.93.0.3")
    });
    for name in ["a", "b"] {
        site.await_route(name, &ours, "our own route", |shown| shown.contains(&us));
    }
    questions_are_answered(&site);
    orders::an_operator_stops_and_resets_a_session(&site);
    a_broken_file_changes_nothing(&site);
    a_reload_touches_only_what_differs(&site);
    a_restart_keeps_the_routes(&mut site);

    // SIGINT is leaving: the routes go.
    site.end_speaker("-INT");
    site.await_route("b", &of_a, "no route of A at B", |shown| {
        !shown.contains("BGP.next_hop")
    });
}

/// Questions whose answer is an object a line.
fn is_list(arguments: &[&str]) -> bool {
    matches!(arguments, ["bgp", "routes" | "received" | "advertised", ..])
        && !arguments.contains(&"--count")
}

fn lines(octets: &[u8]) -> Result<Value, String> {
    let values = serde_json::Deserializer::from_slice(octets).into_iter::<Value>();
    let values: Result<Vec<Value>, _> = values.collect();
    values.map(Value::Array).map_err(|e| e.to_string())
}

fn questions_are_answered(site: &Site) {
    let (of_a, a) = (prefix(site.family, 1), address(site.family, A));
    let received = site.json(&["bgp", "received", "a"]).unwrap();
    assert_eq!(received[0]["prefix"], of_a, "{received:#}");
    let by_address = site.json(&["bgp", "received", &a.to_string()]).unwrap();
    assert_eq!(by_address, received);
    let advertised = site.json(&["bgp", "advertised", "b"]).unwrap();
    assert_eq!(advertised.as_array().unwrap().len(), 2, "{advertised:#}");
    filters_of_questions(site, &of_a);
    let explained = site.ask(&["bgp", "explain", &of_a]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(
        explained.contains(&format!("from a via {a}")),
        "{explained}"
    );
    assert!(explained.contains("sent to b"), "{explained}");
    assert_eq!(
        site.ask(&["bgp", "explain", "192.0.2.0/24"]).status.code(),
        Some(3)
    );
    let status = site.ask(&["status"]);
    assert!(status.status.success(), "{}", stderr(&status));
    let shown = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(shown.contains("STATION"), "{shown}");
    let nobody = std::net::SocketAddr::new(address(site.family, US), 9);
    wait_until(40 * SECOND, "the reason", || {
        let status = site.json(&["status"])?;
        let station = &status["stations"][0];
        let reason = station["reason"].as_str().unwrap_or_default();
        let said = reason.contains("cannot connect");
        if said && station["state"] == "Down" && station["address"] == nobody.to_string() {
            Ok(())
        } else {
            Err(station.to_string())
        }
    })
    .unwrap();
    a_peer_is_asked_again(site);
    the_table_is_dumped(site);
}

/// `caracal bgp refresh PEER`: the answer is counted by BIRD, and no session ends.
fn a_peer_is_asked_again(site: &Site) {
    let before = (site.session("a"), site.session("b"));
    let sent = || {
        let shown = site.birdc("a", &["show", "protocols", "all", "caracal"]);
        let line = shown.lines().find(|line| line.contains("Export updates:"));
        let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
        words.last().and_then(|word| word.parse::<u32>().ok())
    };
    let first = sent().expect("BIRD counts what it sends");
    let asked = site.ask(&["bgp", "refresh", "a"]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    wait_until(40 * SECOND, "BIRD sends its route again", || {
        let now = sent();
        if now > Some(first) {
            Ok(())
        } else {
            Err(format!("{now:?} after {first}"))
        }
    })
    .unwrap();
    assert_eq!((site.session("a"), site.session("b")), before);
    let nobody = site.ask(&["bgp", "refresh", "nobody"]);
    assert_eq!(nobody.status.code(), Some(3));
    assert!(
        stderr(&nobody).contains("no peer nobody"),
        "{}",
        stderr(&nobody)
    );
}

/// PREFIX, `--longer-prefixes`, `--peer`, `--best` and `--count`.
fn filters_of_questions(site: &Site, of_a: &str) {
    let count = |arguments: &[&str]| {
        let all = site.json(&[&["bgp"], arguments].concat()).unwrap();
        let number = all.as_array().unwrap().len();
        let counted = site.ask(&[&["bgp"], arguments, &["--count"]].concat());
        let text = String::from_utf8_lossy(&counted.stdout).into_owned();
        assert_eq!(text, format!("{number}\n"), "{arguments:?}");
        number
    };
    let all = count(&["routes"]);
    assert!(all >= 3, "{all}");
    assert_eq!(count(&["routes", of_a]), 1);
    assert_eq!(count(&["routes", "--peer", "a"]), 1);
    assert_eq!(count(&["routes", "--best"]), all, "no prefix has two paths");
    let default = match site.family {
        Family::Ipv4 => "0.0.0.0/0",
        Family::Ipv6 => "::/0",
    };
    assert_eq!(count(&["routes", default, "--longer-prefixes"]), all);
    assert_eq!(count(&["received", "a", of_a, "--best"]), 1);
    assert_eq!(count(&["advertised", "b", of_a]), 1);
    let none = site.ask(&["bgp", "routes", default]);
    assert_eq!(none.status.code(), Some(3), "{}", stderr(&none));
    let nobody = site.ask(&["bgp", "routes", "--peer", "nobody"]);
    assert_eq!(nobody.status.code(), Some(3));
    assert!(
        stderr(&nobody).contains("no peer nobody"),
        "{}",
        stderr(&nobody)
    );
}

/// `caracal bgp mrt FILE`: a whole file, of as many octets as it says, that begins with the index
/// of peers (RFC 6396 §4.3.1).
fn the_table_is_dumped(site: &Site) {
    let file = site.folder().join("table.mrt");
    let dumped = site.ask(&["bgp", "mrt", file.to_str().unwrap()]);
    assert!(dumped.status.success(), "{}", stderr(&dumped));
    let octets = std::fs::read(&file).unwrap();
    let said = String::from_utf8_lossy(&dumped.stdout).into_owned();
    let expected = format!("{}: {} octets\n", file.display(), octets.len());
    assert_eq!(said, expected);
    assert_eq!(
        octets[4..8],
        [0, 13, 0, 1],
        "TABLE_DUMP_V2, PEER_INDEX_TABLE"
    );
    // Three destinations follow, each in a record of its own.
    let mut rest = &octets[..];
    let mut kinds = Vec::new();
    while let [_, _, _, _, _, 13, _, kind, a, b, c, d, ..] = rest {
        kinds.push(*kind);
        let len = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap();
        rest = &rest[12 + len..];
    }
    let kind = match site.family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 4,
    };
    assert_eq!((kinds, rest.len()), (vec![1, kind, kind, kind], 0));
    // The file asks for the same every second; another program reads it.
    let periodic = site.folder().join("periodic-master.mrt");
    let seen = wait_until(60 * SECOND, "a dump that the file asks for", || {
        let mut bgpdump = program_command("bgpdump").unwrap();
        let output = bgpdump.arg("-m").arg(&periodic).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let text = text.unwrap_or_default();
        let mut prefixes: Vec<_> = text
            .lines()
            .filter_map(|line| line.split('|').nth(5))
            .collect();
        prefixes.sort_unstable();
        match prefixes.len() {
            3 => Ok(prefixes.join(" ")),
            _ => Err(text),
        }
    });
    let seen = seen.unwrap_or_else(|error| panic!("{error}"));
    for n in [1, 2, 9] {
        assert!(seen.contains(&prefix(site.family, n)), "{seen}");
    }
    // It follows no link, and writes nowhere else.
    let link = site.folder().join("link.mrt");
    let victim = site.folder().join("victim");
    std::fs::write(&victim, "kept").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let dumped = site.ask(&["bgp", "mrt", "link.mrt"]);
    assert!(dumped.status.success(), "{}", stderr(&dumped));
    assert_eq!(std::fs::read(&link).unwrap().len(), octets.len());
    assert_eq!(std::fs::read(&victim).unwrap(), b"kept");
    for elsewhere in ["/tmp/table.mrt", "/nonexistent/table.mrt", "../table.mrt"] {
        let refused = site.ask(&["bgp", "mrt", elsewhere]);
        assert_eq!(refused.status.code(), Some(1));
        let said = stderr(&refused);
        assert!(
            said.contains(&format!("cannot write {elsewhere}")) && said.contains("CARACAL_MRT_DIR"),
            "{said}"
        );
    }
    assert!(!std::path::Path::new("/tmp/table.mrt").exists());
}

fn a_broken_file_changes_nothing(site: &Site) {
    let good = std::fs::read_to_string(site.config()).unwrap();
    let broken = good.replace("rr client;", "rr klient;");
    site.write(&broken);
    let before = (site.session("a"), site.session("b"));
    let check = site
        .caracal()
        .args(["speaker", "--check"])
        .arg(site.config())
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(5));
    let report = stderr(&check);
    assert!(report.contains("speaker.conf:8:"), "{report}");
    assert!(
        report.contains("expected \"client\" or \"cluster\", found \"klient\""),
        "{report}"
    );
    let reload = site.ask(&["speaker", "reload"]);
    assert_eq!(reload.status.code(), Some(5));
    assert!(
        stderr(&reload).contains("\"klient\""),
        "{}",
        stderr(&reload)
    );
    site.write(&good);
    let check = site
        .caracal()
        .args(["speaker", "--check"])
        .arg(site.config())
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", stderr(&check));
    let reload = site.ask(&["speaker", "reload"]);
    assert_eq!(
        String::from_utf8_lossy(&reload.stdout),
        "nothing has changed\n"
    );
    assert_eq!((site.session("a"), site.session("b")), before);
}

fn a_reload_touches_only_what_differs(site: &Site) {
    let [of_a, before, after] = [1, 9, 8].map(|n| prefix(site.family, n));
    let us = format!("BGP.next_hop: {}", address(site.family, US));
    let (a, b) = (site.session("a"), site.session("b"));
    assert!(a.is_established(), "{a:?}");
    // An export filter: the routes go, both sessions stay.
    let term = format!("if (net ~ [ {of_a} ]) then reject;");
    site.write(&config(site, 90, 9, &term));
    let change = site.json(&["speaker", "reload"]).unwrap();
    assert_eq!(
        change["changed"],
        serde_json::json!({"b": ["export-rerun"]})
    );
    site.await_route("b", &of_a, "A's route withdrawn at B", |shown| {
        !shown.contains("BGP.next_hop")
    });
    assert_eq!(
        (site.session("a"), site.session("b")),
        (a.clone(), b.clone())
    );

    // By SIGHUP: another hold time needs a new session with B; another own route reaches A over the
    // old one.
    site.write(&config(site, 60, 8, ""));
    site.signal("caracal", "-HUP");
    site.await_route("a", &after, "the new route at A", |shown| {
        shown.contains(&us)
    });
    site.await_route("a", &before, "the old route gone at A", |shown| {
        !shown.contains("BGP.next_hop")
    });
    wait_until(60 * SECOND, "another session of B", || {
        let now = site.session("b");
        if now != b && now.is_established() {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .unwrap();
    site.await_route("b", &of_a, "A's route back at B", |shown| {
        shown.contains("BGP.next_hop")
    });
    assert_eq!(site.session("a"), a, "A's session was touched");
    // Signals that end many a daemon.
    let sessions = || (site.session("a"), site.session("b"));
    let before = sessions();
    for signal in ["-QUIT", "-USR1", "-USR2"] {
        site.signal("caracal", signal);
        assert!(site.ask(&["status"]).status.success(), "{signal}");
    }
    assert_eq!(sessions(), before);
}

fn a_restart_keeps_the_routes(site: &mut Site) {
    let of_a = prefix(site.family, 1);
    let a = format!("BGP.next_hop: {}", address(site.family, A));
    let has_route = |shown: &str| shown.contains(&a);
    site.end_speaker("-TERM");
    // RFC 4724 §4.2: B keeps A's route although nobody is there.
    site.await_route("b", &of_a, "A's route kept at B", has_route);
    wait_until(60 * SECOND, "B has noticed", || {
        let session = site.session("b");
        if session.is_established() {
            Err(format!("{session:?}"))
        } else {
            Ok(())
        }
    })
    .unwrap();
    assert!(has_route(
        &site.birdc("b", &["show", "route", "all", &of_a])
    ));
    assert!(!Path::new(&site.folder().join("caracal.sock")).exists());
    site.start_speaker();
    site.await_sessions();
    site.await_route("b", &of_a, "A's route after the restart", has_route);
    assert!(site.log().contains("restarting=true"), "{}", site.log());
}

/// How many peers one file has.
const MANY: u32 = 300;

fn address_of(n: u32) -> IpAddr {
    let [_, _, high, low] = (n + 1).to_be_bytes();
    [127, 96, high, low].into()
}

/// A file with [`MANY`] peers at one address, each from an address of our own; some differ.
fn many_peers(
    port: u16,
    peers: impl Iterator<Item = u32>,
    longer: &[u32],
    filtered: &[u32],
) -> String {
    let peer = |n: u32| {
        let hold = if longer.contains(&n) { 180 } else { 90 };
        let export = if filtered.contains(&n) {
            "filter few"
        } else {
            "all"
        };
        format!(
            "protocol bgp p{n} from one {{ local {} as 64512; hold time {hold}; ipv4 {{ import all; export {export}; }}; }}\n",
            address_of(n)
        )
    };
    let peers: String = peers.map(peer).collect();
    let [us, other] = [US, A].map(|n| address(Family::Ipv4, n));
    format!(
        "router id 127.93.0.1;
         #: listen none
         filter few {{ if (net ~ [ 10.93.9.0/24 ]) then reject; accept; }}
         protocol static {{ ipv4; route 10.93.9.0/24 blackhole {{ bgp_next_hop = {us}; }}; }}
         template bgp one {{ neighbor {other} port {port} as 64512; }}
         {peers}"
    )
}

#[test]
fn a_reload_of_three_hundred_peers_touches_those_that_differ() {
    let scenario = "a_reload_of_three_hundred_peers_touches_those_that_differ";
    if !possible_without_root(scenario, &PROGRAMS) {
        return;
    }
    let mut site = Site::new("many", Family::Ipv4);
    let port = site.port;
    let theirs = address(Family::Ipv4, A);
    // The other side is a speaker too, and takes whoever comes.
    let other = site.folder().join("other");
    std::fs::create_dir_all(&other).unwrap();
    let file = site.folder().join("other.conf");
    let text = format!(
        "router id 127.93.0.2;
         #: listen {theirs} port {port}
         protocol bgp all {{
           local {theirs} as 64512; neighbor range 127.96.0.0/16 as 64512;
           ipv4 {{ import all; export all; }};
         }}"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(binary());
    command.env("CARACAL_RUN_DIR", &other);
    command.args(["speaker", "-c"]).arg(&file);
    site.start("other", &mut command);

    site.write(&many_peers(port, 0..MANY, &[], &[]));
    let check = site.ask(&["speaker", "--check", site.config().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains("300 peers"), "{said}{}", stderr(&check));
    site.start_speaker();
    let count = |word: &str| site.log().lines().filter(|l| l.contains(word)).count();
    let await_up = |wanted: usize| {
        wait_until(180 * SECOND, "all sessions", || {
            let peers = site.json(&["bgp", "peers"])?;
            let peers = peers.as_array().cloned().unwrap_or_default();
            let up = peers.iter().filter(|p| p["state"] == "Established").count();
            if up == wanted && peers.len() == wanted {
                Ok(())
            } else {
                Err(format!("{up} of {}", peers.len()))
            }
        })
        .unwrap();
    };
    await_up(300);
    // Said in the log a moment after it is so.
    let before = wait_until(60 * SECOND, "all sessions in the log", || {
        let counts = (count("session established"), count("session ended"));
        if counts.0 >= 300 {
            Ok(counts)
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .unwrap();

    // One goes, one comes, one has another hold time, one another filter.
    site.write(&many_peers(
        port,
        (0..=MANY).filter(|n| *n != 8),
        &[9],
        &[7],
    ));
    let change = site.json(&["speaker", "reload"]).unwrap();
    assert_eq!(change["added"], serde_json::json!(["p300"]), "{change}");
    assert_eq!(change["removed"], serde_json::json!(["p8"]), "{change}");
    let changed = serde_json::json!({"p7": ["export-rerun"], "p9": ["session-reset"]});
    assert_eq!(change["changed"], changed, "{change}");
    await_up(300);
    wait_until(60 * SECOND, "p7 is told what its filter says", || {
        let told = site.json(&["bgp", "advertised", "p7"])?;
        if told.as_array().is_some_and(Vec::is_empty) {
            Ok(())
        } else {
            Err(told.to_string())
        }
    })
    .unwrap();
    wait_until(60 * SECOND, "two new sessions", || {
        let new = count("session established") - before.0;
        if new >= 2 { Ok(()) } else { Err(new) }
    })
    .unwrap();
    // At most the one that was reset and the one that is gone have ended.
    let ended = count("session ended") - before.1;
    assert!(ended <= 2, "{ended} sessions ended\n{}", site.log());

    // The same file again touches nobody.
    let change = site.ask(&["speaker", "reload"]);
    assert_eq!(
        String::from_utf8_lossy(&change.stdout),
        "nothing has changed\n"
    );
    site.end_speaker("-INT");
}
