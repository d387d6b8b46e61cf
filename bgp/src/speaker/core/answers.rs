//! Commands and questions of the handles.

use caracal_model::Family;
use tokio::sync::oneshot;

use super::history::unix;
use super::slices::Subscription;
use super::{Core, CorePeer, missing, now};
use crate::config::{Counted, PeerConfig};
use crate::rib::{FibExportFilter, PeerCounts};
use crate::speaker::detail::{
    self, Capabilities, Endpoint, FamilyDetail, Messages, NegotiatedTime, PeerDetail,
};
use crate::speaker::message::ToSession;
use crate::speaker::status::{PeerStatus, SpeakerStatus, UpdateCounts};
use crate::speaker::{Command, FibFeed};
use crate::types::{PeerName, SessionState};
use crate::wire::format::MessageFormat;
use crate::wire::open::OpenMessage;
use crate::wire::{self, Message};

impl Core {
    /// Executes a command. The answer is dropped when nobody waits for it any more.
    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::Reconfigure(config, done) => {
                self.reconfigure(*config);
                self.when_done(done);
            }
            Command::Disable(text, done) => {
                self.disable(text);
                let _ = done.send(());
            }
            Command::Enable(done) => {
                self.enable();
                let _ = done.send(());
            }
            Command::Underlay(underlay, done) => {
                let changes = self.rib.set_underlay(now(), underlay);
                self.dispatch(changes);
                self.when_done(done);
            }
            Command::LocalNetworks(local, done) => {
                let changes = self.rib.set_local_networks(now(), local);
                self.dispatch(changes);
                let _ = done.send(());
            }
            Command::AddressesGone(gone, done) => {
                self.addresses_gone(gone);
                let _ = done.send(());
            }
            Command::Origins(update, done) => {
                let changes = self.rib.set_origins(now(), update);
                self.dispatch(changes);
                self.when_done(done);
            }
            Command::Status(answer) => drop(answer.send(self.status())),
            Command::Slice(slice) => slice.answer(&self.rib),
            Command::Explain(prefix, answer) => {
                drop(answer.send(Box::new(self.rib.explain(&prefix))));
            }
            Command::Refresh(peer, answer) => drop(answer.send(self.ask_refresh(&peer))),
            Command::Fib(policy, answer) => self.subscribe(policy, answer),
            Command::Peer(..) | Command::Operate(..) => self.on_peer_command(command),
            // The loop carries it out, since it ends the task.
            Command::Shutdown { .. } => {}
        }
    }

    /// Has a peer asked for everything again, in each family.
    fn ask_refresh(&self, name: &PeerName) -> bool {
        let control = self
            .peers
            .named(name)
            .and_then(|peer| peer.control.as_ref());
        let (Some(control), Some(session)) = (control, self.rib.session(name)) else {
            return false;
        };
        let ask = |family: &Family| control.try_send(ToSession::AskRefresh(*family)).is_ok();
        session.families.iter().all(ask)
    }

    /// A feed that starts with all routes there are; it is given when they are in it.
    fn subscribe(&mut self, policy: FibExportFilter, answer: oneshot::Sender<FibFeed>) {
        let feed = FibFeed::new();
        self.fib.push((feed.clone(), policy.clone()));
        self.subscriptions.push(Subscription {
            feed,
            policy,
            at: 0,
            answer,
        });
        self.fill_subscriptions();
    }

    fn status(&self) -> SpeakerStatus {
        let counts = self.rib.all_peer_counts();
        let peers = self.peers.by_name().filter_map(|peer| {
            let counts = peer.id.and_then(|id| counts.get(&id).copied());
            self.peer_status(&peer.name, peer, counts.unwrap_or_default())
        });
        let mut updates = UpdateCounts::default();
        for peer in self.peers.by_name() {
            let counters = &peer.history.counters;
            updates.received += counters.messages_received().update;
            updates.sent += counters.messages_sent().update;
        }
        SpeakerStatus {
            local_as: self.config.local_as,
            router_id: self.config.router_id,
            listen: self.listening.address,
            listen_error: self.listening.error.clone(),
            peers: peers.collect(),
            rib: self.rib.counts(),
            screened: self.rib.screened(),
            origin: self.rib.origin_status(),
            deferring: self.rib.is_deferring(),
            convergence: self.convergence.borrow().clone(),
            stations: self.stations.status(),
            work: self.rib.progress(),
            turns: self.turns,
            updates,
        }
    }

    fn peer_status(
        &self,
        name: &PeerName,
        peer: &CorePeer,
        routes: PeerCounts,
    ) -> Option<PeerStatus> {
        let config = self.config.peers.get(name)?;
        let session = self
            .rib
            .session(name)
            .filter(|_| peer.state == SessionState::Established);
        Some(PeerStatus {
            name: name.clone(),
            address: config.address,
            port: config.port,
            remote_as: config.remote_as,
            local_as: config.local_as.unwrap_or(self.config.local_as),
            kind: config.kind.clone(),
            state: peer.state,
            since: unix(peer.since),
            reason: self.reason(peer),
            // Peers of a range come and go.
            down_seconds: down_seconds(peer)
                .filter(|_| !self.dynamic.contains_key(&config.address)),
            refused: peer.refused && peer.state != SessionState::Established,
            near_limit: self.near_limit(peer, config),
            hold_seconds: config.hold_time.as_secs(),
            disabled: peer.disabled.is_some() || self.disabled.is_some(),
            last_error: peer.history.last_error.clone(),
            errors: peer.history.counters.errors(),
            established_count: peer.established_count,
            told_all: session.is_some_and(|session| {
                let mut families = session.families.iter();
                families.all(|family| peer.id.is_some_and(|id| self.rib.has_finished(id, *family)))
            }),
            routes,
            warning: session.and_then(|session| missing(session, config)),
            session: self.rib.session(name).cloned(),
            bfd: self.liveness.status(peer.key),
            pending: peer
                .id
                .and_then(|id| self.feed(id))
                .map_or(0, |feed| feed.len()),
        })
    }

    /// Warning when a peer's routes come close to its prefix limit.
    fn near_limit(&self, peer: &CorePeer, config: &PeerConfig) -> Option<String> {
        let id = peer.id?;
        let all = [Counted::Received, Counted::Accepted, Counted::Sent];
        let of_families = |counted| [Family::Ipv4, Family::Ipv6].map(|family| (counted, family));
        all.into_iter()
            .flat_map(of_families)
            .find_map(|(counted, family)| {
                let limit = config.limits(counted).for_family(family)?;
                let (sent, kept_back) = self.rib.sent_of(id, family);
                let (count, what) = match counted {
                    Counted::Received => (self.rib.received_of(id, family), "that it may announce"),
                    Counted::Accepted => (
                        self.rib.accepted_of(id, family),
                        "that may be accepted from it",
                    ),
                    Counted::Sent if kept_back > 0 => (
                        sent,
                        "that it may be sent; of others something is kept back",
                    ),
                    Counted::Sent => (sent, "that it may be sent"),
                };
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                let near = count > 0 && count >= limit.warning_from();
                near.then(|| format!("{count} {family} prefixes of {} {what}", limit.max))
            })
    }

    /// Why a peer has no session now. What ended an earlier one says nothing about a session that
    /// is up.
    fn reason(&self, peer: &CorePeer) -> Option<String> {
        match (&self.disabled, &peer.disabled) {
            (Some(text), _) if text.is_empty() => Some("shut down here".to_owned()),
            (Some(text), _) => Some(format!("shut down here: {text}")),
            (None, Some(disabled)) => Some(disabled.sentence()),
            (None, None) if peer.state == SessionState::Established => None,
            (None, None) => peer.reason.clone(),
        }
    }

    /// Everything that is known about a peer.
    pub(super) fn peer_detail(&self, name: &PeerName) -> Option<PeerDetail> {
        let config = self.config.peers.get(name)?;
        let peer = self.peers.named(name)?;
        let routes = self.rib.peer_counts(name).unwrap_or_default();
        let PeerStatus {
            name,
            kind,
            state,
            since,
            reason,
            down_seconds,
            disabled,
            last_error,
            errors,
            established_count,
            routes,
            bfd,
            pending,
            ..
        } = self.peer_status(name, peer, routes)?;
        let history = &peer.history;
        let up = state == SessionState::Established;
        let session = history.session.as_ref();
        let [sent, received] = [
            session.and_then(|session| open(&session.opens.sent)),
            session.and_then(|session| open(&session.opens.received)),
        ];
        let agreed = |of: fn(u64) -> u64| {
            let (ours, theirs) = (sent.as_ref()?, received.as_ref()?);
            let hold = u64::from(ours.hold_time.min(theirs.hold_time));
            up.then(|| of(hold))
        };
        let hold = config.hold_time.as_secs();
        let ends = session.filter(|_| up);
        let words = |open: &Option<OpenMessage>| {
            let capabilities = open.iter().flat_map(|open| &open.capabilities);
            capabilities.map(detail::words).collect()
        };
        Some(PeerDetail {
            kind,
            state,
            since,
            down_seconds,
            reason,
            disabled,
            established_count,
            local: Endpoint {
                address: ends
                    .map(|ends| ends.local.ip().to_canonical())
                    .or(config.source),
                port: ends.map(|ends| ends.local.port()),
                asn: config.local_as.unwrap_or(self.config.local_as),
                router_id: Some(self.config.router_id),
            },
            remote: Endpoint {
                address: Some(config.address),
                port: Some(ends.map_or(config.port, |ends| ends.remote.port())),
                asn: config.remote_as,
                router_id: received.as_ref().map(|open| open.router_id),
            },
            passive: config.passive,
            hold_time: NegotiatedTime {
                configured: hold,
                agreed: agreed(|hold| hold),
            },
            keepalive_time: NegotiatedTime {
                configured: hold / 3,
                agreed: agreed(|hold| hold / 3),
            },
            ttl: config.ttl,
            ttl_security_hops: config.ttl_security,
            md5: config.password.is_some(),
            bfd,
            capabilities: Capabilities {
                sent: words(&sent),
                received: words(&received),
                agreed: match self.rib.session(&name) {
                    Some(session) if up => session.capabilities.clone(),
                    _ => Vec::new(),
                },
            },
            families: self.family_details(&name, config),
            advertised: routes.advertised,
            stale: routes.stale,
            pending,
            import_filters: config.import.clone(),
            export_filters: config.export.clone(),
            messages: Messages {
                sent: history.counters.messages_sent(),
                received: history.counters.messages_received(),
            },
            errors,
            last_error,
            last_notification_sent: history.sent.clone(),
            last_notification_received: history.received.clone(),
            name,
        })
    }

    fn family_details(&self, name: &PeerName, config: &PeerConfig) -> Vec<FamilyDetail> {
        let session = self.rib.session(name);
        let detail = |family: &Family| {
            let counts = self.rib.received_and_accepted(name, *family);
            let (received, accepted) = counts.unwrap_or_default();
            let limit = |counted| config.limits(counted).for_family(*family);
            let id = self.rib.peer_id(name);
            FamilyDetail {
                family: *family,
                agreed: session.is_some_and(|session| session.families.contains(family)),
                received,
                accepted,
                // The handle counts them, since the whole table is looked at for it.
                advertised: None,
                kept_back: id.map_or(0, |id| self.rib.sent_of(id, *family).1),
                limit: limit(Counted::Received).map(|limit| limit.max),
                warning_from: limit(Counted::Received).map(|limit| limit.warning_from()),
                import_limit: limit(Counted::Accepted).map(|limit| limit.max),
                export_limit: limit(Counted::Sent).map(|limit| limit.max),
            }
        };
        config.families.iter().map(detail).collect()
    }
}

fn down_seconds(peer: &CorePeer) -> Option<u64> {
    let down = peer.history.down_for(now())?;
    Some(down.as_secs())
}

/// An OPEN from a whole message.
fn open(octets: &[u8]) -> Option<OpenMessage> {
    match wire::decode_message(octets, &MessageFormat::default()) {
        Ok(Message::Open(open)) => Some(open),
        _ => None,
    }
}
