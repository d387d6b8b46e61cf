//! A node's kernel as the usual tools print it: independent witnesses of what the agent did.

use caracal_lab::{Lab, call_program, program_command, run_in_netns};

use crate::SECOND;

/// Runs a command in the namespace of a node, pod (`NODE/POD`) or router; gives what it printed.
///
/// # Panics
/// When it fails.
pub fn run_on(lab: &Lab, target: &str, words: &str) -> String {
    try_run_on(lab, target, words).unwrap_or_else(|why| panic!("{target}: {words}: {why}"))
}

/// As [`run_on`], with the reason when the command fails.
///
/// # Errors
/// Output of a command, or its error.
///
/// # Panics
/// When the lab has no such place.
pub fn try_run_on(lab: &Lab, target: &str, words: &str) -> Result<String, String> {
    let netns = lab.netns(target).expect("a place of the lab");
    let mut words = words.split_whitespace();
    let mut command =
        program_command(words.next().unwrap_or_default()).map_err(|e| e.to_string())?;
    command.args(words);
    call_program(Some(&netns), &mut command, b"", 60 * SECOND).map_err(|e| e.to_string())
}

/// `ip route flush`, in so far as it can: it fails at routes through next-hop objects, which are
/// deleted one by one then.
///
/// # Panics
/// When routes cannot be listed.
pub fn flush_routes(lab: &Lab, node: &str, flag: &str, which: &str) {
    if try_run_on(lab, node, &format!("ip {flag} route flush {which}")).is_ok() {
        return;
    }
    let listed = run_on(lab, node, &format!("ip {flag} route show {which}"));
    // Next hops of the line before stand further in.
    for line in listed
        .lines()
        .filter(|l| !l.starts_with(char::is_whitespace))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kind = ["blackhole", "unreachable", "prohibit"].contains(&words[0]);
        let metric = words.iter().position(|w| *w == "metric");
        let mut delete = words[..if kind { 2 } else { 1 }].to_vec();
        delete.extend(metric.into_iter().flat_map(|at| &words[at..at + 2]));
        // It may have gone with another one.
        let _ = try_run_on(
            lab,
            node,
            &format!("ip {flag} route del {}", delete.join(" ")),
        );
    }
}

/// Feeds a script to `nft -f -` in the namespace of a node.
///
/// # Panics
/// When it is refused.
pub fn apply_nft(lab: &Lab, node: &str, script: &str) {
    let netns = lab.netns(node).expect("a node of the lab");
    let mut command = program_command("nft").expect("nft is installed");
    command.args(["-f", "-"]);
    call_program(Some(&netns), &mut command, script.as_bytes(), 60 * SECOND)
        .unwrap_or_else(|e| panic!("{node}: {script}: {e}"));
}

/// All that an installation touches, byte for byte. What this kernel or machine does not have is
/// left out.
///
/// # Panics
/// When `ip` fails.
#[must_use]
pub(crate) fn whole_state(lab: &Lab, node: &str) -> String {
    let mut text = String::new();
    for words in [
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ip nexthop show",
        "ip rule show",
        "ip -d link show",
        "ip -o addr show",
        "ip neigh show nud permanent",
    ] {
        text.push_str(&run_on(lab, node, words));
    }
    for words in [
        "bridge fdb show",
        "nft list ruleset",
        "iptables-legacy-save",
        "ip6tables-legacy-save",
    ] {
        let printed = try_run_on(lab, node, words).unwrap_or_default();
        text.extend(
            printed
                .lines()
                .filter(|l| !l.starts_with('#'))
                .map(without_counters),
        );
    }
    text + &sysctls(lab, node).join("\n")
}

