//! What a change would do, for the console: the plans of `caracal mode plan` and `caracal topology
//! plan`, made of this node's snapshot. Nothing is written, and nothing is tried in the kernel:
//! what it was not found unable to do, it is taken to be able to do.

use caracal_agent::{Assumed, InterfacePattern, host_mtu};
use caracal_model::Snapshot;
use caracal_topologies::{ClusterSessions, RACK_LABEL, TopologyChoice, ZONE_LABEL};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{Owners, words};
use crate::admin::routes::text;
use crate::admin::{Answered, AskMode, AskTopology};
use crate::config::{Backend, Config};
use crate::exit::{ExitError, NOT_FOUND, REFUSED};
use crate::node::plans::mode::{ModeError, ModePlan, Modes, change_json, ways_json};
use crate::node::plans::topology::{
    KnownPasswords, TopologyPlan, TopologySwitch, check_tuning, missing_json, most_sessions,
    peer_names, session_count, session_lines,
};
use crate::node::plans::{DRAWN, MOST_NODES, label};

/// Plans under way: one takes a processor for a while, also when nobody waits for it any more.
static PLANS: Semaphore = Semaphore::const_new(1);
/// Findings that are listed; all are counted.
const LISTED: usize = 200;

/// A plan, or why there is none.
type Planned = Result<Value, ExitError>;

/// A pool with other modes, on each node. What it keeps is large: whoever awaits it boxes it.
pub(super) async fn mode(owners: &Owners, question: AskMode) -> Result<Answered, String> {
    let kernel = owners.kernel.borrow().clone();
    let assumed = Assumed {
        mtu: host_mtu(&kernel.links, None, &InterfacePattern::default()),
        kernel: kernel.support.clone(),
    };
    aside(owners, question.command(), move |snapshot| {
        mode_plan(snapshot, &question, &assumed)
    })
    .await
}

impl AskMode {
    /// The command that plans the same.
    fn command(&self) -> String {
        let Self { pool, ipip, vxlan } = self;
        format!("caracal mode plan {pool} --ipip {ipip} --vxlan {vxlan}")
    }
}

impl AskTopology {
    /// The command that plans the same.
    fn command(&self) -> String {
        let what = if self.auto { "--auto" } else { "--mesh" };
        let mut command = format!("caracal topology plan {what}");
        for (name, value) in [
            ("limit", self.limit),
            ("reflectors", self.reflectors),
            ("levels", self.levels),
        ] {
            if let Some(value) = value {
                command.push_str(&format!(" --{name} {value}"));
            }
        }
        command
    }
}

/// The mesh, or elected reflectors.
pub(super) async fn topology(
    owners: &Owners,
    config: &Config,
    question: AskTopology,
) -> Result<Answered, String> {
    let no_bgp = config.backend != Backend::Bird;
    aside(owners, question.command(), move |snapshot| {
        topology_plan(snapshot, &question, no_bgp)
    })
    .await
}

/// Plans on a thread of its own.
async fn aside(
    owners: &Owners,
    command: String,
    plan: impl FnOnce(&Snapshot) -> Planned + Send + 'static,
) -> Result<Answered, String> {
    let turn = PLANS.acquire().await.map_err(text)?;
    let snapshot = owners.view.borrow().snapshot.clone();
    if let Some(refused) = too_large(snapshot.nodes.len(), &command) {
        return Ok(Answered::Refused(refused));
    }
    let planned = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        plan(&snapshot)
    });
    Ok(match planned.await.map_err(text)? {
        Ok(plan) => words::answer_of(&owners.store, plan).into(),
        Err(refused) => Answered::Refused(refused),
    })
}

/// Why a cluster of so many nodes is not planned here, and what plans it. A plan is of all nodes,
/// and of all pairs of them: it would take a processor of this node for seconds.
fn too_large(nodes: usize, command: &str) -> Option<ExitError> {
    let reason = format!(
        "the cluster has {nodes} nodes, and a node plans at most {MOST_NODES} for its console, since more would take its processor for seconds; this plans them in a process of its own: {command}"
    );
    (nodes > MOST_NODES).then(|| ExitError::new(REFUSED, reason))
}

