#![allow(clippy::unwrap_used)]
//! How a watch knows that the server is there.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::KubernetesConfig;
use super::*;

/// A server on its own task; `answer` has status and body for the head of a request.
async fn serve(answer: impl Fn(&str) -> (&'static str, &'static str) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let (status, body) = answer(&String::from_utf8_lossy(&head));
            let length = body.len();
            let text = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            stream.write_all(text.as_bytes()).await.unwrap();
        }
    });
    endpoint
}

/// A server that counts its requests and has no object.
async fn counting() -> (String, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let endpoint = serve(move |_head| {
        count.fetch_add(1, Ordering::Relaxed);
        ("404 Not Found", "")
    });
    (endpoint.await, asked)
}

fn probe(endpoint: String, pinged: &PingedStreams) -> Probe {
    let config = KubernetesConfig {
        endpoint: Some(endpoint),
        ..KubernetesConfig::default()
    };
    Probe::new(Arc::new(Api::new(config)), "/object", pinged.clone())
}

#[tokio::test]
async fn the_server_is_asked_where_no_stream_is_pinged() {
    let (endpoint, asked) = counting().await;
    let pinged = PingedStreams::default();
    let mut probe = probe(endpoint, &pinged);
    let mut asks = async |wanted: usize| {
        let event = probe.next().await.unwrap();
        assert_eq!(event, WatchEvent::Alive);
        assert_eq!(asked.load(Ordering::Relaxed), wanted);
    };
    asks(1).await;
    // One of two is enough.
    let streams = (pinged.add(), pinged.add());
    asks(1).await;
    drop(streams.0);
    asks(1).await;
    drop(streams.1);
    asks(2).await;
}

#[tokio::test]
async fn a_server_that_answers_nothing_but_pings_is_found_all_the_same() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let pinged = PingedStreams::default();
    let _stream = pinged.add();
    let mut probe = probe(endpoint, &pinged);
    assert!(probe.next().await.is_ok());
    probe.asked = Instant::now().checked_sub(ASKED).unwrap();
    assert!(probe.next().await.is_err());
    // It is asked again after as long.
    assert!(probe.next().await.is_ok());
}

/// A server whose objects are at revision 77, and whose watches end at once.
async fn at_77() -> String {
    let list = r#"{"metadata":{"resourceVersion":"77"},"items":[]}"#;
    serve(move |head| match head.contains("watch=true") {
        true => ("200 OK", ""),
        false => ("200 OK", list),
    })
    .await
}

fn one(api: &Arc<Api>, group: ApiGroup, collection: Collection) -> One {
    One {
        api: Arc::clone(api),
        group,
        collection,
        revision: 5,
        lines: None,
        pinged: PingedStreams::default(),
        opened: Instant::now(),
        said: HashMap::new(),
        absent: false,
    }
}

/// Pods come and go by the thousand: of those that are gone nothing is kept.
#[tokio::test]
async fn of_a_pod_that_is_gone_nothing_is_kept() {
    let api = Arc::new(Api::new(KubernetesConfig::default()));
    let mut one = one(&api, ApiGroup::V1, Collection::Pods);
    let mut pod = serde_json::json!({
        "metadata": {"name": "web-0", "namespace": "default"},
        "spec": {"nodeName": "node-a"}, "status": {"podIP": "10.244.3.65"}});
    let mut told = |pod: &Value, deleted| one.changes(pod, 7, deleted).len();
    assert_eq!(told(&pod, false), 1);
    assert_eq!(told(&pod, false), 0, "nothing new");
    pod["status"]["phase"] = "Succeeded".into();
    assert_eq!(told(&pod, false), 1, "its end");
    assert_eq!(told(&pod, true), 0, "which was told");
    assert!(one.said.is_empty());
}

/// One kind asks for all: in a cluster at rest nobody else tells how far the datastore is.
#[tokio::test]
async fn a_watch_that_is_opened_tells_the_revision_of_what_is_stored() {
    let endpoint = Some(at_77().await);
    let config = KubernetesConfig {
        endpoint,
        ..KubernetesConfig::default()
    };
    let api = Arc::new(Api::new(config));
    let group = ApiGroup::V1;
    for (collection, told) in [(ANCHOR, Some(77)), (Collection::Nodes, None)] {
        let mut one = one(&api, group, collection);
        let step = one.step().await;
        let told = told.map(WatchEvent::Progress);
        assert!(matches!(&step, Ok(event) if *event == told), "{step:?}");
    }
}
