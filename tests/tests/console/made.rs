//! Places of the page that are drawn from made answers: clusters that no lab here has.

use caracal_tests::{Browser, SECOND};

use super::PAGE;

/// Has the page hear these answers, by their paths, in the place of the node's.
fn answer_with(browser: &mut Browser, made: &str) {
    browser.value(&format!(
        "(() => {{ const made = {made}; const real = window.fetch; \
         window.fetch = async (path, about) => made[path] ? new Response(made[path]) : real(path, about); }})()"
    ));
}

/// A cluster of 5,000 nodes is shown as its zones, at once; a zone as its nodes.
pub(crate) fn thousands_of_nodes_are_groups(browser: &mut Browser) {
    let made = r#"(() => {
        const state = (n) => (n === 7 ? "silent" : n % 1000 === 5 ? "degraded" : "healthy");
        const nodes = Array.from({ length: 5000 }, (_, n) => ({ node: `n${n}`, group: `zone-${n % 12}`, state: state(n),
            addresses: [`10.0.${n >> 8}.${n & 255}`], lastSeenSeconds: 1, role: n < 36 ? `reflector of zone zone-${n % 12}` : "", status: { version: "0.1.0", sessions: { Established: 3 } } }));
        const answer = JSON.stringify({ node: "n0", nodes, sessions: [], sessionsOmitted: true });
        const plan = JSON.stringify({ change: "made", revision: 1, sessionsBefore: 12497500, sessionsAfter: 15000, mostBefore: 4999, mostAfter: 420,
            nodes: nodes.map((node, n) => ({ node: node.node, group: node.group, before: 4999, after: n < 36 ? 420 : 3, appear: 0, disappear: 4996, role: "" })),
            sessions: [], sessionsOmitted: true, missing: [], missingCount: 0, missingNow: 0, assumedPasswords: [] });
        return { "/api/v1/nodes": answer, "/api/v1/plan/topology?topology=reflectors": plan };
    })()"#;
    browser.resize(1200, 900);
    browser.open(&format!("{PAGE}#pools"));
    browser.await_true(
        30 * SECOND,
        "document.querySelectorAll('.cell').length >= 3",
    );
    answer_with(browser, made);
    let drawn = |browser: &mut Browser, place: &str, mark: &str, count: u32| {
        let script = format!(
            "(async () => {{ const begin = performance.now(); location.hash = '{place}'; \
             while (document.querySelectorAll('{mark}').length !== {count} && performance.now() - begin < 30000) \
             await new Promise(requestAnimationFrame); return performance.now() - begin; }})()"
        );
        let took = browser.value(&script);
        println!("{place}, of 5,000 nodes, was drawn after {took} ms");
        assert!(took.as_f64() < Some(1000.0), "{place}: {took} ms");
    };
    drawn(browser, "#map", ".group", 12);
    let silent = "document.querySelector('.group.silent b').textContent";
    assert_eq!(browser.value(silent), "zone-7");
    let listed = "document.querySelectorAll('[aria-label=Nodes] tbody tr').length";
    assert_eq!(browser.value(listed), 6);
    let told = "document.querySelector('.group').innerText.includes('417 nodes, 3 reflectors')";
    assert_eq!(browser.value(told), true);
    drawn(browser, "#map/zone-7", ".crowd a", 417);
    drawn(
        browser,
        "#changes?topology=reflectors",
        ".group.changes",
        12,
    );
    let told = "document.querySelector('.group').innerText.includes('4999 before, 3 to 420 after')";
    assert_eq!(browser.value(told), true);
    // What leads back to all zones is there when the zone is.
    let back = r##"a[href="#changes?topology=reflectors"]"##;
    drawn(browser, "#changes?topology=reflectors&zone=zone-7", back, 1);
    let listed = "document.querySelectorAll('[aria-label=Nodes] tbody tr').length";
    assert_eq!(browser.value(listed), 200, "of the zone's 417");
}

/// Six nodes in two racks of one zone and one of another: a ring for each reflector, an arc for
/// each rack.
pub(crate) fn reflectors_and_racks_are_drawn(browser: &mut Browser) {
    let made = r#"(() => {
        const nodes = Array.from({ length: 6 }, (_, n) => ({ node: `n${n}`, group: n < 4 ? "z1" : "z2", rack: `r${n >> 1}`, state: "healthy",
            role: n % 3 ? "client in zone z1" : "reflector of zone z1", status: { version: "0.1.0", sessions: { Established: 3 } } }));
        return { "/api/v1/nodes": JSON.stringify({ node: "n0", nodes, sessions: [{ from: "n0", to: "n3", state: "up" }], sessionsOmitted: false }) };
    })()"#;
    answer_with(browser, made);
    browser.open(&format!("{PAGE}#map/"));
    browser.await_true(
        30 * SECOND,
        "document.querySelectorAll('svg.map [data-node]').length === 6",
    );
    for (what, wanted) in [
        (
            "[...document.querySelectorAll('.ring')].map((ring) => ring.parentNode.dataset.node).join()",
            "n0,n3",
        ),
        (
            "[...document.querySelectorAll('.arc path title')].map((arc) => arc.textContent).join()",
            "z1 / r0,z1 / r1,z2 / r2",
        ),
        (
            "document.querySelector('[data-node=n3]').getAttribute('aria-label')",
            "node n3: healthy, reflector of zone z1",
        ),
        (
            "document.querySelector('[aria-label=Nodes] tbody tr').cells[2].textContent",
            "reflector of zone z1",
        ),
    ] {
        assert_eq!(browser.value(what), wanted, "{what}");
    }
}

/// Two nodes that have addresses of a third one's block.
pub(crate) fn who_borrows_is_drawn(browser: &mut Browser) {
    let made = r#"(() => {
        const blocks = [{ cidr: "10.0.0.0/29", node: "n1", inUse: 7, borrowed: 3, size: 8 }, { cidr: "10.0.0.8/29", node: "n2", inUse: 8, borrowed: 0, size: 8 }];
        const pool = { name: "p", cidr: "10.0.0.0/28", encapsulation: "none", natOutgoing: false, disabled: false, addresses: 16, inUse: 15, borrowed: 3,
            borrowers: [{ node: "n2", from: "n1", count: 2 }, { node: "n3", from: "n1", count: 1 }], blockCount: 2, blocksMax: 2, blocks, blocksOmitted: 0 };
        return { "/api/v1/pools": JSON.stringify({ revision: 1, pools: [pool] }) };
    })()"#;
    answer_with(browser, made);
    browser.open(&format!("{PAGE}#pools/p"));
    browser.await_true(
        30 * SECOND,
        "document.querySelectorAll('.cell').length === 2 && document.querySelectorAll('.cell rect.lent').length === 1",
    );
    let rows = "[...document.querySelectorAll('[aria-label=\"Who borrows\"] tbody tr')].map((row) => row.innerText.replace(/\\s+/g, ' ').trim()).join()";
    assert_eq!(browser.value(rows), "n2 n1 2,n3 n1 1");
    let bars = "[...document.querySelectorAll('svg.bar.lent rect')].map((bar) => bar.getAttribute('width')).join()";
    assert_eq!(browser.value(bars), "100,50");
    let named = "document.querySelector('.cell').title.includes('3 borrowed by others')";
    assert_eq!(browser.value(named), true);
}
