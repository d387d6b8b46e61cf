//! How the table changes, and what it is after that (SVC-1, SVC-2, SVC-3).

use proptest::prelude::*;

use super::*;

/// SVC-2.
#[test]
fn an_endpoint_more_or_less_is_a_handful_of_elements() {
    let all: Vec<Value> = (1..=200)
        .map(|n| endpoint(&format!("10.244.1.{n}"), "b", json!({})))
        .collect();
    let (mut table, mut kernel) = table(&[service(json!({})), slice(json!(all))]);
    let mut fewer = all.clone();
    fewer.remove(17);
    for endpoints in [fewer, all] {
        let documents = [service(json!({})), slice(json!(endpoints))];
        let change = table.follow(&snapshot(&documents), &own()).unwrap();
        // The verdict, and the endpoint that goes or moves, each old and new.
        let named = kernel.run(&change);
        assert!(named <= 5, "{named} elements: {:?}", change.transactions);
    }
}

/// Where clients keep their endpoints, another endpoint changes no chain, and needs no program.
#[test]
fn another_endpoint_of_clients_that_keep_theirs_is_elements_alone() {
    let of = |last: u8| {
        let all = [1, 2, last].map(|n| endpoint(&format!("10.244.1.{n}"), "b", json!({})));
        let spec = json!({"sessionAffinity": "ClientIP"});
        [service(spec), slice(json!(all))]
    };
    let (mut table, mut kernel) = table(&of(3));
    let change = table.follow(&snapshot(&of(4)), &own()).unwrap();
    kernel.run(&change);
    assert!(!change.breaks_seal);
    let edits = change.transactions.iter().map(Transaction::is_data);
    assert_eq!(
        edits.collect::<Vec<_>>(),
        [true],
        "{:?}",
        change.transactions
    );
    let looked_at: Vec<_> = change.clients.keys().collect();
    assert_eq!(looked_at, ["clients4/shop/web//tcp"]);
}

/// Services of both families whose clients keep their endpoints, with these.
fn affine(endpoints: &[u8], seconds: u32) -> Snapshot {
    let of = |what: &str| {
        let each = |n: &u8| endpoint(&format!("{what}{n}"), "a", json!({}));
        json!(endpoints.iter().map(each).collect::<Vec<_>>())
    };
    let spec = json!({"sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local",
        "externalIPs": ["192.0.2.7"],
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}});
    let mut v6 = slice(of("fd00:244::"));
    v6["metadata"]["name"] = json!("web-2");
    v6["addressType"] = json!("IPv6");
    snapshot(&[service(spec), slice(of("10.244.1.")), v6])
}

/// What a new process writes where the table holds clients, each a map, a client and its endpoint.
fn taken_over(
    kernel: &Kernel,
    wanted: &Snapshot,
    clients: &[(&str, &str, &str)],
) -> (ServiceTable, TableChange) {
    let mut table = ServiceTable::default();
    assert_eq!(table.follow(wanted, &own()), None);
    let mut kernel = kernel.clone();
    for (map, client, endpoint) in clients {
        let key = (
            (*map).to_owned(),
            format!("{client} timeout 3h expires 2h59m"),
        );
        kernel.elements.insert(key, Some((*endpoint).to_owned()));
    }
    let change = table.adopt(Some(&kernel.listing()));
    (table, change)
}

const CLIENTS4: &str = "clients4/shop/web//tcp";
const CLIENTS4_HERE: &str = "clients4here/shop/web//tcp";
const CLIENTS6: &str = "clients6/shop/web//tcp";

