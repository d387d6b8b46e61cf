//! The paths of a destination as they are exported: the best one, or all in order.

use caracal_model::Prefix;

use super::decision::Decision;
use super::next_hops::NextHopTable;
use super::out::{ExportRoute, PathSource};
use super::peer_id::PeerId;
use super::peers::Peers;
use super::select::candidate;
use super::table::{Dest, Path};
use crate::config::Originations;

/// Paths of a destination up to which they are put in order by repeated runs of the decision
/// process.
const DECIDED: usize = 128;

/// The best path of a destination with its source, for export.
pub(super) fn export_route<'a>(
    dest: &'a Dest,
    peers: &'a Peers,
    next_hops: &'a NextHopTable,
    own: &'a Originations,
) -> Option<ExportRoute<'a>> {
    export_path(dest.prefix, dest.best()?, peers, next_hops, own)
}

/// A path with its source, for export.
pub(super) fn export_path<'a>(
    prefix: Prefix,
    path: &'a Path,
    peers: &'a Peers,
    next_hops: &'a NextHopTable,
    own: &'a Originations,
) -> Option<ExportRoute<'a>> {
    let source = match path.peer {
        PeerId::LOCAL => PathSource::Local,
        peer => peers.get(peer)?.source()?,
    };
    Some(ExportRoute {
        prefix,
        attrs: path.accepted()?,
        peer: peers.paths.owner(path.peer),
        handle: path.peer,
        source,
        senders: peers,
        next_hops,
        own,
    })
}

/// The usable paths of a destination, the best first: the decision process again and again
/// without the winner.
pub(super) fn in_order<'a>(
    dest: &'a Dest,
    peers: &'a Peers,
    next_hops: &'a NextHopTable,
    own: &'a Originations,
) -> Vec<ExportRoute<'a>> {
    let mut left: Vec<_> = dest
        .paths()
        .iter()
        .filter_map(|path| Some((candidate(&dest.prefix, path, peers, next_hops)?, path)))
        .collect();
    let mut decision = Decision::default();
    let mut ordered = Vec::with_capacity(left.len());
    if left.len() > DECIDED {
        // These paths are ordered by one comparison each, after the best: MED then counts between
        // all of them.
        let candidates: Vec<_> = left
            .iter()
            .map(|(candidate, _)| candidate.clone())
            .collect();
        decision.run(&candidates);
        let best = decision.best.map(|(best, _)| left.swap_remove(best));
        left.sort_by_key(|(candidate, _)| candidate.rank());
        let paths = best.into_iter().chain(left).map(|(_, path)| path);
        ordered
            .extend(paths.filter_map(|path| export_path(dest.prefix, path, peers, next_hops, own)));
        return ordered;
    }
    while !left.is_empty() {
        let candidates: Vec<_> = left
            .iter()
            .map(|(candidate, _)| candidate.clone())
            .collect();
        decision.run(&candidates);
        let Some((best, _)) = decision.best else {
            break;
        };
        let (_, path) = left.swap_remove(best);
        ordered.extend(export_path(dest.prefix, path, peers, next_hops, own));
    }
    ordered
}
