//! One call of a runtime: its environment and configuration, and what follows from them on this
//! node.

use std::path::Path;

use caracal_datastore::KubernetesPod;

use crate::attachment::{Attachment, EndpointUid};
use crate::delegate::{Delegate, DelegateError, Part};
use crate::error::CniError;
use crate::settings::{self, Dirs};
use crate::spec::{Env, EnvError, NetConf};

/// A point that a call has passed. Reported as it goes; a test may end the process there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Milestone {
    /// ADD: addresses are held.
    AddressesHeld,
    /// ADD: the veth pair exists.
    PairMade,
    /// ADD: the pod's side is complete.
    PodConfigured,
    /// ADD: the endpoint is in the datastore.
    EndpointWritten,
    /// ADD: the kernel routes to the pod.
    RouteSeen,
    /// ADD: the pod's addresses are announced.
    Announced,
    /// DEL: the interface is gone.
    InterfaceDeleted,
    /// DEL: the endpoint is gone.
    EndpointDeleted,
    /// DEL: the addresses are free.
    AddressesReleased,
}

impl Milestone {
    /// All, in order.
    pub const ALL: [Self; 9] = [
        Self::AddressesHeld,
        Self::PairMade,
        Self::PodConfigured,
        Self::EndpointWritten,
        Self::RouteSeen,
        Self::Announced,
        Self::InterfaceDeleted,
        Self::EndpointDeleted,
        Self::AddressesReleased,
    ];
}

/// Called at each milestone.
pub(crate) type Progress<'a> = &'a (dyn Fn(Milestone) + Sync);

/// Which plugin was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PluginRole {
    /// `caracal-cni`: interface, endpoint, addresses.
    Main,
    /// `caracal-ipam`: addresses for another main plugin.
    Ipam,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Which plugin was called.
    pub role: PluginRole,
    /// The environment.
    pub env: Env,
    pub conf: NetConf,
    /// The configuration as it came in, for other plugins.
    pub stdin: Vec<u8>,
    /// The node's directories.
    pub dirs: Dirs,
    /// The attachment; for verbs without one its container is empty.
    pub attachment: Attachment,
    /// The pod, once Kubernetes was asked.
    pub pod: Option<KubernetesPod>,
}

impl Call {
    /// Reads the call. `get` looks up environment variables.
    ///
    /// # Errors
    /// [`CniError`].
    pub(crate) fn new(
        role: PluginRole,
        env: Env,
        stdin: Vec<u8>,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CniError> {
        let conf = NetConf::parse(&stdin)?;
        let kubernetes = conf.uses_kubernetes(&get);
        let dirs = Dirs::from_conf(&conf, get);
        let node = settings::node_name(&conf, &dirs)?;
        let mut attachment = Attachment::new(&env, &conf, node);
        attachment.wired = role == PluginRole::Main;
        if kubernetes {
            let uid = env.arg("K8S_POD_UID").filter(|uid| !uid.is_empty());
            attachment.uid = EndpointUid::OfPod(uid.map(str::to_owned));
        }
        Ok(Self {
            role,
            env,
            conf,
            stdin,
            dirs,
            attachment,
            pod: None,
        })
    }

    /// The path of the container's namespace, for verbs that need it.
    ///
    /// # Errors
    /// [`EnvError::Missing`].
    pub(crate) fn netns(&self) -> Result<&Path, EnvError> {
        self.env.netns.as_deref().ok_or(EnvError::Missing {
            variable: "CNI_NETNS",
            command: self.env.command.as_str(),
        })
    }

    /// True when the addresses are from Caracal's IPAM.
    #[must_use]
    pub(crate) fn has_own_addresses(&self) -> bool {
        self.role == PluginRole::Ipam || self.conf.ipam.is_ours()
    }

    /// The IPAM plugin to run, when addresses are not ours.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub(crate) fn delegate(&self) -> Result<Option<Delegate<'_>>, DelegateError> {
        if self.has_own_addresses() {
            return Ok(None);
        }
        Delegate::find(Part::Ipam, &self.conf.ipam.kind, &self.env, &self.stdin).map(Some)
    }
}
