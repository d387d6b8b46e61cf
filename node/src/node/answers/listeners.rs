//! Listens where health and metrics are to be served: from the first moment by the environment,
//! then by the datastore as well, and anew when that changes. What is to be served as before is not
//! interrupted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use caracal_datastore::View;
use caracal_model::Snapshot;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::config::ports::Ports;
use crate::http;
use crate::node::answers::Answers;
use crate::node::problems::ProblemReporter;

/// The listeners, by what they listen on.
pub(crate) struct Listeners {
    config: Arc<Config>,
    answers: Answers,
    serving: BTreeMap<SocketAddr, JoinHandle<()>>,
}

impl Listeners {
    /// Listens as the environment says, and by default.
    pub(crate) fn start(config: Arc<Config>, answers: Answers) -> Self {
        let (ports, _) = config.ports.with(&Snapshot::default(), &config.node);
        let mut listeners = Self {
            config,
            answers,
            serving: BTreeMap::new(),
        };
        listeners.serve(&ports);
        listeners
    }

    /// Follows the datastore for ever. `problems` hears of values that cannot be used.
    pub(crate) async fn follow(
        mut self,
        mut view: watch::Receiver<View>,
        problems: ProblemReporter,
    ) {
        loop {
            let snapshot = view.borrow_and_update().snapshot.clone();
            let (ports, wrong) = self.config.ports.with(&snapshot, &self.config.node);
            self.serve(&ports);
            problems.replace(wrong);
            if view.changed().await.is_err() {
                return;
            }
        }
    }

    /// Stops what is not wanted any more, then starts what is new: the same port may move to
    /// another address.
    fn serve(&mut self, ports: &Ports) {
        let wanted: Vec<SocketAddr> = ports.addresses().collect();
        self.serving.retain(|address, task| {
            let keep = wanted.contains(address);
            if !keep {
                tracing::info!(%address, "health and metrics are not served here any more");
                task.abort();
            }
            keep
        });
        for address in wanted {
            let serve = || tokio::spawn(http::serve(address, self.answers.clone()));
            self.serving.entry(address).or_insert_with(serve);
        }
    }
}
