//! Cost of methods of installing routes in proportion to each other: ratios of the medians of one
//! interleaved run.

use std::fmt::Write as _;
use std::time::Duration;

use super::methods::{InstallCost, Method, MethodRuns};
use crate::report::median;

/// A ratio that is looked at.
struct Ratio {
    name: &'static str,
    of: Method,
    to: Method,
    what: fn(&InstallCost) -> Duration,
    aim: &'static str,
}

const fn wall(cost: &InstallCost) -> Duration {
    cost.wall
}

const fn cpu(cost: &InstallCost) -> Duration {
    cost.cpu
}

const fn ratio(
    name: &'static str,
    (of, to): (Method, Method),
    what: fn(&InstallCost) -> Duration,
    aim: &'static str,
) -> Ratio {
    Ratio {
        name,
        of,
        to,
        what,
        aim,
    }
}

#[rustfmt::skip]
const RATIOS: [Ratio; 11] = [
    ratio("whole agent / BIRD 2, wall", (Method::Agent, Method::Bird2), wall, "≤ 1.0"),
    ratio("whole agent / BIRD 2, CPU", (Method::Agent, Method::Bird2), cpu, "–"),
    ratio("whole agent with objects / BIRD 2, wall", (Method::AgentObjects, Method::Bird2), wall, "≤ 1.0"),
    ratio("whole agent with objects / BIRD 2, CPU", (Method::AgentObjects, Method::Bird2), cpu, "–"),
    ratio("writer / BIRD 2, wall", (Method::Caracal, Method::Bird2), wall, "≤ 1.0"),
    ratio("writer / BIRD 2, CPU", (Method::Caracal, Method::Bird2), cpu, "–"),
    ratio("writer / `minimal`, CPU", (Method::Caracal, Method::Minimal), cpu, "≤ 1.2"),
    ratio("writer with objects / `minimal-objects`, CPU", (Method::CaracalObjects, Method::MinimalObjects), cpu, "≤ 1.2"),
    ratio("objects / plain, CPU (`minimal`)", (Method::MinimalObjects, Method::Minimal), cpu, "0.5"),
    ratio("objects / plain, CPU (writer)", (Method::CaracalObjects, Method::Caracal), cpu, "0.5"),
    ratio("objects / plain, CPU (whole agent)", (Method::AgentObjects, Method::Agent), cpu, "–"),
];

/// Table of the ratios that are known, with a column for each size.
pub(super) fn table(all: &[(u32, Vec<MethodRuns>)]) -> String {
    let mut text = "| ratio |".to_owned();
    for (routes, _) in all {
        // Writing to a String cannot fail.
        let _ = write!(text, " {routes} |");
    }
    text.push_str(" aim |\n|---|---|");
    text.push_str(&"---|".repeat(all.len()));
    text.push('\n');
    for ratio in RATIOS {
        let values: Vec<Option<f64>> = all.iter().map(|(_, runs)| value(&ratio, runs)).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(text, "| {} |", ratio.name);
        for value in values {
            let _ = match value {
                Some(value) => write!(text, " {value:.2} |"),
                None => write!(text, " – |"),
            };
        }
        let _ = writeln!(text, " {} |", ratio.aim);
    }
    text
}

fn value(ratio: &Ratio, runs: &[MethodRuns]) -> Option<f64> {
    let of = |method: Method| {
        let (_, costs) = runs.iter().find(|(m, _)| *m == method)?;
        median(costs.iter().map(ratio.what).collect())
    };
    let (of, to) = (of(ratio.of)?, of(ratio.to)?);
    (!to.is_zero()).then(|| of.as_secs_f64() / to.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians() {
        let cost = |wall, cpu| InstallCost {
            wall: Duration::from_millis(wall),
            cpu: Duration::from_millis(cpu),
        };
        let all = [
            (
                100,
                vec![
                    (Method::Agent, vec![cost(9, 9), cost(100, 6), cost(10, 5)]),
                    (Method::Bird2, vec![cost(20, 8)]),
                ],
            ),
            (200, vec![(Method::Agent, vec![cost(1, 1)])]),
        ];
        let expected = "| ratio | 100 | 200 | aim |\n|---|---|---|---|\n\
            | whole agent / BIRD 2, wall | 0.50 | – | ≤ 1.0 |\n\
            | whole agent / BIRD 2, CPU | 0.75 | – | – |\n";
        assert_eq!(table(&all), expected);
    }
}
