//! The one form of rule that the kernel is given without a program.

use std::fmt;

use caracal_model::Family;

use super::element::SetName;
use crate::transport::Transport;

/// Leads a new connection to one of the endpoints that a map holds under address, protocol, port
/// and an index, which is drawn at random.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PickRule {
    pub(crate) family: Family,
    pub(crate) protocol: Transport,
    pub(crate) map: SetName,
    /// The index is below this.
    pub(crate) among: u32,
}

/// As it is written, and as nftables prints it.
impl fmt::Display for PickRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = match self.family {
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
        };
        let (protocol, among, map) = (self.protocol.as_str(), self.among, &self.map);
        let key = format_args!("{ip} daddr . meta l4proto . {protocol} dport");
        write!(
            f,
            "dnat {ip} to {key} . numgen random mod {among} map @{map}"
        )
    }
}
