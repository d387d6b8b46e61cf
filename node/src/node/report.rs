//! Report of this node during a change of the whole cluster: a key of its own in the datastore,
//! there while the change is under way.

use caracal_datastore::{Store, StoreError};
use caracal_model::{KeyRange, Txn};
use serde::Serialize;

/// Makes the key hold the report, or be gone.
///
/// # Errors
/// [`StoreError`]. That somebody else wrote at the same time is none: nobody does but one who
/// clears the key away, and the caller looks again.
pub(crate) async fn store_report<S: Store>(
    store: &S,
    path: String,
    report: Option<&impl Serialize>,
) -> Result<(), StoreError> {
    let answer = store.read(&[KeyRange::Key(path.clone())]).await?;
    let stored = answer.ranges.into_iter().flatten().next();
    let value = report.map(|r| serde_json::to_vec(r).expect("a report is always valid JSON"));
    let txn = match (stored, value) {
        (None, None) => return Ok(()),
        (Some(stored), None) => Txn::new().delete(path, stored.mod_revision),
        (None, Some(value)) => Txn::new().create(path, value),
        (Some(stored), Some(value)) => Txn::new().update(path, stored.mod_revision, value),
    };
    store.commit(&txn).await.map(|_| ())
}
