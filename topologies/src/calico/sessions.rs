//! The plan's sessions of one family, in the words of BIRD 1.6.

use caracal_bgp::{NextHopMode, PeerName};
use caracal_model::{Family, Prefix, ProblemCode};

use super::{FilterCall, Peer, Reach, policy};
use crate::Problems;
use crate::common::BGP_PORT;
use crate::filters::{Direction, Found, find};
use crate::session::PlannedSession;
use crate::view::NodeView;

pub(super) fn peers_of(
    view: &NodeView<'_>,
    family: Family,
    problems: &mut Problems,
) -> (Vec<Peer>, Vec<Reach>) {
    let sessions = crate::sessions(view, problems);
    let of_family = sessions
        .iter()
        .filter(|(_, session)| Family::of(session.address) == family);
    let mut peers = Vec::new();
    let mut reach = std::collections::BTreeSet::new();
    for (name, session) in of_family {
        if !session.has_quotable_password() {
            problems.note(
                ProblemCode::BgpPassword,
                session.subject.clone(),
                format!("the password of {name} has a quotation mark or a control character, which BIRD cannot write; the peer is left out"),
            );
            continue;
        }
        if let Some(via) = session.reachable_by {
            reach.insert(Reach {
                prefix: Prefix::host(session.address).to_string(),
                via: via.to_string(),
            });
        }
        for filter in &session.filters {
            if matches!(
                find(view, filter, Direction::Import, family),
                Found::Missing
            ) {
                problems.note(
                    ProblemCode::BgpFilterMissing,
                    session.subject.clone(),
                    format!("spec.filters names BGPFilter {filter:?}, which does not exist; it is passed over"),
                );
            }
        }
        peers.push(peer(view, name, session, family));
    }
    (peers, reach.into_iter().collect())
}

fn peer(view: &NodeView<'_>, name: &PeerName, session: &PlannedSession, family: Family) -> Peer {
    let config = &session.peer;
    let same_as = session.own_as(view) == config.remote_as;
    let calls = |direction| -> Vec<FilterCall> {
        session
            .filters
            .iter()
            .filter_map(|name| policy::call(view, name, direction, family, same_as))
            .collect()
    };
    let password = config.password.as_ref().map(|password| password.0.clone());
    Peer {
        name: name.to_string(),
        resource: session.subject.clone(),
        address: config.address.to_string(),
        port: Some(config.port).filter(|port| *port != BGP_PORT),
        remote_as: config.remote_as.0,
        local_as: config.local_as.map(|asn| asn.0),
        same_as,
        source: config.source.map(|source| source.to_string()),
        ttl_security: config.ttl_security,
        bfd: config.bfd.is_some(),
        passive: config.passive,
        cluster: config.client_of.map(|cluster| cluster.to_string()),
        password_hidden: password.is_some() && !view.options.show_passwords,
        password: password.filter(|_| view.options.show_passwords),
        restart_time: session.restart_time.map(|time| time.as_secs()),
        keepalive: session.keepalive.map(|time| time.as_secs()),
        next_hop: match config.next_hop.ipv4 {
            NextHopMode::Auto => None,
            NextHopMode::Own => Some("self"),
            NextHopMode::Keep => Some("keep"),
        },
        allow_own_as: Some(config.allow_own_as).filter(|count| *count > 0),
        import: calls(Direction::Import),
        export: calls(Direction::Export),
    }
}
