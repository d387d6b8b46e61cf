//! The rate limit of log lines that a peer can cause: a token bucket for each key.
//!
//! A key is a kind of line, together with the peer where one task logs for several. After [`BURST`]
//! lines, lines are counted instead of written, and one summary line is written each [`PAUSE`] as
//! long as there is something to count. The owner of a limit must call [`LogLimit::due`] at
//! [`LogLimit::next_timeout`], so that the last lines of a flood are accounted for when it ends.
//! Nothing here reads a clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::types::PeerName;

/// Lines of one key that are written before any is counted instead. A session that comes and goes,
/// or a handful of bad UPDATEs, is seen line by line.
const BURST: u32 = 10;
/// Interval at which a key gets another line, in the long run.
const PAUSE: Duration = Duration::from_secs(10);
/// Keys from which on those that have been quiet are forgotten.
const PRUNE_FROM: usize = 64;

/// The kinds of log lines that a peer can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogKind {
    /// An UPDATE with an error that the session survives.
    UpdateFault,
    /// A connection that is closed before a session is tried.
    ConnectionClosed,
    /// Routes that do not fit a message to this peer.
    CannotAnnounce,
    /// A session is established.
    SessionUp,
    /// A session has ended.
    SessionDown,
    /// The number of prefixes is close to its limit.
    PrefixWarning,
    /// An address of a range has become a peer.
    NewPeer,
    /// A peer of a range is forgotten.
    PeerForgotten,
    /// A range has as many peers as it may.
    RangeFull,
    /// BFD has come up.
    BfdUp,
    /// BFD has gone down.
    BfdDown,
    /// The other end has ended BFD.
    BfdEnded,
    /// A connection could not be accepted.
    Accept,
}

impl LogKind {
    /// The line's text, for the summary.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::UpdateFault => "UPDATE with an error",
            Self::ConnectionClosed => "connection from the peer is closed",
            Self::CannotAnnounce => "routes cannot be announced and are withdrawn instead",
            Self::SessionUp => "session established",
            Self::SessionDown => "session ended",
            Self::PrefixWarning => "peer comes near its limit of prefixes",
            Self::NewPeer => "new peer from a range",
            Self::PeerForgotten => "peer of a range has stayed away and is forgotten",
            Self::RangeFull => "the range has as many peers as it may",
            Self::BfdUp => "BFD is up",
            Self::BfdDown => "BFD is down",
            Self::BfdEnded => "the peer has ended BFD",
            Self::Accept => "cannot accept a connection",
        }
    }
}

/// Lines that were counted instead of written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suppressed<K> {
    /// Peer and kind of the lines.
    pub(super) key: K,
    /// Number of lines that were not written.
    pub(super) count: u64,
    /// Time in which they would have been written.
    pub(super) within: Duration,
}

#[derive(Debug)]
struct TokenBucket {
    tokens: u32,
    /// Up to when tokens have been added.
    filled: Instant,
    suppressed: u64,
    /// When the first of the suppressed lines came.
    since: Instant,
}

impl TokenBucket {
    const fn new(now: Instant) -> Self {
        Self {
            tokens: BURST,
            filled: now,
            suppressed: 0,
            since: now,
        }
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled);
        let gained = u32::try_from(elapsed.as_millis() / PAUSE.as_millis()).unwrap_or(u32::MAX);
        if gained > 0 {
            self.tokens = self.tokens.saturating_add(gained).min(BURST);
            self.filled += PAUSE.saturating_mul(gained);
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.suppressed == 0 && now.saturating_duration_since(self.filled) >= PAUSE * BURST
    }
}

#[derive(Debug)]
pub(super) struct LogLimit<K> {
    buckets: BTreeMap<K, TokenBucket>,
    prune_at: usize,
}

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self {
            buckets: BTreeMap::new(),
            prune_at: PRUNE_FROM,
        }
    }
}

impl<K: Ord + Clone> LogLimit<K> {
    /// True when a line may be written now. Otherwise it is counted, for a summary.
    pub(super) fn allows(&mut self, now: Instant, key: K) -> bool {
        if self.buckets.len() >= self.prune_at {
            self.buckets.retain(|_, bucket| !bucket.is_idle(now));
            self.prune_at = PRUNE_FROM.max(self.buckets.len() * 2);
        }
        let bucket = self
            .buckets
            .entry(key)
            .or_insert_with(|| TokenBucket::new(now));
        if bucket.suppressed > 0 {
            // Its summary is still to come.
            bucket.suppressed += 1;
            return false;
        }
        bucket.fill(now);
        match bucket.tokens.checked_sub(1) {
            Some(rest) => {
                bucket.tokens = rest;
                true
            }
            None => {
                bucket.suppressed = 1;
                bucket.since = now;
                false
            }
        }
    }

