//! `caracal bgp`: what the speaker knows, in the habits of birdc and gobgp.

use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use caracal_bgp::{
    Advertisement, BestPathReason, DecidedBy, Explanation, ImportRefusal, PathStatus,
    ResolvedNextHop, RouteInfo,
};
use caracal_model::{NodeStatus, Prefix};
use serde::Deserialize;
use serde_json::Value;

use super::all_nodes::{self, Aspect};
use super::columns::Columns;
use super::output::watch;
use super::whom::Whom;
use super::{peer, run_dir, status};
use crate::admin::mrt::LEFT_OUT;
use crate::admin::{PeerOrder, Request, RouteFilter, ask};
use crate::args::{BgpCommand, NodesArgs, Output, RouteArgs, Soft};
use crate::exit::NOT_FOUND;

pub(crate) fn run(command: BgpCommand) -> anyhow::Result<ExitCode> {
    match command {
        BgpCommand::Peers {
            nodes,
            watch,
            output,
        } => return peers(&nodes, watch.watch, output.output),
        BgpCommand::Peer { peer, node, output } => {
            return peer::show(&Whom::from(&node), &peer, output.output);
        }
        BgpCommand::Disable { peer, text } => {
            return peer::order(peer, PeerOrder::Disable { text });
        }
        BgpCommand::Enable { peer } => return peer::order(peer, PeerOrder::Enable),
        BgpCommand::Reset { peer, soft, text } => {
            let order = match soft {
                None => PeerOrder::Reset { text },
                Some(Soft::In) => PeerOrder::SoftIn,
                Some(Soft::Out) => PeerOrder::SoftOut,
            };
            return peer::order(peer, order);
        }
        BgpCommand::Routes {
            filter,
            peer,
            best,
            node,
            output,
        } => {
            let filter = filter_of(&filter, peer, best);
            return show(
                &Whom::from(&node),
                &Request::Routes { filter },
                output.output,
            );
        }
        BgpCommand::Received {
            peer,
            filter,
            best,
            node,
            output,
        } => {
            let filter = filter_of(&filter, None, best);
            return show(
                &Whom::from(&node),
                &Request::Received { peer, filter },
                output.output,
            );
        }
        BgpCommand::Advertised {
            peer,
            filter,
            node,
            output,
        } => {
            let filter = filter_of(&filter, None, false);
            return show(
                &Whom::from(&node),
                &Request::Advertised { peer, filter },
                output.output,
            );
        }
        BgpCommand::Refresh { peer } => {
            ask(&run_dir(), &Request::Refresh { peer })?;
        }
        BgpCommand::Mrt { file } => {
            let written = ask(&run_dir(), &Request::Mrt { file })?;
            let file = written["file"].as_str().unwrap_or_default();
            println!("{file}: {} octets", written["octets"]);
            if written["leftOut"] != 0 {
                println!("{} {LEFT_OUT}", written["leftOut"]);
            }
        }
        BgpCommand::Explain {
            prefix,
            node,
            output,
        } => {
            return explain_prefix(&Whom::from(&node), prefix, output.output);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn explain_prefix(whom: &Whom, prefix: Prefix, output: Output) -> anyhow::Result<ExitCode> {
    let value = whom.ask(&Request::Explain { prefix })?;
    let explanation: Explanation = serde_json::from_value(value.clone())?;
    match output {
        Output::Json | Output::Yaml => output.print(&value),
        Output::Table | Output::Wide => explain(prefix, &explanation),
    }
    Ok(match explanation.prefix {
        None => ExitCode::from(NOT_FOUND),
        Some(_) => ExitCode::SUCCESS,
    })
}

fn peers(nodes: &NodesArgs, goes_on: bool, output: Output) -> anyhow::Result<ExitCode> {
    if nodes.all_nodes {
        return all_nodes::run(Aspect::Sessions, goes_on, output);
    }
    let whom = Whom::from(&nodes.one);
    let ask = || {
        let mut status = whom.ask(&Request::Status)?;
        Ok(status["peers"].take())
    };
    let show = |peers: &Value| {
        if output.is_data() {
            output.print(peers);
        } else {
            let status = NodeStatus {
                peers: Vec::deserialize(peers)?,
                ..NodeStatus::default()
            };
            println!("{}", status::peers(&status, output, true));
        }
        Ok(ExitCode::SUCCESS)
    };
    if goes_on {
        return watch(output, ask, show);
    }
    show(&ask()?)
}

fn filter_of(args: &RouteArgs, peer: Option<String>, best: bool) -> RouteFilter {
    RouteFilter {
        prefix: args.prefix,
        longer: args.longer_prefixes,
        peer,
        best,
        after: None,
        count: args.count,
    }
}

/// Prints routes as they come. A reader that has seen enough ends this process, and with it the
/// question.
fn show(whom: &Whom, request: &Request, output: Output) -> anyhow::Result<ExitCode> {
    let (Request::Routes { filter }
    | Request::Received { filter, .. }
    | Request::Advertised { filter, .. }) = request
    else {
        anyhow::bail!("no question for routes");
    };
    let out = BufWriter::new(crate::out::Printer);
    if filter.count {
        let count = whom.ask_rows(request, |_| Ok(()))?;
        if output.is_data() {
            output.print(&serde_json::json!({ "count": count }));
        } else {
            println!("{count}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let count = match (output, request) {
        (Output::Json, _) => lines(whom, request, out)?,
        (Output::Yaml, _) => whom.ask_rows(request, |line| {
            println!("---");
            output.print(&serde_json::from_str(line)?);
            Ok(())
        })?,
        (_, Request::Advertised { .. }) => rows(
            whom,
            request,
            Columns::new(out, ADVERTISED, output.columns()),
            |route| {
                let [prefix, next_hop, _, pref, med, path, _] = row(route);
                [prefix, next_hop, pref, med, path]
            },
        )?,
        _ => rows(
            whom,
            request,
            Columns::new(out, COLUMNS, output.columns()),
            row,
        )?,
    };
    match filter.prefix {
        Some(prefix) if count == 0 => {
            eprintln!("caracal: no such route: {prefix}");
            Ok(ExitCode::from(NOT_FOUND))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The daemon's lines as they are.
fn lines(whom: &Whom, request: &Request, mut out: impl Write) -> anyhow::Result<u64> {
    let mut first = true;
    let count = whom.ask_rows(request, |line| {
        writeln!(out, "{line}")?;
        // The first lines at once, the others when there is a block of them.
        if std::mem::take(&mut first) {
            out.flush()?;
        }
        Ok(())
    })?;
    out.flush()?;
    Ok(count)
}

fn rows<W: Write, const N: usize>(
    whom: &Whom,
    request: &Request,
    mut columns: Columns<W, N>,
    row: impl Fn(&Row) -> [String; N],
) -> anyhow::Result<u64> {
    let count = whom.ask_rows(request, |line| {
        let route = serde_json::from_str(line).context("the answer is not valid")?;
        Ok(columns.row(row(&route))?)
    })?;
    columns.end()?;
    Ok(count)
}

/// A [`RouteInfo`] or an `AdvertisedRoute` as a line says it, no more than what is shown: a million
/// of them are read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    prefix: Prefix,
    next_hop: Option<IpAddr>,
    as_path: String,
    local_pref: Option<u32>,
    med: Option<u32>,
    #[serde(default)]
    peer: Option<String>,
    #[serde(default)]
    path_id: Option<u32>,
    #[serde(default)]
    stale: bool,
    #[serde(default)]
    way: Option<ResolvedNextHop>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    reason: Option<BestPathReason>,
    #[serde(default)]
    multipath: bool,
    #[serde(default)]
    refusal: Option<ImportRefusal>,
    #[serde(default)]
    by: Option<DecidedBy>,
    #[serde(default)]
    detail: Option<String>,
    #[serde(default)]
    origin_check: Option<String>,
}

impl Row {
    fn status(&self) -> Option<PathStatus> {
        Some(match (self.status.as_deref()?, self.reason, self.refusal) {
            ("best", Some(reason), _) => PathStatus::Best { reason },
            ("lost", Some(reason), _) => PathStatus::Lost {
                reason,
                multipath: self.multipath,
            },
            ("refused", _, Some(refusal)) => PathStatus::Refused {
                refusal,
                by: self.by.clone(),
                detail: self.detail.clone(),
            },
            ("deferred", ..) => PathStatus::Deferred,
            _ => PathStatus::Unreachable,
        })
    }
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

const ADVERTISED: [&str; 5] = ["PREFIX", "NEXT HOP", "LOCAL PREF", "MED", "AS PATH"];

fn row(route: &Row) -> [String; 7] {
    let number = |value: Option<u32>| value.map(|n| n.to_string()).unwrap_or_default();
    let status = route.status();
    let status = status.map(|status| {
        let origin = route.origin_check.as_deref();
        sentence(&status, route.stale, route.way.as_ref(), origin)
    });
    let id = route.path_id.map(|id| format!(" #{id}"));
    [
        format!("{}{}", route.prefix, id.unwrap_or_default()),
        route
            .next_hop
            .map_or_else(|| "self".to_owned(), |a| a.to_string()),
        route.peer.clone().unwrap_or_else(|| "local".to_owned()),
        number(route.local_pref),
        number(route.med),
        route.as_path.clone(),
        status.unwrap_or_default(),
    ]
}

fn from(route: &RouteInfo) -> String {
    route
        .peer
        .as_ref()
        .map_or_else(|| "local".to_owned(), ToString::to_string)
}

fn status_of(route: &RouteInfo) -> String {
    let origin = route.origin_check.as_deref();
    sentence(&route.status, route.stale, route.way.as_ref(), origin)
}

fn sentence(
    status: &PathStatus,
    stale: bool,
    next_hop: Option<&ResolvedNextHop>,
    origin: Option<&str>,
) -> String {
    let stale = if stale {
        " (stale: the peer restarts)"
    } else {
        ""
    };
    let next_hop = next_hop.map_or_else(String::new, |hop| format!("; next hop {hop}"));
    // A refusal has the reason in it.
    let refused = matches!(status, PathStatus::Refused { .. });
    let origin = origin.filter(|_| !refused);
    let origin = origin.map_or_else(String::new, |said| format!("; origin check: {said}"));
    format!("{}{stale}{next_hop}{origin}", status.sentence())
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

#[cfg(test)]
mod tests {
    use caracal_bgp::AttrsInfo;

    use super::*;

    /// Parsing a printed row must give the status it was printed from.
    #[test]
    fn a_row_says_what_the_route_said() {
        let by = DecidedBy {
            filter: "f".to_owned(),
            term: 1,
            place: None,
        };
        let reason = BestPathReason::LocalPref;
        let refused = |refusal, by| PathStatus::Refused {
            refusal,
            by,
            detail: Some("why".to_owned()),
        };
        for status in [
            PathStatus::Best { reason },
            PathStatus::Lost {
                reason,
                multipath: true,
            },
            PathStatus::Lost {
                reason,
                multipath: false,
            },
            refused(ImportRefusal::AsLoop, None),
            refused(ImportRefusal::Policy, Some(by)),
            PathStatus::Unreachable,
            PathStatus::Deferred,
        ] {
            let route = RouteInfo {
                prefix: "10.0.0.0/8".parse().unwrap(),
                peer: Some("p".into()),
                path_id: Some(7),
                attrs: AttrsInfo {
                    next_hop: Some([10, 0, 0, 2].into()),
                    origin: "IGP".to_owned(),
                    as_path: "65001".to_owned(),
                    local_pref: Some(100),
                    med: None,
                    communities: vec![],
                    only_to_customer: None,
                    originator_id: None,
                    cluster_list: vec![],
                },
                stale: true,
                way: Some(ResolvedNextHop::default()),
                origin_check: Some("said".to_owned()),
                status: status.clone(),
            };
            let line = serde_json::to_string(&route).unwrap();
            assert!(line.starts_with("{\"prefix\":"), "{line}");
            let read: Row = serde_json::from_str(&line).unwrap();
            assert_eq!(read.status(), Some(status));
            let [prefix, hop, peer, pref, med, path, said] = row(&read);
            assert_eq!([prefix, hop, peer], ["10.0.0.0/8 #7", "10.0.0.2", "p"]);
            assert_eq!([pref, med, path], ["100", "", "65001"]);
            assert_eq!(said, status_of(&route));
        }
    }
}
