#![allow(clippy::unwrap_used)]

use caracal_model::{
    DatastoreStatus, KernelStatus, NodeStatus, PeerStatusJson, Problem, ProblemCode,
};
use unicode_width::UnicodeWidthStr;

use super::frame::{Line, clean};
use super::*;
use crate::metrics::process::{AgentFigures, Figures, SpeakerFigures};

fn peer(name: &str, state: &str, received: usize) -> PeerStatusJson {
    PeerStatusJson {
        name: name.to_owned(),
        state: state.to_owned(),
        asn: 64512,
        since_seconds: 75,
        received,
        accepted: received,
        advertised: 3,
        ..PeerStatusJson::default()
    }
}

/// Three peers of which one is down, and the same a second before with fewer routes.
fn view() -> View {
    let mut down = peer("Mesh_10_0_0_3", "Active", 0);
    down.reason = Some("connection refused by the other end".to_owned());
    let status = NodeStatus {
        node: "node1".to_owned(),
        uptime_seconds: 3700,
        asn: 64512,
        datastore: DatastoreStatus {
            state: "fresh".to_owned(),
            revision: 1842,
            ..DatastoreStatus::default()
        },
        kernel: KernelStatus {
            phase: "synced".to_owned(),
            revision: 1842,
            ..KernelStatus::default()
        },
        peers: vec![
            peer("Mesh_10_0_0_2", "Established", 40),
            down,
            peer("tor", "Established", 1200),
        ],
        problems: vec![Problem {
            code: ProblemCode::BgpPeerDown,
            subject: "Mesh_10_0_0_3".to_owned(),
            reason: "the session is down".to_owned(),
        }],
        ..NodeStatus::default()
    };
    let figures = |cpu_seconds, applied: u64, pass_seconds| Figures {
        cpu_seconds,
        resident_bytes: 34.0 * 1_048_576.0,
        agent: Some(AgentFigures {
            passes: applied / 10,
            applied,
            pass_seconds,
        }),
        speaker: Some(SpeakerFigures {
            received: 10 * applied,
            sent: applied / 10,
            longest_turn_seconds: 0.0084,
        }),
    };
    let now = Instant::now();
    let mut before = Seen {
        at: now,
        took: Duration::from_micros(1240),
        status: status.clone(),
        figures: Some(figures(10.0, 100, 1.0)),
    };
    before.status.peers[2].received = 1000;
    let mut view = View::new(Seen {
        at: now + Duration::from_secs(2),
        took: Duration::from_micros(1240),
        status,
        figures: Some(figures(10.05, 160, 1.03)),
    });
    view.before = Some(before);
    view
}

fn text(lines: &[Line]) -> Vec<String> {
    let line = |line: &Line| {
        line.iter()
            .map(|span| span.text.as_str())
            .collect::<String>()
    };
    lines.iter().map(line).collect()
}

#[test]
fn a_frame_says_who_is_up_and_what_it_costs() {
    let lines = text(&view().frame(140, Some(20)));
    let shown: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    let wanted = [
        "node1  up 1h01m  AS 64512  datastore fresh at 1842  kernel synced at 1842",
        "▲ sessions 2 of 3  ▲ problems 1  received 1240  CPU 2.5 %  memory 34 MiB  UPDATEs 300/s in, 3.0/s out  answers in 1.2 ms",
        "longest turn 8.4 ms  kernel changes 30/s  passes 3.0/s of 5.0 ms",
        "",
        "PEER              AS  STATE▾          SINCE   RECEIVED   CHANGE/S   ACCEPTED   SENT  REASON",
        "Mesh_10_0_0_3  64512  ▲ Active        1m15s          0          -          0      3  connection refused by the other end",
        "Mesh_10_0_0_2  64512  ● Established   1m15s         40          -         40      3",
        "tor            64512  ● Established   1m15s       1200       +100       1200      3",
        "",
        "▲ bgp.peer_down Mesh_10_0_0_3: the session is down",
    ];
    assert_eq!(shown[..10], wanted, "{lines:#?}");
}