/// The switches of the IP layers and of every interface.
fn sysctls(lab: &Lab, node: &str) -> Vec<String> {
    let netns = lab.netns(node).expect("a node of the lab");
    let read = || {
        let mut paths = vec!["/proc/sys/net/ipv4/ip_forward".into()];
        for folder in ["ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"] {
            let interfaces = std::fs::read_dir(format!("/proc/sys/net/{folder}"));
            for interface in interfaces.into_iter().flatten().flatten() {
                let keys = std::fs::read_dir(interface.path()).into_iter().flatten();
                paths.extend(keys.flatten().map(|key| key.path()));
            }
        }
        paths.sort();
        let value_of = |path: &std::path::PathBuf| {
            let value = std::fs::read_to_string(path).unwrap_or_default();
            format!("{} {}", path.display(), value.trim())
        };
        paths.iter().map(value_of).collect()
    };
    run_in_netns(&netns, read).expect("the namespace is there")
}

/// `:INPUT ACCEPT [12:3456]` → `:INPUT ACCEPT`.
fn without_counters(line: &str) -> String {
    let rules = line.strip_prefix(':').and_then(|l| l.rsplit_once(" ["));
    match rules {
        Some((chain, _)) => format!(":{chain}\n"),
        None => format!("{line}\n"),
    }
}

/// Kernel state that the agent maintains on a node, one fact a line, sorted, without parts that
/// differ from one device of the same name to the next.
///
/// # Panics
/// When `ip` fails.
#[must_use]
pub fn agents_state(lab: &Lab, node: &str) -> String {
    let mut facts = Vec::new();
    for (what, words) in [
        ("route", "ip -4 route show table main"),
        ("neighbour", "ip neigh show nud permanent"),
        ("nexthop", "ip nexthop show proto 80"),
        ("rule", "nft list table inet caracal"),
    ] {
        // Without nftables there is no table.
        let printed = try_run_on(lab, node, words).unwrap_or_default();
        let value_of = printed.lines().map(|l| l.trim().replace(" linkdown", ""));
        facts.extend(
            value_of
                .filter(|l| !l.is_empty())
                .map(|l| format!("{what} {l}")),
        );
    }
    // Asked for by protocol, `ip` leaves the protocol out; the rest of IPv6's routes is the
    // kernel's own.
    let ipv6 = try_run_on(lab, node, "ip -6 route show table main").unwrap_or_default();
    let ours = ipv6.lines().filter(|l| l.contains(" proto 80 "));
    facts.extend(ours.map(|l| format!("route {}", l.trim().replace(" linkdown", ""))));
    for device in ["vxlan.calico", "vxlan-v6.calico", "tunl0"] {
        let fdb = try_run_on(lab, node, &format!("bridge fdb show dev {device}"));
        let remotes = fdb.unwrap_or_default();
        facts.extend(
            remotes
                .lines()
                .filter(|l| l.contains(" dst "))
                .map(|l| format!("fdb {device} {l}")),
        );
        let link = try_run_on(lab, node, &format!("ip -o addr show dev {device} up"));
        let address = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        facts.extend(
            link.unwrap_or_default()
                .lines()
                .filter_map(address)
                .filter(|a| !a.starts_with("fe80:"))
                .map(|a| format!("address {device} {a}")),
        );
    }
    facts.extend(forwarding(lab, node));
    facts.sort();
    facts.join("\n")
}

/// The switches that let packets through: IPv4's, and IPv6's of each workload's interface.
fn forwarding(lab: &Lab, node: &str) -> Vec<String> {
    const IPV6: &str = "/proc/sys/net/ipv6/conf";
    let netns = lab.netns(node).expect("a node of the lab");
    let read = || {
        let mut paths = vec!["/proc/sys/net/ipv4/ip_forward".to_owned()];
        let devices = std::fs::read_dir(IPV6).into_iter().flatten().flatten();
        let names = devices.filter_map(|d| d.file_name().into_string().ok());
        let ours = names.filter(|n| n == "all" || n.starts_with("cali"));
        paths.extend(ours.map(|n| format!("{IPV6}/{n}/forwarding")));
        let value_of = |path: &String| {
            let value = std::fs::read_to_string(path).unwrap_or_default();
            format!("forwarding {path} {}", value.trim())
        };
        paths.iter().map(value_of).collect()
    };
    run_in_netns(&netns, read).expect("the namespace is there")
}
