//! The tables of rules.

pub(super) mod bgp;
pub(super) mod felix;
pub(super) mod other;
