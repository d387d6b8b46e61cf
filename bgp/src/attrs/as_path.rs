//! AS_PATH as a value (RFC 4271 §5.1.2): what it says and never how it was cut on the wire.

use std::fmt;

use crate::types::Asn;

/// AS_PATH: the ASes a route came through, the latest first (RFC 4271 §5.1.2).
///
/// Two neighbouring sequences mean the same as one; [`AsPath::new`] joins them, so that equal paths
/// are equal values however they were cut on the wire.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AsPath(Repr);

/// Nearly all paths are one sequence: two machine words and one allocation. A path has one form
/// only.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    /// One sequence, or nothing.
    Sequence(Box<[Asn]>),
    /// Anything else.
    #[allow(
        clippy::box_collection,
        reason = "a fat pointer would need a third word in each path"
    )]
    Mixed(Box<Vec<Segment>>),
}

/// A part of an AS path. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// AS_SEQUENCE: ordered.
    Sequence(Vec<Asn>),
    /// AS_SET: unordered, from aggregation.
    Set(Vec<Asn>),
}

/// Segment type (RFC 4271 §4.3, RFC 5065 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// AS_SEQUENCE: the order of the ASes counts.
    Sequence,
    /// AS_SET: the order of the ASes does not count.
    Set,
}

impl Segment {
    /// AS numbers of the segment, leftmost first.
    #[must_use]
    pub fn asns(&self) -> &[Asn] {
        match self {
            Self::Sequence(asns) | Self::Set(asns) => asns,
        }
    }

    const fn kind(&self) -> SegmentKind {
        match self {
            Self::Sequence(_) => SegmentKind::Sequence,
            Self::Set(_) => SegmentKind::Set,
        }
    }
}

impl Default for AsPath {
    fn default() -> Self {
        Self(Repr::Sequence(Box::default()))
    }
}

impl AsPath {
    /// From segments; empty ones are dropped, neighbouring sequences joined, sets sorted.
    #[must_use]
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        let mut joined: Vec<Segment> = Vec::new();
        for segment in segments {
            if segment.asns().is_empty() {
                continue;
            }
            match (joined.last_mut(), segment) {
                (Some(Segment::Sequence(last)), Segment::Sequence(asns)) => last.extend(asns),
                (_, Segment::Set(mut asns)) => {
                    asns.sort_unstable();
                    asns.dedup();
                    joined.push(Segment::Set(asns));
                }
                (_, segment) => joined.push(segment),
            }
        }
        match &mut joined[..] {
            [] => Self::default(),
            [Segment::Sequence(asns)] => Self::sequence(std::mem::take(asns)),
            _ => Self(Repr::Mixed(Box::new(joined))),
        }
    }

    /// A path of one sequence; empty when `asns` is.
    #[must_use]
    pub fn sequence(asns: impl Into<Box<[Asn]>>) -> Self {
        Self(Repr::Sequence(asns.into()))
    }

    /// The segments, the latest first; neighbouring sequences are joined.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentKind, &[Asn])> {
        let (one, more): (&[Asn], &[Segment]) = match &self.0 {
            Repr::Sequence(asns) => (asns, &[]),
            Repr::Mixed(segments) => (&[], segments),
        };
        let one = (!one.is_empty()).then_some((SegmentKind::Sequence, one));
        let more = more.iter().map(|segment| (segment.kind(), segment.asns()));
        one.into_iter().chain(more)
    }

    /// Octets of memory beyond the value itself, about.
    pub(crate) fn octets(&self) -> usize {
        let segments = self.segments();
        segments.map(|(_, asns)| size_of_val(asns)).sum()
    }

    /// True for a route of our own AS.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        match &self.0 {
            Repr::Sequence(asns) => asns.is_empty(),
            Repr::Mixed(_) => false,
        }
    }

    /// The length that the decision process compares: a set counts 1 (RFC 4271 §9.1.2.2 a).
    #[must_use]
    pub(crate) fn path_len(&self) -> usize {
        match &self.0 {
            Repr::Sequence(asns) => asns.len(),
            Repr::Mixed(segments) => segments
                .iter()
                .map(|segment| match segment {
                    Segment::Sequence(asns) => asns.len(),
                    Segment::Set(_) => 1,
                })
                .sum(),
        }
    }

    /// The AS next to us. `None` for an empty path or one that starts with a set.
    #[must_use]
    pub(crate) fn first_as(&self) -> Option<Asn> {
        match self.segments().next()? {
            (SegmentKind::Sequence, asns) => asns.first().copied(),
            (SegmentKind::Set, _) => None,
        }
    }

    /// Number of times that `asn` stands in the path, sets included.
    #[must_use]
    pub fn contains(&self, asn: Asn) -> usize {
        self.asns().filter(|seen| *seen == asn).count()
    }

    /// All AS numbers, the latest first.
    pub fn asns(&self) -> impl Iterator<Item = Asn> {
        self.segments().flat_map(|(_, asns)| asns.iter().copied())
    }

    /// True when the path begins with these numbers, in this order, as one sequence.
    #[must_use]
    pub fn starts_with(&self, asns: &[Asn]) -> bool {
        match self.segments().next() {
            Some((SegmentKind::Sequence, path)) => path.starts_with(asns),
            Some((SegmentKind::Set, _)) | None => asns.is_empty(),
        }
    }

    /// Puts `asn` in front (RFC 4271 §5.1.2 b).
    pub fn prepend(&mut self, asn: Asn) {
        match &mut self.0 {
            Repr::Sequence(asns) => {
                *asns = std::iter::once(asn).chain(asns.iter().copied()).collect()
            }
            Repr::Mixed(segments) => match segments.first_mut() {
                Some(Segment::Sequence(asns)) => asns.insert(0, asn),
                _ => segments.insert(0, Segment::Sequence(vec![asn])),
            },
        }
    }
}

