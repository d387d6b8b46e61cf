//! A speaker and two BIRD 2 daemons in namespaces of their own, each over a link of its own.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use caracal_lab::{call_program, delete_namespaces, ip_batch, program_command, wait_until};
use caracal_tests::{Processes, SECOND, binary};
use serde_json::Value;

/// Both BIRDs, by the last letter of their names.
pub(crate) const BIRDS: [&str; 2] = ["a", "b"];

/// A test waits so long for the whole of a state; a loaded machine needs a part of it.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Numbers the sites of a process.
static SITES: AtomicU32 = AtomicU32::new(0);

/// Everything; it ends with the test.
pub(crate) struct Site {
    prefix: String,
    processes: Processes,
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_of("us"));
            eprintln!("{}", self.routes("us", &[]).join("\n"));
        }
        let all = ["us", "a", "b"].map(|name| self.netns(name));
        let _gone = delete_namespaces(&all);
    }
}

impl Site {
    /// Namespaces `us`, `a` and `b`; `us` has 10.1.0.1 and 2001:db8:1::1 towards `a` (which is .2
    /// and ::2) on the interface `eth-a`, and the same with 2 towards `b`.
    pub(crate) fn new() -> Self {
        let number = SITES.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("fib{}x{number}", std::process::id());
        let site = Self {
            processes: Processes::new(&prefix),
            prefix,
        };
        let us = site.netns("us");
        let mut lines = vec![format!("netns add {us}")];
        for name in BIRDS {
            let there = site.netns(name);
            lines.push(format!("netns add {there}"));
            lines.push(format!(
                "link add eth-{name} netns {us} type veth peer name eth0 netns {there}"
            ));
        }
        ip_batch(None, &lines).unwrap();
        let ours = ["link set lo up".to_owned()];
        let mut ours = ours.to_vec();
        for (n, name) in (1..).zip(BIRDS) {
            ours.extend([
                format!("link set eth-{name} up"),
                format!("addr add 10.{n}.0.1/24 dev eth-{name}"),
                format!("addr add 2001:db8:{n}::1/64 dev eth-{name} nodad"),
            ]);
            let theirs = [
                "link set lo up".to_owned(),
                "link set eth0 up".to_owned(),
                format!("addr add 10.{n}.0.2/24 dev eth0"),
                format!("addr add 2001:db8:{n}::2/64 dev eth0 nodad"),
                "addr add 198.51.100.1/32 dev lo".to_owned(),
            ];
            ip_batch(Some(&site.netns(name)), &theirs).unwrap();
        }
        ip_batch(Some(&us), &ours).unwrap();
        site
    }

    pub(crate) fn netns(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.processes.folder().join(name)
    }

    /// Output of a program.
    pub(crate) fn log_of(&self, name: &str) -> String {
        self.processes.log(name)
    }

    /// Lines of `ip` in a namespace.
    pub(crate) fn ip(&self, name: &str, lines: &[&str]) {
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        ip_batch(Some(&self.netns(name)), &lines).unwrap();
    }

    /// `ip -o route show …` of IPv4, a line for each route.
    pub(crate) fn routes(&self, name: &str, selection: &[&str]) -> Vec<String> {
        self.show(name, &[&["-4", "-o", "route", "show"], selection].concat())
    }

    pub(crate) fn show(&self, name: &str, arguments: &[&str]) -> Vec<String> {
        let mut command = program_command("ip").unwrap();
        command.args(arguments);
        match call_program(Some(&self.netns(name)), &mut command, b"", 30 * SECOND) {
            Ok(text) => text.lines().map(|line| line.replace('\\', " ")).collect(),
            // A table that nobody has written to yet.
            Err(error) => vec![format!("{error}")],
        }
    }

    /// Starts a program in a namespace; its output is in a log.
    pub(crate) fn start(&mut self, name: &str, netns: &str, command: &mut Command) {
        let netns = self.netns(netns);
        self.processes.start(name, Some(&netns), command);
    }

    pub(crate) fn write(&self, text: &str) {
        std::fs::write(self.file("us.conf"), text).unwrap();
    }

    /// Starts the speaker with the file that was written.
    pub(crate) fn start_us(&mut self) {
        self.start_us_with(&[]);
    }

    /// The same with more in its environment.
    pub(crate) fn start_us_with(&mut self, environment: &[(&str, &str)]) {
        let mut command = Command::new(binary());
        command.envs(environment.iter().copied());
        command.env("CARACAL_RUN_DIR", self.processes.folder());
        command.args(["speaker", "-c", "us.conf"]);
        self.start("us", "us", &mut command);
    }

