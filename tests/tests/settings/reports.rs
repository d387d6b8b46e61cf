//! Reports of settings that cannot be followed: fields of resources, a datastore that does not
//! answer or is none that is read. And what is read live: where health and metrics are served.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use caracal_lab::{
    Lab, ProgramOutput as Output, netns_path, program_command, program_output, run_in_netns,
    scaled_time as scaled, wait_until,
};
use caracal_tests::{SECOND, await_settled, possible, run_on, up_text};
use serde_json::json;

use super::{TOPOLOGY, await_reported, felix};

/// The status of an answer on a port of node1, or why there is none.
fn probe(lab: &Lab, port: u16) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(60 * SECOND))?;
        write!(
            stream,
            "GET /livez HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let netns = lab.netns("node1").unwrap();
    let text = run_in_netns(&netns, ask).map_err(|e| e.to_string())?;
    let text = text.map_err(|e| e.to_string())?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn await_ports(lab: &Lab, open: &[u16], shut: &[u16]) {
    let look = || {
        for port in open {
            match probe(lab, *port)? {
                head if head.contains("200") => {}
                other => return Err(format!("{port}: {other}")),
            }
        }
        for port in shut {
            if let Ok(answer) = probe(lab, *port) {
                return Err(format!("{port} answers {answer}"));
            }
        }
        Ok(())
    };
    let what = format!("{open:?} to answer and {shut:?} not to");
    wait_until(scaled(30 * SECOND), &what, look)
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)));
    println!("{open:?} answer, {shut:?} do not");
}

