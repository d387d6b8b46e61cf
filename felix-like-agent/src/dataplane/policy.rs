//! Writes the table of policy: transactions, adoption of the table after a start, and what others
//! do to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caracal_model::{NodeName, PolicyData};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::read::hints::{self, Listener, OwnChanges};
use super::revocation::{InForce, Revocation};
use super::write::programs::{CommandError, run, unless_refused};
use super::write::tables::TableWriter;
use crate::links::Links;
use crate::nft::Transaction;
use crate::policy::{self, POLICY_TABLE, PolicyCounts, PolicySettings, PolicyTable, RefusedChain};

/// Why the table is not as planned.
#[derive(Debug, thiserror::Error)]
#[error("the table of policy cannot be written")]
pub struct PolicyWriteError(#[source] CommandError);

/// The table of policy after a pass.
#[derive(Clone, Debug, Default)]
pub struct PolicyStatus {
    /// The revision that is in force.
    pub revision: i64,
    /// Transactions since the start.
    pub transactions: u64,
    /// How long the last pass that wrote something took.
    pub last_write: Duration,
    /// Passes that did not make the table what it should be.
    pub failures: u64,
    /// Chains that are closed because `nft` does not take them.
    pub refused: Vec<RefusedChain>,
    ended_flows: Arc<AtomicU64>,
    table: Arc<PolicyTable>,
}

impl PolicyStatus {
    /// Flows that were ended since the start, because a change did not allow them any more.
    #[must_use]
    pub fn ended_flows(&self) -> u64 {
        self.ended_flows.load(Ordering::Relaxed)
    }

    /// How much is in the table.
    #[must_use]
    pub fn counts(&self) -> PolicyCounts {
        self.table.counts()
    }

    /// True when packets to and from this interface are judged by its policies.
    #[must_use]
    pub fn is_in_force(&self, interface: &str) -> bool {
        self.table.has(interface)
    }

    /// The interfaces whose packets a host endpoint of this node judges.
    #[must_use]
    pub fn interfaces_of_host(&self, name: &str) -> &[String] {
        self.table.interfaces_of(name)
    }
}

/// What is known of the table in the kernel.
#[derive(Debug)]
enum Known {
    /// It has to be read.
    Nothing,
    /// There is none.
    Absent,
    Table(Arc<PolicyTable>),
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Nothing,
    /// Nothing that was allowed before is forbidden.
    AllowsMore,
    MayForbid,
}

/// The only writer of the table of policy in the calling thread's network namespace.
#[derive(Debug)]
pub struct PolicyWriter {
    me: NodeName,
    settings: PolicySettings,
    known: Known,
    /// What was written after the table was last read, and how it was listed then.
    sealed: Option<(u64, Arc<PolicyTable>)>,
    writer: TableWriter,
    changed: Arc<Notify>,
    revocation: Revocation,
    /// Flows were looked at since the start: what was in force when an earlier process ended them
    /// is not known.
    has_looked: bool,
    /// Chains that `nft` did not take, and what it said. Their names say what is in them: it takes
    /// them no more when they come again.
    refused: BTreeMap<Box<str>, String>,
    /// The interfaces with their addresses, where a host endpoint asks for them.
    links: Option<Links>,
    /// Something of interfaces or addresses has changed.
    readdressed: Arc<Notify>,
    /// Held for their tasks. `None` = nobody tells of changes.
    _listeners: [Option<Listener>; 2],
    status: PolicyStatus,
}

impl PolicyWriter {
    /// A writer that knows nothing of the kernel yet. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(me: NodeName) -> Self {
        let (writes, changed) = (OwnChanges::default(), Arc::new(Notify::new()));
        let status = PolicyStatus::default();
        let listener = hints::table(POLICY_TABLE, Arc::clone(&changed), writes.clone());
        let readdressed = Arc::new(Notify::new());
        let addresses = hints::addresses(Arc::clone(&readdressed));
        Self {
            me,
            settings: PolicySettings::default(),
            known: Known::Nothing,
            sealed: None,
            writer: TableWriter::new(POLICY_TABLE, writes),
            changed,
            revocation: Revocation::spawn(Arc::clone(&status.ended_flows)),
            has_looked: false,
            refused: BTreeMap::new(),
            links: None,
            readdressed,
            _listeners: [listener.ok(), addresses.ok()],
            status,
        }
    }

    /// Takes settings; the next pass has them.
    pub fn set_settings(&mut self, settings: PolicySettings) {
        self.settings = settings;
    }

    /// The table after the last pass.
    #[must_use]
    pub const fn status(&self) -> &PolicyStatus {
        &self.status
    }

    /// Resolves when somebody else has changed the table; the next pass reads it, and writes all
    /// its chains anew unless they are listed as before. Or when addresses have changed that host
    /// endpoints ask for.
    pub async fn changed_by_others(&mut self) {
        tokio::select! {
            () = self.changed.notified() => self.known = Known::Nothing,
            () = self.readdressed.notified(), if self.links.is_some() => {}
        }
    }

    /// Reads the interfaces, where a host endpoint asks for their addresses.
    async fn read_links(&mut self, data: &PolicyData) {
        if !policy::asks_for_addresses(data, &self.me) {
            self.links = None;
            return;
        }
        match super::read_links().await {
            Ok(links) => self.links = Some(links),
            Err(error) => {
                let reason = super::chain(&error);
                tracing::warn!(reason, "host endpoints keep the interfaces that they have");
                self.links.get_or_insert_default();
            }
        }
    }

    /// Makes the table what the policies ask for; they must be complete. After an error the next
    /// pass reads the table first.
    ///
    /// # Errors
    /// [`PolicyWriteError`] when `nft` cannot be run or refuses.
    pub async fn pass(
        &mut self,
        data: &PolicyData,
        revision: i64,
    ) -> Result<&PolicyStatus, PolicyWriteError> {
        self.read_links(data).await;
        let nothing = Links::default();
        let links = self.links.as_ref().unwrap_or(&nothing);
        let table = PolicyTable::plan(data, &self.me, &self.settings, links);
        let written = self.write(table).await;
        self.status.failures += u64::from(written.is_err());
        // After an error it is not known what was in force meanwhile.
        let has_looked = std::mem::replace(&mut self.has_looked, written.is_ok());
        let has_marked = self.revocation.has_marked();
        let is_looked_at = match written? {
            Written::Nothing => false,
            Written::AllowsMore => has_marked,
            Written::MayForbid => true,
        };
        if is_looked_at || !has_looked {
            let (table, takes) = (Arc::clone(&self.status.table), self.settings.nodes_take);
            let in_force = InForce::new(table, data, &self.me, takes);
            self.revocation.look(in_force);
        }
        self.status.revision = revision;
        Ok(&self.status)
    }

    /// Before anything is known of policies: where there is no table, one is made that lets nothing
    /// through to or from endpoints, unless some are at work here. A table that an earlier process
    /// left stays as it is.
    ///
    /// # Errors
    /// [`PolicyWriteError`] when `nft` cannot be run or refuses.
    pub async fn close(&mut self, endpoints_at_work: bool) -> Result<(), PolicyWriteError> {
        self.read().await?;
        match self.known {
            Known::Absent if !endpoints_at_work => {
                let closed = PolicyTable::closed(&self.settings);
                self.write(closed).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    async fn read(&mut self) -> Result<(), PolicyWriteError> {
        if !matches!(self.known, Known::Nothing) {
            return Ok(());
        }
        let listing = match run("nft", &["-f", "-"], &policy::listing()).await {
            Ok(listing) => listing,
            Err(CommandError::Refused { .. }) => {
                self.known = Known::Absent;
                return Ok(());
            }
            Err(error) => return Err(PolicyWriteError(error)),
        };
        let (mut table, strays) = PolicyTable::adopt(&listing);
        let seal = policy::structure(&listing);
        if let Some((_, written)) = self.sealed.as_ref().filter(|(known, _)| *known == seal) {
            table.trust(written);
        }
        self.change(strays).await?;
        self.known = Known::Table(Arc::new(table));
        Ok(())
    }

    async fn write(&mut self, mut table: PolicyTable) -> Result<Written, PolicyWriteError> {
        let started = Instant::now();
        let is_read = matches!(self.known, Known::Nothing);
        self.read().await?;
        let known = std::mem::replace(&mut self.known, Known::Nothing);
        let before = match &known {
            Known::Table(table) => Some(&**table),
            Known::Nothing | Known::Absent => None,
        };
        self.refused.retain(|chain, _| table.close_chain(chain));
        let [first, second, last] = table.since(before);
        let has_written = [&first, &second, &last]
            .into_iter()
            .any(|t| !t.0.is_empty());
        self.change(first).await?;
        match self.change(second).await {
            Err(PolicyWriteError(CommandError::Refused { .. })) => {
                self.close_refused(&mut table, before).await?;
                let [_, second, _] = table.since(before);
                self.change(second).await?;
            }
            done => done?,
        }
        self.change(last).await?;
        let refused = self.refused.iter();
        let refused = refused.map(|(chain, reason)| table.refused(chain, reason));
        self.status.refused = refused.collect();
        let mut written = Written::Nothing;
        if has_written {
            written = match table.may_forbid_since(before) {
                true => Written::MayForbid,
                false => Written::AllowsMore,
            };
        }
        let table = Arc::new(table);
        // Where our own doing is not told from others', the next look finds what it knows.
        if is_read && has_written {
            let outline = run("nft", &["-t", "-f", "-"], &policy::listing()).await;
            let outline = outline.map_err(PolicyWriteError)?;
            self.sealed = Some((policy::structure(&outline), Arc::clone(&table)));
        }
        self.known = Known::Table(Arc::clone(&table));
        self.status.table = table;
        if has_written {
            self.status.last_write = started.elapsed();
            tracing::info!(took = ?self.status.last_write, "policy written");
        }
        Ok(written)
    }

    /// Finds the chains that `nft` does not take, by trial, and closes them: half of them, and half
    /// of a half that it refuses.
    async fn close_refused(
        &mut self,
        table: &mut PolicyTable,
        before: Option<&PolicyTable>,
    ) -> Result<(), PolicyWriteError> {
        let all = table.unwritten(before);
        let mut groups = vec![&all[..]];
        while let Some(group) = groups.pop() {
            let trial = run("nft", &["-c", "-f", "-"], &table.trial(&all, group)).await;
            match (trial, group) {
                (Ok(_), _) => {}
                (Err(CommandError::Refused { stderr, .. }), [chain]) => {
                    let reason = stderr.lines().next().unwrap_or_default().trim();
                    tracing::warn!(chain = &**chain, reason, "a chain of policy is closed");
                    self.refused.insert(chain.clone(), reason.to_owned());
                }
                (Err(CommandError::Refused { .. }), group) => {
                    let (one, other) = group.split_at(group.len() / 2);
                    groups.extend([one, other].into_iter().filter(|half| !half.is_empty()));
                }
                (Err(error), _) => return Err(PolicyWriteError(error)),
            }
        }
        for chain in self.refused.keys() {
            table.close_chain(chain);
        }
        Ok(())
    }

    async fn change(&mut self, transaction: Transaction) -> Result<(), PolicyWriteError> {
        if transaction.0.is_empty() {
            return Ok(());
        }
        self.status.transactions += 1;
        let result = self.writer.write(transaction).await;
        result.map_err(PolicyWriteError)
    }

    /// True when the calling thread's network namespace has the table.
    ///
    /// # Errors
    /// [`PolicyWriteError`] when `nft` does not end in time: nothing is known then.
    pub async fn is_there() -> Result<bool, PolicyWriteError> {
        let tables = run("nft", &["list", "tables"], "").await;
        let tables = unless_refused(tables).map_err(PolicyWriteError)?;
        let name = format!("table inet {POLICY_TABLE}");
        Ok(tables.is_some_and(|tables| tables.lines().any(|line| line == name)))
    }

    /// Takes the table away, if there is one: nothing is judged any more.
    ///
    /// # Errors
    /// [`PolicyWriteError`] when `nft` cannot be run or refuses.
    pub async fn remove() -> Result<(), PolicyWriteError> {
        if !Self::is_there().await? {
            return Ok(());
        }
        let result = run("nft", &["-f", "-"], &policy::removal()).await;
        result.map(drop).map_err(PolicyWriteError)
    }
}