/// SVC-3: chains of clients that keep their endpoints are not written again, and no client is asked
/// for but where the listing has one whose endpoint is gone, or may miss one.
#[test]
fn a_start_with_clients_that_keep_their_endpoints_writes_nothing() {
    for seconds in [1, 59, 60, 10_800, 3661, 86_399, 86_400] {
        let wanted = affine(&[1, 2], seconds);
        let (mut table, mut kernel) = (ServiceTable::default(), Kernel::default());
        assert_eq!(table.follow(&wanted, &own()), None);
        let change = table.adopt(None);
        assert_eq!(
            change.clients,
            BTreeMap::new(),
            "a table that was not there"
        );
        kernel.run_of(&mut table, &change);
        let led = [
            (CLIENTS4, "10.0.0.9", "10.244.1.1 . 8080"),
            (CLIENTS4_HERE, "10.0.0.9", "10.244.1.2 . 8080"),
            (CLIENTS6, "fd00::9", "fd00:244::1"),
        ];
        let (_, change) = taken_over(&kernel, &wanted, &led);
        assert_eq!(change.transactions, [], "{seconds}");
        assert_eq!((change.parts, change.breaks_seal), (0, false), "{seconds}");
        assert_eq!(change.clients, BTreeMap::new());
        // One that was led elsewhere, such as to another port.
        for (map, client, endpoint) in [
            (CLIENTS4, "10.0.0.9", "10.244.1.3 . 8080"),
            (CLIENTS4_HERE, "10.0.0.9", "10.244.1.2 . 81"),
            (CLIENTS6, "fd00::9", "fd00:244::3"),
        ] {
            let (_, change) = taken_over(&kernel, &wanted, &[(map, client, endpoint)]);
            assert_eq!(change.transactions, [], "{map}");
            assert_eq!(change.clients.keys().collect::<Vec<_>>(), [map]);
        }
        // While the table was read somebody may have been led to an endpoint that goes now.
        let (_, change) = taken_over(&kernel, &affine(&[1], seconds), &[]);
        assert!(!change.breaks_seal && change.transactions.iter().all(|of| !has_chains(of)));
        let looked_at: Vec<_> = change.clients.keys().map(String::as_str).collect();
        assert!(looked_at.contains(&CLIENTS4), "{looked_at:?}");
        // Another time is another rule.
        let (mut table, change) = taken_over(&kernel, &affine(&[1, 2], seconds + 1), &[]);
        assert!(change.breaks_seal || seconds == 86_400, "{seconds}");
        let mut again = kernel.clone();
        again.run_of(&mut table, &change);
        let (_, change) = taken_over(&again, &affine(&[1, 2], seconds + 1), &[]);
        assert_eq!(change.transactions, [], "{seconds}");
    }
}

fn has_chains(of: &Transaction) -> bool {
    let script = of.script(SERVICES_TABLE);
    script.contains("keep4/") && script.contains("add rule")
}

/// Chains and maps of a Service that went while no process ran go, with their clients: if the
/// Service comes back, nobody is led to an endpoint of that time.
#[test]
fn nothing_is_left_of_clients_of_a_service_that_is_gone() {
    let (mut table, mut kernel) = (ServiceTable::default(), Kernel::default());
    assert_eq!(table.follow(&affine(&[1], 60), &own()), None);
    let change = table.adopt(None);
    kernel.run_of(&mut table, &change);
    let client = (CLIENTS4, "10.0.0.9", "10.244.1.1 . 8080");
    let (mut table, change) = taken_over(&kernel, &affine(&[], 60), &[client]);
    kernel.run_of(&mut table, &change);
    let names = kernel.maps.iter().chain(kernel.chains.keys());
    let left: Vec<_> = names.filter(|name| name.contains('/')).collect();
    assert_eq!(left, [""; 0]);
    let (_, change) = taken_over(&kernel, &affine(&[], 60), &[]);
    assert_eq!(change.transactions, []);
}

/// A Service with so many endpoints.
fn with_endpoints(count: u8) -> Snapshot {
    let all = (1..=count).map(|n| endpoint(&format!("10.244.1.{n}"), "b", json!({})));
    let all = all.collect::<Vec<Value>>();
    snapshot(&[service(json!({})), slice(json!(all))])
}

/// A table of which it is known how nftables prints its chains that pick.
fn known(count: u8) -> (ServiceTable, Kernel) {
    let (mut table, mut kernel) = (ServiceTable::default(), Kernel::default());
    assert_eq!(table.follow(&with_endpoints(count), &own()), None);
    let change = table.adopt(None);
    kernel.run_of(&mut table, &change);
    (table, kernel)
}

/// What a new process does with the table of a Service with so many endpoints.
fn adopted(kernel: &Kernel, count: u8) -> (ServiceTable, TableChange) {
    let mut table = ServiceTable::default();
    assert_eq!(table.follow(&with_endpoints(count), &own()), None);
    let change = table.adopt(Some(&kernel.listing()));
    (table, change)
}

