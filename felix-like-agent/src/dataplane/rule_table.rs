//! Keeps small nftables tables as they were written: for networks that are not Calico's.

use std::sync::Arc;

use tokio::sync::Notify;

use super::read::hints::{self, Listener, OwnChanges};
use super::write::programs::{CommandError, run, run_as, unless_refused};

/// Why a table is not as it should be.
#[derive(Debug, thiserror::Error)]
#[error("the table {table} cannot be written")]
pub struct RuleTableError {
    table: &'static str,
    #[source]
    source: CommandError,
}

impl RuleTableError {
    /// True when `nft` did not end in time: it is there, and what it would have said is not known.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        self.source.is_timeout()
    }
}

/// The only writer of one nftables table in the calling thread's network namespace.
#[derive(Debug)]
pub struct RuleTable {
    /// `ip` or `ip6`.
    family: &'static str,
    name: &'static str,
    own: OwnChanges,
    changed: Arc<Notify>,
    /// Held for its task. `None` = nobody tells of changes.
    _listener: Option<Listener>,
    /// What was written, and how `nft` lists it.
    written: Option<(String, String)>,
    /// Somebody else may have changed it.
    doubted: bool,
}

impl RuleTable {
    /// A writer of the table `name` of `family` (`ip` or `ip6`). Must be called inside a tokio
    /// runtime.
    #[must_use]
    pub fn new(family: &'static str, name: &'static str) -> Self {
        let (own, changed) = (OwnChanges::default(), Arc::new(Notify::new()));
        let listener = hints::table(name, Arc::clone(&changed), own.clone());
        Self {
            family,
            name,
            own,
            changed,
            _listener: listener.ok(),
            written: None,
            doubted: false,
        }
    }

    /// Resolves when somebody else has changed the table; the next [`RuleTable::put`] reads it.
    pub async fn changed_by_others(&mut self) {
        self.changed.notified().await;
        self.doubted = true;
    }

    /// Puts `chains` (nft's words) in the place of what the table holds, in one transaction, unless
    /// it holds just these. True when it was written.
    ///
    /// # Errors
    /// [`RuleTableError`] when `nft` cannot be run or refuses.
    pub async fn put(&mut self, chains: &str) -> Result<bool, RuleTableError> {
        let table = self.table();
        let listing = format!("list {table}\n");
        let name = self.name;
        let failed = |source| RuleTableError {
            table: name,
            source,
        };
        if let Some((written, listed)) = &self.written
            && written == chains
        {
            let untouched = !self.doubted
                || run("nft", &["-f", "-"], &listing)
                    .await
                    .is_ok_and(|now| now == *listed);
            if untouched {
                self.doubted = false;
                return Ok(false);
            }
        }
        let script = format!("{table} {{}}\ndelete {table}\n{table} {{\n{chains}}}\n");
        self.written = None;
        let own = Some(&self.own);
        run_as("nft", &["-f", "-"], &script, own)
            .await
            .map_err(failed)?;
        let listed = run("nft", &["-f", "-"], &listing).await.map_err(failed)?;
        self.written = Some((chains.to_owned(), listed));
        self.doubted = false;
        Ok(true)
    }

    /// Removes the table, which need not be there.
    ///
    /// # Errors
    /// [`RuleTableError`] when `nft` cannot be run or refuses.
    pub async fn remove(&mut self) -> Result<(), RuleTableError> {
        let table = self.table();
        self.written = None;
        let script = format!("{table} {{}}\ndelete {table}\n");
        let removed = run_as("nft", &["-f", "-"], &script, Some(&self.own)).await;
        removed.map(drop).map_err(|source| RuleTableError {
            table: self.name,
            source,
        })
    }

    /// The same; false where it was not there. Without `nft` nobody made one.
    ///
    /// # Errors
    /// [`RuleTableError`] when `nft` refuses, or does not end.
    pub async fn remove_if_there(&mut self) -> Result<bool, RuleTableError> {
        let listing = format!("list {}\n", self.table());
        let listed = unless_refused(run("nft", &["-f", "-"], &listing).await);
        let listed = listed.map_err(|source| RuleTableError {
            table: self.name,
            source,
        })?;
        if listed.is_some() {
            self.remove().await?;
        }
        Ok(listed.is_some())
    }

    /// In nft's words.
    fn table(&self) -> String {
        format!("table {} {}", self.family, self.name)
    }
}
