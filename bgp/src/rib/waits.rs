//! Routes that the origin check keeps out for longer than a change of the data explains.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use caracal_model::Prefix;

use super::Rib;
use super::dest_id::DestId;
use super::import::ImportRefusal;
use super::table::{Path, Table};
use crate::attrs::PathAttrs;
use crate::origin::OriginCheck;
use crate::types::{Asn, PeerName};

/// Wait of a route for its owner above which it is a problem. An owner writes to the datastore
/// before it announces, and a datastore that answers tells everybody within seconds.
const WAIT: Duration = Duration::from_secs(30);

/// Prefixes with a path that is kept out for one reason.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Seen since the last call ended.
    new: Vec<Prefix>,
    /// Since when prefixes have had such a path.
    since: BTreeMap<Prefix, Instant>,
    /// Times at which waits become a problem, the first first; some waits have ended since.
    due: VecDeque<(Instant, Prefix)>,
    pub(super) overdue: BTreeSet<Prefix>,
}

impl Waits {
    pub(super) fn push(&mut self, prefix: Prefix) {
        self.new.push(prefix);
    }

    pub(super) fn forget(&mut self, prefix: &Prefix) {
        self.since.remove(prefix);
        self.overdue.remove(prefix);
    }

    /// When a wait becomes a problem next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Notes since when prefixes wait, and which of them do for too long.
    fn note(&mut self, now: Instant, waits: impl Fn(&Prefix) -> bool) {
        for prefix in std::mem::take(&mut self.new) {
            if let std::collections::btree_map::Entry::Vacant(entry) = self.since.entry(prefix) {
                entry.insert(now);
                self.due.push_back((now + WAIT, prefix));
            }
        }
        while let Some((at, prefix)) = self.due.front().copied() {
            let waits = self.since.contains_key(&prefix) && waits(&prefix);
            if waits && at > now {
                break;
            }
            self.due.pop_front();
            if !waits {
                self.since.remove(&prefix);
            } else if self.since.get(&prefix).copied() == at.checked_sub(WAIT) {
                self.overdue.insert(prefix);
            }
        }
    }

    fn note_over(&mut self, prefix: &Prefix, waits: impl Fn(&Prefix) -> bool) {
        if self.since.contains_key(prefix) && !waits(prefix) {
            self.forget(prefix);
        }
    }
}

/// True when some path to the prefix waits for its owner.
fn is_unknown(table: &Table, prefix: &Prefix) -> bool {
    table.find(prefix).is_some_and(|id| {
        let mut paths = table.get(id).paths().iter();
        paths.any(|path| path.refusal() == Some(ImportRefusal::OwnerUnknown))
    })
}

/// A path that does not come from the owner of the prefix. What nodes with ASes of their own pass
/// on of each other's blocks is refused, and nothing is wrong with it.
fn refused<'a>(
    (table, origins, ours): (&'a Table, &OriginCheck, Asn),
    prefix: &Prefix,
) -> Option<&'a Path> {
    let relayed = |attrs: &PathAttrs| {
        let hop = attrs.next_hop.as_ref();
        hop.is_some_and(|hop| origins.is_owner_address(hop))
            && origins.passes_owner(prefix, attrs, ours)
    };
    let mut paths = table.get(table.find(prefix)?).paths().iter();
    paths.find(|path| path.refusal() == Some(ImportRefusal::NotOwner) && !relayed(&path.received))
}

impl Rib {
    /// Notes since when routes wait, and which of them do for too long.
    pub(super) fn note_waits(&mut self, now: Instant) {
        let (screen, table, ours) = (&mut self.screen, &self.table, self.config.local_as);
        screen.unknown.note(now, |prefix| is_unknown(table, prefix));
        let origins = &screen.origins;
        let kept_out = |prefix: &Prefix| refused((table, origins, ours), prefix).is_some();
        screen.refused.note(now, kept_out);
    }

    /// Forgets since when a destination waits, when none of its paths does any more.
    pub(super) fn note_wait_over(&mut self, id: DestId) {
        let (screen, table, ours) = (&mut self.screen, &self.table, self.config.local_as);
        let prefix = table.get(id).prefix;
        screen
            .unknown
            .note_over(&prefix, |prefix| is_unknown(table, prefix));
        let origins = &screen.origins;
        let kept_out = |prefix: &Prefix| refused((table, origins, ours), prefix).is_some();
        screen.refused.note_over(&prefix, kept_out);
    }

    /// A path with this outcome before has another one, or is gone.
    pub(super) fn note_no_wait(&mut self, id: DestId, before: Option<ImportRefusal>) {
        if matches!(
            before,
            Some(ImportRefusal::NotOwner | ImportRefusal::OwnerUnknown)
        ) {
            self.note_wait_over(id);
        }
    }

    /// Some route that has been refused for too long, who sent it and why it is not the owner's.
    pub(super) fn first_refused(&self) -> Option<(Prefix, PeerName, String)> {
        let inputs = (&self.table, &self.screen.origins, self.config.local_as);
        self.screen.refused.overdue.iter().find_map(|prefix| {
            let path = refused(inputs, prefix)?;
            let name = self
                .peers
                .get(self.peers.paths.owner(path.peer))?
                .name
                .clone();
            Some((*prefix, name, self.screen.origin(prefix, &path.received)?))
        })
    }
}
