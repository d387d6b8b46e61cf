#![allow(clippy::unwrap_used)]
//! Connections that end while they are used.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

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
