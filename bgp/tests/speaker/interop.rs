//! BIRD 2 and GoBGP as peers. They run without access to the kernel's tables. Where a program is
//! not installed its tests say so and pass.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use caracal_bgp::{
    AddPath, Asn, BgpRole, CALICO_LOCAL_PREF, Origination, PathCount, PathStatus, SpeakerOptions,
};

use crate::net::{AS, Net, Node, name, originate, prefix, stale, wait_for};

/// A foreign program with a directory of its own; both go when it is dropped.
pub(crate) struct Foreign {
    pub(crate) directory: PathBuf,
    child: Option<Child>,
}

pub(crate) fn installed(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

impl Foreign {
    pub(crate) fn new(what: &str, net: Net) -> Self {
        let directory = format!("caracal-{what}-{}-{}", std::process::id(), net.port);
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self {
            directory,
            child: None,
        }
    }

    pub(crate) fn run(&mut self, program: &str, arguments: &[&str]) {
        let log = std::fs::File::create(self.directory.join("log")).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The answer of a client program, or nothing when it fails.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        let output = command
            .args(arguments)
            .current_dir(&self.directory)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// GoBGP as speaker 2 of an AS; `more` follows in its section for speaker 1.
    pub(crate) fn gobgp(what: &str, net: Net, asn: Asn, more: &str) -> Self {
        let mut gobgp = Self::new(what, net);
        let (own, peer, port) = (net.address(2), net.address(1), net.port);
        let config = format!(
            r#"[global.config]
                 as = {asn}
                 router-id = "10.0.0.2"
                 port = {port}
                 local-address-list = ["{own}"]
               [[neighbors]]
                 [neighbors.config]
                   neighbor-address = "{peer}"
                   peer-as = {AS}
                 [neighbors.transport.config]
                   local-address = "{own}"
                   remote-port = {port}
                 [neighbors.timers.config]
                   connect-retry = 1
                 {more}"#
        );
        std::fs::write(gobgp.directory.join("gobgp.toml"), config).unwrap();
        let hosts = format!("{own}:{}", port ^ 1);
        gobgp.run("gobgpd", &["-f", "gobgp.toml", "--api-hosts", &hosts]);
        gobgp
    }

    pub(crate) fn ask_gobgp(&self, net: Net, words: &[&str]) -> String {
        let (host, api) = (net.address(2).to_string(), (net.port ^ 1).to_string());
        self.ask("gobgp", &[&["-u", &host, "-p", &api], words].concat())
    }

    pub(crate) fn birdc(&self, question: &str) -> String {
        self.ask("birdc", &["-s", "bird.ctl", question])
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// BIRD as speaker 2 of an AS, which announces prefix 2 to speaker 1.
fn bird(net: Net, asn: Asn, options: &[&str]) -> Foreign {
    let mut bird = Foreign::new("bird", net);
    let (own, peer, port) = (net.address(2), net.address(1), net.port);
    let route = prefix(2);
    let config = format!(
        "log stderr all;
         router id 10.0.0.2;
         protocol device {{ scan time 60; }}
         protocol static own {{ ipv4; route {route} blackhole; }}
         protocol bgp caracal {{
           local {own} port {port} as {asn};
           neighbor {peer} port {port} as {AS};
           multihop; strict bind; graceful restart;
           connect delay time 1; connect retry time 1; error wait time 1, 2;
           ipv4 {{
             import all;
             export filter {{ bgp_community.add((65000, 7)); bgp_med = 9; accept; }};
           }};
         }}"
    );
    std::fs::write(bird.directory.join("bird.conf"), config).unwrap();
    start_bird(&mut bird, options);
    bird
}

pub(crate) fn start_bird(bird: &mut Foreign, options: &[&str]) {
    let arguments = ["-f", "-c", "bird.conf", "-s", "bird.ctl", "-P", "bird.pid"];
    bird.run("bird", &[&arguments[..], options].concat());
}

/// Waits for the whole answer of BIRD about prefix `n` to satisfy `accept`.
async fn bird_shows(bird: &Foreign, n: u8, accept: impl Fn(&str) -> bool) -> String {
    wait_for("BIRD's table", async || {
        let shown = bird.birdc(&format!("show route all {}", prefix(n)));
        if accept(&shown) {
            Ok(shown)
        } else {
            Err((shown, bird.birdc("show protocols all")))
        }
    })
    .await
}

/// Speaker 1 with speaker 2 of an AS as its peer; announces prefix 1.
fn with_peer(net: Net, remote_as: Asn) -> caracal_bgp::SpeakerConfig {
    let mut config = net.config(1, AS);
    config.peers = [net.peer(1, 2, remote_as)].into();
    originate(&mut config, 1);
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_internal_routes_flow_both_ways() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(111);
    let mut one = Node::start(with_peer(net, AS)).await;
    let bird = bird(net, AS, &[]);
    one.holds(&[2]).await;
    let route = one.route(2);
    assert_eq!(route.next_hops, [net.address(2)]);
    assert_eq!((route.local_pref, route.med), (100, Some(9)));
    assert_eq!(route.communities, ["65000:7".parse().unwrap()]);
    let shown = bird_shows(&bird, 1, |shown| shown.contains("BGP.next_hop")).await;
    assert!(
        shown.contains(&format!("BGP.next_hop: {}", net.address(1))),
        "{shown}"
    );
    assert!(
        shown.contains(&format!("BGP.local_pref: {CALICO_LOCAL_PREF}")),
        "{shown}"
    );
    assert!(shown.contains("BGP.origin: IGP"), "{shown}");

    one.reconfigure(|config| {
        config.originate.remove(&prefix(1));
        let route = Origination {
            med: Some(4),
            ..Origination::default()
        };
        config.originate.insert(prefix(3), route);
    })
    .await;
    bird_shows(&bird, 3, |shown| shown.contains("BGP.med: 4")).await;
    bird_shows(&bird, 1, |shown| shown.contains("not found")).await;
    bird.birdc("disable own");
    one.holds(&[]).await;
    assert_eq!(one.peer(2).await.established_count, 1);
    let session = one.peer(2).await.session.unwrap();
    assert!(session.graceful_restart.is_some(), "{session:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc7947_bird_is_a_client_of_our_route_server() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(137);
    let (birds, others) = (Asn(65002), Asn(65003));
    let mut config = net.config(1, AS);
    config.peers = [net.peer(1, 2, birds), net.peer(1, 3, others)].into();
    for peer in config.peers.values_mut() {
        peer.rs_client = true;
    }
    let _server = Node::start(config).await;
    let mut config = net.config(3, others);
    config.peers = [net.peer(3, 1, AS)].into();
    let route = Origination {
        med: Some(4),
        ..Origination::default()
    };
    config.originate.insert(prefix(3), route);
    let other = Node::start(config).await;
    let bird = bird(net, birds, &[]);
    let shown = bird_shows(&bird, 3, |shown| shown.contains("BGP.next_hop")).await;
    let next_hop = format!("BGP.next_hop: {}", net.address(3));
    for line in ["BGP.as_path: 65003\n", &next_hop, "BGP.med: 4"] {
        assert!(shown.contains(line), "{line:?} in {shown}");
    }
    other.holds(&[2]).await;
    let from_bird = other.received(1, 2).await;
    assert_eq!(from_bird.attrs.as_path.to_string(), "65002");
    assert_eq!(from_bird.attrs.med, Some(9));
    assert_eq!(from_bird.attrs.next_hop, Some(net.address(2)));
}

/// BIRD's other half of the table of RFC 9234: what it says of a route of ours, what we say of one
/// of its own, and two ends that do not go together.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9234_bird_and_we_have_roles() {
    if !installed("bird") {
        return;
    }
    tokio::join!(
        roles_with_bird(BgpRole::Customer, Net::new(138)),
        roles_with_bird(BgpRole::Peer, Net::new(139)),
        roles_with_bird(BgpRole::Provider, Net::new(140)),
    );
}

async fn roles_with_bird(ours: BgpRole, net: Net) {
    let (birds, others) = (Asn(65002), Asn(65003));
    let mut config = net.config(1, AS);
    config.peers = [net.peer(1, 2, birds), net.peer(1, 3, others)].into();
    let peer = config.peers.get_mut(&name(2)).unwrap();
    (peer.role, peer.require_roles) = (Some(ours), true);
    let one = Node::start(config).await;
    let mut config = net.config(3, others);
    config.peers = [net.peer(3, 1, AS)].into();
    originate(&mut config, 3);
    let other = Node::start(config).await;
    let bird = bird(net, birds, &[]);
    // Without a role of its own BIRD is refused.
    refuses(&one, "names no role").await;
    let path = bird.directory.join("bird.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    let with = |role: BgpRole, export: &str| {
        let line = format!("multihop; local role {role}; require roles;");
        let text = text.replace("multihop;", &line);
        text.replace("bgp_med = 9;", export)
    };
    let becomes = |text: String| {
        std::fs::write(&path, text).unwrap();
        bird.birdc("configure");
    };
    let wrong = match ours {
        BgpRole::Customer => BgpRole::Peer,
        _ => BgpRole::RsServer,
    };
    becomes(with(wrong, ""));
    refuses(&one, &format!("peer is a {wrong}")).await;
    becomes(with(ours.counterpart(), ""));
    let said = format!("BGP.otc: {AS}\n");
    let tells = ours != BgpRole::Customer;
    bird_shows(&bird, 3, |shown| {
        shown.contains("BGP.as_path: 64512 65003") && shown.contains(&said) == tells
    })
    .await;
    other.holds(&[2]).await;
    let of_birds = other.received(1, 2).await.attrs.only_to_customer;
    assert_eq!(of_birds, Some(birds).filter(|_| ours != BgpRole::Provider));
    // BIRD leaks what is for customers alone.
    becomes(with(ours.counterpart(), "bgp_otc = 65009;"));
    let refused = wait_for("BIRD's route with ONLY_TO_CUSTOMER", async || {
        let route = one.received(2, 2).await;
        match route.attrs.only_to_customer {
            Some(Asn(65009)) => Ok(matches!(route.status, PathStatus::Refused { .. })),
            _ => Err(route),
        }
    })
    .await;
    assert_eq!(refused, ours != BgpRole::Customer);
}

/// Waits until speaker 1 says why it has no session with BIRD.
async fn refuses(one: &Node, why: &str) {
    wait_for("a refusal", async || {
        let peer = one.peer(2).await;
        let told = peer.last_error.as_ref().map(|error| error.text.clone());
        match told.is_some_and(|told| told.contains(why)) {
            true => Ok(()),
            false => Err(peer),
        }
    })
    .await;
}

/// What a limit of exported routes says to the other end: ours to BIRD, and BIRD's to us.
#[tokio::test(flavor = "multi_thread")]
async fn bird_and_we_end_a_session_for_an_export_limit_alike() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(119);
    let mut config = with_peer(net, AS);
    config.peers.get_mut(&name(2)).unwrap().export_limits.ipv4 =
        Some(caracal_bgp::PrefixLimit::new(1));
    originate(&mut config, 3);
    let mut one = Node::start(config).await;
    let bird = bird(net, AS, &[]);
    wait_for("our shutdown at BIRD", async || {
        let shown = bird.birdc("show protocols all caracal");
        match shown.contains("Received: Administrative shutdown") {
            true => Ok(()),
            false => Err(shown),
        }
    })
    .await;
    let path = bird.directory.join("bird.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("import all;", "import all; export limit 0 action disable;");
    std::fs::write(&path, text).unwrap();
    one.reconfigure(|config| config.peers.get_mut(&name(2)).unwrap().export_limits.ipv4 = None)
        .await;
    bird.birdc("configure");
    wait_for("BIRD's shutdown here", async || {
        let peer = one.peer(2).await;
        let told = peer.last_error.as_ref().map(|error| error.text.clone());
        let told = told.unwrap_or_default();
        match told.contains("Administrative Shutdown") {
            true => Ok(()),
            false => Err((peer, bird.birdc("show protocols all caracal"))),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc7911_rfc7313_rfc9494_bird_takes_and_sends_several_paths() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(116);
    let both = AddPath {
        receive: true,
        send: Some(PathCount::All),
    };
    // 3 and 4 announce the same prefix to 1, which sends both paths to BIRD (2), and takes BIRD's
    // two.
    let mut config = net.config(1, AS);
    for (n, remote_as) in [(2, AS), (3, Asn(65003)), (4, Asn(65004))] {
        let (name, mut peer) = net.peer(1, n, remote_as);
        peer.add_path = both;
        peer.long_lived = Some(Duration::from_secs(60));
        config.peers.insert(name, peer);
    }
    let one = Node::start(config).await;
    let outside = async |n: u8| {
        let mut config = net.config(n, Asn(65000 + u32::from(n)));
        config.peers = [net.peer(n, 1, AS)].into();
        originate(&mut config, 9);
        Node::start(config).await
    };
    let (_three, four) = (outside(3).await, outside(4).await);
    let mut bird = Foreign::new("bird", net);
    let (own, peer, port) = (net.address(2), net.address(1), net.port);
    let elsewhere = prefix(2);
    let config = format!(
        "log stderr all;
         router id 10.0.0.2;
         ipv4 table twin;
         protocol device {{ scan time 60; }}
         protocol static own {{ ipv4; route {elsewhere} blackhole {{ bgp_next_hop = 127.116.0.20; }}; }}
         protocol static second {{ ipv4 {{ table twin; }};
           route {elsewhere} blackhole {{ bgp_next_hop = 127.116.0.21; }}; }}
         protocol pipe {{ table master4; peer table twin; import all; export none; }}
         protocol bgp caracal {{
           local {own} port {port} as {AS};
           neighbor {peer} port {port} as {AS};
           multihop; strict bind; graceful restart; long lived graceful restart on;
           connect delay time 1; connect retry time 1; error wait time 1, 2;
           ipv4 {{ add paths on; import all; export where source = RTS_STATIC; }};
         }}"
    );
    std::fs::write(bird.directory.join("bird.conf"), config).unwrap();
    start_bird(&mut bird, &[]);
    let session = one.established(2).await.session.unwrap();
    let in_use = |words: &str| session.capabilities.iter().any(|seen| seen.contains(words));
    assert!(
        in_use("ADD-PATH receive IPv4") && in_use("ADD-PATH send IPv4"),
        "{session:?}"
    );
    assert!(
        in_use("enhanced route refresh") && in_use("long-lived"),
        "{session:?}"
    );
    let hops = async || {
        let mut routes = one.speaker.received(name(2)).await.unwrap().unwrap();
        routes.retain(|route| route.prefix == prefix(2));
        let mut hops: Vec<_> = routes
            .iter()
            .filter_map(|route| route.attrs.next_hop)
            .collect();
        hops.sort_unstable();
        hops
    };
    wait_for("both paths of BIRD", async || {
        let hops = hops().await;
        let two: [IpAddr; 2] = [[127, 116, 0, 20].into(), [127, 116, 0, 21].into()];
        if hops == two { Ok(()) } else { Err(hops) }
    })
    .await;
    let paths = |shown: &str| shown.matches("BGP.next_hop").count();
    let shown = bird_shows(&bird, 9, |shown| paths(shown) == 2).await;
    assert!(
        shown.contains("65003") && shown.contains("65004"),
        "{shown}"
    );
    // BIRD asks again and is answered between marks: nothing is lost.
    bird.birdc("reload in caracal");
    bird_shows(&bird, 9, |shown| paths(shown) == 2).await;
    assert!(one.speaker.refresh(name(2)).await.unwrap());
    four.speaker.shutdown(false).await.unwrap();
    bird_shows(&bird, 9, |shown| paths(shown) == 1).await;
    bird.birdc("disable second");
    wait_for("one path of BIRD", async || {
        let hops = hops().await;
        if hops.len() == 1 { Ok(()) } else { Err(hops) }
    })
    .await;
    assert_eq!(one.peer(2).await.established_count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_external_routes_carry_the_path() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(112);
    let outside = Asn(4_200_000_001);
    let one = Node::start(with_peer(net, outside)).await;
    let bird = bird(net, outside, &[]);
    one.holds(&[2]).await;
    assert!(!one.route(2).internal);
    assert_eq!(one.received(2, 2).await.attrs.as_path, "4200000001");
    let shown = bird_shows(&bird, 1, |shown| shown.contains("BGP.as_path")).await;
    assert!(shown.contains(&format!("BGP.as_path: {AS}")), "{shown}");
    assert!(!shown.contains("BGP.local_pref: 2147482623"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_restarts_and_its_routes_never_go_away() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(113);
    let one = Node::start(with_peer(net, AS)).await;
    let mut bird = bird(net, AS, &[]);
    one.holds(&[2]).await;
    bird_shows(&bird, 1, |shown| shown.contains("BGP.next_hop")).await;
    bird.kill();
    stale(&one, 2).await;
    start_bird(&mut bird, &["-R"]);
    wait_for("a fresh route", async || {
        let route = one.route(2);
        if route.stale {
            Err((route, one.peer(2).await))
        } else {
            Ok(())
        }
    })
    .await;
    bird_shows(&bird, 1, |shown| shown.contains("BGP.next_hop")).await;
    assert!(one.fib.lock().unwrap().withdrawn.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_keeps_our_routes_while_we_restart() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(114);
    let one = Node::start(with_peer(net, AS)).await;
    let bird = bird(net, AS, &[]);
    one.holds(&[2]).await;
    bird_shows(&bird, 1, |shown| shown.contains("BGP.next_hop")).await;
    let config = one.config.clone();
    drop(one);
    let restarting = || {
        bird.birdc("show protocols all caracal")
            .contains("Neighbor graceful restart active")
    };
    wait_for("BIRD's notice", async || {
        if restarting() {
            Ok(())
        } else {
            Err(bird.birdc("show protocols all"))
        }
    })
    .await;
    bird_shows(&bird, 1, |shown| shown.contains("BGP.next_hop")).await;
    let options = SpeakerOptions {
        restarting: true,
        ..SpeakerOptions::default()
    };
    let one = Node::start_with(config, options).await;
    one.holds(&[2]).await;
    wait_for("the end of the restart", async || {
        if restarting() {
            Err(bird.birdc("show protocols all"))
        } else {
            Ok(())
        }
    })
    .await;
    bird_shows(&bird, 1, |shown| shown.contains("BGP.next_hop")).await;
    let changes = bird.birdc("show protocols all caracal");
    let withdrawn = changes
        .lines()
        .find(|line| line.contains("Import withdraws"))
        .unwrap();
    assert_eq!(withdrawn.split_whitespace().nth(2), Some("0"), "{changes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gobgp_routes_flow_both_ways() {
    if !installed("gobgpd") {
        return;
    }
    let net = Net::new(115);
    let restarts = "[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 60";
    let gobgp = Foreign::gobgp("gobgp", net, AS, restarts);
    // GoBGP does not accept a loopback address as next hop.
    let mut config = with_peer(net, AS);
    let elsewhere: IpAddr = [192, 0, 2, 1].into();
    config
        .originate
        .entry(prefix(1))
        .and_modify(|route| route.next_hop = Some(elsewhere));
    let one = Node::start(config).await;
    one.established(2).await;
    let ask = |question: &str| {
        let words: Vec<&str> = question.split(' ').collect();
        gobgp.ask_gobgp(net, &words)
    };
    ask(&format!(
        "global rib add {} med 9 community 65000:7",
        prefix(2)
    ));
    one.holds(&[2]).await;
    let route = one.route(2);
    assert_eq!(
        (route.next_hops, route.med),
        (vec![net.address(2)], Some(9))
    );
    assert_eq!(route.communities, ["65000:7".parse().unwrap()]);
    let shown = wait_for("GoBGP's table", async || {
        let shown = ask(&format!("global rib {}", prefix(1)));
        if shown.contains("LocalPref") {
            Ok(shown)
        } else {
            Err((shown, ask("neighbor")))
        }
    })
    .await;
    assert!(
        shown.contains(&format!("LocalPref: {CALICO_LOCAL_PREF}")),
        "{shown}"
    );
    assert!(shown.contains(&elsewhere.to_string()), "{shown}");
    ask(&format!("global rib del {}", prefix(2)));
    one.holds(&[]).await;
    assert_eq!(one.peer(2).await.name, name(2));
}
