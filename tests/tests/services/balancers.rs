//! A load balancer's address for machines outside of the cluster: source ranges, clients that keep
//! their endpoint, and the source that endpoints see.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use caracal_lab::{Lab, PodState, error_chain, wait_until};
use caracal_model::{Family, Prefix};
use caracal_tests::{
    EchoServer, PodEndpoint, SECOND, Services, VipConnection, address_of, await_settled, either,
    endpoint_slices, focus, ip, on_each_stack_of,
};

use super::translation::vip;

/// Two nodes, and two machines outside.
const TOPOLOGY: &str = "name: balanced
pool: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: Always}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: out, segment: lan, address: 10.0.0.31, kind: plain}
  - {name: far, segment: lan, address: 10.0.0.32, kind: plain}
";
const TARGET: u16 = 8080;
/// As many connections as chance does not send to one of two endpoints (2^-19).
const MANY: usize = 20;

#[test]
fn a_load_balancers_address_serves_machines_outside() {
    let scenario = "a_load_balancers_address_serves_machines_outside";
    on_each_stack_of(scenario, &["nft"], TOPOLOGY, "lb", balancer);
}

fn balanced(family: Family) -> IpAddr {
    either(family, "203.0.113.10", "2001:db8:3::10")
        .parse()
        .unwrap()
}

/// The service with more fields of its spec, and with these endpoints.
fn document(family: Family, spec: &str, pods: &[&PodState]) -> String {
    let endpoints: Vec<PodEndpoint<'_>> = pods
        .iter()
        .map(|pod| PodEndpoint {
            pod,
            port: TARGET,
            terminates: false,
        })
        .collect();
    let mut text = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{type: LoadBalancer, clusterIP: '{}', ports: [{{port: 80, targetPort: {TARGET}}}], {spec}}}
status: {{loadBalancer: {{ingress: [{{ip: '{}'}}]}}}}
",
        vip(family),
        balanced(family)
    );
    text += &endpoint_slices("web", &[family], &[TARGET], &endpoints);
    text
}

/// Who answers a machine, and which client they see.
type Seen = BTreeSet<(String, IpAddr)>;

/// So many connections of a machine; why there is none.
fn opened(lab: &Lab, machine: &str, times: usize) -> Result<Seen, ErrorKind> {
    let (netns, to) = (lab.netns(machine).unwrap(), to(lab));
    let open = |_| VipConnection::open(&netns, to).map(|c| (c.server, c.client));
    (0..times).map(open).collect()
}

/// Who answers a machine; `None` where nobody does.
fn answers(lab: &Lab, machine: &str, times: usize) -> Option<Seen> {
    match opened(lab, machine, times) {
        Ok(seen) => Some(seen),
        Err(ErrorKind::TimedOut | ErrorKind::WouldBlock) => None,
        Err(other) => panic!("{machine}: {other:?}"),
    }
}

fn to(lab: &Lab) -> SocketAddr {
    (balanced(focus(lab)), 80).into()
}

/// Waits until a machine is answered as `is_right` wants it.
fn await_answers(lab: &Lab, machine: &str, what: &str, is_right: impl Fn(&Seen) -> bool) -> Seen {
    // Until the Service is in force, a node or the kernel may say that there is no way.
    let answered = wait_until(120 * SECOND, what, || match opened(lab, machine, MANY) {
        Ok(seen) if is_right(&seen) => Ok(seen),
        other => Err(format!("{other:?}")),
    });
    answered.unwrap_or_else(|e| {
        let shown = lab.caracal("n1", &["services", "show", "--here"]);
        panic!("{e}\n{}", shown.unwrap_or_else(|e| error_chain(&e)))
    })
}

fn balancer(mut lab: Lab) {
    await_settled(&lab);
    let family = focus(&lab);
    let [n1, out, far] = ["n1", "out", "far"].map(|name| address_of(&lab, name, family));
    for machine in ["out", "far"] {
        let way = format!("route replace {} via {n1}", Prefix::host(balanced(family)));
        ip(&lab, machine, &[&way]);
    }
    let pods = lab.state().pods.clone();
    let _servers: Vec<EchoServer> = pods
        .iter()
        .map(|pod| EchoServer::start(pod, &lab.topology().families(), TARGET))
        .collect();
    let both: Vec<&PodState> = pods.iter().collect();
    let limited = |more: &[IpAddr]| {
        let ranges: Vec<String> = std::iter::once(&out)
            .chain(more)
            .map(|own| format!("'{}'", Prefix::host(*own)))
            .collect();
        format!(
            "sessionAffinity: ClientIP, loadBalancerSourceRanges: [{}]",
            ranges.join(", ")
        )
    };
    Services(&lab).prepare();
    Services(&lab).apply(&document(family, &limited(&[]), &both));

    // The client comes from outside, so the endpoint answers by way of the node that it came to.
    let kept = await_answers(&lab, "out", "an endpoint that out keeps", |seen| {
        seen.len() == 1
    });
    let (server, client) = kept.first().unwrap().clone();
    assert_ne!(client, out, "masqueraded");
    assert_eq!(answers(&lab, "far", 1), None, "far is in no range");
    lab.kill9_node("n1").unwrap();
    assert_eq!(answers(&lab, "out", MANY), Some(kept.clone()));
    assert_eq!(answers(&lab, "far", 1), None, "without the agent");
    lab.restart_node("n1").unwrap();
    await_settled(&lab);
    assert_eq!(answers(&lab, "out", MANY), Some(kept));

    // Its endpoint goes, and so does what was remembered of it; another range comes.
    let rest: Vec<&PodState> = pods.iter().filter(|pod| pod.label() != server).collect();
    Services(&lab).apply(&document(family, &limited(&[far]), &rest));
    for machine in ["out", "far"] {
        let other = |seen: &BTreeSet<(String, IpAddr)>| seen.iter().all(|(s, _)| *s != server);
        await_answers(&lab, machine, "the endpoint that is left", other);
    }

    // Policy Local: those of this node alone, which see who it is.
    let local = "externalTrafficPolicy: Local";
    Services(&lab).apply(&document(family, local, &both));
    for (machine, own) in [("out", out), ("far", far)] {
        let here = [("n1/p1".to_owned(), own)].into();
        await_answers(&lab, machine, "the endpoint of n1", |seen| *seen == here);
    }
    let elsewhere: Vec<&PodState> = pods.iter().filter(|pod| pod.node == "n2").collect();
    Services(&lab).apply(&document(family, local, &elsewhere));
    wait_until(120 * SECOND, "nobody on n1", || {
        answers(&lab, "out", 1).map_or(Ok(()), |seen| Err(format!("{seen:?}")))
    })
    .unwrap_or_else(|e| panic!("{e}"));
}
