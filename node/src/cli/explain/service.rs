//! `caracal explain ADDRESS:PORT`.

use std::process::ExitCode;

use caracal_model::Prefix;
use serde_json::Value;

use super::stages;
use crate::args::Output;
use crate::cli::bgp;
use crate::exit::NOT_FOUND;
use crate::node::answers::explain_service::ExplainedService;
use crate::service_list::ListedService;

pub(super) fn show(value: &Value, output: Output) -> anyhow::Result<ExitCode> {
    let explained: ExplainedService = serde_json::from_value(value.clone())?;
    match output {
        Output::Json | Output::Yaml => output.print(value),
        Output::Table | Output::Wide => print(&explained),
    }
    let port = explained.address.port();
    let stored = explained.services.iter().any(|s| s.has_port(port));
    Ok(match explained.service.is_some() || stored {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NOT_FOUND),
    })
}

fn print(explained: &ExplainedService) {
    let line = |name: &str, text: &str| println!("{:<12}{text}", format!("{name}:"));
    println!("{} as node {} sees it", explained.address, explained.node);
    if let Some(row) = &explained.service {
        line("Service", &row.service);
        line("Address", &format!("{}, {}", row.address, row.kind));
        line("Policy", &row.policy);
        let list = |endpoints: &[String]| match endpoints {
            [] => "none".to_owned(),
            endpoints => endpoints.join(", "),
        };
        line("Here", &list(&row.here));
        line("Elsewhere", &list(&row.elsewhere));
        if let Some(seconds) = row.affinity_seconds {
            line("Affinity", &format!("{seconds} s"));
        }
        if !row.sources.is_empty() {
            line("Senders", &list(&row.sources));
        }
        let hits = row
            .hits
            .map_or_else(|| "not known".to_owned(), |hits| hits.to_string());
        line("Hits", &hits);
    }
    stored(&explained.services);
    if let Some(reason) = &explained.skipped {
        line("Kernel", reason);
    }
    for element in &explained.elements {
        let there = if element.is_there { "" } else { "  MISSING" };
        println!("  {} {}{there}", element.set, element.element);
    }
    println!("BGP:");
    bgp::explain(Prefix::host(explained.address.ip()), &explained.bgp);
    stages(&explained.revisions, &explained.problems);
}

/// Services as the datastore has them.
pub(super) fn stored(services: &[ListedService]) {
    for service in services {
        let endpoints = match &service.endpoints[..] {
            [] => "no endpoint is ready".to_owned(),
            endpoints => format!("ready: {}", endpoints.join(", ")),
        };
        println!(
            "Service:    {}, {}, ports {}; {endpoints}",
            service.service,
            service.service_type,
            service.ports.join(", ")
        );
    }
}
