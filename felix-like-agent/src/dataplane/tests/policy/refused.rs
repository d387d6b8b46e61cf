//! A rule that `nft` does not take closes what it is about, and holds back nothing else.

use super::*;

/// `nft`, but for a rule with this range of addresses.
const RANGE: &str = "198.51.100.0/28";

fn make_nft_refuse() {
    let real = sh("command -v nft");
    let program = format!(
        "#!/bin/sh
         script=$(cat)
         case \"$script\" in *{RANGE}*) echo 'Error: not supported' >&2; exit 1;; esac
         printf '%s\\n' \"$script\" | {} \"$@\"",
        real.trim()
    );
    std::fs::create_dir_all(programs()).unwrap();
    let path = programs().join("nft");
    std::fs::write(&path, program).unwrap();
    sh(&format!("chmod 755 {}", path.display()));
}

fn allow_from(path: &str, app: &str, nets: &[&str]) -> random::Step {
    random::policy(
        path,
        json!({"selector": format!("app == '{app}'"), "types": ["Ingress"],
            "ingress": [{"action": "Allow", "source": {"nets": nets}}]}),
    )
}

#[test]
fn a_rule_that_is_refused_closes_what_it_is_about_alone() {
    let name = "policy::refused::a_rule_that_is_refused_closes_what_it_is_about_alone";
    in_namespace(name, || async {
        let _pods = node_with_pods();
        make_nft_refuse();
        let mut data = PolicyData::default();
        for step in [
            random::profile("a"),
            random::pod(1, "a", "me", &[("app", "x")]),
            random::pod(2, "a", "me", &[("app", "y")]),
            random::pod(3, "a", "me", &[("app", "z")]),
            allow_from("networkpolicies/a/bad", "x", &["10.0.0.0/24", RANGE]),
            allow_from("networkpolicies/a/good", "y", &["10.0.0.3/32"]),
        ] {
            apply(&mut data, &step);
        }
        let reached = |n: u8, to: u8| {
            let answers = ask_all();
            answers[&(n, [10, 0, 0, to].into(), "tcp", 80)]
        };
        let mut writer = PolicyWriter::new("me".into());
        let status = writer.pass(&data, 1).await.unwrap();
        assert!(status.is_in_force("cali1") && status.is_in_force("cali2"));
        let [refused] = &status.refused[..] else {
            panic!("{:?}", status.refused);
        };
        assert_eq!(refused.policy.as_deref(), Some("NetworkPolicy a/bad"));
        assert_eq!(refused.judges, [("cali1".to_owned(), "ingress")]);
        assert_eq!(refused.reason, "Error: not supported");
        // Closed alone, and in its direction alone; the others are judged as ever.
        assert!(!reached(2, 1) && reached(1, 3), "the closed one");
        assert!(reached(3, 2) && !reached(1, 2), "the other one");
        // The same again writes nothing, and a change of another one comes through.
        let before = writer.pass(&data, 2).await.unwrap().transactions;
        assert_eq!(writer.pass(&data, 3).await.unwrap().transactions, before);
        let good = allow_from("networkpolicies/a/good", "y", &["10.0.0.1/32"]);
        apply(&mut data, &good);
        assert_eq!(writer.pass(&data, 4).await.unwrap().refused.len(), 1);
        assert!(!reached(3, 2) && reached(1, 2), "after a change");
        // What is corrected is in force.
        let fine = allow_from("networkpolicies/a/bad", "x", &["10.0.0.0/24"]);
        apply(&mut data, &fine);
        assert_eq!(writer.pass(&data, 5).await.unwrap().refused, []);
        assert!(compare(&data) > 0);
        std::fs::remove_dir_all(programs()).unwrap();
    });
}
