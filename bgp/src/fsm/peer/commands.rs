//! Commands to a session: stop it, with the kind of end; ask the peer for a route refresh.

use std::time::Instant;

use bytes::BytesMut;
use caracal_model::Family;

use super::{Connection, PeerFsm};
use crate::config::{Counted, LimitPassed};
use crate::fsm::{ConnectionId, DownReason, FsmOutput, SessionStop};
use crate::wire::encode_refresh;
use crate::wire::notification::{CeaseSubcode, Notification};
use crate::wire::refresh::{RefreshKind, RouteRefresh};

impl PeerFsm {
    pub(super) fn stop(&mut self, now: Instant, stop: &SessionStop) {
        if !std::mem::take(&mut self.enabled) {
            return;
        }
        self.connect_retry = None;
        self.idle_hold = None;
        self.reason = Some(match stop {
            SessionStop::Restart => DownReason::Restarting,
            SessionStop::Cease(_, text) => DownReason::Stopped(text.clone()),
        });
        for conn in ConnectionId::ALL {
            let restart = self
                .connection(conn)
                .and_then(Connection::negotiated)
                .and_then(|negotiated| negotiated.graceful_restart.as_ref());
            let (down, notification) = match stop {
                SessionStop::Restart if restart.is_some() => (DownReason::Restarting, None),
                SessionStop::Restart => {
                    let cease = Notification::cease(CeaseSubcode::AdministrativeReset);
                    (DownReason::Restarting, Some(cease))
                }
                SessionStop::Cease(subcode, text) => {
                    let cease = Notification::shutdown(*subcode, text);
                    // RFC 8538 §4: the peer shall not keep our routes.
                    let hard = restart.is_some_and(|restart| restart.notification);
                    let cease = if hard { cease.hard_reset() } else { cease };
                    (DownReason::Stopped(text.clone()), Some(cease))
                }
            };
            self.end(now, conn, down, notification);
        }
    }

    /// Asks for all routes of a family again, when the peer can.
    pub(super) fn ask_refresh(&mut self, family: Family) {
        let Some((conn, negotiated)) = self.established() else {
            return;
        };
        if negotiated.route_refresh && negotiated.families().contains(family) {
            let refresh = RouteRefresh {
                family: family.into(),
                kind: RefreshKind::Request,
            };
            let mut octets = BytesMut::new();
            encode_refresh(&refresh, &mut octets);
            self.outputs
                .push_back(FsmOutput::Send(conn, octets.freeze()));
        }
    }

    /// RFC 5882 §4.2, RFC 9384: no NOTIFICATION when it may be a restart, for it could make the
    /// peer drop our routes; else Cease / BFD Down, which the peer may get to see when only one
    /// direction is broken.
    pub(super) fn bfd_down(&mut self, now: Instant, graceful: bool) {
        let Some((conn, negotiated)) = self.established() else {
            return;
        };
        let restart = negotiated.graceful_restart.as_ref();
        let graceful = graceful && restart.is_some();
        let cease = Notification::cease(CeaseSubcode::BfdDown);
        let cease = if restart.is_some_and(|restart| restart.notification) {
            cease.hard_reset()
        } else {
            cease
        };
        let notification = (!graceful).then_some(cease);
        self.end(now, conn, DownReason::Bfd { graceful }, notification);
    }

    /// RFC 4486 §4: Cease / Maximum Number of Prefixes Reached with the family and its limit. Where
    /// it is we who have too many, it is an administrative end, as BIRD has it.
    pub(super) fn prefix_limit(&mut self, now: Instant, passed: LimitPassed) {
        let LimitPassed {
            counted,
            family,
            max,
            restart,
        } = passed;
        let Some((conn, negotiated)) = self.established() else {
            return;
        };
        let hard = negotiated
            .graceful_restart
            .as_ref()
            .is_some_and(|restart| restart.notification);
        let cease = match counted {
            Counted::Received | Counted::Accepted => {
                Notification::maximum_prefixes(family.into(), max)
            }
            Counted::Sent if restart.is_some() => {
                Notification::cease(CeaseSubcode::AdministrativeReset)
            }
            Counted::Sent => Notification::cease(CeaseSubcode::AdministrativeShutdown),
        };
        // RFC 8538 §4: the session ends for good, also to a peer that would keep our routes.
        let cease = if hard { cease.hard_reset() } else { cease };
        self.limited = restart.is_none();
        self.enabled = restart.is_some();
        let down = DownReason::PrefixLimit {
            counted,
            family,
            max,
        };
        self.end(
            now,
            ConnectionId::Pending,
            down.clone(),
            Some(cease.clone()),
        );
        self.end(now, conn, down, Some(cease));
        self.connect_retry = None;
        self.idle_hold = restart.map(|pause| now + pause);
    }
}
