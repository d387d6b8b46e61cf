//! The table as an MRT file, read by an independent program where it is installed.

use super::*;
use crate::types::Community;

fn table() -> Net {
    let mut config = with_peers([external_peer(2), internal_peer(3)]);
    config.originate.insert(prefix(9), Origination::default());
    let mut net = Net::new(config);
    net.up(2);
    net.up_with(
        3,
        SessionInfo {
            families: vec![Family::Ipv4, Family::Ipv6],
            ..session(3)
        },
    );
    let mut attrs_of_2 = external(2, &[65002, 4_200_000_001]);
    attrs_of_2.med = Some(5);
    attrs_of_2.communities = vec![Community::new(64512, 7)];
    net.announce(2, &[1, 2], attrs_of_2);
    net.announce(3, &[1], attrs(3));
    let six = PathAttrs {
        next_hop: Some("fd00::3".parse().unwrap()),
        ..attrs(3)
    };
    net.apply(
        3,
        UpdateMessage {
            announced: vec!["fd00:9::/64".parse().unwrap()],
            attrs: Some(six),
            ..UpdateMessage::default()
        },
    );
    net
}

/// The records: type, subtype, body.
fn records(mut octets: &[u8]) -> Vec<(u16, u16, &[u8])> {
    let mut all = Vec::new();
    while let Some((header, rest)) = octets.split_first_chunk::<12>() {
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        assert_eq!(header[..4], 7_u32.to_be_bytes());
        let len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let (body, after) = rest.split_at(usize::try_from(len).unwrap());
        all.push((half(4), half(6), body));
        octets = after;
    }
    assert!(octets.is_empty());
    all
}

#[test]
fn rfc6396_4_3_an_index_of_peers_and_a_record_for_each_prefix() {
    let mut net = table();
    let dump = net.rib.mrt(7);
    let kinds: Vec<_> = records(&dump).iter().map(|(t, s, _)| (*t, *s)).collect();
    assert_eq!(kinds, [(13, 1), (13, 2), (13, 2), (13, 2), (13, 4)]);
    let index = records(&dump)[0].2;
    assert_eq!(
        index[..8],
        [1, 0, 0, 1, 0, 0, 0, 3],
        "id, no name, three peers"
    );
    let first = records(&dump)[1].2;
    assert_eq!(first[..10], [0, 0, 0, 0, 24, 10, 244, 1, 0, 2], "two paths");
    // RFC 8050 §4.1: with path identifiers, other subtypes.
    net.apply(
        2,
        UpdateMessage {
            announced: vec![prefix(5)],
            announced_ids: vec![77],
            attrs: Some(external(2, &[65002])),
            ..UpdateMessage::default()
        },
    );
    let dump = net.rib.mrt(7);
    let all = records(&dump);
    let (_, _, body) = all.iter().find(|(_, subtype, _)| *subtype == 8).unwrap();
    assert_eq!(body[16..20], 77_u32.to_be_bytes());
}

/// AS numbers of four octets take twice the room of those that a session of two octets carried.
#[test]
fn rfc6396_4_3_4_a_path_that_no_record_holds_is_left_out_and_counted() {
    let mut net = table();
    let path: Vec<u32> = std::iter::once(65002).chain(1..=17_000).collect();
    net.announce(2, &[2, 6], external(2, &path));
    net.announce(3, &[2], attrs(3));
    let all = RouteQuery::all(RouteTable::Routes);
    let mut prefixes = net.rib.scan(&all, 0..net.rib.slots()).unwrap();
    prefixes.sort_unstable();
    let (mut out, peers) = net.rib.mrt_index(7);
    let before = MrtProgress::default();
    let after = net.rib.mrt_records(7, &peers, before, &prefixes, &mut out);
    assert_eq!((after.sequence, after.left_out), (4, 2));
    // Of one prefix the other path is there, and another has no record at all.
    let all = records(&out);
    assert_eq!(all.len(), 1 + 4);
    let second = all[2].2;
    assert_eq!(second[..10], [0, 0, 0, 1, 24, 10, 244, 2, 0, 1], "one path");
}

#[test]
fn rfc6396_bgpdump_reads_the_same_routes() {
    let file = std::env::temp_dir().join(format!("caracal-mrt-{}", std::process::id()));
    std::fs::write(&file, table().rib.mrt(7)).unwrap();
    let output = std::process::Command::new("bgpdump")
        .arg("-m")
        .arg(&file)
        .output();
    let _ = std::fs::remove_file(&file);
    let output = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return eprintln!("skipped: bgpdump: {error}"),
    };
    // Type, time, B, peer, AS, prefix, path, origin, next hop, LOCAL_PREF, MED, communities.
    let lines: Vec<&str> = output.lines().collect();
    let of = |prefix: &str| {
        lines
            .iter()
            .filter(|line| line.contains(prefix))
            .collect::<Vec<_>>()
    };
    assert_eq!(lines.len(), 5, "{output}");
    let one = of("10.244.1.0/24");
    assert!(
        one.iter().any(|line| line
            .contains("|10.0.0.2|65002|10.244.1.0/24|65002 4200000001|IGP|10.0.0.2|0|5|64512:7|")),
        "{output}"
    );
    assert!(
        one.iter().any(|line| line.contains("|10.0.0.3|64512|")),
        "{output}"
    );
    assert!(
        of("fd00:9::/64")[0].contains("|IGP|fd00::3|100|"),
        "{output}"
    );
    assert_eq!(of("10.244.9.0/24").len(), 1, "our own");
}
