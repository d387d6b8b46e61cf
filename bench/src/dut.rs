//! The speakers under test: their configuration, their process, what it cost.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::lab::{CLIENTS, LINK};
use crate::scenario::{Kind, Scenario};
use crate::speakers::Speaker;
use caracal_hot_paths::routes::DUT;
use caracal_hot_paths::routes::DUT_AS;

/// Path of BIRD 1.6 below the target directory, where `make bench` unpacks it.
const BIRD1: &str = "bird1/usr/sbin/bird";
/// Path of FRR's BGP daemon.
const BGPD: &str = "/usr/lib/frr/bgpd";

/// BIRD 1.6 where `make bench` unpacks it: this program is somewhere in `target`.
fn bird1() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let mut slots = program.ancestors().map(|folder| folder.join(BIRD1));
    slots.find(|path| path.is_file())
}

impl Speaker {
    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caracal => "caracal",
            Self::Bird2 => "bird2",
            Self::Bird1 => "bird1",
            Self::Frr => "frr",
            Self::Gobgp => "gobgp",
            Self::Minimal => "minimal",
        }
    }

    /// The name in sentences.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Caracal => "Caracal",
            Self::Bird2 => "BIRD 2",
            Self::Bird1 => "BIRD 1.6",
            Self::Frr => "FRR",
            Self::Gobgp => "GoBGP",
            Self::Minimal => "a minimal relay",
        }
    }

    /// Version that the program prints; `None` when it is not installed.
    pub fn version(self) -> Option<String> {
        let program: PathBuf = match self {
            Self::Caracal => return Some(format!("caracal {}", env!("CARGO_PKG_VERSION"))),
            Self::Bird2 => "bird".into(),
            Self::Bird1 => bird1()?,
            Self::Frr => BGPD.into(),
            Self::Gobgp => "gobgpd".into(),
            Self::Minimal => return Some("a relay with one table".to_owned()),
        };
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        text.lines().next().map(str::to_owned)
    }

    /// Time that the speaker takes after its sessions are up until it announces without further
    /// delay.
    pub const fn warm_up(self) -> Duration {
        match self {
            // FRR coalesces for seconds after a session came up; that delay is not its speed.
            Self::Frr => Duration::from_secs(10),
            Self::Caracal | Self::Bird2 | Self::Bird1 | Self::Gobgp | Self::Minimal => {
                Duration::from_millis(500)
            }
        }
    }

    /// Starts the speaker in a namespace, configured for a scenario; Caracal's program may be
    /// named.
    pub fn start(
        self,
        scenario: &Scenario,
        namespace: &str,
        dir: &Path,
        program: Option<&PathBuf>,
    ) -> Result<Process> {
        let file = dir.join(format!("{}.conf", self.name()));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]);
        let text = match self {
            Self::Caracal => {
                return start_caracal(&caracal(scenario), &[], namespace, dir, program);
            }
            Self::Bird2 => {
                command.args(["bird", "-f", "-c"]).arg(&file);
                command.arg("-s").arg(dir.join("bird.ctl"));
                bird(scenario)
            }
            Self::Bird1 => {
                let program = bird1().context("BIRD 1.6 is not there")?;
                command.arg(program).args(["-f", "-c"]).arg(&file);
                command.arg("-s").arg(dir.join("bird1.ctl"));
                bird_1_6(scenario)
            }
            Self::Frr => {
                let own = |name: &str| dir.join(name);
                command.args([BGPD, "-Z", "-S", "-P", "0", "-u", "root", "-g", "root"]);
                command.arg("-f").arg(&file).arg("-i").arg(own("bgpd.pid"));
                command.arg("--vty_socket").arg(dir);
                frr(scenario)
            }
            Self::Gobgp => {
                command.args(["gobgpd", "-t", "toml", "-l", "error", "-p", "-f"]);
                command.arg(&file).args(["--api-hosts", "127.0.0.1:50051"]);
                gobgp(scenario)
            }
            Self::Minimal => {
                command.arg(std::env::current_exe()?).arg("relay");
                return launch(self, &mut command, dir);
            }
        };
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        launch(self, &mut command, dir)
    }
}

/// Runs a speaker; what it prints goes to a file.
fn launch(speaker: Speaker, command: &mut Command, dir: &Path) -> Result<Process> {
    let log = dir.join(format!("{}.log", speaker.name()));
    let out = std::fs::File::create(&log)?;
    let child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .with_context(|| format!("cannot start {}", speaker.name()))?;
    Ok(Process { child, log })
}

/// The configuration of Caracal in a folder.
pub fn caracal_file(dir: &Path) -> PathBuf {
    dir.join("caracal.conf")
}

