//! Commands of `caracal ipam` on a datastore in memory: leaks are found and freed while their
//! preconditions hold, data is put in order, configuration and pools follow the rules, a dry run
//! writes nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::world::{config, node, node_with, pool, pool_with};
use caracal_datastore::{MemoryStore, Store};
use caracal_ipam::{
    AssignRequest, Audit, Client, ClientError, ClusterSummary, Conditional, Configure, IpamData,
    LeakReport, LeakReportError, LoggedStore, Mender, Persistence, PoolChoice, PreconditionError,
    ReleaseIps, Repair, RepairPlan, SettingsChange, SettingsError, Split, Users, Why, audit,
    borrowed_addresses, holder_of, namespace_named, plan_repairs, pool_fill, user_ranges, why,
};
use caracal_model::{
    Block, BlockOwner, ENDPOINT_ATTRIBUTE, Family, INTERFACE_ATTRIBUTE, IpamHandle, Key, Timestamp,
    WorkloadEndpoint, WorkloadEndpointSpec,
};

fn store(entries: impl IntoIterator<Item = (String, Vec<u8>)>) -> MemoryStore {
    let store = MemoryStore::new();
    for (key, value) in entries {
        store.put(key, value);
    }
    store
}

fn cluster() -> MemoryStore {
    store([
        pool("v4", "10.0.0.0/24", 28),
        node("node-a"),
        node("node-b"),
    ])
}

fn endpoint_key() -> Key {
    Key::workload("default", "web")
}

fn put_endpoint(store: &MemoryStore, address: &str) {
    let mut endpoint = WorkloadEndpoint::new("web", WorkloadEndpointSpec::default());
    endpoint.spec.node = "node-a".to_owned();
    endpoint.spec.ip_networks = vec![format!("{address}/32").parse().unwrap()];
    store.put(endpoint_key().to_path(), endpoint.to_json());
}

/// One address for the pod `web` on node-a.
async fn take(store: &MemoryStore, handle: &str) -> String {
    let mut request = AssignRequest::workload("node-a".into(), handle.into());
    let wiring = [
        (ENDPOINT_ATTRIBUTE, "default/web"),
        (INTERFACE_ATTRIBUTE, "caliweb"),
    ];
    request.attributes = wiring.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let assigned = Client::new(store.clone())
        .auto_assign(request)
        .await
        .unwrap();
    assigned.v4[0].address.to_string()
}

/// In an hour, when everything is old enough.
fn later() -> Timestamp {
    let hour = Duration::from_secs(3600);
    (std::time::SystemTime::now() + hour).into()
}

async fn audited(store: &MemoryStore) -> (IpamData, Users, Audit) {
    let view = Client::new(store.clone()).view().await.unwrap();
    let answer = store.read(&user_ranges()).await.unwrap();
    let users = Users::read(answer.ranges.iter().flatten());
    let found = audit(&view, &users, later());
    (view, users, found)
}

async fn plan(store: &MemoryStore) -> RepairPlan {
    let (view, users, found) = audited(store).await;
    plan_repairs(&found, &view, &users, Duration::from_secs(120), later())
}

async fn mend(store: &MemoryStore, plan: RepairPlan) -> Vec<String> {
    let client = Client::new(store.clone());
    let mut faults = Vec::new();
    for repair in plan.repairs {
        if let Err(error) = client.drive(Mender::new(repair, later())).await {
            faults.push(error.to_string());
        }
    }
    faults
}

