//! Message of the Makefile to a Rust that is too old, and that the oldest supported one is enough
//! for the workspace.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// `rust-version` of the workspace.
fn wanted() -> String {
    let text = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("rust-version = "));
    line.unwrap().trim_matches('"').to_owned()
}

/// Output and success of `make TARGET` when cargo reports this version. This cargo does nothing
/// else.
fn make(target: &str, version: &str) -> (bool, String) {
    let folder = tempfile(version);
    let cargo = folder.join("cargo");
    let script =
        format!("#!/bin/sh\n[ \"$*\" = --version ] && echo '{version}' || echo \"ran: $*\"\n");
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let output = Command::new("make")
        .arg(target)
        .current_dir(root())
        .env("PATH", path)
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .env_remove("CARGO")
        .output()
        .expect("make is installed");
    fs::remove_dir_all(&folder).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn tempfile(version: &str) -> PathBuf {
    let word: String = version
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    let folder = std::env::temp_dir().join(format!("caracal-make-{}-{word}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn make_names_the_rust_that_it_needs() {
    for old in [
        "cargo 1.65.0",
        "cargo 1.9.0 (abc 2016-05-01)",
        "no cargo at all",
    ] {
        for target in ["demo", "lint", "rust"] {
            let (fine, text) = make(target, old);
            assert!(!fine, "{target} with {old}: {text}");
            let needs = format!("Caracal needs Rust {} or newer", wanted());
            assert!(text.contains(&needs), "{target} with {old}: {text}");
            assert!(
                text.contains(old) && text.contains("https://rustup.rs"),
                "{text}"
            );
            // Before anything is installed or built.
            assert!(
                !text.contains("ran:") && !text.contains("installing:"),
                "{text}"
            );
        }
    }
    for new in [format!("cargo {}.0", wanted()), "cargo 2.0.1".to_owned()] {
        let (fine, text) = make("rust", &new);
        assert!(fine, "{new}: {text}");
        assert!(!text.contains("needs Rust"), "{text}");
    }
}

#[test]
fn no_dependency_needs_a_newer_rust() {
    // Major and minor; a third number is seldom given.
    let number = |version: &str| -> Vec<u32> {
        let parts = version.split('.').filter_map(|part| part.parse().ok());
        parts.take(2).collect()
    };
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{}", packages.len());
    for package in packages {
        let Some(needed) = package["rust_version"].as_str() else {
            continue;
        };
        assert!(
            number(needed) <= number(&wanted()),
            "{} {} needs Rust {needed}; name it in Cargo.toml and README",
            package["name"],
            package["version"]
        );
    }
}

/// `make` with arguments, in a folder with a copy of this Makefile.
fn make_in(folder: &Path, arguments: &[&str], environment: &[(&str, &Path)]) -> (bool, String) {
    let output = Command::new("make")
        .args(arguments)
        .current_dir(folder)
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .env_remove("CARGO_TARGET_DIR")
        .envs(environment.iter().copied())
        .output()
        .expect("make is installed");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success(), text)
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let who = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
    let mut git = Command::new("git");
    git.args(who).args(arguments).current_dir(folder);
    let output = git.output().expect("git is installed");
    assert!(output.status.success(), "git {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn every_target_builds_where_cargo_does() {
    let elsewhere = Path::new("/elsewhere/built");
    for target in [
        "demo",
        "unit",
        "scenarios",
        "deb",
        "sbom",
        "soak",
        "bench",
        "green",
    ] {
        let there = [("CARGO_TARGET_DIR", elsewhere)];
        let (fine, text) = make_in(&root(), &["-n", target], &there);
        assert!(fine, "{target}: {text}");
        assert!(text.contains("/elsewhere/built/"), "{target}: {text}");
        let ours = |word: &&str| word.starts_with("target/");
        let words = text.split([' ', '\t', '\n', '=', '"']);
        assert_eq!(words.filter(ours).collect::<Vec<_>>(), [""; 0], "{target}");
    }
}

#[test]
fn too_little_disk_is_said_before_anything_is_built() {
    let folder = tempfile("disk");
    let there = [("CARGO_TARGET_DIR", folder.as_path())];
    let (fine, text) = make_in(&root(), &["disk", "DISK=9999999"], &there);
    assert!(
        !fine && text.contains("a whole run needs 9999999"),
        "{text}"
    );
    assert!(make_in(&root(), &["disk", "DISK=0"], &there).0);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_proven_tree_is_told_from_another_one() {
    let folder = tempfile("green");
    let built = folder.join("built");
    fs::create_dir_all(&built).unwrap();
    fs::copy(root().join("Makefile"), folder.join("Makefile")).unwrap();
    fs::write(folder.join(".gitignore"), "built\n").unwrap();
    git(&folder, &["init", "-q"]);
    git(&folder, &["add", "."]);
    git(&folder, &["commit", "-q", "-m", "x"]);
    let green = || {
        make_in(
            &folder,
            &["green", &format!("TARGET={}", built.display())],
            &[],
        )
    };
    let (fine, text) = green();
    assert!(!fine && text.contains("nothing is proven"), "{text}");
    let tree = git(&folder, &["rev-parse", "HEAD^{tree}"]);
    fs::write(built.join("green"), format!("{tree}\n")).unwrap();
    let (fine, text) = green();
    assert!(fine && text.contains(&tree), "{text}");
    fs::write(folder.join("new"), "").unwrap();
    let (fine, text) = green();
    assert!(!fine && text.contains("the working tree differs"), "{text}");
    git(&folder, &["add", "."]);
    git(&folder, &["commit", "-q", "-m", "y"]);
    let (fine, text) = green();
    assert!(!fine && text.contains("not what was proven"), "{text}");
    fs::remove_dir_all(&folder).unwrap();
}
