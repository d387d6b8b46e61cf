//! The agent's work without the agent's task: planning and comparing at scale, and filling a
//! kernel's table.

pub mod cluster;
pub mod install;
mod methods;
pub mod minimal;
pub mod plan;
mod ratios;
