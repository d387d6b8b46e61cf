//! Values that cannot be read and never could be: each holds back deletions of its own range, in a
//! running node and in one that starts beside them, and everything else is swept.

use caracal_lab::Lab;
use caracal_model::Family;
use caracal_tests::{
    SECOND, address_of, await_settled, await_status, delete_calico_resource, either, exit_code,
    focus, has_no_problem, has_problem, ip, is_kubernetes, kubectl, on_each_stack_and_datastore,
    put_calico_resource, run_on,
};
use serde_json::json;

const NODE: &str = "node1";

#[test]
fn a_value_that_cannot_be_read_holds_back_its_own_range() {
    let scenario = "a_value_that_cannot_be_read_holds_back_its_own_range";
    on_each_stack_and_datastore(scenario, &[], "full-mesh", "fail-unread", unread);
}

/// Ranges inside the pool: of the block that cannot be read, and another one; and one outside.
struct Ranges {
    family: Family,
    block: &'static str,
    other: &'static str,
    outside: &'static str,
}

impl Ranges {
    fn of(lab: &Lab) -> Self {
        let family = focus(lab);
        Self {
            family,
            block: either(family, "10.244.200.0/26", "fd00:10:244::c80/122"),
            other: either(family, "10.244.201.0/26", "fd00:10:244::d00/122"),
            outside: either(family, "198.51.100.0/24", "2001:db8:9::/64"),
        }
    }

    /// Leaves a route with our protocol in each, as an earlier process would have.
    fn leave_routes(&self, lab: &Lab) {
        let via = address_of(lab, "node2", self.family);
        let all = [self.block, self.other, self.outside];
        let lines = all.map(|range| format!("route replace {range} via {via} dev eth0 proto 80"));
        ip(lab, NODE, &lines);
    }

    /// Waits until only these of them have their route.
    fn await_left(&self, lab: &Lab, wanted: &[&str]) {
        let flag = either(self.family, "-4", "-6");
        let all = [self.block, self.other, self.outside];
        let left = || -> Vec<&str> {
            let routes = run_on(lab, NODE, &format!("ip {flag} route show table main"));
            let has = |range: &&str| routes.lines().any(|line| line.starts_with(*range));
            all.into_iter().filter(has).collect()
        };
        let settled = |status: &caracal_model::NodeStatus| {
            let synced = status.kernel.phase == "synced";
            let left = left();
            match synced && left == wanted {
                true => Ok(()),
                false => Err(format!("{:?}: {left:?}, not {wanted:?}", status.kernel)),
            }
        };
        await_status(lab, NODE, 60 * SECOND, "the rest is swept", settled);
        // The next sweep is no other.
        assert_eq!(left(), wanted);
    }
}

fn put_block(lab: &Lab, cidr: &str) {
    let block = json!({
        "cidr": cidr,
        "affinity": "nonsense",
        "strictAffinity": false,
        "allocations": [],
        "unallocated": [],
        "attributes": [],
        "deleted": false,
    });
    match is_kubernetes(lab) {
        true => {
            let object = json!({
                "kind": "IPAMBlock",
                "metadata": {"name": cidr.replace(['.', '/', ':'], "-")},
                "spec": block,
            });
            put_calico_resource(lab, "ipamblocks", &object);
        }
        false => {
            let value = block.to_string();
            lab.etcdctl(&["put", &block_key(cidr)], value.as_bytes())
                .unwrap();
        }
    }
}

fn block_key(cidr: &str) -> String {
    let family = either_of(cidr, "ipv4", "ipv6");
    let key = cidr.replace('/', "-");
    format!("/calico/ipam/v2/assignment/{family}/block/{key}")
}

fn either_of<'a>(cidr: &str, ipv4: &'a str, ipv6: &'a str) -> &'a str {
    if cidr.contains(':') { ipv6 } else { ipv4 }
}

fn delete_block(lab: &Lab, cidr: &str) {
    match is_kubernetes(lab) {
        true => {
            let name = cidr.replace(['.', '/', ':'], "-");
            kubectl(lab, &["delete", "ipamblocks", &name], b"");
        }
        false => drop(lab.etcdctl(&["del", &block_key(cidr)], b"").unwrap()),
    }
}

fn unread(mut lab: Lab) {
    let ranges = Ranges::of(&lab);
    await_settled(&lab);
    // Nothing is in doubt.
    ranges.leave_routes(&lab);
    ranges.await_left(&lab, &[]);

    put_block(&lab, ranges.block);
    let said = format!("no route inside {} is deleted", ranges.block);
    let named =
        |status: &caracal_model::NodeStatus| has_problem(status, "datastore.invalid_value", &said);
    await_status(&lab, NODE, 60 * SECOND, "the block named", named);
    ranges.leave_routes(&lab);
    ranges.await_left(&lab, &[ranges.block]);

    // A start beside it.
    lab.kill9_node(NODE).unwrap();
    ranges.leave_routes(&lab);
    lab.restart_node(NODE).unwrap();
    await_settled(&lab);
    ranges.await_left(&lab, &[ranges.block]);
    await_status(&lab, NODE, 60 * SECOND, "the block named", named);
    let (_, report) = exit_code(&lab, NODE, &["audit"]);
    assert!(!report.contains("CRL-R004"), "{report}");

    // An IPPool's range is not known: what lies outside the others may be its.
    let pool = json!({
        "kind": "IPPool",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "unread"},
        "spec": {"cidr": "10.300.0.0/16"},
    });
    put_calico_resource(&lab, "ippools", &pool);
    let said = "no route outside other pools, is deleted";
    await_status(&lab, NODE, 60 * SECOND, "the pool named", |status| {
        has_problem(status, "datastore.invalid_value", said)
    });
    delete_block(&lab, ranges.block);
    ranges.leave_routes(&lab);
    ranges.await_left(&lab, &[ranges.outside]);
    lab.kill9_node(NODE).unwrap();
    ranges.leave_routes(&lab);
    lab.restart_node(NODE).unwrap();
    await_settled(&lab);
    ranges.await_left(&lab, &[ranges.outside]);

    // Once they can be read, or are gone, so is what they held back.
    delete_calico_resource(&lab, "ippools", "unread");
    ranges.await_left(&lab, &[]);
    await_status(&lab, NODE, 60 * SECOND, "nothing in doubt", |status| {
        has_no_problem(status, "datastore.invalid_value")
    });
}
