//! The set `calico`: every statement of the six files, over one cluster that uses all features, and
//! what the real BIRD 1.6 says of them.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use caracal_model::Snapshot;
use caracal_templates::{Rendered, Set, Templates};
use caracal_topologies::{
    CalicoPlan, PlanOptions, Resources, assign_block, plan_calico, resources_from_yaml,
};

const CLUSTER: &str = include_str!("data/cluster.yaml");

/// Documents over the cluster's, and the blocks of node `a`.
struct Case {
    node: &'static str,
    changes: Vec<String>,
    blocks: &'static [&'static str],
}

impl Default for Case {
    fn default() -> Self {
        Self {
            node: "a",
            changes: Vec::new(),
            blocks: &[
                "10.244.1.64/26",
                "10.244.1.192/26",
                "10.244.7.7/32",
                "fd00:10::/122",
            ],
        }
    }
}

impl Case {
    fn with(document: impl Into<String>) -> Self {
        Self {
            changes: vec![document.into()],
            ..Self::default()
        }
    }

    fn data(&self) -> (Snapshot, Resources) {
        let mut snapshot = Snapshot::default();
        let text = std::iter::once(CLUSTER).chain(self.changes.iter().map(String::as_str));
        let resources = resources_from_yaml(&text.collect::<Vec<_>>().join("\n---\n")).unwrap();
        assert_eq!(resources.apply(&mut snapshot), []);
        for block in self.blocks {
            assign_block(&mut snapshot, &self.node.into(), block.parse().unwrap());
        }
        (snapshot, resources)
    }

    fn planned(&self) -> CalicoPlan {
        let (snapshot, resources) = self.data();
        let options = PlanOptions {
            secrets: resources.secrets,
            show_passwords: true,
            ..PlanOptions::default()
        };
        plan_calico(&snapshot, &self.node.into(), &options)
    }

    fn files(&self) -> Vec<Rendered> {
        let templates = Templates::shipped(Set::Calico);
        templates.files(&self.planned().context).unwrap()
    }

    fn file(&self, name: &str) -> String {
        let files = self.files();
        files.into_iter().find(|f| f.file == name).unwrap().text
    }
}

/// BGPConfiguration `default` with other fields.
fn configuration(spec: &str) -> String {
    format!("{{kind: BGPConfiguration, metadata: {{name: default}}, spec: {spec}}}")
}

/// The part of a text from a line that begins with `start` to the end of its braces.
fn section(text: &str, start: &str) -> String {
    let at = text
        .find(start)
        .unwrap_or_else(|| panic!("no {start:?} in\n{text}"));
    let mut depth = 0;
    for (index, c) in text[at..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return text[at..=at + index].to_owned(),
            '}' => depth -= 1,
            _ => {}
        }
    }
    panic!("{start:?} has no end")
}

/// All lines stand in the text in this order.
fn has(text: &str, lines: &[&str]) {
    let mut found = text.lines().map(str::trim);
    for line in lines {
        assert!(
            found.any(|l| l == *line),
            "no {line:?} (in this order) in\n{text}"
        );
    }
}

fn has_not(text: &str, part: &str) {
    assert!(!text.contains(part), "{part:?} in\n{text}");
}

#[test]
fn six_files() {
    let files = Case::default().files();
    let names: Vec<_> = files.iter().map(|f| f.file.as_str()).collect();
    assert_eq!(
        names,
        [
            "bird.cfg",
            "bird_aggr.cfg",
            "bird_ipam.cfg",
            "bird6.cfg",
            "bird6_aggr.cfg",
            "bird6_ipam.cfg"
        ]
    );
    has(
        &files[0].text,
        &["include \"bird_aggr.cfg\";", "include \"bird_ipam.cfg\";"],
    );
    has(
        &files[3].text,
        &["include \"bird6_aggr.cfg\";", "include \"bird6_ipam.cfg\";"],
    );
    let problems = Case::default().planned().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].code, "bgp.filter_missing");
}