    fn bird_file(&self, name: &str, text: &str) {
        let n = if name == "a" { 1 } else { 2 };
        let text = format!(
            "log stderr all;\nrouter id 10.{n}.0.2;\nprotocol device {{ scan time 1; }}\n{text}\n"
        );
        std::fs::write(self.file(&format!("{name}.conf")), text).unwrap();
    }

    pub(crate) fn start_bird(&mut self, name: &'static str, text: &str) {
        self.bird_file(name, text);
        let mut command = program_command("bird").unwrap();
        command.args(["-f", "-c", &format!("{name}.conf")]);
        command.args(["-s", &format!("{name}.ctl"), "-P", &format!("{name}.pid")]);
        self.start(name, name, &mut command);
    }

    /// Gives BIRD another file, which it reads at once.
    pub(crate) fn reconfigure_bird(&self, name: &str, text: &str) {
        self.bird_file(name, text);
        let mut command = program_command("birdc").unwrap();
        command.current_dir(self.processes.folder());
        command.args(["-s", &format!("{name}.ctl"), "configure"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains("Reconfigured") || said.contains("in progress"),
            "{said}"
        );
    }

    /// BIRD's answer.
    pub(crate) fn birdc(&self, name: &str, words: &[&str]) -> String {
        let mut command = program_command("birdc").unwrap();
        command.current_dir(self.processes.folder());
        command.args(["-s", &format!("{name}.ctl")]).args(words);
        match command.output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// Signals a program, which goes on.
    pub(crate) fn signal(&self, name: &str, signal: &str) {
        self.processes.signal(name, signal);
    }

    /// The process of a program.
    pub(crate) fn id(&self, name: &str) -> u32 {
        self.processes.id(name)
    }

    /// Signals a program and waits for its end.
    pub(crate) fn end(&mut self, name: &str, signal: &str) {
        self.processes.end(name, signal);
    }

    /// The speaker's answer.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(binary());
        command.env("CARACAL_RUN_DIR", self.processes.folder());
        let output = command.args(arguments).args(["-o", "json"]).output();
        let output = output.map_err(|error| error.to_string())?;
        let error = |_| String::from_utf8_lossy(&output.stderr).into_owned();
        if let ["bgp", "routes" | "received" | "advertised", ..] = arguments
            && output.status.success()
        {
            // An object a line.
            let lines = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
            let routes: Result<Vec<Value>, _> = lines.collect();
            return routes.map(Value::Array).map_err(error);
        }
        serde_json::from_slice(&output.stdout).map_err(error)
    }

    /// Waits until a question gets the answer.
    pub(crate) fn until<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        expected: &T,
        question: impl Fn() -> T,
    ) {
        let result = wait_until(PATIENCE, what, || {
            let seen = question();
            if seen == *expected {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        });
        result.unwrap_or_else(|error| panic!("{error}; expected: {expected:?}"));
    }

    /// Waits until what somebody shows is right; otherwise the last of it is in the message.
    pub(crate) fn until_shown(
        &self,
        what: &str,
        show: impl Fn() -> String,
        right: impl Fn(&str) -> bool,
    ) {
        let result = wait_until(PATIENCE, what, || {
            let shown = show();
            if right(&shown) { Ok(()) } else { Err(shown) }
        });
        result.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until the speaker has swept its tables.
    pub(crate) fn until_synced(&self) {
        self.until("the tables are swept", &Some("synced".to_owned()), || {
            let status = self.ask(&["status"]).ok()?;
            Some(status["kernel"]["phase"].as_str()?.to_owned())
        });
    }

    /// The words of `caracal bgp explain` about the paths, the best first: status and way.
    pub(crate) fn explained(&self, prefix: &str) -> Vec<(String, String)> {
        let Ok(answer) = self.ask(&["bgp", "explain", prefix]) else {
            return Vec::new();
        };
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let paths = answer["paths"].as_array().cloned().unwrap_or_default();
        paths
            .iter()
            .map(|path| (word(&path["status"]), word(&path["way"]["interface"])))
            .collect()
    }

    /// How often each session has come up.
    pub(crate) fn sessions(&self) -> Vec<String> {
        let Ok(status) = self.ask(&["status"]) else {
            return Vec::new();
        };
        let peers = status["peers"].as_array().cloned().unwrap_or_default();
        let up = peers.iter().filter(|peer| peer["state"] == "Established");
        up.map(|peer| peer["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}
