//! `caracal lab kill|stop|start|cut|heal`: faults of a lab that a person makes and mends, so that
//! what the scenarios of `tests/` measure can be seen by hand.

use crate::etcd::EtcdError;
use crate::fault::FaultError;
use crate::kubernetes::KubernetesError;
use crate::lab::Lab;
use crate::node::NodeError;
use crate::topology::Datastore;
use crate::wait::Timeout;

/// What a person does to a part of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabFault {
    /// SIGKILL to the process of a node, or of the datastore.
    Kill,
    /// SIGTERM, and the wait for its end.
    Stop,
    /// The process again, until it serves.
    Start,
    /// Every packet is lost at the switch; the carrier stays.
    Cut,
    /// The end of [`LabFault::Cut`].
    Heal,
}

/// Why a fault was not made or mended.
#[derive(Debug, thiserror::Error)]
pub enum LabFaultError {
    /// The process of a node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The network.
    #[error(transparent)]
    Network(#[from] FaultError),
    /// etcd does not start.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The API server does not start.
    #[error(transparent)]
    ApiServer(#[from] KubernetesError),
    /// The datastore does not end.
    #[error(transparent)]
    Datastore(#[from] Timeout),
}

impl Lab {
    /// Makes or mends a fault of a node, a router (its network) or `datastore`.
    ///
    /// # Errors
    /// [`LabFaultError`].
    pub(crate) fn make_fault(
        &mut self,
        target: &str,
        fault: LabFault,
    ) -> Result<(), LabFaultError> {
        if target == "datastore" {
            return on_datastore(self, fault);
        }
        match fault {
            LabFault::Kill => self.kill9_node(target)?,
            LabFault::Stop => self.stop_node(target)?,
            LabFault::Start => self.restart_node(target)?,
            LabFault::Cut => self.isolate(target)?,
            LabFault::Heal => self.rejoin(target)?,
        }
        Ok(())
    }
}

fn on_datastore(lab: &mut Lab, fault: LabFault) -> Result<(), LabFaultError> {
    let on_kubernetes = lab.topology().datastore == Datastore::Kubernetes;
    match fault {
        LabFault::Kill | LabFault::Stop if on_kubernetes => lab.kill9_api_server()?,
        LabFault::Kill => lab.kill9_etcd()?,
        LabFault::Stop => lab.stop_etcd()?,
        LabFault::Start if on_kubernetes => lab.start_api_server()?,
        LabFault::Start => lab.start_etcd()?,
        LabFault::Cut => lab.isolate("etcd")?,
        LabFault::Heal => lab.rejoin("etcd")?,
    }
    Ok(())
}

impl LabFault {
    /// What became of a target, and how it ends.
    #[must_use]
    pub(crate) fn sentence(self, target: &str) -> String {
        let (what, back) = match self {
            Self::Kill => ("killed", Some("start")),
            Self::Stop => ("ended", Some("start")),
            Self::Start => ("serves", None),
            Self::Cut => ("cut off: every packet to and from it is lost", Some("heal")),
            Self::Heal => ("on the network again", None),
        };
        let back = back.map(|back| format!("; back with: caracal lab {back} {target}"));
        format!("{target}: {what}{}", back.unwrap_or_default())
    }
}
