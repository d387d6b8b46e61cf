//! `caracal ipam check`: what is leaked or inconsistent, and with `--fix`, put right.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::Datastore;
use caracal_ipam::LeakReport;
use caracal_ipam::{Audit, audit};
use caracal_ipam::{Mender, plan_repairs};
use caracal_model::IpamCode;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::args::CheckArgs;
use super::{DEGRADED, Survey, announced, now, survey};
use crate::args::Output;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn run(store: &Datastore, args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let output = Output::from_str(&args.output, true).ok();
    let data = output.is_some_and(Output::is_data);
    let survey = survey(store).await?;
    let found = audit(&survey.view, &survey.users, now());
    if !data {
        print(&found);
    }
    if output.is_none() {
        let report = LeakReport::new(&found, survey.cluster.clone(), VERSION);
        let text = serde_json::to_vec_pretty(&report)?;
        std::fs::write(&args.output, text).with_context(|| format!("writing {}", args.output))?;
        println!("Wrote {}", args.output);
    }
    let mut answer = to_json(&found);
    let mut problems = found.problems();
    if args.fix && problems > 0 {
        let (repaired, left) = fix(store, &survey, &found, args, data).await?;
        answer["repaired"] = repaired;
        answer["left"] = left;
        if !args.dry_run {
            let after = super::survey(store).await?;
            problems = audit(&after.view, &after.users, now()).problems();
            if !data {
                println!("Problems left: {problems}");
            }
        }
        answer["problemsLeft"] = problems.into();
    }
    if let Some(output) = output.filter(|output| output.is_data()) {
        output.print(&answer);
    }
    if problems > 0 {
        return Ok(ExitCode::from(DEGRADED));
    }
    Ok(ExitCode::SUCCESS)
}

async fn fix(
    store: &Datastore,
    survey: &Survey,
    found: &Audit,
    args: &CheckArgs,
    data: bool,
) -> anyhow::Result<(Value, Value)> {
    let min_age = Duration::from_secs(args.min_age);
    let plan = plan_repairs(found, &survey.view, &survey.users, min_age, now());
    let say = |line: String| {
        if data {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    };
    let client = announced(store, args.dry_run, data);
    let (mut repaired, mut left) = (Vec::new(), plan.left);
    for repair in plan.repairs {
        let what = repair.to_string();
        say(format!("Repair: {what}"));
        match client.drive(Mender::new(repair, now())).await {
            Ok(true) => repaired.push(what),
            Ok(false) => say("  nothing left to do".to_owned()),
            Err(caracal_ipam::ClientError::Refused(error)) => left.push(format!("{what}: {error}")),
            Err(error) => return Err(error).context(what),
        }
    }
    left.iter()
        .for_each(|reason| say(format!("Left alone: {reason}")));
    Ok((json!(repaired), json!(left)))
}

fn to_json(found: &Audit) -> Value {
    let findings: Vec<Value> = found
        .findings
        .iter()
        .map(|f| json!({"code": f.code(), "fault": f.is_fault(), "text": f.to_string()}))
        .collect();
    json!({
        "revision": found.revision,
        "counts": found.counts,
        "leaked": found.leaked,
        "unallocated": found.unallocated,
        "unjudged": found.unjudged,
        "unreadable": found.unreadable,
        "findings": findings,
        "problems": found.problems(),
    })
}

fn print(found: &Audit) {
    let counts = &found.counts;
    println!("Checking IPAM at revision {}", found.revision);
    println!(
        "Found {} pools, {} blocks, {} handles",
        counts.pools, counts.blocks, counts.handles
    );
    println!(
        "Found {} addresses held: {} in use, {} cooling down, {} that cannot be judged",
        counts.allocations, counts.in_use, counts.cooling, counts.unjudged
    );
    for (why, count) in &found.unjudged {
        println!("  {count} not judged: {why}");
    }
    print_leaked(found);
    print_unallocated(found);
    for (key, reason) in &found.unreadable {
        println!(
            "  {key} does not parse: {reason} [{}]",
            IpamCode::Unreadable
        );
    }
    let (faults, notes): (Vec<_>, Vec<_>) = found.findings.iter().partition(|f| f.is_fault());
    println!("Found {} inconsistencies in the data", faults.len());
    faults
        .iter()
        .for_each(|finding| println!("  {finding} [{}]", finding.code()));
    notes
        .iter()
        .for_each(|finding| println!("  note: {finding} [{}]", finding.code()));
    println!("Check complete; found {} problems", found.problems());
}

fn print_leaked(found: &Audit) {
    println!(
        "Found {} addresses held and not in use (leaked)",
        found.leaked.len()
    );
    for leak in &found.leaked {
        let allocation = &leak.allocation;
        println!(
            "  {} leaked: {} (held by {}, node {}, handle {}) [{}]",
            allocation.address,
            leak.reason,
            allocation.holder(),
            allocation.node().unwrap_or("-"),
            allocation.handle.as_deref().unwrap_or("-"),
            IpamCode::Leaked
        );
    }
}

fn print_unallocated(found: &Audit) {
    println!(
        "Found {} addresses in use and not held",
        found.unallocated.len()
    );
    for unallocated in &found.unallocated {
        let users: Vec<&str> = unallocated.users.iter().map(|u| u.what.as_str()).collect();
        let place = unallocated.pool.as_ref().map_or_else(
            || "outside of all pools, no problem".to_owned(),
            |pool| format!("in pool {pool}"),
        );
        let code = match unallocated.pool {
            Some(_) => format!(" [{}]", IpamCode::Unallocated),
            None => String::new(),
        };
        println!(
            "  {} ({place}) is used by {}{code}",
            unallocated.address,
            users.join(", ")
        );
    }
}
