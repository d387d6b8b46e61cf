//! How a reconciler runs, and by whom it is woken.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caracal_model::NodeName;
use tokio::sync::{Notify, mpsc, watch};

use crate::dataplane::netlink::NetlinkError;
use crate::dataplane::read::FdbNews;
use crate::dataplane::read::hints::{self, Listener, OwnChanges};
use crate::dataplane::read::monitor;
use crate::paths::PathMtus;
use crate::settings::{Overrides, Settings};

/// A connection that flaps, an election of etcd's or an API server that is updated is over by then,
/// and the rules stay. A node that joins meanwhile waits that long at most for its packets to be
/// taken here.
const TUNNEL_GUARD_PATIENCE: Duration = Duration::from_secs(30);

/// How the agent runs.
#[derive(Clone, Debug)]
pub struct ReconcilerOptions {
    /// The node whose kernel this is.
    pub me: NodeName,
    /// Built-in settings; FelixConfiguration is laid over them.
    pub settings: Settings,
    /// Settings that override FelixConfiguration.
    pub overrides: Overrides,
    /// How long a VXLAN device that no pool uses any more stays, so that nodes that have not
    /// switched yet are heard.
    pub tunnel_removal_delay: Duration,
    /// How long the datastore may be away before tunnel packets are taken from anybody.
    pub tunnel_guard_patience: Duration,
    /// The paths to other nodes are measured with echoes; what was known of them before, which
    /// holds until then. `None` = they are not measured.
    pub measure_paths: Option<PathMtus>,
    /// Nobody tells of changes that others make.
    #[cfg(test)]
    pub(in crate::dataplane) deaf: bool,
    /// Addresses of the datastore's endpoints: no route may cover them.
    pub lifelines: watch::Receiver<BTreeSet<IpAddr>>,
    /// Over which of the underlays that the reconciler has published the learned routes are
    /// resolved, said behind them; `None` = nobody says, and they are taken as they are.
    pub resolved: Option<watch::Receiver<u64>>,
    /// Folder of the file that says what sysctls were before; `None` = it is not kept.
    pub lib_dir: Option<PathBuf>,
}

impl ReconcilerOptions {
    /// The usual times.
    #[must_use]
    pub fn new(me: NodeName) -> Self {
        Self {
            me,
            settings: Settings::default(),
            overrides: Overrides::new(),
            tunnel_removal_delay: Duration::from_secs(30),
            tunnel_guard_patience: TUNNEL_GUARD_PATIENCE,
            measure_paths: None,
            #[cfg(test)]
            deaf: false,
            lifelines: watch::channel(BTreeSet::new()).1,
            resolved: None,
            lib_dir: None,
        }
    }

    /// Listeners for changes that others make.
    pub(in crate::dataplane) fn listeners(
        &self,
        wake_up: &Arc<Notify>,
        nat_wake_up: &Arc<Notify>,
        nat_changes: &OwnChanges,
        fdb: mpsc::Sender<FdbNews>,
        own_port: u32,
    ) -> Result<Vec<Listener>, NetlinkError> {
        #[cfg(test)]
        if self.deaf {
            return Ok(Vec::new());
        }
        let monitor = monitor::start(Arc::clone(wake_up), own_port, fdb)?;
        let listeners = [
            hints::objects(Arc::clone(wake_up), own_port),
            hints::sysctls(Arc::clone(wake_up)),
            hints::nftables(Arc::clone(nat_wake_up), nat_changes.clone()),
        ];
        // Without nftables there is nothing to listen to, and what is not notified is found by the
        // resync.
        let listeners = listeners.into_iter().flatten();
        Ok(listeners.chain([monitor]).collect())
    }
}