    /// The summaries that are due. Each takes the place of a line.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Suppressed<K>> {
        self.take(now, |bucket| bucket.since + PAUSE <= now)
    }

    /// All summaries, for an owner that ends.
    pub(super) fn finish(&mut self, now: Instant) -> Vec<Suppressed<K>> {
        self.take(now, |_| true)
    }

    fn take(&mut self, now: Instant, is_due: impl Fn(&TokenBucket) -> bool) -> Vec<Suppressed<K>> {
        let mut summaries = Vec::new();
        for (key, bucket) in &mut self.buckets {
            if bucket.suppressed == 0 || !is_due(bucket) {
                continue;
            }
            summaries.push(Suppressed {
                key: key.clone(),
                count: std::mem::take(&mut bucket.suppressed),
                within: now.saturating_duration_since(bucket.since),
            });
            bucket.tokens = 0;
            bucket.filled = now;
        }
        summaries
    }

    /// When to call [`LogLimit::due`].
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let waiting = self.buckets.values().filter(|b| b.suppressed > 0);
        waiting.map(|bucket| bucket.since + PAUSE).min()
    }
}

/// Writes the summaries of lines that were counted instead, by one who logs for one peer.
pub(super) fn summarise(all: Vec<Suppressed<LogKind>>) {
    for Suppressed { key, count, within } in all {
        let seconds = within.as_secs();
        warn!(
            kind = key.as_str(),
            "{count} more suppressed in {seconds} s"
        );
    }
}

/// Writes the summaries of a task that logs for several peers.
pub(super) fn summarise_peers(all: Vec<Suppressed<(PeerName, LogKind)>>) {
    for Suppressed { key, count, within } in all {
        let ((peer, kind), seconds) = (key, within.as_secs());
        warn!(%peer, kind = kind.as_str(), "{count} more suppressed in {seconds} s");
    }
}

/// Collects log lines of the thread that runs a test.
#[cfg(test)]
pub(super) mod testing {
    use std::fmt::{Debug, Write};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::DefaultGuard;
    use tracing::{Event, Level, Metadata, Subscriber};

    /// No test may write more.
    const LINES: usize = 100_000;

    /// The lines since it was made, of level INFO and above.
    pub(in crate::speaker) struct Lines {
        lines: Receiver<String>,
        _guard: DefaultGuard,
    }

    struct Collector(SyncSender<String>);

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, "{}={value:?} ", field.name());
        }
    }

    impl Subscriber for Collector {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::INFO
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.try_send(text.0).expect("fewer lines than that");
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    impl Lines {
        /// From now on, on this thread.
        pub(in crate::speaker) fn collect() -> Self {
            let (send, lines) = sync_channel(LINES);
            Self {
                lines,
                _guard: tracing::subscriber::set_default(Collector(send)),
            }
        }

        /// The lines that have come since the last call.
        pub(in crate::speaker) fn taken(&self) -> Vec<String> {
            self.lines.try_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LogKind = LogKind::UpdateFault;

    #[test]
    fn a_flood_is_a_burst_and_a_summary_each_pause() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        let (mut lines, mut summaries, mut counted) = (0, 0, 0);
        // A line each millisecond for a minute.
        for ms in 0..60_000 {
            let now = start + Duration::from_millis(ms);
            lines += u32::from(limit.allows(now, KEY));
            if limit.next_timeout().is_some_and(|due| due <= now) {
                for summary in limit.due(now) {
                    summaries += 1;
                    counted += summary.count;
                }
            }
        }
        let rest = limit.finish(start + Duration::from_secs(60));
        counted += rest.iter().map(|summary| summary.count).sum::<u64>();
        assert_eq!((lines, summaries), (BURST, 5));
        assert_eq!(u64::from(lines) + counted, 60_000, "no line is lost");
        assert_eq!(limit.next_timeout(), None);
    }

    #[test]
    fn the_end_of_a_flood_is_told_and_a_quiet_time_gives_all_lines_back() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        let written = (0..13).filter(|_| limit.allows(start, KEY)).count();
        assert_eq!(written, 10);
        let due = limit.next_timeout().unwrap_or(start);
        assert_eq!(due, start + PAUSE);
        let lines = limit.due(due);
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].count, lines[0].within), (3, PAUSE));
        assert!(!limit.allows(due, KEY), "the summary took the line's place");
        limit.due(due + PAUSE);
        let later = due + PAUSE + PAUSE * BURST;
        assert_eq!((0..13).filter(|_| limit.allows(later, KEY)).count(), 10);
    }

    #[test]
    fn keys_do_not_share_and_quiet_ones_are_forgotten() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        for key in 0..10_000_u32 {
            assert!(limit.allows(start, key));
        }
        let later = start + PAUSE * (BURST + 1);
        limit.prune_at = 0;
        assert!(limit.allows(later, 1));
        assert_eq!(limit.buckets.len(), 1);
    }
}
