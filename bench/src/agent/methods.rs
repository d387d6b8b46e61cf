//! Ways to bring routes into the kernel, and what one of them takes.

use std::time::Duration;

use clap::ValueEnum;

/// Ways to bring routes into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// A minimal program that batches raw messages.
    Minimal,
    /// The same with one next-hop object for all routes.
    MinimalObjects,
    /// The agent's writer.
    Caracal,
    /// The same with next-hop objects.
    CaracalObjects,
    /// The whole agent: reading the kernel, planning, comparing, writing.
    Agent,
    /// The same with next-hop objects.
    AgentObjects,
    /// BIRD 2: a static protocol with all routes, and the kernel protocol.
    Bird2,
    /// iproute2's `ip -batch`, one message per route.
    IpBatch,
}

impl Method {
    /// As on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |v| v.get_name().to_owned())
    }
}

/// Cost of an installation.
#[derive(Clone, Copy, Debug)]
pub(super) struct InstallCost {
    /// From the start to the last route.
    pub(super) wall: Duration,
    /// Of the process, user and system.
    pub(super) cpu: Duration,
}

/// The runs of one method.
pub(super) type MethodRuns = (Method, Vec<InstallCost>);