/// No line is wider than the terminal, none is missing, and what counts stays.
#[test]
fn a_frame_fits_every_terminal() {
    let mut wide = view();
    wide.seen.status.peers[0].name = "コンピュータ".repeat(6);
    wide.seen.status.problems[0].reason = "x".repeat(500);
    for view in [view(), wide] {
        for width in 40..=200 {
            for height in [5, 8, 24, 60] {
                let lines = text(&view.frame(width, Some(height)));
                assert_eq!(lines.len(), height, "{width}");
                for line in &lines {
                    assert!(line.width() <= width, "{width}: {} {line:?}", line.width());
                }
                assert!(lines.last().unwrap().starts_with("q quit"), "{width}");
                if height >= 24 {
                    for part in [
                        "▲ Active",
                        "● Established",
                        "PEER",
                        "SINCE",
                        "▲ sessions 2 of 3",
                    ] {
                        assert!(
                            lines.iter().any(|line| line.contains(part)),
                            "{width}: {part}: {lines:#?}"
                        );
                    }
                }
            }
        }
    }
    // A narrow one leaves out columns, and a wide one says why.
    let all = |width| text(&view().frame(width, Some(24))).join("\n");
    assert!(!all(40).contains("ACCEPTED") && all(140).contains("ACCEPTED"));
    assert!(all(140).contains("connection refused by the other end"));
}

/// The message of a peer's operator, or a name, is text.
#[test]
fn no_text_of_others_controls_the_terminal() {
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}evil\u{200b}\r\nnext\u{85}";
    let mut view = view();
    view.seen.status.peers[1].reason = Some(hostile.to_owned());
    view.seen.status.peers[1].name = hostile.to_owned();
    view.seen.status.peers[1].bgp_peer = Some(hostile.to_owned());
    view.seen.status.peers[1].state = hostile.to_owned();
    view.seen.status.node = hostile.to_owned();
    view.seen.status.drain = Some(hostile.to_owned());
    view.seen.status.problems[0].subject = hostile.to_owned();
    view.silent = Some(hostile.to_owned());
    for height in [Some(24), None] {
        let lines = text(&view.frame(200, height));
        assert!(lines.iter().any(|line| line.contains("evil")), "{lines:?}");
        for c in lines.iter().flat_map(|line| line.chars()) {
            assert!(!c.is_control(), "{c:?}");
            assert!(!"\u{202e}\u{200b}".contains(c), "{c:?}");
        }
    }
    assert_eq!(clean("as it is: 日本 é"), "as it is: 日本 é");
}

#[test]
fn keys_sort_and_scroll() {
    let mut view = view();
    let order = |view: &View| -> Vec<String> {
        let lines = text(&view.frame(140, None));
        let rows = lines
            .iter()
            .filter(|line| line.contains("64512 ") && !line.contains("AS 64512"));
        rows.map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        order(&view),
        ["Mesh_10_0_0_3", "Mesh_10_0_0_2", "tor"],
        "down first"
    );
    for _ in 0..2 {
        assert!(view.press(Key::Right, 10));
    }
    assert_eq!(view.sort, Column::Received);
    assert_eq!(order(&view), ["tor", "Mesh_10_0_0_2", "Mesh_10_0_0_3"]);
    view.press(Key::Reverse, 10);
    assert_eq!(order(&view)[0], "Mesh_10_0_0_3");
    view.press(Key::Left, 10);
    assert_eq!(view.sort, Column::Since);
    view.press(Key::PageDown, 10);
    assert_eq!(view.first, 2, "not beyond the last one");
    view.press(Key::Up, 10);
    assert_eq!(view.first, 1);
    let lines = text(&view.frame(140, Some(24)));
    assert!(lines.last().unwrap().contains("(1 above)"), "{lines:?}");
    // Peers that are gone take the rows along.
    let mut fewer = view.seen.clone();
    fewer.status.peers.truncate(1);
    view.update(Ok(fewer));
    assert_eq!(view.first, 0);
    assert!(!view.press(Key::Quit, 10));
}

#[test]
fn a_node_that_is_silent_is_said_to_be() {
    let mut view = view();
    view.update(Err(anyhow::anyhow!("connecting: no such file")));
    let lines = text(&view.frame(100, Some(24))).join("\n");
    assert!(
        lines.contains("▲ the node does not answer, it is asked again: connecting: no such file")
    );
    assert!(lines.contains("Mesh_10_0_0_2"), "what was known stays");
    let seen = view.seen.clone();
    view.update(Ok(seen));
    assert!(
        !text(&view.frame(100, Some(24)))
            .join("\n")
            .contains("does not answer")
    );
}

/// An older node tells no figures, and a first look has no rate.
#[test]
fn what_is_not_known_is_left_out() {
    let mut view = view();
    view.before = None;
    let first = text(&view.frame(140, Some(24))).join("\n");
    assert!(
        first.contains("memory 34 MiB") && !first.contains("CPU"),
        "{first}"
    );
    view.seen.figures = None;
    let old = text(&view.frame(140, Some(24))).join("\n");
    assert!(
        !old.contains("MiB") && old.contains("received 1240"),
        "{old}"
    );
    view.seen.status.peers.clear();
    let lonely = text(&view.frame(40, Some(24))).join("\n");
    assert!(lonely.contains("no peers are configured"), "{lonely}");
}
