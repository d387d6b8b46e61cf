//! Rendered files against real daemons: a node's native speaker and a real BIRD 2 with the node's
//! rendered file announce and accept the same routes, over all example topologies; and `caracal
//! render --watch` follows a live datastore.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use caracal_lab::{
    Lab, NodeKind, Topology, call_program, program_command, spawn_in_netns, wait_until,
};
use caracal_model::PeerStatusJson;
use caracal_tests::{SECOND, addresses, await_settled, binary, caracals, example, possible, up};
use serde_json::Value;

/// Routes: prefix → attributes that other speakers act on.
type Routes = BTreeMap<String, String>;

/// Routes that `observer` has received from an address, without stale ones.
fn announced_to(lab: &Lab, observer: &str, address: &str) -> Result<Routes, String> {
    let text = lab.caracal(observer, &["bgp", "received", address, "-o", "json"]);
    let text = text.map_err(|e| e.to_string())?;
    // An object a line.
    let lines = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let routes: Vec<Value> = lines.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    if routes.iter().any(|r| r["stale"] == true) {
        return Err(format!("{observer} still has stale routes of {address}"));
    }
    let said = |r: &Value| {
        let what = [
            "nextHop",
            "localPref",
            "med",
            "asPath",
            "origin",
            "communities",
            "originatorId",
            "clusterList",
        ]
        .map(|field| format!("{field}={}", r[field]));
        (r["prefix"].as_str().unwrap().to_owned(), what.join(" "))
    };
    Ok(routes.iter().map(said).collect())
}

/// The best learned routes of the native speaker with their next hops.
fn native_accepts(lab: &Lab, node: &str) -> Routes {
    let text = lab.caracal(node, &["bgp", "routes", "-o", "json"]).unwrap();
    let lines = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let routes: Vec<Value> = lines.collect::<Result<_, _>>().unwrap();
    let best = |r: &&Value| r["status"] == "best" && !r["peer"].is_null();
    let hop = |r: &Value| r["nextHop"].as_str().unwrap_or_default().to_owned();
    let entry = |r: &Value| (r["prefix"].as_str().unwrap().to_owned(), hop(r));
    let routes: Routes = routes.iter().filter(best).map(entry).collect();
    assert!(!routes.is_empty(), "{text}");
    routes
}

/// The same from `birdc show route all`: a line of a prefix or another path of it, then its
/// attributes.
fn bird_accepts(shown: &str) -> Routes {
    let mut routes = Routes::new();
    let (mut prefix, mut counts) = (String::new(), false);
    for line in shown.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !line.starts_with(char::is_whitespace) && first.contains('/') {
            first.clone_into(&mut prefix);
        }
        if line.contains(" [") {
            let bgp = ["[Mesh_", "[Node_", "[Global_"]
                .iter()
                .any(|p| line.contains(p));
            counts = bgp && line.contains("] * (");
        }
        if let Some(hop) = line.trim().strip_prefix("BGP.next_hop: ")
            && counts
        {
            let hop = hop.split_whitespace().next().unwrap_or_default();
            routes.insert(prefix.clone(), hop.to_owned());
        }
    }
    routes
}

/// A daemon that goes with its owner.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Routes that a node has announced to the observers, once all have arrived: each has received as
/// many as the node has advertised to it.
fn whole<T>(
    lab: &Lab,
    node: &str,
    observers: &[String],
    announced: &impl Fn(&Lab) -> Result<BTreeMap<T, Routes>, String>,
) -> BTreeMap<T, Routes> {
    let addresses = |of: &str| addresses(lab, of);
    let of = |peers: &[PeerStatusJson], addresses: &[IpAddr]| -> Vec<PeerStatusJson> {
        let named = |p: &&PeerStatusJson| p.address.is_some_and(|a| addresses.contains(&a));
        peers.iter().filter(named).cloned().collect()
    };
    let what = format!("everything that {node} announces");
    wait_until(60 * SECOND, &what, || {
        let own = lab.node_status(node).map_err(|e| e.to_string())?;
        for observer in observers {
            let theirs = lab.node_status(observer).map_err(|e| e.to_string())?;
            let sent: usize = of(&own.peers, &addresses(observer))
                .iter()
                .map(|p| p.advertised)
                .sum();
            let heard: usize = of(&theirs.peers, &addresses(node))
                .iter()
                .map(|p| p.received)
                .sum();
            if sent != heard {
                return Err(format!("{sent} sent to {observer}, {heard} received"));
            }
        }
        let routes = announced(lab)?;
        match routes.values().any(|routes| !routes.is_empty()) {
            true => Ok(routes),
            false => Err("nothing".to_owned()),
        }
    })
    .unwrap()
}

