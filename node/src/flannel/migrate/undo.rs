//! The way back: first host-local hears of what our plugin has given out, then flannel's plugin
//! takes over, and when nothing of ours is left on the node its block goes. Each call does what can
//! be done, and says what has to be done by hand before the next one.

use std::net::IpAddr;
use std::process::ExitCode;

use caracal_datastore::Datastore;
use caracal_ipam::{Allocation, Purpose, ReleaseNode};
use caracal_model::{BlockOwner, Prefix};

use super::host_local::LocalHolder;
use super::{FROM_FLANNEL, Site, answer_for_others, steps};
use crate::cli::ipam::{announced, now, refuse};

pub(super) async fn undo(site: &Site) -> anyhow::Result<ExitCode> {
    let Some(subnet) = site.facts.own().and_then(|(own, _)| own.v4) else {
        return Ok(refuse(
            "no lease is this machine's: run `caracal flannel` here first",
        ));
    };
    let me = BlockOwner::Host(site.node.clone());
    let block = site.data.blocks.get(&subnet);
    let Some(block) = block.filter(|block| block.value.owner().as_ref() == Some(&me)) else {
        println!(
            "{subnet} is no block of {}: nothing is to be undone",
            site.node
        );
        return Ok(ExitCode::SUCCESS);
    };
    let others = site.data.affinities_of(&me, subnet.family());
    if let Some((other, _)) = others.iter().find(|(cidr, _)| *cidr != subnet) {
        return Ok(refuse(&format!(
            "{} has the block {other}, too, which flannel would not reach: end its pods and release it first",
            site.node
        )));
    }
    let all = Allocation::in_block(&block.value).filter(|a| a.released_at.is_none());
    let all: Vec<Allocation> = all.collect();
    let pods: Vec<&Allocation> = all.iter().filter(|a| is_pods(a)).collect();
    let _lock = site.local.lock()?;
    note(site, &pods)?;
    if site.cni.as_ref().is_none_or(|cni| cni.ours.is_some()) {
        forget_ended(site, subnet, &all)?;
        return Ok(refuse(
            "host-local knows which addresses are taken; now put flannel's CNI configuration back in the first place, and call this again",
        ));
    }
    if !pods.is_empty() {
        let named = pods
            .iter()
            .map(|a| format!("{} ({})", a.holder(), a.address));
        return Ok(refuse(&format!(
            "pods that Caracal's plugin has attached: {}; end them, one after the other (flannel's plugin attaches what comes in their place), and call this again",
            named.collect::<Vec<_>>().join(", ")
        )));
    }
    if site.runs {
        return Ok(refuse(
            "`caracal node` runs and would take the block again: stop it (its routes stay), and call this again",
        ));
    }
    let client = announced(&site.store, false, false);
    let released = client
        .drive(ReleaseNode::new(site.node.clone(), now()))
        .await?;
    println!(
        "{} addresses are released, and block {subnet}",
        released.addresses.len()
    );
    if let Some(bridge) = steps::bridge(&site.facts, subnet) {
        answer_for_others(bridge.as_str(), false)?;
    }
    println!(
        "now, when no other node has a route of `caracal node` to {subnet} any more (`ip route get` there): caracal uninstall --node; {}; then `caracal flannel` without --route-metric, or flanneld",
        forget_node(site)
    );
    Ok(ExitCode::SUCCESS)
}

/// The command by which the cluster hears that this is no node of Calico's any more.
fn forget_node(site: &Site) -> String {
    let node = &site.node;
    if matches!(site.store, Datastore::Etcd(_)) {
        return format!("caracal node delete {node}");
    }
    // Nodes are Kubernetes' own, and what stands in their annotations is Calico's.
    let annotations = ["IPv4Address", "IPv4VXLANTunnelAddr", "VXLANTunnelMACAddr"]
        .map(|name| format!(" projectcalico.org/{name}-"));
    format!("kubectl annotate node {node}{}", annotations.concat())
}

/// Given out by our plugin, and not by host-local before.
fn is_pods(allocation: &Allocation) -> bool {
    let is_flannels = allocation.attributes.contains_key(FROM_FLANNEL);
    !is_flannels && allocation.purpose() != Purpose::Tunnel
}

/// host-local gives none of these out.
fn note(site: &Site, pods: &[&Allocation]) -> anyhow::Result<()> {
    let known = site.local.read()?.unwrap_or_default();
    for pod in pods {
        match known.get(&pod.address) {
            None => {
                let handle = pod.handle.as_deref().unwrap_or_default();
                site.local.note(pod.address, handle)?;
            }
            Some(LocalHolder::Noted(_)) => {}
            Some(LocalHolder::Container(id, _)) => anyhow::bail!(
                "{} is given out twice: to {} by Caracal's plugin, and by host-local to the container {id}; end one of them",
                pod.address,
                pod.holder()
            ),
        }
    }
    let is_held = |address: &IpAddr| pods.iter().any(|pod| pod.address == *address);
    for (address, holder) in &known {
        if matches!(holder, LocalHolder::Noted(_)) && !is_held(address) {
            site.local.forget(*address)?;
        }
    }
    Ok(())
}

/// Containers of before that have ended under our plugin: host-local has not heard of it.
fn forget_ended(site: &Site, subnet: Prefix, held: &[Allocation]) -> anyhow::Result<()> {
    for (address, holder) in site.local.read()?.unwrap_or_default() {
        let lives = held.iter().any(|a| a.address == address);
        if matches!(holder, LocalHolder::Container(..)) && subnet.contains(address) && !lives {
            site.local.forget(address)?;
        }
    }
    Ok(())
}
