//! From snapshots to the speaker's origin check: who may announce what. A task of its own, and not
//! a part of the plan, so that a block that becomes known is told before anything is planned: a
//! route may be waiting for it.

use std::sync::Arc;

use caracal_bgp::{OriginMode, OriginUpdate, SpeakerHandle, SpeakerStatus};
use caracal_datastore::View;
use caracal_model::{NodeName, Problem, ProblemCode, Snapshot};
use caracal_topologies::origin_update;
use tokio::sync::watch;

/// Everything that a view says.
pub(crate) fn whole(view: &View, me: &NodeName, mode: OriginMode) -> OriginUpdate {
    OriginUpdate {
        stale: Some(is_stale(view)),
        ..origin_update(None, &view.snapshot, (me, mode))
    }
}

const fn is_stale(view: &View) -> bool {
    !view.is_current()
}

/// Tells the speaker what changes from the view that it was started with. `current` is true once
/// the speaker has judged its routes by the owners of a current view.
pub(crate) async fn publish_origins(
    mut views: watch::Receiver<View>,
    first: View,
    (me, mode): (NodeName, OriginMode),
    speaker: SpeakerHandle,
    current: watch::Sender<bool>,
) {
    let mut stale = is_stale(&first);
    let mut snapshot: Arc<Snapshot> = first.snapshot;
    current.send_replace(!stale);
    views.mark_changed();
    while views.changed().await.is_ok() {
        let view = views.borrow_and_update().clone();
        let mut update = match Arc::ptr_eq(&snapshot, &view.snapshot) {
            true => OriginUpdate::default(),
            false => origin_update(Some(&snapshot), &view.snapshot, (&me, mode)),
        };
        if stale != is_stale(&view) {
            stale = !stale;
            update.stale = Some(stale);
        }
        snapshot = view.snapshot;
        if stale {
            current.send_if_modified(|current| std::mem::replace(current, false));
        }
        if !update.is_empty() && speaker.set_origins(update).await.is_err() {
            return;
        }
        current.send_if_modified(|current| std::mem::replace(current, !stale) == stale);
    }
}

/// What is wrong with routes for their prefix.
pub(crate) fn problems(speaker: &SpeakerStatus) -> impl Iterator<Item = Problem> {
    let found = [overdue(speaker), refused(speaker), over_nodes(speaker)];
    found.into_iter().flatten()
}

/// Routes that have not come from the owner for a while.
fn refused(speaker: &SpeakerStatus) -> Option<Problem> {
    let (prefix, peer, why) = speaker.origin.refused.as_ref()?;
    let others = match speaker.screened.refused {
        0 | 1 => String::new(),
        more => format!(" (and {} others of its kind)", more - 1),
    };
    Some(Problem {
        code: ProblemCode::BgpNotOwner,
        subject: prefix.to_string(),
        reason: format!(
            "peer {peer} announces {prefix}{others}, which is not its own: {why}; it is not used: take it out of what the peer announces, or admit the peer (docs/topologies.md, who may announce what)"
        ),
    })
}

/// Routes that are refused because they cover nodes.
fn over_nodes(speaker: &SpeakerStatus) -> Option<Problem> {
    let (prefix, peer) = speaker.origin.over_nodes.as_ref()?;
    let others = match speaker.screened.over_nodes {
        0 | 1 => String::new(),
        more => format!(" (and {} others of its kind)", more - 1),
    };
    Some(Problem {
        code: ProblemCode::BgpOverNodes,
        subject: prefix.to_string(),
        reason: format!(
            "peer {peer} announces {prefix}{others}, which covers addresses of nodes; it is not used, so that pods and nodes keep their ways: take it out of what the peer announces, or admit it with a BGPFilter's import rule of action Accept with cidr {prefix}"
        ),
    })
}

/// Routes that wait for too long.
fn overdue(speaker: &SpeakerStatus) -> Option<Problem> {
    let prefix = speaker.origin.overdue?;
    let others = match speaker.screened.overdue {
        0 | 1 => String::new(),
        more => format!(" and {} others", more - 1),
    };
    let why = match speaker.origin.stale {
        true => "the datastore is not fresh",
        false => "no confirmed affinity covers it",
    };
    Some(Problem {
        code: ProblemCode::BgpOwnerUnknown,
        subject: prefix.to_string(),
        reason: format!(
            "the route to {prefix}{others} has waited for 30 s for the datastore to say who has the prefix ({why}), and is not used until it does; caracal bgp explain {prefix} names the peer"
        ),
    })
}
