//! `caracal bgp`: what the speaker knows, in the habits of birdc and gobgp.

use std::process::ExitCode;

use caracal_bgp::rib::{AdvertisedRoute, Advertisement, AttrsInfo, Explanation, RouteInfo};
use caracal_model::status::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::output::watch;
use super::{run_dir, status, table};
use crate::admin::{Request, ask};
use crate::args::{BgpCommand, Output};
use crate::cli::exit::NOT_FOUND;

pub(super) fn run(command: BgpCommand) -> anyhow::Result<ExitCode> {
    match command {
        BgpCommand::Peers { watch, output } => return peers(watch.watch, output.output),
        BgpCommand::Routes { output } => show(&Request::Routes, output.output, routes)?,
        BgpCommand::Received { peer, output } => {
            show(&Request::Received { peer }, output.output, routes)?;
        }
        BgpCommand::Advertised { peer, output } => {
            show(&Request::Advertised { peer }, output.output, advertised)?;
        }
        BgpCommand::Refresh { peer } => {
            ask(&run_dir(), &Request::Refresh { peer })?;
        }
        BgpCommand::Mrt { file } => {
            // The daemon has another working directory.
            let file = std::path::absolute(file)?;
            let octets = ask(&run_dir(), &Request::Mrt { file: file.clone() })?;
            println!("{}: {octets} octets", file.display());
        }
        BgpCommand::Explain { prefix, output } => {
            let value = ask(&run_dir(), &Request::Explain { prefix })?;
            let explanation: Explanation = serde_json::from_value(value.clone())?;
            match output.output {
                Output::Json | Output::Yaml => output.output.print(&value),
                Output::Table | Output::Wide => explain(prefix, &explanation),
            }
            if explanation.prefix.is_none() {
                return Ok(ExitCode::from(NOT_FOUND));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn peers(goes_on: bool, output: Output) -> anyhow::Result<ExitCode> {
    let ask = || {
        let mut status = ask(&run_dir(), &Request::Status)?;
        Ok(status["peers"].take())
    };
    let show = |peers: &Value| {
        if output.is_data() {
            output.print(peers);
        } else {
            let status = Status {
                peers: Vec::deserialize(peers)?,
                ..Status::default()
            };
            println!("{}", status::peers(&status, output));
        }
        Ok(ExitCode::SUCCESS)
    };
    if goes_on {
        return watch(output, ask, show);
    }
    show(&ask()?)
}

fn show<T: DeserializeOwned>(
    request: &Request,
    output: Output,
    print: impl Fn(&[T]),
) -> anyhow::Result<()> {
    let value: Value = ask(&run_dir(), request)?;
    match output {
        Output::Json | Output::Yaml => output.print(&value),
        Output::Table | Output::Wide => print(&serde_json::from_value::<Vec<T>>(value)?),
    }
    Ok(())
}

const COLUMNS: [&str; 7] = [
    "PREFIX",
    "NEXT HOP",
    "FROM",
    "LOCAL PREF",
    "MED",
    "AS PATH",
    "STATUS",
];

fn row(prefix: &str, from: &str, attrs: &AttrsInfo, status: &str) -> [String; 7] {
    let number = |value: Option<u32>| value.map(|n| n.to_string()).unwrap_or_default();
    [
        prefix.to_owned(),
        attrs
            .next_hop
            .map_or_else(|| "self".to_owned(), |a| a.to_string()),
        from.to_owned(),
        number(attrs.local_pref),
        number(attrs.med),
        attrs.as_path.clone(),
        status.to_owned(),
    ]
}

fn from(route: &RouteInfo) -> String {
    route
        .peer
        .as_ref()
        .map_or_else(|| "local".to_owned(), ToString::to_string)
}

fn status_of(route: &RouteInfo) -> String {
    let stale = if route.stale {
        " (stale: the peer restarts)"
    } else {
        ""
    };
    let way = route.way.as_ref();
    let way = way.map_or_else(String::new, |way| format!("; next hop {way}"));
    format!("{}{stale}{way}", route.status.sentence())
}

fn routes(routes: &[RouteInfo]) {
    let mut shown = table(&COLUMNS);
    for route in routes {
        shown.add_row(row(
            &route.prefix.to_string(),
            &from(route),
            &route.attrs,
            &status_of(route),
        ));
    }
    println!("{shown}");
}

fn advertised(routes: &[AdvertisedRoute]) {
    let mut shown = table(&COLUMNS[..6]);
    for route in routes {
        shown.add_row(row(&route.prefix.to_string(), "", &route.attrs, "")[..6].to_vec());
    }
    println!("{shown}");
}

pub(super) fn explain(asked: caracal_model::Prefix, explanation: &Explanation) {
    let Some(prefix) = explanation.prefix else {
        println!("{asked}: no route, and none that covers it");
        return;
    };
    println!(
        "{prefix}: {} path(s), the best first",
        explanation.paths.len()
    );
    for (number, path) in explanation.paths.iter().enumerate() {
        println!(
            "  {}. from {} via {}: {}",
            number + 1,
            from(path),
            path.attrs
                .next_hop
                .map_or_else(|| "self".to_owned(), |a| a.to_string()),
            status_of(path)
        );
    }
    for (peer, advertisement) in &explanation.advertised {
        match advertisement {
            Advertisement::Sent(_) => println!("  sent to {peer}"),
            Advertisement::Withheld(why) => println!("  not sent to {peer}: {why}"),
        }
    }
    match &explanation.learned {
        Some(learned) => println!("  to the kernel: via {:?}", learned.next_hops),
        None => println!("  not to the kernel"),
    }
}
