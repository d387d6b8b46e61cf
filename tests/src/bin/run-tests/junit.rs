//! The same as a JUnit file, with the elements by which build servers know a second try
//! (`flakyFailure`, `rerunFailure`, as Maven's Surefire writes them).

use std::fmt::Write as _;

use crate::attempt::Attempt;
use crate::verdict::{Judgement, Outcome, Verdict};

/// Text of an element or of an attribute. XML 1.0 has no way to write control characters.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\n' | '\t' => xml.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => xml.push('\u{fffd}'),
            c => xml.push(c),
        }
    }
    xml
}

fn failure(element: &str, attempt: &Attempt) -> String {
    let fault = attempt.fault.as_deref().unwrap_or_default();
    format!(
        "    <{element} message=\"{}\" type=\"failure\">{}</{element}>\n",
        escaped(fault),
        escaped(&attempt.output)
    )
}

fn case(outcome: &Outcome) -> String {
    let (class, name) = outcome
        .name
        .split_once("::")
        .or_else(|| outcome.name.split_once(' '))
        .unwrap_or(("", &outcome.name));
    let mut xml = format!(
        "  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">\n",
        escaped(class),
        escaped(name),
        outcome.last().seconds
    );
    match outcome.verdict() {
        Verdict::Passed => {}
        Verdict::Flaky => xml.push_str(&failure("flakyFailure", &outcome.first)),
        Verdict::Failed => {
            xml.push_str(&failure("failure", &outcome.first));
            if let Some(second) = &outcome.second {
                xml.push_str(&failure("rerunFailure", second));
            }
        }
    }
    xml.push_str("  </testcase>\n");
    xml
}

/// The whole file, for a suite of a name.
pub(crate) fn junit(suite: &str, judgement: &Judgement, elapsed: f64) -> String {
    let failed = |o: &&Outcome| o.verdict() == Verdict::Failed;
    let failures = judgement.outcomes.iter().filter(failed).count();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a String cannot fail.
    let _ = writeln!(
        xml,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"0\" time=\"{elapsed:.3}\">",
        escaped(suite),
        judgement.outcomes.len()
    );
    for outcome in &judgement.outcomes {
        xml.push_str(&case(outcome));
    }
    xml.push_str("</testsuite>\n");
    xml
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::outcome;

    #[test]
    fn each_verdict_has_its_element() {
        let mut dirty = outcome("drain::c", Some("a < b"), Some(Some("signal: 9")));
        dirty.first.output = "\u{1b}[31mred & \"dead\"\n".to_owned();
        let judgement = Judgement {
            outcomes: vec![
                outcome("caracal-bgp rib", None, None),
                outcome("drain::b", Some("exit status: 101"), Some(None)),
                dirty,
            ],
            flaky_allowed: 3,
        };
        let xml = junit("scenarios", &judgement, 12.0);
        for part in [
            "<testsuite name=\"scenarios\" tests=\"3\" failures=\"1\" ",
            "<testcase classname=\"caracal-bgp\" name=\"rib\" time=\"1.500\">\n  </testcase>",
            "<flakyFailure message=\"exit status: 101\"",
            "<failure message=\"a &lt; b\" type=\"failure\">\u{fffd}[31mred &amp; &quot;dead&quot;\n</failure>",
            "<rerunFailure message=\"signal: 9\"",
        ] {
            assert!(xml.contains(part), "{part}\n{xml}");
        }
    }
}
