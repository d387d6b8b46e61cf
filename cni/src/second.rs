//! A second attachment of a container: where the first one's interface or endpoint would be taken
//! for it, it is refused before anything is written (CNI-6).
//!
//! Names of interface and endpoint follow from the container and `CNI_IFNAME`, as Calico's do, and
//! not from the network: two networks cannot have one interface. In Kubernetes' API the endpoint is
//! a part of the pod, and there is one for each pod, that of `eth0`.

use caracal_model::{HandleId, IfName};

use crate::attachment::{Attachment, EndpointUid, FIRST_INTERFACE, Workload, handle_of_alias};
use crate::kernel::link::{KernelError, Links};

/// Why a container gets no second attachment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecondAttachmentError {
    /// Kubernetes' API has no place for its endpoint.
    #[error(
        "interface {ifname} (CNI_IFNAME) of pod {pod} is refused: with Kubernetes' API as the datastore a pod has one \
         attachment by this plugin, {FIRST_INTERFACE}, whose addresses are annotations of the pod; use another main plugin \
         for further interfaces (caracal-ipam can give it addresses), or the etcd datastore"
    )]
    NoPlace {
        /// `NAMESPACE/NAME`.
        pod: String,
        ifname: String,
    },
    /// Another network has the interface.
    #[error(
        "{ifname} of this container is an attachment of another network: {interface} on the host belongs to {owner}; \
         choose another CNI_IFNAME for this network, or delete that attachment first"
    )]
    Occupied {
        ifname: String,
        interface: IfName,
        owner: HandleId,
    },
}

/// Refuses what the datastore has no place for. Asks nobody.
///
/// # Errors
/// [`SecondAttachmentError::NoPlace`].
pub(crate) fn check_place(attachment: &Attachment) -> Result<(), SecondAttachmentError> {
    match (&attachment.uid, &attachment.workload) {
        (EndpointUid::OfPod(_), Workload::Pod { namespace, name })
            if attachment.wired && attachment.ifname != FIRST_INTERFACE =>
        {
            Err(SecondAttachmentError::NoPlace {
                pod: format!("{namespace}/{name}"),
                ifname: attachment.ifname.clone(),
            })
        }
        _ => Ok(()),
    }
}

/// The attachment of the same container, by another network, that has the interface of this one.
///
/// # Errors
/// [`KernelError::Refused`].
pub(crate) async fn occupant(
    host: &Links,
    attachment: &Attachment,
) -> Result<Option<HandleId>, KernelError> {
    let link = host.by_name(attachment.host_interface().as_str()).await?;
    let alias = link.and_then(|link| link.alias);
    let owner = alias.as_deref().and_then(handle_of_alias);
    Ok(owner.filter(|owner| attachment.is_same_container(owner)))
}

/// What an ADD says to an [`occupant`].
pub(crate) fn occupied(attachment: &Attachment, owner: HandleId) -> SecondAttachmentError {
    SecondAttachmentError::Occupied {
        ifname: attachment.ifname.clone(),
        interface: attachment.host_interface(),
        owner,
    }
}
