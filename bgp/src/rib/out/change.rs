//! Changes of what is advertised to the members of an update group.

use std::num::NonZeroU32;
use std::sync::Arc;

use caracal_model::Prefix;

use super::advertised::{Advertised, Before, Member, visible};
use crate::attrs::PathAttrs;

/// The identifier of a path in what we send (RFC 7911).
pub type PathId = NonZeroU32;

/// A change of what is advertised to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// Destination of the route.
    pub prefix: Prefix,
    /// The path's identifier, where the peer takes several paths (RFC 7911).
    pub path_id: Option<PathId>,
    /// The attributes; `None` withdraws.
    pub attrs: Option<Arc<PathAttrs>>,
}

/// A change of what is advertised to a group about one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRoute {
    /// Destination of the route.
    pub prefix: Prefix,
    /// The path's identifier, where the members take several paths (RFC 7911).
    pub path_id: Option<PathId>,
    pub(super) before: Option<Before>,
    pub(super) after: Option<Advertised>,
}

/// One export computation for all members of an update group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupUpdate {
    /// Members that the change is for.
    pub members: Vec<Member>,
    /// Changes for all members, but for their exceptions.
    pub routes: Vec<GroupRoute>,
}

impl GroupUpdate {
    /// The announcements (`Some`) and withdrawals (`None`) for one member.
    pub fn for_member<'a>(&'a self, member: &'a Member) -> impl Iterator<Item = RouteChange> + 'a {
        self.routes
            .iter()
            .filter_map(|route| route.for_member(member))
    }
}

impl GroupRoute {
    pub(in crate::rib) const fn before(&self) -> Option<&Before> {
        self.before.as_ref()
    }

    pub(in crate::rib) const fn after(&self) -> Option<&Advertised> {
        self.after.as_ref()
    }

    /// True when another change says the same of another prefix.
    pub(in crate::rib) fn means(&self, other: &Self) -> bool {
        let same = match (&self.after, &other.after) {
            (None, None) => true,
            (Some(a), Some(b)) => a.is(b),
            _ => false,
        };
        same && self.before == other.before
    }

    /// The changes for one member.
    pub(in crate::rib) fn for_member(&self, member: &Member) -> Option<RouteChange> {
        let before = self.before.filter(|before| before.visible_to(member));
        let after = visible(self.after.as_ref(), member);
        let changed = match (before, after) {
            (None, None) => false,
            (Some(before), Some(_)) => !before.same,
            _ => true,
        };
        changed.then(|| RouteChange {
            prefix: self.prefix,
            path_id: self.path_id,
            attrs: after.cloned(),
        })
    }
}
