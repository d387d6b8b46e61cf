//! `EtcdStore` against a real etcd.

use std::time::{Duration, Instant};

use caracal_datastore::{
    EtcdConfig, EtcdCredentials, EtcdServer, EtcdStore, Store, StoreError, WatchEvent,
};
use caracal_model::{KeyRange, LeasedTxn, Txn, TxnOutcome, TxnWrite};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::contract::{self, LIMIT, changes, get, put};
use crate::proxy::Proxy;

/// As in production, with all the time of a loaded machine.
fn config(endpoint: impl Into<String>) -> EtcdConfig {
    EtcdConfig {
        request_timeout: Duration::from_secs(20),
        progress_interval: Duration::from_millis(200),
        progress_timeout: Duration::from_secs(20),
        ..EtcdConfig::new([endpoint.into()])
    }
}

/// Impatient, where the other side is dead indeed.
fn impatient(endpoint: impl Into<String>) -> EtcdConfig {
    EtcdConfig {
        request_timeout: Duration::from_secs(2),
        progress_timeout: Duration::from_millis(1000),
        ..config(endpoint)
    }
}

fn store(config: EtcdConfig) -> EtcdStore {
    EtcdStore::new(config).unwrap()
}

async fn compact(server: &EtcdServer, revision: i64) {
    let mut client = etcd_client::Client::connect([server.endpoint()], None)
        .await
        .unwrap();
    client.compact(revision, None).await.unwrap();
}

async fn end_of(
    watch: &mut (impl futures_util::Stream<Item = Result<WatchEvent, StoreError>> + Unpin),
) -> StoreError {
    timeout(LIMIT, async {
        loop {
            match watch.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("a watch ended without an error"),
            }
        }
    })
    .await
    .expect("a dead watch ends")
}

/// Reads until it works again.
async fn wait_until_up(store: &EtcdStore) {
    timeout(LIMIT, async { while store.read(&[]).await.is_err() {} })
        .await
        .expect("etcd serves again");
}

#[tokio::test]
async fn etcd_keeps_the_contract() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let proxy = Proxy::start(server.address()).await;
    let store = store(config(proxy.endpoint()));
    contract::keeps(&store, async |revision| compact(&server, revision).await).await;
    assert_eq!(proxy.connections(), 1, "one connection serves everything");
}

#[tokio::test]
async fn nothing_is_connected_before_it_is_needed() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let proxy = Proxy::start(server.address()).await;
    let store = store(config(proxy.endpoint()));
    assert_eq!(proxy.connections(), 0);
    let reads: Vec<_> = (0..10)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.read(&[]).await.unwrap() })
        })
        .collect();
    for read in reads {
        read.await.unwrap();
    }
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn a_dead_endpoint_is_passed_over() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let mut config = config("http://127.0.0.1:1");
    config.endpoints.push(server.endpoint());
    let store = store(config);
    put(&store, "/a", "1").await;
    assert_eq!(get(&store, "/a").await.unwrap().value, b"1");
}

#[tokio::test]
async fn a_hanging_endpoint_is_passed_over() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let proxy = Proxy::start(server.address()).await;
    let mut config = impatient(proxy.endpoint());
    config.endpoints.push(server.endpoint());
    let store = store(config);
    put(&store, "/a", "1").await;
    proxy.freeze();
    assert_eq!(get(&store, "/a").await.unwrap().value, b"1");
}

#[tokio::test]
async fn no_endpoint_answers() {
    let store = store(config("http://127.0.0.1:1"));
    let error = store.read(&[]).await.unwrap_err();
    assert!(error.is_transient());
    let said = error.to_string();
    assert!(said.contains("http://127.0.0.1:1"), "{said}");
    assert!(said.contains("refused"), "{said}");
    assert!(store.commit(&Txn::new()).await.unwrap_err().is_transient());
    assert!(store.watch("/", 1).await.unwrap_err().is_transient());
}

#[tokio::test]
async fn a_restart_ends_watches_and_the_store_goes_on() {
    let Some(mut server) = EtcdServer::start() else {
        return;
    };
    let store = store(config(server.endpoint()));
    let revision = put(&store, "/a", "1").await;
    let mut watch = store.watch("/", revision + 1).await.unwrap();
    server.kill();
    assert!(end_of(&mut watch).await.is_transient());
    assert!(watch.next().await.is_none());
    assert!(store.read(&[]).await.unwrap_err().is_transient());
    server.run();
    wait_until_up(&store).await;
    assert_eq!(get(&store, "/a").await.unwrap().value, b"1");
    let mut watch = store.watch("/", revision + 1).await.unwrap();
    put(&store, "/a", "2").await;
    assert_eq!(
        changes(&mut watch, 1).await[0].value.as_deref(),
        Some(&b"2"[..])
    );
}

