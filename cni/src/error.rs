//! Every reason for which a call fails, and the error code each has on stdout.

use caracal_datastore::DatastoreConfigError;

use crate::addresses::AddressError;
use crate::assignment_stop::AssignmentsStopped;
use crate::delegate::DelegateError;
use crate::endpoint::EndpointError;
use crate::flannel_files::FlannelError;
use crate::gates::GateError;
use crate::kernel::link::KernelError;
use crate::kernel::netns::NetnsError;
use crate::kernel::route_wait::RouteWaitError;
use crate::kubernetes::PodError;
use crate::node_process::NodeProcessError;
use crate::pending_releases::PendingReleaseError;
use crate::second::SecondAttachmentError;
use crate::settings::PluginSettingsError;
use crate::spec::{Code, ConfigError, EnvError, Failure};

/// An error with its causes in one line, for logs.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// CHECK found that the attachment differs from what ADD made.
#[derive(Debug, thiserror::Error)]
#[error("the attachment of {ifname} differs from what was made: {}", .differences.join("; "))]
pub(crate) struct CheckError {
    /// The interface in the container.
    pub(crate) ifname: String,
    /// One sentence for each difference.
    pub(crate) differences: Vec<String>,
}

/// STATUS found why an ADD could not be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    /// The node's process does not answer.
    #[error(transparent)]
    Process(#[from] NodeProcessError),
    /// The node's process is not ready.
    #[error("node {node} is not ready: {reason}")]
    NotReady {
        node: String,
        /// The condition that it waits for.
        reason: String,
    },
    /// The datastore does not serve.
    #[error("no pod can be attached now")]
    Datastore(#[source] EndpointError),
    /// A program that the configuration wants to be ready is not.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The flannel daemon is not ready.
    #[error(transparent)]
    Flannel(FlannelError),
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    /// The environment.
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// stdin could not be read.
    #[error("cannot read the network configuration from stdin")]
    Stdin(#[source] std::io::Error),
    /// The runtime could not be made.
    #[error("cannot start: too few resources")]
    Runtime(#[source] std::io::Error),
    /// A setting of the node.
    #[error(transparent)]
    Settings(#[from] PluginSettingsError),
    /// The configuration of the datastore.
    #[error("the settings of the datastore are wrong")]
    Datastore(#[source] DatastoreConfigError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The pod in Kubernetes' API.
    #[error(transparent)]
    Pod(#[from] PodError),
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// A delegated plugin.
    #[error(transparent)]
    Delegate(#[from] DelegateError),
    /// The delegated IPAM plugin gave no address.
    #[error("the IPAM plugin {0} gave no address")]
    NoAddress(String),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A program that the configuration wants to be ready.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The node gives out no address now.
    #[error(transparent)]
    AssignmentsStopped(#[from] AssignmentsStopped),
    /// Another call for the same container takes long.
    #[error(
        "another call for this container has been under way for {seconds} s; the runtime should try again"
    )]
    Busy {
        /// How long was waited.
        seconds: u64,
    },
    /// The container has an attachment that this one would take the place of.
    #[error(transparent)]
    SecondAttachment(#[from] SecondAttachmentError),
    /// The agent's route.
    #[error(transparent)]
    RouteWait(#[from] RouteWaitError),
    /// The notes of earlier DELs.
    #[error(transparent)]
    PendingRelease(#[from] PendingReleaseError),
    /// Files of flannel's plugin.
    #[error(transparent)]
    Flannel(#[from] FlannelError),
    /// The attachment is not as ADD made it.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// An ADD could not be served.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// `prevResult` is no result.
    #[error("network configuration: prevResult is no CNI result")]
    PrevResult(#[source] serde_json::Error),
}

impl From<NetnsError> for CniError {
    fn from(error: NetnsError) -> Self {
        Self::Kernel(error.into())
    }
}

impl CniError {
    /// The code on stdout.
    #[must_use]
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Env(_) | Self::SecondAttachment(_) => Code::InvalidEnvironment,
            Self::Config(ConfigError::Decode(_) | ConfigError::Type { .. })
            | Self::PrevResult(_) => Code::Decode,
            Self::Config(ConfigError::Version(_)) => Code::IncompatibleVersion,
            Self::Config(ConfigError::Unsupported { .. }) => Code::UnsupportedField,
            Self::Config(ConfigError::Invalid { .. }) | Self::Settings(_) | Self::Datastore(_) => {
                Code::InvalidConfig
            }
            Self::Stdin(_) | Self::Runtime(_) => Code::Io,
            Self::Endpoint(error) => endpoint_code(error),
            Self::Pod(PodError::Config(_) | PodError::NoRange(_)) => Code::InvalidConfig,
            Self::Pod(error) if error.is_transient() => Code::TryAgainLater,
            Self::Pod(_) => Code::Datastore,
            Self::Addresses(error) if error.is_transient() => Code::TryAgainLater,
            Self::Addresses(_) | Self::NoAddress(_) => Code::Addresses,
            Self::Delegate(DelegateError::Failed { code, .. }) if *code != 0 => {
                Code::Foreign(*code)
            }
            Self::Delegate(_) => Code::Delegate,
            Self::Kernel(error) => kernel_code(error),
            Self::Gate(_) | Self::AssignmentsStopped(_) | Self::Busy { .. } => Code::TryAgainLater,
            Self::RouteWait(RouteWaitError::Missing { .. }) => Code::RouteMissing,
            Self::RouteWait(RouteWaitError::Kernel(error)) => kernel_code(error),
            Self::PendingRelease(error) => pending_release_code(error),
            Self::Flannel(error) => flannel_code(error),
            Self::Check(_) => Code::Differs,
            Self::Status(_) => Code::NotAvailable,
        }
    }

    /// The error object for stdout.
    #[must_use]
    pub(crate) fn failure(&self) -> Failure {
        Failure::new(self.code(), self)
    }
}

const fn flannel_code(error: &FlannelError) -> Code {
    match error {
        FlannelError::NotReady { .. } => Code::TryAgainLater,
        FlannelError::SubnetEnv { .. } | FlannelError::Saved { .. } => Code::Decode,
        FlannelError::File { .. } => Code::Io,
        FlannelError::Occupied { .. } => Code::InvalidEnvironment,
        FlannelError::Unknown { .. } => Code::UnknownContainer,
    }
}

fn endpoint_code(error: &EndpointError) -> Code {
    if error.is_transient() {
        Code::TryAgainLater
    } else {
        Code::Datastore
    }
}

const fn kernel_code(error: &KernelError) -> Code {
    match error {
        KernelError::Netns(NetnsError::Gone { .. }) => Code::UnknownContainer,
        KernelError::Netns(NetnsError::Host { .. }) => Code::InvalidEnvironment,
        _ => Code::Kernel,
    }
}

fn pending_release_code(error: &PendingReleaseError) -> Code {
    match error {
        PendingReleaseError::File { .. } | PendingReleaseError::Decode { .. } => Code::Io,
        PendingReleaseError::Busy => Code::TryAgainLater,
        PendingReleaseError::Endpoint(error) => endpoint_code(error),
        PendingReleaseError::Addresses(error) if error.is_transient() => Code::TryAgainLater,
        PendingReleaseError::Addresses(_) => Code::Addresses,
    }
}
