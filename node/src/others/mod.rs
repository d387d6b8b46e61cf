//! Questions to other nodes: each is put to the node's own console, at the place that the node has
//! published of itself ([`crate::cluster_status`]). The answer is that of the node's console as it
//! is.
//!
//! A question that was put to a node is answered by that node and never passed on: what is asked
//! here are paths that the console of each node answers from its own owners.

mod exchange;
mod place;
mod questions;

use std::net::SocketAddr;

use hyper::StatusCode;
use hyper::body::Bytes;

use crate::exit::{ExitError, NOT_FOUND};

pub(crate) use exchange::ask;
pub(crate) use place::{find, published_place};
pub(crate) use questions::{routes_path, value_path};

/// Who can put questions to other nodes.
pub(crate) trait AskOthers: Clone + Send + Sync + 'static {
    /// The name of the node that asks.
    fn own_name(&self) -> &str;

    /// Puts a question to a node: the part of its path behind the API's version.
    fn ask_other(
        &self,
        node: &str,
        path: &str,
    ) -> impl Future<Output = Result<Bytes, NoAnswer>> + Send;
}

/// Where a node's console answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: String,
    pub(crate) has_tls: bool,
    pub(crate) address: SocketAddr,
    /// Version of the program there.
    pub(crate) version: String,
}

/// Why a node has not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("there is no node {0}; `caracal get nodes` lists those that are")]
    NoSuchNode(String),
    #[error("node {node} has no console that others can ask: {reason}")]
    NoConsole { node: String, reason: String },
    #[error("node {node} does not answer at {address}: {reason}")]
    Unreachable {
        node: String,
        address: SocketAddr,
        reason: String,
    },
    #[error("node {node} has not answered at {address} in {seconds} s")]
    Late {
        node: String,
        address: SocketAddr,
        seconds: u64,
    },
    #[error("what answers at {address} is not believed to be node {node}: {reason}")]
    Untrusted {
        node: String,
        address: SocketAddr,
        reason: String,
    },
    #[error("node {node} refuses us at {address}: {reason}")]
    Refused {
        node: String,
        address: SocketAddr,
        reason: String,
    },
    #[error("node {node} runs caracal {version}, whose console does not know this question")]
    Older { node: String, version: String },
    #[error("node {node} says: {reason}")]
    Said {
        node: String,
        status: StatusCode,
        reason: String,
    },
    #[error("node {node} cannot be asked: {reason}")]
    Ours { node: String, reason: String },
}

impl NoAnswer {
    /// What a console answers to whom it asked for.
    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchNode(_) => StatusCode::NOT_FOUND,
            Self::NoConsole { .. } => StatusCode::CONFLICT,
            Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::Refused { .. }
            | Self::Older { .. } => StatusCode::BAD_GATEWAY,
            Self::Late { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Said { status, .. } => *status,
            Self::Ours { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// For a command.
impl From<NoAnswer> for ExitError {
    fn from(error: NoAnswer) -> Self {
        let code = match error.status() {
            StatusCode::NOT_FOUND => NOT_FOUND,
            _ => 1,
        };
        Self::new(code, error.to_string())
    }
}
