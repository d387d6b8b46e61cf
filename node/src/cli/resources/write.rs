//! One write of a resource: what is stored, what it becomes, and a compare-and-swap between the
//! two.
//!
//! A write whose author has named a resourceVersion is made upon that version or not at all. Others
//! are decided anew on what somebody else has written meanwhile, as Calico's clients do.

use caracal_datastore::{Store, StoreError};
use caracal_model::{Key, KeyRange, Kind, Schema, Timestamp, Txn, TxnOutcome, ValueError};
use serde_json::{Map, Value};

use super::change::ResourceChange;
use crate::exit::{CONFLICT, NOT_FOUND, REFUSED};
use crate::register::uuid;

/// Tries of a write when others come first.
const TRIES: usize = 10;

/// Requested state of one resource.
#[derive(Clone, Debug)]
pub(super) enum RequestedState {
    /// This document, and nothing is there.
    Create(Value),
    /// This document, whatever is there.
    Apply(Value),
    /// This document, and something is there.
    Replace(Value),
    /// The stored resource with this change.
    Change(ResourceChange),
}

/// A write that is asked for.
#[derive(Clone, Debug)]
pub(super) struct RequestedWrite {
    /// Where it comes from, for sentences: `pools.yaml, line 3`; empty for the command line.
    pub(super) origin: String,
    pub(super) kind: Kind,
    pub(super) key: Key,
    pub(super) wanted: RequestedState,
}

/// A resource as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub(super) value: Value,
    pub(super) revision: i64,
}

/// Why a resource is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The datastore.
    #[error("{0}{hint}", hint = hint(.0))]
    Store(#[from] StoreError),
    /// It is there already.
    #[error("it exists already; `caracal apply` or `caracal replace` changes it")]
    Exists,
    /// It is not there.
    #[error("it does not exist")]
    NotFound,
    /// Somebody else was faster.
    #[error("{0}")]
    Stale(String),
    /// Others write it all the time.
    #[error("others changed it {TRIES} times in a row; try again")]
    Contention,
    /// It would not be valid.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<ValueError>),
    /// The stored value cannot be parsed, so it cannot be changed.
    #[error("the stored value is no resource: {0}; delete it, or correct it with another tool")]
    Unreadable(String),
}

fn hint(error: &StoreError) -> &'static str {
    match error {
        StoreError::Refused(reason) if reason.contains("space exceeded") => {
            ". etcd is full and takes no write: compact and defragment it (etcdctl compact, etcdctl defrag), then etcdctl alarm disarm"
        }
        _ => "",
    }
}

impl WriteError {
    /// The exit code.
    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Store(_) | Self::Unreadable(_) => 1,
            Self::NotFound => NOT_FOUND,
            Self::Stale(_) | Self::Contention => CONFLICT,
            Self::Exists | Self::Invalid(_) => REFUSED,
        }
    }

    fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(vec![ValueError(reason.into())])
    }
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Created,
    Configured,
    Unchanged,
}

impl Outcome {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Value stored under a key.
pub(super) async fn stored<S: Store>(store: &S, key: &Key) -> Result<Option<Stored>, WriteError> {
    let answer = store.read(&[KeyRange::Key(key.to_path())]).await?;
    let Some(entry) = answer.ranges.into_iter().flatten().next() else {
        return Ok(None);
    };
    match serde_json::from_slice(&entry.value) {
        Ok(value @ Value::Object(_)) => Ok(Some(Stored {
            value,
            revision: entry.mod_revision,
        })),
        Ok(other) => Err(WriteError::Unreadable(format!("it is {other}"))),
        Err(error) => Err(WriteError::Unreadable(error.to_string())),
    }
}

impl RequestedWrite {
    /// The name of the resource.
    pub(super) fn name(&self) -> &str {
        match &self.key {
            Key::Resource { name, .. } => name,
            _ => "",
        }
    }

    /// New value of the resource, given the stored one. Whether that is valid is another question.
    ///
    /// # Errors
    /// [`WriteError`] when the order does not go with what is stored.
    pub(super) fn next(
        &self,
        stored: Option<&Stored>,
        now: Timestamp,
    ) -> Result<Value, WriteError> {
        let document = match (&self.wanted, stored) {
            (RequestedState::Create(_), Some(_)) => return Err(WriteError::Exists),
            (RequestedState::Replace(_) | RequestedState::Change(_), None) => {
                return Err(WriteError::NotFound);
            }
            (RequestedState::Create(document) | RequestedState::Apply(document), None) => {
                if let Some(version) = version(document)? {
                    return Err(match self.wanted {
                        RequestedState::Create(_) => WriteError::invalid(format!(
                            "metadata.resourceVersion {version}: a new resource has none; `caracal get --export` leaves it out"
                        )),
                        _ => WriteError::Stale(format!(
                            "metadata.resourceVersion {version}: it has been deleted since; leave the version out to create it anew"
                        )),
                    });
                }
                document.clone()
            }
            (RequestedState::Apply(document) | RequestedState::Replace(document), Some(stored)) => {
                check_identity(document, stored)?;
                document.clone()
            }
            (RequestedState::Change(change), Some(stored)) => {
                let mut base = stored.value.clone();
                set(
                    &mut base,
                    "resourceVersion",
                    stored.revision.to_string().into(),
                );
                let changed = change.apply(base, self.kind).map_err(WriteError::invalid)?;
                check_identity(&changed, stored)?;
                changed
            }
        };
        Ok(self.complete(document, stored, now))
    }

