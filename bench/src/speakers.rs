//! The speakers that are compared.

/// A speaker that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Speaker {
    Caracal,
    Bird2,
    /// BIRD 1.6, on which Calico's is based. Debian's packages of the two exclude each other: `make
    /// bench` unpacks this one.
    Bird1,
    /// FRR's bgpd.
    Frr,
    Gobgp,
    /// This program as a relay with one table: a lower bound (`relay.rs`).
    Minimal,
}
