//! Whether a pod's addresses are announced: the plan of the pod's revision is the speaker's, and
//! every established session has taken what it is to send. BGP knows no receipt, so this is as far
//! as a sender can see.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use caracal_bgp::{SessionState, SpeakerHandle};
use caracal_datastore::View;
use caracal_model::net::Prefix;
use caracal_model::{Announcement, AwaitAnnouncement};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::admin::routes::text;
use crate::node::announce::publish::AnnouncedPlan;

/// Longest wait that is granted.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at the sessions; a new plan is looked at immediately.
const LOOK: Duration = Duration::from_millis(20);

/// Answers when all is announced or the time is over.
///
/// # Errors
/// When the speaker has ended.
pub(crate) async fn wait(
    mut told: watch::Receiver<AnnouncedPlan>,
    view: &watch::Receiver<View>,
    speaker: &SpeakerHandle,
    question: &AwaitAnnouncement,
) -> Result<Announcement, String> {
    let end = Instant::now() + Duration::from_millis(question.milliseconds).min(LIMIT);
    loop {
        let plan = told.borrow_and_update().clone();
        // A pod that is written again as it was wakes nobody.
        let followed = view.borrow().followed(plan.revision);
        let answer = if followed < question.revision {
            Announcement {
                missing: Some(format!(
                    "the speaker is at revision {followed} of the datastore, the pod at {}",
                    question.revision
                )),
                ..Announcement::default()
            }
        } else {
            look(speaker, &plan.originated, &question.addresses).await?
        };
        if answer.missing.is_none() || Instant::now() >= end {
            return Ok(answer);
        }
        let next = end.min(Instant::now() + LOOK);
        tokio::select! {
            changed = told.changed() => changed.map_err(text)?,
            () = sleep_until(next) => {}
        }
    }
}

async fn look(
    speaker: &SpeakerHandle,
    originated: &[Prefix],
    addresses: &[IpAddr],
) -> Result<Announcement, String> {
    let mut answer = Announcement {
        prefixes: covering(originated, addresses),
        ..Announcement::default()
    };
    let status = speaker.status().await.map_err(text)?;
    if answer.prefixes.is_empty() || status.peers.is_empty() {
        return Ok(answer);
    }
    let up = |p: &&caracal_bgp::PeerStatus| p.state == SessionState::Established;
    let sessions: Vec<_> = status.peers.iter().filter(up).collect();
    answer.sessions = sessions.len();
    answer.missing = if sessions.is_empty() {
        Some("no session is established".to_owned())
    } else if status.deferring {
        Some("the speaker waits for its peers' routes after a restart".to_owned())
    } else {
        let waiting = sessions.iter().find(|p| p.pending > 0);
        waiting.map(|p| format!("{} changes wait for session {}", p.pending, p.name))
    };
    Ok(answer)
}

/// The longest originated prefix of each address.
fn covering(originated: &[Prefix], addresses: &[IpAddr]) -> Vec<Prefix> {
    let longest = |address: &IpAddr| {
        let covers = originated.iter().filter(|p| p.contains(*address));
        covers.max_by_key(|p| p.len()).copied()
    };
    let prefixes: BTreeSet<_> = addresses.iter().filter_map(longest).collect();
    prefixes.into_iter().collect()
}
