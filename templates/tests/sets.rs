//! User templates, their errors, and the sets for routers outside the cluster.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use caracal_model::Snapshot;
use caracal_templates::{Set, Templates};
use caracal_topologies::{
    CalicoContext, PlanOptions, Router, RouterError, plan_calico, resources_from_yaml, router,
};

fn snapshot(more: &str) -> (Snapshot, PlanOptions) {
    let text = format!("{}\n---\n{more}", include_str!("data/cluster.yaml"));
    let resources = resources_from_yaml(&text).unwrap();
    let mut snapshot = Snapshot::default();
    assert_eq!(resources.apply(&mut snapshot), []);
    let options = PlanOptions {
        secrets: resources.secrets,
        show_passwords: true,
        ..PlanOptions::default()
    };
    (snapshot, options)
}

fn calico_context() -> CalicoContext {
    let (snapshot, options) = snapshot("");
    plan_calico(&snapshot, &"a".into(), &options).context
}

#[test]
fn users_replace_and_add_templates() {
    let mut templates = Templates::shipped(Set::Calico);
    templates
        .add("dir/bird6_aggr.cfg.hbs", "# mine, {{family}}\n")
        .unwrap();
    templates
        .add(
            "dir/facts.txt.hbs",
            "{{node}} {{ipv4.router_id}} {{> one}}\n",
        )
        .unwrap();
    templates.add("dir/one.hbs", "{{ipv6.address}}").unwrap();
    let files = templates.files(&calico_context()).unwrap();
    let text = |name: &str| &files.iter().find(|f| f.file == name).unwrap().text;
    assert_eq!(text("bird6_aggr.cfg"), "# mine, ipv6\n");
    assert!(text("bird_aggr.cfg").starts_with("# Written by Caracal"));
    assert_eq!(text("facts.txt"), "a 10.0.0.1 fd00::1\n");
    assert_eq!(files.len(), 7);
}

#[test]
fn a_wrong_template_is_shown_with_its_place() {
    let mut templates = Templates::shipped(Set::Calico);
    let error = templates
        .add("dir/x.cfg.hbs", "fine\n{{#if node}}\n")
        .unwrap_err();
    assert_eq!(error.file, "dir/x.cfg.hbs");
    assert!(error.line >= 2, "{error}");

    let mut templates = Templates::shipped(Set::Calico);
    templates
        .add("dir/bird.cfg.hbs", "# ok\n  id {{router_idd}};\n")
        .unwrap();
    let error = templates.files(&calico_context()).unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("dir/bird.cfg.hbs", 2));
    let report = error.report();
    let lines: Vec<_> = report.lines().collect();
    assert!(lines[0].contains("router_idd"), "{report}");
    assert!(lines[1].contains("dir/bird.cfg.hbs:2:"), "{report}");
    assert_eq!(lines[3], " 2 |   id {{router_idd}};", "{report}");
    let caret = lines[4].find('^').unwrap() - " 2 | ".len();
    assert_eq!(caret, error.column - 1, "{report}");
    assert!(
        (5..=7).contains(&caret),
        "the caret is under the expression: {report}"
    );
}

#[test]
fn every_shipped_set_compiles() {
    for set in Set::ALL {
        assert!(!set.sources().is_empty());
        let _ = Templates::shipped(set);
    }
}

fn tor() -> (Router, String, String) {
    let (snapshot, options) = snapshot("");
    let router = router(&snapshot, "192.168.9.1".parse().unwrap(), &options).unwrap();
    let text = |set| {
        Templates::shipped(set)
            .files(&router)
            .unwrap()
            .remove(0)
            .text
    };
    let (frr, bird) = (text(Set::Frr), text(Set::Bird2Tor));
    (router, frr, bird)
}

#[test]
fn a_router_is_the_mirror_of_the_sessions() {
    let (router, frr, bird) = tor();
    assert_eq!((router.local_as, router.neighbors.len()), (65000, 1));
    for line in [
        "router bgp 65000",
        " neighbor 10.0.0.1 remote-as 64999",
        " neighbor 10.0.0.1 port 1790",
        " neighbor 10.0.0.1 ttl-security hops 3",
        " neighbor 10.0.0.1 password tor-pw",
        " neighbor 10.0.0.1 timers 20 60",
        "ip prefix-list caracal-ipv4 seq 10 permit 10.244.0.0/16 le 32",
    ] {
        assert!(frr.lines().any(|l| l == line), "no {line:?} in\n{frr}");
    }
    assert!(
        !frr.contains("10.247.0.0/16"),
        "a pool that is not exported"
    );
    for line in [
        "  local 192.168.9.1 as 65000;",
        "  neighbor 10.0.0.1 port 1790 as 64999;",
        "  password \"tor-pw\";",
    ] {
        assert!(bird.lines().any(|l| l == line), "no {line:?} in\n{bird}");
    }
}

#[test]
fn an_internal_router_reflects() {
    let (snapshot, options) = snapshot("");
    let router = router(&snapshot, "192.168.9.2".parse().unwrap(), &options).unwrap();
    // Node c has an AS of its own.
    let clients: Vec<_> = router
        .neighbors
        .iter()
        .map(|n| (n.node.as_str(), n.client))
        .collect();
    assert_eq!(clients, [("a", true), ("b", true), ("c", false)]);
    let frr = Templates::shipped(Set::Frr)
        .files(&router)
        .unwrap()
        .remove(0)
        .text;
    assert!(frr.contains("neighbor 10.0.0.2 route-reflector-client"));
    assert!(!frr.contains("neighbor 10.0.1.3 route-reflector-client"));
}

#[test]
fn a_router_that_nobody_peers_with_or_that_has_two_numbers() {
    let more = "{kind: BGPPeer, metadata: {name: x}, spec: {node: b, peerIP: '192.168.9.1:1179', asNumber: 65009}}";
    let (snapshot, options) = snapshot(more);
    let error = router(&snapshot, "192.168.9.9".parse().unwrap(), &options).unwrap_err();
    assert!(
        error.to_string().ends_with("192.168.9.1, 192.168.9.2"),
        "{error}"
    );
    let error = router(&snapshot, "192.168.9.1".parse().unwrap(), &options).unwrap_err();
    assert!(matches!(error, RouterError::TwoNumbers { .. }), "{error}");
}

/// `None` when the program is not there.
fn accepted(program: &str, args: &[&str], name: &str, text: &str) -> Option<Result<(), String>> {
    let file = std::env::temp_dir().join(format!("caracal-{}-{name}", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new(program)
        .args(args)
        .arg(&file)
        .stdin(Stdio::null())
        .output();
    std::fs::remove_file(&file).unwrap();
    let Ok(output) = output else {
        println!("skipped: no program {program:?}");
        return None;
    };
    let said = [output.stdout, output.stderr].concat();
    Some(if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&said).into_owned())
    })
}

#[test]
fn the_real_daemons_accept_the_files() {
    let (_, frr, bird) = tor();
    let (snapshot, options) = snapshot("");
    let internal = router(&snapshot, "192.168.9.2".parse().unwrap(), &options).unwrap();
    let reflector = Templates::shipped(Set::Bird2Tor)
        .files(&internal)
        .unwrap()
        .remove(0)
        .text;
    for text in [&bird, &reflector] {
        if let Some(answer) = accepted("bird", &["-p", "-c"], "tor.conf", text) {
            assert_eq!(answer, Ok(()), "{text}");
        }
    }
    if let Some(answer) = accepted("vtysh", &["-C", "-f"], "frr.conf", &frr) {
        assert_eq!(answer, Ok(()), "{frr}");
    }
}
