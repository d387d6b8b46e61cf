//! A node's kernel as the usual tools print it: independent witnesses of what the agent did.

use caracal_lab::{Lab, netns, program};

use crate::SECOND;

/// Runs a command in the namespace of a node, pod (`NODE/POD`) or router; gives what it printed.
///
/// # Panics
/// When it fails.
pub fn run(lab: &Lab, target: &str, words: &str) -> String {
    try_run(lab, target, words).unwrap_or_else(|why| panic!("{target}: {words}: {why}"))
}

/// As [`run`], with the reason when the command fails.
///
/// # Errors
/// What it said.
///
/// # Panics
/// When the lab has no such place.
pub fn try_run(lab: &Lab, target: &str, words: &str) -> Result<String, String> {
    let netns = lab.netns(target).expect("a place of the lab");
    let mut words = words.split_whitespace();
    let mut command =
        program::command(words.next().unwrap_or_default()).map_err(|e| e.to_string())?;
    command.args(words);
    program::call(Some(&netns), &mut command, b"", 20 * SECOND).map_err(|e| e.to_string())
}

/// Feeds a script to `nft -f -` in the namespace of a node.
///
/// # Panics
/// When it is refused.
pub fn nft(lab: &Lab, node: &str, script: &str) {
    let netns = lab.netns(node).expect("a node of the lab");
    let mut command = program::command("nft").expect("nft is installed");
    command.args(["-f", "-"]);
    program::call(Some(&netns), &mut command, script.as_bytes(), 20 * SECOND)
        .unwrap_or_else(|e| panic!("{node}: {script}: {e}"));
}

/// All that an installation touches, byte for byte. What this kernel or machine does not have is left out.
///
/// # Panics
/// When `ip` fails.
#[must_use]
pub fn whole_state(lab: &Lab, node: &str) -> String {
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
        text.push_str(&run(lab, node, words));
    }
    for words in [
        "bridge fdb show",
        "nft list ruleset",
        "iptables-legacy-save",
        "ip6tables-legacy-save",
    ] {
        let printed = try_run(lab, node, words).unwrap_or_default();
        text.extend(
            printed
                .lines()
                .filter(|l| !l.starts_with('#'))
                .map(without_counters),
        );
    }
    text
}

/// `:INPUT ACCEPT [12:3456]` → `:INPUT ACCEPT`.
fn without_counters(line: &str) -> String {
    let rules = line.strip_prefix(':').and_then(|l| l.rsplit_once(" ["));
    match rules {
        Some((chain, _)) => format!(":{chain}\n"),
        None => format!("{line}\n"),
    }
}

/// What the agent keeps right in a node's kernel, one fact a line, sorted, without what differs from one device of the
/// same name to the next.
///
/// # Panics
/// When `ip` fails.
#[must_use]
pub fn agents_state(lab: &Lab, node: &str) -> String {
    let mut facts = Vec::new();
    for (what, words) in [
        ("route", "ip -4 route show table main"),
        ("route", "ip -6 route show table main proto 80"),
        ("neighbour", "ip neigh show nud permanent"),
        ("nexthop", "ip nexthop show proto 80"),
        ("rule", "nft list table inet caracal"),
    ] {
        // Without nftables there is no table.
        let printed = try_run(lab, node, words).unwrap_or_default();
        let told = printed.lines().map(|l| l.trim().replace(" linkdown", ""));
        facts.extend(
            told.filter(|l| !l.is_empty())
                .map(|l| format!("{what} {l}")),
        );
    }
    for device in ["vxlan.calico", "tunl0"] {
        let fdb = try_run(lab, node, &format!("bridge fdb show dev {device}"));
        let remotes = fdb.unwrap_or_default();
        facts.extend(
            remotes
                .lines()
                .filter(|l| l.contains(" dst "))
                .map(|l| format!("fdb {device} {l}")),
        );
        let link = try_run(lab, node, &format!("ip -4 -o addr show dev {device} up"));
        let address = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        facts.extend(
            link.unwrap_or_default()
                .lines()
                .filter_map(address)
                .map(|a| format!("address {device} {a}")),
        );
    }
    let netns = lab.netns(node).expect("a node of the lab");
    let forwarding = netns::run(&netns, || {
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward")
    });
    let value = forwarding
        .expect("the namespace is there")
        .unwrap_or_default();
    facts.push(format!("forwarding {}", value.trim()));
    facts.sort();
    facts.join("\n")
}
