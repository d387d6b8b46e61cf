#![allow(clippy::unwrap_used)]

mod bounds;
mod tls;

use std::sync::atomic::{AtomicUsize, Ordering};

use caracal_console::Token;
use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::admin::{Answered, Request as Order};
use crate::exit::{ExitError, NOT_FOUND, REFUSED};
use crate::others::NoAnswer;

const TOKEN: &str = "0123456789abcdef0123";

/// Counts the questions, and is down every second time that its status is asked for.
#[derive(Clone, Default)]
struct Subject(Arc<AtomicUsize>);

impl AnswerRequests for Subject {
    async fn answer(&self, request: Order) -> Result<Answered, String> {
        let asked = self.0.fetch_add(1, Ordering::Relaxed);
        let state = if asked.is_multiple_of(2) {
            "Established"
        } else {
            "Active"
        };
        Ok(Answered::Value(match request {
            Order::Status => {
                json!({"node": "n1", "peers": [{"name": "<img src=x>", "state": state}]})
            }
            Order::Peer { .. } => serde_json::Value::Null,
            Order::Nodes => json!({"nodes": [], "asked": asked}),
            Order::PlanMode(question) if question.pool == "p" => json!({"pool": "p"}),
            Order::PlanMode(question) => {
                let reason = format!("there is no pool {}", question.pool);
                return Ok(Answered::Refused(ExitError::new(NOT_FOUND, reason)));
            }
            Order::PlanTopology(_) => {
                let refused = ExitError::new(REFUSED, "the cluster is too large");
                return Ok(Answered::Refused(refused));
            }
            other => return Err(format!("{other:?}")),
        }))
    }
}

impl AskOthers for Subject {
    fn own_name(&self) -> &'static str {
        "n1"
    }

    async fn ask_other(&self, node: &str, path: &str) -> Result<Bytes, NoAnswer> {
        match node {
            "n2" => Ok(json!({"node": node, "asked": path}).to_string().into()),
            _ => Err(NoAnswer::NoSuchNode(node.to_owned())),
        }
    }
}

/// A console on a port that was free a moment ago.
async fn start(token: Option<&'static str>) -> SocketAddr {
    serve_at(token, Subject::default()).await
}

async fn serve_at(
    token: Option<&'static str>,
    answers: impl AnswerRequests + AskOthers,
) -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    let access = match token {
        Some(text) => Token::parse(text).map(Access::Token),
        None => Ok(Access::Loopback),
    };
    let (_, accesses) = watch::channel(access);
    tokio::spawn(serve(address, Speaks::Plain, accesses, answers));
    drop(free);
    while TcpStream::connect(address).await.is_err() {
        tokio::task::yield_now().await;
    }
    address
}

async fn open(address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut text = String::new();
    let mut stream = open(address, path, headers).await;
    stream.read_to_string(&mut text).await.unwrap();
    text
}

const LOCAL: &str = "Host: localhost\r\n";

#[tokio::test]
async fn every_answer_is_guarded() {
    let address = start(None).await;
    for (path, host, status) in [
        ("/", LOCAL, "200"),
        ("/console.js", LOCAL, "200"),
        ("/api/v1/openapi.json", LOCAL, "200"),
        ("/api/v1/status", LOCAL, "200"),
        ("/api/v1/sessions/nobody", LOCAL, "404"),
        ("/api/v1/status?x=1", LOCAL, "400"),
        ("/api/v1/audit", LOCAL, "503"),
        ("/api/v1/nodes/n1/status", LOCAL, "200"),
        ("/api/v1/nodes/n2/status", LOCAL, "200"),
        ("/api/v1/nodes/n3/status", LOCAL, "404"),
        ("/api/v1/nodes/n2/nodes/n3/status", LOCAL, "404"),
        ("/nothing", LOCAL, "404"),
        ("/api/v1/plan/mode", LOCAL, "400"),
        ("/api/v1/plan/mode?pool=p&mode=GRE", LOCAL, "400"),
        ("/api/v1/plan/mode?pool=nobody&mode=IPIP", LOCAL, "404"),
        ("/api/v1/plan/mode?pool=p&mode=IPIP", LOCAL, "200"),
        ("/api/v1/plan/topology?topology=star", LOCAL, "400"),
        ("/api/v1/plan/topology?topology=mesh", LOCAL, "409"),
        ("/changes.js", LOCAL, "200"),
        ("/", "Host: evil.example\r\n", "421"),
        ("/api/v1/status", "Host: evil.example\r\n", "421"),
    ] {
        let text = get(address, path, host).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {head}"
        );
        for part in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "x-content-type-options: nosniff",
            "x-frame-options: DENY",
        ] {
            assert!(head.contains(part), "{path}: {head}");
        }
        assert!(!head.contains("access-control"), "{path}: {head}");
        if status != "200" {
            let value: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(value["error"].is_string(), "{path}: {body}");
        }
    }
}

