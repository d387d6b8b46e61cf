//! Credentials by a program that a kubeconfig names (`exec`): it prints an ExecCredential of
//! `client.authentication.k8s.io`. The only file of this crate that starts programs, and for
//! commands alone.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use caracal_model::Timestamp;
use serde_json::{Value, json};

/// Forms of an ExecCredential that are spoken.
const VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

/// The extension of a cluster that is passed on to the program.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A cluster that can be described to such a program (`Cluster` of the ExecCredential's API).
pub(super) trait DescribeCluster {
    /// Server, authorities and how the server is checked.
    ///
    /// # Errors
    /// A file of certificates cannot be read.
    fn describe(&self) -> Result<Value, String>;
}

/// What a kubeconfig says of the program.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Program {
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    version: String,
    terminal: Terminal,
    /// How to install it, for messages.
    hint: Option<String>,
    /// Where it is told of the cluster: the cluster's settings for it.
    cluster: Option<Value>,
}

/// Does the program get our standard input?
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
enum Terminal {
    Never,
    IfAvailable,
    Always,
}

impl Program {
    /// Reads `exec` of a user, with the cluster that it is for. A fault is told in a sentence that
    /// begins with its verb.
    pub(super) fn parse(exec: &Value, cluster: &Value, folder: &Path) -> Result<Self, String> {
        let text = |field: &str| exec[field].as_str().filter(|text| !text.is_empty());
        let command = text("command").ok_or("names no command in exec")?;
        let version = text("apiVersion").unwrap_or_default();
        if !VERSIONS.contains(&version) {
            return Err(format!(
                "has exec of apiVersion {version:?}; expected {}",
                VERSIONS.join(" or ")
            ));
        }
        let terminal = match text("interactiveMode") {
            Some("Never") => Terminal::Never,
            None | Some("IfAvailable") => Terminal::IfAvailable,
            Some("Always") => Terminal::Always,
            Some(other) => return Err(format!("has exec of interactiveMode {other:?}")),
        };
        let provides = exec["provideClusterInfo"] == true;
        Ok(Self {
            // As the paths of certificates; a mere name is looked for in PATH.
            command: match command.contains('/') {
                true => folder.join(command),
                false => command.into(),
            },
            arguments: arguments(exec)?,
            environment: environment(exec)?,
            version: version.to_owned(),
            terminal,
            hint: text("installHint").map(str::to_owned),
            cluster: provides.then(|| settings(cluster)),
        })
    }

