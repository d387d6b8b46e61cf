//! When a peer without a session is a problem. `status`, `audit`, probes and metrics all ask here,
//! so that they agree.

use caracal_bgp::{PeerStatus, SpeakerStatus};
use caracal_model::{Problem, ProblemCode};

/// A session that somebody refuses is a problem after this time. Nodes that restart refuse for a
/// few seconds.
const REFUSED_GRACE: u64 = 20;
/// Without a hold time, a peer is missed after this time: the suggestion of RFC 4271 §10.
const DEFAULT_HOLD: u64 = 90;
/// Most peers that are named.
const NAMED: usize = 50;
/// Most peers that a probe names.
const IN_PROBE: usize = 3;

/// A peer without a session.
const DOWN: ProblemCode = ProblemCode::BgpPeerDown;
/// A peer that has announced almost as many prefixes as it may.
const NEAR_LIMIT: ProblemCode = ProblemCode::BgpPrefixLimitNear;

/// Why a peer is a problem, if it is one. The sentence stays the same while the problem does.
pub(crate) fn wrong(peer: &PeerStatus) -> Option<String> {
    let down = peer.down_seconds.filter(|_| !peer.disabled)?;
    let hold = match peer.hold_seconds {
        0 => DEFAULT_HOLD,
        hold => hold,
    };
    let reason = peer.reason.as_deref().unwrap_or("no reason is known yet");
    if peer.refused && down >= REFUSED_GRACE {
        return Some(format!("the session is refused: {reason}"));
    }
    (down >= hold.max(REFUSED_GRACE))
        .then(|| format!("no session for longer than the hold time of {hold} s: {reason}"))
}

fn all_wrong(status: &SpeakerStatus) -> Vec<(&PeerStatus, String)> {
    let peers = status.peers.iter();
    peers
        .filter_map(|peer| Some((peer, wrong(peer)?)))
        .collect()
}

pub(crate) fn problems(status: &SpeakerStatus) -> Vec<Problem> {
    let problem = |subject: String, reason| Problem {
        code: DOWN,
        subject,
        reason,
    };
    let wrong = all_wrong(status);
    let named = wrong.iter().take(NAMED);
    let mut problems: Vec<Problem> = named
        .map(|(peer, reason)| problem(format!("peer {}", peer.name), reason.clone()))
        .collect();
    if let Some(more) = wrong.len().checked_sub(NAMED).filter(|n| *n > 0) {
        let reason = format!("{more} more peers have no session");
        problems.push(problem("peers".to_owned(), reason));
    }
    let near = status.peers.iter();
    let near = near.filter_map(|p| Some((p, p.near_limit.clone()?)));
    problems.extend(near.take(NAMED).map(|(peer, reason)| Problem {
        code: NEAR_LIMIT,
        subject: format!("peer {}", peer.name),
        reason,
    }));
    problems
}

/// The same in a few words, for a probe; nothing when there are none.
pub(crate) fn in_short(status: &SpeakerStatus) -> Option<String> {
    let wrong = all_wrong(status);
    let named = wrong.iter().take(IN_PROBE);
    let named: Vec<String> = named
        .map(|(peer, reason)| format!("{}: {reason}", peer.name))
        .collect();
    let more = match wrong.len().saturating_sub(named.len()) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (!named.is_empty()).then(|| format!("{}{more}", named.join("; ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::metrics;
    use crate::metrics::tests::{peer, status};

    fn down(number: usize, seconds: u64, refused: bool) -> PeerStatus {
        PeerStatus {
            down_seconds: Some(seconds),
            refused,
            reason: Some("TCP 179 refused by 192.0.2.1".to_owned()),
            ..peer(number, "mesh", false, 0)
        }
    }

    #[test]
    fn longer_than_the_hold_time_or_refused() {
        assert_eq!(wrong(&down(1, 89, false)), None);
        let late = wrong(&down(1, 90, false)).unwrap();
        assert!(
            late.contains("hold time of 90 s: TCP 179 refused"),
            "{late}"
        );
        assert_eq!(wrong(&down(1, 19, true)), None);
        let refused = wrong(&down(1, 20, true)).unwrap();
        assert!(
            refused.starts_with("the session is refused: TCP"),
            "{refused}"
        );
        assert_eq!(refused, wrong(&down(1, 4000, true)).unwrap(), "one finding");
        let mut zero = down(1, 89, false);
        zero.hold_seconds = 0;
        assert_eq!(wrong(&zero), None);
        let mut disabled = down(1, 4000, true);
        disabled.disabled = true;
        assert_eq!(wrong(&disabled), None, "somebody wants it so");
        assert_eq!(wrong(&peer(1, "mesh", true, 1)), None);
    }

    #[test]
    fn probes_and_problems_name_the_same_peers_and_not_too_many() {
        let peers = (0..60).map(|number| down(number, 100, true)).collect();
        let status = status(peers, &[]);
        let problems = problems(&status);
        assert_eq!(problems.len(), NAMED + 1);
        assert_eq!(problems[NAMED].reason, "10 more peers have no session");
        let ready = metrics::bgp::readiness(&Ok(status)).unwrap();
        assert!(ready.contains("P00000: the session is refused"), "{ready}");
        assert!(ready.ends_with("and 57 more"), "{ready}");
    }
}
