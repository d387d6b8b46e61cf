//! Commands of an operator about one peer: disable, enable, reset, soft reset.
//!
//! A command holds until the opposite command, until the peer's `disabled` changes in the
//! configuration, or until the process ends, as in birdc.

use tracing::{info, warn};

use super::{Core, now};
use crate::speaker::detail::PeerDetail;
use crate::speaker::message::{Shutdown, ToSession};
use crate::speaker::{Command, PeerCommand, PeerCommandError};
use crate::types::{PeerName, SessionState};
use crate::wire::notification::MAX_SHUTDOWN_TEXT;

/// Why a peer is disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disabled {
    /// For the peer's operator; may be empty.
    pub(super) text: String,
    /// By the configuration, not by a command.
    pub(super) configured: bool,
}

impl Disabled {
    /// As a reason, for people.
    pub(super) fn sentence(&self) -> String {
        match (self.configured, self.text.as_str()) {
            (true, _) => "disabled in the configuration".to_owned(),
            (false, "") => "disabled here".to_owned(),
            (false, text) => format!("disabled here: {text}"),
        }
    }
}

impl Core {
    /// Executes a command of an operator about one peer.
    pub(super) fn execute_peer_command(
        &mut self,
        name: &PeerName,
        command: PeerCommand,
    ) -> Result<String, PeerCommandError> {
        let configured = self.config.peers.contains_key(name);
        let Some(peer) = self.peers.named(name).filter(|_| configured) else {
            return Err(PeerCommandError::NoPeer);
        };
        let disabled = peer.disabled.is_some();
        let established = peer.state == SessionState::Established;
        match command {
            PeerCommand::Disable(text) => {
                check_text(&text)?;
                self.disable_peer(name, text, false);
                Ok(format!("peer {name} is disabled"))
            }
            PeerCommand::Enable if disabled => {
                self.enable_peer(name);
                Ok(match &self.disabled {
                    None => format!("peer {name} is enabled"),
                    Some(_) => format!(
                        "peer {name} is enabled; its session starts when all sessions may run again"
                    ),
                })
            }
            PeerCommand::Enable => Ok(format!("peer {name} is enabled already")),
            _ if disabled => Err(PeerCommandError::Disabled),
            _ if self.disabled.is_some() => Err(PeerCommandError::AllDisabled),
            PeerCommand::Reset(text) => {
                check_text(&text)?;
                self.reset_peer(name, text);
                Ok(format!("the session with peer {name} is reset"))
            }
            _ if !established => Err(PeerCommandError::NoSession),
            PeerCommand::SoftIn => self.soft_in(name),
            PeerCommand::SoftOut => self.soft_out(name),
        }
    }

    /// Commands and questions about one peer.
    pub(super) fn on_peer_command(&mut self, command: Command) {
        match command {
            Command::Operate(name, command, answer) => {
                drop(answer.send(self.execute_peer_command(&name, command)));
            }
            Command::Peer(name, answer) => {
                let detail: Option<Box<PeerDetail>> = self.peer_detail(&name).map(Box::new);
                drop(answer.send(detail));
            }
            // The caller deals with them.
            _ => {}
        }
    }

    /// Ends the session with Cease / Administrative Shutdown (RFC 9003), and starts none.
    pub(super) fn disable_peer(&mut self, name: &PeerName, text: String, configured: bool) {
        let Some(peer) = self.peers.named_mut(name) else {
            return;
        };
        warn!(peer = %name, text, configured, "peer is disabled");
        peer.disabled = Some(Disabled {
            text: text.clone(),
            configured,
        });
        self.hold_dynamic(name, true);
        self.stop_session(name, Shutdown::administrative(text));
        let changes = self.rib.peer_down(now(), name, false);
        self.dispatch(changes);
        // Route selection must not wait for its End-of-RIB, which will not come.
        let changes = self.rib.not_awaited(now(), name);
        self.dispatch(changes);
    }

    /// Lets sessions with the peer run again. Where a task is still ending, its end starts the
    /// next.
    pub(super) fn enable_peer(&mut self, name: &PeerName) {
        let Some(peer) = self.peers.named_mut(name) else {
            return;
        };
        let key = peer.key;
        if peer.disabled.take().is_none() {
            return;
        }
        info!(peer = %name, "peer is enabled");
        self.hold_dynamic(name, false);
        if !self.tasks.values().any(|ending| *ending == key) {
            self.start_session(name);
        }
    }

    /// Ends the session with Cease / Administrative Reset and lets the next one begin at once,
    /// whatever it was waiting for.
    fn reset_peer(&mut self, name: &PeerName, text: String) {
        info!(peer = %name, text, "session is reset");
        self.stop_session(name, Shutdown::administrative_reset(text));
        if let Some(peer) = self.peers.named_mut(name) {
            peer.reason = Some("reset here".to_owned());
        }
        let changes = self.rib.peer_down(now(), name, false);
        self.dispatch(changes);
    }

    /// Asks the peer for everything again (RFC 2918); one that cannot be asked has its stored
    /// routes filtered again.
    fn soft_in(&mut self, name: &PeerName) -> Result<String, PeerCommandError> {
        let session = self.rib.session(name).ok_or(PeerCommandError::NoSession)?;
        if session.options.route_refresh {
            let control = self
                .peers
                .named(name)
                .and_then(|peer| peer.control.as_ref());
            let control = control.ok_or(PeerCommandError::NoSession)?;
            for family in &session.families {
                if control.try_send(ToSession::AskRefresh(*family)).is_err() {
                    return Err(PeerCommandError::Busy);
                }
            }
            return Ok(format!("peer {name} was asked for its routes again"));
        }
        let changes = self.rib.import_peer_again(now(), name);
        self.dispatch(changes);
        Ok(format!(
            "the routes of peer {name} went through the import filters again; it does not know route refresh"
        ))
    }

    /// Announces all routes to the peer again.
    fn soft_out(&mut self, name: &PeerName) -> Result<String, PeerCommandError> {
        let session = self.rib.session(name).ok_or(PeerCommandError::NoSession)?;
        let families = session.families.clone();
        self.decide();
        for family in families {
            let changes = self.rib.route_refresh(now(), name, family);
            self.dispatch(changes);
        }
        Ok(format!("peer {name} is sent all routes again"))
    }
}

/// RFC 9003 §2: at most 255 octets. Cut off, it could say the opposite.
fn check_text(text: &str) -> Result<(), PeerCommandError> {
    match text.len() {
        0..=MAX_SHUTDOWN_TEXT => Ok(()),
        len => Err(PeerCommandError::Text(len)),
    }
}
