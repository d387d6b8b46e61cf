//! Lists as streams of initial events: the same as in pages, in pages where the server has none,
//! and an interrupted one takes nothing away.

use std::collections::BTreeMap;

use caracal_datastore::{Cursor, PagedStore as _, View, WatchOptions, spawn_watcher};
use caracal_model::{Family, KeyRange, Kind, blocks_prefix, kind_prefix};
use serde_json::{Value, json};

use super::store::{runtime, started, store};
use super::{PATIENCE, Server, pod, pool};

const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";

/// More than one part of a list has.
const NODES: usize = 620;

fn fault(server: &Server, rule: &Value) {
    server.request("POST", "/test/faults", rule).expect(200);
}

/// How often the rules are still to be applied.
fn left(server: &Server) -> Vec<u64> {
    let rules = server.get("/test/faults").expect(200);
    let rules = rules.as_array().expect("a list").iter();
    rules.filter_map(|rule| rule["left"].as_u64()).collect()
}

fn add_pool(server: &Server, name: &str, cidr: &str) {
    let pool = serde_json::from_str(&pool(name, cidr)).expect("JSON");
    server.request("POST", POOLS, &pool).expect(201);
}

fn with_many_nodes(scenario: &str) -> Option<Server> {
    let server = started(scenario, &[])?;
    for number in 3..NODES {
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("node-{number:04}")}});
        server.request("POST", "/api/v1/nodes", &node).expect(201);
    }
    let pods = "/api/v1/namespaces/default/pods";
    let mine = pod("mine", Some("node-a"));
    server.request("POST", pods, &mine).expect(201);
    let status =
        json!({"metadata": {"annotations": {"cni.projectcalico.org/podIP": "10.0.0.18/32"}}});
    let patched = server.patch(&format!("{pods}/mine/status"), "merge-patch", &status);
    patched.expect(200);
    Some(server)
}

/// Everything that is listed to be followed, with the revisions.
async fn listed(server: &Server) -> BTreeMap<String, (i64, Vec<u8>)> {
    let store = store(server, Some("node-a"));
    let mut prefixes: Vec<_> = [Kind::Node, Kind::IpPool, Kind::BgpFilter]
        .into_iter()
        .map(kind_prefix)
        .collect();
    prefixes.push(blocks_prefix(Family::Ipv4));
    let ranges: Vec<_> = prefixes.into_iter().map(KeyRange::Prefix).collect();
    let first = store.first_pages(&ranges).await.expect("the first parts");
    // Endpoints are listed after everything else.
    let endpoints = KeyRange::Prefix(kind_prefix(Kind::WorkloadEndpoint));
    let start = Cursor::new();
    let page = store.next_page(&endpoints, &start, first.revision).await;
    let endpoints = (page.expect("endpoints"), &endpoints);
    let mut all = BTreeMap::new();
    for (mut page, range) in first.pages.into_iter().zip(&ranges).chain([endpoints]) {
        loop {
            for kv in page.values {
                let was = all.insert(kv.key, (kv.mod_revision, kv.value));
                assert_eq!(was, None, "told twice");
            }
            let Some(next) = page.next else { break };
            let asked = store.next_page(range, &next, first.revision);
            page = asked.await.expect("the next part");
        }
    }
    all
}

#[test]
fn a_stream_and_pages_tell_the_same() {
    let Some(server) = with_many_nodes("streamed") else {
        return;
    };
    runtime().block_on(async {
        // What is counted: streams that are asked for.
        fault(
            &server,
            &json!({"fault": "short", "events": 1_000_000, "count": 100}),
        );
        let streamed = listed(&server).await;
        assert_eq!(left(&server), [95], "each of five lists was a stream");
        assert_eq!(streamed.len(), NODES + 2, "Nodes, a pool, an endpoint");

        server
            .request("DELETE", "/test/faults", &Value::Null)
            .expect(200);
        fault(
            &server,
            &json!({"fault": "no-initial-events", "count": 100}),
        );
        let paged = listed(&server).await;
        assert_eq!(left(&server), [99], "a server that has none is asked once");
        assert_eq!(streamed, paged);
    });
}

#[test]
fn an_interrupted_stream_takes_nothing_away() {
    let Some(server) = with_many_nodes("interrupted") else {
        return;
    };
    add_pool(&server, "q", "10.9.0.0/16");
    add_pool(&server, "r", "10.10.0.0/16");
    let runtime = runtime();
    // In the first part and in the second one: of pools, of Nodes.
    for (round, (path, events)) in [(POOLS, 1), ("/api/v1/nodes", 610)].into_iter().enumerate() {
        let pools = 3 + 2 * round;
        runtime.block_on(async {
            let mut views = spawn_watcher(store(&server, Some("node-a")), WatchOptions::default());
            let mut until = async |count: usize| {
                let whole = |view: &View| {
                    let snapshot = &view.snapshot;
                    let known = snapshot.nodes.len();
                    assert!(known == 0 || known == NODES, "{known} Nodes");
                    assert!(known == 0 || snapshot.pools.len() >= pools, "a pool went");
                    view.is_current() && snapshot.pools.len() == count
                };
                let seen = tokio::time::timeout(PATIENCE, views.wait_for(whole)).await;
                drop(seen.expect("in time").expect("it runs"));
            };
            until(pools).await;
            // What comes by the watch shows that it is open, and can be ended.
            add_pool(
                &server,
                &format!("s{round}"),
                &format!("10.{}.0.0/16", 20 + round),
            );
            until(pools + 1).await;
            let rule = json!({"path": path, "fault": "short", "events": events, "count": 1});
            fault(&server, &rule);
            let expire = server.request("POST", "/test/watches/expire", &Value::Null);
            expire.expect(200);
            add_pool(
                &server,
                &format!("t{round}"),
                &format!("10.{}.0.0/16", 30 + round),
            );
            until(pools + 2).await;
        });
        assert_eq!(left(&server), [0], "the stream was interrupted");
        let clear = server.request("DELETE", "/test/faults", &Value::Null);
        clear.expect(200);
    }
}
