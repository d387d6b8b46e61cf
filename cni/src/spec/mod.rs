//! The CNI specification as types: what a runtime asks, what a plugin answers. Pure: values in,
//! values out; the environment and stdin are read by the shell.
//!
//! Results are written in the format of the version that the configuration names, 0.3.1 to 1.1.0.

pub(crate) mod annotations;
pub(crate) mod config;
pub(crate) mod env;
pub(crate) mod failure;
pub(crate) mod flannel;
pub(crate) mod outcome;
pub(crate) mod pod_cidr;
pub(crate) mod version;

pub(crate) use annotations::Wishes;
pub(crate) use config::{ConfigError, NetConf};
pub(crate) use env::{Command, Env, EnvError};
pub(crate) use failure::{Code, Failure};
pub(crate) use flannel::FlannelConf;
pub(crate) use outcome::{Interface, IpConfig, Outcome, Route};
pub(crate) use version::CniVersion;

#[cfg(test)]
mod tests;
