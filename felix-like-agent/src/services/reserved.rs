//! What is not the Services': addresses and ports that are never translated, and endpoints that
//! nobody is sent to. Whoever writes a Service may be a tenant; what a node needs to be a node is
//! not theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use caracal_model::{
    DocumentKind, InsertEach, NodeAddresses, Prefix, ReservedRanges, ServiceAddressKind, Snapshot,
    out_of_reach,
};

use super::address::{ServiceAddress, ServiceTarget};
use super::settings::ServiceNode;
use crate::nat::BFD_PORTS;
use crate::plan::nat;
use crate::transport::Transport;

/// The Service of Kubernetes' API itself: who reaches the API by its cluster address asks for the
/// translation.
const API_SERVICE: &str = "default/kubernetes";

/// The port of name servers (RFC 1035 §4.2).
const NAMES: u16 = 53;

/// The first port that needs no privilege to listen on.
const FIRST_NODE_PORT: u16 = 1024;

/// What is reserved beside the addresses of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    /// Where this node reaches its datastore.
    datastore: BTreeSet<SocketAddr>,
    /// The datastore is Kubernetes' API.
    on_kubernetes: bool,
    /// Where the servers of Kubernetes' API listen, which this node and others may reach by a
    /// cluster address or a balancer alone.
    api_servers: BTreeSet<SocketAddr>,
    /// Ports on which nodes speak with each other: BGP, BFD, VXLAN.
    pub(super) guarded: BTreeSet<(Transport, u16)>,
    /// Where this node listens itself.
    pub(super) listeners: BTreeSet<SocketAddr>,
    /// Whom this node asks for names.
    name_servers: BTreeSet<IpAddr>,
    /// Addresses of this node.
    own: BTreeSet<IpAddr>,
    /// Peers of nodes outside the cluster, with their ports.
    peers: BTreeMap<IpAddr, BTreeSet<u16>>,
    ranges: ReservedRanges,
}

impl Reserved {
    /// `registered`: addresses of this node's Node resource; `vxlan`: the nodes' port.
    pub(super) fn new(
        snapshot: &Snapshot,
        own: &ServiceNode,
        registered: &BTreeSet<IpAddr>,
        vxlan: u16,
    ) -> Self {
        let bgp = nat::bgp_ports(snapshot);
        let tcp = bgp.into_iter().map(|port| (Transport::Tcp, port));
        let udp = BFD_PORTS.into_iter().chain([vxlan]);
        let mut peers: BTreeMap<IpAddr, BTreeSet<u16>> = BTreeMap::new();
        let named = snapshot.bgp_peers.values();
        for (address, port) in named.filter_map(|peer| peer.spec.peer_address()) {
            let port = port.unwrap_or(nat::BGP_PORT);
            peers.entry(address).or_default().insert(port);
        }
        Self {
            datastore: own.datastore.clone(),
            on_kubernetes: own.on_kubernetes,
            api_servers: api_servers(snapshot),
            guarded: tcp
                .chain(udp.map(|port| (Transport::Udp, port)))
                .insert_each(),
            listeners: own.listeners.clone(),
            name_servers: own.name_servers.clone(),
            own: registered | &own.addresses,
            peers,
            ranges: ReservedRanges::from_snapshot(snapshot),
        }
    }

    /// Endpoints of the datastore and of Kubernetes' API that are left alone in the kernel as well.
    /// `api`: the cluster addresses of [`API_SERVICE`].
    pub(super) fn spared(&self, api: &BTreeSet<IpAddr>) -> BTreeSet<SocketAddr> {
        let is_services = |at: &&SocketAddr| self.on_kubernetes && api.contains(&at.ip());
        let spared = self.datastore.iter().filter(|at| !is_services(at));
        spared.chain(&self.api_servers).copied().insert_each()
    }