/// Starts Caracal with a configuration and more arguments.
pub fn start_caracal(
    text: &str,
    more: &[String],
    namespace: &str,
    dir: &Path,
    program: Option<&PathBuf>,
) -> Result<Process> {
    let file = caracal_file(dir);
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    // Each run is a first start: after a restart the speaker would wait for its peers (RFC 4724
    // §4.1).
    let mark = dir.join("speaker.mark");
    if mark.exists() {
        std::fs::remove_file(&mark).context("removing the mark of the last run")?;
    }
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    command.arg(node_binary(program)?).args(["speaker", "-c"]);
    command
        .arg(&file)
        .args(more)
        .env("CARACAL_RUN_DIR", dir)
        .env("CARACAL_MRT_DIR", dir);
    launch(Speaker::Caracal, &mut command, dir)
}

/// A running speaker; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error when the process has ended.
    pub fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let tail = log.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
        bail!("the speaker has ended ({status}): {tail}")
    }

    /// CPU time of all threads so far, user and system.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(self.id())
    }
}

/// Memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// In memory now, in KiB.
    pub resident_kib: u64,
    /// The most that was, in KiB.
    pub peak_kib: u64,
}

/// Memory of a process.
pub fn memory_of(id: u32) -> Result<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("/proc/{id}/status has no {name}"))
    };
    Ok(Memory {
        resident_kib: number("VmRSS:")?,
        peak_kib: number("VmHWM:")?,
    })
}

/// The `caracal` to measure: the one that was named, or the one beside this program.
pub fn node_binary(named: Option<&PathBuf>) -> Result<PathBuf> {
    let binary = match named {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("caracal"),
    };
    ensure!(
        binary.is_file(),
        "{} is missing; make static",
        binary.display()
    );
    Ok(binary)
}

/// Pages that the kernel has given to a process so far, or given back to it: minor page faults.
/// Other work on the machine does not change them, as it changes times.
pub fn faults_of(id: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name before the parenthesis may hold anything.
    let behind_name = text.rsplit_once(')').map(|(_, fields)| fields);
    let number = behind_name.and_then(|fields| fields.split_whitespace().nth(7)?.parse().ok());
    number.with_context(|| format!("/proc/{id}/stat has no minflt: {text}"))
}

/// CPU time of all threads of a process so far, user and system.
pub fn cpu_of(id: u32) -> Result<Duration> {
    let tasks = format!("/proc/{id}/task");
    let mut nanos = 0;
    for task in std::fs::read_dir(&tasks)? {
        // A thread may end while we look.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else {
            continue;
        };
        let first = text.split_whitespace().next();
        nanos += first.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}

