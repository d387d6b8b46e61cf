//! The CNI specification as types: what a runtime asks, what a plugin answers. Pure: values in, values
//! out; the environment and stdin are read by the shell.
//!
//! Results are written in the format of the version that the configuration names, 0.3.1 to 1.1.0.

pub mod annotations;
pub mod config;
pub mod env;
pub mod failure;
pub mod outcome;
pub mod version;

pub use annotations::Wishes;
pub use config::{ConfigError, NetConf};
pub use env::{Command, Env, EnvError};
pub use failure::{Code, Failure};
pub use outcome::{Interface, IpConfig, Outcome, Route};
pub use version::CniVersion;

#[cfg(test)]
mod tests;
