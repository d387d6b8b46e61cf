//! A change for an update group as its members' sessions see it: encoded once for each message
//! format and copied by all members but the export exceptions.
//!
//! It never changes after it was made; the cache of encodings is behind a lock that is held while
//! one is made, so that nobody makes it twice.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use caracal_model::{Family, Prefix};

use crate::attrs::PathAttrs;
use crate::rib::{Buckets, GroupUpdate, Member, MemberUpdate, Packer, PackingBucket};
use crate::wire::format::MessageFormat;
use crate::wire::nlri::Nlri;
use crate::wire::update::{encode_announce, encode_withdraw};

/// Changes in one shared update at most: a few full messages, so that a session packs little beyond
/// its limit.
pub(super) const SHARED_ROUTES: usize = 4096;

/// A group's change with its encodings.
#[derive(Debug)]
pub struct SharedUpdate {
    members: Vec<Member>,
    buckets: Buckets,
    /// Number of changes before they are packed.
    len: usize,
    /// Prefixes of the table when it was made.
    table: usize,
    /// Octets of memory that it takes once it is encoded, about.
    octets: usize,
    encoded: Mutex<Vec<(MessageFormat, Arc<Encoded>)>>,
}

/// Routes that do not fit a message to a peer, and are withdrawn from it instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannotAnnounce {
    /// Reason, for the log.
    pub error: String,
    /// Number of prefixes that are withdrawn instead.
    pub count: usize,
}

#[derive(Debug, Default)]
struct Encoded {
    octets: BytesMut,
    failed: Vec<CannotAnnounce>,
    /// End of each bucket's octets.
    ends: Vec<usize>,
}

impl SharedUpdate {
    /// Makes a change of any size shareable, of a table with this many prefixes.
    pub fn new(update: GroupUpdate, table: usize) -> impl Iterator<Item = Arc<Self>> {
        let GroupUpdate { members, routes } = update;
        let mut packer = Packer::new(&members);
        let mut packed = 0;
        std::iter::from_fn(move || {
            let rest = &routes[packed..];
            let next = &rest[..rest.len().min(SHARED_ROUTES)];
            if next.is_empty() {
                return None;
            }
            packed += next.len();
            let buckets = packer.pack(next);
            Some(Arc::new(Self {
                members: members.clone(),
                len: next.len(),
                table,
                // Once more as messages.
                octets: 2 * buckets.octets(),
                buckets,
                encoded: Mutex::default(),
            }))
        })
    }

    /// Members of the update group that get this.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Number of changes, announcements and withdrawals.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Prefixes of the table when it was made.
    pub(super) const fn table(&self) -> usize {
        self.table
    }

    /// Octets of memory that it takes once it is encoded, about.
    pub(super) const fn octets(&self) -> usize {
        self.octets
    }

    /// True when there are no changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True when there is something in it for this member.
    #[must_use]
    pub fn concerns(&self, member: &Member) -> bool {
        self.buckets.concerns(member)
    }

    /// The changes for one member.
    pub fn for_member<'a>(
        &'a self,
        member: &'a Member,
    ) -> impl Iterator<Item = (Prefix, Option<Arc<PathAttrs>>)> + 'a {
        self.buckets.for_member(member)
    }

    /// Appends the UPDATEs for one member, and to `failed` the routes that could not be encoded.
    pub fn encode(
        &self,
        member: &Member,
        format: &MessageFormat,
        out: &mut BytesMut,
        failed: &mut Vec<CannotAnnounce>,
    ) {
        let encoded = self.encoded(format);
        let mut from = 0;
        for at in self.buckets.exceptions(member) {
            let start = at.checked_sub(1).map_or(0, |before| encoded.ends[before]);
            out.extend_from_slice(&encoded.octets[from..start]);
            from = encoded.ends[at];
            let bucket = &self.buckets.buckets[at];
            put(bucket, bucket.update_for(member), format, out, failed);
        }
        failed.extend_from_slice(&encoded.failed);
        out.extend_from_slice(&encoded.octets[from..]);
    }

    fn encoded(&self, format: &MessageFormat) -> Arc<Encoded> {
        // A panic elsewhere does not make a list of whole encodings inconsistent.
        let mut known = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, encoded)) = known.iter().find(|(seen, _)| seen == format) {
            return encoded.clone();
        }
        let encoded = Arc::new(Encoded::new(&self.buckets, format));
        known.push((*format, encoded.clone()));
        encoded
    }
}

impl Encoded {
    fn new(buckets: &Buckets, format: &MessageFormat) -> Self {
        let mut encoded = Self::default();
        for bucket in &buckets.buckets {
            let Self { octets, failed, .. } = &mut encoded;
            put(bucket, bucket.common_update(), format, octets, failed);
            encoded.ends.push(encoded.octets.len());
        }
        encoded
    }
}

fn put(
    bucket: &PackingBucket,
    update: MemberUpdate<'_>,
    format: &MessageFormat,
    out: &mut BytesMut,
    failed: &mut Vec<CannotAnnounce>,
) {
    match update {
        MemberUpdate::Nothing => {}
        MemberUpdate::Withdraw => withdraw(&bucket.prefixes, format, out),
        MemberUpdate::Announce(attrs) => announce(attrs, &bucket.prefixes, format, out, failed),
    }
}

/// Appends announcements of `prefixes`, of whatever family the session carries. What cannot be
/// announced is withdrawn, and noted in `failed`.
pub(super) fn announce<N: Nlri>(
    attrs: &PathAttrs,
    prefixes: &[N],
    format: &MessageFormat,
    out: &mut BytesMut,
    failed: &mut Vec<CannotAnnounce>,
) {
    for family in format.families.iter() {
        let of_family = |nlri: &N| nlri.prefix().family() == family;
        if !prefixes.iter().any(of_family) {
            continue;
        }
        if let Err(error) = encode_announce(family, attrs, prefixes, format, out) {
            // The peer's last state of these prefixes is no longer valid.
            let count = prefixes.iter().filter(|nlri| of_family(nlri)).count();
            let error = error.to_string();
            failed.push(CannotAnnounce { error, count });
            encode_withdraw(family, prefixes, format, out);
        }
    }
}

/// Appends withdrawals of `prefixes`, of whatever family the session carries.
pub(super) fn withdraw<N: Nlri>(prefixes: &[N], format: &MessageFormat, out: &mut BytesMut) {
    for family in [Family::Ipv4, Family::Ipv6] {
        if format.families.contains(family) {
            encode_withdraw(family, prefixes, format, out);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
