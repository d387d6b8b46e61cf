//! `caracal explain-code`: what a code means and what to do, from the table in
//! `caracal_model::code`. It asks nobody.

use std::ffi::OsStr;
use std::process::ExitCode;

use caracal_model::{CodeEntry, code_entries, find_code, nearest_codes};
use clap::Args;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use serde_json::{Value, json};

use crate::args::{Output, OutputArgs};
use crate::exit::NOT_FOUND;

/// `caracal explain-code`.
#[derive(Debug, Args)]
pub(crate) struct ExplainCodeArgs {
    /// Code, such as CRL-B001 or bgp.password; default: list all codes.
    #[arg(conflicts_with = "list", value_parser = AnyCode, hide_possible_values = true)]
    code: Option<String>,
    /// List all codes.
    #[arg(long)]
    list: bool,
    /// Output format.
    #[command(flatten)]
    output: OutputArgs,
}

/// Takes any word, because an unknown code is answered with the nearest one; offers the codes to
/// completion.
#[derive(Clone)]
struct AnyCode;

impl TypedValueParser for AnyCode {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            code_entries().map(|entry| PossibleValue::new(entry.code)),
        ))
    }
}

pub(crate) fn run(args: &ExplainCodeArgs) -> ExitCode {
    let output = args.output.output;
    let Some(code) = &args.code else {
        list(output);
        return ExitCode::SUCCESS;
    };
    match find_code(code) {
        Some(entry) if output.is_data() => output.print(&to_json(&entry)),
        Some(entry) => println!("{}", text(&entry)),
        None => {
            eprintln!("caracal: {}", unknown(code));
            return ExitCode::from(NOT_FOUND);
        }
    }
    ExitCode::SUCCESS
}

fn list(output: Output) {
    if output.is_data() {
        let all: Vec<Value> = code_entries().map(|entry| to_json(&entry)).collect();
        output.print(&json!({ "codes": all }));
        return;
    }
    let mut table = output.table(&["CODE", "SEVERITY", "PRINTED BY", "MEANING"]);
    for entry in code_entries() {
        table.add_row([
            entry.code,
            entry.severity.as_str(),
            entry.reporter.command(),
            entry.meaning,
        ]);
    }
    println!("{table}");
}

fn to_json(entry: &CodeEntry) -> Value {
    json!({
        "code": entry.code,
        "printedBy": entry.reporter,
        "severity": entry.severity,
        "graceSeconds": entry.grace.as_secs(),
        "meaning": entry.meaning,
        "remedy": entry.remedy,
    })
}

fn text(entry: &CodeEntry) -> String {
    let grace = match entry.grace.as_secs() {
        0 => String::new(),
        seconds => format!(", counts after {seconds} s"),
    };
    format!(
        "{}: {}\n  what to do: {}\n  severity:   {}{grace}\n  printed by: {}",
        entry.code,
        entry.meaning,
        entry.remedy,
        entry.severity.as_str(),
        entry.reporter.command()
    )
}

fn unknown(code: &str) -> String {
    let near: Vec<&str> = nearest_codes(code).iter().map(|entry| entry.code).collect();
    match near.is_empty() {
        true => format!("there is no code {code:?}; caracal explain-code lists all codes"),
        false => format!(
            "there is no code {code:?}; did you mean {}? caracal explain-code lists all codes",
            near.join(" or ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_explained_and_a_wrong_one_gets_a_suggestion() {
        let entry = find_code("crl-d001").map(|entry| text(&entry));
        assert_eq!(
            entry.as_deref(),
            Some(
                "CRL-D001: the datastore is out of reach or behind\n  \
                 what to do: repair the datastore or the way to it; routes stay meanwhile, and nothing is deleted\n  \
                 severity:   error, counts after 5 s\n  \
                 printed by: caracal audit"
            )
        );
        assert!(unknown("bgp.pasword").contains("did you mean bgp.password?"));
        assert!(!unknown("no code at all, I think").contains("did you mean"));
    }
}
