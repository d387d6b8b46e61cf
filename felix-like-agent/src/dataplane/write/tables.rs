//! Carries out transactions on an nftables table of ours: by netlink what is elements and empty
//! chains alone, everything else by `nft`. Reads elements by netlink.

use std::io;
use std::sync::{Arc, Mutex, TryLockError};

use super::programs::{CommandError, TIME_LIMIT, run_as, unless_refused};
use crate::dataplane::netlink::nftables::TableSocket;
use crate::dataplane::read::hints::OwnChanges;
use crate::nft::{Edit, Element, SetName, Transaction};

/// In the place of a program's name.
const NETLINK: &str = "nftables by netlink";

/// Of elements that may have gone, so many are taken away in one transaction.
const AT_ONCE: usize = 256;

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

    /// Takes elements out of a set, of which some may have gone by themselves meanwhile.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(in crate::dataplane) async fn forget(
        &self,
        set: &str,
        elements: &[Element],
    ) -> Result<(), CommandError> {
        let set = SetName::from(set);
        let delete = |of: &[Element]| {
            let edit = Edit::Delete(Arc::clone(&set), of.to_vec());
            Arc::new(Transaction(vec![edit]))
        };
        for elements in elements.chunks(AT_ONCE) {
            if self.edit(&delete(elements)).await? {
                continue;
            }
            for element in elements {
                let delete = delete(std::slice::from_ref(element));
                if self.edit(&delete).await? || self.socket.is_some() {
                    continue;
                }
                let script = delete.script(self.table);
                let done = run_as("nft", &["-f", "-"], &script, Some(&self.changes)).await;
                unless_refused(done)?;
            }
        }
        Ok(())
    }

    /// The elements of a map, as `read` makes them of the octets of key and data. `None` = `nft`
    /// has to be asked.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(in crate::dataplane) async fn elements<T: Send + 'static>(
        &self,
        map: &str,
        read: fn(&[u8], &[u8]) -> Option<T>,
    ) -> Result<Option<Vec<T>>, CommandError> {
        let (table, map) = (self.table, map.to_owned());
        let work = move |socket: &mut TableSocket| socket.elements((table, &map), read);
        self.ask(work).await
    }

    /// False: it has to be done by `nft`.
    async fn edit(&self, transaction: &Arc<Transaction>) -> Result<bool, CommandError> {
        if !transaction.is_data() {
            return Ok(false);
        }
        let transaction = Arc::clone(transaction);
        let (changes, table) = (self.changes.clone(), self.table);
        let work = move |socket: &mut TableSocket| {
            changes.expect_from(socket.port());
            socket.transact(table, &transaction)
        };
        Ok(self.ask(work).await?.is_some())
    }

    /// Has the kernel asked. `None` = there is no socket, or the kernel refuses.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut TableSocket) -> io::Result<T> + Send + 'static,
    ) -> Result<Option<T>, CommandError> {
        let Some(socket) = self.socket.clone() else {
            return Ok(None);
        };
        // The kernel has one transaction at a time, and a long one of somebody else holds this one.
        let work = tokio::task::spawn_blocking(move || {
            let mut socket = match socket.try_lock() {
                Ok(socket) => socket,
                Err(TryLockError::Poisoned(socket)) => socket.into_inner(),
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            };
            work(&mut socket)
        });
        let timeout = || CommandError::Timeout { program: NETLINK };
        let done = tokio::time::timeout(TIME_LIMIT, work).await;
        let done = done.map_err(|_| timeout())?;
        match done.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(timeout()),
            Err(error) => {
                tracing::debug!(%error, table = self.table, "the kernel refuses");
                Ok(None)
            }
        }
    }
}
