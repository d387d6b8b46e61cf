#![allow(clippy::unwrap_used)]
//! Connections that end while they are used.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::super::access::{Identity, Pem};
use super::super::{KubernetesConfig, KubernetesStore};
use super::*;
use crate::Datastore;
use crate::testing::TestFolder;

/// Reads the head of a request; its first word.
async fn method(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    head.split(' ').next().unwrap().to_owned()
}

/// A server that closes its first connection when it has read a request, and answers on each
/// later one; the methods that it was asked by.
async fn closing_once(listener: TcpListener, wanted: usize) -> Vec<String> {
    let mut asked = Vec::new();
    let (mut first, _) = listener.accept().await.unwrap();
    asked.push(method(&mut first).await);
    drop(first);
    while asked.len() < wanted {
        let (mut next, _) = listener.accept().await.unwrap();
        asked.push(method(&mut next).await);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        next.write_all(answer).await.unwrap();
    }
    asked
}

#[tokio::test]
async fn a_question_is_asked_again_when_its_connection_ends_and_an_order_is_not() {
    for (verb, wanted, answered) in [(Method::GET, 2, true), (Method::POST, 1, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let connection =
            ApiConnection::new(Access::to(&server).unwrap(), Duration::from_secs(5)).unwrap();
        let request = Request::builder().method(&verb).uri(connection.url("/x"));
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let serving = tokio::spawn(closing_once(listener, wanted));
        let answer = connection.send(request).await;
        assert_eq!(answer.is_ok(), answered, "{verb}: {answer:?}");
        assert_eq!(serving.await.unwrap(), vec![verb.to_string(); wanted]);
    }
}

/// Pings take the place of the requests that showed before that a view is fresh.
#[test]
fn a_dead_connection_is_found_before_its_view_is_lagging() {
    let config = KubernetesConfig::default();
    let patience = config.request_timeout;
    let options = Datastore::Kubernetes(KubernetesStore::new(config)).watch_options();
    assert!(PING + PING_ANSWER + patience <= options.lagging_after);
}

/// Two authorities, and a server's certificate of each with its key.
const AUTHORITIES: [&str; 2] = [
    include_str!("authorities/first.pem"),
    include_str!("authorities/second.pem"),
];
const SERVERS: [[&str; 2]; 2] = [
    [
        include_str!("authorities/first-server.pem"),
        include_str!("authorities/first-server.key"),
    ],
    [
        include_str!("authorities/second-server.pem"),
        include_str!("authorities/second-server.key"),
    ],
];

fn server_config([certificate, key]: [&str; 2]) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    Arc::new(config)
}

/// A server that answers one request on each connection; its address, and which of the
/// certificates it shows.
fn tls_server() -> (String, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let shown = Arc::new(AtomicUsize::new(0));
    let shows = Arc::clone(&shown);
    let configs = SERVERS.map(server_config);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let config = Arc::clone(&configs[shows.load(Ordering::Relaxed)]);
            let connection = ServerConnection::new(config).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut head = [0; 4096];
            // A client that does not trust us asks nothing.
            if stream.read(&mut head).is_ok_and(|read| read > 0) {
                let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).unwrap();
                stream.conn.send_close_notify();
                stream.flush().unwrap();
            }
        }
    });
    (address, shown)
}

async fn asked(connection: &ApiConnection) -> Result<(), String> {
    let request = Request::builder().uri(connection.url("/x"));
    let request = request.body(Full::new(Bytes::new())).unwrap();
    connection.send(request).await.map(drop)
}

#[tokio::test]
async fn another_authority_in_the_file_counts_from_the_next_request_on() {
    let (address, shown) = tls_server();
    let folder = TestFolder::new("authorities");
    let file = folder.join("ca.crt");
    let writes = |text: &str| std::fs::write(&file, text).unwrap();
    writes(AUTHORITIES[0]);
    let mut access = Access::to(&address).unwrap();
    access.authorities = Some(Pem::File(file.clone()));
    access.server_name = Some("server".to_owned());
    let connection = ApiConnection::new(access, Duration::from_secs(5)).unwrap();
    asked(&connection).await.unwrap();
    shown.store(1, Ordering::Relaxed);
    let refused = asked(&connection).await.unwrap_err();
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    writes(AUTHORITIES[1]);
    asked(&connection).await.unwrap();
    // What cannot be used is not: half a file, none.
    writes("-----BEGIN CERTIFICATE-----");
    asked(&connection).await.unwrap();
    assert!(connection.way().refused.is_some());
    std::fs::remove_file(&file).unwrap();
    asked(&connection).await.unwrap();
    writes(AUTHORITIES[0]);
    asked(&connection).await.unwrap_err();
}

#[test]
fn a_client_certificate_is_renewed_with_its_key() {
    let folder = TestFolder::new("client-certificate");
    let file = |name: &str| folder.join(name);
    let writes = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let (certificate, key) = (file("client.crt"), file("client.key"));
    writes(&certificate, SERVERS[0][0]);
    writes(&key, SERVERS[0][1]);
    let mut access = Access::to("https://127.0.0.1:1").unwrap();
    access.authorities = Some(Pem::Text(AUTHORITIES[0].into()));
    access.identity = Some(Identity {
        certificate: Pem::File(certificate.clone()),
        key: Pem::File(key.clone()),
    });
    let connection = ApiConnection::new(access, Duration::from_secs(5)).unwrap();
    let is_newest = || {
        let _pool = connection.newest_pool();
        let now = Material::read(&connection.access, None).unwrap();
        connection.way().material == now
    };
    assert!(is_newest());
    // In between the key is another one's.
    writes(&certificate, SERVERS[1][0]);
    assert!(!is_newest());
    writes(&key, SERVERS[1][1]);
    assert!(is_newest());
    assert!(connection.way().refused.is_none());
}