fn put(lab: &Lab, plural: &str, name: &str, kind: &str, spec: &serde_json::Value) {
    let key = format!("/calico/resources/v3/projectcalico.org/{plural}/{name}");
    let value = json!({"kind": kind, "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name.rsplit('/').next()}, "spec": spec});
    let _answer = lab
        .etcdctl(&["put", &key], value.to_string().as_bytes())
        .unwrap();
}

#[test]
fn settings_are_read_or_named() {
    if !possible("settings_are_read_or_named", &[]) {
        return;
    }
    let lab = up_text(TOPOLOGY, "settings", "settings-told");
    await_settled(&lab);
    await_ports(&lab, &[9099], &[9091]);
    felix(
        &lab,
        &json!({"healthPort": 9199, "prometheusMetricsEnabled": true, "prometheusMetricsPort": 9191,
            "awsSrcDstCheck": "Disable", "vxlanMtuu": 1400}),
    );
    await_ports(&lab, &[9199, 9191], &[9099]);
    await_reported(&lab, "agent.setting_without_effect", "awsSrcDstCheck");
    await_reported(&lab, "datastore.unknown_field", "did you mean vxlanMTU");
    felix(&lab, &json!({"healthPort": 99_999}));
    await_reported(&lab, "agent.invalid_setting", "healthPort");
    await_ports(&lab, &[9099], &[9199, 9191]);
    felix(&lab, &json!({}));

    put(
        &lab,
        "bgpfilters",
        "f",
        "BGPFilter",
        &json!({"exportV4": [{"cdir": "10.0.0.0/8", "action": "Accept"}]}),
    );
    await_reported(&lab, "datastore.unknown_field", "spec.exportV4[0].cdir");
    let endpoint =
        json!({"node": "node1", "interfaceName": "cali1", "qosControls": {"ingressBandwidth": 1}});
    put(
        &lab,
        "workloadendpoints",
        "default/w",
        "WorkloadEndpoint",
        &endpoint,
    );
    await_reported(&lab, "datastore.field_without_effect", "qosControls");
    let audit = lab
        .caracal_output("node1", &["audit"], 60 * SECOND)
        .unwrap();
    assert!(audit.stdout.contains("CRL-D004"), "{}", audit.stdout);
    let doctor = lab
        .caracal_output("node1", &["doctor"], 60 * SECOND)
        .unwrap();
    assert!(
        doctor.stdout.contains("did you mean cidr"),
        "{}",
        doctor.stdout
    );
}

/// The run directory of node1, and a library directory that no node has.
fn directories(lab: &Lab) -> [String; 2] {
    let folder = lab.folder();
    [
        format!("CARACAL_RUN_DIR={}", folder.run("node1").display()),
        format!("CARACAL_LIB_DIR={}", folder.path().join("told").display()),
    ]
}

/// Calls `caracal` on node1 with a datastore of its own choice; says how long it took.
fn timed(lab: &Lab, settings: &[&str], arguments: &[&str]) -> (Output, Duration) {
    let mut command = program_command("env").unwrap();
    command.args(["NODENAME=node1", "CARACAL_SECRETS_DIR="]);
    command.args(directories(lab));
    command.args(settings);
    command
        .arg(lab.folder().bin().join("caracal"))
        .args(arguments);
    let netns = lab.netns("node1").unwrap();
    let start = Instant::now();
    let output = program_output(Some(&netns), &mut command, b"", 120 * SECOND).unwrap();
    (output, start.elapsed())
}

/// Calls the IPAM plugin with a datastore of its own choice; what it says, and how long it took.
fn plugin(lab: &Lab, verb: &str, endpoint: &str) -> (String, Duration) {
    let node = lab
        .layout()
        .nodes
        .iter()
        .find(|n| n.name.as_str() == "node1");
    let mut config = caracal_lab::network_config(node.unwrap());
    config["cniVersion"] = json!("1.1.0");
    config["etcd_endpoints"] = json!(endpoint);
    let netns = lab.netns("node1").unwrap();
    let mut command = program_command("env").unwrap();
    command.arg(format!("CNI_COMMAND={verb}"));
    command.args(["CNI_CONTAINERID=c0ffee", "CNI_IFNAME=eth0"]);
    command.arg(format!("CNI_NETNS={}", netns_path(&netns).display()));
    command.arg(format!("CNI_PATH={}", lab.folder().bin().display()));
    command.args(directories(lab));
    command.arg(lab.folder().bin().join("caracal-ipam"));
    let start = Instant::now();
    let stdin = config.to_string();
    let output = program_output(Some(&netns), &mut command, stdin.as_bytes(), 120 * SECOND);
    let output = output.unwrap();
    assert!(!output.status.success(), "{verb}: {}", output.stdout);
    (
        format!("{}{}", output.stdout, output.stderr),
        start.elapsed(),
    )
}

/// Every command that reads the datastore, and `node`, which does so first.
const COMMANDS: [&[&str]; 9] = [
    &["ipam", "show"],
    &["ipam", "check"],
    &["mode", "plan", "default", "--vxlan", "Always"],
    &["topology", "plan", "--mesh"],
    &["topology", "apply", "--mesh"],
    &["services", "show"],
    &["render", "--node", "node1"],
    &["doctor"],
    &["migrate", "plan"],
];

#[test]
fn a_dead_datastore_is_told_alike_by_every_command() {
    if !possible("a_dead_datastore_is_told_alike_by_every_command", &["nft"]) {
        return;
    }
    let lab = up_text(TOPOLOGY, "settings", "settings-dead");
    await_settled(&lab);
    let etcd = lab
        .layout()
        .nodes
        .iter()
        .find(|n| n.name.as_str() == "node1");
    let healthy = format!("ETCD_ENDPOINTS={}", etcd.unwrap().etcd_endpoint);
    run_on(&lab, "outside", "nft add table inet t");
    run_on(
        &lab,
        "outside",
        "nft add chain inet t i { type filter hook input priority 0 ; }",
    );
    run_on(&lab, "outside", "nft add rule inet t i tcp dport 2379 drop");
    let (refusing, dropping) = (
        "ETCD_ENDPOINTS=http://10.0.0.31:2380",
        "ETCD_ENDPOINTS=http://10.0.0.31:2379",
    );
    let short = caracal_datastore::PATIENCE;
    for command in &COMMANDS {
        let said = |settings: &[&str]| {
            let (output, took) = timed(&lab, settings, command);
            (
                format!("{}{}", output.stdout, output.stderr),
                output.status.success(),
                took,
            )
        };
        let (text, _, took) = said(&[&healthy]);
        assert!(!text.contains("WARN"), "{command:?} after success: {text}");
        println!("{command:?}: {took:?} with a datastore that is well");

        let (text, fine, took) = said(&[refusing]);
        assert!(text.contains("10.0.0.31:2380"), "{command:?}: {text}");
        assert!(
            text.to_lowercase().contains("connection refused"),
            "{command:?}: {text}"
        );
        assert!(!fine, "{command:?}: {text}");
        assert!(
            took < scaled(short),
            "{command:?}: {took:?} for a refusal\n{text}"
        );
        println!("{command:?}: {took:?} until the refusal was told");

        let (text, fine, took) = said(&[dropping]);
        assert!(
            text.contains("no answer within 5000 ms"),
            "{command:?}: {text}"
        );
        assert!(!fine, "{command:?}: {text}");
        assert!(
            took >= short && took < short + scaled(short),
            "{command:?}: {took:?}\n{text}"
        );
        println!("{command:?}: {took:?} until the silence was told");

        let (text, fine, _) = said(&["DATASTORE_TYPE=consul", &healthy]);
        assert!(
            text.contains("expected etcdv3, with ETCD_ENDPOINTS"),
            "{command:?}: {text}"
        );
        assert!(!fine, "{command:?}: {text}");
    }
    for verb in ["ADD", "STATUS"] {
        let (text, took) = plugin(&lab, verb, "http://10.0.0.31:2380");
        assert!(
            text.to_lowercase().contains("connection refused"),
            "{verb}: {text}"
        );
        assert!(took < scaled(short), "{verb}: {took:?}\n{text}");
        let (text, took) = plugin(&lab, verb, "http://10.0.0.31:2379");
        assert!(text.contains("no answer within 5000 ms"), "{verb}: {text}");
        assert!(
            took >= short && took < short + scaled(short),
            "{verb}: {took:?}\n{text}"
        );
        println!("caracal-ipam {verb}: {took:?} until the silence was told");
    }
    // The daemon refuses before it touches anything.
    let run_dir = format!(
        "CARACAL_RUN_DIR={}",
        lab.folder().path().join("told").display()
    );
    let settings = ["DATASTORE_TYPE=consul", &healthy, &run_dir];
    let (output, _) = timed(&lab, &settings, &["node"]);
    assert!(
        output
            .stderr
            .contains("expected etcdv3, with ETCD_ENDPOINTS"),
        "{}",
        output.stderr
    );
    assert!(!output.status.success());
}
