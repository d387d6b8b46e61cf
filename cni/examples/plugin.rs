//! The plugins as a program of their own, for this crate's tests: `caracal-ipam` by that name, else
//! `caracal-cni`. Ends abruptly at the milestone that `CARACAL_CNI_DIE_AT` names, as after `kill
//! -9`.

use std::process::ExitCode;

use caracal_cni::run_plugin;
use caracal_cni::{Milestone, PluginRole};

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    let role = if name.ends_with("-ipam") {
        PluginRole::Ipam
    } else {
        PluginRole::Main
    };
    let die_at = std::env::var("CARACAL_CNI_DIE_AT").ok();
    run_plugin(role, &|milestone: Milestone| {
        if die_at.as_deref() == Some(&format!("{milestone:?}")) {
            std::process::abort();
        }
    })
}
