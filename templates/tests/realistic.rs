//! Files as people write them for BIRD: a route server with files that it includes, a member of
//! dn42, a machine with service addresses, a node of AS112. BIRD reads them, and so do we.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use caracal_bgp::{AsPath, Asn, FilterVerdict, PathAttrs, PeerKind, RouteSource};
use caracal_templates::{File, read_file};

const FILES: [&str; 4] = [
    "route-server.conf",
    "dn42.conf",
    "anycast.conf",
    "as112.conf",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/realistic")
}

/// The files that these include: by name, or all of one folder.
fn included(_: &str, pattern: &str) -> Result<Vec<(String, String)>, String> {
    let names = match pattern.strip_suffix("*.conf") {
        Some(part) => {
            let entries = std::fs::read_dir(folder().join(part)).unwrap();
            entries
                .map(|entry| format!("{part}{}", entry.unwrap().file_name().to_string_lossy()))
                .collect()
        }
        None => vec![pattern.to_owned()],
    };
    let text = |name: String| match std::fs::read_to_string(folder().join(&name)) {
        Ok(text) => Ok((name, text)),
        Err(error) => Err(error.to_string()),
    };
    names.into_iter().map(text).collect()
}

fn read(name: &str) -> File {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    match read_file(name, &text, &mut included, &|_| Err(String::new())) {
        Ok(file) => file,
        Err(errors) => panic!("{}", errors.report(name)),
    }
}

#[test]
fn bird_reads_these_files_and_so_do_we() {
    for name in FILES {
        let file = read(name);
        assert!(!file.speaker.peers.is_empty(), "{name}");
        let output = Command::new("bird")
            .current_dir(folder())
            .args(["-p", "-c", name])
            .output();
        match output {
            Ok(output) => {
                let complaint = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{name}: {complaint}");
            }
            Err(_) => {
                println!("skipped: no program \"bird\"; install it with: apt-get install bird2")
            }
        }
    }
}

/// What a filter of a file makes of a route of a peer.
fn judged(
    file: &File,
    filter: &str,
    net: &str,
    path: &[u32],
    communities: &[&str],
) -> Option<PathAttrs> {
    let mut attrs = PathAttrs {
        as_path: AsPath::sequence(path.iter().copied().map(Asn).collect::<Vec<_>>()),
        ..PathAttrs::default()
    };
    for community in communities {
        attrs.add_community(community.parse().unwrap());
    }
    let found = file.speaker.filters.get(filter);
    let filter = found.unwrap_or_else(|| panic!("{filter}: {:?}", file.speaker.filters.keys()));
    let (verdict, attrs) = filter.judge(
        net.parse().unwrap(),
        attrs,
        RouteSource::Bgp,
        PeerKind::External,
    );
    (verdict == Some(FilterVerdict::Accept)).then_some(attrs)
}

#[test]
fn the_route_server_judges_its_members() {
    let file = read("route-server.conf");
    let peer = &file.speaker.peers[&"member_1".into()];
    assert_eq!(peer.import, ["from_member_1"]);
    assert_eq!(peer.hold_time.as_secs(), 180);
    assert_eq!(peer.prefix_limits.ipv4.unwrap().max, 1000);
    let second = &file.speaker.peers[&"member_2".into()];
    assert_eq!(second.remote_as, Asn(64502));
    let import = |net: &str, path: &[u32], communities: &[&str]| {
        judged(&file, "from_member_1", net, path, communities)
    };
    let good = import("198.51.100.0/24", &[64501], &["64500:3", "64500:1000:9"]).unwrap();
    assert_eq!(good.local_pref, Some(110));
    assert!(good.large_communities.is_empty(), "{good:?}");
    assert_eq!(
        import("198.51.100.0/24", &[64501, 64510], &[]).map(|_| ()),
        None,
        "a bogon AS"
    );
    assert!(
        import("198.51.100.0/24", &[64501, 3356, 9], &[]).is_none(),
        "transit"
    );
    assert!(
        import("198.51.100.0/25", &[64501], &[]).is_none(),
        "too long"
    );
    assert!(
        import("198.51.100.0/24", &[64502], &[]).is_none(),
        "another AS in front"
    );
    let to = "member_1 export IPv4";
    let sent = judged(
        &file,
        to,
        "203.0.113.0/24",
        &[64502],
        &["65501:64501", "0:7"],
    )
    .unwrap();
    assert_eq!(sent.as_path.to_string(), "64501 64502");
    assert_eq!(sent.communities.len(), 1);
    assert!(judged(&file, to, "203.0.113.0/24", &[64502], &["0:64501"]).is_none());
    assert!(judged(&file, to, "203.0.113.0/24", &[64502], &["64500:0:64501"]).is_none());
}

#[test]
fn families_of_a_peer_have_filters_of_their_own() {
    let file = read("dn42.conf");
    let peer = &file.speaker.peers[&"example_v4".into()];
    // The address constant, and the channel of the template with other words.
    assert_eq!(peer.source, Some("172.20.1.1".parse().unwrap()));
    let judge = |net: &str, path: &[u32]| {
        let mut filters = peer.import.iter().map(|name| &file.speaker.filters[name]);
        let attrs = PathAttrs {
            as_path: AsPath::sequence(path.iter().copied().map(Asn).collect::<Vec<_>>()),
            ..PathAttrs::default()
        };
        let judged = filters.find_map(|filter| {
            let judged = filter.judge(
                net.parse().unwrap(),
                attrs.clone(),
                RouteSource::Bgp,
                PeerKind::External,
            );
            judged.0.map(|verdict| (verdict, judged.1.local_pref))
        });
        judged.unwrap()
    };
    assert_eq!(
        judge("172.20.9.0/26", &[4_242_420_002]),
        (FilterVerdict::Accept, Some(200))
    );
    assert_eq!(
        judge("172.20.1.0/27", &[4_242_420_002]).0,
        FilterVerdict::Reject,
        "our own"
    );
    assert_eq!(
        judge("8.8.8.0/24", &[4_242_420_002]).0,
        FilterVerdict::Reject
    );
    assert_eq!(
        judge("fd00:1::/48", &[4_242_420_002]).0,
        FilterVerdict::Reject,
        "none"
    );
    assert_eq!(file.speaker.originate.len(), 2);
}
