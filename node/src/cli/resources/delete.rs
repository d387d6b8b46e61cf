//! `caracal delete`. A pool goes as Calico's clients let it go: first it is disabled, then its
//! empty blocks are given back, then it is deleted; one whose addresses are in use stays unless
//! that is wanted. A Node goes with all that is its.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_ipam::{Client, ClientError, ReleaseAffinity};
use caracal_model::{
    API_VERSION, Family, IpPool, Key, KeyRange, Kind, KnownBlock, NodeName, Prefix, ResourceType,
    Schema, Snapshot, Txn, TxnOutcome, WriteRule, blocks_prefix, kind_prefix,
};
use serde_json::{Value, json};

use super::args::DeleteArgs;
use super::form::Form;
use super::write::{Stored, WriteError, stored};
use super::{input, kind_and_names};
use crate::cli::ipam::now;
use crate::cli::node;
use crate::exit::{CONFLICT, NOT_FOUND, REFUSED, invalid};

/// Between disabling a pool and giving its blocks back: assignments that had read it before come to
/// their end.
const SETTLE: Duration = Duration::from_millis(500);

/// How one deletion ended.
enum Ended {
    Deleted(Vec<String>),
    Missing,
    Refused(String),
    Conflict(String),
}

pub(super) async fn run(store: &Datastore, args: &DeleteArgs) -> anyhow::Result<ExitCode> {
    let keys = match keys_of(args)? {
        Ok(keys) => keys,
        Err(code) => return Ok(code),
    };
    for (kind, key) in &keys {
        if let WriteRule::ReadOnly(reason) = ResourceType::Resource(*kind).writable() {
            return Ok(refuse(&format!(
                "{kind} {}: it is read only: {reason}",
                name(key)
            )));
        }
    }
    let mut deleted = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for (kind, key) in keys {
        let subject = format!("{kind} {}", name(&key));
        match delete(store, kind, &key, args)
            .await
            .context(subject.clone())?
        {
            Ended::Deleted(effects) => {
                say(args, kind, name(&key), &effects);
                deleted
                    .push(json!({"kind": kind.as_str(), "name": name(&key), "effects": effects}));
            }
            Ended::Missing if args.ignore_not_found => {}
            Ended::Missing => {
                eprintln!("caracal: there is no {subject}");
                code = ExitCode::from(NOT_FOUND);
            }
            Ended::Refused(reason) => {
                code = refuse(&format!("{subject}: {reason}"));
                break;
            }
            Ended::Conflict(reason) => {
                eprintln!("caracal: {subject}: {reason}");
                code = ExitCode::from(CONFLICT);
                break;
            }
        }
    }
    if matches!(args.output, Form::Json | Form::Yaml)
        && (code == ExitCode::SUCCESS || !deleted.is_empty())
    {
        let document = json!({"deleted": deleted, "dryRun": args.dry_run});
        args.output.output().print(&document);
    }
    Ok(code)
}

fn refuse(reason: &str) -> ExitCode {
    eprintln!("caracal: {reason}");
    ExitCode::from(REFUSED)
}

fn name(key: &Key) -> &str {
    match key {
        Key::Resource { name, .. } => name,
        _ => "",
    }
}

fn say(args: &DeleteArgs, kind: Kind, name: &str, effects: &[String]) {
    let note = if args.dry_run {
        " (dry run: not written)"
    } else {
        ""
    };
    let short = ResourceType::Resource(kind).short();
    let mut lines = vec![format!("{short}/{name} deleted{note}")];
    lines.extend(effects.iter().map(|effect| format!("  {effect}")));
    for line in lines {
        match args.output {
            Form::Json | Form::Yaml => eprintln!("{line}"),
            Form::Name => println!("{short}/{name}"),
            Form::Table | Form::Wide => println!("{line}"),
        }
    }
}

/// Resources to delete.
type Doomed = Vec<(Kind, Key)>;

