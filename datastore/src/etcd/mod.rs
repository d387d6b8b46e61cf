//! [`EtcdStore`]: the [`Store`] over etcd v3, with nothing newer than etcd 3.4.
//!
//! It connects when first used, to one endpoint, and keeps that one connection for everything; when
//! it breaks, the next call goes to the next endpoint. Reads are linearizable and tried again on
//! another endpoint; commits are sent at most once, because a lost answer does not tell whether the
//! writes happened. It never resumes a watch by itself: a watch ends with an error and the caller
//! lists again.

mod config;
mod connection;
mod error;
mod leased;
mod read;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Compare, KeyRange, KeyValue, Txn, TxnOutcome, TxnWrite};
use etcd_client::{Compare as EtcdCompare, CompareOp, PutOptions, Txn as EtcdTxn, TxnOp};

pub use self::config::{EtcdConfig, EtcdConfigError, EtcdCredentials};
use self::connection::{EtcdConnection, Session};
use self::error::EtcdFailure;
pub(crate) use self::watch::EtcdWatch;
use crate::store::{Cursor, FirstPages, Page, PagedStore, ReadAnswer, Store, StoreError};

/// Restarts of a read because what it had begun to read was compacted away.
const READ_RESTARTS: usize = 3;

/// A datastore in etcd v3. Clones share the connection.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    connection: Arc<EtcdConnection>,
}

impl EtcdStore {
    /// A store that connects when it is first used. Certificate files are read then, and again at
    /// every later connection, so renewed ones are picked up.
    ///
    /// # Errors
    /// A setting is missing, malformed, or contradicts another one.
    pub fn new(config: EtcdConfig) -> Result<Self, EtcdConfigError> {
        Ok(Self {
            connection: Arc::new(EtcdConnection::new(config)?),
        })
    }

    /// The endpoints, for messages.
    #[must_use]
    pub fn endpoints(&self) -> &str {
        self.connection.endpoints()
    }

    /// Says that this machine has these addresses no more. A connection from one of them is given
    /// up at once, for nothing can arrive on it; without this only its keepalives would notice.
    pub(crate) async fn addresses_gone(&self, gone: &BTreeSet<IpAddr>) {
        self.connection.addresses_gone(gone).await;
    }

    /// Runs a call that may be repeated, until an endpoint answers or all were tried.
    async fn repeatable<T, F>(&self, call: impl Fn(Session) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, EtcdFailure>>,
    {
        self.attempt(call, EtcdFailure::breaks_connection, true)
            .await
    }

    /// Runs a call that must not be repeated once it was sent.
    async fn once<T, F>(&self, call: impl Fn(Session) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, EtcdFailure>>,
    {
        self.attempt(call, EtcdFailure::is_unsent, false).await
    }

    /// `shares`: endpoints that were never heard from share the time of one request, so that
    /// several silent ones take no longer than one.
    async fn attempt<T, F>(
        &self,
        call: impl Fn(Session) -> F,
        again: fn(&EtcdFailure) -> bool,
        shares: bool,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, EtcdFailure>>,
    {
        let endpoints = self.connection.endpoint_count();
        // Twice at least: the connection may have died since the last call.
        let mut tries = endpoints.max(2);
        let mut silent = 0;
        loop {
            tries -= 1;
            let session = self.connection.session().await?;
            let unheard = !session.is_proven();
            let parts = if unheard && shares { endpoints } else { 1 };
            let answer = tokio::select! {
                biased;
                answer = self.connection.timed(parts, call(session.clone())) => answer,
                () = session.died() => Err(EtcdFailure::Ended),
            };
            let failure = match answer {
                Ok(answer) => {
                    session.proven();
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            if failure.breaks_connection() {
                self.connection.broken(&session).await;
            }
            if unheard && matches!(failure, EtcdFailure::Timeout(_)) {
                silent += 1;
            }
            // An endpoint that accepts connections and does not answer is not tried twice: another
            // wait gives no new information.
            if tries == 0 || silent == endpoints || !again(&failure) {
                return Err(self.connection.explain(failure, &session));
            }
        }
    }
}

impl Store for EtcdStore {
    type Watch = EtcdWatch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        let mut restarts = 0;
        loop {
            match read::read(self, ranges).await {
                Err(StoreError::Compacted { .. }) if restarts < READ_RESTARTS => restarts += 1,
                answer => return answer,
            }
        }
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        let request = &to_etcd(txn, None, Vec::new())?;
        let answer = self
            .once(|mut session| async move { Ok(session.kv.txn(request.clone()).await?) })
            .await?;
        if !answer.succeeded() {
            return Ok(TxnOutcome::Conflict);
        }
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok(TxnOutcome::Committed(revision))
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, StoreError> {
        self.repeatable(|session| {
            EtcdWatch::open(Arc::clone(&self.connection), session, prefix, revision)
        })
        .await
    }
}

impl PagedStore for EtcdStore {
    async fn first_pages(&self, ranges: &[KeyRange]) -> Result<FirstPages, StoreError> {
        read::first_pages(self, ranges).await
    }

    async fn next_page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Page, StoreError> {
        read::next_page(self, range, from, revision).await
    }

    async fn next_keys(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Option<Page>, StoreError> {
        read::next_keys(self, range, from, revision).await.map(Some)
    }

    async fn values(&self, keys: &[String], revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        read::values(self, keys, revision).await
    }
}

/// `lease`: what is written ends with it. `more`: further conditions.
fn to_etcd(txn: &Txn, lease: Option<i64>, more: Vec<EtcdCompare>) -> Result<EtcdTxn, StoreError> {
    let mut written = BTreeSet::new();
    if let Some(twice) = txn.writes.iter().find(|write| !written.insert(write.key())) {
        return Err(StoreError::Refused(format!(
            "a transaction writes {} twice",
            twice.key()
        )));
    }
    let mut compare: Vec<_> = txn
        .compare
        .iter()
        .map(|compare| match compare {
            Compare::Absent(key) => EtcdCompare::version(key.as_str(), CompareOp::Equal, 0),
            Compare::Unchanged(key, revision) => {
                EtcdCompare::mod_revision(key.as_str(), CompareOp::Equal, *revision)
            }
        })
        .collect();
    compare.extend(more);
    let options = lease.map(|id| PutOptions::new().with_lease(id));
    let writes: Vec<_> = txn
        .writes
        .iter()
        .map(|write| match write {
            TxnWrite::Put(key, value) => TxnOp::put(key.as_str(), value.clone(), options.clone()),
            TxnWrite::Delete(key) => TxnOp::delete(key.as_str(), None),
        })
        .collect();
    Ok(EtcdTxn::new().when(compare).and_then(writes))
}