/// CPU time of the programs that a process has started and that have ended, in steps of 10 ms.
pub fn cpu_of_children(id: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name, in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(") ").context("stat without a name")?;
    // cutime and cstime, the 16th and 17th of all (proc(5)), in hundredths of a second.
    let ticks: u64 = fields
        .split(' ')
        .skip(13)
        .take(2)
        .flat_map(str::parse::<u64>)
        .sum();
    Ok(Duration::from_millis(ticks * 10))
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Entries of the filter's prefix set.
const REFUSED: u32 = 10_000;

/// What both languages say alike: the filter of a route server, and how an import names it. It
/// looks at everything and refuses nothing, so that the same routes are expected as without it:
/// host routes in the midst of what is announced, numbers of ASes and communities that no route
/// has.
fn import_of(scenario: &Scenario) -> (String, &'static str) {
    if scenario.kind != Kind::Filter {
        return (String::new(), "all");
    }
    let hosts = (0..REFUSED).map(|n| Ipv4Addr::from(0x0100_0001 + n * (0xdf00_0000 / REFUSED)));
    let hosts: Vec<String> = hosts.map(|host| format!("{host}/32")).collect();
    let communities = (1..=5).map(|n| format!("  if (65535, {n}) ~ bgp_community then reject;\n"));
    let text = format!(
        "define refused = [ {} ];\nfilter judged {{\n  if net ~ refused then reject;\n  \
         if bgp_path.len > 40 then reject;\n  if bgp_path.last = 0 then reject;\n  \
         if bgp_path ~ [= * 64496..64511 * =] then reject;\n{}  accept;\n}}\n",
        hosts.join(", "),
        communities.collect::<String>()
    );
    (text, "filter judged")
}

fn caracal(scenario: &Scenario) -> String {
    let hold = scenario.hold;
    let (filter, import) = import_of(scenario);
    let mut text = format!(
        "router id {DUT};\n{filter}template bgp neighbour {{\n  local {DUT} as {DUT_AS};\n  passive;\n  hold time {hold};\n  \
         ipv4 {{ import {import}; export all; }};\n}}\n"
    );
    for (index, role) in scenario.roles.iter().enumerate() {
        let kind = if role.asn == DUT_AS {
            format!("rr client; rr cluster id {DUT};")
        } else {
            String::new()
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "protocol bgp p{index} from neighbour {{ neighbor {} as {}; {kind} }}",
            role.address, role.asn
        );
    }
    text
}

fn bird(scenario: &Scenario) -> String {
    let hold = scenario.hold;
    let external = scenario.roles.iter().all(|role| role.asn != DUT_AS);
    // On a shared link BIRD would hand on the sender's next hop.
    let own = if external { "next hop self;" } else { "" };
    let (filter, import) = import_of(scenario);
    let mut text = format!(
        "log stderr {{ error, fatal, bug }};\nrouter id {DUT};\n{filter}protocol device {{}}\n\
         protocol static {{ ipv4; route {CLIENTS}/20 via {LINK}; }}\n\
         template bgp neighbour {{\n  local {DUT} as {DUT_AS};\n  passive;\n  hold time {hold};\n  \
         ipv4 {{ import {import}; export where source = RTS_BGP; {own} }};\n}}\n"
    );
    for (index, role) in scenario.roles.iter().enumerate() {
        let kind = if role.asn == DUT_AS {
            format!("multihop; rr client; rr cluster id {DUT};")
        } else {
            "direct;".to_owned()
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "protocol bgp p{index} from neighbour {{ neighbor {} as {}; {kind} }}",
            role.address, role.asn
        );
    }
    text
}

/// BIRD 1.6 has no channels and no `direct` for the protocol: everything is one level up.
fn bird_1_6(scenario: &Scenario) -> String {
    let hold = scenario.hold;
    let mut text = format!(
        "log stderr {{ error, fatal, bug }};\nrouter id {DUT};\nprotocol device {{}}\n\
         protocol static {{ route {CLIENTS}/20 via {LINK}; }}\n\
         template bgp neighbour {{\n  local {DUT} as {DUT_AS};\n  passive;\n  hold time {hold};\n  \
         import all; export where source = RTS_BGP;\n}}\n"
    );
    for (index, role) in scenario.roles.iter().enumerate() {
        let kind = if role.asn == DUT_AS {
            format!("multihop; rr client; rr cluster id {DUT};")
        } else {
            "direct; next hop self;".to_owned()
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "protocol bgp p{index} from neighbour {{ neighbor {} as {}; {kind} }}",
            role.address, role.asn
        );
    }
    text
}

fn frr(scenario: &Scenario) -> String {
    let (hold, keepalive) = (scenario.hold, scenario.hold / 3);
    let mut text = format!(
        "frr defaults traditional\nrouter bgp {DUT_AS} view bench\n bgp router-id {DUT}\n \
         bgp cluster-id {DUT}\n no bgp ebgp-requires-policy\n no bgp network import-check\n \
         bgp bestpath compare-routerid\n timers bgp {keepalive} {hold}\n"
    );
    let mut clients = String::new();
    for role in &scenario.roles {
        let address = role.address;
        let _ = writeln!(text, " neighbor {address} remote-as {}", role.asn);
        let _ = writeln!(text, " neighbor {address} passive");
        let _ = writeln!(text, " neighbor {address} timers connect 1");
        let _ = writeln!(text, " neighbor {address} advertisement-interval 0");
        if role.asn == DUT_AS {
            let _ = writeln!(clients, "  neighbor {address} route-reflector-client");
        } else {
            let _ = writeln!(text, " neighbor {address} disable-connected-check");
        }
    }
    let _ = writeln!(
        text,
        " address-family ipv4 unicast\n{clients} exit-address-family\nexit"
    );
    text
}

fn gobgp(scenario: &Scenario) -> String {
    let hold = scenario.hold;
    let mut text = format!(
        "[global.config]\nas = {DUT_AS}\nrouter-id = \"{DUT}\"\nport = 179\n\
         local-address-list = [\"{DUT}\"]\n\
         [global.route-selection-options.config]\nexternal-compare-router-id = true\n"
    );
    for role in &scenario.roles {
        let _ = writeln!(
            text,
            "[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{}\"\npeer-as = {}\n\
             [neighbors.transport.config]\npassive-mode = true\nlocal-address = \"{DUT}\"\n\
             [neighbors.timers.config]\nhold-time = {hold}\nkeepalive-interval = {}",
            role.address,
            role.asn,
            hold / 3
        );
        if role.asn == DUT_AS {
            let _ = writeln!(
                text,
                "[neighbors.route-reflector.config]\nroute-reflector-client = true\n\
                 route-reflector-cluster-id = \"{DUT}\""
            );
        }
        let _ = writeln!(
            text,
            "[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"ipv4-unicast\""
        );
    }
    text
}
