//! Datastore ↔ RIB: sessions, own blocks, other nodes' blocks; and RIB ↔ plan.

use std::ops::Bound;

use caracal_model::{AffinityState, BlockOwner, KnownBlock, NodeName, Prefix};

use super::{AuditCode, AuditInputs, AuditRib, Observation, OwnBlock};
use crate::slice::look_at;

/// Everything but other nodes' blocks and learned routes. False when these are not looked at.
pub(super) fn compare(inputs: &AuditInputs<'_>, found: &mut Vec<Observation>) -> bool {
    let Some(rib) = inputs.rib else { return false };
    if let Some(text) = &rib.drained {
        let seen = format!("all BGP sessions are shut down on purpose: {text}");
        found.push(Observation::new(AuditCode::Drained, inputs.me, seen));
        // The rest follows from that.
        return false;
    }
    sessions(rib, found);
    own_blocks(inputs, rib, found);
    true
}

/// The speaker says which lost sessions count; here they only get their code.
fn sessions(rib: &AuditRib, found: &mut Vec<Observation>) {
    for peer in rib.peers.iter().filter(|peer| !peer.established) {
        let (name, state) = (&peer.name, &peer.state);
        let reason = peer.reason.as_deref().unwrap_or("no reason is known yet");
        if peer.disabled {
            let seen = format!("no session with {name} is wanted: {reason}");
            found.push(Observation::new(AuditCode::PeerDisabled, name, seen));
            continue;
        }
        let seen = match &peer.wrong {
            Some(wrong) => format!("peer {name} is {state}: {wrong}"),
            None => format!("the session with {name} is {state}: {reason}"),
        };
        found.push(Observation {
            settling: peer.wrong.is_none(),
            ..Observation::new(AuditCode::PeerDown, name, seen)
        });
    }
}

fn own_blocks(inputs: &AuditInputs<'_>, rib: &AuditRib, found: &mut Vec<Observation>) {
    let alone = inputs.snapshot.nodes.len() < 2 && rib.peers.is_empty();
    for (cidr, affinity) in inputs.snapshot.affinities_of(inputs.me) {
        let pool = inputs.snapshot.pool_of(&cidr);
        let announced = pool.is_some_and(|(_, pool)| !pool.spec.disable_bgp_export);
        if affinity.state != AffinityState::Confirmed || affinity.deleted || !announced {
            continue;
        }
        match rib.own_blocks.get(&cidr) {
            Some(block) if !block.originated => {
                let seen = format!(
                    "the affinity of {cidr} is confirmed at revision {}, and the RIB has no own route to it",
                    affinity.revision
                );
                found.push(Observation::new(AuditCode::BlockNotOriginated, cidr, seen));
            }
            Some(block) if block.advertised_to.is_empty() && !alone => {
                let seen = format!("{cidr} is in the RIB and {}", to_nobody(block));
                found.push(Observation::new(AuditCode::BlockNotAnnounced, cidr, seen));
            }
            // A block that is newer than what was asked of the speaker.
            _ => {}
        }
    }
}

fn to_nobody(block: &OwnBlock) -> String {
    let reasons: Vec<String> = block
        .withheld
        .iter()
        .map(|(peer, reason)| format!("{peer}: {reason}"))
        .collect();
    if reasons.is_empty() {
        return "goes to no peer: no session is established".to_owned();
    }
    format!("goes to no peer ({})", reasons.join("; "))
}