    /// Puts in what is not the author's.
    fn complete(&self, mut document: Value, stored: Option<&Stored>, now: Timestamp) -> Value {
        if let Some(Value::Object(metadata)) = document.get_mut("metadata") {
            for name in ["resourceVersion", "selfLink"] {
                metadata.shift_remove(name);
            }
        }
        match stored {
            None => {
                set(&mut document, "uid", uuid().into());
                set(&mut document, "creationTimestamp", now.rfc3339().into());
            }
            Some(stored) => match self.wanted {
                RequestedState::Change(_) => Schema::keep_identity(&stored.value, &mut document),
                _ => Schema(self.kind).carry_over(&stored.value, &mut document),
            },
        }
        // A label changes nothing but the label.
        if !matches!(
            self.wanted,
            RequestedState::Change(ResourceChange::Labels(_))
        ) {
            Schema(self.kind).complete(&mut document);
        }
        ordered(document)
    }

    /// Everything that stands against the resource as it would become.
    pub(super) fn faults(
        &self,
        next: &Value,
        stored: Option<&Stored>,
        unknown_allowed: bool,
    ) -> Vec<ValueError> {
        if matches!(
            self.wanted,
            RequestedState::Change(ResourceChange::Labels(_))
        ) {
            return Schema(self.kind).validate_metadata(next);
        }
        let stored = stored.map(|stored| &stored.value);
        let mut faults = Schema(self.kind).validate(next);
        if !unknown_allowed {
            faults.extend(Schema(self.kind).unknown_fields(next, stored));
        }
        if let Some(stored) = stored {
            faults.extend(Schema(self.kind).immutable(stored, next));
        }
        faults
    }
}

/// Writes what was decided; decides anew on what others have written meanwhile.
pub(super) async fn write<S: Store>(
    store: &S,
    order: &RequestedWrite,
    unknown_allowed: bool,
    now: Timestamp,
) -> Result<(Outcome, Stored), WriteError> {
    let path = order.key.to_path();
    for _ in 0..TRIES {
        let stored = stored(store, &order.key).await?;
        let next = order.next(stored.as_ref(), now)?;
        if let Some(stored) = &stored
            && stored.value == next
        {
            return Ok((Outcome::Unchanged, stored.clone()));
        }
        let faults = order.faults(&next, stored.as_ref(), unknown_allowed);
        if !faults.is_empty() {
            return Err(WriteError::Invalid(faults));
        }
        let bytes = next.to_string().into_bytes();
        let (outcome, txn) = match &stored {
            None => (Outcome::Created, Txn::new().create(path.clone(), bytes)),
            Some(stored) => (
                Outcome::Configured,
                Txn::new().update(path.clone(), stored.revision, bytes),
            ),
        };
        if let TxnOutcome::Committed(revision) = store.commit(&txn).await? {
            let value = next;
            return Ok((outcome, Stored { value, revision }));
        }
    }
    Err(WriteError::Contention)
}

/// The version that an author has seen.
fn version(document: &Value) -> Result<Option<String>, WriteError> {
    match document.pointer("/metadata/resourceVersion") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(WriteError::invalid(format!(
            "metadata.resourceVersion {other}: expected a text"
        ))),
    }
}

/// A document that names a version or an identity is meant for that one.
fn check_identity(document: &Value, stored: &Stored) -> Result<(), WriteError> {
    let is = stored.revision.to_string();
    if let Some(seen) = version(document)?.filter(|seen| *seen != is) {
        return Err(WriteError::Stale(format!(
            "somebody has changed it: metadata.resourceVersion is {is}, not {seen}; get it again, or leave the version out"
        )));
    }
    let uid = |value: &Value| {
        let uid = value.pointer("/metadata/uid").and_then(Value::as_str);
        uid.filter(|uid| !uid.is_empty()).map(str::to_owned)
    };
    match (uid(document), uid(&stored.value)) {
        (Some(said), Some(is)) if said != is => Err(WriteError::Stale(format!(
            "it has been deleted and made anew: metadata.uid is {is}, not {said}; leave it out to change the new one"
        ))),
        _ => Ok(()),
    }
}

fn set(document: &mut Value, name: &str, value: Value) {
    if let Some(Value::Object(metadata)) = document.get_mut("metadata") {
        metadata.insert(name.to_owned(), value);
    }
}

/// The fields in the order in which Calico writes them.
fn ordered(document: Value) -> Value {
    let Value::Object(mut fields) = document else {
        return document;
    };
    let mut ordered = Map::new();
    for name in ["kind", "apiVersion", "metadata", "spec"] {
        if let Some(value) = fields.shift_remove(name) {
            ordered.insert(name.to_owned(), value);
        }
    }
    ordered.extend(fields);
    Value::Object(ordered)
}
