//! A speaker against BIRD 2 and GoBGP, as far as they are installed. No kernel route is touched: the other
//! speakers run without their kernel side, on loopback addresses and ports of their own.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use caracal_bgp::config::{NextHopMode, Origination, PeerConfig, SpeakerConfig};
use caracal_bgp::types::{AnyCommunity, Asn, Community};
use caracal_model::net::{Family, Prefix};

use super::speakers::{configs, established, peer, received, start};
use super::{free_port, loopback, wait_for};

/// A foreign daemon; it ends with the test.
struct Daemon {
    child: Child,
    directory: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Daemon {
    /// Starts `program` with `args` in a directory of its own that holds `config`; `None`, with a word, when it is
    /// not installed.
    fn start(
        test: u8,
        program: &str,
        config: &str,
        args: impl Fn(&Path) -> Vec<String>,
    ) -> Option<Self> {
        let mut directory = std::env::temp_dir();
        directory.push(format!("caracal-interop-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("config"), config).unwrap();
        let child = Command::new(program)
            .args(args(&directory))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Self { child, directory }),
            Err(error) => {
                eprintln!("skipped: {program}: {error}");
                let _ = std::fs::remove_dir_all(&directory);
                None
            }
        }
    }
}

/// What `program` prints.
fn ask(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn p(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// Our end, with a route of each family; the peer is `AS`.
fn ours(test: u8, asn: u32, port: u16) -> SpeakerConfig {
    let [mut config, _] = configs(test);
    let theirs: &mut PeerConfig = peer(&mut config);
    theirs.remote_as = Asn(asn);
    theirs.families = vec![Family::Ipv4, Family::Ipv6];
    theirs.port = port;
    let communities = vec![AnyCommunity::Standard(Community::new(64512, 7))];
    let four = Origination {
        communities,
        med: Some(5),
        ..Origination::default()
    };
    let six = Origination {
        next_hop: Some("fd00::9".parse().unwrap()),
        ..four.clone()
    };
    config.originate = [(p("10.10.1.0/24"), four), (p("fd00:10::/64"), six)].into();
    config
}

fn port_of(config: &SpeakerConfig) -> u16 {
    config.listen.unwrap().port
}

async fn bird(test: u8, asn: u32) {
    let (us, them) = (loopback(test, 1), loopback(test, 2));
    let port = free_port(&[us, them]);
    let config = ours(test, asn, port);
    let text = format!(
        "router id 10.0.{test}.2;
         protocol device {{ }}
         protocol static {{ ipv4; route 10.20.1.0/24 blackhole; route 10.20.2.0/24 blackhole; }}
         protocol bgp them {{
           local {them} port {port} as {asn};
           neighbor {us} port {} as 64512;
           multihop; graceful restart on; connect delay time 1;
           ipv4 {{ import all; export filter {{ bgp_large_community.add((1,2,3)); accept; }}; next hop self; }};
           ipv6 {{ import all; export all; }};
         }}",
        port_of(&config)
    );
    let args = |directory: &Path| {
        let at = |name: &str| directory.join(name).display().to_string();
        let (config, control) = (at("config"), at("ctl"));
        ["-f", "-c", &config, "-s", &control]
            .map(str::to_owned)
            .to_vec()
    };
    let Some(daemon) = Daemon::start(test, "bird", &text, args) else {
        return;
    };
    let speaker = start(&config);
    let session = established(&speaker).await.session.unwrap();
    assert_eq!(session.families, [Family::Ipv4, Family::Ipv6]);
    assert!(session.graceful_restart.is_some());
    let all = |routes: &Vec<caracal_bgp::rib::RouteInfo>| routes.len() == 2;
    let routes = wait_for("BIRD's routes", async || received(&speaker).await, all).await;
    assert_eq!(routes[0].prefix, p("10.20.1.0/24"));
    assert_eq!(routes[0].attrs.next_hop, Some(them));
    let control = daemon.directory.join("ctl").display().to_string();
    let show = async || {
        ask(
            "birdc",
            &["-s", &control, "show", "route", "all", "protocol", "them"],
        )
    };
    let seen = wait_for("our routes in BIRD", show, |text: &String| {
        text.contains("10.10.1.0/24") && text.contains("fd00:10::/64")
    })
    .await;
    assert!(seen.contains("BGP.community: (64512,7)"), "{seen}");
    assert!(seen.contains("BGP.next_hop: fd00::9"), "{seen}");
    speaker.shutdown(false).await.unwrap();
    let gone = async || {
        ask(
            "birdc",
            &["-s", &control, "show", "protocols", "all", "them"],
        )
    };
    wait_for("the reason in BIRD", gone, |text| {
        text.contains("Administrative shutdown")
    })
    .await;
}

#[tokio::test]
async fn bird_internal() {
    bird(60, 64512).await;
}

#[tokio::test]
async fn bird_external() {
    bird(61, 4_200_000_001).await;
}

#[tokio::test]
async fn gobgp_external() {
    let (us, them): (IpAddr, IpAddr) = (loopback(62, 1), loopback(62, 2));
    let port = free_port(&[us, them]);
    let api = free_port(&[them]);
    let mut config = ours(62, 65001, port);
    // GoBGP takes no loopback address for a next hop.
    peer(&mut config).next_hop = NextHopMode::Keep;
    config
        .originate
        .get_mut(&p("10.10.1.0/24"))
        .unwrap()
        .next_hop = Some([192, 0, 2, 9].into());
    let text = format!(
        "[global.config]
           as = 65001
           router-id = \"10.0.62.2\"
           port = {port}
           local-address-list = [\"{them}\"]
         [[neighbors]]
           [neighbors.config]
             neighbor-address = \"{us}\"
             peer-as = 64512
           [neighbors.transport.config]
             local-address = \"{them}\"
             remote-port = {}
           [neighbors.ebgp-multihop.config]
             enabled = true
             multihop-ttl = 5
           [[neighbors.afi-safis]]
             [neighbors.afi-safis.config]
               afi-safi-name = \"ipv4-unicast\"
           [[neighbors.afi-safis]]
             [neighbors.afi-safis.config]
               afi-safi-name = \"ipv6-unicast\"",
        port_of(&config)
    );
    let args = |directory: &Path| {
        let config = directory.join("config").display().to_string();
        let hosts = format!("{them}:{api}");
        ["-f", &config, "-t", "toml", "--api-hosts", &hosts]
            .map(str::to_owned)
            .to_vec()
    };
    let Some(_daemon) = Daemon::start(62, "gobgpd", &text, args) else {
        return;
    };
    let speaker = start(&config);
    let session = established(&speaker).await.session.unwrap();
    assert_eq!(session.families, [Family::Ipv4, Family::Ipv6]);
    let (host, port) = (them.to_string(), api.to_string());
    let gobgp = |args: &[&str]| ask("gobgp", &[&["-u", &host, "-p", &port], args].concat());
    gobgp(&["global", "rib", "add", "10.30.1.0/24", "nexthop", &host]);
    let one = |routes: &Vec<caracal_bgp::rib::RouteInfo>| routes.len() == 1;
    let routes = wait_for("GoBGP's route", async || received(&speaker).await, one).await;
    assert_eq!(routes[0].attrs.as_path.to_string(), "65001");
    let rib =
        async || gobgp(&["global", "rib", "-a", "ipv4"]) + &gobgp(&["global", "rib", "-a", "ipv6"]);
    let seen = wait_for("our routes in GoBGP", rib, |text: &String| {
        text.contains("10.10.1.0/24") && text.contains("fd00:10::/64")
    })
    .await;
    assert!(seen.contains("64512:7"), "{seen}");
}
