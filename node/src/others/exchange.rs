//! One question to one console: a connection, a request, an answer. Its time and its size are
//! bounded.

use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use caracal_console::Token;
use caracal_datastore::read_text_file;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{NoAnswer, Place};
use crate::config::console::{AUTHORITIES, ConsoleFiles, TOKEN};
use crate::console::NO_SUCH_PATH;
use crate::console::tls::{Material, sentence};
use crate::http::stream::Stream;

/// Until the connection is there.
const CONNECT: Duration = Duration::from_secs(3);
/// Until the answer is there. The console asked gives itself less.
const ANSWER: Duration = Duration::from_secs(10);
/// Octets of an answer: a page of routes with many paths each.
const LARGEST: usize = 8 << 20;
/// The version of the API.
const BASE: &str = "/api/v1/";

/// Puts a question to a node: the part of its path behind the version. Its files are read each time,
/// as they are renewed in place.
pub(crate) async fn ask(
    place: &Place,
    question: &str,
    files: &ConsoleFiles,
) -> Result<Bytes, NoAnswer> {
    let answer = tokio::time::timeout(ANSWER, exchange(place, question, files)).await;
    let late = |_| NoAnswer::Late {
        node: place.node.clone(),
        address: place.address,
        seconds: ANSWER.as_secs(),
    };
    answer.map_err(late)?
}

async fn exchange(place: &Place, question: &str, files: &ConsoleFiles) -> Result<Bytes, NoAnswer> {
    let token = token(place, files)?;
    let stream = connect(place, files).await?;
    let mut request = hyper::Request::get(format!("{BASE}{question}"))
        .header(HOST, place.address.to_string())
        .header(USER_AGENT, concat!("caracal/", env!("CARGO_PKG_VERSION")));
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new());
    let request = request.map_err(|error| place.ours(error.to_string()))?;

    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| place.lost(&error))?;
    let mut connection = pin!(connection);
    let mut is_open = true;
    let mut cause = None;
    let mut answered = pin!(async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await?;
        Ok::<_, Box<dyn Error + Send + Sync>>((status, body.to_bytes()))
    });
    let answered = loop {
        tokio::select! {
            biased;
            ended = &mut connection, if is_open => {
                is_open = false;
                cause = ended.err();
            }
            answered = &mut answered => break answered,
        }
    };
    match answered {
        Ok((StatusCode::OK, body)) => Ok(body),
        Ok((status, body)) => Err(place.no(status, &body)),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(place.ours(format!("its answer has more than {LARGEST} octets")))
        }
        // What happened to the connection says more than that it has ended.
        Err(error) => Err(match &cause {
            Some(cause) => place.lost(cause),
            None => place.lost(&*error),
        }),
    }
}

/// The token that goes with a question, if there is one.
fn token(place: &Place, files: &ConsoleFiles) -> Result<Option<String>, NoAnswer> {
    let Some(file) = &files.token else {
        return Ok(None);
    };
    // Somebody who can write to the datastore would otherwise be sent it in the clear.
    if !place.has_tls && files.has_tls() {
        return Err(place.ours(format!(
            "its console speaks plain HTTP, and ours TLS: the token is not sent in the clear; give it a certificate, or unset {AUTHORITIES} here"
        )));
    }
    let wrong =
        |error: &dyn std::fmt::Display| place.ours(format!("{TOKEN} {}: {error}", file.display()));
    let text = read_text_file(file).map_err(|error| wrong(&error))?;
    Token::parse(&text).map_err(|reason| wrong(&reason))?;
    Ok(Some(text.trim().to_owned()))
}

async fn connect(place: &Place, files: &ConsoleFiles) -> Result<Stream, NoAnswer> {
    let connector = match place.has_tls {
        false => None,
        true => {
            let material = Material::read(files).map_err(|reason| place.ours(reason))?;
            let connector = material.connector(&place.node);
            Some(connector.map_err(|reason| place.ours(reason))?)
        }
    };
    let connected = async {
        let stream = TcpStream::connect(place.address).await?;
        Ok::<_, std::io::Error>(match connector {
            None => Stream::Plain(stream),
            Some(connector) => {
                let name = ServerName::IpAddress(place.address.ip().into());
                Stream::Tls(Box::new(connector.connect(name, stream).await?.into()))
            }
        })
    };
    match tokio::time::timeout(CONNECT, connected).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(place.lost(&error)),
        Err(_) => Err(NoAnswer::Late {
            node: place.node.clone(),
            address: place.address,
            seconds: CONNECT.as_secs(),
        }),
    }
}

impl Place {
    fn parts(&self) -> (String, SocketAddr) {
        (self.node.clone(), self.address)
    }

    fn ours(&self, reason: String) -> NoAnswer {
        let node = self.node.clone();
        NoAnswer::Ours { node, reason }
    }

    /// What an answer without the value means.
    fn no(&self, status: StatusCode, body: &[u8]) -> NoAnswer {
        let (node, address) = self.parts();
        let value: Option<Value> = serde_json::from_slice(body).ok();
        let reason = value.and_then(|value| value["error"].as_str().map(str::to_owned));
        let reason = reason.unwrap_or_else(|| format!("it answered {status}"));
        match status {
            StatusCode::NOT_FOUND if reason == NO_SUCH_PATH => NoAnswer::Older {
                node,
                version: self.version.clone(),
            },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => {
                NoAnswer::Refused {
                    node,
                    address,
                    reason,
                }
            }
            status => NoAnswer::Said {
                node,
                status,
                reason,
            },
        }
    }

    /// What the end of a connection means.
    fn lost(&self, error: &(dyn Error + 'static)) -> NoAnswer {
        let (node, address) = self.parts();
        match of_tls(error) {
            Some(rustls::Error::AlertReceived(alert)) => NoAnswer::Refused {
                node,
                address,
                reason: format!(
                    "it does not take our certificate ({alert:?}); is the authority that signed it in {AUTHORITIES} there?"
                ),
            },
            Some(error @ rustls::Error::InvalidCertificate(_)) => NoAnswer::Untrusted {
                node,
                address,
                reason: format!("of its certificate: {}", sentence(error)),
            },
            Some(error) => NoAnswer::Unreachable {
                node,
                address,
                reason: format!("TLS: {error}"),
            },
            None => NoAnswer::Unreachable {
                node,
                address,
                reason: innermost(error),
            },
        }
    }
}

/// The error of TLS that an error has inside.
fn of_tls<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an error of I/O is that of what it holds.
        let held = error.downcast_ref::<std::io::Error>();
        let held = held.and_then(std::io::Error::get_ref);
        if let Some(found) = held.and_then(|held| held.downcast_ref()) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}