fn keys_of(args: &DeleteArgs) -> anyhow::Result<Result<Doomed, ExitCode>> {
    let Some(kind) = &args.kind else {
        let documents = input::read(&args.files, &args.space.or_default()).map_err(invalid)?;
        let keys = documents
            .into_iter()
            .map(|document| (document.kind, document.key));
        return Ok(Ok(keys.collect()));
    };
    let (target, names) = match kind_and_names(kind, &args.names) {
        Ok(asked) => asked,
        Err(code) => return Ok(Err(code)),
    };
    let kind = match target {
        ResourceType::Resource(kind) => kind,
        other => {
            let WriteRule::ReadOnly(reason) = other.writable() else {
                return Ok(Ok(Vec::new()));
            };
            return Ok(Err(refuse(&format!(
                "a {} cannot be deleted: {reason}",
                other.as_str()
            ))));
        }
    };
    if names.is_empty() {
        return Ok(Err(super::usage("which one? give its name")));
    }
    let key = |name: String| Key::Resource {
        kind,
        namespace: kind.is_namespaced().then(|| args.space.or_default()),
        name,
    };
    Ok(Ok(names
        .into_iter()
        .map(|name| (kind, key(name)))
        .collect()))
}

async fn delete(
    store: &Datastore,
    kind: Kind,
    key: &Key,
    args: &DeleteArgs,
) -> anyhow::Result<Ended> {
    if kind == Kind::Node {
        return delete_node(store, name(key), args).await;
    }
    let found = match stored(store, key).await {
        // A value that nobody can read may go.
        Err(WriteError::Unreadable(_)) => revision_of(store, key).await?,
        Err(error) => return Err(error.into()),
        Ok(found) => found,
    };
    let Some(found) = found else {
        return Ok(Ended::Missing);
    };
    if kind == Kind::IpPool {
        return delete_pool(store, key, found, args).await;
    }
    let effects = effects(store, kind, name(key)).await?;
    if args.dry_run {
        return Ok(Ended::Deleted(effects));
    }
    remove(store, key, found.revision, effects).await
}

async fn revision_of<S: Store>(store: &S, key: &Key) -> anyhow::Result<Option<Stored>> {
    let answer = store.read(&[KeyRange::Key(key.to_path())]).await?;
    let entry = answer.ranges.into_iter().flatten().next();
    Ok(entry.map(|entry| Stored {
        value: Value::Null,
        revision: entry.mod_revision,
    }))
}

async fn remove<S: Store>(
    store: &S,
    key: &Key,
    revision: i64,
    effects: Vec<String>,
) -> anyhow::Result<Ended> {
    let txn = Txn::new().delete(key.to_path(), revision);
    Ok(match store.commit(&txn).await? {
        TxnOutcome::Committed(_) => Ended::Deleted(effects),
        TxnOutcome::Conflict => {
            Ended::Conflict("somebody has changed it at the same time; try again".to_owned())
        }
    })
}

/// Effects of deleting a resource.
async fn effects<S: Store>(store: &S, kind: Kind, name: &str) -> anyhow::Result<Vec<String>> {
    let effect = match kind {
        Kind::BgpFilter => {
            let prefix = kind_prefix(Kind::BgpPeer);
            let snapshot = snapshot(store, vec![KeyRange::Prefix(prefix)]).await?;
            let uses = |peer: &&str| {
                let peer = &snapshot.bgp_peers[*peer];
                peer.spec.filters.iter().any(|filter| filter == name)
            };
            let all = snapshot.bgp_peers.keys().map(AsRef::<str>::as_ref);
            let peers: Vec<&str> = all.filter(uses).collect();
            (!peers.is_empty()).then(|| {
                format!("BGPPeer {} still names it: take it out there", peers.join(", "))
            })
        }
        Kind::BgpPeer => Some("its sessions end at once; `caracal topology apply --delete-peer` waits until nobody needs them any more".to_owned()),
        Kind::BgpConfiguration | Kind::FelixConfiguration if name == "default" => {
            Some("Calico's defaults are in force; nodes that start make it anew".to_owned())
        }
        Kind::WorkloadEndpoint => Some("its routes go; its addresses stay with their handle: see `caracal ipam check`".to_owned()),
        _ => None,
    };
    Ok(effect.into_iter().collect())
}

