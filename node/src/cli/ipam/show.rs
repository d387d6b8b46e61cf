//! `caracal ipam show`: calicoctl's three tables and its sentence about one address.

use std::net::IpAddr;
use std::process::ExitCode;

use caracal_datastore::Datastore;
use caracal_ipam::{Fill, PoolFill, borrowed_addresses, holder_of, pool_fill};
use caracal_model::IpamConfig;
use serde_json::{Value, json};

use super::args::ShowArgs;
use super::{NOT_FOUND, Survey, survey};
use crate::args::Output;
use crate::cli::table;

pub(super) async fn run(store: &Datastore, args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let survey = survey(store).await?;
    let output = args.output.output;
    let data = output.is_data();
    if let Some(address) = args.ip {
        return Ok(one(&survey, address, output));
    }
    for (key, reason) in &survey.view.unreadable {
        eprintln!("{key} does not parse and is left out: {reason}");
    }
    let mut answer = serde_json::Map::new();
    if args.show_configuration {
        let config = survey.view.config();
        if !data {
            configuration(&config);
        }
        answer.insert("configuration".to_owned(), as_data(&config));
    }
    if args.show_borrowed {
        let list = borrowed_addresses(&survey.view);
        if !data {
            borrowed(&list);
        }
        answer.insert("borrowed".to_owned(), serde_json::to_value(list)?);
    }
    if args.show_blocks || !(args.show_configuration || args.show_borrowed) {
        let list = pool_fill(&survey.view);
        if !data {
            pools(&list, args.show_blocks);
        }
        let mut value = serde_json::to_value(list)?;
        if !args.show_blocks {
            let pools = value.as_array_mut().into_iter().flatten();
            pools.filter_map(Value::as_object_mut).for_each(|pool| {
                pool.remove("blocks");
            });
        }
        answer.insert("pools".to_owned(), value);
    }
    if data {
        output.print(&Value::Object(answer));
    }
    Ok(ExitCode::SUCCESS)
}

/// `12 (5%)`, as calicoctl has it.
fn cell(part: u128, total: u128) -> String {
    let percent = part.saturating_mul(100).checked_div(total).unwrap_or(0);
    format!("{part} ({percent}%)")
}

fn row(grouping: &str, fill: &Fill) -> [String; 6] {
    [
        grouping.to_owned(),
        fill.cidr.to_string(),
        fill.total.to_string(),
        cell(fill.in_use, fill.total),
        cell(fill.reserved, fill.total),
        cell(fill.free, fill.total),
    ]
}

fn pools(list: &[PoolFill], blocks: bool) {
    let mut shown = table(&[
        "GROUPING",
        "CIDR",
        "IPS TOTAL",
        "IPS IN USE",
        "IPS RESERVED",
        "IPS FREE",
    ]);
    for pool in list {
        if let Some(fill) = &pool.fill {
            shown.add_row(row("IP Pool", fill));
        }
        if blocks || pool.fill.is_none() {
            for block in &pool.blocks {
                shown.add_row(row("Block", &block.fill));
            }
        }
    }
    println!("{shown}");
}

fn borrowed(list: &[caracal_ipam::Allocation]) {
    let mut shown = table(&[
        "IP",
        "BORROWING-NODE",
        "BLOCK",
        "BLOCK OWNER",
        "TYPE",
        "ALLOCATED-TO",
    ]);
    for allocation in list {
        let owner = allocation.block_owner.as_deref().unwrap_or("-");
        shown.add_row([
            allocation.address.to_string(),
            allocation.node().unwrap_or("-").to_owned(),
            allocation.block.to_string(),
            owner.strip_prefix("host:").unwrap_or(owner).to_owned(),
            allocation.usage().unwrap_or("pod").to_owned(),
            allocation.holder(),
        ]);
    }
    println!("{shown}");
}

/// The configuration as data; in the datastore its keys are spelled as Calico's libcalico spells
/// them there.
pub(super) fn as_data(config: &IpamConfig) -> Value {
    let mut value = json!({
        "strictAffinity": config.strict_affinity,
        "autoAllocateBlocks": config.auto_allocate_blocks,
        "maxBlocksPerHost": config.max_blocks_per_host,
        "kubeVirtVMAddressPersistence": config.kube_virt_vm_address_persistence,
        "ipCooldownSeconds": config.ip_cooldown_seconds,
    });
    for (name, unknown) in &config.extra {
        value[name] = unknown.clone();
    }
    value
}

pub(super) fn configuration(config: &IpamConfig) {
    let mut shown = table(&["PROPERTY", "VALUE"]);
    shown.add_row(["StrictAffinity", &config.strict_affinity.to_string()]);
    shown.add_row([
        "AutoAllocateBlocks",
        &config.auto_allocate_blocks.to_string(),
    ]);
    shown.add_row(["MaxBlocksPerHost", &config.max_blocks_per_host.to_string()]);
    let persistence = config.kube_virt_vm_address_persistence.as_deref();
    shown.add_row([
        "KubeVirtVMAddressPersistence",
        persistence.unwrap_or("Enabled"),
    ]);
    shown.add_row(["IPCooldownSeconds", &config.ip_cooldown_seconds.to_string()]);
    for (name, value) in &config.extra {
        shown.add_row([name.as_str(), &value.to_string()]);
    }
    println!("{shown}");
}

fn one(survey: &Survey, address: IpAddr, output: Output) -> ExitCode {
    let holder = holder_of(&survey.view, address);
    let users = survey.users.of_address(address);
    if output.is_data() {
        output.print(&json!({"address": address, "allocation": holder, "users": users}));
    } else {
        match &holder {
            None => println!("IP {address} is not assigned"),
            Some(allocation) => {
                match &allocation.released_at {
                    Some(since) => {
                        println!("IP {address} was released and cools down since {since}")
                    }
                    None => println!("IP {address} is in use"),
                }
                println!("Block: {}", allocation.block);
                println!("Handle: {}", allocation.handle.as_deref().unwrap_or("-"));
                println!("Attributes:");
                for (name, value) in &allocation.attributes {
                    println!("  {name}: {value}");
                }
            }
        }
        for user in users {
            println!("Used by: {}", user.what);
        }
    }
    if holder.is_none() {
        return ExitCode::from(NOT_FOUND);
    }
    ExitCode::SUCCESS
}
