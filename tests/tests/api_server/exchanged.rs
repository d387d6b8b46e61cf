//! Another etcd behind the same address: what a watch goes on from has to be of the same history.

use std::net::SocketAddr;

use caracal_datastore::{KubernetesConfig, KubernetesStore, View, WatchOptions, spawn_watcher};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::store::{runtime, started};
use super::{PATIENCE, Server, pool};

const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";

/// An address like a load balancer's. Its connections are cut when another server is behind it.
async fn balance(listener: TcpListener, mut servers: watch::Receiver<SocketAddr>) {
    loop {
        let (mut client, _) = listener.accept().await.expect("a connection");
        let address = *servers.borrow_and_update();
        let mut servers = servers.clone();
        tokio::spawn(async move {
            let mut server = TcpStream::connect(address).await.expect("the server");
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = servers.changed() => {}
            }
        });
    }
}

fn add_pool(server: &Server, name: &str, cidr: &str) {
    let pool = serde_json::from_str(&pool(name, cidr)).expect("JSON");
    server.request("POST", POOLS, &pool).expect(201);
}

/// A server says nothing on a watch from a revision that its etcd has not reached, and tells its
/// own history on one from a revision that it has passed. Neither is taken for rest.
#[test]
fn a_watch_does_not_go_on_with_another_etcd() {
    let (Some(first), Some(second)) = (started("first", &[]), started("second", &[])) else {
        return;
    };
    add_pool(&first, "first", "10.1.0.0/24");
    add_pool(&second, "second", "10.2.0.0/24");
    for round in 0..50 {
        let patch = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let path = "/api/v1/nodes/node-a";
        first.patch(path, "merge-patch", &patch).expect(200);
    }
    let runtime = runtime();
    let _inside = runtime.enter();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("an address");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let (behind, servers) = watch::channel(first.address);
    runtime.spawn(balance(listener, servers));

    let lookup = |name: &str| (name == "K8S_API_ENDPOINT").then(|| endpoint.clone());
    let config = KubernetesConfig::from_lookup(lookup).expect("a configuration");
    let mut views = spawn_watcher(KubernetesStore::new(config), WatchOptions::default());
    let mut await_pool = |name: &str| {
        let has = |view: &View| {
            let mut pools = view.snapshot.pools.keys();
            view.is_current() && pools.any(|pool| pool.to_string() == name)
        };
        let seen = async {
            tokio::time::timeout(PATIENCE, views.wait_for(has))
                .await
                .is_ok()
        };
        let seen = runtime.block_on(seen);
        let view = views.borrow();
        let pools: Vec<_> = view.snapshot.pools.keys().collect();
        assert!(
            seen,
            "the pool {name} was not seen: {pools:?}, {:?}",
            view.freshness
        );
    };
    await_pool("first");
    // Its revisions are lower, then higher than those that were told before.
    for (server, name) in [(&second, "second"), (&first, "first")] {
        behind.send_replace(server.address);
        await_pool(name);
    }
}
