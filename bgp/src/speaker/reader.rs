//! Reading many routes from the core, a slice at a time.
//!
//! The core does one bounded piece of work for each question and goes on with other work; sorting
//! and printing happen in the task that reads. A reader that is slow waits only for itself, and one
//! that is dropped asks no more.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use caracal_model::{Family, Prefix};
use tokio::sync::oneshot;

use super::{Command, SpeakerEnded, SpeakerHandle};
use crate::rib::{MrtPeers, MrtProgress, RemovalImpact, Rib, RouteQuery, RouteRecord, RouteTable};
use crate::types::PeerName;

/// Places of the table that one question looks at: less than a millisecond of work.
const SLOTS: usize = 8192;
/// Prefixes whose routes one question asks for.
const PREFIXES: usize = 512;
/// Routes in one answer, beyond those of its last prefix.
const ROUTES: usize = 2048;

/// Request of a reader to the core, for one slice of the table.
#[derive(Debug)]
pub(super) enum Slice {
    /// The prefixes at these slots, and the number of slots there are. `None`: there is no such
    /// peer.
    Scan(
        Arc<RouteQuery>,
        Range<usize>,
        oneshot::Sender<Option<(Vec<Prefix>, usize)>>,
    ),
    /// Routes of the first of these prefixes, and of how many.
    Look(
        Arc<RouteQuery>,
        Vec<Prefix>,
        oneshot::Sender<(Vec<RouteRecord>, usize)>,
    ),
    /// Routes in these slots that depend on some peers, and the number of slots there are.
    RemovalImpact(
        Arc<BTreeSet<PeerName>>,
        Range<usize>,
        oneshot::Sender<(RemovalImpact, usize)>,
    ),
    /// The first record of a dump with this time.
    MrtIndex(u32, oneshot::Sender<(BytesMut, MrtPeers)>),
    /// The records of these prefixes, and how far the dump is before and after them.
    MrtRecords {
        time: u32,
        peers: Arc<MrtPeers>,
        progress: MrtProgress,
        prefixes: Vec<Prefix>,
        answer: oneshot::Sender<(BytesMut, MrtProgress)>,
    },
}

impl Slice {
    /// The answer is dropped when nobody waits for it any more.
    pub(super) fn answer(self, rib: &Rib) {
        match self {
            Self::Scan(query, slots, answer) => {
                let found = rib.scan(&query, slots);
                drop(answer.send(found.map(|prefixes| (prefixes, rib.slots()))));
            }
            Self::Look(query, prefixes, answer) => {
                drop(answer.send(rib.route_records(&query, &prefixes, ROUTES)));
            }
            Self::RemovalImpact(removed, slots, answer) => {
                drop(answer.send((rib.removal_impact_at(&removed, slots), rib.slots())));
            }
            Self::MrtIndex(time, answer) => drop(answer.send(rib.mrt_index(time))),
            Self::MrtRecords {
                time,
                peers,
                progress,
                prefixes,
                answer,
            } => {
                let mut out = BytesMut::new();
                let progress = rib.mrt_records(time, &peers, progress, &prefixes, &mut out);
                drop(answer.send((out, progress)));
            }
        }
    }
}

/// Prefixes in order, IPv4 ones in eight octets each.
#[derive(Debug, Default)]
struct CompactPrefixes {
    v4: Vec<u64>,
    v6: Vec<Prefix>,
}

impl CompactPrefixes {
    fn extend(&mut self, prefixes: Vec<Prefix>) {
        for prefix in prefixes {
            match prefix.address() {
                std::net::IpAddr::V4(address) => {
                    self.v4
                        .push(u64::from(address.to_bits()) << 8 | u64::from(prefix.len()));
                }
                std::net::IpAddr::V6(_) => self.v6.push(prefix),
            }
        }
    }

    fn sort(&mut self) {
        self.v4.sort_unstable();
        self.v6.sort_unstable();
    }

    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    fn get(&self, at: usize) -> Option<Prefix> {
        let Some(key) = self.v4.get(at) else {
            return self.v6.get(at.checked_sub(self.v4.len())?).copied();
        };
        let address = u32::try_from(key >> 8).unwrap_or_default();
        let len = u8::try_from(key & 0xff).unwrap_or_default();
        Some(Prefix::v4(address.into(), len))
    }

