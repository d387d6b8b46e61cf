//! `caracal ipam release`: addresses by hand, or those of a report.

use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::Datastore;
use caracal_ipam::Conditional;
use caracal_ipam::LeakReport;
use caracal_ipam::ReleaseIps;
use caracal_ipam::holder_of;
use caracal_ipam::{ClientError, ReleaseTarget};
use serde_json::json;

use super::args::ReleaseArgs;
use super::{NOT_FOUND, Survey, announced, now, refuse, survey};
use crate::exit::invalid;

/// A release, what it rests on, and what of it must be so.
type AddressRelease = (ReleaseTarget, Vec<caracal_model::Compare>);

pub(super) async fn run(store: &Datastore, args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    let survey = survey(store).await?;
    let output = args.output.output;
    let data = output.is_data();
    let (orders, mut skipped) = match &args.from_report {
        None => match by_hand(&survey, args) {
            Ok(orders) => (orders, Vec::new()),
            Err(reason) => return Ok(refuse(&reason)),
        },
        Some(path) => {
            let text =
                std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            let report = serde_json::from_slice::<LeakReport>(&text)
                .with_context(|| format!("{} is no report of `ipam check -o`", path.display()));
            let report = report.map_err(invalid)?;
            let version = env!("CARGO_PKG_VERSION");
            if let Err(error) = report.accept(&survey.cluster, version, args.force) {
                return Ok(refuse(&error.to_string()));
            }
            of_report(&survey, &report)
        }
    };
    let client = announced(store, args.dry_run, data);
    let (mut released, mut unknown) = (Vec::new(), Vec::new());
    for (target, preconditions) in orders {
        let address = target.address;
        let machine = Conditional::new(ReleaseIps::new(vec![target], now()), preconditions);
        match client.drive(machine).await {
            Ok(done) => {
                released.extend(done.addresses);
                unknown.extend(done.unknown);
            }
            Err(ClientError::Refused(error)) => skipped.push(format!("{address}: {error}")),
            Err(error) => return Err(error).context(format!("releasing {address}")),
        }
    }
    if data {
        output.print(&json!({"released": released, "notAssigned": unknown, "skipped": skipped}));
    } else {
        released
            .iter()
            .for_each(|address| println!("Released {address}"));
        unknown
            .iter()
            .for_each(|address| println!("IP {address} is not assigned"));
        skipped
            .iter()
            .for_each(|reason| println!("Skipped {reason}"));
    }
    if released.is_empty() && !unknown.is_empty() {
        return Ok(ExitCode::from(NOT_FOUND));
    }
    Ok(ExitCode::SUCCESS)
}

fn by_hand(survey: &Survey, args: &ReleaseArgs) -> Result<Vec<AddressRelease>, String> {
    let mut orders = Vec::new();
    for address in &args.ip {
        if let Some(user) = survey.users.of_address(*address).first()
            && !args.force
        {
            return Err(format!(
                "{address} is used by {}; delete that first, or add --force",
                user.what
            ));
        }
        // Release only if the holder is still the one that the survey showed (IPAM-8).
        let held = holder_of(&survey.view, *address);
        let target = held.map_or_else(
            || ReleaseTarget::any(*address),
            |allocation| allocation.target(),
        );
        orders.push((target, Vec::new()));
    }
    Ok(orders)
}

fn of_report(survey: &Survey, report: &LeakReport) -> (Vec<AddressRelease>, Vec<String>) {
    let (mut orders, mut skipped) = (Vec::new(), Vec::new());
    for leak in report.allocations.values().flatten() {
        let address = leak.allocation.address;
        match survey.users.of_address(address).first() {
            Some(user) => skipped.push(format!("{address}: it is used by {} now", user.what)),
            None => orders.push((leak.allocation.target(), leak.preconditions(&survey.users))),
        }
    }
    (orders, skipped)
}
