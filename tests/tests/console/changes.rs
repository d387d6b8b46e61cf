//! What changes would do, asked and drawn: the place of the page and its questions. Nothing is
//! written by asking.

use caracal_lab::Lab;
use caracal_tests::{
    Browser, SECOND, calico_resource, calico_resource_if_any, put_calico_resource, run_on,
};
use serde_json::{Value, json};

use super::{PAGE, ask, keep_picture};

/// The lab's pool.
pub(crate) const POOL: &str = "default-ipv4-ippool";

/// What asking must not change: resources, and devices of the node that is asked.
pub(crate) fn written(lab: &Lab) -> Vec<String> {
    let pool = calico_resource(lab, "ippools", POOL);
    let configuration = calico_resource_if_any(lab, "bgpconfigurations", "default");
    let devices = run_on(lab, "node1", "ip -br -o link show");
    vec![format!("{pool:?}"), format!("{configuration:?}"), devices]
}

/// Questions that cannot be answered have a sentence, and the plan is the command's.
pub(crate) fn are_asked_about(lab: &Lab) {
    let said = |path: &str, status: u16, part: &str| {
        let (seen, answer) = ask(lab, "node1", &format!("/api/v1/plan/{path}"));
        let text = answer["error"].as_str().unwrap_or_default();
        assert!(
            seen == status && text.contains(part),
            "{path}: {seen}: {answer}"
        );
    };
    said("mode", 400, "pool=NAME is missing");
    said(
        &format!("mode?pool={POOL}&mode=GRE"),
        400,
        "expected None, IPIP",
    );
    said(
        "mode?pool=nobody&mode=IPIP",
        404,
        "the pools are: default-ipv4-ippool",
    );
    said("topology?topology=star", 400, "expected mesh or reflectors");
    said(
        "topology?topology=mesh&levels=2",
        400,
        "are for topology=reflectors",
    );

    let path = format!("/api/v1/plan/mode?pool={POOL}&mode=VXLAN");
    let (_, plan) = ask(lab, "node1", &path);
    let command = [
        "mode", "plan", POOL, "--vxlan", "Always", "--ipip", "Never", "-o", "json",
    ];
    let told = lab.caracal("node1", &command).unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(plan["change"], told["change"]);
    for node in plan["nodes"].as_array().unwrap() {
        let mut node = node.clone();
        let fields = node.as_object_mut().unwrap();
        let name = fields.remove("node").unwrap();
        fields.remove("group");
        fields.remove("rack");
        assert_eq!(node, told["nodes"][name.as_str().unwrap()], "{name}");
    }
}

/// A pool gets another encapsulation, on paper: chosen, drawn twice, told in numbers.
pub(crate) fn of_a_mode_are_drawn(browser: &mut Browser, nodes: usize) {
    let lines = nodes * (nodes - 1) / 2;
    browser.open(&format!("{PAGE}#changes"));
    browser.await_true(
        30 * SECOND,
        "document.querySelectorAll('#plan-pool option').length === 1",
    );
    assert_eq!(
        browser.value("document.querySelectorAll('svg.map').length"),
        0
    );
    browser.value("document.getElementById('plan-mode').value = 'VXLAN'; document.getElementById('plan-of-mode').requestSubmit()");
    browser.await_true(
        30 * SECOND,
        "document.querySelectorAll('figure svg.map').length === 2",
    );
    let place = format!("#changes?pool={POOL}&mode=VXLAN");
    assert_eq!(browser.value("location.hash"), place);
    for (side, mark) in [("first", "way-direct"), ("last", "way-vxlan.changed")] {
        let figure = format!("figure:{side}-child");
        let count = |of: &str| format!("document.querySelectorAll('{figure} {of}').length");
        assert_eq!(browser.value(&count("[data-node]")), nodes, "{side}");
        assert_eq!(
            browser.value(&count(&format!("line.{mark}"))),
            lines,
            "{side}"
        );
    }
    // Not by colour alone.
    let dashes = |side: &str| {
        format!(
            "getComputedStyle(document.querySelector('figure:{side}-child line')).strokeDasharray"
        )
    };
    let width = |side: &str| {
        format!("getComputedStyle(document.querySelector('figure:{side}-child line')).strokeWidth")
    };
    for of in [&dashes as &dyn Fn(&str) -> String, &width] {
        assert_ne!(browser.value(&of("first")), browser.value(&of("last")));
    }
    let routes = nodes * (nodes - 1);
    for text in [
        format!("{routes} routes direct → vxlan"),
        "nothing speaks against it".to_owned(),
        "vxlan.calico, MTU".to_owned(),
        "Nothing is written".to_owned(),
    ] {
        let shown = format!("document.getElementById('main').innerText.includes('{text}')");
        assert_eq!(browser.value(&shown), true, "{text}");
    }
    keep_picture(browser, "changes", (1000, 900));
    browser.open(&format!("{PAGE}#changes?pool=nobody&mode=VXLAN"));
    browser.await_true(
        30 * SECOND,
        "document.querySelector('[role=alert]')?.innerText.includes('the pools are: default-ipv4-ippool') === true",
    );
}