async fn snapshot<S: Store>(store: &S, ranges: Vec<KeyRange>) -> anyhow::Result<Snapshot> {
    let answer = store.read(&ranges).await?;
    let mut snapshot = Snapshot::default();
    for entry in answer.ranges.iter().flatten() {
        snapshot.apply(&entry.key, Some(&entry.value), entry.mod_revision);
    }
    Ok(snapshot)
}

/// The same as `caracal node delete`.
async fn delete_node(store: &Datastore, name: &str, args: &DeleteArgs) -> anyhow::Result<Ended> {
    let key = Key::node(&NodeName::from(name));
    if revision_of(store, &key).await?.is_none() {
        return Ok(Ended::Missing);
    }
    let order = node::NodeDeletion {
        node: NodeName::from(name),
        force: args.force,
        dry_run: args.dry_run,
        // Progress goes to standard error when this command prints data.
        printed_to: match args.output {
            Form::Json | Form::Yaml | Form::Name => node::PrintedTo::Aside,
            Form::Table | Form::Wide => node::PrintedTo::Here,
        },
    };
    Ok(match node::remove(store, &order).await? {
        node::Removed::Done(remains) => Ended::Deleted(vec![format!(
            "with {} addresses, {} blocks, and the endpoints and resources that were its own",
            remains.left.addresses.len(),
            remains.left.blocks.len()
        )]),
        node::Removed::Alive(reason) => Ended::Refused(reason),
        node::Removed::Changed(reason) => Ended::Conflict(reason),
    })
}

async fn blocks_in<S: Store>(store: &S, range: Prefix) -> anyhow::Result<Vec<KnownBlock>> {
    let prefixes = [Family::Ipv4, Family::Ipv6].map(blocks_prefix);
    let snapshot = snapshot(store, prefixes.map(KeyRange::Prefix).into()).await?;
    let inside = snapshot.blocks.values().filter(|b| range.covers(&b.cidr));
    Ok(inside.map(|block| KnownBlock::clone(block)).collect())
}

async fn delete_pool(
    store: &Datastore,
    key: &Key,
    found: Stored,
    args: &DeleteArgs,
) -> anyhow::Result<Ended> {
    let bytes = found.value.to_string().into_bytes();
    let Ok(pool) = IpPool::from_json(&bytes) else {
        // A pool that no node can read has no blocks of its own.
        return match args.dry_run {
            true => Ok(Ended::Deleted(Vec::new())),
            false => remove(store, key, found.revision, Vec::new()).await,
        };
    };
    let range = pool.spec.prefix();
    let blocks = blocks_in(store, range).await?;
    if let Some(reason) = in_use(&blocks)
        && !args.force
    {
        return Ok(Ended::Refused(format!(
            "{reason}; delete those pods first (`caracal patch ippool {} -p '{{\"spec\":{{\"disabled\":true}}}}'` keeps new ones out), or add --force: pods then lose encapsulation and NAT of the pool",
            name(key)
        )));
    }
    let empty = blocks.iter().filter(|block| block.in_use == 0).count();
    let mut effects = match empty {
        0 => Vec::new(),
        number => vec![format!("with {number} empty block(s)")],
    };
    if in_use(&blocks).is_some() {
        effects.push(way_back(&found.value));
    }
    if args.dry_run {
        return Ok(Ended::Deleted(effects));
    }
    let mut revision = found.revision;
    if !pool.spec.disabled {
        let mut disabled = found.value;
        disabled["spec"]["disabled"] = Value::Bool(true);
        let value = disabled.to_string().into_bytes();
        let txn = Txn::new().update(key.to_path(), revision, value);
        match store.commit(&txn).await? {
            TxnOutcome::Committed(at) => revision = at,
            TxnOutcome::Conflict => {
                return Ok(Ended::Conflict(
                    "somebody has changed it at the same time; try again".to_owned(),
                ));
            }
        }
        tokio::time::sleep(SETTLE).await;
    }
    let blocks = blocks_in(store, range).await?;
    if let Some(reason) = in_use(&blocks)
        && !args.force
    {
        return Ok(Ended::Refused(format!(
            "{reason} since a moment ago; the pool is disabled now and stays: delete those pods and try again"
        )));
    }
    release(store, &blocks).await?;
    remove(store, key, revision, effects).await
}

