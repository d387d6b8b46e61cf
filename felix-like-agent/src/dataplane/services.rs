//! Writes the table of services: transactions of elements, adoption of the table after a
//! start, and what others do to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use caracal_model::{NodeName, Problem, SharedMap, Snapshot};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::conntrack;
use super::read::hints::{self, Listener, OwnChanges};
use super::write::programs::{CommandError, run, unless_refused};
use super::write::tables::TableWriter;
use crate::nft::Transaction;
use crate::services::{
    self, Client, SERVICES_TABLE, ServiceAddress, ServiceEntry, ServiceHealth, ServiceNode,
    ServiceSettings, ServiceTable, ServiceTarget, TableChange,
};
use crate::settings::Overrides;
use crate::transport::Transport;

/// Why the table is not as planned.
#[derive(Debug, thiserror::Error)]
#[error("the table of services cannot be written")]
pub struct ServiceWriteError(#[source] CommandError);

impl ServiceWriteError {
    /// True when `nft` was ended for its time: what it would have said is not known.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        self.0.is_timeout()
    }
}

/// The table of services after a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceStatus {
    /// The revision that is in force.
    pub revision: i64,
    /// What each address does.
    pub entries: SharedMap<ServiceAddress, Arc<ServiceEntry>>,
    /// What load balancers are told, by where they ask (`healthCheckNodePort`).
    pub health: BTreeMap<SocketAddr, ServiceHealth>,
    /// Transactions since the start.
    pub transactions: u64,
    /// Elements and chains changed since the start.
    pub changed: u64,
    /// Flows of UDP that were forgotten since the start.
    pub forgotten_flows: u64,
    /// Connections of TCP to endpoints that are gone that were reset since the start.
    pub reset_connections: u64,
    /// Since when passes fail. `None` = the last one did not.
    pub failing_since: Option<Instant>,
    /// Passes that failed since the start.
    pub failures: u64,
    /// How long the last pass that wrote something took.
    pub last_write: Duration,
    /// Faults of the Services.
    pub problems: Vec<Problem>,
}

/// The only writer of the table of services in the calling thread's network namespace.
#[derive(Debug)]
pub struct ServiceWriter {
    own: ServiceNode,
    table: ServiceTable,
    writer: TableWriter,
    changed: Arc<Notify>,
    /// Held for its task. `None` = nobody tells of changes.
    _listener: Option<Listener>,
    status: ServiceStatus,
}

