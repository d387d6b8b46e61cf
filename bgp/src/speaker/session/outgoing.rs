//! From the feed to messages: batches of routes that share attributes, in as few UPDATEs as
//! possible.

use std::sync::Arc;

use bytes::BytesMut;

use crate::fsm::ConnectionId;
use crate::speaker::feed::{Marker, OutBatch, OutChunk, OutFeed};
use crate::speaker::shared::{CannotAnnounce, announce, withdraw};
use crate::wire::encode_refresh;
use crate::wire::format::MessageFormat;
use crate::wire::refresh::{RefreshKind, RouteRefresh};
use crate::wire::update::encode_end_of_rib;

/// Prefixes that are taken from the feed at once: a few full messages, and no long hold of its
/// lock.
const BATCH: usize = 4096;

/// The routes for the peer during one session.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Feed that the core puts the peer's routes into.
    pub(super) feed: Arc<OutFeed>,
    /// Connection on which the session is established.
    pub(super) conn: ConnectionId,
    format: MessageFormat,
}

impl Outgoing {
    pub(super) fn new(conn: ConnectionId, format: MessageFormat) -> Self {
        Self {
            feed: Arc::new(OutFeed::new()),
            conn,
            format,
        }
    }

    /// Appends the next batch to `out`, and to `failed` what could not be announced; false when
    /// there was none.
    pub(super) fn pack(&self, out: &mut BytesMut, failed: &mut Vec<CannotAnnounce>) -> bool {
        match self.feed.next(BATCH) {
            Some(OutChunk::Batch(batch)) => self.encode(&batch, out, failed),
            Some(OutChunk::Shared(update, member)) => {
                update.encode(&member, &self.format, out, failed);
            }
            None => return false,
        }
        true
    }

    fn mark(&self, marker: Marker, out: &mut BytesMut) {
        let (Marker::EndOfRib(family) | Marker::RefreshBegin(family) | Marker::RefreshEnd(family)) =
            marker;
        if !self.format.families.contains(family) {
            return;
        }
        let mut refresh = |kind| {
            let family = family.into();
            encode_refresh(&RouteRefresh { family, kind }, out);
        };
        match marker {
            Marker::EndOfRib(_) => encode_end_of_rib(family, out),
            Marker::RefreshBegin(_) => refresh(RefreshKind::Begin),
            Marker::RefreshEnd(_) => refresh(RefreshKind::End),
        }
    }

    fn encode(&self, batch: &OutBatch, out: &mut BytesMut, failed: &mut Vec<CannotAnnounce>) {
        withdraw(&batch.withdrawn, &self.format, out);
        for (attrs, prefixes) in &batch.announced {
            announce(attrs, prefixes, &self.format, out, failed);
        }
        for (attrs, paths) in &batch.paths {
            match attrs {
                Some(attrs) => announce(attrs, paths, &self.format, out, failed),
                None => withdraw(paths, &self.format, out),
            }
        }
        for marker in &batch.markers {
            self.mark(*marker, out);
        }
    }
}
