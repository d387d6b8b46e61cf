//! `caracal apply`, `create`, `replace`, `patch` and `label`: everything is checked before anything
//! is written.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::ExitCode;

use caracal_datastore::Store;
use caracal_model::{
    Family, Key, KeyRange, Kind, Prefix, ResourceType, Schema, Snapshot, Timestamp, WriteRule,
    blocks_prefix, kind_prefix, range_conflicts,
};
use serde_json::Value;

use super::effect;
use super::form::Form;
use super::write::{Outcome, RequestedState, RequestedWrite, Stored, WriteError, stored, write};
use crate::exit::REFUSED;
use crate::stored::versioned;

/// How orders are carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApplyOptions {
    pub(super) dry_run: bool,
    /// Fields that no table knows are written.
    pub(super) allow_unknown: bool,
    /// Existing resources are left unchanged, and are no error.
    pub(super) skip_exists: bool,
    pub(super) form: Form,
}

/// An order that was checked.
struct Checked {
    order: RequestedWrite,
    /// The new value; `None`: the resource exists and is left unchanged.
    next: Option<(Outcome, Value)>,
    effects: Vec<String>,
    warnings: Vec<String>,
}

/// Checks all orders and carries them out, one after the other. `datastore`: its addresses, which
/// no range may lie over.
pub(super) async fn run<S: Store>(
    (store, datastore): (&S, &BTreeSet<IpAddr>),
    orders: Vec<RequestedWrite>,
    options: ApplyOptions,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let checked = match check((store, datastore), orders, options, now).await {
        Ok(checked) => checked,
        Err(faults) => {
            for (subject, error) in &faults {
                tell_error(subject, error);
            }
            eprintln!("caracal: nothing was written");
            let code = faults.first().map_or(REFUSED, |(_, error)| error.code());
            return Ok(ExitCode::from(code));
        }
    };
    let all = checked.len();
    let mut shown = Vec::new();
    for (number, one) in checked.into_iter().enumerate() {
        let subject = subject(&one.order);
        for warning in &one.warnings {
            eprintln!("caracal: {subject}: {warning}");
        }
        let (outcome, value) = match one.next {
            None => {
                say(options, &one.order, "exists already, left as it is", &[]);
                continue;
            }
            Some((outcome, value)) if options.dry_run => (outcome, value),
            Some(_) => match write(store, &one.order, options.allow_unknown, now).await {
                Ok((outcome, stored)) => (outcome, versioned(stored.value, stored.revision)),
                Err(error) => {
                    tell_error(&subject, &error);
                    if all > 1 {
                        eprintln!("caracal: {number} of {all} resources were written before it");
                    }
                    return Ok(ExitCode::from(error.code()));
                }
            },
        };
        let effects = if outcome == Outcome::Unchanged {
            &[][..]
        } else {
            &one.effects
        };
        say(options, &one.order, outcome.as_str(), effects);
        shown.push((ResourceType::Resource(one.order.kind), value));
    }
    print(options.form, &shown);
    Ok(ExitCode::SUCCESS)
}

fn tell_error(subject: &str, error: &WriteError) {
    match error {
        WriteError::Invalid(faults) => faults
            .iter()
            .for_each(|fault| eprintln!("caracal: {subject}: {fault}")),
        other => eprintln!("caracal: {subject}: {other}"),
    }
}

/// `pools.yaml, line 3: IPPool p`.
fn subject(order: &RequestedWrite) -> String {
    let what = match &order.key {
        Key::Resource {
            namespace: Some(namespace),
            name,
            ..
        } => format!("{} {namespace}/{name}", order.kind),
        _ => format!("{} {}", order.kind, order.name()),
    };
    match order.origin.is_empty() {
        true => what,
        false => format!("{}: {what}", order.origin),
    }
}

/// Says what became of a resource: on standard error beside data.
fn say(options: ApplyOptions, order: &RequestedWrite, outcome: &str, effects: &[String]) {
    let short = ResourceType::Resource(order.kind).short();
    let note = if options.dry_run {
        " (dry run: not written)"
    } else {
        ""
    };
    let mut lines = vec![format!("{short}/{} {outcome}{note}", order.name())];
    lines.extend(effects.iter().map(|effect| format!("  {effect}")));
    for line in lines {
        match options.form.is_data() {
            true => eprintln!("{line}"),
            false => println!("{line}"),
        }
    }
}

fn print(form: Form, shown: &[(ResourceType, Value)]) {
    match (form, shown) {
        (Form::Table | Form::Wide, _) | (_, []) => {}
        (Form::Name, all) => all
            .iter()
            .for_each(|(target, value)| println!("{}", super::name_of(*target, value))),
        (_, [(_, value)]) => form.output().print(value),
        (_, all) => {
            let items: Vec<&Value> = all.iter().map(|(_, value)| value).collect();
            let list = serde_json::json!({"kind": "List", "apiVersion": "v1", "items": items});
            form.output().print(&list);
        }
    }
}

/// Errors of the orders, by subject.
type Faults = Vec<(String, WriteError)>;

