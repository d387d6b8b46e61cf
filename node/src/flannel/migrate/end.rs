//! The end of flannel on a node, once all nodes have gone over: nothing is sent its way any more,
//! and what it has in etcd, in the kernel and in files goes. Bridge and containers stay, and until
//! they have ended also what lets their packets pass, and the file that says whose subnet it is.

use std::fs;
use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use caracal_agent::{ForwardRules, RuleTable, Settings, Uninstall, remove_iptables_chain};
use caracal_flannel::{
    FORWARD_CHAIN, FORWARD_COMMENT, NodeSubnets, flannel_ownership, masquerade_chain,
    masquerade_table, remove_config, remove_lease,
};
use caracal_model::{BlockOwner, EncapMode, Family, Prefix};

use super::steps::{Seen, bridge, leases, others, receives};
use super::{MigrateArgs, Site};
use crate::cli::ipam::refuse;
use crate::exit::DEGRADED;
use crate::flannel::facts::Facts;
use crate::flannel::presence;
use crate::flannel::stores::{ConfigPlace, Stores};

pub(super) async fn end(site: &Site, line: &MigrateArgs) -> anyhow::Result<ExitCode> {
    let Some(own) = own(&site.facts) else {
        println!(
            "no subnet of flannel's is this machine's ({}): nothing is to be ended",
            line.args.subnet_file.display()
        );
        return Ok(ExitCode::SUCCESS);
    };
    let Some(subnet) = own.v4 else {
        return Ok(refuse("a network without IPv4 has not gone over"));
    };
    if let Some(reason) = hindrance(&site.seen()?, subnet) {
        return Ok(refuse(&reason));
    }
    if presence::is_announced()? {
        return Ok(refuse(
            "`caracal flannel` runs here and would put everything back: end it (its routes stay), and call this again",
        ));
    }
    let stores = Stores::of(&line.args, site.node.clone())?;
    // First of all: whoever starts now would take a subnet that is somebody's block.
    match &stores.config {
        ConfigPlace::Etcd(store, keys) => {
            if remove_config(store, keys).await? {
                println!("delete {}", keys.config());
            }
        }
        ConfigPlace::File(path) => println!(
            "{} is somebody else's: delete flannel's DaemonSet and ConfigMap",
            path.display()
        ),
    }
    let mut failures = remove_from_kernel(site, &own, network(&site.facts, subnet)).await?;
    failures += remove_rules(site, subnet).await;
    if remove_lease(&stores.leases, &stores.keys, &own).await? {
        println!("delete the lease of {subnet}");
    }
    if failures > 0 {
        return Ok(ExitCode::from(DEGRADED));
    }
    if bridge(&site.facts, subnet).is_none() {
        match fs::remove_file(&line.args.subnet_file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => {
                let path = line.args.subnet_file.display();
                removed.with_context(|| path.to_string())?;
                println!("delete {path}");
            }
        }
    }
    tell_what_stays(site, subnet, line);
    Ok(ExitCode::SUCCESS)
}

/// This node's subnets; those of the file when the lease is gone already.
fn own(facts: &Facts) -> Option<NodeSubnets> {
    let in_file = || {
        let v4 = facts.env.as_ref().ok()?.v4?;
        let v4 = Some(v4.prefix());
        Some(NodeSubnets { v4, v6: None })
    };
    facts.own().map(|(own, _)| *own).or_else(in_file)
}

/// Why flannel has to go on here, if it does.
pub(super) fn hindrance(seen: &Seen<'_>, own: Prefix) -> Option<String> {
    let me = BlockOwner::Host(seen.node.clone());
    let block = seen.data.blocks.get(&own);
    if block.is_none_or(|block| block.value.owner() != Some(me)) {
        return Some(format!(
            "{own} is no block of {}: `caracal flannel migrate apply` comes first",
            seen.node
        ));
    }
    if let Some((key, reason)) = seen.facts.table.unreadable().iter().next() {
        return Some(format!(
            "{key} cannot be read, and somebody may be there: {reason}"
        ));
    }
    if let Some(other) = others(seen, own).first() {
        return Some(format!(
            "{other}: that node has to go over first; where none has it any more, delete its key"
        ));
    }
    if !seen.runs {
        return Some(format!(
            "`caracal node` does not answer: start it with NODENAME={}",
            seen.node
        ));
    }
    let agents = Settings::default().route_protocol;
    let unreached = leases(seen).map(|(subnet, _)| subnet).find(|subnet| {
        let mut routes = seen.facts.actual.all_routes();
        let is_reached = routes.any(|r| r.prefix == *subnet && r.protocol == agents);
        *subnet != own && !(is_reached && reaches_us(seen, *subnet))
    });
    unreached.map(|subnet| {
        format!(
            "`caracal node` does not reach {subnet} yet, or is not reached from there: see `caracal status` on both nodes"
        )
    })
}

