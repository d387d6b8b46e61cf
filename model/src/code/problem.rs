//! Codes of what the owners of state report: `caracal status`, the log, the metric
//! `caracal_problems`. The word before the dot is the part of the program that found it.

super::codes! {
    /// A kind of [`Problem`](crate::snapshot::Problem).
    ProblemCode by Status
    AgentClusterSetting "agent.cluster_setting" Error 0 "a setting that all nodes have to have alike differs on this node: no VXLAN packet passes between it and others"
        "set it in the FelixConfiguration `default`, and take it out of `node.NAME`",
    AgentDuplicateAddress "agent.duplicate_address" Error 0 "two workloads of this node have one address"
        "delete one of them; `caracal ipam check`",
    AgentForeignDevice "agent.foreign_device" Error 0 "somebody else's device has the name of a tunnel device"
        "rename or remove it",
    AgentForeignRoute "agent.foreign_route" Error 0 "somebody else's route stands where ours belongs, or takes packets from it"
        "remove it, or stop the program that writes it",
    AgentForwardDropped "agent.forward_dropped" Error 0 "the policy of iptables' FORWARD chain drops what the node forwards"
        "`iptables -P FORWARD ACCEPT`, or a rule for the pods",
    AgentInvalidSetting "agent.invalid_setting" Warning 0 "a value of FelixConfiguration, BGPConfiguration or `FELIX_*` cannot be used"
        "correct it; what is expected is in the reason",
    AgentKernelRefused "agent.kernel_refused" Error 0 "the kernel refuses a change"
        "follow the kernel's reason",
    AgentKernelUnreadable "agent.kernel_unreadable" Error 0 "the kernel's state cannot be read"
        "look at the log; restart the node if it does not recover",
    AgentNextHopUnreachable "agent.next_hop_unreachable" Error 0 "the next hop of a learned route is on no link of this node"
        "look at that peer's `nextHopMode`, or bring the link up",
    AgentNoAddress "agent.no_address" Error 0 "a tunnel device lacks its address"
        "see `ipam.tunnel_address`; a pool with the use `Tunnel` is needed",
    AgentNoEndpoint "agent.no_endpoint" Error 0 "a container's interface is up, and the datastore has no endpoint for it: nothing is routed to it"
        "delete the pod, so that it is made anew; an interface that nobody needs any more: `ip link delete`",
    AgentNoIpip "agent.no_ipip" Error 0 "a pool asks for IPIP and the kernel has none"
        "`modprobe ipip`, or use VXLAN",
    AgentNoNode "agent.no_node" Error 0 "this node is not in the datastore"
        "restart the node, which registers it",
    AgentNoNodeAddress "agent.no_node_address" Error 0 "another node has no address of the pool's family"
        "give it one (`IP`, `IP6`)",
    AgentNoParent "agent.no_parent" Error 0 "no interface of this machine has the node's address"
        "put the address back, or correct the Node",
    AgentNodeAddressOfPods "agent.node_address_of_pods" Error 0 "a Node's address is one of a block for pods; routes to the block stay, and the address is used for nothing"
        "correct the address in the Node",
    AgentNoVtep "agent.no_vtep" Error 0 "another node names no VXLAN address"
        "look at that node: is it up? see `ipam.tunnel_address` there",
    AgentNoVxlan "agent.no_vxlan" Error 0 "a pool asks for VXLAN and the kernel has none"
        "`modprobe vxlan`, or use IPIP",
    AgentOwnBlockAnnounced "agent.own_block_announced" Error 0 "a peer announces a block of this node"
        "find who announces it: `caracal bgp explain BLOCK`",
    AgentPathMtu "agent.path_mtu" Warning 0 "the path to a node carries less than the interfaces send"
        "give the network one MTU",
    AgentProgramClusterRoutes "agent.program_cluster_routes" Warning 0 "neither resource claims a class of routes"
        "set `programClusterRoutes` in one of them",
    AgentRouteSyncDisabled "agent.route_sync_disabled" Warning 0 "`routeSyncDisabled` is true: no route is written"
        "set it to false",
    AgentRulesUnwritten "agent.rules_unwritten" Error 0 "the rules of masquerading, forwarding and guards are not as planned: neither nft nor iptables can write them"
        "follow the reason; it is tried again",
    AgentServiceLoops "agent.service_loops" Warning 0 "machines are in a range of services: what is sent to its unused addresses is not ended at this node"
        "take the machines out of the range, or set `serviceLoopPrevention: Disabled`",
    AgentSettingWithoutEffect "agent.setting_without_effect" Warning 0 "a FelixConfiguration value that would change what Felix does and changes nothing here"
        "take it out; docs/resources.md has all fields",
    AgentSourceAddress "agent.source_address" Warning 0 "no interface has the address of `deviceRouteSourceAddress`"
        "put the address on an interface, or take the setting out",
    AgentStrictRpFilter "agent.strict_rp_filter" Warning 0 "strict reverse path filtering on the uplink"
        "`sysctl net.ipv4.conf.INTERFACE.rp_filter=2`",
    AgentTunnelSenders "agent.tunnel_senders" Warning 0 "more senders of tunnel packets than iptables judges"
        "use nftables",
    AgentUndone "agent.undone" Error 0 "somebody undoes what the agent does"
        "find the other program and stop it",
    AgentUntoldRouter "agent.untold_router" Warning 0 "unencapsulated packets for pods go through a router, and no BGPPeer leads out of the cluster"
        "encapsulate between subnets (`ipipMode` or `vxlanMode: CrossSubnet`), or peer with the router",
    AgentWorkloadInterface "agent.workload_interface" Error 0 "a workload's interface does not exist, is not one of ours, or has another's name"
        "delete the workload, so that it is made anew",
    AgentWouldCutOff "agent.would_cut_off" Error 0 "a stored route or address would cut this node off from the datastore, a node or its own subnet; it is not written"
        "correct or delete what the problem names",
    AnnounceNoAddress "announce.no_address" Error 0 "a block is not announced: this node has no address of its family"
        "set `IP` or `IP6`",
    AnnounceNoPool "announce.no_pool" Error 0 "workloads have addresses of a block that lies in no pool; it is announced, but neither encapsulated nor masqueraded"
        "make the pool again as it was (`caracal delete ippool --force` printed the command), or delete the workloads",
    AuditLoss "audit.loss" Error 0 "what is in BGP or in the kernel is not what the datastore asks for, and packets are lost"
        "follow the reason; `caracal audit`",
    BgpAsNumber "bgp.as_number" Warning 0 "AS 0 in the BGPConfiguration"
        "set another, or take it out",
    BgpBindMode "bgp.bind_mode" Warning 0 "an unknown `bindMode`"
        "`NodeIP` or `None`",
    BgpCommunities "bgp.communities" Warning 0 "a community or range that is none"
        "correct the entry",
    BgpFilter "bgp.filter" Error 0 "a rule of a BGPFilter cannot be understood; its list refuses every route"
        "correct the rule",
    BgpFilterMissing "bgp.filter_missing" Warning 0 "a BGPPeer names a BGPFilter that does not exist"
        "make it, or take the name out",
    BgpGateway "bgp.gateway" Warning 0 "`reachableBy` is no address of the peer's family"
        "correct it",
    BgpIgnoredInterfaces "bgp.ignored_interfaces" Warning 0 "an entry of `ignoredInterfaces` is no pattern"
        "correct it",
    BgpKeepaliveTime "bgp.keepalive_time" Warning 0 "`keepaliveTime` cannot be used"
        "a duration of 1 s or more",
    BgpListen "bgp.listen" Error 0 "the BGP port cannot be listened on"
        "stop the other program there, or set `listenPort`",
    BgpMaxPrefixes "bgp.max_prefixes" Warning 0 "the limit of prefixes of a peer cannot be used"
        "correct it; what is expected is in the reason",
    BgpNodeConfiguration "bgp.node_configuration" Warning 0 "a field of a `node.NAME` BGPConfiguration that only `default` has"
        "move it to `default`",
    BgpNotOwner "bgp.not_owner" Warning 0 "a peer has announced for 30 s what another node has; it is not used"
        "`caracal bgp explain PREFIX` says whose it is; take it out of what the peer announces, or admit the peer; docs/troubleshooting.md has a section on it",
    BgpOverNodes "bgp.over_nodes" Warning 0 "a peer announces a route over nodes (a default route, their network, a node); it is not used"
        "take it out of what the peer announces, or admit it with an import rule that names its range; docs/topologies.md",
    BgpOwnerUnknown "bgp.owner_unknown" Warning 0 "a route inside a pool waits for longer than 30 s for its owner to be known"
        "`caracal bgp explain PREFIX` names the peer; docs/troubleshooting.md has a section on it",
    BgpPassword "bgp.password" Error 0 "the password of a session is not known or not usable; there is no session"
        "make the Secret and let the node read it, or place it below `CARACAL_SECRETS_DIR`; docs/topologies.md",
    BgpPeer "bgp.peer" Error 0 "a BGPPeer gives no session"
        "follow the reason",
    BgpPeerDown "bgp.peer_down" Error 0 "a session is refused, or missing for longer than its hold time"
        "follow the reason; `caracal bgp peer NAME`",
    BgpPrefixLimitNear "bgp.prefix_limit_near" Warning 0 "a peer has announced most of what its limit allows"
        "find out why it announces so much, or raise the limit",
    BgpRestartTime "bgp.restart_time" Warning 0 "a restart time cannot be used"
        "a duration up to 4095 s",
    BgpRpkiCache "bgp.rpki_cache" Warning 0 "an RPKI cache is not reached, or has no entries"
        "follow the reason; what it sent last is used until it expires, and then `roa_check` gives `ROA_UNKNOWN`; docs/speaker.md",
    BgpRoutePriority "bgp.route_priority" Warning 0 "a route priority is out of range"
        "1 to 2147483647",
    BgpRouterId "bgp.router_id" Error 0 "no router ID follows from the node's address"
        "set `CALICO_ROUTER_ID`",
    BgpServices "bgp.services" Warning 0 "a service range is none"
        "correct the CIDR",
    BgpTopology "bgp.topology" Warning 0 "the annotations of automatic reflectors cannot be used"
        "correct them",
    BgpTransition "bgp.transition" Warning 0 "the note of a topology change cannot be read"
        "`caracal topology apply --finish` or `--abort`",
    CniToken "cni.token" Warning 0 "the token in the CNI plugin's kubeconfig cannot be renewed"
        "give the node's account `create` on `serviceaccounts/token` of the plugin's account, and the folder to write to",
    CniTombstone "cni.tombstone" Warning 0 "the datastore could not be told that a pod is gone"
        "nothing; it is tried again",
    DatastoreEmptied "datastore.emptied" Error 0 "all nodes, all pools or all blocks went away at once; nothing is followed"
        "restore the datastore, or obey it with `caracal datastore accept`",
    DatastoreFieldWithoutEffect "datastore.field_without_effect" Warning 0 "a field of Calico's whose value has no effect here"
        "take it out; docs/resources.md has all fields",
    DatastoreInvalidValue "datastore.invalid_value" Warning 0 "a value cannot be read; the last good one stays"
        "correct it or delete it",
    DatastoreLocked "datastore.locked" Error 0 "the datastore is locked, as for a migration: pods get no addresses"
        "`caracal datastore unlock`, once the migration is finished or given up",
    DatastoreNoWrites "datastore.no_writes" Error 0 "the datastore can be read and takes no writes"
        "follow the reason; etcd's alarm `NOSPACE` wants compaction, `defrag`, `alarm disarm`",
    DatastoreNodeGone "datastore.node_gone" Warning 0 "another node's Node was deleted or overwritten while it has blocks"
        "find out who did that; after 20 s it is taken for gone",
    DatastoreOtherCluster "datastore.other_cluster" Error 0 "the datastore is another cluster's; nothing is followed"
        "correct `ETCD_ENDPOINTS` or `KUBECONFIG`, or obey it with `caracal datastore accept`",
    DatastoreOwnNode "datastore.own_node" Error 0 "this node's Node was deleted or overwritten"
        "nothing; the node writes it again",
    DatastoreRanges "datastore.ranges" Error 0 "ranges or addresses of different roles lie over each other: pools, services, machines, routers"
        "give one of them another range; both are in the reason",
    DatastoreRestored "datastore.restored" Error 0 "the datastore went back to an older state"
        "see that the backup is the right one, or obey it with `caracal datastore accept`",
    DatastoreUnknownField "datastore.unknown_field" Warning 0 "no resource of this kind has such a field"
        "correct its name; the nearest is in the reason",
    DatastoreUnreadable "datastore.unreadable" Error 0 "a question to the datastore failed (`caracal explain`)"
        "repair the way to the datastore, then ask again",
    FlannelConfig "flannel.config" Warning 0 "a flannel network's configuration, or its interface, cannot be followed; what was in force stays"
        "correct it as the reason says; a change of subnets needs a restart of the daemon",
    FlannelLease "flannel.lease" Warning 0 "a lease of a flannel network cannot be followed"
        "follow the reason, which names the node",
    FlannelSameAddress "flannel.same_address" Error 0 "another machine writes the lease of this one: both have one public address"
        "give each machine an address of its own (`--iface`, `--public-ip`)",
    IpamTunnelAddress "ipam.tunnel_address" Error 0 "no address for a tunnel device"
        "follow the reason; `caracal ipam why`",
    KernelNextHopUnreachable "kernel.next_hop_unreachable" Error 0 "standalone speaker: no next hop of a route can be reached"
        "look at the links",
    KernelRefused "kernel.refused" Error 0 "standalone speaker: the kernel refuses a route"
        "follow the kernel's reason",
    NodeAddress "node.address" Error 0 "a Node's BGP address is none that a peer can have, or this node's went away and no other is registered"
        "correct the address in the Node; put it back, or set `IP`",
    NodeAsNumber "node.as_number" Warning 0 "AS 0 in a Node"
        "set another, or take it out",
    NodeConsole "node.console" Warning 0 "the console is not served: others reach its address and there is neither a token nor an authority of clients, or one of its files cannot be used"
        "follow the reason (`CARACAL_CONSOLE_TOKEN_FILE`, `CARACAL_CONSOLE_CERT_FILE`, `…_KEY_FILE`, \
         `…_CA_CERT_FILE`); it is tried again",
    NodeCopied "node.copied" Error 0 "a copy of this machine, with its machine id, took the node's name; this machine took it back"
        "give the copy another NODENAME and a machine id of its own; docs/operations.md",
    NodeLastSnapshot "node.last_snapshot" Warning 0 "the snapshot kept for a start without the datastore cannot be used"
        "nothing; it is written anew once the datastore answers",
    NodeLibDir "node.lib_dir" Warning 0 "the library directory cannot be written"
        "make room, or make it writable (`CARACAL_LIB_DIR`)",
    NodeMissing "node.missing" Error 0 "this node is not registered"
        "nothing: it registers itself; if it does not, `node.registration` says why",
    NodeNeighbours "node.neighbours" Warning 0 "the kernel's table of neighbours is too small for the other nodes and the pods here"
        "raise `gc_thresh2` and `gc_thresh3` as the reason says",
    NodeNoAddress "node.no_address" Error 0 "the Node has no BGP address"
        "set `IP` or `IP6`",
    NodeOtherVersion "node.other_version" Warning 0 "the node names a code that this program does not know: it is of another version"
        "use the program of the node's own version; the code is in the reason",
    NodeRegistration "node.registration" Error 0 "the node cannot write its entry in the datastore; it works with what is known"
        "repair the datastore (space and quorum of etcd, rights of the account); it is tried again",
    NodeRunDir "node.run_dir" Warning 0 "no admin socket: the run directory cannot be written"
        "make room, or make it writable (`CARACAL_RUN_DIR`)",
    NodeSameAddress "node.same_address" Error 0 "another Node has this node's address"
        "correct that Node",
    NodeWrittenAgain "node.written_again" Warning 0 "this node's Node was deleted or overwritten; the node wrote it again"
        "find out who did that; a node that leaves is stopped first",
    PolicyFelix "policy.felix" Warning 0 "rules of a Felix are in the kernel beside ours, or without"
        "the reason says what they wait for; docs/policy.md",
    PolicyFelixDrops "policy.felix_drops" Error 0 "rules that a Felix has left drop packets of pods that it did not know"
        "set `CARACAL_POLICY=on`, or start Felix again",
    PolicyNotEnforced "policy.not_enforced" Error 0 "there are policies, and nobody enforces them"
        "set `CARACAL_POLICY=on`, run a policy engine beside Caracal, or delete the policies",
    PolicyNotUnderstood "policy.not_understood" Error 0 "something in a policy, tier, profile or set of addresses cannot be understood; it is closed in its direction"
        "correct it; the field is in the reason",
    PolicyUnwritten "policy.unwritten" Error 0 "the table of policy is not as planned: nft cannot be run, or the kernel refuses it"
        "follow the reason; it is tried again",
    ResourcesInvalid "resources.invalid" Warning 0 "a value of a file cannot be used"
        "correct it; the line is in the reason",
    ResourcesSecret "resources.secret" Warning 0 "a key of a Secret is not text in base64"
        "correct it",
    ResourcesUnknownKind "resources.unknown_kind" Warning 0 "a document of a file is no resource that is read"
        "take it out",
    ServicesAddress "services.address" Warning 0 "an address of a Service is none"
        "correct the Service",
    ServicesConflict "services.conflict" Error 0 "several Services have one address and port; one of them gets what is sent there"
        "give each an address or a port of its own",
    ServicesKubeProxy "services.kube_proxy" Warning 0 "kube-proxy has rules on this node beside ours"
        "stop kube-proxy on this node, then `caracal migrate services apply`",
    ServicesRefused "services.refused" Error 0 "something that a Service asks for is not done: it is no Service's, or no rule can hold it"
        "correct the Service; the reason says what is refused of it",
    ServicesUnwritten "services.unwritten" Error 0 "the table of services is not as planned: nft cannot be run, or the kernel refuses it"
        "follow the reason; it is tried again",
}
