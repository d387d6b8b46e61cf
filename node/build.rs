//! Tells the program which commit it is built from: `CARACAL_COMMIT` of the environment (an image
//! build without a repository), else what git says, else `unknown`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=CARACAL_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var("CARACAL_COMMIT").ok();
    let commit = given.filter(|c| !c.is_empty()).or_else(from_git);
    println!(
        "cargo::rustc-env=CARACAL_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
}

/// The commit of the work tree. The build runs again when HEAD moves.
fn from_git() -> Option<String> {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if std::path::Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
