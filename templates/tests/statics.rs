//! A prefix in several static protocols, judged by BIRD: the same file, the same route.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the language's tests use the rest")]
#[path = "language/bird.rs"]
mod bird;

use std::time::{Duration, Instant};

use bird::Bird;
use caracal_bgp::StaticWay;
use caracal_model::Prefix;
use caracal_templates::parse;

const WAYS: [(&str, StaticWay); 3] = [
    ("blackhole", StaticWay::Blackhole),
    ("unreachable", StaticWay::Unreachable),
    ("prohibit", StaticWay::Prohibit),
];

#[test]
fn of_several_static_routes_bird_prefers_the_same() {
    let preferences = [None, Some(101), Some(200), Some(201)];
    let mut text = String::from("router id 10.0.0.1;\nprotocol device { }\n");
    let mut protocols = Vec::new();
    // Each prefix with other preferences of the three protocols that have it.
    for first in preferences {
        for second in preferences {
            for third in preferences {
                protocols.push([first, second, third]);
            }
        }
    }
    for (n, of_prefix) in protocols.iter().enumerate() {
        for ((way, _), preference) in WAYS.iter().zip(of_prefix) {
            let channel = preference.map_or_else(
                || "ipv4".to_owned(),
                |preference| format!("ipv4 {{ preference {preference}; }}"),
            );
            text += &format!("protocol static {{ {channel}; route 10.{n}.0.0/16 {way}; }}\n");
        }
    }
    let ours = format!("{text}define caracal_local_as = 64512;\n");
    let ours = parse(&ours).unwrap().originate;
    assert_eq!(ours.len(), protocols.len());
    let Some(mut bird) = Bird::start("statics", &text) else {
        return;
    };
    // Its protocols start one after the other.
    let all = format!("{} of {0} routes", WAYS.len() * protocols.len());
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (count, _) = bird.ask("show route table master4 count").unwrap();
        if count.iter().any(|line| line.starts_with(&all)) {
            break;
        }
        assert!(Instant::now() < deadline, "{count:?} without {all:?}");
        std::thread::yield_now();
    }
    for (n, of_prefix) in protocols.iter().enumerate() {
        let prefix = Prefix::v4([10, u8::try_from(n).unwrap(), 0, 0].into(), 16);
        let (shown, _) = bird.ask(&format!("show route {prefix} primary")).unwrap();
        let shown = shown.join("\n");
        let way = &ours.get(&prefix).unwrap().way;
        let (word, _) = WAYS.iter().find(|(_, known)| known == way).unwrap();
        assert!(shown.contains(word), "{word} for {of_prefix:?}: {shown}");
    }
}