    fn command(&self, cluster: &impl DescribeCluster) -> Result<Command, String> {
        let there = std::io::stdin().is_terminal();
        let interactive = match self.terminal {
            Terminal::Never => false,
            Terminal::IfAvailable => there,
            Terminal::Always if there => true,
            Terminal::Always => {
                return Err(self.said("needs a terminal, and standard input is none"));
            }
        };
        let mut command = Command::new(&self.command);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .env("KUBERNETES_EXEC_INFO", self.told(cluster, interactive)?)
            .stdin(match interactive {
                true => Stdio::inherit(),
                false => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        Ok(command)
    }

    /// What the program is told: `KUBERNETES_EXEC_INFO`.
    fn told(&self, cluster: &impl DescribeCluster, interactive: bool) -> Result<String, String> {
        let mut spec = json!({"interactive": interactive});
        if let Some(settings) = &self.cluster {
            let mut cluster = cluster.describe()?;
            if !settings.is_null() {
                cluster["config"] = settings.clone();
            }
            spec["cluster"] = cluster;
        }
        let told = json!({"apiVersion": self.version, "kind": "ExecCredential", "spec": spec});
        Ok(told.to_string())
    }

    fn credential(&self, output: &Output) -> Result<Credential, String> {
        if !output.status.success() {
            return Err(self.said(&format!("failed ({})", output.status)));
        }
        let credential = Credential::parse(&output.stdout, &self.version);
        credential.map_err(|reason| self.said(&reason))
    }

    fn said(&self, what: &str) -> String {
        format!(
            "{}, which gives the credentials, {what}",
            self.command.display()
        )
    }
}

fn arguments(exec: &Value) -> Result<Vec<String>, String> {
    let given = exec["args"].as_array().into_iter().flatten();
    let argument = |value: &Value| value.as_str().map(str::to_owned);
    let read: Option<Vec<_>> = given.map(argument).collect();
    read.ok_or_else(|| "has args in exec that are no text".to_owned())
}

fn environment(exec: &Value) -> Result<Vec<(String, String)>, String> {
    let given = exec["env"].as_array().into_iter().flatten();
    let variable = |entry: &Value| {
        let name = entry["name"].as_str().filter(|name| is_variable(name))?;
        Some((name.to_owned(), entry["value"].as_str()?.to_owned()))
    };
    let read: Option<Vec<_>> = given.map(variable).collect();
    read.ok_or_else(|| "has env in exec that is no name and value".to_owned())
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// The cluster's settings for such programs; null where it has none.
fn settings(cluster: &Value) -> Value {
    let mut extensions = cluster["extensions"].as_array().into_iter().flatten();
    let ours = extensions.find(|extension| extension["name"] == EXTENSION);
    ours.map_or(Value::Null, |ours| ours["extension"].clone())
}

/// What the program gave.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Credential {
    pub(super) token: Option<String>,
    /// A client certificate and its key, in PEM.
    pub(super) identity: Option<(Vec<u8>, Vec<u8>)>,
    ends: Option<Timestamp>,
}

impl Credential {
    fn parse(printed: &[u8], version: &str) -> Result<Self, String> {
        let read: Value = serde_json::from_slice(printed)
            .map_err(|error| format!("printed no ExecCredential in JSON: {error}"))?;
        if read["kind"] != "ExecCredential" || read["apiVersion"] != version {
            return Err(format!("printed no ExecCredential of {version}"));
        }
        let status = &read["status"];
        let text = |field: &str| status[field].as_str().filter(|text| !text.is_empty());
        let identity = match (text("clientCertificateData"), text("clientKeyData")) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return Err("gave half of a client certificate and its key".to_owned()),
        };
        let token = text("token").map(str::to_owned);
        if token.is_none() && identity.is_none() {
            return Err("gave neither a token nor a client certificate".to_owned());
        }
        let ends = match text("expirationTimestamp") {
            None => None,
            Some(time) => Some(
                Timestamp::parse_rfc3339(time)
                    .ok_or_else(|| format!("gave the expirationTimestamp {time:?}"))?,
            ),
        };
        Ok(Self {
            token,
            identity,
            ends,
        })
    }
}

/// The credential of a process, which the program is asked for when it is needed.
pub(super) struct ProgramCredential {
    program: Program,
    /// Held while the program runs: it is started once for all who wait.
    running: tokio::sync::Mutex<()>,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    /// How many times the program was asked.
    times: u64,
    credential: Option<Arc<Credential>>,
}

impl ProgramCredential {
    pub(super) fn new(program: Program) -> Self {
        Self {
            program,
            running: tokio::sync::Mutex::default(),
            given: Mutex::default(),
        }
    }

    /// What was given last.
    pub(super) fn get(&self) -> Option<Arc<Credential>> {
        self.given().credential.clone()
    }

    /// Waits until there is a credential, as long as its program takes: somebody may have to log
    /// in. It is started when there is none, when that has ended, and when the server refused the
    /// one with this number. Answers with the number of what is there then.
    pub(super) async fn ready(
        &self,
        cluster: &impl DescribeCluster,
        refused: Option<u64>,
    ) -> Result<u64, String> {
        let _alone = self.running.lock().await;
        if let Some(times) = self.usable().filter(|times| Some(*times) != refused) {
            return Ok(times);
        }
        let mut command = self.program.command(cluster)?;
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let output = output.map_err(|error| self.program.said(&format!("failed: {error}")))?;
        let output = output.map_err(|error| self.cannot_be_started(&error))?;
        let credential = self.program.credential(&output)?;
        let mut given = self.given();
        given.times += 1;
        given.credential = Some(Arc::new(credential));
        Ok(given.times)
    }

    /// The number of the credential that has not ended yet.
    fn usable(&self) -> Option<u64> {
        let now = Timestamp::from(SystemTime::now());
        let given = self.given();
        let ends = given.credential.as_ref()?.ends;
        ends.is_none_or(|ends| now < ends).then_some(given.times)
    }

    fn cannot_be_started(&self, error: &std::io::Error) -> String {
        let said = self.program.said(&format!("cannot be started: {error}"));
        match &self.program.hint {
            Some(hint) => format!("{said}; {hint}"),
            None => said,
        }
    }

    fn given(&self) -> std::sync::MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
