//! Running another plugin: an IPAM plugin (`host-local`, `static`, `dhcp`) for an attachment of
//! ours, or the main plugin (`bridge`) that flannel's leaves the work to: the specification's own
//! delegation. The plugin gets our environment and a configuration on its standard input. This is
//! the only place of the crate that starts a program.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command as Program, Stdio};

use serde::Deserialize;

use crate::spec::env::is_identifier;
use crate::spec::{Command, Env, Outcome};

/// What a plugin is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Addresses.
    Ipam,
    /// The whole attachment, for flannel's plugin.
    Main,
}

impl Part {
    /// The key that names the plugin.
    const fn key(self) -> &'static str {
        match self {
            Self::Ipam => "ipam.type",
            Self::Main => "delegate.type",
        }
    }

    const fn plugin(self) -> &'static str {
        match self {
            Self::Ipam => "IPAM plugin",
            Self::Main => "plugin",
        }
    }

    /// What helps when there is no such plugin.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Ipam => "install it or use \"caracal-ipam\"",
            Self::Main => "install it (Debian's package containernetworking-plugins has bridge)",
        }
    }
}

/// Why a delegated plugin did not serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DelegateError {
    /// Its name is none.
    #[error("network configuration: {} {name:?} is no name of a program", .part.key())]
    Name {
        part: Part,
        /// The configured name.
        name: String,
    },
    /// It is nowhere in `CNI_PATH`.
    #[error("the {} {name} is not in CNI_PATH={path:?}; {}", .part.plugin(), .part.remedy())]
    NotFound {
        part: Part,
        name: String,
        /// Where was looked.
        path: Vec<PathBuf>,
    },
    /// It could not be run.
    #[error("cannot run {program:?}")]
    Run {
        program: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// It failed and said why.
    #[error("{name}: {message}")]
    Failed {
        name: String,
        code: u32,
        /// Its message, with details.
        message: String,
    },
    /// It printed what is no result.
    #[error("{name} printed no CNI result")]
    Answer {
        name: String,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

/// A delegated plugin.
#[derive(Debug)]
pub(crate) struct Delegate<'a> {
    name: &'a str,
    program: PathBuf,
    stdin: &'a [u8],
    /// Container and interface, where they are not those of our environment.
    attachment: Option<(&'a str, &'a str)>,
}

#[derive(Deserialize)]
struct ErrorObject {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

impl<'a> Delegate<'a> {
    /// Finds the plugin.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub(crate) fn find(
        part: Part,
        name: &'a str,
        env: &Env,
        stdin: &'a [u8],
    ) -> Result<Self, DelegateError> {
        if !is_identifier(name) {
            let name = name.into();
            return Err(DelegateError::Name { part, name });
        }
        let found = env.path.iter().map(|dir| dir.join(name));
        match found.into_iter().find(|path| path.is_file()) {
            Some(program) => Ok(Self {
                name,
                program,
                stdin,
                attachment: None,
            }),
            None => Err(DelegateError::NotFound {
                part,
                name: name.into(),
                path: env.path.clone(),
            }),
        }
    }

    /// The same for an interface of a container that our environment does not name, and whose
    /// namespace may be gone.
    #[must_use]
    pub(crate) const fn of(mut self, container_id: &'a str, ifname: &'a str) -> Self {
        self.attachment = Some((container_id, ifname));
        self
    }

    /// Runs ADD and reads the result.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub(crate) fn add(&self) -> Result<Outcome, DelegateError> {
        let answer = |source| DelegateError::Answer {
            name: self.name.into(),
            source,
        };
        let printed = self.run(Command::Add)?;
        let value = serde_json::from_slice(&printed).map_err(answer)?;
        Outcome::from_json(&value).map_err(answer)
    }

    /// Runs a verb and returns what it printed.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub(crate) fn run(&self, command: Command) -> Result<Vec<u8>, DelegateError> {
        let failed = |source| DelegateError::Run {
            program: self.program.clone(),
            source,
        };
        let mut program = Program::new(&self.program);
        program.env("CNI_COMMAND", command.as_str());
        if let Some((container_id, ifname)) = self.attachment {
            program.env("CNI_CONTAINERID", container_id);
            program.env("CNI_IFNAME", ifname).env_remove("CNI_NETNS");
        }
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that does not read its configuration says so by its exit status.
            let _ = stdin.write_all(self.stdin);
        }
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let object: ErrorObject =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| ErrorObject {
                code: 0,
                msg: format!("{} and no CNI error on stdout", output.status),
                details: String::new(),
            });
        let message = match object.details.as_str() {
            "" => object.msg,
            details => format!("{}: {details}", object.msg),
        };
        Err(DelegateError::Failed {
            name: self.name.into(),
            code: object.code,
            message,
        })
    }
}
