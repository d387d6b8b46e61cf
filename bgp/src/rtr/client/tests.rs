#![allow(clippy::unwrap_used)]

use tokio::io::DuplexStream;
use tokio::net::TcpListener;

use super::super::RtrTime;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// A cache of a test: what it is sent, and what it sends.
struct Cache(Box<dyn Stream>);

impl Cache {
    fn over(stream: DuplexStream) -> Self {
        Self(Box::new(stream))
    }

    async fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().await.unwrap();
        Self(Box::new(stream))
    }

    /// The next unit of the router.
    async fn heard(&mut self) -> Vec<u8> {
        let mut header = [0; 8];
        self.0.read_exact(&mut header).await.unwrap();
        let len = u32::from_be_bytes(header[4..].try_into().unwrap()) as usize;
        let mut unit = vec![0; len];
        unit[..8].copy_from_slice(&header);
        self.0.read_exact(&mut unit[8..]).await.unwrap();
        unit
    }

    async fn say(&mut self, octets: &[u8]) {
        self.0.write_all(octets).await.unwrap();
    }

    /// A whole answer with these entries for `10.N.0.0/16` of AS 65000; false: one that goes.
    async fn answer(&mut self, serial: u8, entries: &[(u8, bool)]) {
        let mut octets = vec![1, 3, 0, 7, 0, 0, 0, 8];
        for (n, announced) in entries {
            let flags = u8::from(*announced);
            octets.extend([1, 4, 0, 0, 0, 0, 0, 20, flags, 16, 24, 0]);
            octets.extend([10, *n, 0, 0, 0, 0, 0xfd, 0xe8]);
        }
        octets.extend([1, 7, 0, 7, 0, 0, 0, 24, 0, 0, 0, serial]);
        // Refresh 100 s, retry 4 s, expire 600 s.
        octets.extend([0, 0, 0, 100, 0, 0, 0, 4, 0, 0, 2, 88]);
        self.say(&octets).await;
    }
}

const RESET: [u8; 8] = [1, 2, 0, 0, 0, 0, 0, 8];

fn since(serial: u8) -> [u8; 12] {
    [1, 1, 0, 7, 0, 0, 0, 12, 0, 0, 0, serial]
}

fn follow(listener: &TcpListener) -> (RtrHandle, Arc<Notify>) {
    let address = listener.local_addr().unwrap();
    let cache = RtrCache {
        port: address.port(),
        ..RtrCache::new(address.ip().to_string())
    };
    let changed = Arc::new(Notify::new());
    let handle = RtrHandle::start("c".to_owned(), cache, Arc::clone(&changed));
    (handle, changed)
}

fn prefixes(handle: &RtrHandle) -> Vec<String> {
    let entries = handle.entries();
    entries.iter().map(|e| e.prefix.to_string()).collect()
}

#[tokio::test]
async fn entries_come_and_go_and_stay_over_a_lost_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (handle, changed) = follow(&listener);
    let mut cache = Cache::accept(&listener).await;
    assert_eq!(cache.heard().await, RESET);
    cache.answer(1, &[(1, true), (2, true)]).await;
    changed.notified().await;
    assert_eq!(prefixes(&handle), ["10.1.0.0/16", "10.2.0.0/16"]);
    let status = handle.status().borrow().clone();
    assert_eq!(status.state, RtrState::Current);
    assert_eq!(status.held, Some((1, 7, 1)));
    // A notice.
    cache.say(&[1, 0, 0, 7, 0, 0, 0, 12, 0, 0, 0, 2]).await;
    assert_eq!(cache.heard().await, since(1));
    cache.answer(2, &[(1, false)]).await;
    changed.notified().await;
    assert_eq!(prefixes(&handle), ["10.2.0.0/16"]);
    // The connection is lost, and made again.
    drop(cache);
    let mut status = handle.status();
    let down = |status: &RtrStatus| status.state == RtrState::Down && status.reason.is_some();
    status.wait_for(down).await.unwrap();
    assert_eq!(prefixes(&handle), ["10.2.0.0/16"]);
    let mut cache = Cache::accept(&listener).await;
    assert_eq!(cache.heard().await, since(2));
    cache.answer(3, &[]).await;
    status
        .wait_for(|status| status.held == Some((1, 7, 3)))
        .await
        .unwrap();
    assert_eq!(prefixes(&handle), ["10.2.0.0/16"]);
}

