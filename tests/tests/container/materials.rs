//! The bill of materials beside what is there: Cargo's lock file, Debian's packages, the image.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use caracal_tests::{has_python_packages, is_static_built, python_packages, static_binary};
use serde_json::Value;

#[test]
fn the_bill_of_materials_names_what_is_in_the_image() {
    let scenario = "the_bill_of_materials_names_what_is_in_the_image";
    if !is_static_built(scenario) || !has_python_packages(scenario) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("materials");
    let _before = fs::remove_dir_all(&folder);
    let (rootfs, file) = (folder.join("rootfs"), folder.join("bill.json"));
    let mut image = Command::new(root.join("deploy/image/build"));
    image.arg("--program").arg(static_binary());
    image.arg("--rootfs-only").arg(&rootfs);
    assert!(image.status().unwrap().success());
    let build = || {
        let mut bill = Command::new(root.join("deploy/sbom/build"));
        bill.arg("--rootfs").arg(&rootfs).arg(&file);
        bill.env("PYTHONPATH", python_packages());
        bill.output().unwrap()
    };
    let output = build();
    assert!(output.status.success(), "{output:?}");
    let bill: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(bill["metadata"]["component"]["name"], "caracal");
    assert_eq!(bill["metadata"]["component"]["type"], "application");

    let components = bill["components"].as_array().unwrap();
    let text = |component: &Value, key: &str| component[key].as_str().unwrap_or("").to_owned();
    let all: BTreeSet<(String, String)> = components
        .iter()
        .map(|c| (text(c, "name"), text(c, "version")))
        .collect();
    let has = |name: &str| all.iter().any(|(n, _)| n == name);
    // What ships, and neither what is for labs and tests nor what only builds.
    for name in [
        "tokio",
        "nom",
        "rtnetlink",
        "etcd-client",
        "hyper",
        "caracal-bgp",
    ] {
        assert!(has(name), "{name} is missing");
    }
    for name in [
        "proptest",
        "caracal-lab",
        "caracal-tests",
        "serde_derive",
        "cc",
    ] {
        assert!(!has(name), "{name} is not in the program");
    }
    // Each crate as the lock file has it, with its checksum, licence and origin.
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap();
    for component in components {
        let (name, version) = (text(component, "name"), text(component, "version"));
        if !text(component, "bom-ref").starts_with("crate ") {
            continue;
        }
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        let (_, after) = lock.split_once(&entry).unwrap_or_else(|| panic!("{entry}"));
        let after = after.split("[[package]]").next().unwrap();
        assert!(!component["licenses"][0].is_null(), "{name}: a licence");
        if after.contains("checksum = ") {
            let sum = text(&component["hashes"][0], "content");
            assert!(sum.len() == 64 && after.contains(&sum), "{name}: {sum}");
            assert_eq!(
                text(component, "purl"),
                format!("pkg:cargo/{name}@{version}")
            );
        }
    }
    // Packages of the image's files, in the version that is on this machine.
    for name in [
        "nftables",
        "libnftables1",
        "libc6",
        "libc6-dev",
        "containernetworking-plugins",
    ] {
        let installed = Command::new("dpkg-query")
            .args(["-W", "-f=${Version}", name])
            .output()
            .unwrap();
        let version = String::from_utf8(installed.stdout).unwrap();
        assert!(all.contains(&(name.to_owned(), version)), "{name}");
    }
    // A file of nobody's is no part of an image whose parts are known.
    fs::write(rootfs.join("usr/sbin/stray"), "").unwrap();
    let output = build();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("/usr/sbin/stray: no Debian package has this file"),
        "{said}"
    );
}
