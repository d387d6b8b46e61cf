//! A session of one family carries the routes of both (RFC 4760, RFC 2545): BIRD 2, FRR and GoBGP
//! at the other end, one session over IPv4 and one over IPv6 with each.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use caracal_lab::{call_program, program_command, run_in_netns};
use caracal_tests::{SECOND, possible};

use super::site::Site;

/// FRR's programs are not in the search path.
const FRR: &str = "/usr/lib/frr";
/// Where GoBGP answers, in its own namespace.
const GOBGP_PORT: u16 = 50051;

/// Our address and the other end's on the link of `a` (1, over IPv4) or `b` (2, over IPv6).
fn ends(name: &str) -> (&'static str, &'static str) {
    match name {
        "a" => ("10.1.0.1", "10.1.0.2"),
        _ => ("2001:db8:2::1", "2001:db8:2::2"),
    }
}

/// Announcements of `name`.
fn theirs(name: &str) -> [&'static str; 2] {
    match name {
        "a" => ["100.64.1.0/24", "2001:db8:a1::/48"],
        _ => ["100.64.2.0/24", "2001:db8:a2::/48"],
    }
}

/// Our announcements.
const OURS: [&str; 2] = ["198.51.100.0/24", "2001:db8:99::/48"];

/// Our next hops towards `name`.
fn our_next_hops(name: &str) -> [&'static str; 2] {
    match name {
        "a" => ["10.1.0.1", "2001:db8:1::1"],
        _ => ["10.2.0.1", "2001:db8:2::1"],
    }
}

/// Our side, with peers of this AS.
fn speaker(asn: u32) -> String {
    let peer = |name| {
        let (_, remote) = ends(name);
        format!("protocol bgp {name} from both {{ neighbor {remote} as {asn}; }}\n")
    };
    format!(
        "router id 10.0.0.1;
         protocol kernel {{ ipv4 {{ export all; }}; }}
         protocol kernel {{ ipv6 {{ export all; }}; }}
         protocol static {{ ipv4; route {} blackhole; }}
         protocol static {{ ipv6; route {} blackhole; }}
         template bgp both {{
           local as 64512; direct; check link off; hold time 240; graceful restart on;
           ipv4 {{ import all; export all; }};
           ipv6 {{ import all; export all; }};
         }}
         {}{}",
        OURS[0],
        OURS[1],
        peer("a"),
        peer("b"),
    )
}

fn bird(site: &mut Site, name: &'static str) {
    let (ours, own) = ends(name);
    let [v4, v6] = theirs(name);
    site.start_bird(
        name,
        &format!(
            "protocol static own4 {{ ipv4; route {v4} blackhole; }}
             protocol static own6 {{ ipv6; route {v6} blackhole; }}
             protocol bgp caracal {{
               local {own} as 65001; neighbor {ours} as 64512; direct; hold time 240;
               connect delay time 1; connect retry time 1; error wait time 1, 2;
               ipv4 {{ import all; export all; }};
               ipv6 {{ import all; export all; }};
             }}"
        ),
    );
}

fn frr(site: &mut Site, name: &'static str) {
    let (ours, _) = ends(name);
    let [v4, v6] = theirs(name);
    let text = format!(
        "frr defaults traditional
router bgp 65001
 bgp router-id 10.0.9.9
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 neighbor {ours} remote-as 64512
 neighbor {ours} timers connect 1
 address-family ipv4 unicast
  network {v4}
  neighbor {ours} activate
 exit-address-family
 address-family ipv6 unicast
  network {v6}
  neighbor {ours} activate
 exit-address-family
exit
"
    );
    // FRR's programs run as a user of their own.
    let folder = site.file(&format!("{name}-frr"));
    let anybody = std::fs::Permissions::from_mode(0o777);
    for folder in [&folder, &folder.join("vty")] {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::set_permissions(folder, anybody.clone()).unwrap();
    }
    let file = |name: &str| folder.join(name).display().to_string();
    std::fs::write(file("bgpd.conf"), text).unwrap();
    std::fs::write(file("zebra.conf"), "").unwrap();
    for daemon in ["zebra", "bgpd"] {
        let mut command = Command::new(format!("{FRR}/{daemon}"));
        command.args(["-P", "0", "-f", &file(&format!("{daemon}.conf"))]);
        command.args(["-i", &file(&format!("{daemon}.pid")), "-z", &file("zserv")]);
        command.args(["--vty_socket", &file("vty"), "--log", "stdout"]);
        site.start(&format!("{name}-{daemon}"), name, &mut command);
        if daemon == "zebra" {
            site.until("zebra's socket", &true, || {
                std::path::Path::new(&file("zserv")).exists()
            });
        }
    }
}

