//! The CNI plugins of Caracal.
pub mod attachment;
pub mod endpoint;
pub mod kernel;
pub mod settings;
pub mod spec;
