//! `-o` and `--watch` of every command (docs/cli.md).

#[cfg(feature = "lab")]
use std::io::Write;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use crate::args::Output;
use crate::out;

/// Time between questions of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Keys whose values only say how much time has passed: alone they are no change.
const CLOCKS: [&str; 2] = ["uptimeSeconds", "sinceSeconds"];

impl Output {
    /// True for the forms that are for programs.
    pub(crate) const fn is_data(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }

    /// Prints a value as JSON or, for `-o yaml`, as YAML.
    pub(crate) fn print(self, value: &Value) {
        match self {
            Self::Yaml => print!("{}", yaml(value)),
            _ => println!("{value:#}"),
        }
    }

    /// How wide a table may be; `None`: as wide as it is.
    pub(super) fn columns(self) -> Option<u16> {
        out::columns().filter(|_| self == Self::Table)
    }

    /// Says what a command does: to people on standard output, beside data on standard error.
    pub(super) fn progress(self, line: impl std::fmt::Display) {
        if self.is_data() {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }

    /// A table without borders, as kubectl and calicoctl print. It fits the terminal, cells wrap
    /// where they have to; with `-o wide` it is as wide as it is.
    pub(crate) fn table(self, header: &[&str]) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        if !header.is_empty() {
            table.set_header(header.to_vec());
        }
        if let Some(columns) = self.columns() {
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
            table.set_width(columns);
        }
        table
    }
}

/// [`Output::table`] for commands whose tables have one form.
pub(super) fn table(header: &[&str]) -> comfy_table::Table {
    Output::Table.table(header)
}

/// Runs a command of the lab, which prints tables or JSON, so that it also prints YAML.
#[cfg(feature = "lab")]
pub(super) fn in_form<T>(
    output: Output,
    run: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if output != Output::Yaml {
        return run(&mut crate::out::Printer);
    }
    let mut json = Vec::new();
    let answer = run(&mut json)?;
    output.print(&serde_json::from_slice(&json).context("the lab's answer is not JSON")?);
    Ok(answer)
}

fn yaml(value: &Value) -> String {
    let mut text = serde_saphyr::to_string(value).expect("every JSON value is valid YAML");
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Asks again and again until it is interrupted, and shows each answer that differs from the one
/// before. A terminal is cleared first; JSON is one line for each answer, YAML one document.
pub(super) fn watch(
    output: Output,
    ask: impl Fn() -> anyhow::Result<Value>,
    show: impl Fn(&Value) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let mut known = None;
    loop {
        match ask() {
            Ok(value) => {
                let settled = without_clocks(value.clone());
                if known.as_ref() != Some(&settled) {
                    let first = known.is_none();
                    again(output, &value, first, &show).context("showing what has changed")?;
                    known = Some(settled);
                }
            }
            // A node that restarts is waited for.
            Err(error) if known.is_some() => eprintln!("caracal: {error:#}"),
            Err(error) => return Err(error),
        }
        std::thread::sleep(INTERVAL);
    }
}

fn again(
    output: Output,
    value: &Value,
    first: bool,
    show: impl Fn(&Value) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<()> {
    match output {
        Output::Json => println!("{value}"),
        Output::Yaml => print!("---\n{}", yaml(value)),
        _ => {
            if stdout().is_terminal() {
                // Cursor home, and everything behind it away (ECMA-48 CUP and ED).
                print!("\x1b[H\x1b[J");
            } else if !first {
                println!();
            }
            show(value)?;
        }
    }
    Ok(())
}

fn without_clocks(mut value: Value) -> Value {
    match &mut value {
        Value::Object(object) => {
            object.retain(|key, _| !CLOCKS.contains(&key.as_str()));
            for (_, inner) in object.iter_mut() {
                *inner = without_clocks(inner.take());
            }
        }
        Value::Array(list) => {
            for inner in list {
                *inner = without_clocks(inner.take());
            }
        }
        _ => {}
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_says_what_json_says() {
        let value = json!({"peers": [{"name": "a: b", "asn": 64512, "reason": null, "up": true}],
            "empty": [], "text": "10:30", "number": "1e3", "octal": "0755", "no": "no"});
        let again: Value = serde_saphyr::from_str(&yaml(&value)).unwrap();
        assert_eq!(again, value);
    }

    #[test]
    fn time_that_passes_is_no_change() {
        let at = |seconds: u32, state: &str| {
            without_clocks(json!({"uptimeSeconds": seconds,
                "peers": [{"state": state, "sinceSeconds": seconds}]}))
        };
        assert_eq!(at(1, "Idle"), at(2, "Idle"));
        assert_ne!(at(1, "Idle"), at(1, "Established"));
    }

    #[test]
    fn a_table_fits_its_width_unless_it_is_wide() {
        let long =
            "a sentence that says at length why a session is down, and what an operator may do";
        let lines = |output: Output, columns: u16| {
            let mut table = output.table(&["PEER", "INFO"]);
            if output != Output::Wide {
                table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
                table.set_width(columns);
            }
            table.add_row(["Mesh_10_0_0_2", long]);
            let text = table.to_string();
            text.lines().map(|l| l.trim_end().len()).max().unwrap_or(0)
        };
        assert!(lines(Output::Table, 80) <= 80);
        assert!(lines(Output::Wide, 80) > 80);
    }
}
