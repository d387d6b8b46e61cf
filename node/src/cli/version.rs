//! Commands about the program itself: version, manual pages.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;

use crate::args::Output;

/// The version of the program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit it was built from, or `unknown`.
const COMMIT: &str = env!("CARACAL_COMMIT");

/// Both, as `--version` prints them.
pub(crate) const TEXT: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("CARACAL_COMMIT"),
    ")"
);

/// `User-Agent` of a part: product and part, version, system, commit.
#[cfg(feature = "kubernetes")]
pub(crate) fn user_agent(part: &str) -> String {
    let (system, processor) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("caracal-{part}/{VERSION} ({system}/{processor}) caracal/{COMMIT}")
}

pub(crate) fn run(output: Output) -> anyhow::Result<ExitCode> {
    if output.is_data() {
        output.print(&json!({"version": VERSION, "commit": COMMIT}));
    } else {
        println!("caracal {TEXT}");
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(program: clap::Command, folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(program, folder))
            .with_context(|| format!("writing manual pages into {}", folder.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(program).render(&mut page)?;
    print!("{}", String::from_utf8_lossy(&page));
    Ok(ExitCode::SUCCESS)
}
