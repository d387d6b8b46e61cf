//! `caracal-bench cni`: ADD and DEL of `caracal-cni` beside Debian's `bridge` with `host-local`,
//! which need no datastore; interleaved, one after the other and many at once. On a node of a lab:
//! real etcd, a real `caracal node` whose route each ADD awaits.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caracal_lab::{
    Lab, LabName, Topology, UpOptions, container_id, ip_batch, netns_path, run_in_netns,
};
use serde_json::{Value, json};

use crate::dut::node_binary;

const TOPOLOGY: &str = "
name: cni
description: one node
pool:
  cidr: 10.244.0.0/16
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
  - {name: node1, segment: lan, pods: 0}
";

#[derive(Clone, Debug, clap::Args)]
pub struct CniArgs {
    /// Pairs of ADD and DEL, one after the other, for each plugin.
    #[arg(long, default_value_t = 100)]
    sequential: usize,
    /// Calls at the same time.
    #[arg(long, default_value_t = 20)]
    parallel: usize,
    /// Bursts of calls at the same time.
    #[arg(long, default_value_t = 10)]
    bursts: usize,
    /// The `caracal` to measure; by default the one beside this program.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where Debian's plugins are.
    #[arg(long, default_value = "/usr/lib/cni")]
    plugins: PathBuf,
}

/// One of the two.
struct Rival {
    name: &'static str,
    program: PathBuf,
    conf: String,
    times: BTreeMap<&'static str, Vec<Duration>>,
}

/// Folders and pods with which the plugin is called.
struct PluginSetup {
    plugin_path: std::ffi::OsString,
    run_dir: PathBuf,
    lib_dir: PathBuf,
    pods: Vec<String>,
}

pub fn run(args: &CniArgs) -> Result<()> {
    let binary = node_binary(args.binary.as_ref())?;
    let name = LabName::new("bench-cni")?;
    let _leftovers = caracal_lab::down(&name);
    let topology = Topology::parse(TOPOLOGY, "cni")?;
    let lab = Lab::up(
        topology,
        TOPOLOGY,
        UpOptions::test(binary, "bench-cni"),
        &|_| {},
    )?;
    let pods: Vec<String> = (0..args.parallel)
        .map(|n| lab.name().netns(&format!("b{n}")))
        .collect();
    let lines: Vec<_> = pods.iter().map(|p| format!("netns add {p}")).collect();
    ip_batch(None, &lines)?;
    let mut path = std::env::split_paths(&args.plugins).collect::<Vec<_>>();
    path.insert(0, lab.folder().bin());
    let site = PluginSetup {
        plugin_path: std::env::join_paths(path)?,
        run_dir: lab.folder().run("node1"),
        lib_dir: lab.folder().lib("node1"),
        pods,
    };
    let mut rivals = rivals(&lab, args);
    let node = lab.netns("node1")?;
    run_in_netns(&node, || compare(&site, &mut rivals, args))??;
    print!("{}", table(&rivals));
    lab.down()?;
    Ok(())
}

fn rivals(lab: &Lab, args: &CniArgs) -> Vec<Rival> {
    let node = lab.layout().node("node1").expect("the topology's node");
    let mut ours = caracal_lab::network_config(node);
    ours["log_level"] = json!("error");
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "bridge", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.93.0.0/16"}]],
            "routes": [{"dst": "0.0.0.0/0"}], "dataDir": lab.folder().path().join("host-local")},
    });
    let rival = |name, program: PathBuf, conf: &Value| Rival {
        name,
        program,
        conf: conf.to_string(),
        times: BTreeMap::new(),
    };
    vec![
        rival("caracal-cni", lab.folder().bin().join("caracal-cni"), &ours),
        rival("bridge + host-local", args.plugins.join("bridge"), &bridge),
    ]
}

