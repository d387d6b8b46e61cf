//! Rules of `--iptables-forward-rules`, by flanneld's names, so that each takes over what the other
//! one left.

/// Chain of iptables' `filter` that FORWARD jumps to.
pub const FORWARD_CHAIN: &str = "FLANNEL-FWD";

/// Comment on the jump and on each rule.
pub const FORWARD_COMMENT: &str = "flanneld forward";
