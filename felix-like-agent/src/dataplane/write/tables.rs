//! Carries out transactions on an nftables table of ours: by netlink what is elements and empty
//! chains alone, everything else by `nft`.

use std::io;
use std::sync::{Arc, Mutex, TryLockError};

use super::programs::{CommandError, TIME_LIMIT, run_as};
use crate::dataplane::netlink::nftables::TableSocket;
use crate::dataplane::read::hints::OwnChanges;
use crate::nft::Transaction;

/// In the place of a program's name.
const NETLINK: &str = "nftables by netlink";

/// Writes one table of family `inet`.
#[derive(Debug)]
pub(in crate::dataplane) struct TableWriter {
    table: &'static str,
    changes: OwnChanges,
    /// `None` = by `nft` alone.
    socket: Option<Arc<Mutex<TableSocket>>>,
}

impl TableWriter {
    /// A writer in the calling thread's network namespace. What it changes is known as our own
    /// doing to whoever listens with `changes`.
    pub(in crate::dataplane) fn new(table: &'static str, changes: OwnChanges) -> Self {
        let opened = TableSocket::open();
        if let Err(error) = &opened {
            tracing::debug!(%error, table, "no netlink socket to nftables; nft changes elements");
        }
        Self {
            table,
            changes,
            socket: opened.ok().map(|socket| Arc::new(Mutex::new(socket))),
        }
    }

    /// Carries out a transaction, or nothing of it.
    ///
    /// # Errors
    /// What `nft` says, also of what the kernel has refused before.
    pub(in crate::dataplane) async fn write(
        &self,
        transaction: Transaction,
    ) -> Result<(), CommandError> {
        if transaction.0.is_empty() {
            return Ok(());
        }
        let transaction = Arc::new(transaction);
        if self.edit(&transaction).await? {
            return Ok(());
        }
        let script = transaction.script(self.table);
        drop(transaction);
        let changes = Some(&self.changes);
        let done = run_as("nft", &["-f", "-"], &script, changes).await;
        done.map(drop)
    }

    /// False: it has to be done by `nft`.
    async fn edit(&self, transaction: &Arc<Transaction>) -> Result<bool, CommandError> {
        let Some(socket) = self.socket.as_ref().filter(|_| transaction.is_data()) else {
            return Ok(false);
        };
        let (socket, transaction) = (Arc::clone(socket), Arc::clone(transaction));
        let (changes, table) = (self.changes.clone(), self.table);
        // The kernel has one transaction at a time, and a long one of somebody else holds this one.
        let work = tokio::task::spawn_blocking(move || {
            let mut socket = match socket.try_lock() {
                Ok(socket) => socket,
                Err(TryLockError::Poisoned(socket)) => socket.into_inner(),
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            };
            changes.expect_from(socket.port());
            socket.transact(table, &transaction)
        });
        let timeout = || CommandError::Timeout { program: NETLINK };
        let done = tokio::time::timeout(TIME_LIMIT, work).await;
        let done = done.map_err(|_| timeout())?;
        match done.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(timeout()),
            Err(error) => {
                tracing::debug!(%error, table, "elements are not changed by netlink");
                Ok(false)
            }
        }
    }
}
