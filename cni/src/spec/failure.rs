//! The error object of the specification: what a plugin prints when it fails.

use serde_json::{Value, json};

/// Error codes: those of the specification below 100, ours from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    /// The configuration's version is not supported.
    IncompatibleVersion,
    /// A field of the configuration asks for what the plugin does not have.
    UnsupportedField,
    /// The container is not known, or its namespace does not exist.
    UnknownContainer,
    /// An environment variable is missing or malformed.
    InvalidEnvironment,
    /// Reading or writing failed.
    Io,
    /// The configuration is not JSON, or not of the right shape.
    Decode,
    /// The configuration makes no sense.
    InvalidConfig,
    /// The runtime should try again later.
    TryAgainLater,
    /// `STATUS`: the plugin cannot serve an ADD.
    NotAvailable,
    /// The datastore refused, or holds what cannot be used.
    Datastore,
    /// No address could be assigned.
    Addresses,
    /// The kernel refused.
    Kernel,
    /// The node's agent did not program the route in time.
    RouteMissing,
    /// `CHECK` found something that differs.
    Differs,
    /// A delegated plugin could not be run.
    Delegate,
    /// A code of a delegated plugin, passed on as it is.
    Foreign(u32),
}

impl Code {
    #[must_use]
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::IncompatibleVersion => 1,
            Self::UnsupportedField => 2,
            Self::UnknownContainer => 3,
            Self::InvalidEnvironment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::InvalidConfig => 7,
            Self::TryAgainLater => 11,
            Self::NotAvailable => 50,
            Self::Datastore => 101,
            Self::Addresses => 102,
            Self::Kernel => 103,
            Self::RouteMissing => 104,
            Self::Differs => 105,
            Self::Delegate => 106,
            Self::Foreign(code) => code,
        }
    }
}

/// The error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub code: Code,
    /// Message for users: the failure and the remedy.
    pub message: String,
    /// The causes, outermost first; empty when there are none.
    pub details: String,
}

impl Failure {
    /// From an error: its text is the message, its causes are the details.
    #[must_use]
    pub(crate) fn new(code: Code, error: &dyn std::error::Error) -> Self {
        let mut details = Vec::new();
        let mut cause = error.source();
        while let Some(error) = cause {
            details.push(error.to_string());
            cause = error.source();
        }
        Self {
            code,
            message: error.to_string(),
            details: details.join(": "),
        }
    }

    /// The JSON for stdout. `version` is the one of the configuration as far as it was read.
    #[must_use]
    pub(crate) fn to_json(&self, version: &str) -> Value {
        let mut object = json!({
            "cniVersion": version,
            "code": self.code.number(),
            "msg": self.message,
        });
        if !self.details.is_empty() {
            object["details"] = Value::from(self.details.clone());
        }
        object
    }
}