fn mode_plan(snapshot: &Snapshot, question: &AskMode, assumed: &Assumed) -> Planned {
    let modes = Modes {
        ipip: Some(question.ipip),
        vxlan: Some(question.vxlan),
    };
    let plan = ModePlan::new(snapshot, &question.pool, modes, assumed).map_err(|error| {
        let code = match error {
            ModeError::NoPool { .. } => NOT_FOUND,
            ModeError::Invalid { .. } => REFUSED,
        };
        ExitError::new(code, error.to_string())
    })?;
    let nodes = plan.nodes.iter().map(|(name, change)| {
        let mut value = change_json(change);
        value["node"] = name.to_string().into();
        value["group"] = label(snapshot, name, ZONE_LABEL).into();
        value["rack"] = label(snapshot, name, RACK_LABEL).into();
        value
    });
    let ways = plan.ways.iter();
    let ways =
        ways.map(|((from, to), ways)| json!({"from": from, "to": to, "routes": ways_json(ways)}));
    let stranded = plan.stranded();
    let told = stranded.iter().take(LISTED);
    let told = told.map(|(node, reason)| json!({"node": node, "reason": reason}));
    let (before, after) = &plan.pool;
    Ok(json!({
        "change": plan.summary,
        "revision": snapshot.revision,
        "pool": question.pool,
        "before": {"ipipMode": before.spec.ipip_mode, "vxlanMode": before.spec.vxlan_mode},
        "after": {"ipipMode": after.spec.ipip_mode, "vxlanMode": after.spec.vxlan_mode},
        "nodes": nodes.collect::<Vec<_>>(),
        "ways": ways.collect::<Vec<_>>(),
        "waysOmitted": plan.nodes.len() > DRAWN,
        "refused": told.collect::<Vec<_>>(),
        "refusedCount": stranded.len(),
    }))
}

fn topology_plan(snapshot: &Snapshot, question: &AskTopology, no_bgp: bool) -> Planned {
    let refused = |reason: String| ExitError::new(REFUSED, reason);
    let switch = match question.auto {
        true => TopologySwitch::Auto {
            limit: question.limit,
            reflectors: question.reflectors,
            levels: question.levels,
        },
        false => TopologySwitch::Mesh,
    };
    let mut after = snapshot.clone();
    switch.make(&mut after).map_err(refused)?;
    check_tuning(&after).map_err(refused)?;
    let plan = TopologyPlan::new(snapshot, &after, &KnownPasswords::new(), no_bgp);
    let (old, new) = (&plan.before, &plan.after);
    let nodes = plan.nodes().into_iter().map(|node| {
        let (was, is) = (peer_names(old, node), peer_names(new, node));
        json!({
            "node": node,
            "group": label(snapshot, node, ZONE_LABEL),
            "rack": label(snapshot, node, RACK_LABEL),
            "before": session_count(old, node),
            "after": session_count(new, node),
            "appear": is.difference(&was).count(),
            "disappear": was.difference(&is).count(),
            "role": plan.role(node),
        })
    });
    let nodes: Vec<Value> = nodes.collect();
    let is_large = nodes.len() > DRAWN;
    let missing = plan.missing.iter().take(LISTED).map(missing_json);
    let assumed = plan.assumed.iter();
    let assumed = assumed.map(|secret| json!({"name": secret.name, "key": secret.key}));
    Ok(json!({
        "change": summary(&plan, question),
        "revision": snapshot.revision,
        "sessionsBefore": old.count(),
        "sessionsAfter": new.count(),
        "mostBefore": most_sessions(old),
        "mostAfter": most_sessions(new),
        "nodes": nodes,
        "sessions": if is_large { Vec::new() } else { lines(old, new) },
        "sessionsOmitted": is_large,
        "missing": missing.collect::<Vec<_>>(),
        "missingCount": plan.missing.len(),
        "missingNow": plan.missing_now,
        "assumedPasswords": assumed.collect::<Vec<_>>(),
    }))
}

