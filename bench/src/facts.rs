//! When, on what and against whom a comparison was made: what stands beside its tables.

use std::process::Command;

use anyhow::{Context, Result};

/// The beginning of a comparison.
#[derive(Debug)]
pub struct Begun {
    date: String,
    load: String,
}

fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}

/// Load average of the last minute.
fn load() -> Result<String> {
    let text =
        std::fs::read_to_string("/proc/loadavg").context("/proc says nothing of the load")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

impl Begun {
    pub fn now() -> Result<Self> {
        let date = first_line("date", &["+%F %H:%M"]).context("cannot run date")?;
        Ok(Self {
            date,
            load: load()?,
        })
    }

    /// A paragraph about the machine, for the report.
    pub fn paragraph(&self, scenarios: &[String], versions: &[String]) -> Result<String> {
        let commit = first_line("git", &["describe", "--always", "--dirty"]);
        let processors = std::thread::available_parallelism()?;
        Ok(format!(
            "Last run: {}, scenarios {}. Commit {}; {}. {processors} processors; load before it {}, at its end {} (the comparison \
             itself is a load of 1 to 2).\n",
            self.date,
            scenarios.join(", "),
            commit.as_deref().unwrap_or("unknown"),
            versions.join("; "),
            self.load,
            load()?,
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_paragraph_says_what_was_run_and_when() {
        let told = Begun::now()
            .unwrap()
            .paragraph(&["D".to_owned()], &["BIRD 9".to_owned()]);
        let told = told.unwrap();
        assert!(told.starts_with("Last run: 2"), "{told}");
        assert!(
            told.contains("scenarios D. Commit ") && told.contains("; BIRD 9. "),
            "{told}"
        );
    }
}
