//! Serves the console, where `CARACAL_CONSOLE` says so. Without a token or an authority it is for
//! this machine alone: an address that others reach is not served until there is one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use caracal_console::{Access, Token};
use caracal_datastore::read_text_file;
use caracal_model::{Problem, ProblemCode};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::Answers;
use crate::config::console::{AUTHORITIES, ConsoleFiles, TOKEN};
use crate::console;
use crate::http::Speaks;
use crate::node::problems::ProblemReporter;
use crate::tls::Material;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(5);

/// How the console is served now.
struct Terms {
    access: Access,
    tls: Option<Tls>,
}

/// What takes connections, and what it was made of: it knows its clients, who may go on where they
/// were.
#[derive(Clone)]
struct Tls {
    material: Material,
    acceptor: TlsAcceptor,
}

/// Serves for ever. While the console may not be served, `problems` says why.
pub(crate) async fn serve_console(answers: Answers, problems: ProblemReporter) {
    let Some(address) = answers.config.console else {
        return;
    };
    let files = answers.config.console_files.clone();
    let (access, accesses) = watch::channel(Err("the node is starting".to_owned()));
    let (acceptor, acceptors) = watch::channel(None);
    let speaks = match files.has_tls() {
        true => Speaks::Tls(acceptors),
        false => Speaks::Plain,
    };
    let served = async {
        let mut first = accesses.clone();
        if first.wait_for(Result::is_ok).await.is_ok() {
            console::serve(address, speaks, accesses, answers).await;
        }
    };
    tokio::select! {
        () = follow_files(access, acceptor, address, files, problems) => {}
        () = served => {}
    }
}

/// Follows who may ask: a token and certificates may be replaced at any time. Files are read beside
/// the tasks of the node, which do not wait for their disk.
async fn follow_files(
    access: watch::Sender<Result<Access, String>>,
    acceptor: watch::Sender<Option<TlsAcceptor>>,
    address: SocketAddr,
    files: ConsoleFiles,
    problems: ProblemReporter,
) {
    let mut ticks = tokio::time::interval(LOOK);
    let mut kept: Option<Tls> = None;
    loop {
        ticks.tick().await;
        let (files, before) = (files.clone(), kept.clone());
        let read = tokio::task::spawn_blocking(move || Terms::read(address, &files, before));
        let read = read.await.unwrap_or_else(|error| Err(error.to_string()));
        let told = match read {
            Ok(terms) => {
                problems.replace(Vec::new());
                kept = terms.tls;
                Ok(terms.access)
            }
            Err(reason) => {
                problems.warn(vec![Problem {
                    code: ProblemCode::NodeConsole,
                    subject: format!("CARACAL_CONSOLE={address}"),
                    reason: format!("the console is not served: {reason}"),
                }]);
                kept = None;
                Err(reason)
            }
        };
        // Nobody gets in by a new certificate and on old terms.
        let _old = access.send_replace(told);
        let _old = acceptor.send_replace(kept.as_ref().map(|tls| tls.acceptor.clone()));
    }
}

impl Terms {
    fn read(
        address: SocketAddr,
        files: &ConsoleFiles,
        before: Option<Tls>,
    ) -> Result<Self, String> {
        let tls = match files.has_tls() {
            true => Some(Tls::of(Material::read(files)?, before)?),
            false => None,
        };
        let token = files.token.as_deref().map(token).transpose()?;
        let knows_clients = tls.as_ref().is_some_and(|tls| tls.material.knows_clients());
        let access = match token {
            token if knows_clients => Access::Certificate(token),
            Some(token) => Access::Token(token),
            None if address.ip().to_canonical().is_loopback() => Access::Loopback,
            None => {
                return Err(format!(
                    "others reach this address, and there is neither a token nor an authority of clients; set {TOKEN} or {AUTHORITIES}, or serve on 127.0.0.1"
                ));
            }
        };
        Ok(Self { access, tls })
    }
}

impl Tls {
    /// A certificate expires although its file stays the same, so it is judged at each look.
    fn of(material: Material, before: Option<Self>) -> Result<Self, String> {
        let acceptor = material.acceptor()?;
        Ok(match before {
            Some(before) if before.material == material => before,
            _ => Self { material, acceptor },
        })
    }
}

fn token(file: &Path) -> Result<Token, String> {
    let about = |reason: &dyn std::fmt::Display| format!("{TOKEN} {}: {reason}", file.display());
    let text = read_text_file(file).map_err(|error| about(&error))?;
    Token::parse(&text).map_err(|reason| about(&reason))
}

#[cfg(test)]
mod tests;
