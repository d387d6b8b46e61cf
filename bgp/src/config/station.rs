//! A monitoring station: where we report what peers announce (RFC 7854).

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A monitoring station, which gets what the peers announce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Station {
    /// Its address; we connect.
    pub address: IpAddr,
    /// Its TCP port; the protocol has none of its own.
    pub port: u16,
    /// It gets Adj-RIB-In as received.
    pub pre_policy: bool,
    /// It gets Adj-RIB-In after import policy.
    pub post_policy: bool,
    /// Interval of Statistics Reports about each peer; `None` = never.
    pub statistics: Option<Duration>,
    /// Limit of the send queue, in octets. Beyond it the connection is dropped, and made anew.
    pub buffer: usize,
    /// sysName of the Initiation message; `None` = our BGP Identifier.
    pub system_name: Option<String>,
    /// sysDescr of the Initiation message; `None` = program and version.
    pub system_description: Option<String>,
}

impl Station {
    /// Default limit of a station's send queue, in octets: the changes of some 100,000 routes.
    pub(crate) const BUFFER: usize = 64 << 20;
    /// Default interval of Statistics Reports.
    pub(crate) const STATISTICS: Duration = Duration::from_secs(60);

    /// A station with the defaults: Adj-RIB-In before policy, statistics each minute.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16) -> Self {
        Self {
            address,
            port,
            pre_policy: true,
            post_policy: false,
            statistics: Some(Self::STATISTICS),
            buffer: Self::BUFFER,
            system_name: None,
            system_description: None,
        }
    }
}