fn gobgp(site: &mut Site, name: &'static str) {
    let (ours, _) = ends(name);
    let n = if name == "a" { 1 } else { 2 };
    let text = format!(
        "[global.config]
  as = 64512
  router-id = \"10.0.9.{n}\"
[[neighbors]]
  [neighbors.config]
    neighbor-address = \"{ours}\"
    peer-as = 64512
  [neighbors.timers.config]
    connect-retry = 1
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv4-unicast\"
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv6-unicast\"
"
    );
    let file = site.file(&format!("{name}.toml"));
    std::fs::write(&file, text).unwrap();
    let mut command = program_command("gobgpd").unwrap();
    command.arg("-f").arg(file);
    command.arg(format!("--api-hosts=127.0.0.1:{GOBGP_PORT}"));
    site.start(name, name, &mut command);
    for (family, prefix, hop) in [
        ("ipv4", theirs(name)[0], format!("10.{n}.0.2")),
        ("ipv6", theirs(name)[1], format!("2001:db8:{n}::2")),
    ] {
        let add = [
            "global", "rib", "add", prefix, "nexthop", &hop, "-a", family,
        ];
        site.until("GoBGP takes its route", &true, || {
            ask_gobgp(site, name, &add).is_ok()
        });
    }
}

fn ask_gobgp(site: &Site, name: &str, words: &[&str]) -> Result<String, String> {
    let mut command = program_command("gobgp").unwrap();
    command.args(["-p", &GOBGP_PORT.to_string()]).args(words);
    call_program(Some(&site.netns(name)), &mut command, b"", 30 * SECOND)
        .map_err(|error| error.to_string())
}

/// Output of the other end about one of our routes.
type Shown = fn(&Site, &str, &str) -> String;

fn shown_by_bird(site: &Site, name: &str, prefix: &str) -> String {
    site.birdc(name, &["show", "route", "all", prefix])
}

fn shown_by_frr(site: &Site, name: &str, prefix: &str) -> String {
    let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
    let mut command = program_command("vtysh").unwrap();
    let vty = site.file(&format!("{name}-frr")).join("vty");
    command.arg("--vty_socket").arg(vty);
    command.args(["-c", &format!("show bgp {family} unicast {prefix}")]);
    let said = call_program(Some(&site.netns(name)), &mut command, b"", 30 * SECOND);
    said.unwrap_or_else(|error| error.to_string())
}

fn shown_by_gobgp(site: &Site, name: &str, prefix: &str) -> String {
    let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
    let said = ask_gobgp(site, name, &["global", "rib", prefix, "-a", family]);
    said.unwrap_or_else(|error| error)
}

/// Both ends have the routes of both families, with next hops that the interface has.
fn both_ways(site: &Site, shown: Shown) {
    for name in ["a", "b"] {
        for (prefix, hop) in OURS.into_iter().zip(our_next_hops(name)) {
            let what = format!("{name} has {prefix} by {hop}");
            let word = |text: &str| {
                let mut words = text.split(|c: char| !(c.is_ascii_hexdigit() || ".:".contains(c)));
                words.any(|word| word == hop)
            };
            site.until_shown(&what, || shown(site, name, prefix), word);
        }
        for (prefix, flag) in theirs(name).into_iter().zip(["-4", "-6"]) {
            let hop = our_next_hops(name)[usize::from(flag == "-6")];
            let hop = format!("{}2", &hop[..hop.len() - 1]);
            let what = format!("our kernel has {prefix} of {name} by {hop}");
            let route = || {
                site.show("us", &[flag, "-o", "route", "show", prefix])
                    .join("\n")
            };
            site.until_shown(&what, route, |text| text.contains(&format!("via {hop} ")));
        }
    }
}

