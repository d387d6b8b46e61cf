//! Messages of the core to a session, and the end of a session.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_model::Prefix;
use tracing::{info, warn};

use super::link::Link;
use super::{
    ConnectionEnds, ConnectionId, DRAIN_LIMIT, FsmInput, PeerConfig, SessionStop, SessionTask,
    ToSession, link, now, socket,
};
use crate::speaker::message::Shutdown;
use crate::wire::notification::CeaseSubcode;

impl SessionTask {
    pub(super) fn control(&mut self, message: ToSession) {
        match message {
            ToSession::Config(config) => self.configure(*config),
            ToSession::Stream { stream, ticket, .. } => self.offer(stream, ticket),
            ToSession::BfdDown { graceful } => self.feed(FsmInput::BfdDown { graceful }),
            ToSession::AskRefresh(family) => self.feed(FsmInput::AskRefresh(family)),
            ToSession::PrefixLimit(passed) => self.feed(FsmInput::PrefixLimit(passed)),
            ToSession::AddressesGone(gone) => self.addresses_gone(&gone),
            ToSession::Shutdown(how) => {
                let stop = match how {
                    Shutdown::Restart => SessionStop::Restart,
                    Shutdown::Cease { subcode, text } => {
                        SessionStop::Cease(CeaseSubcode::from_octet(subcode), text)
                    }
                };
                self.stopping = Some((stop, now() + DRAIN_LIMIT));
            }
        }
    }

    /// Ends the connections that are from one of these addresses, behind what has been read on
    /// them.
    fn addresses_gone(&mut self, gone: &BTreeSet<IpAddr>) {
        for conn in ConnectionId::ALL {
            let Some(link) = self.link_mut(conn) else {
                continue;
            };
            let Ok(ConnectionEnds { local, remote }) = link.ends() else {
                continue;
            };
            let local = local.ip().to_canonical();
            if gone.contains(&local) {
                link.ended
                    .get_or_insert_with(|| Some("its own address is gone".to_owned()));
                info!(%local, %remote, "connection ended: its own address is gone");
                self.understand(conn);
            }
        }
    }

    /// Settings that hold without a new session. A new MD5 key is used from the next segment on.
    fn configure(&mut self, config: PeerConfig) {
        let rekey = config.password != self.settings.peer.password;
        self.settings.peer = config;
        let config = &self.settings.peer;
        for link in [&self.out, &self.inc, &self.pending].into_iter().flatten() {
            let keyed = if rekey {
                socket::set_md5(
                    &link.stream,
                    Prefix::host(config.address),
                    config.password.as_ref(),
                )
            } else {
                Ok(())
            };
            if let Err(error) = keyed.and_then(|()| socket::apply(&link.stream, config)) {
                warn!(%error, "cannot change the options of the connection");
            }
        }
        self.feed(FsmInput::Settings(Box::new(self.settings.clone())));
    }

    /// Carries out the stop when nothing is left to send, or when that takes too long. True when
    /// done.
    pub(super) fn stop_if_drained(&mut self) -> bool {
        let Some((stop, until)) = &self.stopping else {
            return false;
        };
        let pending = match (&self.outgoing, stop) {
            (Some(outgoing), SessionStop::Cease(..)) => {
                !outgoing.feed.is_empty()
                    || link(&self.out, &self.inc, outgoing.conn).is_some_and(Link::wants_write)
            }
            _ => false,
        };
        if pending && now() < *until {
            return false;
        }
        let stop = stop.clone();
        self.feed(FsmInput::Stop(stop));
        true
    }
}