/// Replaces a node's speaker by BIRD with the rendered file, and compares what everybody hears and
/// it hears.
fn compare(lab: &mut Lab, node: &str) {
    let observers: Vec<String> = caracals(lab).into_iter().filter(|n| n != node).collect();
    let layout = lab.layout().node(node).unwrap();
    let addresses: Vec<String> = layout
        .uplink
        .addresses()
        .map(|(a, _)| a.to_string())
        .collect();
    let announced = |lab: &Lab| -> Result<BTreeMap<(String, String), Routes>, String> {
        let mut all = BTreeMap::new();
        for observer in &observers {
            let peers = lab.node_status(observer).map_err(|e| e.to_string())?.peers;
            for address in &addresses {
                if peers
                    .iter()
                    .any(|p| p.address.is_some_and(|a| a.to_string() == *address))
                {
                    let routes = announced_to(lab, observer, address)?;
                    all.insert((observer.clone(), address.clone()), routes);
                }
            }
        }
        Ok(all)
    };
    let native = whole(lab, node, &observers, &announced);
    let accepted = native_accepts(lab, node);
    let text = lab
        .caracal(node, &["render", "--node", node, "--style", "bird2"])
        .unwrap();
    lab.stop_node(node).unwrap();
    let netns = lab.netns(node).unwrap();
    let folder = lab.folder().path();
    let (file, socket) = (folder.join("twin.conf"), folder.join("twin.ctl"));
    fs::write(&file, text).unwrap();
    let mut command = program_command("bird").unwrap();
    command
        .arg("-f")
        .arg("-c")
        .arg(&file)
        .arg("-s")
        .arg(&socket);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let bird = Daemon(spawn_in_netns(&netns, &mut command).unwrap());
    let what = format!("{node}: BIRD announces what the native speaker did");
    wait_until(60 * SECOND, &what, || match announced(lab)? {
        bird if bird == native => Ok(()),
        bird => Err(format!("native {native:#?}\nBIRD {bird:#?}")),
    })
    .unwrap();
    let what = format!("{node}: BIRD accepts what the native speaker did");
    wait_until(60 * SECOND, &what, || {
        let mut command = program_command("birdc").unwrap();
        command
            .arg("-s")
            .arg(&socket)
            .args(["show", "route", "all"]);
        let output = call_program(Some(&netns), &mut command, b"", 60 * SECOND);
        let output = output.map_err(|e| e.to_string())?;
        match bird_accepts(&output) {
            same if same == accepted => Ok(()),
            other => Err(format!("native {accepted:?}\nBIRD {other:?}\n{output}")),
        }
    })
    .unwrap();
    println!(
        "{}: {node}: {} routes accepted, {} peers told the same",
        lab.name(),
        accepted.len(),
        native.len()
    );
    drop(bird);
    lab.start_node(node).unwrap();
    lab.await_node(node).unwrap();
}

#[test]
fn a_bird_2_with_the_rendered_file_says_and_hears_what_the_native_speaker_does() {
    let name = "a_bird_2_with_the_rendered_file_says_and_hears_what_the_native_speaker_does";
    if !possible(name, &["bird", "birdc"]) {
        return;
    }
    let folder = example("x").parent().unwrap().to_owned();
    let mut examples: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    // Where the data are makes no difference to a speaker.
    examples.retain(|file| !file.ends_with("kubernetes.yaml"));
    examples.sort();
    assert!(examples.len() >= 6);
    // Two labs side by side: each waits for sessions most of its time.
    let examples = &examples;
    std::thread::scope(|scope| {
        for (first, lab) in ["tpl-twin", "tpl-twin-2"].into_iter().enumerate() {
            scope.spawn(move || {
                for file in examples.iter().skip(first).step_by(2) {
                    twins(file, lab);
                }
            });
        }
    });
}

/// Compares a node of an example and a reflector, where it has one.
fn twins(file: &Path, lab: &str) {
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let text = fs::read_to_string(file).unwrap();
    let topology = Topology::parse(&text, stem).unwrap();
    if topology.flannel().is_some() {
        // Its nodes have no speaker.
        return;
    }
    let mut lab = up(stem, lab);
    await_settled(&lab);
    let natives: Vec<_> = topology
        .nodes
        .iter()
        .filter(|n| n.kind == NodeKind::Caracal)
        .collect();
    // A node with pods announces something; a reflector passes on what others do.
    let with_pods = natives.iter().find(|n| !n.pods.value.0.is_empty());
    let reflector = natives
        .iter()
        .find(|n| n.route_reflector_cluster_id.is_some());
    for node in with_pods.into_iter().chain(reflector) {
        compare(&mut lab, &node.name.value);
        await_settled(&lab);
    }
}

/// `caracal render --watch` beside etcd.
fn watch(lab: &Lab, out: &Path, arguments: &[&str]) -> (Daemon, PathBuf) {
    let log = lab.folder().path().join("render.log");
    let mut command = Command::new(binary());
    let endpoint = format!("http://127.0.0.1:{}", caracal_lab::ETCD_PORT);
    command
        .env("ETCD_ENDPOINTS", endpoint)
        .args(["render", "--watch", "--node", "node1", "--out"])
        .arg(out)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    (
        Daemon(spawn_in_netns(&lab.layout().etcd_netns(), &mut command).unwrap()),
        log,
    )
}

