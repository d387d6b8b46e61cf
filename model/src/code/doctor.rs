//! Codes of what `caracal doctor` examines. Each finding has a verdict of its own; the severity
//! here is the worst that a check gives, and each finding has a fix for the very machine.

super::codes! {
    /// A check of `caracal doctor`.
    DoctorCode by Doctor
    DatastoreReachable "datastore.reachable" Error 0 "the datastore does not answer, or slowly"
        "check ETCD_ENDPOINTS or KUBECONFIG, the certificates and the way there; when it is slow, look at etcd's disk",
    DatastoreValues "datastore.values" Error 0 "a value in the datastore cannot be read"
        "correct it or delete it; the last good value is in use meanwhile",
    DatastoreFields "datastore.fields" Warning 0 "a field in the datastore is unknown or has no effect here"
        "correct its name, or take it out; docs/resources.md has all fields",
    DatastoreReady "datastore.ready" Error 0 "datastoreReady is false: somebody has locked the datastore, as for a migration"
        "`caracal datastore unlock`, once the migration is finished or given up",
    Policies "policies" Error 0 "there are policies, and nobody enforces them"
        "run a policy engine beside Caracal, or delete the policies",
    Clock "clock" Error 0 "another node writes times that are in this machine's future"
        "set the clock with NTP on both",
    KernelNetlink "kernel.netlink" Error 0 "the kernel cannot be asked"
        "run it as root in the node's network namespace, or with the capability NET_ADMIN",
    KernelVxlan "kernel.vxlan" Error 0 "a pool needs VXLAN, and the kernel has none"
        "`modprobe vxlan`, or change the pool with `caracal mode apply`",
    KernelIpip "kernel.ipip" Error 0 "a pool needs IPIP, and the kernel has none"
        "`modprobe ipip`, or change the pool with `caracal mode apply`",
    KernelIpv6 "kernel.ipv6" Notice 0 "the kernel has no IPv6"
        "nothing, unless a pool is IPv6",
    KernelNat "kernel.nat" Error 0 "a pool has natOutgoing, and neither nft nor iptables-legacy-restore is installed"
        "install nftables, or set natOutgoing to false in the pools",
    SysctlForwarding "sysctl.forwarding" Warning 0 "the kernel does not forward packets"
        "look for what sets it back: /etc/sysctl.d, a firewall; `caracal node` sets it when it starts",
    SysctlRpFilter "sysctl.rp_filter" Warning 0 "strict reverse path filtering drops packets while a pool changes its mode"
        "`sysctl -w net.ipv4.conf.all.rp_filter=2`, and the same of `default`",
    SysctlNeighbours "sysctl.neighbours" Error 0 "the kernel's table of neighbours is too small for the other nodes and the pods here"
        "raise `net.ipv4.neigh.default.gc_thresh2` and `gc_thresh3`, or those of IPv6, as doctor says",
    MtuDevice "mtu.device" Error 0 "a tunnel device sends larger packets than the interface below it carries"
        "unset the MTU fields of FelixConfiguration and `FELIX_*`: Caracal computes them",
    PortBgp "port.bgp" Error 0 "another program listens on the BGP port"
        "stop it (calico-node, bird, FRR), or set `listenPort` in the BGPConfiguration",
    LeftoverDevice "leftover.device" Error 0 "a device of another network plugin is there"
        "stop that plugin on this node, move its pods, then delete the device",
    CniConfiguration "cni.configuration" Error 0 "the runtime calls another CNI plugin, or none"
        "`caracal install-cni`, and remove the configuration that comes before it",
    CniPrograms "cni.programs" Error 0 "a plugin or file that the CNI configuration names is not there"
        "`caracal install-cni`; standard plugins come with the image or with the package containernetworking-plugins",
    Nodes "nodes" Error 0 "another node has no address in the datastore"
        "start its node process, or delete the Node",
    TcpBgp "tcp.bgp" Error 0 "another node's BGP port cannot be reached"
        "start caracal there, and allow the port between nodes in firewalls and security groups",
    MtuPath "mtu.path" Error 0 "packets of the size that this node sends do not arrive at another node"
        "set the interface's MTU to what the path carries, on all nodes",
    UdpVxlan "udp.vxlan" Error 0 "another node does not answer through the VXLAN tunnel"
        "allow UDP 4789 between nodes in firewalls and security groups",
    ProtocolIpip "protocol.ipip" Error 0 "another node does not answer through the IPIP tunnel"
        "allow IP protocol 4 between nodes; clouds that cannot (Azure) need VXLAN: `caracal mode apply`",
}
