//! `caracal migrate plan`: the agent's own plan for this node, compared with the kernel as Calico
//! left it.
//!
//! BGP has not spoken yet, so the routes that it will bring are taken from the datastore: each
//! block from its node, by the way on which the node is reached.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use caracal_agent::{
    Actual, AdoptionItem, Desired, Fate, ForeignRules, HostRoutes, Learned, Ownership, PlanInputs,
    RuleOwner, Settings, adoption_report, plan, wanted_tunnels,
};
use caracal_datastore::Datastore;
use caracal_model::{Family, Node, NodeName, Prefix, ProblemCode, SharedMap, Snapshot};
use serde_json::json;

use crate::args::Output;
use crate::cli::doctor::machine::listener_on;
use crate::cli::ipam::refuse;
use crate::cli::{in_this_namespace, read_everything, table};
use crate::config::Config;

/// Directory of Calico's and our CNI configuration.
const CNI_CONF_DIR: &str = "/etc/cni/net.d";

pub(super) fn run(output: Output) -> anyhow::Result<ExitCode> {
    let config = crate::node::read_config()?;
    in_this_namespace(async {
        let (store, snapshot) = read_everything().await?;
        let mut items = vec![data(&store)];
        items.extend(around(&config, &snapshot));
        items.extend(policies(&snapshot));
        items.extend(rules_of_felix(config.enforces_policy).await);
        let actual = caracal_agent::read_kernel()
            .await
            .context("reading the kernel's state")?;
        let desired = desired(&snapshot, &config, &actual).await?;
        items.extend(workloads(&snapshot, &config.node, &actual, &desired));
        items.extend(adoption_report(&desired, &actual));
        let problems: Vec<String> = desired
            .problems
            .iter()
            .map(|problem| format!("{}: {}", problem.subject, problem.reason))
            .collect();
        match output {
            Output::Json | Output::Yaml => output.print(&as_json(&config.node, &items, &problems)),
            Output::Table | Output::Wide => show(&items, &problems),
        }
        let lossy = items
            .iter()
            .filter(|item| item.fate == Fate::Remade)
            .count();
        Ok(match lossy {
            0 => ExitCode::SUCCESS,
            lossy => refuse(&format!(
                "{lossy} object(s) would have to be made anew, and packets would be lost meanwhile; the reasons are above"
            )),
        })
    })
}

async fn desired(snapshot: &Snapshot, config: &Config, actual: &Actual) -> anyhow::Result<Desired> {
    let built_in = Settings {
        objects: config.next_hop_objects,
        ..Settings::default()
    };
    let (settings, _) = Settings::resolve(&built_in, snapshot, &config.node, &config.felix);
    let wanted = wanted_tunnels(snapshot, &settings);
    let kernel = caracal_agent::kernel_support(wanted)
        .await
        .context("asking what the kernel can do")?;
    let inputs = PlanInputs {
        lifelines: &BTreeSet::new(),
        snapshot,
        me: &config.node,
        learned: &announced(snapshot, &config.node),
        links: &actual.links,
        host_routes: &HostRoutes::from_kernel(
            actual,
            &Ownership::from_settings(&settings, snapshot),
        ),
        settings: &settings,
        kernel: &kernel,
    };
    let learned = inputs.resolved();
    Ok(plan(&PlanInputs {
        learned: &learned,
        ..inputs
    }))
}

/// Routes that the other nodes will announce: their blocks.
fn announced(snapshot: &Snapshot, me: &NodeName) -> SharedMap<Prefix, Learned> {
    let address = |node: &NodeName, family: Family| snapshot.nodes.get(node)?.spec.address(family);
    let blocks = snapshot.blocks.iter().filter_map(|(cidr, block)| {
        let owner = block.host().filter(|owner| *owner != me)?;
        let hop = address(owner, cidr.family())?;
        Some((*cidr, Learned::internal(hop)))
    });
    blocks.collect()
}

/// Where Calico's data were read, and will be read by the node.
fn data(store: &Datastore) -> AdoptionItem {
    let object = format!("{} {}", store.kind(), store.endpoints());
    let reason = match store {
        Datastore::Etcd(_) => "Calico's data stay where they are",
        Datastore::Kubernetes(_) => {
            "Calico's custom resources, and annotations of Nodes and pods, stay where they are; its kinds stay its own"
        }
    };
    AdoptionItem::new("datastore", object, Fate::Adopted, reason)
}

/// Items outside the kernel: the Node, pools, the CNI configuration, a BIRD that still runs.
fn around(config: &Config, snapshot: &Snapshot) -> Vec<AdoptionItem> {
    let mut items = vec![match snapshot.nodes.get(&config.node) {
        Some(node) => {
            AdoptionItem::new("node", config.node.to_string(), Fate::Adopted, facts(node))
        }
        None => AdoptionItem::new(
            "node",
            config.node.to_string(),
            Fate::Added,
            "the datastore has no such Node; check NODENAME: Calico's is in /var/lib/calico/nodename",
        ),
    }];
    for (name, pool) in &snapshot.pools {
        let spec = &pool.spec;
        let modes = format!(
            "ipipMode {:?}, vxlanMode {:?}",
            spec.ipip_mode, spec.vxlan_mode
        );
        let object = format!("{name} {}", spec.cidr);
        items.push(AdoptionItem::new("pool", object, Fate::Adopted, modes));
    }
    if let Some(owner) = listener_on(179) {
        let reason = format!(
            "{owner} listens on TCP 179: stop calico-node first, or two speakers write the same routes"
        );
        items.push(AdoptionItem::new("port", "tcp/179", Fate::Left, reason));
    }
    items.extend(cni(Path::new(CNI_CONF_DIR)));
    items
}