/// The node of a block runs ours.
fn reaches_us(seen: &Seen<'_>, block: Prefix) -> bool {
    let owner = seen
        .data
        .blocks
        .get(&block)
        .and_then(|block| block.value.owner());
    let Some(BlockOwner::Host(node)) = owner else {
        return false;
    };
    let mut pools = seen.data.pools.values();
    let pool = pools.find(|pool| pool.spec.prefix().covers(&block));
    let by_vxlan = pool.is_some_and(|pool| pool.spec.vxlan_mode != EncapMode::Never);
    receives(seen.data, &node, by_vxlan)
}

/// Routes, devices and their entries. Answers with how many stay.
async fn remove_from_kernel(
    site: &Site,
    own: &NodeSubnets,
    network: Prefix,
) -> anyhow::Result<usize> {
    let ownership = flannel_ownership(own, network, &site.facts.actual.links);
    let mut failures = 0;
    for (removal, result) in Uninstall::plan_network(&ownership).await?.remove().await? {
        match result {
            Ok(()) => println!("{removal}"),
            Err(reason) => {
                failures += 1;
                eprintln!("cannot {removal}: {reason}");
            }
        }
    }
    Ok(failures)
}

/// The range of flannel's; chains and tables are known by their names, whatever is in them.
fn network(facts: &Facts, own: Prefix) -> Prefix {
    let networks = facts.env.as_ref().ok().map(|env| &env.networks);
    let mut networks = networks.into_iter().flatten();
    let network = networks.find(|network| network.covers(&own));
    network.copied().unwrap_or(own)
}

/// Rules of `--ip-masq` and `--iptables-forward-rules`. Answers with how many stay.
async fn remove_rules(site: &Site, own: Prefix) -> usize {
    let network = network(&site.facts, own);
    let mut failures = 0;
    let mut tell = |what: &str, removed: anyhow::Result<bool>| match removed {
        Ok(true) => println!("delete {what}"),
        Ok(false) => {}
        Err(error) => {
            failures += 1;
            eprintln!("cannot delete {what}: {error:#}");
        }
    };
    for (family, word) in [(Family::Ipv4, "ip"), (Family::Ipv6, "ip6")] {
        let name = masquerade_table(family);
        let removed = RuleTable::new(word, name).remove_if_there().await;
        tell(
            &format!("nftables table {word} {name}"),
            removed.map_err(Into::into),
        );
    }
    let chain = masquerade_chain(network, own, false);
    let removed = remove_iptables_chain(Family::Ipv4, &chain).await;
    tell(
        &format!("iptables' {}", chain.name),
        removed.map_err(Into::into),
    );
    if bridge(&site.facts, own).is_none() {
        let forward = ForwardRules::new(FORWARD_CHAIN, FORWARD_COMMENT, vec![network]);
        let removed = forward.remove().await.map_err(Into::into);
        tell(&format!("iptables' {FORWARD_CHAIN}"), removed);
    }
    failures
}

fn tell_what_stays(site: &Site, own: Prefix, line: &MigrateArgs) {
    if let Some(bridge) = bridge(&site.facts, own) {
        println!(
            "stays: {bridge} with the containers on it, iptables' {FORWARD_CHAIN} and {}, until they end; then `ip link delete {bridge}`, and this once more; {} and /var/lib/cni/flannel are nobody's then",
            line.args.subnet_file.display(),
            line.networks_dir.display()
        );
    }
    let leases = site
        .facts
        .table
        .iter()
        .filter(|(subnets, _)| subnets.v4 != Some(own));
    let mut is_last = true;
    for (subnets, known) in leases {
        println!(
            "stays: the lease of {subnets} ({}), until `caracal flannel migrate end` there",
            known.lease.node()
        );
        is_last = false;
    }
    if is_last {
        println!(
            "flannel's network is at its end; nodes may take blocks again: caracal ipam configure --auto-allocate-blocks=true --strictaffinity=false"
        );
    }
}
