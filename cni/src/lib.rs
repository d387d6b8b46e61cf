//! The CNI plugins of Caracal.
pub mod attachment;
pub mod kernel;
pub mod spec;
