//! Running another IPAM plugin (`host-local`, `static`, `dhcp`) for our attachment: the
//! specification's own delegation. The plugin gets our environment and the configuration exactly as
//! it came in. This is the only place of the crate that starts a program.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command as Program, Stdio};

use serde::Deserialize;

use crate::spec::env::is_identifier;
use crate::spec::{Command, Env, Outcome};

/// Why a delegated plugin did not serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DelegateError {
    /// Its name is none.
    #[error("network configuration: ipam.type {name:?} is no name of a program")]
    Name {
        /// The configured name.
        name: String,
    },
    /// It is nowhere in `CNI_PATH`.
    #[error(
        "the IPAM plugin {name} is not in CNI_PATH={path:?}; install it or use \"caracal-ipam\""
    )]
    NotFound {
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

/// A delegated IPAM plugin.
#[derive(Debug)]
pub(crate) struct Delegate<'a> {
    name: &'a str,
    program: PathBuf,
    stdin: &'a [u8],
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
    pub(crate) fn find(name: &'a str, env: &Env, stdin: &'a [u8]) -> Result<Self, DelegateError> {
        if !is_identifier(name) {
            return Err(DelegateError::Name { name: name.into() });
        }
        let found = env.path.iter().map(|dir| dir.join(name));
        match found.into_iter().find(|path| path.is_file()) {
            Some(program) => Ok(Self {
                name,
                program,
                stdin,
            }),
            None => Err(DelegateError::NotFound {
                name: name.into(),
                path: env.path.clone(),
            }),
        }
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
        let mut child = Program::new(&self.program)
            .env("CNI_COMMAND", command.as_str())
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
