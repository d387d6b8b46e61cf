//! STATUS: could an ADD be served now? The datastore must answer and know the node, and the node's process
//! must be up, since only it programs routes.

use std::io;
use std::path::PathBuf;

use caracal_datastore::store::Store;
use tokio::net::UnixStream;

use crate::call::{Call, Role};
use crate::endpoint::{self, EndpointError};
use crate::error::CniError;
use crate::spec::Command;

/// Why an ADD could not be served.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The node's process does not answer.
    #[error(
        "the node's process does not listen on {path:?}; is it running? \
         Without it no pod gets a route"
    )]
    Node {
        /// The admin socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The datastore does not serve.
    #[error("no pod can be attached now")]
    Datastore(#[source] EndpointError),
}

/// Checks the node's process (an IPAM plugin does without), the datastore, and a delegated IPAM plugin.
///
/// # Errors
/// [`StatusError`] with the reason, or the delegated plugin's.
pub async fn status<S: Store>(call: &Call, store: &S) -> Result<(), CniError> {
    if call.role == Role::Main {
        let path = call.dirs.admin_socket();
        UnixStream::connect(&path)
            .await
            .map_err(|source| StatusError::Node { path, source })?;
    }
    endpoint::read(store, &call.attachment)
        .await
        .map_err(StatusError::Datastore)?;
    if let Some(delegate) = call.delegate()? {
        delegate.run(Command::Status)?;
    }
    Ok(())
}
