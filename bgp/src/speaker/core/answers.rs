//! What the handles ask for.

use std::time::UNIX_EPOCH;

use caracal_model::net::Family;
use tokio::sync::oneshot;

use super::slices::Subscription;
use super::{Core, Peer, now};
use crate::rib::ForwardPolicy;
use crate::speaker::message::ToSession;
use crate::speaker::status::{PeerStatus, SpeakerStatus};
use crate::speaker::{Command, FibFeed};
use crate::types::PeerName;

impl Core {
    /// Carries out a command. Who no longer waits for the answer does not get one.
    pub(super) fn obey(&mut self, command: Command) {
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
            Command::NextHops(next_hops, done) => {
                let changes = self.rib.set_next_hops(now(), next_hops);
                self.emit(changes);
                self.when_done(done);
            }
            Command::Status(answer) => drop(answer.send(self.status())),
            Command::Slice(slice) => slice.answer(&self.rib),
            Command::Explain(prefix, answer) => {
                drop(answer.send(Box::new(self.rib.explain(&prefix))));
            }
            Command::Refresh(peer, answer) => drop(answer.send(self.ask_refresh(&peer))),
            Command::Fib(policy, answer) => self.subscribe(policy, answer),
            // The loop carries it out, since it ends the task.
            Command::Shutdown { .. } => {}
        }
    }

    /// Has a peer asked for everything again, in each family.
    fn ask_refresh(&self, name: &PeerName) -> bool {
        let control = self.peers.get(name).and_then(|peer| peer.control.as_ref());
        let (Some(control), Some(session)) = (control, self.rib.session(name)) else {
            return false;
        };
        let ask = |family: &Family| control.try_send(ToSession::AskRefresh(*family)).is_ok();
        session.families.iter().all(ask)
    }

    /// A feed that starts with all routes there are; it is given when they are in it.
    fn subscribe(&mut self, policy: ForwardPolicy, answer: oneshot::Sender<FibFeed>) {
        let feed = FibFeed::new();
        if policy.asks_for_interface() {
            self.rib.follow_interfaces();
        }
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
        let peers = self
            .peers
            .iter()
            .filter_map(|(name, peer)| self.peer_status(name, peer));
        SpeakerStatus {
            local_as: self.config.local_as,
            router_id: self.config.router_id,
            listen: self.listening.address,
            listen_error: self.listening.error.clone(),
            peers: peers.collect(),
            rib: self.rib.counts(),
            deferring: self.rib.is_deferring(),
            convergence: self.convergence.borrow().clone(),
            stations: self.stations.status(),
            work: self.rib.progress(),
            turns: self.turns,
        }
    }

    fn peer_status(&self, name: &PeerName, peer: &Peer) -> Option<PeerStatus> {
        let config = self.config.peers.get(name)?;
        Some(PeerStatus {
            name: name.clone(),
            address: config.address,
            port: config.port,
            remote_as: config.remote_as,
            local_as: config.local_as.unwrap_or(self.config.local_as),
            kind: config.kind.clone(),
            state: peer.state,
            since: peer
                .since
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| age.as_secs()),
            reason: match &self.disabled {
                Some(text) if text.is_empty() => Some("shut down here".to_owned()),
                Some(text) => Some(format!("shut down here: {text}")),
                None => peer.reason.clone(),
            },
            established_count: peer.established_count,
            routes: self.rib.peer_counts(name).unwrap_or_default(),
            session: self.rib.session(name).cloned(),
            bfd: self.liveness.of(name),
            pending: peer
                .id
                .and_then(|id| self.feed(id))
                .map_or(0, |feed| feed.len()),
        })
    }
}