/// A number of endpoints that no Service had before is a chain more: data, as elements are, and
/// none of the seal.
#[test]
fn another_number_of_endpoints_needs_no_program() {
    let (mut table, mut kernel) = known(3);
    for count in [4, 5, 3, 200, 1, 0, 7] {
        let change = table.follow(&with_endpoints(count), &own()).unwrap();
        assert!(!change.breaks_seal, "{count}");
        let all = change.transactions.iter();
        assert!(all.clone().all(Transaction::is_data), "{count}: {all:?}");
        kernel.run_of(&mut table, &change);
        let (_, change) = adopted(&kernel, count);
        let deleted = |of: &Transaction| !of.script(SERVICES_TABLE).contains("element");
        assert!(change.transactions.iter().all(deleted), "{change:?}");
    }
    // Without such a chain it is not known how nftables prints them.
    let (mut table, mut kernel) = known(0);
    for (count, breaks_seal) in [(2, true), (3, false)] {
        let change = table.follow(&with_endpoints(count), &own()).unwrap();
        assert_eq!(change.breaks_seal, breaks_seal, "{count}");
        kernel.run_of(&mut table, &change);
    }
}

/// A table of the version before, whose seal is of these chains, too, and one of a kernel whose
/// nftables prints them in other words.
#[test]
fn a_seal_of_chains_that_pick_is_taken_for_what_it_is() {
    let (_, kernel) = known(3);
    let sealed = |kernel: &Kernel| {
        let listing = kernel.listing();
        let listing = crate::nft::Listing::parse(&listing);
        format!("printed_{:016x}", listing.structure(|_| true))
    };
    let resealed = |kernel: &mut Kernel| {
        kernel
            .chains
            .retain(|name, _| !name.starts_with("printed_"));
        kernel.chains.insert(sealed(kernel), Vec::new());
    };
    let mut old = kernel.clone();
    resealed(&mut old);
    let mut printed = kernel.clone();
    let chain = printed.chains.get_mut("pick-endpoints-3").unwrap();
    chain.iter_mut().for_each(|rule| rule.push_str(" random"));
    resealed(&mut printed);
    for (what, kernel) in [("old", &mut old), ("printed", &mut printed)] {
        let (mut table, change) = adopted(kernel, 3);
        assert_eq!(change.transactions, [], "{what}");
        let change = table.follow(&with_endpoints(4), &own()).unwrap();
        assert!(change.breaks_seal, "{what}");
        kernel.run_of(&mut table, &change);
        // The old seal gives way to the new one; other words stay part of it.
        let change = table.follow(&with_endpoints(5), &own()).unwrap();
        assert_eq!(change.breaks_seal, what == "printed", "{what}");
        // What somebody does to such a chain breaks either.
        kernel.chains.get_mut("pick-endpoints-4").unwrap().pop();
        let (_, change) = adopted(kernel, 4);
        assert!(change.breaks_seal, "{what}");
    }
}

/// Names of chains that pick one of several endpoints.
fn picks(kernel: &Kernel) -> Vec<&str> {
    let names = kernel.chains.keys().map(String::as_str);
    names.filter(|name| name.starts_with("pick-")).collect()
}

#[test]
fn chains_that_pick_among_no_services_endpoints_go() {
    let of = with_endpoints;
    let (mut table, mut kernel) = table(&[service(json!({}))]);
    let mut follow = |kernel: &mut Kernel, snapshot: &Snapshot| {
        let change = table.follow(snapshot, &own()).unwrap();
        let last = change.transactions.last().cloned().unwrap_or_default();
        let last = last.script(SERVICES_TABLE);
        assert!(!last.contains("element") || !last.contains("delete chain"));
        kernel.run(&change);
        change.breaks_seal
    };
    // However many endpoints there have been, the table holds few chains.
    for count in 1..=100 {
        follow(&mut kernel, &of(count));
        assert!(picks(&kernel).len() <= 2, "{:?}", picks(&kernel));
    }
    // A number that comes back is elements alone.
    for count in [99, 100, 99, 100] {
        assert!(!follow(&mut kernel, &of(count)), "{count}");
    }
    // Those of Services that are gone go with the next change of chains, or with the process.
    follow(&mut kernel, &snapshot(&[]));
    let mut next = kernel.clone();
    follow(&mut next, &of(7));
    assert_eq!(picks(&next), ["pick-endpoints-7"]);
    let mut later = ServiceTable::default();
    assert!(later.follow(&snapshot(&[]), &own()).is_none());
    kernel.run(&later.adopt(Some(&kernel.listing())));
    assert_eq!(picks(&kernel), [""; 0]);
}

