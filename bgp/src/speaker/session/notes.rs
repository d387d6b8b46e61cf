//! Counters and log lines of a session about its peer.

use tracing::warn;

use super::{SessionTask, now};
use crate::speaker::counters::MessageDirection;
use crate::speaker::log_limit::{LogKind, LogLimit};
use crate::speaker::message::ToCore;
use crate::speaker::shared::CannotAnnounce;
use crate::wire::error::{AttrFault, DecodeError};
use crate::wire::format::MessageFormat;
use crate::wire::notification::Notification;
use crate::wire::{self, Message};
use crate::wire::{MESSAGE_HEADER_LEN, MessageType};

impl SessionTask {
    /// Counts the messages that the machine sends (`octets` are whole messages), and reports a
    /// NOTIFICATION to the core.
    pub(super) fn note_sent(&mut self, octets: &[u8]) {
        self.counters.sent(octets);
        let kind = octets.get(MESSAGE_HEADER_LEN - 1).copied();
        if kind == Some(MessageType::Notification.octet())
            && let Ok(Message::Notification(sent)) =
                wire::decode_message(octets, &MessageFormat::default())
        {
            self.note_notification(MessageDirection::Sent, &sent);
        }
    }

    fn note_notification(&mut self, way: MessageDirection, notification: &Notification) {
        if self.counters.notification(way, notification) {
            let peer = self.key;
            let text = notification.to_string();
            self.send_to_core(ToCore::Notified { peer, way, text });
        }
    }

    /// A message of the peer, or why what came is none.
    pub(super) fn note_received(&mut self, message: &Result<Message, DecodeError>) {
        let Ok(message) = message else { return };
        self.counters.received(message.kind());
        if let Message::Notification(notification) = message {
            self.note_notification(MessageDirection::Received, notification);
        }
    }

    pub(super) fn note_fault(&mut self, fault: &AttrFault) {
        self.counters.fault(&fault.handling);
        if self.log.allows(now(), LogKind::UpdateFault) {
            warn!(%fault, verdict = ?fault.handling, "UPDATE with an error");
        }
    }
}

/// Logs routes that could not be announced to the peer.
pub(super) fn cannot_announce(log: &mut LogLimit<LogKind>, failed: &mut Vec<CannotAnnounce>) {
    for CannotAnnounce { error, count } in failed.drain(..) {
        if log.allows(now(), LogKind::CannotAnnounce) {
            warn!(
                error,
                count, "routes cannot be announced and are withdrawn instead"
            );
        }
    }
}
