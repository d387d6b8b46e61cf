#![allow(clippy::unwrap_used)]

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::exposition::MetricKind;
use super::*;

/// Ready unless told otherwise.
#[derive(Clone)]
struct Subject(bool);

impl Observe for Subject {
    async fn live(&self) -> HealthReport {
        HealthReport::default().with("speaker", Ok("it answers".to_owned()))
    }

    async fn ready(&self) -> HealthReport {
        let datastore = match self.0 {
            true => Ok("fresh at revision 7".to_owned()),
            false => Err("stale: etcd\ndoes not answer".to_owned()),
        };
        HealthReport::default()
            .with("kernel", Ok("in step".to_owned()))
            .with("datastore", datastore)
    }

    async fn metrics(&self) -> Vec<MetricFamily> {
        vec![
            MetricFamily::new("caracal_cluster_hosts", MetricKind::Gauge, "Nodes.")
                .upstream("felix_cluster_num_hosts")
                .value(3.0),
        ]
    }
}

async fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn get(address: SocketAddr, path: &str, header: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
    ask(address, &request).await
}

/// A port that was free a moment ago.
async fn start(ready: bool) -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    tokio::spawn(serve(address, Subject(ready)));
    drop(free);
    while TcpStream::connect(address).await.is_err() {
        tokio::task::yield_now().await;
    }
    address
}

#[tokio::test]
async fn probes_say_why() {
    let good = start(true).await;
    for path in ["/livez", "/liveness", "/readyz", "/readiness"] {
        let text = get(good, path, "").await;
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{path}: {text}");
    }
    let bad = start(false).await;
    let text = get(bad, "/readyz", "").await;
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    let body = text.split("\r\n\r\n").nth(1).unwrap();
    assert_eq!(
        body,
        "[+] kernel: in step\n[-] datastore: stale: etcd does not answer\nnot ready\n"
    );
    assert!(get(bad, "/livez", "").await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn metrics_in_the_form_that_was_asked_for() {
    let address = start(true).await;
    let text = get(address, "/metrics", "").await;
    assert!(text.contains("text/plain; version=0.0.4"), "{text}");
    assert!(text.ends_with("\ncaracal_cluster_hosts 3\n"), "{text}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let text = get(address, "/metrics", accept).await;
    assert!(text.contains("application/openmetrics-text; version=1.0.0"));
    assert!(text.ends_with("caracal_cluster_hosts 3\n# EOF\n"), "{text}");
    let text = get(address, "/metrics/upstream", "").await;
    assert!(text.ends_with("\nfelix_cluster_num_hosts 3\n"), "{text}");
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    let address = start(true).await;
    assert!(
        get(address, "/nonsense", "")
            .await
            .starts_with("HTTP/1.1 404")
    );
    let post = "POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert!(ask(address, post).await.starts_with("HTTP/1.1 405"));
    assert!(
        ask(address, "nonsense\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 400")
    );
}

/// Clients that send nothing, half a head, or a request whose answer they never read; several times
/// as many as there are places. An honest one is answered at once, before a slow one's time has
/// passed.
#[tokio::test]
async fn slow_clients_keep_nobody_out() {
    let address = start(true).await;
    let mut slow = Vec::new();
    let sent: [&[u8]; 3] = [
        b"",
        b"GET /metrics HT",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    ];
    for octets in sent.iter().cycle().take(3 * slots::CONNECTIONS) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A connection that was closed for another is refused here.
        let _ = stream.write_all(octets).await;
        slow.push(stream);
    }
    let honest = async {
        for path in ["/metrics", "/livez", "/readyz"] {
            let text = get(address, path, "").await;
            assert!(text.starts_with("HTTP/1.1 200 OK"), "{path}: {text}");
        }
    };
    let answered = tokio::time::timeout(PATIENCE.head / 2, honest).await;
    answered.expect("answered while the slow ones still have time");
    // The newest of the slow ones was not closed for it.
    let mut octet = [0];
    let newest = slow
        .iter_mut()
        .rev()
        .find(|s| s.try_read(&mut octet).is_err());
    assert!(
        newest.is_some(),
        "some slow client still has its connection"
    );
}

#[tokio::test]
async fn a_slow_client_is_closed_in_time() {
    const SHORT: Duration = Duration::from_millis(50);
    for (head, life) in [(SHORT, PATIENCE.life), (PATIENCE.head, SHORT)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(take(
            listener,
            Speaks::Plain,
            handler(Subject(true)),
            Patience { head, life },
        ));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metr").await.unwrap();
        let mut text = Vec::new();
        // A connection that is reset is closed, too.
        let closed = tokio::time::timeout(PATIENCE.head / 2, stream.read_to_end(&mut text)).await;
        assert!(closed.is_ok(), "head {head:?}, life {life:?}");
    }
}
