//! Keys that go with a lease of etcd's, as flannel's do.

use std::time::Duration;

use caracal_model::{KeyRange, KeyValue, LeasedTxn, LeasedValue, TxnOutcome};
use etcd_client::{Compare, CompareOp};

use super::read::{Bounds, PAGE, prefix_end, text};
use super::{EtcdStore, Session, to_etcd};
use crate::store::StoreError;

impl EtcdStore {
    /// Reads a range at one revision, each value with the lease that it ends with.
    ///
    /// # Errors
    /// [`StoreError`], as for reads without leases.
    pub async fn read_leased(
        &self,
        range: &KeyRange,
    ) -> Result<(i64, Vec<LeasedValue>), StoreError> {
        let mut bounds = Bounds::from_range(range);
        // Zero = the current one; the first answer says which that is.
        let mut revision = 0;
        let mut values = Vec::new();
        loop {
            let asked = &bounds;
            let mut answer = self
                .repeatable(|mut session| async move {
                    let options = asked.options(revision, PAGE);
                    Ok(session.kv.get(asked.start.clone(), Some(options)).await?)
                })
                .await?;
            if revision == 0 {
                revision = answer.header().map_or(0, |header| header.revision());
            }
            let more = answer.more();
            for kv in answer.take_kvs() {
                let (lease, mod_revision) = (kv.lease(), kv.mod_revision());
                let (key, value) = kv.into_key_value();
                bounds.start = [&key[..], &[0]].concat();
                let stored = KeyValue {
                    key: text(key),
                    value,
                    mod_revision,
                };
                values.push(LeasedValue { stored, lease });
            }
            if !more {
                return Ok((revision, values));
            }
        }
    }

    /// How long a lease of etcd's lasts still; `None` = it has ended.
    ///
    /// # Errors
    /// [`StoreError`], as for reads.
    pub async fn lease_left(&self, lease: i64) -> Result<Option<Duration>, StoreError> {
        let left = |mut session: Session| async move {
            Ok(session.lease.time_to_live(lease, None).await?)
        };
        let answer = self.repeatable(left).await?;
        Ok(u64::try_from(answer.ttl()).ok().map(Duration::from_secs))
    }

    /// Carries out a transaction whose values end with a lease of their own, which is granted
    /// before. It is sent at most once.
    ///
    /// # Errors
    /// [`StoreError`]; as for every commit it may have been carried out all the same.
    pub async fn commit_leased(&self, leased: &LeasedTxn) -> Result<TxnOutcome, StoreError> {
        let below = leased.unchanged_below.iter().map(|(prefix, revision)| {
            Compare::mod_revision(prefix.as_str(), CompareOp::Less, revision + 1)
                .with_range(prefix_end(prefix.as_bytes()))
        });
        let lease = match leased.ttl {
            Some(ttl) => {
                let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
                let granted = self
                    .once(
                        |mut session| async move { Ok(session.lease.grant(seconds, None).await?) },
                    )
                    .await?;
                Some(granted.id())
            }
            None => None,
        };
        let request = &to_etcd(&leased.txn, lease, below.collect())?;
        let answer = self
            .once(|mut session| async move { Ok(session.kv.txn(request.clone()).await?) })
            .await?;
        if answer.succeeded() {
            let revision = answer.header().map_or(0, |header| header.revision());
            return Ok(TxnOutcome::Committed(revision));
        }
        if let Some(id) = lease {
            // Nothing ends with it; one that stays is gone after its time.
            let revoke = |mut session: Session| async move { Ok(session.lease.revoke(id).await?) };
            if let Err(error) = self.once(revoke).await {
                tracing::debug!(%error, "a lease that nothing uses stays until it ends");
            }
        }
        Ok(TxnOutcome::Conflict)
    }
}