#[test]
fn global_part() {
    let text = Case::default().file("bird.cfg");
    has(
        &text,
        &[
            "router id 10.0.0.1;",
            "listen bgp address 10.0.0.1 port 1790;",
        ],
    );
    has(
        &section(&text, "protocol kernel"),
        &[
            "debug all;",
            "learn;",
            "persist;",
            "scan time 2;",
            "import all;",
            "export filter calico_kernel_programming;",
            "graceful restart;",
            "merge paths on;",
        ],
    );
    has(&section(&text, "protocol device"), &["scan time 2;"]);
    has(
        &section(&text, "protocol direct"),
        &["interface -\"docker*\", -\"lxc0\", -\"cali*\", -\"kube-ipvs*\", \"*\";"],
    );
    has(
        &section(&text, "template bgp bgp_template"),
        &[
            "local as 64600;",
            "gateway recursive;",
            "add paths on;",
            "graceful restart;",
            "connect delay time 2;",
            "connect retry time 5;",
            "error wait time 5,30;",
        ],
    );
    // The IPv6 daemon has the IPv4 router id.
    let six = Case::default().file("bird6.cfg");
    has(
        &six,
        &[
            "router id 10.0.0.1;",
            "listen bgp address fd00::1 port 1790;",
        ],
    );
}

#[test]
fn log_levels() {
    let text = |level: &str| Case::with(configuration(level)).file("bird.cfg");
    let usual = text("{}");
    has(&section(&usual, "protocol kernel"), &["debug { states };"]);
    has(
        &section(&usual, "template bgp"),
        &["debug { states, routes, filters, events };"],
    );
    has_not(&text("{logSeverityScreen: None}"), "debug");
    let own = "{kind: BGPConfiguration, metadata: {name: node.a}, spec: {logSeverityScreen: None}}";
    has_not(&Case::with(own).file("bird.cfg"), "debug");
    has_not(&usual, "listen bgp");
    has_not(&text("{listenPort: 1790}"), "listen bgp address");
}

#[test]
fn mesh_peers() {
    let text = Case::default().file("bird.cfg");
    let peer = section(&text, "protocol bgp Mesh_10_0_0_2 ");
    has(
        &peer,
        &[
            "neighbor 10.0.0.2 port 1790 as 64600;",
            "ttl security off;",
            "multihop;",
            "source address 10.0.0.1;",
            "passive on;",
            "password \"s3cret\";",
            "graceful restart time 100;",
        ],
    );
    has(&peer, &["caracal_priority_from_bgp();", "accept;"]);
    has(
        &peer,
        &[
            "caracal_priority_to_bgp();",
            "calico_export_to_bgp_peers(true);",
            "reject;",
        ],
    );
    let other = section(&text, "protocol bgp Mesh_10_0_1_3 ");
    has(
        &other,
        &[
            "neighbor 10.0.1.3 port 1790 as 64601;",
            "calico_export_to_bgp_peers(false);",
        ],
    );
    let six = Case::default().file("bird6.cfg");
    has(
        &section(&six, "protocol bgp Mesh_fd00__2 "),
        &["source address fd00::1;"],
    );
    let b = Case {
        node: "b",
        ..Case::default()
    }
    .file("bird.cfg");
    has_not(&section(&b, "protocol bgp Mesh_10_0_0_1 "), "passive");
    has_not(
        &Case::with(configuration("{nodeToNodeMeshEnabled: false}")).file("bird.cfg"),
        "bgp Mesh_",
    );
}

#[test]
fn explicit_peers() {
    let text = Case::default().file("bird.cfg");
    has(
        &section(&text, "protocol bgp Node_192_168_9_1_port_1179 "),
        &[
            "neighbor 192.168.9.1 port 1179 as 65000;",
            "local as 64999;",
            "ttl security on;",
            "multihop 3;",
            "source address 10.0.0.1;",
            "password \"tor-pw\";",
            "graceful restart time 90;",
            "keepalive time 20;",
            "next hop keep;",
            "allow local as 2;",
            "import filter {",
            "'bgp_policy_importFilterV4'(false);",
            "caracal_priority_from_bgp();",
            "export filter {",
            "'bgp_policy_exportFilterV4'();",
            "calico_export_to_bgp_peers(false);",
        ],
    );
    let global = section(&text, "protocol bgp Global_192_168_9_2 ");
    has(
        &global,
        &["next hop self;", "'bgp_policy_importFilterV4'(true);"],
    );
    has_not(&global, "source address");
    let aggr = Case::default().file("bird_aggr.cfg");
    has(
        &section(&aggr, "protocol static"),
        &["route 192.168.9.1/32 via 10.0.0.254;"],
    );
    let other = "{kind: BGPPeer, metadata: {name: tor}, spec: {peerIP: 192.168.9.1, asNumber: 1, reachableBy: 'fd00::9'}}";
    let planned = Case::with(other).planned();
    assert!(planned.problems.iter().any(|p| p.code == "bgp.gateway"));
    assert_eq!(planned.context.ipv4.reachable_by, []);
}

