//! Codes of what `caracal ipam check` finds.

super::codes! {
    /// A kind of finding of `caracal ipam check`.
    IpamCode by IpamCheck
    Unreadable "ipam.unreadable" Error 0 "a value that IPAM reads does not parse"
        "correct it or delete it",
    Leaked "ipam.leaked" Warning 0 "an address is held and nobody uses it"
        "`caracal ipam check --fix`, or `caracal ipam release --from-report FILE`",
    Unallocated "ipam.unallocated" Error 0 "an address of a pool is in use and not held"
        "restart the workload, before IPAM gives the address to another one",
    Overlap "ipam.overlap" Error 0 "two blocks share addresses"
        "release the addresses of one of them, and let it go; see `caracal ipam show --show-blocks`",
    Queue "ipam.queue" Error 0 "an address is free and allocated at once, queued as free twice, or neither free nor allocated"
        "`caracal ipam check --fix`",
    UnusedAttribute "ipam.unused_attribute" Error 0 "a block has an attribute that no allocation refers to"
        "`caracal ipam check --fix`",
    ReleasedAt "ipam.released_at" Error 0 "an address cools down since a time that is not in the past"
        "set the clocks of the nodes with NTP, and correct releasedAt in the block",
    HandleCount "ipam.handle_count" Error 0 "a handle counts other than what its block holds"
        "`caracal ipam check --fix`",
    Affinity "ipam.affinity" Error 0 "a node has a confirmed affinity to a block that is another's or missing"
        "`caracal ipam check --fix`",
    NoAffinity "ipam.no_affinity" Error 0 "a block names an owner that has no affinity to it"
        "`caracal ipam check --fix`",
    Unconfirmed "ipam.unconfirmed_affinity" Notice 0 "somebody began to claim or release a block and did not finish yet"
        "nothing; the next request of that node finishes it",
    NoNode "ipam.no_node" Error 0 "an address of a host's block is held without naming a node, so it gets no route"
        "release the address, and restart the workload that has it",
    Abandoned "ipam.abandoned_block" Error 0 "a block is empty and belongs to nobody"
        "`caracal ipam check --fix`",
    NoPool "ipam.no_pool" Notice 0 "a block is in no IP pool"
        "nothing; or make a pool for it again",
}