#[tokio::test]
async fn a_leak_is_found_and_freed() {
    let store = cluster();
    let used = take(&store, "net.1").await;
    let lost = take(&store, "net.2").await;
    put_endpoint(&store, &used);
    let (view, users, found) = audited(&store).await;
    assert_eq!((found.counts.allocations, found.counts.in_use), (2, 1));
    assert_eq!(found.leaked.len(), 1);
    assert_eq!(found.leaked[0].allocation.address.to_string(), lost);
    assert_eq!(found.problems(), 1);
    // A young one may be a pod that is just being made.
    let now = std::time::SystemTime::now().into();
    let young = plan_repairs(&found, &view, &users, Duration::from_secs(120), now);
    assert!(
        young.repairs.is_empty() && young.left.len() == 1,
        "{young:?}"
    );
    assert_eq!(mend(&store, plan(&store).await).await, Vec::<String>::new());
    let (view, _, found) = audited(&store).await;
    assert_eq!(found.problems(), 0, "{found:?}");
    assert!(holder_of(&view, lost.parse().unwrap()).is_none());
    assert!(holder_of(&view, used.parse().unwrap()).is_some());
}

#[tokio::test]
async fn gc_5_what_came_to_life_since_is_not_freed() {
    let store = cluster();
    let lost = take(&store, "net.1").await;
    let doomed = plan(&store).await;
    // In the very last moment: between the repair's reading and its transaction.
    store.before_commit(1, move |store| put_endpoint(store, &lost));
    let faults = mend(&store, doomed).await;
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].contains("changed since it was looked at"),
        "{faults:?}"
    );
    let (_, _, found) = audited(&store).await;
    assert_eq!((found.problems(), found.counts.in_use), (0, 1));
}

#[tokio::test]
async fn gc_5_a_lost_race_for_the_block_is_tried_again_under_the_same_guard() {
    let store = cluster();
    take(&store, "net.1").await;
    let (_, users, found) = audited(&store).await;
    let leak = &found.leaked[0];
    store.conflict_on_commit(1);
    let before = store.commits();
    let machine = ReleaseIps::new(vec![leak.allocation.target()], later());
    let conditional = Conditional::new(machine, leak.preconditions(&users));
    let released = Client::new(store.clone()).drive(conditional).await.unwrap();
    assert_eq!(released.addresses, [leak.allocation.address]);
    assert_eq!(store.commits(), before + 2, "one lost, one won");
    // Once more: held no longer, nothing to write, the guard is not needed.
    let machine = ReleaseIps::new(vec![leak.allocation.target()], later());
    let conditional = Conditional::new(machine, leak.preconditions(&users));
    let released = Client::new(store).drive(conditional).await.unwrap();
    assert_eq!(released.unknown, [leak.allocation.address]);
    let text = PreconditionError::<SettingsError>::Broken { key: "k".into() }.to_string();
    assert_eq!(text, "k changed since it was looked at");
}