/// Checks every order against the schema, what is stored, and the orders before it.
async fn check<S: Store>(
    (store, datastore): (&S, &BTreeSet<IpAddr>),
    orders: Vec<RequestedWrite>,
    options: ApplyOptions,
    now: Timestamp,
) -> Result<Vec<Checked>, Faults> {
    let mut faults = Faults::new();
    let mut seen = BTreeSet::new();
    for order in &orders {
        if let WriteRule::ReadOnly(reason) = ResourceType::Resource(order.kind).writable() {
            let text = format!("it is read only: {reason}");
            faults.push((subject(order), invalid(text)));
        } else if !seen.insert(order.key.clone()) {
            let text = "it stands here a second time; one of the two is too many".to_owned();
            faults.push((subject(order), invalid(text)));
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let failed = |error: WriteError| vec![("the datastore".to_owned(), error)];
    let mut snapshot = cluster(store, &orders).await.map_err(failed)?;
    let services = match orders.iter().any(|order| order.kind == Kind::IpPool) {
        true => cluster_services(store).await,
        false => Vec::new(),
    };
    let mut checked = Vec::new();
    for order in orders {
        let known = stored(store, &order.key).await;
        let next = known.and_then(|known| {
            if options.skip_exists
                && known.is_some()
                && matches!(order.wanted, RequestedState::Create(_))
            {
                return Ok((known, None));
            }
            let next = order.next(known.as_ref(), now)?;
            Ok((known, Some(next)))
        });
        match next {
            Err(error @ WriteError::Store(_)) => return Err(vec![(subject(&order), error)]),
            Err(error) => faults.push((subject(&order), error)),
            Ok((known, next)) => match examine(&order, known.as_ref(), next, &snapshot, options) {
                Ok((mut one, after)) => {
                    let conflicts = new_conflicts(&snapshot, &after, datastore, &services);
                    one.warnings.extend(conflicts);
                    checked.push(Checked { order, ..one });
                    snapshot = after;
                }
                Err(found) => faults.push((subject(&order), WriteError::Invalid(found))),
            },
        }
    }
    if faults.is_empty() {
        Ok(checked)
    } else {
        Err(faults)
    }
}

fn invalid(reason: String) -> WriteError {
    WriteError::Invalid(vec![caracal_model::ValueError(reason)])
}

/// Looks at one resource as it would become, beside the rest of the cluster.
fn examine(
    order: &RequestedWrite,
    known: Option<&Stored>,
    next: Option<Value>,
    before: &Snapshot,
    options: ApplyOptions,
) -> Result<(Checked, Snapshot), Vec<caracal_model::ValueError>> {
    let mut checked = Checked {
        order: order.clone(),
        next: None,
        effects: Vec::new(),
        warnings: Vec::new(),
    };
    let Some(next) = next else {
        return Ok((checked, before.clone()));
    };
    let mut faults = order.faults(&next, known, options.allow_unknown);
    if faults.is_empty() {
        faults = Schema(order.kind).conflicts(order.name(), &next, before);
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut after = before.clone();
    let bytes = next.to_string().into_bytes();
    after.apply(&order.key.to_path(), Some(&bytes), before.revision + 1);
    checked.effects = effect::effects_of(order.kind, order.name(), before, &after);
    checked.warnings = Schema(order.kind).without_effect(&next);
    if options.allow_unknown {
        let unknown = Schema(order.kind).unknown_fields(&next, known.map(|k| &k.value));
        checked
            .warnings
            .extend(unknown.into_iter().map(|fault| fault.0));
    }
    let outcome = match known {
        None => Outcome::Created,
        Some(known) if known.value == next => Outcome::Unchanged,
        Some(_) => Outcome::Configured,
    };
    checked.next = Some((outcome, next));
    Ok((checked, after))
}

/// The ranges of the cluster's Services. Where they cannot be read, that is said, and pools are
/// written all the same.
async fn cluster_services<S: Store>(store: &S) -> Vec<Prefix> {
    match store.service_ranges().await {
        Ok(ranges) => ranges,
        Err(error) => {
            eprintln!(
                "caracal: no pool is compared with the range of the cluster's Services, which is not known: {error}"
            );
            Vec::new()
        }
    }
}

/// Ranges that lie over each other as soon as this is written, and did not before.
fn new_conflicts(
    before: &Snapshot,
    after: &Snapshot,
    datastore: &BTreeSet<IpAddr>,
    services: &[Prefix],
) -> impl Iterator<Item = String> {
    let known = range_conflicts(before, datastore, services);
    let found = range_conflicts(after, datastore, services).into_iter();
    let new = found.filter(move |conflict| !known.contains(conflict));
    new.map(|conflict| {
        let (_, name) = conflict.subject.rsplit_once('/').unwrap_or_default();
        format!("{name}: {}", conflict.reason)
    })
}

/// Resources that the checks of the orders need: pools, nodes, peers, filters; blocks only if a
/// pool or a peer, which may be a pod, changes.
async fn cluster<S: Store>(store: &S, orders: &[RequestedWrite]) -> Result<Snapshot, WriteError> {
    let about = |kinds: &[Kind]| orders.iter().any(|order| kinds.contains(&order.kind));
    let mut snapshot = Snapshot::default();
    let network = [
        Kind::Node,
        Kind::IpPool,
        Kind::BgpPeer,
        Kind::BgpFilter,
        Kind::BgpConfiguration,
    ];
    if !about(&network) {
        return Ok(snapshot);
    }
    let mut ranges: Vec<KeyRange> = network
        .map(|kind| KeyRange::Prefix(kind_prefix(kind)))
        .into();
    if about(&[Kind::IpPool, Kind::BgpPeer]) {
        let blocks = [Family::Ipv4, Family::Ipv6].map(blocks_prefix);
        ranges.extend(blocks.map(KeyRange::Prefix));
    }
    let answer = store.read(&ranges).await?;
    for entry in answer.ranges.iter().flatten() {
        snapshot.apply(&entry.key, Some(&entry.value), entry.mod_revision);
    }
    snapshot.revision = answer.revision;
    Ok(snapshot)
}
