//! One question to one console: a connection, a request, an answer. Its time and its size are
//! bounded.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use caracal_console::{NO_SUCH_PATH, Token};
use caracal_datastore::read_text_file;
use hyper::StatusCode;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{NoAnswer, Place};
use crate::config::console::{AUTHORITIES, ConsoleFiles, TOKEN};
use crate::http::stream::Stream;
use crate::tls::{Material, sentence};

/// Until the connection is there.
const CONNECT: Duration = Duration::from_secs(3);
/// Until the answer is there. The console asked gives itself less.
const ANSWER: Duration = Duration::from_secs(10);
/// Octets of an answer: a page of routes with many paths each.
const LARGEST: usize = 8 << 20;
/// Octets of its head.
const HEAD: usize = 16 * 1024;
/// The version of the API.
const BASE: &str = "/api/v1/";

/// Puts a question to a node: the part of its path behind the version. Our files are read each
/// time, as they are renewed in place.
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
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    // HTTP/1.0: the answer is of a known size, or ends with the connection.
    let request = format!(
        "GET {BASE}{question} HTTP/1.0\r\nHost: {}\r\nUser-Agent: caracal/{}\r\n{}\r\n",
        place.address,
        env!("CARGO_PKG_VERSION"),
        authorization.unwrap_or_default()
    );
    let mut stream = connect(place, files).await?;
    // What became of the connection is said better by what is read from it.
    let _ended = stream.write_all(request.as_bytes()).await;
    let answer = read(&mut stream).await;
    let (status, body) = match answer {
        Ok(answer) => answer,
        Err(ReadError::Lost(error)) => return Err(place.lost(&error)),
        Err(ReadError::TooLarge) => {
            return Err(place.ours(format!("its answer has more than {LARGEST} octets")));
        }
        Err(ReadError::NoHttp) => {
            return Err(place.unreachable("what answers there does not speak HTTP".to_owned()));
        }
    };
    match status {
        StatusCode::OK => Ok(body),
        status => Err(place.no(status, &body)),
    }
}

/// Why an answer is not there.
enum ReadError {
    Lost(std::io::Error),
    TooLarge,
    NoHttp,
}

/// Reads an answer to its end.
async fn read(stream: &mut Stream) -> Result<(StatusCode, Bytes), ReadError> {
    let mut octets = BytesMut::new();
    let mut head = None;
    loop {
        if head.is_none() {
            head = Head::take(&mut octets)?;
        }
        if let Some(Head {
            status,
            size: Some(size),
        }) = &head
            && octets.len() >= *size
        {
            return Ok((*status, octets.split_to(*size).freeze()));
        }
        if octets.len() > LARGEST {
            return Err(ReadError::TooLarge);
        }
        let lost = |error| Err(ReadError::Lost(error));
        match stream.read_buf(&mut octets).await {
            Ok(0) => {
                return match head {
                    Some(Head { status, size: None }) => Ok((status, octets.freeze())),
                    _ => lost(std::io::ErrorKind::UnexpectedEof.into()),
                };
            }
            Ok(_) => {}
            Err(error) => return lost(error),
        }
    }
}

/// What of an answer's head counts.
struct Head {
    status: StatusCode,
    /// Octets of the body; `None` = until the connection ends.
    size: Option<usize>,
}

impl Head {
    /// Takes the head from the front, when all of it is there.
    fn take(octets: &mut BytesMut) -> Result<Option<Self>, ReadError> {
        let Some(end) = octets.windows(4).position(|four| four == b"\r\n\r\n") else {
            return match octets.len() > HEAD {
                true => Err(ReadError::NoHttp),
                false => Ok(None),
            };
        };
        let text = octets.split_to(end + 4);
        let text = str::from_utf8(&text).map_err(|_| ReadError::NoHttp)?;
        let mut lines = text.lines();
        let first = lines.next().filter(|line| line.starts_with("HTTP/1."));
        let status = first.and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let sizes = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_size = name.eq_ignore_ascii_case("content-length");
            is_size.then(|| value.trim().parse().map_err(|_| ReadError::NoHttp))
        });
        Ok(Some(Self {
            status: status.ok_or(ReadError::NoHttp)?,
            size: { sizes }.next().transpose()?,
        }))
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

    fn unreachable(&self, reason: String) -> NoAnswer {
        let (node, address) = self.parts();
        NoAnswer::Unreachable {
            node,
            address,
            reason,
        }
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
            Some(error) => self.unreachable(format!("TLS: {error}")),
            None => self.unreachable(innermost(error)),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::net::TcpListener;

    use super::*;

    /// What is made of an answer that comes in two parts.
    async fn made_of(first: &'static [u8], rest: Vec<u8>) -> Result<Bytes, NoAnswer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = Place {
            node: "n2".to_owned(),
            has_tls: false,
            address: listener.local_addr().unwrap(),
            version: "0.0.9".to_owned(),
        };
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(first).await.unwrap();
            stream.flush().await.unwrap();
            // Who has seen enough hangs up.
            let _gone = stream.write_all(&rest).await;
            request
        });
        let answer = ask(&place, "status", &ConsoleFiles::default()).await;
        let request = String::from_utf8(served.await.unwrap()).unwrap();
        assert!(
            request.starts_with("GET /api/v1/status HTTP/1.0\r\n"),
            "{request}"
        );
        answer
    }

    #[tokio::test]
    async fn an_answer_is_read_to_its_end_and_no_further() {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n";
        let answer = made_of(ok, b"\r\nabcdefgh".to_vec()).await.unwrap();
        assert_eq!(&answer[..], b"abcde");
        let until_the_end = made_of(b"HTTP/1.0 200 OK\r\n\r\nab", b"cd".to_vec()).await;
        assert_eq!(&until_the_end.unwrap()[..], b"abcd");
        for (first, rest, part) in [
            (&ok[..], b"\r\nabc".to_vec(), "does not answer at"),
            (b"SSH-2.0-x\r\n\r\n", Vec::new(), "does not speak HTTP"),
            (
                b"HTTP/1.1 200 OK\r\n",
                vec![b'x'; HEAD + 1],
                "does not speak HTTP",
            ),
            (
                b"HTTP/1.0 200 OK\r\n\r\n",
                vec![b'x'; LARGEST + 1],
                "more than 8388608 octets",
            ),
            (
                b"HTTP/1.0 503 No\r\n\r\n{\"error\":",
                b"\"busy\"}".to_vec(),
                "n2 says: busy",
            ),
            (b"HTTP/1.0 500 No\r\n\r\n", Vec::new(), "it answered 500"),
        ] {
            let error = made_of(first, rest).await.unwrap_err();
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }

    #[tokio::test]
    async fn nobody_there_is_said() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = Place {
            node: "n2".to_owned(),
            has_tls: false,
            address: free.local_addr().unwrap(),
            version: String::new(),
        };
        drop(free);
        let error = ask(&place, "status", &ConsoleFiles::default())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("Connection refused"), "{error}");
        assert_eq!(error.status(), 502);
    }
}