/// A Service or slice among few, so that histories meet.
fn documents() -> impl Strategy<Value = Vec<Value>> {
    let word = |a: &'static str, b: &'static str| prop_oneof![Just(a), Just(b)];
    let service = (
        0..3_u8,
        word("Cluster", "Local"),
        word("Cluster", "Local"),
        word("None", "ClientIP"),
        0..4_u8,
        any::<bool>(),
    )
        .prop_map(|(name, internal, external, affinity, kind, ranged)| {
            let mut document = service(json!({
                "clusterIP": format!("10.96.0.{}", 10 + name / 2),
                "clusterIPs": [format!("10.96.0.{}", 10 + name / 2), "fd00:96::10"],
                "type": "LoadBalancer",
                "internalTrafficPolicy": internal,
                "externalTrafficPolicy": external,
                "sessionAffinity": affinity,
                "externalIPs": (0..kind).map(|n| format!("192.0.2.{n}")).collect::<Vec<_>>(),
                "loadBalancerSourceRanges": if ranged { vec!["203.0.113.0/24"] } else { vec![] },
                "ports": [{"name": "p", "port": 80, "nodePort": 30080}, {"name": "q", "port": 81}],
            }));
            document["metadata"]["name"] = json!(format!("web{name}"));
            document["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
            document
        });
    let endpoint = (1..8_u8, word("a", "b"), any::<bool>(), any::<bool>()).prop_map(
        |(n, node, ready, terminating)| {
            let conditions = json!({"ready": ready, "serving": true, "terminating": terminating});
            endpoint(
                &format!("10.244.0.{n}"),
                node,
                json!({"conditions": conditions}),
            )
        },
    );
    let slice = (0..3_u8, 0..3_u8, prop::collection::vec(endpoint, 0..6)).prop_map(
        |(name, of, endpoints)| {
            let mut document = slice(json!(endpoints));
            document["metadata"]["name"] = json!(format!("slice{name}"));
            document["metadata"]["labels"] =
                json!({"kubernetes.io/service-name": format!("web{of}")});
            document["ports"] =
                json!([{"name": "p", "port": 8080}, {"name": "q", "port": 8081 + u32::from(of)}]);
            document
        },
    );
    prop::collection::vec(prop_oneof![service, slice], 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// SVC-1 and SVC-3.
    #[test]
    fn any_history_gives_the_table_of_a_new_plan(
        history in prop::collection::vec((documents(), any::<bool>()), 1..8)
    ) {
        let me = own();
        let mut ours = ServiceTable::default();
        let mut kernel = Kernel::default();
        ours.follow(&snapshot(&[]), &me);
        let change = ours.adopt(None);
        kernel.run_of(&mut ours, &change);
        for (documents, restart) in history {
            let wanted = snapshot(&documents);
            if restart {
                let listing = kernel.listing();
                ours = ServiceTable::default();
                prop_assert!(ours.follow(&wanted, &me).is_none());
                let change = ours.adopt(Some(&listing));
                kernel.run_of(&mut ours, &change);
            } else {
                let change = ours.follow(&wanted, &me).unwrap();
                kernel.run_of(&mut ours, &change);
            }
            let (mut fresh, anew) = table(&documents);
            let known = |name: &str| anew.chains.contains_key(name) || name.starts_with("pick-");
            let mut content = kernel.content();
            // Of what went while nobody looked empty chains may be left.
            content.chains.retain(|name, rules| known(name) || !rules.is_empty());
            let wanted_content = anew.content();
            prop_assert_eq!(&content.maps, &wanted_content.maps);
            prop_assert_eq!(&content.elements, &wanted_content.elements);
            for (name, rules) in &wanted_content.chains {
                prop_assert_eq!(Some(rules), content.chains.get(name));
            }
            // What is there is not written again.
            fresh.doubt();
            prop_assert!(fresh.follow(&wanted, &me).is_none());
            let again = fresh.adopt(Some(&kernel.listing()));
            let scripts = again.transactions.iter().map(|of| of.script(SERVICES_TABLE));
            let written = scripts.filter(|script| script.contains(" element ") || script.contains("add "));
            prop_assert_eq!(written.count(), 0, "{:?}", again.transactions);
            prop_assert_eq!(again.clients, BTreeMap::new());
        }
    }
}