/// Waits for a text in a file.
fn await_text(file: &Path, what: &str, condition: impl Fn(&str) -> bool) -> String {
    wait_until(60 * SECOND, what, || match fs::read_to_string(file) {
        Ok(text) if condition(&text) => Ok(text),
        other => Err(format!("{}: {other:?}", file.display())),
    })
    .unwrap()
}

#[test]
fn rendered_files_follow_the_datastore_and_the_last_good_ones_stay() {
    if !possible(
        "rendered_files_follow_the_datastore_and_the_last_good_ones_stay",
        &["bird"],
    ) {
        return;
    }
    let lab = up("full-mesh", "tpl-watch");
    await_settled(&lab);
    let out = lab.folder().path().join("rendered");
    fs::create_dir_all(&out).unwrap();
    let put = |name: &str, spec: &str| {
        let key = format!("/calico/resources/v3/projectcalico.org/bgppeers/{name}");
        let value = format!(
            r#"{{"kind":"BGPPeer","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{spec}}}"#
        );
        lab.etcdctl(&["put", &key], value.as_bytes()).unwrap();
    };
    // The six files of Calico's set; the check refuses what names a forbidden peer, the reload
    // counts.
    let check = "! grep -q 10.9.9.9 {dir}/bird.cfg || { echo no such peer here >&2; exit 1; }";
    let arguments = [
        "--style",
        "calico",
        "--check-cmd",
        check,
        "--reload-cmd",
        "echo told >> {dir}/told",
    ];
    let (renderer, log) = watch(&lab, &out, &arguments);
    let has_lines = |n: usize| move |text: &str| text.lines().count() == n;
    await_text(&out.join("told"), "the first reload", has_lines(1));
    for file in [
        "bird.cfg",
        "bird_aggr.cfg",
        "bird_ipam.cfg",
        "bird6.cfg",
        "bird6_aggr.cfg",
        "bird6_ipam.cfg",
    ] {
        assert!(out.join(file).is_file(), "{file}");
    }
    put("tor", r#"{"peerIP":"10.0.0.99","asNumber":65001}"#);
    let good = await_text(&out.join("bird.cfg"), "the new peer", |t| {
        t.contains("Global_10_0_0_99")
    });
    await_text(&out.join("told"), "the second reload", has_lines(2));
    put("bad", r#"{"peerIP":"10.9.9.9","asNumber":65001}"#);
    await_text(&log, "the complaint", |t| {
        t.contains("last good files stay") && t.contains("no such peer here")
    });
    assert_eq!(fs::read_to_string(out.join("bird.cfg")).unwrap(), good);
    // The next good value goes through, whatever was refused before.
    put("bad", r#"{"peerIP":"10.0.0.98","asNumber":65001}"#);
    await_text(&out.join("bird.cfg"), "the corrected peer", |t| {
        t.contains("Global_10_0_0_98")
    });
    await_text(&out.join("told"), "the third reload", has_lines(3));
    assert!(!out.join(".caracal-candidate").exists());
    drop(renderer);

    // BIRD 2 checks its own file; a user's template that BIRD refuses changes nothing, and one with
    // a mistake is shown.
    let (bird, mine) = (
        lab.folder().path().join("bird2"),
        lab.folder().path().join("mine"),
    );
    fs::create_dir_all(&bird).unwrap();
    fs::create_dir_all(&mine).unwrap();
    let check = "bird -p -c {dir}/bird.conf";
    let arguments = [
        "--style",
        "bird2",
        "--templates",
        mine.to_str().unwrap(),
        "--check-cmd",
        check,
    ];
    let (renderer, log) = watch(&lab, &bird, &arguments);
    let good = await_text(&bird.join("bird.conf"), "BIRD's file", |t| {
        t.contains("Global_10_0_0_98")
    });
    fs::write(mine.join("kernel.hbs"), "no such statement;\n").unwrap();
    await_text(&log, "BIRD's complaint", |t| t.contains("syntax error"));
    fs::write(mine.join("kernel.hbs"), "# {{router_idd}}\n").unwrap();
    let place = await_text(&log, "the place of the mistake", |t| {
        t.contains("router_idd")
    });
    assert!(
        place.contains("kernel.hbs:1:") && place.contains("^"),
        "{place}"
    );
    assert_eq!(fs::read_to_string(bird.join("bird.conf")).unwrap(), good);
    fs::write(mine.join("kernel.hbs"), "# mine\n").unwrap();
    await_text(&bird.join("bird.conf"), "the user's part", |t| {
        t.contains("# mine")
    });
    drop(renderer);
}
