//! Classification of errors of etcd and of the connection.

use std::error::Error;
use std::time::Duration;

use etcd_client::Error as EtcdError;
use tonic::{Code, ConnectError};

use crate::store::StoreError;

/// Error of a call.
#[derive(Debug)]
pub(super) enum EtcdFailure {
    /// etcd or the connection.
    Etcd(EtcdError),
    /// No answer within this time.
    Timeout(Duration),
    /// An answer that ends the call.
    Store(StoreError),
    /// The stream ended without a reason.
    Ended,
}

impl From<EtcdError> for EtcdFailure {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(error)
    }
}

/// Class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// No connection or no leader: another endpoint may serve better.
    Unreachable,
    /// The server is there but cannot serve now.
    Busy,
    Compacted,
    Refused,
}

impl EtcdFailure {
    fn meaning(&self) -> Meaning {
        match self {
            Self::Timeout(_) | Self::Ended => Meaning::Unreachable,
            Self::Store(StoreError::Unavailable { .. }) => Meaning::Unreachable,
            Self::Store(StoreError::Compacted { .. }) => Meaning::Compacted,
            Self::Store(StoreError::Refused(_)) => Meaning::Refused,
            Self::Etcd(EtcdError::GRpcStatus(status)) => meaning(status.code(), status.message()),
            Self::Etcd(
                EtcdError::IoError(_) | EtcdError::TransportError(_) | EtcdError::WatchError(_),
            ) => Meaning::Unreachable,
            Self::Etcd(_) => Meaning::Refused,
        }
    }

    /// True when the connection should be given up for another one.
    pub(super) fn breaks_connection(&self) -> bool {
        self.meaning() == Meaning::Unreachable
    }

    /// True when the request surely never left.
    pub(super) fn is_unsent(&self) -> bool {
        let Self::Etcd(EtcdError::GRpcStatus(status)) = self else {
            return false;
        };
        chain(status).any(|cause| cause.is::<ConnectError>())
    }

    /// True when the connection ended, rather than etcd having answered or been silent.
    pub(super) fn is_disconnect(&self) -> bool {
        match self {
            Self::Etcd(EtcdError::GRpcStatus(status)) => status.source().is_some(),
            Self::Etcd(EtcdError::TransportError(_)) | Self::Ended => true,
            _ => false,
        }
    }

    /// The error for the caller.
    pub(super) fn into_store_error(self, endpoints: &str) -> StoreError {
        let meaning = self.meaning();
        let reason = match self {
            Self::Store(error) => return error,
            Self::Timeout(limit) => format!("no answer within {} ms", limit.as_millis()),
            Self::Ended => "the stream ended".to_owned(),
            Self::Etcd(EtcdError::GRpcStatus(status)) => with_causes(status.message(), &status),
            Self::Etcd(EtcdError::TransportError(error)) => with_causes(&error.to_string(), &error),
            Self::Etcd(error) => error.to_string(),
        };
        match meaning {
            Meaning::Unreachable | Meaning::Busy => StoreError::Unavailable {
                endpoints: endpoints.to_owned(),
                reason,
            },
            // The caller knows what it asked for and fills it in.
            Meaning::Compacted => StoreError::Compacted {
                asked: 0,
                oldest: 0,
            },
            Meaning::Refused => StoreError::Refused(reason),
        }
    }
}

/// etcd's own errors are told apart by code and text (etcd's `rpctypes`).
fn meaning(code: Code, message: &str) -> Meaning {
    match code {
        Code::OutOfRange if message.contains("has been compacted") => Meaning::Compacted,
        // A member that lags behind the revision asked for.
        Code::OutOfRange if message.contains("future revision") => Meaning::Unreachable,
        Code::ResourceExhausted if message.contains("too many requests") => Meaning::Busy,
        // The token ran out or the server that gave it was restarted; the next connection gets a
        // new one.
        Code::Unauthenticated => Meaning::Unreachable,
        Code::InvalidArgument if message.contains("revision in header is old") => {
            Meaning::Unreachable
        }
        Code::OutOfRange
        | Code::ResourceExhausted
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Unimplemented => Meaning::Refused,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Meaning::Unreachable,
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = error.source();
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

/// The text with the causes that add something to it.
fn with_causes(text: &str, error: &(dyn Error + 'static)) -> String {
    let mut reason = text.to_owned();
    for cause in chain(error) {
        let cause = cause.to_string();
        if !reason.contains(&cause) {
            reason.push_str(": ");
            reason.push_str(&cause);
        }
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcds_errors_are_told_apart() {
        let cases = [
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                Meaning::Compacted,
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision",
                Meaning::Unreachable,
            ),
            (
                Code::OutOfRange,
                "Error, decoded message length too large: found 9 bytes, the limit is: 4 bytes",
                Meaning::Refused,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                Meaning::Busy,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                Meaning::Refused,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: too many operations in txn request",
                Meaning::Refused,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                Meaning::Refused,
            ),
            (
                Code::Unauthenticated,
                "etcdserver: invalid auth token",
                Meaning::Unreachable,
            ),
            (
                Code::Unavailable,
                "etcdserver: leader changed",
                Meaning::Unreachable,
            ),
        ];
        for (code, message, expected) in cases {
            assert_eq!(meaning(code, message), expected, "{code:?} {message}");
        }
    }
}
