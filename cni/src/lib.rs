//! The CNI plugins of Caracal.
pub mod spec;
