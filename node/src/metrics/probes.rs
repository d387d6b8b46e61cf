//! Verdicts of the readiness probe, and problems by code.

use std::collections::BTreeMap;

use caracal_model::Problem;

use super::count;
use crate::http::exposition::{MetricFamily, MetricKind};
use crate::http::health::HealthReport;

/// The families. Codes of problems are a closed list, so their series are bounded.
pub(crate) fn families(ready: &HealthReport, problems: &[Problem]) -> Vec<MetricFamily> {
    let checks = ready.checks().iter().map(|check| {
        let good = if check.verdict.is_ok() { 1.0 } else { 0.0 };
        (vec![("check", check.name.to_owned())], good)
    });
    let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
    for problem in problems {
        *codes.entry(problem.code.as_str()).or_default() += 1;
    }
    let codes = codes
        .into_iter()
        .map(|(code, number)| (vec![("code", code.to_owned())], count(number)));
    vec![
        MetricFamily::new(
            "caracal_ready",
            MetricKind::Gauge,
            "1 when a check of the readiness probe is passed, by check.",
        )
        .samples(checks),
        MetricFamily::new(
            "caracal_problems",
            MetricKind::Gauge,
            "Things that are wrong, by code; caracal status has each with its reason.",
        )
        .samples(codes),
    ]
}