#[tokio::test]
async fn a_cache_that_breaks_the_protocol_is_told_and_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (handle, changed) = follow(&listener);
    let mut cache = Cache::accept(&listener).await;
    cache.heard().await;
    cache.answer(1, &[(1, true)]).await;
    changed.notified().await;
    cache.answer(2, &[]).await;
    let report = cache.heard().await;
    assert_eq!(report[..4], [1, 10, 0, 0], "corrupt data");
    let mut status = handle.status();
    let told = |status: &RtrStatus| {
        let reason = status.reason.as_ref();
        reason.is_some_and(|reason| reason.contains("an answer to no question"))
    };
    status.wait_for(told).await.unwrap();
    assert_eq!(prefixes(&handle), ["10.1.0.0/16"], "what was whole stays");
    let mut cache = Cache::accept(&listener).await;
    assert_eq!(cache.heard().await, since(1));
    cache.say(&[1, 3, 0, 7, 0xff, 0, 0, 8]).await;
    let report = cache.heard().await;
    assert_eq!(report[..4], [1, 10, 0, 0], "a length that is none");
}

/// With a clock that goes on when nothing else does, and a connection without a kernel.
async fn session(cache: RtrCache, wait: Duration) -> (Follower, Arc<Notify>) {
    let (ours, theirs) = tokio::io::duplex(4096);
    let changed = Arc::new(Notify::new());
    let (mut follower, _) = Follower::new("c".to_owned(), cache, Arc::clone(&changed));
    let (read, write) = tokio::io::split(ours);
    let mut cache = Cache::over(theirs);
    let script = async {
        assert_eq!(cache.heard().await, RESET);
        cache.answer(1, &[(1, true)]).await;
        changed.notified().await;
        let begun = Instant::now();
        assert_eq!(cache.heard().await, since(1));
        assert_eq!(begun.elapsed(), wait);
        // And says nothing.
        std::future::pending::<()>().await;
    };
    let lost = tokio::select! {
        lost = follower.session(read, write) => lost.unwrap_err(),
        () = script => unreachable!(),
    };
    assert!(matches!(lost, Lost::Silent), "{lost}");
    assert_eq!(follower.status.borrow().entries.len(), 1);
    (follower, changed)
}

#[tokio::test(start_paused = true)]
async fn a_cache_is_asked_in_time_and_its_entries_expire() {
    let begun = Instant::now();
    let config = RtrCache::new(String::new());
    let (mut follower, changed) = session(config, 100 * SECOND).await;
    // Nobody answers again.
    while !follower.status.borrow().entries.is_empty() {
        follower.rest().await;
    }
    changed.notified().await;
    let expired = begun.elapsed();
    assert!(
        expired >= 600 * SECOND && expired <= 604 * SECOND,
        "{expired:?}"
    );
    assert_eq!(follower.status.borrow().held, None);
}

#[tokio::test(start_paused = true)]
async fn a_time_that_is_kept_is_not_the_caches() {
    let refresh = RtrTime {
        seconds: 7,
        keep: true,
    };
    let config = RtrCache {
        refresh,
        ..RtrCache::new(String::new())
    };
    session(config, 7 * SECOND).await;
}

/// Times of two sources: entries that the cache lets expire after ten minutes would be gone for
/// most of an hour.
#[tokio::test(start_paused = true)]
async fn a_cache_is_asked_before_its_entries_expire_whoever_says_the_times() {
    let refresh = RtrTime {
        seconds: 3600,
        keep: true,
    };
    let config = RtrCache {
        refresh,
        ..RtrCache::new(String::new())
    };
    session(config, 300 * SECOND).await;
}