    /// The first place behind a prefix.
    fn behind(&self, prefix: &Prefix) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle) {
                Some(at) if at <= *prefix => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    fn slice(&self, from: usize) -> Vec<Prefix> {
        let end = self.len().min(from + PREFIXES);
        (from..end).filter_map(|at| self.get(at)).collect()
    }
}

/// The answer to a question about many routes, by prefix.
#[derive(Debug)]
pub struct RouteReader {
    speaker: SpeakerHandle,
    query: Arc<RouteQuery>,
    prefixes: CompactPrefixes,
    at: usize,
}

impl RouteReader {
    /// Collects the prefixes. `None`: the question names a peer that is not there.
    pub(super) async fn open(
        speaker: SpeakerHandle,
        query: RouteQuery,
    ) -> Result<Option<Self>, SpeakerEnded> {
        let query = Arc::new(query);
        let prefixes = collect(&speaker, &query).await?;
        Ok(prefixes.map(|prefixes| Self {
            speaker,
            query,
            prefixes,
            at: 0,
        }))
    }

    /// Leaves out everything up to a prefix, and the prefix itself.
    pub fn skip_past(&mut self, after: &Prefix) {
        self.at = self.at.max(self.prefixes.behind(after));
    }

    /// The next routes; `None`: that was all.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn next(&mut self) -> Result<Option<Vec<RouteRecord>>, SpeakerEnded> {
        while self.at < self.prefixes.len() {
            let slice = self.prefixes.slice(self.at);
            let query = self.query.clone();
            let ask = |answer| Command::Slice(Slice::Look(query, slice, answer));
            let (routes, done) = self.speaker.ask(ask).await?;
            self.at += done;
            if !routes.is_empty() {
                return Ok(Some(routes));
            }
        }
        Ok(None)
    }

    /// All that is left.
    pub(super) async fn all<T: From<RouteRecord>>(mut self) -> Result<Vec<T>, SpeakerEnded> {
        let mut all = Vec::new();
        while let Some(routes) = self.next().await? {
            all.extend(routes.into_iter().map(T::from));
        }
        Ok(all)
    }
}

/// Hands over the prefixes that a question is about, a slice at a time. `false`: it names a peer
/// that is not there.
async fn scan_all(
    speaker: &SpeakerHandle,
    query: &Arc<RouteQuery>,
    mut take: impl FnMut(Vec<Prefix>),
) -> Result<bool, SpeakerEnded> {
    let mut from = 0;
    loop {
        let slots = from..from + SLOTS;
        let ask = |answer| Command::Slice(Slice::Scan(query.clone(), slots, answer));
        let Some((found, slots)) = speaker.ask(ask).await? else {
            return Ok(false);
        };
        take(found);
        from += SLOTS;
        if from >= slots {
            return Ok(true);
        }
    }
}

/// Numbers of prefixes by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FamilyCounts {
    v4: usize,
    v6: usize,
}

impl FamilyCounts {
    pub(super) const fn for_family(self, family: Family) -> usize {
        match family {
            Family::Ipv4 => self.v4,
            Family::Ipv6 => self.v6,
        }
    }
}

/// Counts the prefixes that are advertised to a peer. `None`: there is no such peer.
pub(super) async fn count_advertised(
    speaker: &SpeakerHandle,
    peer: PeerName,
) -> Result<Option<FamilyCounts>, SpeakerEnded> {
    let query = Arc::new(RouteQuery::all(RouteTable::Advertised(peer)));
    let mut counts = FamilyCounts::default();
    let count = |found: Vec<Prefix>| {
        let of_v4 = found.iter().filter(|p| p.family() == Family::Ipv4).count();
        counts.v4 += of_v4;
        counts.v6 += found.len() - of_v4;
    };
    let known = scan_all(speaker, &query, count).await?;
    Ok(known.then_some(counts))
}