fn compare(site: &PluginSetup, rivals: &mut [Rival], args: &CniArgs) -> Result<()> {
    let mut turn = Vec::from_iter(0..rivals.len());
    // One pair each that is not counted: bridges, blocks and profiles are made once.
    for rival in rivals.iter() {
        pair(site, rival)?;
    }
    for _ in 0..args.sequential {
        for &index in &turn {
            let (add, del) = pair(site, &rivals[index])?;
            note(
                &mut rivals[index],
                [("ADD", add), ("DEL", del), ("ADD + DEL", add + del)],
            );
        }
        turn.rotate_left(1);
    }
    for _ in 0..args.bursts {
        for &index in &turn {
            let (add, del) = all_at_once(site, &rivals[index])?;
            let both = add + del;
            note(
                &mut rivals[index],
                [("all ADD", add), ("all DEL", del), ("all ADD + DEL", both)],
            );
        }
        turn.rotate_left(1);
    }
    for _ in 0..args.sequential {
        for &index in &turn {
            let version = call(site, &rivals[index], "VERSION", "v", &site.pods[0])?;
            note(&mut rivals[index], [("VERSION", version)]);
        }
    }
    Ok(())
}

fn note<const N: usize>(rival: &mut Rival, times: [(&'static str, Duration); N]) {
    for (what, time) in times {
        rival.times.entry(what).or_default().push(time);
    }
}

fn pair(site: &PluginSetup, rival: &Rival) -> Result<(Duration, Duration)> {
    let (pod, id) = (&site.pods[0], container_id());
    let add = call(site, rival, "ADD", &id, pod)?;
    let del = call(site, rival, "DEL", &id, pod)?;
    Ok((add, del))
}

/// The wall time of a call in every pod at the same time.
fn all_at_once(site: &PluginSetup, rival: &Rival) -> Result<(Duration, Duration)> {
    let ids: Vec<_> = site.pods.iter().map(|_| container_id()).collect();
    let verb = |verb: &'static str| -> Result<Duration> {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let calls: Vec<_> = site
                .pods
                .iter()
                .zip(&ids)
                .map(|(pod, id)| scope.spawn(move || call(site, rival, verb, id, pod)))
                .collect();
            calls
                .into_iter()
                .try_for_each(|call| call.join().expect("a call does not panic").map(drop))
        })?;
        Ok(start.elapsed())
    };
    Ok((verb("ADD")?, verb("DEL")?))
}

fn call(site: &PluginSetup, rival: &Rival, verb: &str, id: &str, pod: &str) -> Result<Duration> {
    let mut command = Command::new(&rival.program);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", id)
        .env("CNI_NETNS", netns_path(pod))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", &site.plugin_path)
        .env("CARACAL_RUN_DIR", &site.run_dir)
        .env("CARACAL_LIB_DIR", &site.lib_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("{} does not start", rival.program.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // VERSION may be answered without reading it.
        let _broken_pipe = stdin.write_all(rival.conf.as_bytes());
    }
    let output = child.wait_with_output()?;
    let elapsed = start.elapsed();
    ensure!(
        output.status.success(),
        "{} {verb}: {}{}",
        rival.name,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(elapsed)
}

/// Medians with the 90th percentile, and the ratio of the medians.
fn table(rivals: &[Rival]) -> String {
    let mut text = String::from("| call |");
    for rival in rivals {
        text += &format!(" {}: median (p90) ms |", rival.name);
    }
    text += " ratio |\n|---|---|---|---|\n";
    let order = [
        "VERSION",
        "ADD",
        "DEL",
        "ADD + DEL",
        "all ADD",
        "all DEL",
        "all ADD + DEL",
    ];
    for what in order {
        let medians: Vec<_> = rivals.iter().map(|r| at(r, what, 50)).collect();
        text += &format!("| {what} |");
        for (rival, median) in rivals.iter().zip(&medians) {
            text += &format!(" {median:.1} ({:.1}) |", at(rival, what, 90));
        }
        let ratio = medians
            .first()
            .zip(medians.last())
            .map_or(0.0, |(a, b)| a / b);
        text += &format!(" {ratio:.2} |\n");
    }
    text
}

/// A percentile in milliseconds.
fn at(rival: &Rival, what: &str, share: usize) -> f64 {
    let mut times = rival.times.get(what).cloned().unwrap_or_default();
    times.sort_unstable();
    let index = times.len().saturating_sub(1) * share / 100;
    times.get(index).map_or(0.0, |t| t.as_secs_f64() * 1000.0)
}