#[test]
fn a_password_that_bird_cannot_write_leaves_its_peers_out() {
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: bgp}, stringData: {mesh: 'a\"; b', tor: fine}}";
    let case = Case::with(secret);
    let text = case.file("bird.cfg");
    has_not(&text, "bgp Mesh_");
    has(
        &section(&text, "protocol bgp Node_192_168_9_1_port_1179 "),
        &["password \"fine\";"],
    );
    assert!(
        case.planned()
            .problems
            .iter()
            .any(|p| p.code == "bgp.password")
    );
}

#[test]
fn reflectors() {
    let reflector = "{kind: Node, metadata: {name: a}, spec: {bgp: {ipv4Address: 10.0.0.1/24, routeReflectorClusterID: 244.0.0.1}}}\n---\n{kind: BGPPeer, metadata: {name: rr}, spec: {node: a, peerSelector: all()}}";
    let case = Case::with(reflector);
    let text = case.file("bird.cfg");
    has_not(&text, "bgp Mesh_");
    has(
        &section(&text, "protocol bgp Node_10_0_0_2_port_1790 "),
        &["rr client;", "rr cluster id 244.0.0.1;"],
    );
    has_not(
        &section(&text, "protocol bgp Node_10_0_1_3_port_1790 "),
        "rr client",
    );
    has(
        &section(
            &case.file("bird_ipam.cfg"),
            "function calico_export_to_bgp_peers",
        ),
        &[
            "if ( net ~ 10.96.0.0/12 ) then { accept; }",
            "if ( net ~ 192.0.2.0/24 ) then { accept; }",
            "if ( net ~ 198.51.100.0/24 ) then { accept; }",
        ],
    );
}

#[test]
fn no_address_no_bgp() {
    let case = Case {
        node: "c",
        ..Case::default()
    };
    let text = case.file("bird6.cfg");
    has(
        &text,
        &["# This node has no IPv6 address, so it speaks no BGP here."],
    );
    has_not(&text, "protocol bgp");
    has(&text, &["protocol kernel {"]);
}

#[test]
fn filters() {
    let text = Case::default().file("bird.cfg");
    has(
        &text,
        &[
            "# v4 BGPFilter policy",
            "function 'bgp_policy_importFilterV4'(bool is_same_as) {",
            "if (!is_same_as) then {",
            "if ((net ~ [ 10.9.0.0/16{20,30} ]) && ((1, 2) ~ bgp_community) && (bgp_path ~ [= 65000 65001 * =]) && (defined(bgp_local_pref) && (bgp_local_pref = 2147483135))) then {",
            "bgp_large_community.add((3, 4, 5));",
            "bgp_path.prepend(2);",
            "bgp_path.prepend(1);",
            "bgp_local_pref = 2147483547;",
            "accept;",
            "if (is_same_as) then {",
            "if ((net != 10.8.0.0/16)) then {",
            "reject;",
            "if ((net = 10.7.0.0/16)) then {",
            "function 'bgp_policy_exportFilterV4'() {",
            "if (((defined(source)) && (source ~ [ RTS_BGP ])) && ((defined(ifname)) && (ifname ~ \"eth*\"))) then {",
            "if ((net !~ 10.6.0.0/16)) then {",
            "accept;",
        ],
    );
    let six = Case::default().file("bird6.cfg");
    has(
        &six,
        &[
            "function 'bgp_policy_exportFilterV6'() {",
            "if ((net ~ fd00:99::/32)) then {",
        ],
    );
    has_not(&six, "importFilterV6");
    let none = "{kind: BGPFilter, metadata: {name: policy}, spec: {}}";
    has(
        &Case::with(none).file("bird.cfg"),
        &["# No v4 BGPFilters configured"],
    );
}

