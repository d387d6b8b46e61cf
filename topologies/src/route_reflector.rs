//! Route reflection (RFC 4456): which of our peers are our clients.
//!
//! A node with a cluster id is a reflector. It has no mesh sessions; BGPPeer resources say who its
//! clients are, usually "every node peers with every reflector".

use caracal_bgp::{Asn, ClusterId};

/// The cluster of a peer when it is our client: we are a reflector, the session is internal, and
/// the peer is not known to be a reflector of the same cluster. Reflectors that share a cluster id
/// are plain peers.
///
/// The cluster id of a peer that is given by its address is not known, so two reflectors that peer
/// by address are clients of each other, as in Calico.
#[must_use]
pub(crate) fn client_of(
    own: Option<ClusterId>,
    own_as: Asn,
    peer_as: Asn,
    peer: Option<ClusterId>,
) -> Option<ClusterId> {
    own.filter(|own| own_as == peer_as && peer != Some(*own))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClusterId = ClusterId(std::net::Ipv4Addr::new(244, 0, 0, 1));
    const B: ClusterId = ClusterId(std::net::Ipv4Addr::new(244, 0, 0, 2));

    #[test]
    fn clients_by_cluster_and_as() {
        let (us, other) = (Asn(64512), Asn(65000));
        assert_eq!(client_of(None, us, us, None), None);
        assert_eq!(client_of(None, us, us, Some(A)), None);
        assert_eq!(client_of(Some(A), us, us, None), Some(A));
        assert_eq!(client_of(Some(A), us, us, Some(A)), None);
        assert_eq!(client_of(Some(A), us, us, Some(B)), Some(A));
        assert_eq!(client_of(Some(A), us, other, None), None);
    }
}
