//! UPDATE (RFC 4271 §4.3) with the multiprotocol attributes (RFC 4760) folded in.

use caracal_model::net::{Family, Prefix};

use crate::attrs::PathAttrs;

/// One UPDATE. Which family a prefix belongs to is in the prefix; whether it travelled in the classic
/// fields or in MP_REACH_NLRI and MP_UNREACH_NLRI leaves no trace.
///
/// All of `announced` shares `attrs`, next hop included: a message that announces both families with a next
/// hop each decodes into two of these. A prefix in both lists is announced (RFC 4271 §4.3), so a
/// receiver applies `withdrawn` first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Prefixes that are no longer reachable through the sender.
    pub withdrawn: Vec<Prefix>,
    /// Prefixes that are reachable with `attrs`.
    pub announced: Vec<Prefix>,
    /// The attributes of `announced`; `Some` whenever that is not empty.
    pub attrs: Option<PathAttrs>,
    /// The message is the End-of-RIB marker of this family (RFC 4724 §2); all else is empty.
    pub end_of_rib: Option<Family>,
}

impl Update {
    /// The End-of-RIB marker.
    #[must_use]
    pub fn end_of_rib(family: Family) -> Self {
        Self {
            end_of_rib: Some(family),
            ..Self::default()
        }
    }
}