#[test]
fn export_policy_in_order() {
    let text = Case::default().file("bird_ipam.cfg");
    has(
        &section(&text, "function calico_export_to_bgp_peers"),
        &[
            "if ( net ~ 10.247.0.0/16 ) then { reject; }",
            "if (internal_peer) then {",
            "if ((defined(ifname)) && (ifname ~ \"*.cali\")) then { reject; }",
            "if ((defined(ifname)) && (ifname ~ \"*.calico\")) then { reject; }",
            "if ((defined(ifname)) && (ifname ~ \"tunl0\")) then { reject; }",
            "if ((defined(ifname)) && (ifname ~ \"bpf*.cali\")) then { reject; }",
            "apply_communities();",
            "calico_aggr();",
            "if ( ( net ~ 10.96.0.0/12 ) && ( source = RTS_STATIC ) ) then { accept; }",
            "if ( net ~ 10.244.0.0/16 ) then { accept; }",
            "if ( net ~ 10.245.0.0/16 ) then { accept; }",
            "if ( net ~ 10.246.0.0/16 ) then { accept; }",
        ],
    );
    has_not(&text, "if ( net ~ 10.247.0.0/16 ) then { accept; }");
    let text = Case::default().file("bird.cfg");
    has(
        &section(&text, "function apply_communities"),
        &[
            "if ( net ~ 10.244.0.0/16 ) then {",
            "bgp_community.add((64600, 7));",
            "bgp_large_community.add((64600, 1, 2));",
        ],
    );
    let six = Case::default().file("bird6.cfg");
    has(
        &section(&six, "function apply_communities"),
        &["bgp_community.add((64600, 9));"],
    );
}

#[test]
fn blocks() {
    let text = Case::default().file("bird_aggr.cfg");
    // In the order of their text, not of their addresses.
    has(
        &section(&text, "protocol static"),
        &[
            "route 10.244.1.192/26 blackhole;",
            "route 10.244.1.64/26 blackhole;",
        ],
    );
    has_not(&text, "route 10.244.7.7/32");
    has(
        &section(&text, "function calico_aggr"),
        &[
            "if ( net = 10.244.1.64/26 ) then { accept; }",
            "if ( ( net ~ 10.244.1.64/26 ) && ( source != RTS_BGP ) ) then {",
            "if (defined(krt_metric) && (krt_metric < 1024)) then { accept; }",
            "reject;",
            "if ( net = 10.244.7.7/32 ) then { accept; }",
        ],
    );
    let plain = Case {
        blocks: &[],
        ..Case::with(configuration("{}"))
    };
    let no_gateway =
        "{kind: BGPPeer, metadata: {name: tor}, spec: {peerIP: 192.168.9.1, asNumber: 1}}";
    let plain = Case {
        changes: vec![plain.changes[0].clone(), no_gateway.to_owned()],
        ..plain
    };
    let text = plain.file("bird_aggr.cfg");
    has(&text, &["# No static routes."]);
    has_not(&text, "protocol static");
}

#[test]
fn affinities_by_state() {
    let case = Case::default();
    let (mut snapshot, _) = case.data();
    for (block, state) in [
        ("10.244.1.64-26", "pending"),
        ("10.244.1.192-26", "pendingDeletion"),
    ] {
        let path = format!("/calico/ipam/v2/host/a/ipv4/block/{block}");
        snapshot.apply(
            &path,
            Some(format!("{{\"state\":\"{state}\"}}").as_bytes()),
            99,
        );
    }
    let planned = plan_calico(&snapshot, &"a".into(), &PlanOptions::default());
    let files = Templates::shipped(Set::Calico)
        .files(&planned.context)
        .unwrap();
    let text = &files[1].text;
    has_not(text, "10.244.1.64/26");
    has(
        text,
        &[
            "route 10.244.1.192/26 blackhole;",
            "# Block 10.244.1.192/26 is being given back.",
        ],
    );
    has_not(text, "net = 10.244.1.192/26");
}

