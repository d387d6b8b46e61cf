//! Codes of what `caracal audit` finds.

super::codes! {
    /// A kind of finding of `caracal audit`.
    AuditCode by Audit
    DatastoreStale "CRL-D001" Error 5 "the datastore is out of reach or behind"
        "repair the datastore or the way to it; routes stay meanwhile, and nothing is deleted",
    InvalidValue "CRL-D002" Warning 0 "a value in the datastore cannot be used"
        "correct it or delete it",
    NodeMissing "CRL-D003" Error 10 "this node is not in the datastore"
        "nothing: the node writes its Node again; if it does not, CRL-D007 says why",
    FieldWithoutEffect "CRL-D004" Warning 0 "a field in the datastore is unknown or has no effect here"
        "correct its name, or take it out; docs/resources.md has all fields",
    NoWrites "CRL-D005" Error 0 "the datastore can be read and takes no writes"
        "follow the reason: etcd's alarm NOSPACE wants compaction, `defrag`, `alarm disarm`",
    NodeGone "CRL-D006" Warning 0 "another node's Node is gone while it is in use"
        "find out who deleted it; its node writes it again, or it is taken for gone after 20 s",
    NodeRecord "CRL-D007" Warning 0 "this node cannot keep what it writes on disk or in the datastore, or somebody else changed it"
        "follow the reason",
    RangesOverlap "CRL-D008" Error 0 "ranges or addresses of different roles lie over each other"
        "give one of them another range; both are in the reason",
    DatastoreLocked "CRL-D009" Error 0 "the datastore is locked, as for a migration: pods get no addresses"
        "`caracal datastore unlock`, once the migration is finished or given up",
    PolicyNotEnforced "CRL-D010" Error 0 "there are policies, and nobody enforces them"
        "run a policy engine beside Caracal, or delete the policies",
    PeerDown "CRL-B001" Error 0 "a BGP session is refused, or missing for longer than its hold time"
        "follow the reason; look at the same session from the other end",
    BlockNotOriginated "CRL-B002" Error 10 "a confirmed block of this node is not in the RIB as its own route"
        "look for CRL-B007 about the block's pool; if there is none, restart the node and report this",
    BlockNotAnnounced "CRL-B003" Error 20 "a block of this node is announced to nobody"
        "look at peers and export filters with `caracal bgp explain BLOCK`",
    NoPathToBlock "CRL-B004" Error 20 "no BGP path leads to another node's block"
        "look at that node: is it up, are its sessions, does it announce the block?",
    ListenFailed "CRL-B005" Error 5 "the BGP port cannot be listened on"
        "stop the other program on that port, or set listenPort",
    Drained "CRL-B006" Notice 0 "this node is drained"
        "caracal drain --undo takes it back into service",
    OwnerUnknown "CRL-B009" Error 0 "a route inside a pool waits for its owner to be known"
        "see `caracal bgp explain PREFIX`, and the affinities with `caracal ipam show`",
    NotOwner "CRL-B010" Warning 0 "a peer announces what another node has; it is not used"
        "see `caracal bgp explain PREFIX`; take it out of what the peer announces, or admit the peer",
    PathRefused "CRL-B011" Error 20 "this node does not use the paths to another node's block that it has"
        "follow the reason, on this node; `caracal bgp explain BLOCK` has all paths",
    PeerDisabled "CRL-B008" Notice 0 "a BGP peer is disabled"
        "`caracal bgp enable PEER` lets its session begin",
    BgpConfiguration "CRL-B007" Warning 0 "something in the BGP resources cannot be followed"
        "correct the resource",
    RouteMissing "CRL-R001" Error 10 "a planned route is not in the kernel"
        "if the agent does not write it by itself, look for CRL-K001 and at the log",
    RouteWrong "CRL-R002" Error 10 "a route of ours leads elsewhere than planned"
        "if the agent does not replace it by itself, look for CRL-K001 and at the log",
    RouteForeign "CRL-R003" Error 5 "a route of another program stands in the place of a planned one"
        "remove the other route if ours is the right one, or stop the program that writes it",
    RouteLeftover "CRL-R004" Warning 30 "a route of ours is not wanted any more"
        "if the agent does not delete it by itself, look for CRL-K001 and at the log",
    PathNotPlanned "CRL-R005" Error 10 "BGP has a best path that the agent has not planned for"
        "restart the node, and report this",
    NextHopMissing "CRL-H001" Error 10 "a next-hop object is missing or leads elsewhere than planned"
        "if the agent does not put it by itself, look for CRL-K001 and at the log",
    NextHopLeftover "CRL-H002" Warning 60 "no route leads through a next-hop object of ours"
        "if the agent does not delete it by itself, look for CRL-K001 and at the log",
    DeviceMissing "CRL-T001" Error 10 "a tunnel device is missing"
        "if the agent does not make it by itself, look for CRL-K001 and at the log",
    DeviceWrong "CRL-T002" Error 10 "a tunnel device is not made as planned, or is down"
        "if the agent does not set it right by itself, look for CRL-K001 and at the log",
    DeviceForeign "CRL-T003" Error 5 "a foreign device has the name of a tunnel device"
        "rename or remove the foreign device",
    TunnelAddressMissing "CRL-T004" Error 10 "a tunnel device lacks its address"
        "if the agent does not add it by itself, look for CRL-K001 and at the log",
    DeviceLeftover "CRL-T005" Warning 60 "a tunnel device of ours, or an address on one, is not wanted any more"
        "if the agent does not delete it by itself, look for CRL-K001 and at the log",
    FdbMissing "CRL-F001" Error 10 "an FDB entry is missing or wrong"
        "if the agent does not put it by itself, look for CRL-K001 and at the log",
    FdbLeftover "CRL-F002" Warning 60 "an FDB entry is not wanted any more"
        "if the agent does not delete it by itself, look for CRL-K001 and at the log",
    NeighbourMissing "CRL-N001" Error 10 "a neighbour entry is missing or wrong"
        "if the agent does not put it by itself, look for CRL-K001 and at the log",
    NeighbourLeftover "CRL-N002" Warning 60 "a neighbour entry is not wanted any more"
        "if the agent does not delete it by itself, look for CRL-K001 and at the log",
    NatWrong "CRL-A001" Error 100 "the NAT and forwarding rules are not those that are planned"
        "if the agent does not write them by itself, look for CRL-K001 and at the log",
    SysctlWrong "CRL-S001" Error 100 "a kernel setting is not as it has to be"
        "find the program that sets it (sysctl.d, another agent) and stop it",
    InterfaceMissing "CRL-W001" Error 10 "a workload is in the datastore and its interface is gone"
        "delete the workload, so that it is made anew or its endpoint goes",
    InterfaceDown "CRL-W002" Error 10 "the interface of a workload is down"
        "set it up, or delete the workload",
    InterfaceUnknown "CRL-W003" Warning 30 "a workload's interface belongs to no endpoint in the datastore"
        "if its workload is gone, delete the interface; else restart the workload",
    AddressNotAllocated "CRL-W004" Error 30 "a workload has an address that IPAM has not given out"
        "restart the workload before IPAM gives the address to another one; see `caracal ipam check`",
    Services "CRL-V001" Error 5 "services are not translated as they ask for"
        "follow the reason",
    ServicesMissing "CRL-V002" Error 10 "the table of services is not in the kernel, or lacks an element"
        "if the agent does not write it by itself, look for CRL-V001 and at the log",
    ServicesLeftover "CRL-V003" Warning 60 "the table of services has an element that no Service asks for"
        "if the agent does not delete it by itself, look for CRL-V001 and at the log",
    KernelRefused "CRL-K001" Error 5 "the kernel refuses a change"
        "follow the kernel's reason",
    Undone "CRL-K002" Error 0 "somebody undoes what the agent does"
        "find the other program, such as a second agent or a network manager, and stop it",
    KernelUnreadable "CRL-K003" Error 5 "the state of the kernel cannot be read"
        "look at the log; restart the node if it does not recover",
    NotSynced "CRL-K004" Warning 180 "the agent still deletes nothing"
        "bring up what it waits for",
    Behind "CRL-K005" Error 30 "the kernel is behind the datastore"
        "look for CRL-K001 and at the log",
    CannotPlan "CRL-P001" Error 10 "something that the datastore asks for cannot be done on this node"
        "follow the reason",
    PathNarrow "CRL-P002" Warning 0 "the path to another node carries less than this node's interface sends"
        "give the interfaces of all nodes the MTU that the network between them carries",
    UntoldRouter "CRL-P003" Warning 0 "unencapsulated packets for pods go through a router that nobody can have told of them"
        "encapsulate between subnets (`ipipMode` or `vxlanMode: CrossSubnet`), or peer with the router",
    Ipam "CRL-I001" Warning 30 "IPAM has not done what this node asked for"
        "follow the reason; see `caracal ipam check`",
}

impl AuditCode {
    /// Severity of a finding with this code.
    #[must_use]
    pub const fn severity(self) -> super::Severity {
        self.entry().severity
    }

    /// Age from which a finding counts.
    #[must_use]
    pub const fn grace(self) -> std::time::Duration {
        self.entry().grace
    }

    /// Remedy: the command or change that repairs it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        self.entry().remedy
    }
}
