//! What is logged while etcd is away.
#![allow(clippy::unwrap_used, missing_docs)]

mod world;

use std::net::TcpListener;
use std::time::Duration;

use caracal_datastore::{EtcdConfig, EtcdStore, TestLog};
use caracal_flannel::{FollowOptions, LeaseStore, follow_leases};
use tokio::sync::watch;
use tokio::time::sleep;
use world::{Actor, End, World, config, request};

/// A port of this machine where nobody listens.
fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_stays_away_is_told_at_once_and_then_rarely() {
    let log = TestLog::capture();
    let network = config(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#);
    let request = request(&network, [10, 0, 0, 1]);
    let End::Has(own) = Actor::new(request.clone()).run(&mut World::default()) else {
        panic!("a lease");
    };
    let store = EtcdStore::new(EtcdConfig::new([closed()])).unwrap();
    let (_wishes, request) = watch::channel(request);
    let options = FollowOptions {
        request,
        renew_after: Duration::from_secs(3600),
        settle: Duration::from_secs(10),
    };
    let _leases = follow_leases(LeaseStore::Etcd(store), options, *own);
    sleep(Duration::from_secs(3600)).await;
    // At once, and after 30, 90, 210, 450, 930 and 1,890 s.
    let lines = log.lines("leases are not followed");
    assert!((6..=8).contains(&lines.len()), "{lines:#?}");
    assert_eq!(log.lines("").len(), lines.len(), "nothing else is said");
}
