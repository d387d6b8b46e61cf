//! What the relay counts, for all queues together.

use std::sync::atomic::{AtomicU64, Ordering};

use caracal_flannel::DropReason;

use crate::http::exposition::{MetricFamily, MetricKind};
use crate::metrics;

/// Packets and octets of a direction.
#[derive(Debug, Default)]
pub(super) struct Passed {
    packets: AtomicU64,
    octets: AtomicU64,
}

impl Passed {
    pub(super) fn add(&self, packets: usize, octets: usize) {
        add(&self.packets, packets);
        add(&self.octets, octets);
    }
}

/// Counters of packets; octets are those of the packets between containers.
#[derive(Debug, Default)]
pub(super) struct RelayCounters {
    pub(super) sent: Passed,
    pub(super) received: Passed,
    dropped: [AtomicU64; DropReason::ALL.len()],
    pub(super) unreachable: AtomicU64,
    pub(super) too_big: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, number: usize) {
    let number = u64::try_from(number).unwrap_or_default();
    counter.fetch_add(number, Ordering::Relaxed);
}

impl RelayCounters {
    pub(super) fn count_drop(&self, reason: DropReason, packets: usize) {
        let places = DropReason::ALL.iter().zip(&self.dropped);
        for (_, counter) in places.filter(|(other, _)| **other == reason) {
            add(counter, packets);
        }
    }

    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let read = |counter: &AtomicU64| metrics::total(counter.load(Ordering::Relaxed));
        let family = |name, help| MetricFamily::new(name, MetricKind::Counter, help);
        let directions = [("out", &self.sent), ("in", &self.received)];
        let label = |name, word: &str| vec![(name, word.to_owned())];
        let reasons = DropReason::ALL.iter().zip(&self.dropped);
        let answers = [
            ("unreachable", &self.unreachable),
            ("too_big", &self.too_big),
        ];
        vec![
            family(
                "caracal_flannel_relay_packets",
                "Packets that the relay passed on, to other nodes (out) and from them (in).",
            )
            .samples(directions.map(|(way, n)| (label("direction", way), read(&n.packets)))),
            family(
                "caracal_flannel_relay_octets",
                "Octets of those packets, without the outer headers.",
            )
            .samples(directions.map(|(way, n)| (label("direction", way), read(&n.octets)))),
            family(
                "caracal_flannel_relay_dropped",
                "Packets that the relay did not pass on, by reason.",
            )
            .samples(reasons.map(|(why, n)| (label("reason", why.as_str()), read(n)))),
            family(
                "caracal_flannel_relay_answers",
                "ICMP answers of the relay to senders, by kind.",
            )
            .samples(answers.map(|(kind, n)| (label("kind", kind), read(n)))),
        ]
    }
}