/// The prefixes that a question is about, in order.
async fn collect(
    speaker: &SpeakerHandle,
    query: &Arc<RouteQuery>,
) -> Result<Option<CompactPrefixes>, SpeakerEnded> {
    let mut prefixes = CompactPrefixes::default();
    if let (Some(prefix), false) = (query.prefix, query.longer) {
        // One lookup, once it is known that the peer is there.
        let none = |answer| Command::Slice(Slice::Scan(query.clone(), 0..0, answer));
        let known = speaker.ask(none).await?.is_some();
        prefixes.extend(vec![prefix]);
        return Ok(known.then_some(prefixes));
    }
    if !scan_all(speaker, query, |found| prefixes.extend(found)).await? {
        return Ok(None);
    }
    let sorted = tokio::task::spawn_blocking(move || {
        prefixes.sort();
        prefixes
    });
    // It fails only when the runtime ends.
    sorted.await.map(Some).map_err(|_| SpeakerEnded)
}

/// See [`SpeakerHandle::removal_impact`].
pub(super) async fn removal_impact(
    speaker: &SpeakerHandle,
    removed: BTreeSet<PeerName>,
) -> Result<RemovalImpact, SpeakerEnded> {
    let removed = Arc::new(removed);
    let mut all = RemovalImpact::default();
    let mut from = 0;
    loop {
        let slots = from..from + SLOTS;
        let ask = |answer| Command::Slice(Slice::RemovalImpact(removed.clone(), slots, answer));
        let (found, slots) = speaker.ask(ask).await?;
        all.incomplete = found.incomplete;
        all.uncovered.extend(found.uncovered);
        from += SLOTS;
        if from >= slots {
            break;
        }
    }
    all.uncovered.sort_unstable();
    Ok(all)
}

/// The table as an MRT file (RFC 6396), in parts.
#[derive(Debug)]
pub struct MrtReader {
    speaker: SpeakerHandle,
    time: u32,
    index: Option<Bytes>,
    peers: Arc<MrtPeers>,
    prefixes: CompactPrefixes,
    at: usize,
    progress: MrtProgress,
}

impl MrtReader {
    pub(super) async fn open(speaker: SpeakerHandle, time: u32) -> Result<Self, SpeakerEnded> {
        let ask = |answer| Command::Slice(Slice::MrtIndex(time, answer));
        let (index, peers) = speaker.ask(ask).await?;
        let query = Arc::new(RouteQuery::all(RouteTable::Routes));
        let prefixes = collect(&speaker, &query).await?;
        Ok(Self {
            speaker,
            time,
            index: Some(index.freeze()),
            peers: Arc::new(peers),
            prefixes: prefixes.unwrap_or_default(),
            at: 0,
            progress: MrtProgress::default(),
        })
    }

    /// Paths of what was read that are not in the file, as no record can hold them.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.progress.left_out
    }

    /// The next octets of the file; `None`: that was all.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, SpeakerEnded> {
        if let Some(index) = self.index.take() {
            return Ok(Some(index));
        }
        while self.at < self.prefixes.len() {
            let prefixes = self.prefixes.slice(self.at);
            self.at += prefixes.len();
            let (time, peers, progress) = (self.time, self.peers.clone(), self.progress);
            let ask = |answer| {
                Command::Slice(Slice::MrtRecords {
                    time,
                    peers,
                    progress,
                    prefixes,
                    answer,
                })
            };
            let (octets, progress) = self.speaker.ask(ask).await?;
            self.progress = progress;
            if !octets.is_empty() {
                return Ok(Some(octets.freeze()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn prefixes_come_in_order_whatever_their_family() {
        let texts = [
            "fd00::/64",
            "10.0.0.0/8",
            "10.0.0.0/24",
            "0.0.0.0/0",
            "::/0",
            "9.0.0.0/32",
        ];
        let mut expected: Vec<Prefix> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut prefixes = CompactPrefixes::default();
        prefixes.extend(expected.clone());
        prefixes.sort();
        expected.sort_unstable();
        assert_eq!(prefixes.slice(0), expected);
        assert_eq!(prefixes.slice(4), expected[4..]);
        assert_eq!(prefixes.get(6), None);
    }
}