impl fmt::Display for AsPath {
    /// `64512 65001 {65002 65003}`; nothing for an empty path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (kind, asns) in self.segments() {
            if !text.is_empty() {
                text.push(' ');
            }
            let asns: Vec<String> = asns.iter().map(ToString::to_string).collect();
            match kind {
                SegmentKind::Sequence => text.push_str(&asns.join(" ")),
                SegmentKind::Set => {
                    text.push('{');
                    text.push_str(&asns.join(" "));
                    text.push('}');
                }
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for AsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asns(numbers: &[u32]) -> Vec<Asn> {
        numbers.iter().copied().map(Asn).collect()
    }

    #[test]
    fn a_path_takes_two_words() {
        assert_eq!(size_of::<AsPath>(), 16);
    }

    #[test]
    fn rfc4271_9_1_2_2_a_set_counts_one() {
        let path = AsPath::new([
            Segment::Sequence(asns(&[1, 2, 3])),
            Segment::Set(asns(&[9, 7, 9])),
            Segment::Sequence(asns(&[])),
        ]);
        assert_eq!(path.path_len(), 4);
        assert_eq!(path.to_string(), "1 2 3 {7 9}");
        assert_eq!(path.first_as(), Some(Asn(1)));
        assert_eq!(path.contains(Asn(9)), 1);
    }

    #[test]
    fn neighbouring_sequences_are_one() {
        let cut = AsPath::new([Segment::Sequence(asns(&[1])), Segment::Sequence(asns(&[2]))]);
        assert_eq!(cut, AsPath::sequence(asns(&[1, 2])));
        assert!(cut.starts_with(&asns(&[1, 2])));
        assert!(!cut.starts_with(&asns(&[2])));
    }

    #[test]
    fn prepending_goes_in_front_of_a_set() {
        let mut path = AsPath::new([Segment::Set(asns(&[5, 6]))]);
        assert_eq!(path.first_as(), None);
        path.prepend(Asn(1));
        path.prepend(Asn(2));
        assert_eq!(path.to_string(), "2 1 {5 6}");
        assert_eq!(path.path_len(), 3);
    }
}
