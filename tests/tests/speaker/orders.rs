//! Operations on one peer, as the BIRD at the other end sees them: `caracal bgp disable`, `enable`,
//! `reset` and `peer`.

use caracal_lab::wait_until;
use caracal_tests::SECOND;
use serde_json::{Value, json};

use super::{A, Site, address, prefix, stderr};

impl Site {
    /// Log of the BIRD.
    fn log_of(&self, bird: &str) -> String {
        std::fs::read_to_string(self.folder().join(format!("{bird}.log"))).unwrap_or_default()
    }

    fn peer(&self, name: &str) -> Value {
        self.json(&["bgp", "peer", name]).unwrap()
    }

    fn done(&self, arguments: &[&str], said: &str) {
        let output = self.ask(arguments);
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(words.contains(said), "{arguments:?}: {words}");
    }

    fn refused(&self, arguments: &[&str], code: i32, said: &str) {
        let output = self.ask(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let words = stderr(&output);
        assert!(words.contains(said), "{arguments:?}: {words}");
    }

    fn await_log(&self, bird: &str, text: &str, times: usize) {
        let what = format!("{bird} to log {text:?} {times} times");
        let result = wait_until(60 * SECOND, &what, || {
            let log = self.log_of(bird);
            match log.matches(text).count() >= times {
                true => Ok(()),
                false => Err(log),
            }
        });
        result.unwrap_or_else(|e| panic!("{e}"));
    }

    /// A number in the line of BIRD's route change statistics that begins with `line`.
    fn updates(&self, bird: &str, line: &str) -> u32 {
        let shown = self.birdc(bird, &["show", "protocols", "all", "caracal"]);
        let found = shown.lines().find(|l| l.trim().starts_with(line));
        let words: Vec<_> = found.unwrap_or_default().split_whitespace().collect();
        // `Import updates:` counts what was received first, `Export updates:` what was accepted
        // last.
        let at = if line.starts_with("Import") {
            2
        } else {
            words.len() - 1
        };
        words
            .get(at)
            .and_then(|w| w.parse().ok())
            .unwrap_or_else(|| panic!("{shown}"))
    }
}

pub(super) fn an_operator_stops_and_resets_a_session(site: &Site) {
    everything_about_a_peer(site);
    soft_resets_keep_the_session(site);
    a_disabled_peer_stays_down(site);
    a_reset_is_told_and_comes_back(site);
}

/// Each thing that an operator asks about a peer, in JSON and for people.
fn everything_about_a_peer(site: &Site) {
    let peer = site.peer("a");
    let a = address(site.family, A).to_string();
    assert_eq!(peer["state"], "Established", "{peer:#}");
    assert_eq!(peer["remote"]["address"], json!(a));
    assert_eq!(peer["establishedCount"], 1);
    let family = &peer["families"][0];
    let counts = ["received", "accepted", "advertised"].map(|key| family[key].as_u64());
    // Its own; B's and ours.
    assert_eq!(counts, [Some(1), Some(1), Some(2)], "{peer:#}");
    assert_eq!(family["agreed"], true);
    for key in ["holdTime", "keepaliveTime"] {
        let agreed = peer[key]["agreed"].as_u64();
        assert!(agreed.is_some_and(|seconds| seconds > 0), "{key}: {peer:#}");
    }
    for end in ["local", "remote"] {
        for key in ["address", "port", "asn", "routerId"] {
            assert!(!peer[end][key].is_null(), "{end} {key}: {peer:#}");
        }
    }
    for way in ["sent", "received", "agreed"] {
        let words = peer["capabilities"][way].to_string();
        assert!(words.contains("route refresh"), "{way}: {words}");
    }
    for way in ["sent", "received"] {
        let messages = &peer["messages"][way];
        for kind in ["open", "update", "keepalive"] {
            assert!(messages[kind].as_u64() > Some(0), "{way} {kind}: {peer:#}");
        }
    }
    for key in [
        "since", "md5", "passive", "disabled", "errors", "pending", "stale",
    ] {
        assert!(!peer[key].is_null(), "{key}: {peer:#}");
    }
    let shown = site.ask(&["bgp", "peer", &a]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for line in [
        "State:",
        "Disabled:",
        "Times up:",
        "Local:",
        "Remote:",
        "Hold time:",
        "Keepalive:",
        "TTL:",
        "TCP MD5:",
        "BFD:",
        "Capabilities sent:",
        "Capabilities received:",
        "Last error:",
        "Last NOTIFICATION sent:",
        "Last NOTIFICATION received:",
        "ADVERTISED",
        "LIMIT",
        "MESSAGES",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    site.refused(&["bgp", "peer", "nobody"], 3, "no peer nobody");
}

fn soft_resets_keep_the_session(site: &Site) {
    let before = (site.session("a"), site.session("b"));
    let sent = site.updates("a", "Export updates:");
    site.done(
        &["bgp", "reset", "a", "--soft", "in"],
        "asked for its routes again",
    );
    let heard = site.updates("a", "Import updates:");
    site.done(
        &["bgp", "reset", "a", "--soft", "out"],
        "sent all routes again",
    );
    let again = wait_until(60 * SECOND, "routes to pass again both ways", || {
        let now = (
            site.updates("a", "Export updates:"),
            site.updates("a", "Import updates:"),
        );
        // All of ours: B's and our own.
        match now.0 > sent && now.1 >= heard + 2 {
            true => Ok(()),
            false => Err(format!("{now:?} after {sent}, {heard}")),
        }
    });
    again.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((site.session("a"), site.session("b")), before);
    assert_eq!(site.peer("a")["establishedCount"], 1);
}

/// RFC 9003: the peer is told why, and told again each time it dials, until somebody enables it.
fn a_disabled_peer_stays_down(site: &Site) {
    let of_a = prefix(site.family, 1);
    let b = site.session("b");
    let long = "x".repeat(256);
    site.refused(&["bgp", "disable", "a", "--text", &long], 5, "256 octets");
    site.done(
        &["bgp", "disable", "a", "--text", "rack 7 is moved"],
        "is disabled",
    );
    // The end of the session, and two attempts of BIRD's after it.
    site.await_log("a", "rack 7 is moved", 3);
    assert!(!site.session("a").is_established());
    site.await_route("b", &of_a, "A's route leaves B", |shown| {
        !shown.contains("BGP.next_hop")
    });
    let peer = site.peer("a");
    assert_eq!(
        (&peer["state"], &peer["disabled"]),
        (&json!("Idle"), &json!(true)),
        "{peer:#}"
    );
    assert_eq!(peer["reason"], "disabled here: rack 7 is moved");
    let told = peer["lastNotificationSent"]["text"]
        .as_str()
        .unwrap_or_default();
    assert!(told.contains("rack 7 is moved"), "{peer:#}");
    let status = site.json(&["bgp", "peers"]).unwrap();
    assert!(
        status
            .to_string()
            .contains("disabled here: rack 7 is moved"),
        "{status:#}"
    );
    for soft in ["in", "out"] {
        site.refused(&["bgp", "reset", "a", "--soft", soft], 5, "enable it first");
    }
    site.done(&["bgp", "enable", "a"], "is enabled");
    site.await_sessions();
    site.await_route("b", &of_a, "A's route at B again", |shown| {
        shown.contains("BGP.next_hop")
    });
    assert_eq!(site.session("b"), b, "the other session was not touched");
}

fn a_reset_is_told_and_comes_back(site: &Site) {
    let times = site.peer("a")["establishedCount"].as_u64().unwrap();
    site.done(&["bgp", "reset", "a", "--text", "new cable"], "is reset");
    site.await_log("a", "new cable", 1);
    site.await_sessions();
    let peer = site.peer("a");
    assert_eq!(peer["establishedCount"], times + 1, "{peer:#}");
    assert!(peer["reason"].is_null(), "{peer:#}");
    let of_a = prefix(site.family, 1);
    site.await_route("b", &of_a, "A's route at B after the reset", |shown| {
        shown.contains("BGP.next_hop")
    });
    // BIRD waits a while after an error before it dials; the session that comes is the one that
    // stays.
    site.await_route("a", &prefix(site.family, 2), "B's route at A", |shown| {
        shown.contains("BGP.next_hop")
    });
}