/// Each block of another node has to have a route, of whatever kind. At most so many; the last one,
/// where there may be more.
pub(super) fn other_blocks(
    inputs: &AuditInputs<'_>,
    from: Bound<Prefix>,
    most: usize,
    found: &mut Vec<Observation>,
) -> Option<Prefix> {
    let rib = inputs.rib?;
    let blocks = inputs.snapshot.blocks.range((from, Bound::Unbounded));
    look_at(
        blocks,
        most,
        |(cidr, _)| **cidr,
        |(_, block)| {
            let Some(owner) = reachable_owner(inputs, block) else {
                return;
            };
            let planned = covering(block.cidr).any(|prefix| {
                inputs.desired.routes.contains_key(&prefix)
                    || inputs.desired.skipped.contains_key(&prefix)
                    || rib.learned.contains_key(&prefix)
            });
            if planned || is_complained_of(inputs, owner) {
                return;
            }
            if let Some(why) = rib.unused.get(&block.cidr) {
                let seen = format!("{} is the block of node {owner}, and {why}", block.cidr);
                found.push(Observation::new(AuditCode::PathRefused, block.cidr, seen));
            } else {
                let why = match is_hidden(inputs, block) {
                    true => "; its pool says disableBGPExport, and nothing encapsulates it",
                    false => "",
                };
                let seen = format!(
                    "{} is the block of node {owner} (revision {}), and neither the datastore nor BGP has a way to it{why}",
                    block.cidr, block.revision
                );
                found.push(Observation::new(AuditCode::NoPathToBlock, block.cidr, seen));
            }
        },
    )
}

/// The other node that a block has been confirmed to, if its routes are to be had.
fn reachable_owner<'a>(inputs: &AuditInputs<'_>, block: &'a KnownBlock) -> Option<&'a NodeName> {
    let owner = block.host()?;
    let node = inputs.snapshot.nodes.get(owner)?;
    node.spec.address(block.cidr.family())?;
    let key = (BlockOwner::Host(owner.clone()), block.cidr);
    let state = inputs.snapshot.affinities.get(&key)?.state;
    inputs.snapshot.pool_of(&block.cidr)?;
    let wanted = owner != inputs.me && state == AffinityState::Confirmed;
    // A hidden block that nobody uses hides nobody.
    let is_missed = !is_hidden(inputs, block) || block.workloads() > 0;
    (wanted && is_missed).then_some(owner)
}

/// True when a block's pool keeps it from BGP: other nodes have a way to it by the datastore, or
/// none.
fn is_hidden(inputs: &AuditInputs<'_>, block: &KnownBlock) -> bool {
    let pool = inputs.snapshot.pool_of(&block.cidr);
    pool.is_some_and(|(_, pool)| pool.spec.disable_bgp_export)
}

/// The plan has said itself why there is no route to a node.
fn is_complained_of(inputs: &AuditInputs<'_>, owner: &NodeName) -> bool {
    inputs
        .desired
        .problems
        .iter()
        .any(|problem| names(&problem.reason, owner.as_str()))
}

/// True when a sentence has this name or address in it, whole.
fn names(sentence: &str, word: &str) -> bool {
    let separates = |c: char| !(c.is_ascii_alphanumeric() || "-._:".contains(c));
    sentence
        .split(separates)
        .any(|w| w.trim_end_matches(['.', ':']) == word)
}

fn covering(prefix: Prefix) -> impl Iterator<Item = Prefix> {
    (0..=prefix.len())
        .rev()
        .map(move |len| Prefix::truncated(prefix.address(), len))
}

/// RIB ↔ plan: every best path is a route, or was looked at and given up for a reason. At most so
/// many; the last one, where there may be more.
pub(super) fn unplanned(
    inputs: &AuditInputs<'_>,
    from: Bound<Prefix>,
    most: usize,
    found: &mut Vec<Observation>,
) -> Option<Prefix> {
    let learned = inputs.rib?.learned.range((from, Bound::Unbounded));
    look_at(
        learned,
        most,
        |(prefix, _)| **prefix,
        |(prefix, learned)| {
            let desired = inputs.desired;
            if desired.routes.contains_key(prefix) || desired.skipped.contains_key(prefix) {
                return;
            }
            // A complaint names a next hop, a pool or a prefix, and then the reason is known.
            let hops: Vec<String> = learned.next_hops.iter().map(ToString::to_string).collect();
            let is_reported = desired.problems.iter().any(|problem| {
                problem.subject == prefix.to_string()
                    || hops.iter().any(|hop| names(&problem.reason, hop))
            });
            if !is_reported {
                let seen = format!(
                    "BGP's best path to {prefix} goes via {}, and the plan of revision {} has neither a route nor a reason",
                    hops.join(", "),
                    desired.revision
                );
                found.push(Observation::new(AuditCode::PathNotPlanned, prefix, seen));
            }
        },
    )
}