fn facts(node: &Node) -> String {
    let mut facts = Vec::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        facts.extend(node.spec.cidr(family).map(|cidr| format!("address {cidr}")));
        let vtep = node.spec.vxlan_address(family);
        facts.extend(vtep.map(|address| format!("VXLAN tunnel address {address}")));
    }
    let ipip = node.spec.ipip_address();
    facts.extend(ipip.map(|address| format!("IPIP tunnel address {address}")));
    facts.join(", ")
}

fn cni(dir: &Path) -> Vec<AdoptionItem> {
    let calicos = |name: &str| name.contains("calico");
    let files = crate::cli::conflists(dir);
    files
        .into_iter()
        .filter(|name| calicos(name))
        .map(|name| {
            let reason = "replaced when caracal install-cni runs with CNI_CONF_NAME of this file; pods that run keep their interfaces";
            AdoptionItem::new("cni", dir.join(name).display().to_string(), Fate::Replaced, reason)
        })
        .collect()
}

/// Policies that Felix enforces and Caracal does not.
fn policies(snapshot: &Snapshot) -> impl Iterator<Item = AdoptionItem> {
    let problems = snapshot.problems().into_iter();
    let unenforced = problems.filter(|problem| problem.code == ProblemCode::PolicyNotEnforced);
    unenforced
        .map(|problem| AdoptionItem::new("policy", problem.subject, Fate::Left, problem.reason))
}

/// Rules of Felix in nftables and iptables.
async fn rules_of_felix(enforces_policy: bool) -> Option<AdoptionItem> {
    let left = "CARACAL_POLICY is off: they stay as they are and follow no change, and pods that start then are \
                dropped as unknown; set it to on";
    let (object, fate, reason) = match ForeignRules::find(RuleOwner::Felix).await {
        Ok(rules) if rules.is_empty() => return None,
        Ok(rules) if enforces_policy => {
            let reason = "once this node's policies are in force, which both judge until then";
            (rules.to_string(), Fate::Removed, reason.to_owned())
        }
        Ok(rules) => (rules.to_string(), Fate::Left, left.to_owned()),
        Err(error) => {
            let error = anyhow::Error::new(error);
            ("of Felix".to_owned(), Fate::Left, format!("{error:#}"))
        }
    };
    Some(AdoptionItem::new("rules", object, fate, reason))
}

/// Interfaces of workloads, and endpoints without one.
fn workloads(
    snapshot: &Snapshot,
    me: &NodeName,
    actual: &Actual,
    desired: &Desired,
) -> Vec<AdoptionItem> {
    let prefixes = &desired.ownership.interface_prefixes;
    let mut named: BTreeMap<&str, String> = BTreeMap::new();
    for workload in snapshot.workloads_of(me) {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let name = format!("{namespace}/{}", workload.metadata.name);
        named.insert(&workload.spec.interface_name, name);
    }
    let is_workload = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let links = actual.links.iter().map(|link| link.name.as_str());
    links
        .filter(|name| is_workload(name))
        .map(|name| match named.get(name) {
            Some(endpoint) => AdoptionItem::new(
                "workload",
                name,
                Fate::Adopted,
                format!("of {endpoint}; never touched"),
            ),
            None => AdoptionItem::new(
                "workload",
                name,
                Fate::Left,
                "no WorkloadEndpoint of this node names it",
            ),
        })
        .collect()
}

fn as_json(node: &NodeName, items: &[AdoptionItem], problems: &[String]) -> serde_json::Value {
    let item = |item: &AdoptionItem| {
        json!({
            "kind": item.kind,
            "object": item.object,
            "fate": item.fate.as_str(),
            "reason": item.reason,
        })
    };
    let items: Vec<_> = items.iter().map(item).collect();
    json!({ "node": node, "items": items, "problems": problems })
}

fn show(items: &[AdoptionItem], problems: &[String]) {
    let mut rows = table(&["KIND", "OBJECT", "FATE", "REASON"]);
    for item in items {
        rows.add_row([item.kind, &item.object, item.fate.as_str(), &item.reason]);
    }
    println!("{rows}");
    let mut counts: BTreeMap<Fate, usize> = BTreeMap::new();
    for item in items {
        *counts.entry(item.fate).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .into_iter()
        .map(|(fate, number)| format!("{number} {}", fate.as_str()))
        .collect();
    println!("\n{}", counts.join(", "));
    for problem in problems {
        println!("problem: {problem}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn other_nodes_blocks_come_from_their_addresses() {
        let mut snapshot = Snapshot::default();
        for (name, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24")] {
            let path = caracal_model::Key::node(&NodeName::from(name)).to_path();
            let node = json!({
                "metadata": {"name": name}, "spec": {"bgp": {"ipv4Address": address}}
            });
            snapshot.apply(&path, Some(node.to_string().as_bytes()), 1);
        }
        for (cidr, owner) in [("10.244.1.0/26", "host:a"), ("10.244.2.0/26", "host:b")] {
            let key = cidr.replace('/', "-");
            let path = format!("/calico/ipam/v2/assignment/ipv4/block/{key}");
            let block = caracal_model::Block::new(cidr.parse().unwrap(), None, 1);
            let mut block: serde_json::Value = serde_json::from_slice(&block.to_json()).unwrap();
            block["affinity"] = owner.into();
            snapshot.apply(&path, Some(block.to_string().as_bytes()), 2);
        }
        let learned = announced(&snapshot, &"a".into());
        let hop = "10.0.0.2".parse().unwrap();
        let wanted = [("10.244.2.0/26".parse().unwrap(), Learned::internal(hop))];
        assert_eq!(learned, SharedMap::from_iter(wanted));
    }
}