fn summary(plan: &TopologyPlan, question: &AskTopology) -> String {
    let is = match (&plan.choice, question.auto) {
        (TopologyChoice::Mesh, _) => "automatic reflection, with nodes few enough for a mesh",
        (TopologyChoice::Reflectors(_), _) => "elected route reflectors",
        (TopologyChoice::Off, _) => "the mesh between all nodes",
    };
    let (before, after) = (plan.before.count(), plan.after.count());
    format!("{is}: sessions {before} → {after}")
}

/// Sessions before and after.
fn lines(before: &ClusterSessions, after: &ClusterSessions) -> Vec<Value> {
    let line = |((from, to), [before, after]): ((String, String), [bool; 2])| {
        let change = match (before, after) {
            (true, true) => "stays",
            (true, false) => "disappears",
            _ => "appears",
        };
        json!({"from": from, "to": to, "change": change})
    };
    let lines = session_lines(before, after);
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use caracal_model::EncapMode;

    use super::*;

    /// Nodes of two zones and two subnets, each with a block of a pool without encapsulation.
    fn cluster(count: usize) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut put = |path: String, value: Value| {
            let text = value.to_string();
            snapshot.apply(&path, Some(text.as_bytes()), 7);
        };
        let resource = |kind: &str, name: &str| {
            format!("/calico/resources/v3/projectcalico.org/{kind}/{name}")
        };
        put(
            resource("ippools", "p"),
            json!({"metadata": {"name": "p"}, "spec": {"cidr": "10.128.0.0/9", "ipipMode": "Always"}}),
        );
        for n in 0..count {
            let (name, zone) = (format!("n{n:04}"), format!("z{}", n % 2));
            let address = format!("10.{}.{}.{}/17", n % 2, n / 250, n % 250 + 1);
            let labels = json!({ZONE_LABEL: zone});
            put(
                resource("nodes", &name),
                json!({"metadata": {"name": name, "labels": labels}, "spec": {"bgp": {"ipv4Address": address}}}),
            );
            let cidr = format!("10.{}.{}.0/26", 128 + n / 256, n % 256);
            let cidr = cidr.parse().expect("a prefix");
            let owner = caracal_model::BlockOwner::Host(name.as_str().into());
            let block = caracal_model::Block::new(cidr, Some(&owner), 1);
            let value = serde_json::from_slice(&block.to_json()).expect("JSON");
            put(caracal_model::Key::Block(cidr).to_path(), value);
        }
        snapshot
    }

    fn assumed() -> Assumed {
        Assumed {
            mtu: 1500,
            kernel: caracal_agent::KernelSupport::default(),
        }
    }

    fn ask(pool: &str, ipip: EncapMode, vxlan: EncapMode) -> AskMode {
        let pool = pool.to_owned();
        AskMode { pool, ipip, vxlan }
    }

    const MESH: AskTopology = AskTopology {
        auto: false,
        limit: None,
        reflectors: None,
        levels: None,
    };

    #[test]
    fn a_mode_is_told_by_node_and_by_pair() {
        let snapshot = cluster(3);
        let plan = mode_plan(
            &snapshot,
            &ask("p", EncapMode::Never, EncapMode::CrossSubnet),
            &assumed(),
        );
        let plan = plan.expect("a plan");
        assert_eq!(plan["refusedCount"], 0, "{plan}");
        assert_eq!(plan["before"]["ipipMode"], "Always");
        assert_eq!(plan["after"]["vxlanMode"], "CrossSubnet");
        let way = |from: &str, to: &str| {
            let ways = plan["ways"].as_array().into_iter().flatten();
            let mut found = ways.filter(|way| way["from"] == from && way["to"] == to);
            found.next().map(|way| way["routes"].clone())
        };
        // n0000 and n0002 are in one subnet.
        let routes = |to: &str| Some(json!([{"from": "ipip", "to": to, "count": 1}]));
        assert_eq!(way("n0000", "n0002"), routes("direct"), "{plan}");
        assert_eq!(way("n0000", "n0001"), routes("vxlan"));
        assert_eq!(way("n0000", "n0000"), None);
        assert_eq!(plan["nodes"][0]["devicesGo"], json!(["tunl0"]));
        assert_eq!(plan["nodes"][1]["group"], "z1");
    }

    #[test]
    fn who_has_too_many_nodes_is_told_the_command() {
        let reflectors = AskTopology {
            auto: true,
            limit: Some(50),
            levels: Some(2),
            ..MESH
        };
        assert!(too_large(MOST_NODES, &MESH.command()).is_none());
        for (command, wanted) in [
            (MESH.command(), "caracal topology plan --mesh"),
            (
                reflectors.command(),
                "caracal topology plan --auto --limit 50 --levels 2",
            ),
            (
                ask("p", EncapMode::Never, EncapMode::CrossSubnet).command(),
                "caracal mode plan p --ipip Never --vxlan CrossSubnet",
            ),
        ] {
            let refused = too_large(MOST_NODES + 1, &command).expect("a refusal");
            assert_eq!(refused.code, REFUSED);
            assert!(
                refused.reason.starts_with("the cluster has 501 nodes"),
                "{refused:?}"
            );
            assert!(refused.reason.ends_with(wanted), "{refused:?}");
        }
    }

    #[test]
    fn what_strands_a_node_is_a_finding_and_what_is_not_there_has_a_reason() {
        let snapshot = cluster(3);
        let unable = Assumed {
            kernel: caracal_agent::KernelSupport {
                vxlan: Err("Operation not supported".to_owned()),
                ..caracal_agent::KernelSupport::default()
            },
            ..assumed()
        };
        let vxlan = ask("p", EncapMode::Never, EncapMode::Always);
        let plan = mode_plan(&snapshot, &vxlan, &unable).expect("a plan");
        assert!(plan["refusedCount"].as_u64() >= Some(3), "{plan}");
        let reason = plan["refused"][0]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("no vxlan module"), "{plan}");
        let nobodys = ask("q", EncapMode::Never, EncapMode::Never);
        let refused = mode_plan(&snapshot, &nobodys, &assumed()).expect_err("no pool");
        assert_eq!(refused.code, NOT_FOUND);
        assert!(refused.reason.contains("the pools are: p"), "{refused}");
    }

    #[test]
    fn a_topology_is_told_by_node_and_by_session() {
        let snapshot = cluster(10);
        let auto = AskTopology {
            auto: true,
            limit: Some(2),
            reflectors: Some(1),
            levels: None,
        };
        let plan = topology_plan(&snapshot, &auto, false).expect("a plan");
        assert_eq!(plan["sessionsBefore"], 45);
        assert_eq!(plan["missingCount"], 0, "{plan}");
        let lines = plan["sessions"].as_array().cloned().unwrap_or_default();
        let of = |change: &str| lines.iter().filter(|line| line["change"] == change).count();
        assert_eq!(of("stays") + of("disappears"), 45);
        assert_eq!(Some(of("stays") as u64), plan["sessionsAfter"].as_u64());
        assert_eq!(plan["nodes"][0]["before"], 9);
        let refused = topology_plan(
            &snapshot,
            &AskTopology {
                limit: Some(0),
                ..auto
            },
            false,
        );
        assert!(refused.is_err_and(|e| e.reason.contains("at least")));
        let plan = topology_plan(&snapshot, &MESH, true).expect("a plan");
        assert_eq!(plan["sessionsAfter"], 0, "the node speaks no BGP");
        assert_eq!(plan["missingCount"], 90);
        assert_eq!(plan["missingNow"], 90);
    }

    /// Nobody draws thousands of lines, and nobody sends them.
    #[test]
    fn a_large_cluster_is_told_in_numbers() {
        let snapshot = cluster(DRAWN + 1);
        let plan = topology_plan(&snapshot, &MESH, false).expect("a plan");
        assert_eq!(plan["sessionsBefore"], 5050);
        assert_eq!(plan["sessions"], json!([]));
        assert_eq!(plan["sessionsOmitted"], true);
        let none = ask("p", EncapMode::Never, EncapMode::Never);
        let plan = mode_plan(&snapshot, &none, &assumed()).expect("a plan");
        assert_eq!(plan["ways"], json!([]));
        assert_eq!(plan["nodes"].as_array().map(Vec::len), Some(DRAWN + 1));
        // One finding a node, all nodes of the other subnet in it.
        assert_eq!(plan["refusedCount"], 101, "{}", plan["refused"]);
    }
}
