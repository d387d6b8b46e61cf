//! `caracal ipam configure`: the global configuration.

use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::Datastore;
use caracal_ipam::ClientError;
use caracal_ipam::{Configure, Persistence, SettingsChange};

use super::args::{ConfigureArgs, PersistenceArg};
use super::{announced, refuse, show};

pub(super) async fn run(store: &Datastore, args: &ConfigureArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    let data = output.is_data();
    let change = SettingsChange {
        strict_affinity: args.strictaffinity,
        auto_allocate_blocks: args.auto_allocate_blocks,
        max_blocks_per_host: args.max_blocks_per_host,
        kubevirt_ip_persistence: args.kubevirt_ip_persistence.map(|p| match p {
            PersistenceArg::Enabled => Persistence::Enabled,
            PersistenceArg::Disabled => Persistence::Disabled,
        }),
        ip_cooldown_seconds: args.ip_cooldown_seconds,
    };
    let client = announced(store, args.dry_run, data);
    let config = match client.drive(Configure::new(change)).await {
        Ok(config) => config,
        Err(ClientError::Refused(error)) => return Ok(refuse(&error.to_string())),
        Err(error) => return Err(error).context("changing the IPAM configuration"),
    };
    if data {
        output.print(&show::as_data(&config));
    } else {
        show::configuration(&config);
    }
    Ok(ExitCode::SUCCESS)
}
