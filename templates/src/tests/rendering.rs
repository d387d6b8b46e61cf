//! TEXT-1 and TEXT-3.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// TEXT-1: what is rendered reads back as it was, whatever the text is for.
    #[test]
    fn text_1_round_trip(config in generate::config()) {
        for role in [Role::View, Role::Daemon(Daemon::default())] {
            let options = Options { role, show_passwords: true, ..Options::default() };
            let text = render(&config, &options).unwrap();
            match parse(&text) {
                Ok(parsed) => prop_assert_eq!(parsed, config.clone(), "{}", text),
                Err(e) => prop_assert!(false, "{}\n{}", e.report("rendered"), text),
            }
        }
    }

    /// Rendering is a function: the same value gives the same text, and so does the value that was
    /// read back.
    #[test]
    fn text_is_stable(config in generate::config()) {
        let text = render(&config, &with_passwords()).unwrap();
        let again = render(&parse(&text).unwrap(), &with_passwords()).unwrap();
        prop_assert_eq!(text, again);
    }
}

#[test]
fn text_3_a_view_hides_passwords_and_does_not_parse_without_them() {
    let mut config = empty();
    let mut peer = PeerConfig::new("10.0.0.2".parse().unwrap(), Asn(64512));
    peer.password = Some(Password("s3cret".into()));
    config.peers.insert(PeerName::from("Mesh_10_0_0_2"), peer);
    let hidden = render(&config, &Options::default()).unwrap();
    assert!(!hidden.contains("s3cret"));
    let error = parse(&hidden).unwrap_err();
    assert_eq!(error.text.trim(), "#: password hidden");
    assert!(error.expected.contains("without its passwords"), "{error}");
    for options in [
        with_passwords(),
        Options {
            role: Role::Daemon(Daemon::default()),
            ..Options::default()
        },
    ] {
        assert_eq!(parse(&render(&config, &options).unwrap()).unwrap(), config);
    }
}

#[test]
fn what_bird_cannot_write_is_named() {
    let mut config = empty();
    let mut peer = PeerConfig::new("10.0.0.2".parse().unwrap(), Asn(64512));
    peer.password = Some(Password("a\"b".into()));
    config.peers.insert(PeerName::from("x1"), peer.clone());
    let error = render(&config, &with_passwords()).unwrap_err().to_string();
    assert_eq!(
        error,
        "peer \"x1\", password: a text with a quotation mark or a control character cannot be written; BIRD's strings have no escapes"
    );
    peer.password = None;
    peer.import = vec!["nowhere".into()];
    config.peers.insert(PeerName::from("x1"), peer);
    let error = render(&config, &with_passwords()).unwrap_err().to_string();
    assert!(error.contains("there is no such filter"), "{error}");
}

#[test]
fn tunnelled_pools_are_left_out_of_the_kernel_and_it_says_so() {
    let role = Role::Daemon(Daemon {
        tunnelled: vec![Tunnelled {
            prefix: "10.245.0.0/16".parse().unwrap(),
            encap: "VXLAN",
            direct_within: None,
        }],
        ..Daemon::default()
    });
    let options = Options {
        role,
        ..Options::default()
    };
    let text = render(&empty(), &options).unwrap();
    assert!(
        text.contains("      # VXLAN: BIRD cannot program tunnel routes"),
        "{text}"
    );
    assert!(text.contains("  if source = RTS_BGP && net ~ [ 10.245.0.0/16+ ] then reject;"));
    assert_eq!(parse(&text).unwrap(), empty());
}

#[test]
fn text_has_no_blank_noise() {
    let text = render(&empty(), &Options::default()).unwrap();
    assert!(!text.contains("\n\n\n"), "{text}");
    assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
}

#[test]
fn a_daemon_keeps_services_and_ways_to_peers_apart() {
    let mut config = empty();
    let peer = PeerConfig::new("10.1.0.2".parse().unwrap(), Asn(65000));
    config.peers.insert(PeerName::from("Global_10_1_0_2"), peer);
    let role = Role::Daemon(Daemon {
        rejected: ["10.96.0.0/12".parse().unwrap()].into(),
        reachable_by: [("10.1.0.2/32".parse().unwrap(), [10, 0, 0, 254].into())].into(),
        ignored_interfaces: vec!["eth9*".to_owned()],
        ..Daemon::default()
    });
    let options = Options {
        role,
        ..Options::default()
    };
    let text = render(&config, &options).unwrap();
    for line in [
        "      if net ~ [ 10.96.0.0/12+ ] then reject;",
        "  route 10.1.0.2/32 via 10.0.0.254;",
        "      if source = RTS_STATIC && dest != RTD_BLACKHOLE then reject;",
        "  interface -\"eth9*\", -\"cali*\", -\"kube-ipvs*\", \"*\";",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert_eq!(parse(&text).unwrap(), config);
}
