//! The router id of a speaker whose file leaves it to the interfaces of the machine.

use caracal_lab::{ip_batch, wait_until};
use caracal_model::Family;
use caracal_tests::{SECOND, possible};

use super::{Site, config, stderr};

#[test]
fn a_router_id_is_an_interfaces_and_stays_as_long_as_it_is_there() {
    if !possible(
        "a_router_id_is_an_interfaces_and_stays_as_long_as_it_is_there",
        &[],
    ) {
        return;
    }
    let mut site = Site::new("identity", Family::Ipv6);
    let netns = site.namespace.as_ref().unwrap().0.clone();
    let ip = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        ip_batch(Some(&netns), &lines).unwrap();
    };
    ip(&[
        "link add d0 type veth peer name d1",
        "link set d0 up",
        "address add 10.9.0.2/24 dev d0",
        "address add 10.9.0.1/24 dev d0",
        "address add 10.1.0.1/24 dev d1",
    ]);
    let file = config(&site, 90, 9, "");
    site.write(&file.replace("router id 127.93.0.1;", "router id from \"d*\";"));
    site.start_speaker();
    let await_id = |id: &str| {
        wait_until(60 * SECOND, "the router id", || {
            let status = site.ask(&["status"]);
            let shown = String::from_utf8_lossy(&status.stdout).into_owned();
            match shown.contains(&format!("router id {id}\n")) {
                true => Ok(()),
                false => Err(shown),
            }
        })
        .unwrap();
    };
    // Neither one of the same subnet, nor one of an interface that is down, though both are lower.
    await_id("10.9.0.2");
    let reload = || site.ask(&["speaker", "reload"]);
    ip(&["link set d1 up"]);
    assert!(reload().status.success(), "{}", stderr(&reload()));
    await_id("10.9.0.2");
    ip(&["address del 10.9.0.2/24 dev d0"]);
    assert!(reload().status.success(), "{}", stderr(&reload()));
    await_id("10.1.0.1");
    ip(&["address del 10.1.0.1/24 dev d1", "link set d0 down"]);
    let refused = reload();
    assert_eq!(refused.status.code(), Some(5));
    let said = stderr(&refused);
    assert!(said.contains("or \"router id ADDRESS;\""), "{said}");
    assert!(said.contains("lo 127.0.0.1 (loopback)"), "{said}");
    await_id("10.1.0.1");
}