#[tokio::test]
async fn broken_data_is_put_in_order() {
    let store = cluster();
    let used = take(&store, "net.1").await;
    put_endpoint(&store, &used);
    let (view, ..) = audited(&store).await;
    let (cidr, known) = view.blocks.iter().next().unwrap();
    // A queue with a gap, a double and a held one; an attribute of nobody; wrong counts; a handle
    // of nothing; a missing affinity.
    let mut broken: Block = known.value.clone();
    let held = broken.allocations.iter().position(Option::is_some).unwrap();
    broken.unallocated = vec![3, 3, held, 5];
    broken.attributes.push(broken.attributes[0].clone());
    store.put(Key::Block(*cidr).to_path(), broken.to_json());
    let mut handle = IpamHandle::default();
    handle.block.insert(*cidr, 4);
    store.put(Key::Handle("net.1".into()).to_path(), handle.to_json());
    store.put(Key::Handle("net.gone".into()).to_path(), handle.to_json());
    let affinity = Key::Affinity(broken.owner().unwrap(), *cidr).to_path();
    store.delete(affinity.clone());
    // An empty block of nobody, an affinity to nothing.
    let other = Block::new("10.0.0.128/28".parse().unwrap(), None, 1);
    store.put(Key::Block(other.cidr).to_path(), other.to_json());
    let stale = Key::Affinity(broken.owner().unwrap(), "10.0.0.240/28".parse().unwrap());
    store.put(stale.to_path(), br#"{"state":"confirmed"}"#.to_vec());
    let (_, _, found) = audited(&store).await;
    assert!(found.problems() >= 7, "{found:?}");
    assert_eq!(mend(&store, plan(&store).await).await, Vec::<String>::new());
    let (view, _, found) = audited(&store).await;
    assert_eq!(found.problems(), 0, "{found:?}");
    let mended = &view.blocks[cidr].value;
    assert_eq!(mended.unallocated.len(), 15);
    assert_eq!(mended.attributes.len(), 1);
    assert_eq!(
        view.handles.keys().map(|h| h.as_str()).collect::<Vec<_>>(),
        ["net.1"]
    );
    assert_eq!(store.list(&affinity).len(), 1);
    assert_eq!(view.blocks.len(), 1);
    // A second time there is nothing to do.
    assert_eq!(plan(&store).await, RepairPlan::default());
}

#[tokio::test]
async fn gc_6_a_block_of_nobody_goes_when_its_last_address_has_cooled_down() {
    let store = store([
        pool("p", "10.0.0.0/30", 30),
        node("node-a"),
        config(|c| c.ip_cooldown_seconds = 30),
    ]);
    let client = Client::new(store.clone());
    take(&store, "net.1").await;
    let (owner, cidr) = (
        BlockOwner::Host("node-a".into()),
        "10.0.0.0/30".parse().unwrap(),
    );
    client
        .release_block_affinity(&owner, cidr, false)
        .await
        .unwrap();
    client
        .release_by_handle(&"net.1".into(), &[])
        .await
        .unwrap();
    let mend = async |now| {
        let mender = Mender::new(Repair::Mend(cidr), now);
        client.drive(mender).await.unwrap()
    };
    let now = Timestamp::from(std::time::SystemTime::now());
    assert!(!mend(now).await, "it cools down");
    assert_eq!(client.view().await.unwrap().blocks.len(), 1);
    assert!(mend(later()).await);
    assert_eq!(client.view().await.unwrap().blocks.len(), 0);
}

#[tokio::test]
async fn what_needs_a_person_is_left_with_a_reason() {
    let store = cluster();
    put_endpoint(&store, "10.0.0.77");
    let plan = plan(&store).await;
    assert!(plan.repairs.is_empty());
    assert!(
        plan.left[0].contains("10.0.0.77 is in use by endpoint default/web on node-a"),
        "{plan:?}"
    );
    store.put(endpoint_key().to_path(), b"{".to_vec());
    take(&store, "net.1").await;
    let (_, _, found) = audited(&store).await;
    // The endpoint may have any address: nothing counts as leaked.
    assert_eq!(
        (found.leaked.len(), found.counts.unjudged, found.problems()),
        (0, 1, 1)
    );
}

#[tokio::test]
async fn addresses_of_other_main_plugins_are_not_judged() {
    let store = cluster();
    let mut request = AssignRequest::workload("node-a".into(), "net.1".into());
    request.attributes = [("caracal-delegated".to_owned(), "true".to_owned())].into();
    Client::new(store.clone())
        .auto_assign(request)
        .await
        .unwrap();
    let (_, _, found) = audited(&store).await;
    assert_eq!(
        (found.leaked.len(), found.counts.unjudged, found.problems()),
        (0, 1, 0)
    );
}

#[tokio::test]
async fn tunnel_addresses_are_in_use_as_long_as_the_node_names_them() {
    let store = cluster();
    let mut request = AssignRequest::workload("node-a".into(), "vxlan-tunnel-addr-node-a".into());
    request.usage = caracal_model::AllowedUse::Tunnel;
    request.attributes = [("type".to_owned(), "vxlanTunnelAddress".to_owned())].into();
    let assigned = Client::new(store.clone())
        .auto_assign(request)
        .await
        .unwrap();
    let address = assigned.v4[0].address;
    // The node's process holds an address before it names it, and releases it after it named
    // another.
    let found = audited(&store).await.2;
    assert_eq!((found.counts.unjudged, found.leaked.len()), (1, 0));
    store_node(&store, |node| {
        node.spec.ipv4_vxlan_tunnel_addr = address.to_string().parse().ok()
    });
    assert_eq!(audited(&store).await.2.counts.in_use, 1);
    // Without the node nobody will release it.
    store.delete(Key::node(&"node-a".into()).to_path());
    assert_eq!(audited(&store).await.2.leaked.len(), 1);
    let doomed = plan(&store).await;
    // The node comes back before the repair.
    store_node(&store, |node| {
        node.spec.ipv4_vxlan_tunnel_addr = address.to_string().parse().ok()
    });
    assert_eq!(mend(&store, doomed).await.len(), 1);
    assert_eq!(audited(&store).await.2.counts.in_use, 1);
    store.delete(Key::node(&"node-a".into()).to_path());
    let doomed = plan(&store).await;
    assert_eq!(mend(&store, doomed).await, Vec::<String>::new());
    assert_eq!(audited(&store).await.2.counts.allocations, 0);
}

fn store_node(store: &MemoryStore, change: impl FnOnce(&mut caracal_model::Node)) {
    let (key, value) = node_with("node-a", change);
    store.put(key, value);
}

#[tokio::test]
async fn a_dry_run_goes_to_the_end_and_writes_nothing() {
    let store = cluster();
    let before = store.revision();
    let said = Arc::new(Mutex::new(Vec::new()));
    let say = said.clone();
    let dry_run = LoggedStore::dry_run(store.clone(), move |write| {
        say.lock().unwrap().push(write.key().to_owned());
    });
    let client = Client::new(dry_run);
    let request = || AssignRequest::workload("node-a".into(), "net.1".into());
    let first = client.auto_assign(request()).await.unwrap();
    let second = client.auto_assign(request()).await.unwrap();
    assert_ne!(
        first.v4[0].address, second.v4[0].address,
        "it sees its own writes"
    );
    let released = client
        .release_by_handle(&"net.1".into(), &[])
        .await
        .unwrap();
    assert_eq!(released.addresses.len(), 2);
    assert_eq!(store.revision(), before);
    assert!(
        said.lock()
            .unwrap()
            .iter()
            .any(|key| key.contains("/handle/net.1"))
    );
    // For real: the same, and announced.
    let say = said.clone();
    said.lock().unwrap().clear();
    let announced = LoggedStore::new(store.clone(), move |write| {
        say.lock().unwrap().push(write.key().to_owned());
    });
    let real = Client::new(announced).auto_assign(request()).await.unwrap();
    assert_eq!(real.v4[0].address, first.v4[0].address);
    assert!(store.revision() > before);
    assert_eq!(
        said.lock().unwrap().len(),
        4,
        "pending, confirmed, block, handle: {said:?}"
    );
}

#[tokio::test]
async fn configuration_follows_calicoctls_rules() {
    let store = cluster();
    let client = Client::new(store.clone());
    let change = |strict, auto, most| SettingsChange {
        strict_affinity: strict,
        auto_allocate_blocks: auto,
        max_blocks_per_host: most,
        ..SettingsChange::default()
    };
    let set = async |change| client.drive(Configure::new(change)).await;
    let refused = set(change(Some(false), Some(false), None)).await;
    assert!(matches!(
        refused,
        Err(ClientError::Refused(SettingsError::NothingAllowed))
    ));
    let refused = set(change(None, None, Some(2))).await;
    let limit = SettingsError::LimitWithoutStrict(2);
    assert!(matches!(refused, Err(ClientError::Refused(e)) if e == limit));
    set(change(Some(true), None, Some(2))).await.unwrap();
    let path = Key::IpamConfig.to_path();
    let stored = store.list(&path)[0].value.clone();
    let text = String::from_utf8(stored.clone()).unwrap();
    assert!(text.contains(r#""auto_allocate_blocks":true"#), "{text}");
    // No change, no write.
    let revision = store.revision();
    set(change(Some(true), None, None)).await.unwrap();
    assert_eq!(store.revision(), revision);
    // An object that lacks auto_allocate_blocks reads as false: turning strict off needs it on.
    store.put(
        path.clone(),
        br#"{"strict_affinity":true,"kubeVirtVMAddressPersistence":"Enabled"}"#.to_vec(),
    );
    assert!(set(change(Some(false), None, None)).await.is_err());
    let after = set(change(Some(false), Some(true), None)).await.unwrap();
    let persistence = after.kube_virt_vm_address_persistence.as_deref();
    assert_eq!(persistence, Some("Enabled"));
    let off = SettingsChange {
        kubevirt_ip_persistence: Some(Persistence::Disabled),
        ..SettingsChange::default()
    };
    set(off).await.unwrap();
    let stored = String::from_utf8(store.list(&path)[0].value.clone()).unwrap();
    assert!(
        stored.contains(r#""kubeVirtVMAddressPersistence":"Disabled""#),
        "{stored}"
    );
    store.put(path, b"{".to_vec());
    assert!(
        set(change(Some(true), None, None)).await.is_err(),
        "never overwrites what it cannot read"
    );
}

#[tokio::test]
async fn a_pool_is_split_in_one_transaction() {
    let store = store([
        pool_with("v4", "10.0.0.0/24", 28, |p| {
            p.spec.node_selector = "rack == 'r1'".into()
        }),
        node("node-a"),
    ]);
    let client = Client::new(store.clone());
    let uids = || (0..64).map(|n| format!("uid-{n}")).collect::<Vec<_>>();
    let split = async |which, parts| {
        client
            .drive(Split::new(which, parts, uids(), later()))
            .await
    };
    let name = || PoolChoice::Name("v4".to_owned());
    for (which, parts, error) in [
        (name(), 3, "3 parts are not possible"),
        (name(), 1, "1 parts are not possible"),
        (name(), 32, "take at most 16"),
        (
            PoolChoice::Name("v5".into()),
            2,
            "there is no IP pool v5; there are v4 (10.0.0.0/24)",
        ),
    ] {
        let refused = split(which, parts).await.unwrap_err().to_string();
        assert!(refused.contains(error), "{refused}");
    }
    let revision = store.revision();
    let parts = split(PoolChoice::Cidr("10.0.0.0/24".parse().unwrap()), 4)
        .await
        .unwrap();
    assert_eq!(store.revision(), revision + 1);
    let shown: Vec<_> = parts
        .iter()
        .map(|p| (p.metadata.name.as_str(), p.spec.cidr.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("split-v4-0", "10.0.0.0/26"),
            ("split-v4-1", "10.0.0.64/26"),
            ("split-v4-2", "10.0.0.128/26"),
            ("split-v4-3", "10.0.0.192/26"),
        ]
    );
    let view = client.view().await.unwrap();
    assert_eq!(view.pools.len(), 4);
    assert!(
        view.pools
            .values()
            .all(|p| p.spec.node_selector == "rack == 'r1'")
    );
    assert_eq!(parts[1].metadata.uid.as_deref(), Some("uid-1"));
}

#[tokio::test]
async fn why_gives_a_reason_for_each_pool_and_block() {
    let store = store([
        pool("a", "10.0.0.0/24", 30),
        pool_with("b", "10.1.0.0/24", 28, |p| p.spec.disabled = true),
        pool_with("c", "10.2.0.0/24", 28, |p| {
            p.spec.node_selector = "rack == 'r9'".into()
        }),
        pool_with("d", "10.3.0.0/24", 28, |p| {
            p.spec.namespace_selector = "kubernetes.io/metadata.name == 'red'".into()
        }),
        node("node-a"),
        config(|c| (c.strict_affinity, c.max_blocks_per_host) = (true, 1)),
    ]);
    for handle in ["net.1", "net.2", "net.3", "net.4"] {
        take(&store, handle).await;
    }
    let view = Client::new(store).view().await.unwrap();
    let ask = |node: &str, labels| why(&view, &node.into(), Family::Ipv4, labels);
    assert_eq!(ask("node-x", None), None);
    let why = ask("node-a", None).unwrap();
    let answers = |why: &Why| -> Vec<(String, bool, String)> {
        let pools = why.pools.iter();
        pools
            .map(|p| (p.pool.to_string(), p.usable, p.reason.clone()))
            .collect()
    };
    let expected = |d: &str| {
        [
            ("a", "serves this node"),
            ("b", "is disabled"),
            ("c", "does not select this node"),
            ("d", d),
        ]
        .map(|(pool, reason)| {
            let usable = reason == "serves this node";
            (pool.to_owned(), usable, reason.to_owned())
        })
    };
    assert_eq!(answers(&why), expected("does not select this namespace"));
    let red = namespace_named("red");
    let for_red = ask("node-a", Some(&red)).unwrap();
    assert_eq!(answers(&for_red), expected("serves this node"));
    assert_eq!(
        (why.blocks.len(), why.blocks[0].free, why.blocks[0].usable),
        (1, 0, false)
    );
    assert_eq!(why.blocks[0].reason, "is full");
    assert_eq!(why.growth, "no: it holds 1 blocks and may hold 1");
    assert_eq!(why.borrowing, "no: strict affinity is on");
}

#[tokio::test]
async fn pools_are_counted_and_borrowers_named() {
    let reservation = (
        Key::resource(caracal_model::Kind::IpReservation, "r").to_path(),
        br#"{"metadata":{"name":"r"},"spec":{"reservedCIDRs":["10.0.0.2/31"]}}"#.to_vec(),
    );
    let store = store([
        pool("a", "10.0.0.0/29", 29),
        node("node-a"),
        node("node-b"),
        reservation,
    ]);
    take(&store, "net.1").await;
    let client = Client::new(store.clone());
    let request = AssignRequest::workload("node-b".into(), "net.2".into());
    let lent = client.auto_assign(request).await.unwrap();
    assert!(lent.v4[0].borrowed);
    let view = client.view().await.unwrap();
    let pools = pool_fill(&view);
    let fill = pools[0].fill.as_ref().unwrap();
    assert_eq!(
        (fill.total, fill.in_use, fill.reserved, fill.free),
        (8, 2, 2, 4)
    );
    assert_eq!(pools[0].blocks[0].owner.as_deref(), Some("host:node-a"));
    let borrowed = borrowed_addresses(&view);
    assert_eq!(borrowed.len(), 1);
    assert_eq!(
        (borrowed[0].node(), borrowed[0].address),
        (Some("node-b"), lent.v4[0].address)
    );
}

#[tokio::test]
async fn reports_are_followed_in_their_own_cluster_only() {
    let store = cluster();
    take(&store, "net.1").await;
    let (.., found) = audited(&store).await;
    let here = ClusterSummary {
        guid: "g1".to_owned(),
        ..ClusterSummary::default()
    };
    let report = LeakReport::new(&found, here.clone(), "1.0");
    let text = serde_json::to_string(&report).unwrap();
    let report: LeakReport = serde_json::from_str(&text).unwrap();
    assert!(
        text.contains("clusterGUID") && report.allocations.len() == 1,
        "{text}"
    );
    assert_eq!(report.accept(&here, "1.0", false), Ok(()));
    assert!(matches!(
        report.accept(&here, "1.1", false),
        Err(LeakReportError::OtherVersion { .. })
    ));
    assert_eq!(report.accept(&here, "1.1", true), Ok(()));
    let there = ClusterSummary {
        guid: "g2".to_owned(),
        ..ClusterSummary::default()
    };
    assert!(matches!(
        report.accept(&there, "1.0", true),
        Err(LeakReportError::OtherCluster { .. })
    ));
    // An old report never frees a newer allocation.
    let client = Client::new(store.clone());
    client
        .release_by_handle(&"net.1".into(), &[])
        .await
        .unwrap();
    for _ in 0..16 {
        take(&store, "net.1").await;
    }
    let leak = report.allocations.values().flatten().next().unwrap();
    let refused = client.release_ips(vec![leak.allocation.target()]).await;
    assert!(
        matches!(refused, Err(ClientError::Refused(_))),
        "{refused:?}"
    );
}
