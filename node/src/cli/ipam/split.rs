//! `caracal ipam split`: a pool becomes several.

use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::Datastore;
use caracal_ipam::ClientError;
use caracal_ipam::{MAX_PARTS, PoolChoice, Split, SplitError};

use super::args::SplitArgs;
use super::{NOT_FOUND, announced, now, refuse, survey};
use crate::cli::table;
use crate::register::uuid;

pub(super) async fn run(store: &Datastore, args: &SplitArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    let data = output.is_data();
    let which = match (&args.cidr, &args.name) {
        (Some(cidr), _) => PoolChoice::Cidr(*cidr),
        (None, name) => PoolChoice::Name(name.clone().unwrap_or_default()),
    };
    if !survey(store).await?.cluster.locked && !args.force && !args.dry_run {
        return Ok(refuse(
            "the datastore is not locked: Calico's nodes would see the pool vanish before they see its parts; \
             lock it (`caracal datastore lock`), or add --force when all nodes run Caracal",
        ));
    }
    let uids = (0..args.number.min(MAX_PARTS)).map(|_| uuid()).collect();
    let client = announced(store, args.dry_run, data);
    let parts = match client
        .drive(Split::new(which, args.number, uids, now()))
        .await
    {
        Ok(parts) => parts,
        Err(ClientError::Refused(error)) => {
            let unknown = matches!(error, SplitError::Unknown(..));
            let code = refuse(&error.to_string());
            return Ok(if unknown {
                ExitCode::from(NOT_FOUND)
            } else {
                code
            });
        }
        Err(error) => return Err(error).context("splitting the pool"),
    };
    if data {
        output.print(&serde_json::to_value(&parts)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut shown = table(&["NAME", "CIDR", "SELECTOR"]);
    for part in &parts {
        let selector = match part.spec.node_selector.as_str() {
            "" => "all()",
            text => text,
        };
        shown.add_row([
            part.metadata.name.as_str(),
            part.spec.cidr.as_str(),
            selector,
        ]);
    }
    println!("{shown}");
    Ok(ExitCode::SUCCESS)
}
