//! Serves the console, where `CARACAL_CONSOLE` says so. Without a token it is for this machine
//! alone: an address that others reach is not served until there is one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_console::{Access, Token};
use caracal_datastore::read_text_file;
use caracal_model::{Problem, ProblemCode};
use tokio::sync::watch;

use super::Answers;
use crate::console;
use crate::node::problems::ProblemReporter;

/// Time between two looks at the token's file.
const LOOK: Duration = Duration::from_secs(5);

/// Serves for ever. While the console may not be served, `problems` says why.
pub(crate) async fn serve_console(answers: Answers, problems: ProblemReporter) {
    let Some(address) = answers.config.console else {
        return;
    };
    let file = answers.config.console_token.clone();
    let (access, accesses) = watch::channel(Err("the node is starting".to_owned()));
    let served = async {
        let mut first = accesses.clone();
        if first.wait_for(Result::is_ok).await.is_ok() {
            console::serve(address, accesses, answers).await;
        }
    };
    tokio::select! {
        () = follow_access(access, address, file, problems) => {}
        () = served => {}
    }
}

/// Follows who may ask: a token may be replaced at any time. The file is read beside the tasks of
/// the node, which do not wait for its disk.
async fn follow_access(
    told: watch::Sender<Result<Access, String>>,
    address: SocketAddr,
    file: Option<PathBuf>,
    problems: ProblemReporter,
) {
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        ticks.tick().await;
        let file = file.clone();
        let read = tokio::task::spawn_blocking(move || access(address, file.as_deref()));
        let read = read.await.unwrap_or_else(|error| Err(error.to_string()));
        match &read {
            Ok(_) => problems.replace(Vec::new()),
            Err(reason) => problems.warn(vec![Problem {
                code: ProblemCode::NodeConsole,
                subject: format!("CARACAL_CONSOLE={address}"),
                reason: format!("the console is not served: {reason}"),
            }]),
        }
        drop(told.send_replace(read));
    }
}

fn access(address: SocketAddr, file: Option<&Path>) -> Result<Access, String> {
    let Some(file) = file else {
        return match address.ip().to_canonical().is_loopback() {
            true => Ok(Access::Loopback),
            false => Err(
                "others reach this address, and there is no token; set CARACAL_CONSOLE_TOKEN_FILE, or serve on 127.0.0.1"
                    .to_owned(),
            ),
        };
    };
    let about = |reason: &dyn std::fmt::Display| {
        format!("CARACAL_CONSOLE_TOKEN_FILE {}: {reason}", file.display())
    };
    let text = read_text_file(file).map_err(|error| about(&error))?;
    let token = Token::parse(&text).map_err(|reason| about(&reason))?;
    Ok(Access::Token(token))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_others_reach_is_served_with_a_token_alone() {
        let of = |address: &str, file| access(address.parse().unwrap(), file);
        for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(
                matches!(of(loopback, None), Ok(Access::Loopback)),
                "{loopback}"
            );
        }
        for open in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let refused = of(open, None);
            assert!(
                refused.is_err_and(|e| e.contains("CARACAL_CONSOLE_TOKEN_FILE")),
                "{open}"
            );
        }
        let folder = caracal_datastore::TestFolder::new("console");
        let file = folder.join("token");
        assert!(of("127.0.0.1:1", Some(&file)).is_err(), "there is no file");
        std::fs::write(&file, "short\n").unwrap();
        assert!(of("10.0.0.1:1", Some(&file)).is_err_and(|e| e.contains("5 octets")));
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        for address in ["10.0.0.1:1", "127.0.0.1:1"] {
            let access = of(address, Some(&file));
            assert!(matches!(access, Ok(Access::Token(_))), "{address}");
        }
    }
}
