//! The router id, also where the machine's addresses say it.

use caracal_bgp::{ClusterId, InterfacePattern, RouterId};

use crate::{ParseErrors, parse, read_file};

const PEER: &str =
    "protocol bgp a { local as 64512; neighbor 10.0.0.2 as 64512; rr client; ipv4; }\n";

/// Reads a file on a machine that gives one answer; with what it was asked.
fn on_machine(
    line: &str,
    answer: Result<[u8; 4], &str>,
) -> (Result<crate::File, ParseErrors>, Vec<InterfacePattern>) {
    let asked = std::cell::RefCell::new(Vec::new());
    let text = format!("{line}\n{PEER}");
    let mut none = |_: &str, _: &str| Err("no files".to_owned());
    let file = read_file("f", &text, &mut none, &|patterns| {
        *asked.borrow_mut() = patterns.to_vec();
        answer.map(Into::into).map_err(str::to_owned)
    });
    (file, asked.into_inner())
}

#[test]
fn a_list_of_interfaces_is_what_bird_reads() {
    let pattern = |excludes, interface: &str, prefix: &str| InterfacePattern {
        excludes,
        interface: (!interface.is_empty()).then(|| interface.to_owned()),
        prefix: (!prefix.is_empty()).then(|| prefix.parse().unwrap()),
    };
    for (list, expected) in [
        ("\"eth*\"", vec![pattern(false, "eth*", "")]),
        (
            "-\"eth0\", \"*\"",
            vec![pattern(true, "eth0", ""), pattern(false, "*", "")],
        ),
        (
            "\"-eth0\", - 10.0.0.0/8",
            vec![pattern(true, "eth0", ""), pattern(true, "", "10.0.0.0/8")],
        ),
        ("-\"-eth0\"", vec![pattern(false, "eth0", "")]),
        (
            "\"eth0\" 10.0.0.0/8, 10.1.0.1",
            vec![
                pattern(false, "eth0", "10.0.0.0/8"),
                pattern(false, "", "10.1.0.1/32"),
            ],
        ),
    ] {
        let (file, asked) = on_machine(&format!("router id from {list};"), Ok([10, 9, 9, 9]));
        let file = file.unwrap_or_else(|errors| panic!("{}", errors.report("f")));
        assert_eq!(asked, expected, "{list}");
        assert_eq!(file.speaker.router_id, RouterId([10, 9, 9, 9].into()));
        // It is the cluster of reflector clients, as an id in the file is.
        let peer = &file.speaker.peers[&"a".into()];
        assert_eq!(peer.client_of, Some(ClusterId([10, 9, 9, 9].into())));
    }
}

#[test]
fn without_a_line_any_address_of_the_machine_will_do() {
    let (file, asked) = on_machine("", Ok([10, 9, 9, 9]));
    assert_eq!(
        file.unwrap().speaker.router_id,
        RouterId([10, 9, 9, 9].into())
    );
    assert_eq!(asked, []);
    // A text alone has no machine.
    let error = parse(PEER).unwrap_err().to_string();
    assert!(error.contains("router id ADDRESS;"), "{error}");
}

#[test]
fn an_address_in_the_file_counts_and_a_list_beside_it_is_noted() {
    for line in [
        "router id from \"eth0\"; router id 10.0.0.7;",
        "router id 10.0.0.7; router id from \"eth0\";",
    ] {
        let (file, _) = on_machine(line, Err("nothing is asked"));
        let file = file.unwrap();
        assert_eq!(file.speaker.router_id, RouterId([10, 0, 0, 7].into()));
        let noted = |note: &&String| note.contains("\"router id from\" has no effect");
        assert_eq!(file.notes.iter().filter(noted).count(), 1, "{line}");
    }
}

#[test]
fn what_no_address_fits_says_what_was_seen() {
    for (line, answer, expected) in [
        (
            "router id from \"eth*\";",
            Err("seen: lo 127.0.0.1 (loopback)"),
            "error: expected a list that takes an IPv4 address of this machine, or \"router id ADDRESS;\" (seen: lo \
             127.0.0.1 (loopback)), found \"\\\"\"\n  --> f:1:16\n",
        ),
        (
            "",
            Err("no interface has an IPv4 address"),
            "a line \"router id ADDRESS;\" somewhere in the file (no interface has an IPv4 address)",
        ),
        (
            "router id from 2001:db8::/32;",
            Ok([1; 4]),
            "a prefix of IPv4",
        ),
        (
            "router id from eth0;",
            Ok([1; 4]),
            "an interface in double quotes, or a prefix",
        ),
        (
            "router id from ;",
            Ok([1; 4]),
            "an interface in double quotes, or a prefix",
        ),
        ("router id from 10.0.0.1/8;", Ok([1; 4]), "a prefix ("),
        ("router id from \"a\" \"b\";", Ok([1; 4]), "expected \";\""),
    ] {
        let (file, _) = on_machine(line, answer);
        let report = file.unwrap_err().report("f");
        assert!(report.contains(expected), "{line}: {report}");
    }
}