/// The mesh becomes reflectors, on paper; the numbers are typed and sent by the keyboard.
pub(crate) fn of_the_topology_are_drawn(browser: &mut Browser, before: usize, after: usize) {
    browser.open(&format!("{PAGE}#changes?topology=reflectors"));
    browser.await_true(
        30 * SECOND,
        "document.getElementById('plan-topology')?.value === 'reflectors' && document.querySelectorAll('figure').length === 2",
    );
    browser.value("document.getElementById('plan-reflectors').value = '1'; document.getElementById('plan-limit').value = '2'; document.getElementById('plan-limit').focus()");
    for kind in ["keyDown", "keyUp"] {
        let key = json!({"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"});
        browser.call("Input.dispatchKeyEvent", &key);
    }
    browser.await_true(
        30 * SECOND,
        "location.hash === '#changes?topology=reflectors&limit=2&reflectors=1'",
    );
    browser.await_true(
        30 * SECOND,
        &format!("document.querySelector('#main dl')?.innerText.includes('{before} before, {after} after') === true"),
    );
    for (side, mark, count) in [
        ("first", "stays", after),
        ("first", "disappears", before - after),
        ("last", "stays", after),
        ("last", "disappears", 0),
    ] {
        let found = format!("document.querySelectorAll('figure:{side}-child line.{mark}').length");
        assert_eq!(browser.value(&found), count, "{side} {mark}");
    }
    let role = "document.querySelector('[aria-label=Nodes] tbody').innerText.includes('reflector of zone')";
    assert_eq!(browser.value(role), true);
}

/// A node of another AS would hear of nobody: why it would be refused is there as text.
pub(crate) fn that_would_be_refused_say_why(lab: &Lab, browser: &mut Browser) {
    let node = json!({"kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "stranger"},
        "spec": {"bgp": {"ipv4Address": "10.0.0.10/24", "asNumber": 65001}}});
    put_calico_resource(lab, "nodes", &node);
    // It is there as soon as the node has heard of it.
    let path = "topology=reflectors&limit=2&reflectors=1";
    let heard = caracal_lab::wait_until(30 * SECOND, "the finding", || {
        let (_, plan) = ask(lab, "node1", &format!("/api/v1/plan/topology?{path}"));
        match plan["missingCount"].as_u64() > Some(0) {
            true => Ok(()),
            false => Err(plan),
        }
    });
    heard.unwrap_or_else(|e| panic!("{e}"));
    // A plan stays until somebody asks again.
    assert_eq!(browser.value("location.hash"), format!("#changes?{path}"));
    let old = "document.getElementById('main').innerText.includes('stranger')";
    assert_eq!(browser.value(old), false);
    browser.value("document.getElementById('plan-of-topology').requestSubmit()");
    browser.await_true(
        30 * SECOND,
        "document.getElementById('main').innerText.includes('stranger does not learn node1\\'s IPv4 routes')",
    );
    let shown = "document.getElementById('main').innerText.includes('it would be refused: ')";
    assert_eq!(browser.value(shown), true);
}
