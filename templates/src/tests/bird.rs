//! TEXT-2: the real BIRD 2 reads what we write.

use std::process::{Command, Stdio};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRng, TestRunner};

use super::*;

/// BIRD's complaint about a text; `None` when it is content.
fn complaint(text: &str, name: &str) -> Option<String> {
    let file = std::env::temp_dir().join(format!("caracal-{}-{name}.conf", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new("bird")
        .arg("-p")
        .arg("-c")
        .arg(&file)
        .output()
        .unwrap();
    let _ = std::fs::remove_file(&file);
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// True when there is a BIRD 2; else says why the test is skipped.
fn have_bird() -> bool {
    let found = Command::new("bird")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        println!("skipped: no program \"bird\"; install it with: apt-get install bird2");
    }
    found
}

#[test]
fn text_2_bird_accepts_arbitrary_configurations() {
    if !have_bird() {
        return;
    }
    let config = Config::default();
    // The same cases every time: a failure names a text, and there is nothing to shrink.
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    for case in 0..300 {
        let config = generate::config().new_tree(&mut runner).unwrap().current();
        for (name, role) in [
            ("view", Role::View),
            (
                "daemon",
                Role::Daemon {
                    tunnelled: vec![
                        Tunnelled {
                            prefix: "10.244.0.0/16".parse().unwrap(),
                            encap: "IPIP",
                            direct_within: Some("10.0.0.0/24".parse().unwrap()),
                        },
                        Tunnelled {
                            prefix: "fd00:10::/48".parse().unwrap(),
                            encap: "VXLAN",
                            direct_within: None,
                        },
                    ],
                },
            ),
        ] {
            let options = Options {
                role,
                show_passwords: true,
                ..Options::default()
            };
            let text = render(&config, &options).unwrap();
            if let Some(complaint) = complaint(&text, name) {
                panic!("case {case}, {name}: {complaint}\n{text}");
            }
        }
    }
}

#[test]
fn bird_refuses_what_is_wrong() {
    // Guards the test above against a `bird` that accepts everything.
    if have_bird() {
        let text = render(&empty(), &Options::default()).unwrap();
        assert_eq!(complaint(&text, "good"), None);
        assert!(complaint(&text.replace("router id", "router di"), "bad").is_some());
    }
}