/// How to make a pool again that goes while pods have its addresses: once it is gone, nobody knows
/// what it said.
fn way_back(pool: &Value) -> String {
    let mut document = pool.clone();
    Schema::export(&mut document);
    if let Value::Object(fields) = &mut document {
        // The datastore's key says both, and the value need not.
        fields.insert("apiVersion".to_owned(), API_VERSION.into());
        fields.insert("kind".to_owned(), Kind::IpPool.as_str().into());
    }
    // The shell ends its text at a quote.
    let quoted = document.to_string().replace('\'', r"'\''");
    format!(
        "pods with its addresses lose its encapsulation and NAT; this makes it again as it was: printf %s '{quoted}' | caracal apply -f -"
    )
}

/// Why the blocks of a pool cannot go.
fn in_use(blocks: &[KnownBlock]) -> Option<String> {
    let used: Vec<&KnownBlock> = blocks.iter().filter(|block| block.in_use > 0).collect();
    let first = used.first()?;
    let addresses: u32 = used.iter().map(|block| block.in_use).sum();
    let owner = match first.owner.as_ref().and_then(|owner| owner.node()) {
        Some(node) => format!(" of {node}"),
        None => String::new(),
    };
    Some(format!(
        "{addresses} address(es) in {} block(s) are in use, the first in {}{owner}",
        used.len(),
        first.cidr
    ))
}

/// Gives empty blocks back. One that is in use stays with its owner.
async fn release(store: &Datastore, blocks: &[KnownBlock]) -> anyhow::Result<()> {
    let client = Client::new(store.clone());
    for block in blocks.iter().filter(|block| block.in_use == 0) {
        let Some(owner) = block.owner.clone() else {
            continue;
        };
        let machine = ReleaseAffinity::new(owner, block.cidr, true, now());
        match client.drive(machine).await {
            Ok(_) => {}
            Err(ClientError::Refused(error)) => eprintln!("caracal: {}: {error}", block.cidr),
            Err(error) => return Err(error).context(format!("releasing {}", block.cidr)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_way_back_makes_the_same_pool() {
        let spec_v4 = json!({"cidr": "10.9.0.0/16", "vxlanMode": "CrossSubnet",
            "natOutgoing": true, "nodeSelector": "zone == 'a'"});
        let spec_v6 = json!({"cidr": "fd00:9::/48", "vxlanMode": "Always", "disabled": true});
        for spec in [spec_v4, spec_v6] {
            let labels = json!({"zone": "a"});
            let stored = json!({"spec": spec, "metadata": {"name": "pods", "labels": labels,
                "uid": "1", "creationTimestamp": "2026-01-05T10:12:00Z"}});
            let line = way_back(&stored);
            let (_, quoted) = line.split_once("printf %s '").unwrap();
            let quoted = quoted.strip_suffix("' | caracal apply -f -").unwrap();
            let text = quoted.replace(r"'\''", "'");
            // No quote is left that would end the text early.
            assert!(!quoted.replace(r"'\''", "").contains('\''), "{line}");
            let documents = input::parse("the line", &text, "default").unwrap();
            let values: Vec<_> = documents.into_iter().map(|d| d.value).collect();
            let same = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool",
                "metadata": {"name": "pods", "labels": labels}, "spec": spec});
            assert_eq!(values, [same]);
        }
    }
}
