//! `caracal trace`: the way of a packet from pod to pod, namespace by namespace, as the kernels
//! would take it, and the first hop at which it would stop. The walk is pure over [`Look`]; the
//! shell asks the real kernels. Nothing is changed, and no process of a node needs to run.
//!
//! A walk cannot see rules of other programs' firewalls. A ping at the end tells whether something
//! is left that it has not seen.

mod parse;
mod service;
mod shell;
#[cfg(test)]
mod tests;
mod walk;

use std::net::IpAddr;

use serde::Serialize;

use service::{ServicePort, Translation};

pub use shell::TraceError;

/// An interface in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// The other end is there.
    pub carrier: bool,
    /// MTU in octets.
    pub mtu: u32,
    /// `veth`, `vxlan`, `ipip`, …; empty for others.
    pub kind: String,
    pub addresses: Vec<IpAddr>,
    /// MAC address.
    pub mac: String,
    /// For VXLAN: VNI, UDP port, own underlay address.
    pub vxlan: Option<(u32, u16, Option<IpAddr>)>,
}

/// Result of a route lookup in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// To this machine itself.
    Local,
    /// Out of a device.
    Out {
        /// Name of the device.
        dev: String,
        /// The gateway; `None` = the destination is on the link.
        gateway: Option<IpAddr>,
        /// MTU of the route.
        mtu: Option<u32>,
    },
    /// Nowhere; the kernel's words.
    Refused(String),
}

/// A neighbour entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    /// MAC address.
    pub mac: String,
    /// Set by somebody, so nobody is asked.
    pub permanent: bool,
}

/// Questions to a place (a node, router or pod). Errors are sentences.
pub(crate) trait Look {
    /// Its interfaces.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn interfaces(&self, place: &str) -> Result<Vec<Interface>, String>;
    /// Where a packet goes; `arrives` = on this interface, else it is sent here.
    ///
    /// # Errors
    /// Why the kernel cannot be asked.
    fn lookup(&self, place: &str, packet: &Packet, arrives: Option<&str>)
    -> Result<Lookup, String>;
    /// The entry for an address on a device.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn neighbour(
        &self,
        place: &str,
        dev: &str,
        address: IpAddr,
    ) -> Result<Option<Neighbour>, String>;
    /// The underlay address behind a MAC on a VXLAN device.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn fdb(&self, place: &str, dev: &str, mac: &str) -> Result<Option<IpAddr>, String>;
    /// A value below `/proc/sys`; `None` = there is none.
    fn sysctl(&self, place: &str, key: &str) -> Option<String>;
    /// True when NAT would change the source of a packet between pods.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn masquerades(&self, place: &str, packet: &Packet) -> Result<bool, String>;
    /// What the table of services makes of a packet of a pod.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn translation(&self, place: &str, to: ServicePort) -> Result<Translation, String>;
    /// Other ends of a device: places with their interfaces.
    fn beside(&self, place: &str, dev: &str) -> Vec<(String, String)>;
    /// True for a pod.
    fn is_pod(&self, place: &str) -> bool;
}

/// A packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Octets of the IP packet.
    pub size: u32,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// The node, router or pod.
    pub place: String,
    /// Command and its result.
    pub seen: String,
    /// Packets stop here.
    pub broken: bool,
}

/// Way of packets in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Direction {
    /// Pod that sends, as `NODE/POD`.
    pub from: String,
    /// Pod that receives, as `NODE/POD`.
    pub to: String,
    /// The hops; the last one is the broken one, if any is.
    pub hops: Vec<Hop>,
}

impl Direction {
    /// The hop at which packets stop.
    #[must_use]
    pub fn broken(&self) -> Option<&Hop> {
        self.hops.iter().find(|hop| hop.broken)
    }
}

/// Way of packets in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceReport {
    /// The way there and the way back; to a service these of each endpoint.
    pub directions: Vec<Direction>,
    /// Between pods, the result of a ping of full size: an answer, or why there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping: Option<Result<String, String>>,
    /// To a service of TCP, whether it accepts a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Result<String, String>>,
}

impl TraceReport {
    /// The first hop at which packets stop, in either direction.
    #[must_use]
    pub fn broken(&self) -> Option<&Hop> {
        self.directions.iter().find_map(Direction::broken)
    }

    /// What a real packet said at the end, and what it was.
    fn trials(&self) -> impl Iterator<Item = (&'static str, &Result<String, String>)> {
        let ping = self.ping.iter().map(|said| ("ping", said));
        ping.chain(self.connection.iter().map(|said| ("connection", said)))
    }

    /// Everything is as it should be, and a real packet says so.
    #[must_use]
    pub(crate) fn is_intact(&self) -> bool {
        self.broken().is_none() && self.trials().all(|(_, said)| said.is_ok())
    }

    /// The report for people.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        for direction in &self.directions {
            text += &format!("{} → {}\n", direction.from, direction.to);
            for hop in &direction.hops {
                let mark = if hop.broken { "BROKEN" } else { "ok" };
                text += &format!("  {mark:<7} {:<12} {}\n", hop.place, hop.seen);
            }
        }
        for (what, said) in self.trials() {
            let (Ok(words) | Err(words)) = said;
            text += &format!("{what}: {words}\n");
        }
        let failed = self.trials().find(|(_, said)| said.is_err());
        text += &match (self.broken(), failed) {
            (Some(hop), _) => format!("first broken hop: {}: {}\n", hop.place, hop.seen),
            (None, None) => "intact: every hop of both ways\n".to_owned(),
            (None, Some(("ping", _))) => {
                "every hop looks right, and the ping is not answered: look for firewall rules\n"
                    .to_owned()
            }
            (None, Some(_)) => "every hop looks right, and there is no connection: look whether \
                                the endpoint listens, and for source ranges, policies and \
                                firewall rules\n"
                .to_owned(),
        };
        text
    }
}
