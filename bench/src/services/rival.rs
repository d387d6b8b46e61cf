//! The same services as kube-proxy's iptables mode writes them, and a table of nftables that is
//! written as a whole.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::{PORT, ServiceSet, TARGET};
use crate::dut::cpu_of_children;

const INFALLIBLE: &str = "writing to a String does not fail";

/// Wall and CPU time of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramCost {
    pub(super) wall: Duration,
    /// In steps of 10 ms.
    pub(super) cpu: Duration,
}

/// Rules of all services.
pub(super) fn iptables(set: ServiceSet) -> String {
    let mut text =
        "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SERVICES - [0:0]\n"
            .to_owned();
    for number in 0..set.services {
        text += &chains(number, &set.targets(number));
    }
    text += "-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n\
             -A POSTROUTING -j KUBE-POSTROUTING\n\
             -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n\
             -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
             -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n\
             -A KUBE-POSTROUTING -j MASQUERADE\n";
    for number in 0..set.services {
        let vip = ServiceSet::vip(number);
        writeln!(
            text,
            "-A KUBE-SERVICES -d {vip}/32 -p tcp -m comment --comment \"shop/web-{number}:http cluster IP\" \
             -m tcp --dport {PORT} -j KUBE-SVC-{number:016}"
        )
        .expect(INFALLIBLE);
    }
    for number in 0..set.services {
        text += &rules(number, &set.targets(number));
    }
    text + "COMMIT\n"
}

/// A change of one service's endpoints, as kube-proxy has written it since it writes only what has
/// changed: the chains of that service.
pub(super) fn iptables_change(set: ServiceSet, number: u32, is_there: bool) -> String {
    let mut targets = set.targets(number);
    if !is_there {
        targets.pop();
    }
    let (chains, rules) = (chains(number, &targets), rules(number, &targets));
    format!("*nat\n{chains}{rules}COMMIT\n")
}

fn chains(number: u32, targets: &[std::net::IpAddr]) -> String {
    let mut text = format!(":KUBE-SVC-{number:016} - [0:0]\n");
    for n in 0..targets.len() {
        writeln!(text, ":KUBE-SEP-{number:012}{n:04} - [0:0]").expect(INFALLIBLE);
    }
    text
}

fn rules(number: u32, targets: &[std::net::IpAddr]) -> String {
    let mut text = String::new();
    let vip = ServiceSet::vip(number);
    writeln!(
        text,
        "-A KUBE-SVC-{number:016} ! -s 10.244.0.0/16 -d {vip}/32 -p tcp -m tcp --dport {PORT} -j KUBE-MARK-MASQ"
    )
    .expect(INFALLIBLE);
    for (n, address) in targets.iter().enumerate() {
        let left = targets.len() - n;
        let chance = match left {
            1 => String::new(),
            _ => format!(
                "-m statistic --mode random --probability {:.10} ",
                1.0 / left as f64
            ),
        };
        writeln!(
            text,
            "-A KUBE-SVC-{number:016} -m comment --comment \"shop/web-{number}:http -> {address}:{TARGET}\" {chance}-j KUBE-SEP-{number:012}{n:04}\n\
             -A KUBE-SEP-{number:012}{n:04} -s {address}/32 -j KUBE-MARK-MASQ\n\
             -A KUBE-SEP-{number:012}{n:04} -p tcp -m tcp -j DNAT --to-destination {address}:{TARGET}"
        )
        .expect(INFALLIBLE);
    }
    text
}

/// Runs a program in a namespace with this input.
pub(super) fn feed(netns: &str, program: &[&str], input: &str) -> Result<ProgramCost> {
    let own = std::process::id();
    let before = cpu_of_children(own)?;
    let begun = Instant::now();
    let mut child = Command::new("ip")
        .args(["netns", "exec", netns])
        .args(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run ip (package iproute2)")?;
    let written = child
        .stdin
        .take()
        .context("a pipe")?
        .write_all(input.as_bytes());
    let status = child.wait()?;
    let wall = begun.elapsed();
    ensure!(status.success(), "{}: {status}", program.join(" "));
    written.with_context(|| program.join(" "))?;
    let cpu = cpu_of_children(own)?.saturating_sub(before);
    Ok(ProgramCost { wall, cpu })
}

/// Output of a program in a namespace.
pub(super) fn output(netns: &str, program: &[&str]) -> Result<String> {
    let output = Command::new("ip")
        .args(["netns", "exec", netns])
        .args(program)
        .output()
        .context("cannot run ip (package iproute2)")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {}",
        program.join(" "),
        complaint.trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}