    /// Why a Service (`NAMESPACE/NAME`) may not have an address; `None` = it may.
    pub(super) fn refuses(
        &self,
        nodes: &NodeAddresses,
        (service, kind): (&str, ServiceAddressKind),
        at: &ServiceAddress,
    ) -> Option<String> {
        let ServiceAddress {
            address,
            protocol,
            port,
        } = *at;
        let asked = kind != ServiceAddressKind::NodePort;
        // An API server gives out ports of its range; in etcd anybody writes any.
        if !asked && !self.on_kubernetes && port < FIRST_NODE_PORT {
            return Some("ports of nodes below 1024 are for the machine's own services".to_owned());
        }
        if let Some(reason) = asked.then(|| self.ranges.refuses(address)).flatten() {
            return Some(reason);
        }
        let is_cluster = kind == ServiceAddressKind::ClusterIp;
        let is_api = self.on_kubernetes && is_cluster && service == API_SERVICE;
        let is_tcp = protocol == Transport::Tcp;
        if is_tcp && !is_api && self.datastore.contains(&SocketAddr::new(address, port)) {
            return Some("this node reaches its datastore there".to_owned());
        }
        if is_tcp && self.api_servers.contains(&SocketAddr::new(address, port)) {
            return Some("a server of Kubernetes' API listens there".to_owned());
        }
        // A cluster's own name server may be a machine's, by its cluster address.
        if port == NAMES && !is_cluster && self.name_servers.contains(&address) {
            return Some("this machine asks its name server there".to_owned());
        }
        let is_own = self.own.contains(&address);
        let is_node = is_own || nodes.has(address);
        if let Some(reason) = self.guards(is_node, at.protocol, (address, port)) {
            return Some(reason);
        }
        let here = |at: &&SocketAddr| at.port() == port && listens(at, address);
        if is_own && is_tcp && self.listeners.iter().any(|at| here(&at)) {
            return Some("this node itself listens there".to_owned());
        }
        // Each port of a cluster address is translated or refused.
        let is_datastores = self.datastore.iter().any(|at| at.ip() == address) && !is_api;
        let is_api_servers = self.api_servers.iter().any(|at| at.ip() == address);
        let machines = [
            (is_node, "a node"),
            (is_datastores, "the datastore"),
            (is_api_servers, "a server of Kubernetes' API"),
            (self.peers.contains_key(&address), "a peer of the nodes"),
        ];
        let found = machines.into_iter().find(|(is, _)| is_cluster && *is);
        found.map(|(_, whose)| format!("it is the address of {whose}"))
    }

    /// Why nobody is sent to an endpoint; `None` = it is one.
    pub(super) fn refuses_endpoint(
        &self,
        nodes: &NodeAddresses,
        protocol: Transport,
        target: &ServiceTarget,
    ) -> Option<String> {
        let address = target.address;
        if let Some(what) = out_of_reach(address) {
            return Some(format!("it is {what}"));
        }
        let is_node = self.own.contains(&address) || nodes.has(address);
        self.guards(is_node, protocol, (address, target.port))
    }

    /// The port of a node, or of a peer, that is for nodes alone.
    fn guards(
        &self,
        is_node: bool,
        protocol: Transport,
        (address, port): (IpAddr, u16),
    ) -> Option<String> {
        if is_node && self.guarded.contains(&(protocol, port)) {
            return Some("nodes speak BGP, BFD or VXLAN with a node there".to_owned());
        }
        let ports = self.peers.get(&address)?;
        let is_peers = match protocol {
            Transport::Tcp => ports.contains(&port),
            Transport::Udp => BFD_PORTS.contains(&port),
            Transport::Sctp => false,
        };
        is_peers.then(|| "a BGPPeer of the nodes listens there".to_owned())
    }

    /// Why nothing may be dropped for being sent to an unused address of a range; `None` = it may.
    pub(super) fn refuses_range(&self, nodes: &NodeAddresses, range: &Prefix) -> Option<String> {
        let inside = |address: &IpAddr| range.contains(*address);
        if let Some(pool) = self.ranges.overlapping(range) {
            return Some(format!("it overlaps the pool {pool}"));
        }
        let own = self.own.iter().copied().find(inside);
        if let Some(address) = own.or_else(|| nodes.first_in(range)) {
            return Some(format!("the address {address} of a node lies in it"));
        }
        if let Some(peer) = self.peers.keys().find(|address| inside(address)) {
            return Some(format!("the peer {peer} lies in it"));
        }
        // Of Kubernetes' API it may be the cluster address.
        let mut datastore = self.datastore.iter().map(SocketAddr::ip);
        let found = datastore.find(inside).filter(|_| !self.on_kubernetes);
        found.map(|address| format!("the datastore's endpoint {address} lies in it"))
    }

    /// True when it depends on the addresses of nodes whether this port may be used.
    pub(super) fn concerns(&self, protocol: Transport, port: u16) -> bool {
        self.guarded.contains(&(protocol, port))
    }
}

/// The endpoints of [`API_SERVICE`], from the slice that the API servers keep themselves.
fn api_servers(snapshot: &Snapshot) -> BTreeSet<SocketAddr> {
    let Some((namespace, name)) = API_SERVICE.split_once('/') else {
        return BTreeSet::new();
    };
    let key = (
        DocumentKind::EndpointSlice,
        namespace.to_owned(),
        name.to_owned(),
    );
    let slice = snapshot.documents.get(&key);
    let Some(slice) = slice.and_then(|document| document.slice()) else {
        return BTreeSet::new();
    };
    let endpoints = slice.endpoints.iter();
    let addresses = endpoints.filter_map(|endpoint| endpoint.address);
    let at = |address| {
        let ports = slice.ports.iter().filter(|port| port.port != 0);
        ports.map(move |port| SocketAddr::new(address, port.port))
    };
    addresses.flat_map(at).insert_each()
}

/// True when a socket that listens here takes what is sent to an address of this node.
fn listens(at: &SocketAddr, address: IpAddr) -> bool {
    // An IPv6 socket for all addresses takes IPv4 connections too.
    let all = at.ip().is_unspecified() && (at.is_ipv6() || address.is_ipv4());
    all || at.ip() == address
}