#[test]
fn rfc4760_bird_takes_both_families_over_a_session_of_either() {
    let scenario = "rfc4760_bird_takes_both_families_over_a_session_of_either";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker(65001));
    site.start_us();
    bird(&mut site, "a");
    bird(&mut site, "b");
    both_ways(&site, shown_by_bird);
    without_an_address(&mut site);
}

/// An interface without an address of the family: nothing is announced, and everybody is told.
fn without_an_address(site: &mut Site) {
    let checked = |site: &Site| {
        let mut command = Command::new(caracal_tests::binary());
        command
            .args(["speaker", "--check"])
            .arg(site.file("us.conf"));
        let output = run_in_netns(&site.netns("us"), || command.output())
            .unwrap()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(checked(site), "");
    site.ip("us", &["addr del 2001:db8:1::1/64 dev eth-a"]);
    let said = checked(site);
    assert!(
        said.contains("peer a: no next hop for IPv6 routes"),
        "{said}"
    );
    assert!(said.contains("eth-a") && !said.contains("peer b"), "{said}");
    site.end("us", "-KILL");
    site.start_us();
    let warning = |site: &Site, name: &str| {
        let peers = site.ask(&["bgp", "peers"]).ok()?;
        let peers = peers.as_array()?.clone();
        let peer = peers.iter().find(|peer| peer["name"] == name)?;
        (peer["state"] == "Established").then(|| peer["warning"].to_string())
    };
    let text = || warning(site, "a").unwrap_or_default();
    site.until_shown("the missing next hop is in the status", text, |text| {
        text.contains("no next hop for IPv6 routes over the IPv4 session")
    });
    assert_eq!(warning(site, "b").as_deref(), Some("null"));
    assert!(site.log_of("us").contains("no next hop for IPv6 routes"));
    let [v4, v6] = OURS;
    site.until_shown(
        "IPv4 goes on",
        || shown_by_bird(site, "a", v4),
        |text| text.contains("BGP.next_hop: 10.1.0.1"),
    );
    // Routes announced before the restart go with its End-of-RIB.
    site.until_shown(
        "IPv6 is not announced",
        || shown_by_bird(site, "a", v6),
        |text| !text.contains("BGP.next_hop"),
    );
    // Written down, it holds without a new session.
    let written = speaker(65001).replacen(
        "ipv6 { import all; export all; };\n         }",
        "ipv6 { import all; export all; next hop address 2001:db8:1::77; };\n         }",
        1,
    );
    assert_ne!(written, speaker(65001));
    site.write(&written);
    let reloaded = site.ask(&["speaker", "reload"]).unwrap();
    assert!(reloaded.is_object(), "{reloaded}");
    site.until_shown(
        "the next hop that the file names",
        || shown_by_bird(site, "a", v6),
        |text| text.contains("BGP.next_hop: 2001:db8:1::77"),
    );
    assert_eq!(warning(site, "a").as_deref(), Some("null"));
}

#[test]
fn rfc4760_frr_takes_both_families_over_a_session_of_either() {
    let scenario = "rfc4760_frr_takes_both_families_over_a_session_of_either";
    if !possible(scenario, &["vtysh"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker(65001));
    site.start_us();
    frr(&mut site, "a");
    frr(&mut site, "b");
    both_ways(&site, shown_by_frr);
}

#[test]
fn rfc4760_gobgp_takes_both_families_over_a_session_of_either() {
    let scenario = "rfc4760_gobgp_takes_both_families_over_a_session_of_either";
    if !possible(scenario, &["gobgpd", "gobgp"]) {
        return;
    }
    let mut site = Site::new();
    // Internal peers: they get our own routes.
    site.write(&speaker(64512));
    site.start_us();
    gobgp(&mut site, "a");
    gobgp(&mut site, "b");
    both_ways(&site, shown_by_gobgp);
}
