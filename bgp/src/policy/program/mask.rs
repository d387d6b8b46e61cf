//! Path masks: `[= 65001 * 65002 =]`.

use std::sync::Arc;

use super::set::{SetKind, ValueSet};
use crate::attrs::{AsPath, SegmentKind};
use crate::types::Asn;

/// One part of a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MaskItem {
    /// `*`: any number of ASes.
    Any,
    /// `?`: one AS.
    One,
    /// This AS, or one of these.
    Range(u32, u32),
    /// An AS of a set.
    Set(Arc<ValueSet>),
    /// `+`: more of the part before it.
    More,
}

/// A mask: the whole path has to fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathMask(pub Box<[MaskItem]>);

impl PathMask {
    /// Most parts of a mask: a bit of the search for each, and one for its end.
    pub const MOST: usize = 127;

    /// True when the path fits. A set of the path counts as one AS, which is each of its members.
    #[must_use]
    pub(super) fn fits(&self, path: &AsPath) -> bool {
        let mut elements = path.segments().flat_map(|(kind, asns)| {
            let step = match kind {
                SegmentKind::Sequence => 1,
                SegmentKind::Set => asns.len().max(1),
            };
            asns.chunks(step)
        });
        // The form in most filters: this AS, wherever it stands.
        if let [
            MaskItem::Any,
            item @ (MaskItem::Range(..) | MaskItem::Set(_)),
            MaskItem::Any,
        ] = &*self.0
        {
            return elements.any(|element| takes(item, element));
        }
        let mut state = self.pass(1);
        for element in elements {
            state = self.pass(self.advance(state, element));
        }
        state >> self.0.len() & 1 == 1
    }

    /// Places before which nothing more is needed count as reached.
    fn pass(&self, mut state: u128) -> u128 {
        for (at, item) in self.0.iter().enumerate() {
            if matches!(item, MaskItem::Any | MaskItem::More) && state >> at & 1 == 1 {
                state |= 1 << (at + 1);
            }
        }
        state
    }

    fn advance(&self, state: u128, element: &[Asn]) -> u128 {
        let mut next = 0;
        for (at, item) in self.0.iter().enumerate() {
            if state >> at & 1 == 0 {
                continue;
            }
            let (takes, to) = match item {
                MaskItem::Any => (true, at),
                MaskItem::More => (at > 0 && takes(&self.0[at - 1], element), at),
                item => (takes(item, element), at + 1),
            };
            if takes {
                next |= 1 << to;
            }
        }
        next
    }
}

fn takes(item: &MaskItem, element: &[Asn]) -> bool {
    match item {
        MaskItem::Any | MaskItem::One | MaskItem::More => true,
        MaskItem::Range(low, high) => element.iter().any(|asn| (low..=high).contains(&&asn.0)),
        MaskItem::Set(set) => element
            .iter()
            .any(|asn| set.holds(SetKind::Int, asn.0.into())),
    }
}