#[tokio::test]
async fn a_token_is_asked_for_where_there_is_one() {
    let address = start(Some(TOKEN)).await;
    let with = |token: &str| format!("Host: node1\r\nAuthorization: Bearer {token}\r\n");
    let good = get(address, "/api/v1/status", &with(TOKEN)).await;
    assert!(good.starts_with("HTTP/1.1 200 "), "{good}");
    for headers in [
        String::from("Host: node1\r\n"),
        with("0123456789abcdef0124"),
    ] {
        for path in ["/api/v1/status", "/api/v1/events", "/api/v1/openapi.json"] {
            let text = get(address, path, &headers).await;
            assert!(text.starts_with("HTTP/1.1 401 "), "{path}: {text}");
            assert!(text.contains("www-authenticate: Bearer"), "{text}");
        }
    }
    // The page says nothing of the cluster, and asks for the token.
    let page = get(address, "/", "Host: node1\r\n").await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
}

#[tokio::test]
async fn questions_have_a_rate_and_the_cluster_is_asked_for_all() {
    let address = start(None).await;
    let first = get(address, "/api/v1/nodes", LOCAL).await;
    let second = get(address, "/api/v1/nodes", LOCAL).await;
    let body = |text: &str| text.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(body(&first), body(&second), "asked twice within a second");
    let mut refused = 0;
    for _ in 0..200 {
        let text = get(address, "/api/v1/openapi.json", LOCAL).await;
        if text.starts_with("HTTP/1.1 429 ") {
            assert!(text.contains("retry-after: 1"), "{text}");
            refused += 1;
        }
    }
    assert!(refused > 0, "200 questions at once were all answered");
}

#[tokio::test]
async fn events_come_as_they_happen() {
    let address = start(None).await;
    let mut stream = open(address, "/api/v1/events", LOCAL).await;
    let mut text = String::new();
    let seen = async {
        let mut octets = [0; 4096];
        while !(text.contains("event: hello") && text.contains("event: session")) {
            let read = stream.read(&mut octets).await.unwrap();
            assert!(read > 0, "the stream ended: {text}");
            text.push_str(std::str::from_utf8(&octets[..read]).unwrap());
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(10), seen).await;
    assert!(seen.is_ok(), "{text}");
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    assert!(text.contains("\"peer\":\"<img src=x>\""), "{text}");
}

/// It gets a part that fills every buffer on the way, and does not read.
#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_and_others_are_not() {
    let events = Arc::new(EventHub::default());
    let (_, accesses) = watch::channel(Ok(Access::Loopback));
    let handler = handler(accesses, Subject::default(), Arc::clone(&events));
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    tokio::spawn(http::serve_with(address, "a test", Speaks::Plain, handler));
    while TcpStream::connect(address).await.is_err() {
        tokio::task::yield_now().await;
    }
    let _idle = open(address, "/api/v1/events", LOCAL).await;
    let mut reads = open(address, "/api/v1/events", LOCAL).await;
    let part = Bytes::from(vec![b' '; 1 << 20]);
    let reader = tokio::spawn(async move {
        let mut octets = vec![0; 1 << 20];
        while reads.read(&mut octets).await.is_ok_and(|read| read > 0) {}
    });
    let dropped = async {
        while events.count() < 2 {
            tokio::task::yield_now().await;
        }
        while events.count() == 2 {
            events.tell(&part);
            // Both have time to read.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let dropped = tokio::time::timeout(Duration::from_secs(20), dropped).await;
    assert!(dropped.is_ok(), "who does not read is kept");
    assert_eq!(events.count(), 1);
    assert!(!reader.is_finished(), "who reads was dropped");
}