#[tokio::test]
async fn a_half_open_connection_ends_watches_and_requests_in_time() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let proxy = Proxy::start(server.address()).await;
    let store = store(impatient(proxy.endpoint()));
    let revision = put(&store, "/a", "1").await;
    let mut watch = store.watch("/", revision + 1).await.unwrap();
    proxy.freeze();
    let start = Instant::now();
    let error = end_of(&mut watch).await;
    assert!(error.is_transient(), "{error}");
    assert!(
        error.to_string().contains("no answer within 1000 ms"),
        "{error}"
    );
    println!("noticed after {:?}", start.elapsed());
    assert!(store.read(&[]).await.unwrap_err().is_transient());
    proxy.thaw();
    wait_until_up(&store).await;
    put(&store, "/a", "2").await;
}

#[tokio::test]
async fn a_commit_with_a_lost_answer_is_not_sent_again() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let proxy = Proxy::start(server.address()).await;
    let through = store(impatient(proxy.endpoint()));
    let direct = store(config(server.endpoint()));
    put(&through, "/a", "1").await;
    proxy.freeze();
    let mut txn = Txn::new();
    txn.writes.push(TxnWrite::Put("/a".into(), b"2".to_vec()));
    let error = through.commit(&txn).await.unwrap_err();
    assert!(error.is_transient());
    proxy.thaw();
    put(&through, "/b", "1").await;
    assert_eq!(get(&direct, "/a").await.unwrap().value, b"1");
}