impl ServiceWriter {
    /// A writer that knows nothing of the kernel yet. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(me: NodeName, settings: ServiceSettings) -> Self {
        let (writes, changed) = (OwnChanges::default(), Arc::new(Notify::new()));
        let listener = hints::table(SERVICES_TABLE, Arc::clone(&changed), writes.clone());
        Self {
            own: ServiceNode::new(me, settings),
            table: ServiceTable::default(),
            writer: TableWriter::new(SERVICES_TABLE, writes),
            changed,
            _listener: listener.ok(),
            status: ServiceStatus::default(),
        }
    }

    /// Takes the addresses of this machine, without those of tunnels and workloads. The
    /// next pass has them.
    pub fn set_addresses(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.own.addresses.clone_from(addresses);
    }

    /// Takes what is not the Services' on this node: where it reaches its datastore, whether that
    /// is Kubernetes' API, where it listens itself beside BGP, and its `FELIX_*` variables. The
    /// next pass has them.
    pub fn set_reserved(
        &mut self,
        (datastore, on_kubernetes): (BTreeSet<SocketAddr>, bool),
        listeners: BTreeSet<SocketAddr>,
        overrides: &Overrides,
    ) {
        self.own.datastore = datastore;
        self.own.on_kubernetes = on_kubernetes;
        self.own.listeners = listeners;
        self.own.overrides.clone_from(overrides);
    }

    /// Says whom this machine asks for names: no Service takes its questions, by which it may find
    /// its datastore.
    pub fn set_name_servers(&mut self, servers: BTreeSet<IpAddr>) {
        self.own.name_servers = servers;
    }

    /// Resolves when somebody else has changed the table; the next pass reads it.
    pub async fn changed_by_others(&mut self) {
        self.changed.notified().await;
        self.table.doubt();
    }

    /// Makes the table what the snapshot asks for; the snapshot must be complete, and current
    /// unless there is no table.
    /// After an error the next pass reads the table first.
    ///
    /// # Errors
    /// [`ServiceWriteError`] when `nft` cannot be run or refuses.
    pub async fn pass(&mut self, snapshot: &Snapshot) -> Result<&ServiceStatus, ServiceWriteError> {
        let started = Instant::now();
        let result = self.write(snapshot).await;
        if result.is_err() {
            self.table.doubt();
            self.status.failures += 1;
        }
        let parts = result?;
        if parts > 0 {
            self.status.last_write = started.elapsed();
            tracing::info!(
                rev = snapshot.revision,
                elements = parts,
                addresses = self.status.entries.len(),
                "services written"
            );
        }
        self.status.revision = snapshot.revision;
        Ok(&self.status)
    }

    async fn write(&mut self, snapshot: &Snapshot) -> Result<usize, ServiceWriteError> {
        let mut change = match self.table.follow(snapshot, &self.own) {
            Some(change) => change,
            None => {
                let listing = run("nft", &["-f", "-"], &ServiceTable::listing()).await;
                let listing = match listing {
                    Ok(listing) => Some(listing),
                    // There is none.
                    Err(CommandError::Refused { .. }) => None,
                    Err(error) => return Err(ServiceWriteError(error)),
                };
                self.table.adopt(listing.as_deref())
            }
        };
        let wrote = !change.transactions.is_empty();
        for transaction in std::mem::take(&mut change.transactions) {
            self.change(transaction).await?;
        }
        if change.breaks_seal {
            self.seal().await?;
        }
        self.forget_clients(&change).await?;
        self.forget_flows(change.flows).await;
        if wrote || self.status.revision == 0 {
            self.status.entries = self.table.entries();
        }
        self.status.changed += change.parts as u64;
        self.status.problems = self.table.problems();
        self.status.health = self.table.health();
        Ok(change.parts)
    }

    /// Seals the table as it was written. What somebody else changes meanwhile is not sealed: it is
    /// heard of, and the next pass finds the seal broken.
    async fn seal(&mut self) -> Result<(), ServiceWriteError> {
        let outline = run("nft", &["-t", "-f", "-"], &ServiceTable::listing()).await;
        let outline = outline.map_err(ServiceWriteError)?;
        let heard = tokio::time::timeout(Duration::ZERO, self.changed.notified());
        if heard.await.is_ok() {
            self.changed.notify_one();
            return Ok(());
        }
        let seal = self.table.seal(&outline);
        self.change(seal).await
    }

    /// Clients that keep an endpoint which has gone are dealt anew.
    async fn forget_clients(&mut self, change: &TableChange) -> Result<(), ServiceWriteError> {
        for (map, allowed) in &change.clients {
            let clients = self.writer.elements(map, Client::of_octets).await;
            let clients = match clients.map_err(ServiceWriteError)? {
                Some(clients) => clients,
                None => {
                    let listing = run("nft", &["-f", "-"], &ServiceTable::listing_of(map)).await;
                    services::clients(&listing.map_err(ServiceWriteError)?)
                }
            };
            let strays = services::strays(&clients, allowed);
            let forgotten = self.writer.forget(map, &strays).await;
            forgotten.map_err(ServiceWriteError)?;
        }
        Ok(())
    }

    /// Flows to endpoints that are gone are forgotten, and those of UDP that were made before there
    /// was a Service. A connection of TCP is dealt anew with the next segment, and whoever gets it
    /// knows no such connection and resets it.
    async fn forget_flows(&mut self, flows: BTreeMap<ServiceAddress, BTreeSet<ServiceTarget>>) {
        if flows.is_empty() {
            return;
        }
        let ends = flows.keys().map(|of| (of.protocol, (of.address, of.port)));
        let ends: Vec<_> = ends.collect();
        let forgotten = tokio::task::spawn_blocking(move || {
            conntrack::forget_flows(&ends, |flow| {
                let (address, port) = flow.to;
                let known = flows.get(&ServiceAddress {
                    address,
                    protocol: flow.protocol,
                    port,
                });
                // A connection to this machine itself is nobody's to reset.
                let counts = flow.protocol == Transport::Udp || flow.answers != flow.to;
                let (address, port) = flow.answers;
                let target = ServiceTarget { address, port };
                counts && known.is_some_and(|flows| !flows.contains(&target))
            })
        });
        match forgotten.await {
            Ok(Ok(forgotten)) => {
                let number = |protocol| forgotten.get(&protocol).copied().unwrap_or_default();
                let (udp, tcp) = (number(Transport::Udp), number(Transport::Tcp));
                self.status.forgotten_flows += udp;
                self.status.reset_connections += tcp;
                if udp + tcp > 0 {
                    tracing::info!(udp, tcp, "flows to endpoints that are gone are forgotten");
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "conntrack cannot be asked"),
            Err(error) => tracing::warn!(%error, "conntrack was not asked"),
        }
    }

    async fn change(&mut self, transaction: Transaction) -> Result<(), ServiceWriteError> {
        self.status.transactions += 1;
        let result = self.writer.write(transaction).await;
        result.map_err(ServiceWriteError)
    }

    /// True when the calling thread's network namespace has the table.
    ///
    /// # Errors
    /// [`ServiceWriteError`] when `nft` does not end in time: nothing is known then.
    pub async fn is_there() -> Result<bool, ServiceWriteError> {
        let tables = run("nft", &["list", "tables"], "").await;
        let tables = unless_refused(tables).map_err(ServiceWriteError)?;
        let name = format!("table inet {SERVICES_TABLE}");
        Ok(tables.is_some_and(|tables| tables.lines().any(|line| line == name)))
    }

    /// Frees the way to the datastore: the table that an earlier process left, with whatever
    /// Service it was made of, leaves these endpoints alone. `on_kubernetes`: the datastore is
    /// Kubernetes' API, whose own cluster address stays translated.
    ///
    /// # Errors
    /// [`ServiceWriteError`] when `nft` cannot be run or refuses.
    pub async fn spare(
        datastore: &BTreeSet<SocketAddr>,
        on_kubernetes: bool,
    ) -> Result<(), ServiceWriteError> {
        let outline = run("nft", &["-t", "-f", "-"], &ServiceTable::listing()).await;
        let outline = match outline {
            Ok(outline) => outline,
            // There is none.
            Err(CommandError::Refused { .. }) => return Ok(()),
            Err(error) => return Err(ServiceWriteError(error)),
        };
        let mut spared = BTreeSet::new();
        for at in datastore {
            let question = ServiceTable::asking_for_cluster_address(at.ip());
            let is_services = on_kubernetes && run("nft", &["-f", "-"], &question).await.is_ok();
            if !is_services {
                spared.insert(*at);
            }
        }
        let script = services::spare(&outline, &spared);
        if script.is_empty() {
            return Ok(());
        }
        let result = run("nft", &["-f", "-"], &script).await;
        result.map(drop).map_err(ServiceWriteError)
    }

    /// Takes the table away, if there is one. Connections that it translates stall unless another
    /// table with translation is there.
    ///
    /// # Errors
    /// [`ServiceWriteError`] when `nft` cannot be run or refuses.
    pub async fn remove() -> Result<(), ServiceWriteError> {
        // Nothing is written where there is nothing to take away: almost always.
        if !Self::is_there().await? {
            return Ok(());
        }
        let result = run("nft", &["-f", "-"], &services::removal()).await;
        result.map(drop).map_err(ServiceWriteError)
    }
}
