//! Messages to a monitoring station about Adj-RIB-In (RFC 7854 §5). Every other test here has a
//! station, too: what it has been told must be what is there.

use super::*;
use crate::policy::{Filter, FilterTerm, FilterVerdict};

/// A path as received and as accepted.
pub(super) type Views = (Option<Arc<PathAttrs>>, Option<Arc<PathAttrs>>);

impl Net {
    /// Has the station told what has changed.
    pub(super) fn tell_station(&mut self) {
        for path in self.rib.changed_paths() {
            let now = self.rib.monitored_path(path);
            match now.received {
                Some(_) => {
                    let views = (now.received.cloned(), now.accepted.cloned());
                    self.station.insert(path, views);
                }
                None => drop(self.station.remove(&path)),
            }
        }
        // Peer Down.
        let rib = &self.rib;
        self.station
            .retain(|path, _| rib.peers.get(path.peer).is_some_and(|peer| peer.up));
    }

    /// Everything there is, from pieces of so many destinations.
    fn pieces(&self, size: usize) -> BTreeMap<PathName, Views> {
        let mut all = BTreeMap::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let (paths, after) = self.rib.monitored_piece(from, size);
            for path in paths {
                let views = (path.received.cloned(), path.accepted.cloned());
                assert!(all.insert(path.name, views).is_none(), "{:?}", path.name);
            }
            next = after;
        }
        all
    }

    pub(super) fn check_station(&self) {
        assert_eq!(self.station, self.pieces(7), "monitoring station");
    }

    fn monitored(&self, n: u8) -> Vec<Prefix> {
        let id = self.rib.peer_id(&name(n)).unwrap();
        let of_peer = self.station.keys().filter(|path| path.peer == id);
        of_peer.map(|path| path.prefix).collect()
    }
}

#[test]
fn rfc7854_5_both_views_and_their_changes() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1, 2], attrs(2));
    net.announce(3, &[1], attrs(3));
    net.check();
    assert_eq!(net.station.len(), 3);
    net.reconfigure(|config| {
        let reject = FilterTerm {
            conditions: vec![],
            actions: vec![],
            verdict: Some(FilterVerdict::Reject),
        };
        let filter = Filter::from(vec![reject]);
        config.filters.insert("none".into(), filter);
        config.peers.get_mut(&name(2)).unwrap().import = vec!["none".into()];
    });
    net.check();
    assert_eq!(net.monitored(2), [prefix(1), prefix(2)], "as received");
    let accepted = |net: &Net| {
        net.station
            .values()
            .filter(|views| views.1.is_some())
            .count()
    };
    assert_eq!(accepted(&net), 1, "after policy");
    net.withdraw(2, &[1]);
    net.reconfigure(|config| config.peers.get_mut(&name(2)).unwrap().import = vec![]);
    net.check();
    assert_eq!(accepted(&net), 2);
    net.reconfigure(|config| drop(config.peers.remove(&name(2))));
    net.check();
    assert_eq!(net.station.len(), 1);
}

#[test]
fn rfc7854_4_9_what_is_kept_for_a_restart_is_not_the_new_sessions() {
    let mut net = Net::mesh([2]);
    net.end_of_rib(2);
    net.announce(2, &[1, 2], attrs(2));
    net.down(2, true);
    assert_eq!(net.fib.len(), 2, "in use");
    assert_eq!(net.monitored(2), []);
    net.up(2);
    assert_eq!(net.monitored(2), [], "not yet announced on this session");
    net.check();
    // The same attributes again are news to the station.
    net.announce(2, &[1], attrs(2));
    assert_eq!(net.monitored(2), [prefix(1)]);
    net.end_of_rib(2);
    net.check();
}

#[test]
fn nothing_is_noted_while_nobody_monitors() {
    let mut net = Net::mesh([2]);
    net.rib.monitor(false);
    net.announce(2, &[1], attrs(2));
    assert!(net.rib.changed_paths().is_empty() && !net.rib.is_monitored());
    // Whoever comes later gets the table.
    net.rib.monitor(true);
    assert!(net.rib.changed_paths().is_empty());
    assert_eq!(net.pieces(1).len(), 1);
}

#[test]
fn pieces_are_the_table_whatever_their_size() {
    let mut net = Net::mesh([2, 3]);
    for n in 0..40 {
        net.announce(2, &[n], attrs(2));
        net.announce(3, &[n, n + 100], attrs(3));
    }
    net.withdraw(3, &(100..120).collect::<Vec<_>>());
    let all = net.pieces(1000);
    assert_eq!(all.len(), 100);
    for size in [1, 2, 39, 80] {
        assert_eq!(net.pieces(size), all);
    }
    net.check();
}