#[tokio::test]
async fn twenty_thousand_keys_are_read_at_one_revision_while_they_change() {
    const KEYS: usize = 20_000;
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let store = store(config(server.endpoint()));
    let value = "x".repeat(700);
    for chunk in (0..KEYS).collect::<Vec<_>>().chunks(128) {
        let mut txn = Txn::new();
        for i in chunk {
            txn.writes.push(TxnWrite::Put(
                format!("/big/{i:05}"),
                value.clone().into_bytes(),
            ));
        }
        contract::committed(&store, &txn).await;
    }
    let before = contract::revision(&store).await;
    let writer = store.clone();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let writing = tokio::spawn(async move {
        while stopped.try_recv().is_err() {
            // First and last page in one transaction: a torn read would see one without the other.
            let mut txn = Txn::new();
            txn.writes
                .push(TxnWrite::Put("/big/00000".into(), b"changed".to_vec()));
            txn.writes
                .push(TxnWrite::Put("/big/19999".into(), b"changed".to_vec()));
            contract::committed(&writer, &txn).await;
        }
    });
    let ranges = [
        KeyRange::Prefix("/big/".into()),
        KeyRange::Key("/big/19999".into()),
    ];
    for _ in 0..3 {
        let answer = store.read(&ranges).await.unwrap();
        assert!(answer.revision >= before);
        let all = &answer.ranges[0];
        assert_eq!(all.len(), KEYS);
        assert!(all.is_sorted_by(|a, b| a.key < b.key));
        assert!(all.iter().all(|kv| kv.mod_revision <= answer.revision));
        let (first, last) = (&all[0], &all[KEYS - 1]);
        assert_eq!(first.value, last.value);
        if first.value == b"changed" {
            assert_eq!(first.mod_revision, last.mod_revision);
        }
        assert_eq!(answer.ranges[1][0], *last);
    }
    stop.send(()).unwrap();
    writing.await.unwrap();

    // The whole history at once: far more than gRPC's usual 4 MB.
    let mut watch = store.watch("/big/", 2).await.unwrap();
    let mut received = 0;
    while received < KEYS {
        if let WatchEvent::Changes(changes) = timeout(LIMIT, watch.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
        {
            received += changes.len();
        }
    }
}

#[tokio::test]
async fn tls_with_client_certificates() {
    let Some(server) = EtcdServer::start_with_tls() else {
        return;
    };
    let certificates = server.certificates().unwrap().clone();
    let good = EtcdConfig {
        ca_cert_file: Some(certificates.ca_cert.clone()),
        cert_file: Some(certificates.client_cert.clone()),
        key_file: Some(certificates.client_key.clone()),
        ..config(server.endpoint())
    };
    let connected = store(good.clone());
    let revision = put(&connected, "/tls", "1").await;
    let mut watch = connected.watch("/", revision).await.unwrap();
    assert_eq!(changes(&mut watch, 1).await[0].key, "/tls");

    let said = async |config: EtcdConfig| store(config).read(&[]).await.unwrap_err().to_string();
    let anonymous = EtcdConfig {
        cert_file: None,
        key_file: None,
        ..good.clone()
    };
    let reason = said(anonymous).await;
    let hint = "(it may require a client certificate; none is set)";
    assert!(reason.ends_with(hint), "{reason}");
    let other_ca = EtcdConfig {
        ca_cert_file: Some(certificates.client_cert.clone()),
        ..good.clone()
    };
    let reason = said(other_ca).await;
    assert!(reason.contains("invalid peer certificate"), "{reason}");
    let missing = EtcdConfig {
        cert_file: Some("/nonexistent/node.crt".into()),
        ..good.clone()
    };
    let reason = said(missing).await;
    assert!(
        reason.contains("TLS file /nonexistent/node.crt: No such file"),
        "{reason}"
    );
    let plain = config(format!("http://{}", server.address()));
    assert!(store(plain).read(&[]).await.unwrap_err().is_transient());
}

#[tokio::test]
async fn user_and_password() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let with = |password: &str| EtcdConfig {
        credentials: Some(EtcdCredentials {
            username: "root".into(),
            password: password.into(),
        }),
        ..config(server.endpoint())
    };
    // Not enabled yet: credentials that are not needed do no harm.
    put(&store(with("secret")), "/a", "1").await;
    let mut client = etcd_client::Client::connect([server.endpoint()], None)
        .await
        .unwrap();
    client.user_add("root", "secret", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();

    put(&store(with("secret")), "/a", "2").await;
    for config in [with("wrong"), config(server.endpoint())] {
        let error = store(config)
            .read(&[KeyRange::Key("/a".into())])
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    }
    let anonymous = store(config(server.endpoint())).watch("/", 1).await;
    let error = match anonymous {
        Err(error) => error,
        Ok(mut watch) => end_of(&mut watch).await,
    };
    assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
}

#[test]
fn a_test_that_panics_leaves_no_etcd_behind() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let address = server.address();
    assert!(std::net::TcpStream::connect(address).is_ok());
    let panicked = std::thread::spawn(move || {
        let _server = server;
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(std::net::TcpStream::connect(address).is_err());
}

/// What was written with a lease goes with it; what was not stays, and a condition on a whole range
/// holds until anybody writes into it.
#[tokio::test]
async fn values_end_with_their_lease() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let store = store(config(server.endpoint()));
    let range = KeyRange::Prefix("/net/subnets/".to_owned());
    let create = |key: &str, ttl, revision| LeasedTxn {
        txn: Txn::new().create(format!("/net/subnets/{key}"), b"v".to_vec()),
        ttl,
        unchanged_below: Some(("/net/subnets/".to_owned(), revision)),
    };
    let (revision, found) = store.read_leased(&range).await.unwrap();
    assert_eq!(found, []);
    let second = Some(Duration::from_secs(1));
    let first = store.commit_leased(&create("a", second, revision)).await;
    let TxnOutcome::Committed(after) = first.unwrap() else {
        panic!("nobody wrote");
    };
    let mut watch = store.watch("/net/subnets/", after + 1).await.unwrap();
    // Another key, and still: somebody has written since.
    let late = store.commit_leased(&create("b", None, revision)).await;
    assert_eq!(late.unwrap(), TxnOutcome::Conflict);
    let taken = store.commit_leased(&create("a", None, after)).await;
    assert_eq!(taken.unwrap(), TxnOutcome::Conflict);
    let kept = store.commit_leased(&create("b", None, after)).await;
    assert!(matches!(kept.unwrap(), TxnOutcome::Committed(_)));
    let (_, found) = store.read_leased(&range).await.unwrap();
    let leases: Vec<_> = found
        .iter()
        .map(|v| (&*v.stored.key, v.lease != 0))
        .collect();
    assert_eq!(
        leases,
        [("/net/subnets/a", true), ("/net/subnets/b", false)]
    );
    let gone = async {
        loop {
            match watch.next().await.unwrap().unwrap() {
                WatchEvent::Changes(all) if all.iter().any(|c| c.value.is_none()) => break all,
                _ => {}
            }
        }
    };
    let gone = timeout(LIMIT, gone).await.expect("the lease ends");
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].key, "/net/subnets/a");
}
