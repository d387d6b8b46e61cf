use std::time::Duration;

use tokio::net::TcpListener;

use super::read::prefix_end;
use super::{EtcdConfig, EtcdStore};
use crate::store::Store;

#[test]
fn the_end_of_a_prefix() {
    assert_eq!(prefix_end(b"/calico/"), b"/calico0");
    assert_eq!(prefix_end(&[1, 255, 255]), [2]);
    assert_eq!(prefix_end(&[255, 255]), [0]);
    assert_eq!(prefix_end(b""), [0]);
}

/// Takes connections and says nothing; counts them.
async fn silent() -> (String, tokio::sync::watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, counted) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
            count.send_replace(kept.len());
        }
    });
    (format!("http://{address}"), counted)
}

#[tokio::test]
async fn several_silent_endpoints_share_the_time_of_one_request() {
    let (mut endpoints, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (endpoint, count) = silent().await;
        endpoints.push(endpoint);
        counts.push(count);
    }
    let config = EtcdConfig {
        request_timeout: Duration::from_millis(3300),
        ..EtcdConfig::new(endpoints)
    };
    let store = EtcdStore::new(config).unwrap();
    let error = store.read(&[]).await.unwrap_err().to_string();
    assert!(error.contains("no answer within 1100 ms"), "{error}");
    let asked: Vec<usize> = counts.iter().map(|count| *count.borrow()).collect();
    assert_eq!(asked, [1, 1, 1], "each is asked once");
}
