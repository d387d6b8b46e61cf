//! How far long work is, for people.

use serde::{Deserialize, Serialize};

use super::{Job, JobKind, STRIDE};
use crate::rib::Rib;
use crate::types::PeerName;

/// Progress of a piece of long work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Description of the job.
    pub what: String,
    /// For which peer, if for one.
    pub peer: Option<PeerName>,
    /// Destinations that are done.
    pub done: usize,
    /// Destinations that the job goes through.
    pub total: usize,
}

impl Rib {
    /// Progress of the long work that is under way.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        let progress = |job: &Job| {
            // Of the attribute sets it is the parts of their table that are counted.
            let of = match job.kind {
                JobKind::Sets => STRIDE,
                _ => 1,
            };
            Progress {
                what: job.kind.what().to_owned(),
                peer: self.job_peer(&job.kind),
                done: job.at / of,
                total: self.extent(&job.kind) / of,
            }
        };
        let mut all: Vec<Progress> = self.jobs.list.iter().map(progress).collect();
        all.extend(self.own_progress());
        if self.undecided_left {
            all.push(Progress {
                what: "decide and announce".to_owned(),
                peer: None,
                done: 0,
                total: self.dirty.len(),
            });
        }
        all
    }

    fn job_peer(&self, kind: &JobKind) -> Option<PeerName> {
        let id = match kind {
            JobKind::Move { peer, .. } | JobKind::Dump { peer, .. } => *peer,
            JobKind::Import(peers) if peers.len() == 1 => *peers.first()?,
            other => {
                let judged = other.judged();
                *judged.first().filter(|_| judged.len() == 1)?
            }
        };
        Some(self.peers.get(id)?.name.clone())
    }
}
