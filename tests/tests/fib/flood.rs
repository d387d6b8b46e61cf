//! Effect of a peer on the speaker's memory: connections that are no session, and a table that
//! comes and goes.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use caracal_lab::{run_in_netns, wait_until};
use caracal_tests::{SECOND, possible};

use super::site::Site;
use super::{ALL, bird, many, speaker};

/// How many connections there are in all.
const CONNECTIONS: u32 = 100_000;
/// Number of connections before memory is measured: buffers and pools have their size then.
const FIRST: u32 = 10_000;
/// How many at a time.
const AT_A_TIME: usize = 16;
/// Limit of the growth by the rest. Before closed connections were joined as they end, each left
/// about 2 KiB: 176 MiB.
const MORE_MIB: u64 = 8;

/// Connects to us from the peer's address and waits for the first octet or the end, `count` times.
fn connect(site: &Site, count: u32) -> u32 {
    let us: SocketAddr = "10.1.0.1:179".parse().unwrap();
    let left = AtomicU32::new(count);
    let heard = AtomicU32::new(0);
    let one = || {
        let mut stream = TcpStream::connect_timeout(&us, 30 * SECOND).unwrap();
        stream.set_read_timeout(Some(30 * SECOND)).unwrap();
        if matches!(stream.read(&mut [0; 1]), Ok(1)) {
            heard.fetch_add(1, Ordering::Relaxed);
        }
        // A reset leaves no port behind that waits.
        let _reset = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    };
    let worker = || {
        let take = |left: u32| left.checked_sub(1);
        while left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
        {
            one();
        }
    };
    run_in_netns(&site.netns("a"), || {
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(worker);
            }
        });
    })
    .unwrap();
    heard.into_inner()
}

/// Memory that the speaker has taken, in MiB: not its code, of which more and more is read from the
/// file as it is used.
fn resident(site: &Site) -> u64 {
    let id = site.id("us");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap() / 1024
}

#[test]
fn rfc4724_5_a_hundred_thousand_connections_end_no_session_and_take_no_memory() {
    let scenario = "rfc4724_5_a_hundred_thousand_connections_end_no_session_and_take_no_memory";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker("", &["a"]));
    site.start_us();
    site.start_bird("a", &bird(65001, "10.1.0.1", &many(10), ALL));
    site.until("the session", &vec!["a".to_owned()], || site.sessions());
    let up = |site: &Site| site.log_of("us").matches("session established").count();
    let before = up(&site);

    let mut heard = connect(&site, FIRST);
    let first = resident(&site);
    heard += connect(&site, CONNECTIONS - FIRST);
    let last = resident(&site);
    println!(
        "{heard} of {CONNECTIONS} were heard; {first} MiB after {FIRST}, {last} MiB in the end"
    );
    assert!(
        last <= first + MORE_MIB,
        "{first} MiB after {FIRST} connections, {last} MiB after {CONNECTIONS}"
    );
    // Enough of them were adopted, and got our OPEN, to prove something.
    assert!(heard > CONNECTIONS / 10, "{heard} were heard");

    // The others were closed without a word, and are counted: beyond the bound, or while the
    // session was busy.
    let peer = site.ask(&["bgp", "peer", "a"]).unwrap();
    let counted =
        ["connectionLimit", "connectionRejected"].map(|kind| peer["errors"][kind].as_u64());
    let counted: u64 = counted.into_iter().flatten().sum();
    println!("closed at once: {}", peer["errors"]);
    assert!(
        counted + u64::from(heard) >= u64::from(CONNECTIONS) * 9 / 10,
        "{heard} were heard, {counted} counted: {peer:#}"
    );

    // The session is the one it was, and new ones can come up.
    assert_eq!(up(&site), before, "{}", site.log_of("us"));
    assert_eq!(site.sessions(), ["a"]);
    site.end("a", "-KILL");
    site.start_bird("a", &bird(65001, "10.1.0.1", &many(10), ALL));
    site.until("a session after the flood", &(before + 1), || up(&site));
}

/// Routes of a table that comes and goes.
const ROUTES: u32 = 150_000;
/// The least that they take while they are there, so that there is something to give back.
const TAKEN_MIB: u64 = 8;
/// Limit of the memory left behind.
const LEFT_MIB: u64 = 5;

/// A whole table is withdrawn, and then nothing happens any more. Before free memory was given back
/// at once, the process kept most of it until it next needed some.
///
/// With one thread, for what a thread frees in pages of another one is given back when that one
/// next works, which in a process at rest depends on chance.
#[test]
fn a_table_that_is_withdrawn_leaves_no_memory_behind() {
    let scenario = "a_table_that_is_withdrawn_leaves_no_memory_behind";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker("", &["a"]));
    site.start_us_with(&[("TOKIO_WORKER_THREADS", "1")]);
    let session = |routes: &str| bird(65001, "10.1.0.1", routes, ALL);
    site.start_bird("a", &session(&many(10)));
    let prefixes = |site: &Site| {
        let status = site.ask(&["status"]).ok()?;
        status["peers"][0]["received"].as_u64()
    };
    site.until("the first routes", &Some(10), || prefixes(&site));
    let before = resident(&site);
    let route = |n: u32| {
        let [_, a, b, c] = n.to_be_bytes();
        format!("route 20.{a}.{b}.{c}/32 blackhole;")
    };
    let all: Vec<String> = (0..ROUTES).map(route).collect();
    site.reconfigure_bird("a", &session(&all.join("\n")));
    let loaded = Some(u64::from(ROUTES));
    site.until("the table", &loaded, || prefixes(&site));
    let full = resident(&site);
    assert!(full >= before + TAKEN_MIB, "{before} MiB, then {full} MiB");
    site.reconfigure_bird("a", &session(&many(10)));
    site.until("the end of it", &Some(10), || prefixes(&site));
    // Nobody asks it anything from now on.
    let given_back = wait_until(20 * SECOND, "memory to be given back", || {
        let left = resident(&site);
        let enough = left <= before + LEFT_MIB;
        enough.then_some(left).ok_or(left)
    });
    println!("{before} MiB, {full} MiB with {ROUTES} routes, then {given_back:?}");
    given_back.unwrap();
}
