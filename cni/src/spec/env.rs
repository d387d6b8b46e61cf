//! The environment of a call: `CNI_COMMAND` and the parameters, checked as the specification
//! demands. They come from outside and end up in file names, interface names and etcd keys.

use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    /// Attach a container to the network.
    Add,
    /// Detach it.
    Del,
    /// Is the attachment as it was made?
    Check,
    /// Which versions are spoken?
    Version,
    /// Can an ADD be served?
    Status,
    /// Remove what belongs to no attachment of a list.
    Gc,
}

impl Command {
    const ALL: [Self; 6] = [
        Self::Add,
        Self::Del,
        Self::Check,
        Self::Version,
        Self::Status,
        Self::Gc,
    ];

    /// As in `CNI_COMMAND`.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Version => "VERSION",
            Self::Status => "STATUS",
            Self::Gc => "GC",
        }
    }

    const fn names_an_attachment(self) -> bool {
        matches!(self, Self::Add | Self::Del | Self::Check)
    }
}

/// Fault of the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvError {
    /// A required variable is unset or empty.
    #[error("{variable} is not set; {command} needs it")]
    Missing {
        variable: &'static str,
        command: &'static str,
    },
    /// `CNI_COMMAND` is unset: this is no CNI runtime.
    #[error("CNI_COMMAND is not set: this program is a CNI plugin, started by a container runtime")]
    NotARuntime,
    /// `CNI_COMMAND` holds no verb.
    #[error("CNI_COMMAND={0:?} is no verb; expected ADD, DEL, CHECK, VERSION, STATUS or GC")]
    Command(String),
    /// A variable holds what it must not.
    #[error("{variable}={value:?} is refused: {rule}")]
    Malformed {
        variable: &'static str,
        value: String,
        /// Rule for valid values.
        rule: &'static str,
    },
}

/// The environment of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Env {
    pub command: Command,
    /// `CNI_CONTAINERID`; empty for verbs without an attachment.
    pub container_id: String,
    /// `CNI_NETNS`: path of the container's network namespace.
    pub netns: Option<PathBuf>,
    /// `CNI_IFNAME`: name of the interface inside the container; empty for verbs without an
    /// attachment.
    pub ifname: String,
    /// `CNI_ARGS`, by key.
    pub args: BTreeMap<String, String>,
    /// `CNI_PATH`: where plugins are.
    pub path: Vec<PathBuf>,
}

const ID_RULE: &str = "expected a letter or digit, then letters, digits, '_', '.' or '-'";
const IFNAME_RULE: &str =
    "expected 1 to 15 octets without '/', ':' and white space, other than '.' and '..'";

impl Env {
    /// Reads the variables through `get`.
    ///
    /// # Errors
    /// [`EnvError`] names the variable and what would be right.
    pub(crate) fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = get("CNI_COMMAND").ok_or(EnvError::NotARuntime)?;
        let command = Command::ALL
            .into_iter()
            .find(|command| command.as_str() == text)
            .ok_or(EnvError::Command(text))?;
        let mut env = Self {
            command,
            container_id: String::new(),
            netns: get("CNI_NETNS").map(PathBuf::from),
            ifname: String::new(),
            args: args(get("CNI_ARGS").as_deref().unwrap_or_default())?,
            path: get("CNI_PATH")
                .map(|path| std::env::split_paths(&path).collect())
                .unwrap_or_default(),
        };
        if command.names_an_attachment() {
            let need = |variable: &'static str| {
                get(variable).ok_or(EnvError::Missing {
                    variable,
                    command: command.as_str(),
                })
            };
            env.container_id = identifier("CNI_CONTAINERID", need("CNI_CONTAINERID")?)?;
            env.ifname = interface("CNI_IFNAME", need("CNI_IFNAME")?)?;
            if command != Command::Del {
                need("CNI_NETNS")?;
            }
        }
        Ok(env)
    }

    /// An argument of `CNI_ARGS`, when it is set and not empty.
    #[must_use]
    pub(crate) fn arg(&self, name: &str) -> Option<&str> {
        self.args
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

/// True for what the specification allows as a container id or network name. Such a text is one
/// segment of a path and of an etcd key.
#[must_use]
pub(crate) fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

fn identifier(variable: &'static str, value: String) -> Result<String, EnvError> {
    if is_identifier(&value) {
        return Ok(value);
    }
    Err(EnvError::Malformed {
        variable,
        value,
        rule: ID_RULE,
    })
}

fn interface(variable: &'static str, value: String) -> Result<String, EnvError> {
    let bad = value.len() > 15
        || matches!(value.as_str(), "." | "..")
        || value.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if bad {
        return Err(EnvError::Malformed {
            variable,
            value,
            rule: IFNAME_RULE,
        });
    }
    Ok(value)
}

fn args(text: &str) -> Result<BTreeMap<String, String>, EnvError> {
    text.split(';')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            // Both become part of an etcd key.
            Some(("K8S_POD_NAMESPACE" | "K8S_POD_NAME", value))
                if !value.is_empty() && !is_identifier(value) =>
            {
                Err(EnvError::Malformed {
                    variable: "CNI_ARGS",
                    value: pair.to_owned(),
                    rule: ID_RULE,
                })
            }
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(EnvError::Malformed {
                variable: "CNI_ARGS",
                value: text.to_owned(),
                rule: "expected KEY=VALUE pairs separated by ';'",
            }),
        })
        .collect()
}