#[test]
fn kernel_programming() {
    let text = Case::default().file("bird_ipam.cfg");
    let kernel = section(&text, "filter calico_kernel_programming");
    has(
        &kernel,
        &[
            "if ( net ~ 10.96.0.0/12 ) then { reject; }",
            "krt_metric = 1024;",
            "if (defined(bgp_local_pref)) then krt_metric = 2147483647 - bgp_local_pref;",
            "if (krt_metric < 1024) then preference = 200;",
            "if ((defined(bgp_next_hop)) && (bgp_next_hop = 10.0.0.2)) then { reject; }",
            "# Felix programs the routes of this pool",
            "if ( net ~ 10.244.0.0/16 ) then {",
            "reject;",
            "# VXLAN routes are programmed by Felix",
            "if ( net ~ 10.245.0.0/16 ) then {",
            "reject;",
            "if ( net ~ 10.246.0.0/16 ) then {",
            "accept;",
        ],
    );
    assert!(kernel.trim_end_matches('}').trim_end().ends_with("accept;"));
    let text = Case::with(configuration("{programClusterRoutes: Enabled}")).file("bird_ipam.cfg");
    has(
        &section(&text, "filter calico_kernel_programming"),
        &[
            "if ( net ~ 10.244.0.0/16 ) then {",
            "if ( defined(bgp_next_hop) && ( bgp_next_hop ~ 10.0.0.0/24 ) ) then",
            "krt_tunnel = \"\";",
            "else",
            "krt_tunnel = \"tunl0\";",
            "accept;",
        ],
    );
    has_not(&text, "ifname ~ \"tunl0\"");
    let off = Case::with(configuration("{programClusterRoutes: Disabled}")).file("bird_ipam.cfg");
    has(
        &section(&off, "filter calico_kernel_programming"),
        &["if ( net ~ 10.246.0.0/16 ) then {", "reject;"],
    );
    let six = Case::default().file("bird6_ipam.cfg");
    let kernel = section(&six, "filter calico_kernel_programming");
    has(&kernel, &["if ( net ~ fd00:11::/48 ) then {", "reject;"]);
    has_not(&kernel, "fd00:10::/48");
}

#[test]
fn priorities() {
    let text = Case::with(configuration("{ipv4NormalRoutePriority: 2048}")).file("bird.cfg");
    has(
        &text,
        &[
            "if (defined(bgp_local_pref)) then krt_metric = 2147483647 - bgp_local_pref;",
            "if (!defined(krt_metric)) then krt_metric = 2048;",
            "bgp_local_pref = 2147483647 - krt_metric;",
            "if (defined(bgp_local_pref) && (bgp_local_pref > 2147481599)) then preference = 200;",
        ],
    );
}

/// Removes what Calico's fork added to BIRD 1.6.
fn without_the_fork(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line = match line.trim() {
            "krt_tunnel = \"\";" => "preference = preference;",
            "krt_tunnel = \"tunl0\";" => "preference = 100;",
            _ => line,
        };
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// The programs `bird` and `bird6` of Debian's package `bird`, unpacked beside other build output.
fn bird16() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bird-1.6");
    let sbin = folder.join("usr/sbin");
    if sbin.join("bird6").exists() {
        return Ok(sbin);
    }
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let script = "apt-get -q download bird && dpkg -x bird_1.6*.deb .";
    let output = Command::new("/bin/sh")
        .args(["-c", script])
        .current_dir(&folder)
        .output()
        .map_err(|e| e.to_string())?;
    if output.status.success() && sbin.join("bird6").exists() {
        return Ok(sbin);
    }
    Err(format!(
        "no BIRD 1.6: {script}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

#[test]
fn bird_16_accepts_the_files() {
    let sbin = match bird16() {
        Ok(sbin) => sbin,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let folder = std::env::temp_dir().join(format!("caracal-bird16-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let complaint = |files: &[Rendered]| {
        for file in files {
            std::fs::write(folder.join(&file.file), without_the_fork(&file.text)).unwrap();
        }
        ["bird", "bird6"].iter().find_map(|daemon| {
            let output = Command::new(sbin.join(daemon))
                .args(["-p", "-c"])
                .arg(folder.join(format!("{daemon}.cfg")))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            (!output.status.success()).then(|| format!("{daemon}: {text}"))
        })
    };
    for case in [
        Case::default(),
        Case {
            node: "c",
            ..Case::default()
        },
        Case {
            blocks: &[],
            ..Case::with(configuration("{programClusterRoutes: Enabled}"))
        },
    ] {
        assert_eq!(complaint(&case.files()), None, "{}", case.node);
    }
    // A BIRD that accepts everything would prove nothing.
    let mut broken = Case::default().files();
    broken[0].text = broken[0].text.replace("router id", "router di");
    assert!(complaint(&broken).is_some());
    std::fs::remove_dir_all(&folder).unwrap();
}
