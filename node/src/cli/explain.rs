//! `caracal explain`: one destination or one address of a service, from the datastore to this
//! node's kernel. Exit code 3 when nothing is known.

mod service;

use std::net::SocketAddr;
use std::process::ExitCode;

use caracal_model::Problem;
use serde_json::Value;

use super::bgp;
use super::output::watch;
use super::whom::Whom;
use crate::admin::Request;
use crate::args::{ExplainArgs, ExplainDestination, Output};
use crate::exit::NOT_FOUND;
use crate::node::answers::explain::{DataStage, Explained, PoolJson, Revision};

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let (request, show): (_, fn(&Value, Output) -> anyhow::Result<ExitCode>) = match args
        .destination
    {
        ExplainDestination::Prefix(prefix) => (Request::ExplainPath { prefix }, show_path),
        ExplainDestination::Service(question) => (Request::ExplainService(question), service::show),
    };
    let whom = Whom::from(&args.node);
    let ask = || whom.ask(&request);
    if args.watch.watch {
        return watch(args.output.output, ask, |value| {
            show(value, args.output.output)
        });
    }
    show(&ask()?, args.output.output)
}

fn show_path(value: &Value, output: Output) -> anyhow::Result<ExitCode> {
    let explained: Explained = serde_json::from_value(value.clone())?;
    match output {
        Output::Json | Output::Yaml => output.print(value),
        Output::Table | Output::Wide => print(&explained),
    }
    Ok(if explained.is_known() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_FOUND)
    })
}

fn print(explained: &Explained) {
    let line = |name: &str, text: &str| println!("{:<12}{text}", format!("{name}:"));
    println!(
        "{} as node {} sees it",
        explained.destination, explained.node
    );
    line(
        "Owner",
        explained
            .owner
            .as_deref()
            .unwrap_or("nobody that the datastore knows"),
    );
    service::stored(&explained.services);
    let pool = explained.pool.as_ref();
    line("Pool", &pool.map_or_else(|| "none".to_owned(), pool_text));
    if let Some(block) = &explained.block {
        let affinity = block.affinity.as_deref().unwrap_or("no affinity");
        line("Block", &format!("{} ({affinity})", block.cidr));
    }
    if let Some(allocation) = &explained.allocation {
        let handle = allocation.handle.as_deref().unwrap_or("no handle");
        line("Allocation", handle);
    }
    line("Mode", explained.mode.as_deref().unwrap_or("none"));
    line("Source", &explained.source);
    println!("BGP:");
    bgp::explain(explained.destination, &explained.bgp);
    line("Planned", planned(explained));
    kernel(explained);
    if let Some(path) = &explained.path {
        let text = format!("MTU {} to node {} ({})", path.mtu, path.node, path.address);
        line("Path", &text);
    }
    stages(&explained.revisions, &explained.problems);
    for service in &explained.services {
        for port in &service.ports {
            let number = port.split('/').next().and_then(|text| text.parse().ok());
            let place = SocketAddr::new(explained.destination.address(), number.unwrap_or(0));
            println!("`caracal explain {place}` has the elements of {port} in the kernel");
        }
    }
}

/// How far the destination is, and what is wrong with it.
fn stages(revisions: &[Revision], problems: &[Problem]) {
    println!("Revisions:");
    for revision in revisions {
        let stage = match revision.stage {
            DataStage::Datastore => "in the datastore:",
            DataStage::Snapshot => "read:",
            DataStage::Plan => "planned:",
            DataStage::Kernel => "in the kernel:",
        };
        println!("  {:>8}  {stage} {}", revision.revision, revision.what);
    }
    for problem in problems {
        println!(
            "Problem: {} {}: {}",
            problem.code, problem.subject, problem.reason
        );
    }
}

fn pool_text(pool: &PoolJson) -> String {
    let nat = if pool.nat_outgoing {
        ", natOutgoing"
    } else {
        ""
    };
    format!(
        "{} {}, ipipMode {}, vxlanMode {}{nat}",
        pool.name, pool.cidr, pool.ipip, pool.vxlan
    )
}

fn planned(explained: &Explained) -> &str {
    explained
        .planned
        .as_deref()
        .or(explained.skipped.as_deref())
        .unwrap_or("nothing")
}

fn kernel(explained: &Explained) {
    let Some(kernel) = &explained.kernel else {
        println!("Kernel:     no route");
        return;
    };
    let step = if explained.in_step {
        ""
    } else {
        "; this is not what is planned"
    };
    println!("Kernel:     {} ({}){step}", kernel.route, kernel.owner);
    if let Some(vtep) = &kernel.vtep {
        println!("Tunnel:     {vtep}");
    }
    for device in &kernel.devices {
        let up = if device.up { "up" } else { "DOWN" };
        println!("Device:     {}, {up}, MTU {}", device.name, device.mtu);
    }
}
