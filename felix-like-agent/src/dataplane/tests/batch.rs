//! Batches of changes: order, attribution of refusals, more of both than a socket buffer holds.

use super::*;
use crate::kernel_objects::{ForwardingTarget, Route};
use crate::op::Op;

fn route(n: u32, gateway: &str) -> Route {
    Route {
        prefix: Prefix::v4((0x0b00_0000 + n * 64).into(), 26),
        metric: 0,
        protocol: 80,
        target: ForwardingTarget::via(Some(gateway.parse().unwrap()), &"eth0".into(), false),
        mtu: None,
        source: None,
    }
}

#[test]
fn every_refusal_is_told_of_its_own_op_in_the_kernels_words() {
    in_namespace(
        "batch::every_refusal_is_told_of_its_own_op_in_the_kernels_words",
        || async {
            lab();
            // Each third one leads nowhere, one names a device that is not there, and one changes
            // the one before.
            let mut ops: Vec<Op> = (0..10_000)
                .map(|n| {
                    let gateway = if n % 3 == 0 { "192.0.2.1" } else { "10.0.0.2" };
                    Op::AddRoute(route(n, gateway))
                })
                .collect();
            let mut nowhere = route(20_000, "10.0.0.2");
            nowhere.target = ForwardingTarget::via(None, &"eth9".into(), false);
            ops.insert(5000, Op::AddRoute(nowhere));
            ops.insert(5001, Op::AddRoute(route(20_001, "10.0.0.2")));
            ops.insert(5002, Op::ReplaceRoute(route(20_001, "10.0.0.3")));
            ops.push(Op::AddRoute(route(1, "10.0.0.3")));
            let done = crate::dataplane::apply_ops(ops.clone()).await.unwrap();
            assert_eq!(done.len(), ops.len());
            for (n, ((op, result), asked)) in done.iter().zip(&ops).enumerate() {
                assert_eq!(op, asked, "{n}");
                let expected = match op {
                    _ if n + 1 == ops.len() => Err("File exists (os error 17)"),
                    Op::AddRoute(r) if r.target.to_string().contains("eth9") => {
                        Err("there is no device eth9")
                    }
                    Op::AddRoute(r) if r.target.to_string().contains("192.0.2.1") => {
                        Err("Network is unreachable (os error 101): Nexthop has invalid gateway")
                    }
                    _ => Ok(()),
                };
                assert_eq!(
                    result.as_ref().map_err(String::as_str),
                    expected.as_ref().map(|()| &()).map_err(|e| *e),
                    "{n}: {op}"
                );
            }
            let there = sh("ip route show proto 80 | wc -l");
            assert_eq!(there.trim(), (10_000 - 3334 + 1).to_string());
            let replaced = sh("ip route show 11.19.136.64/26");
            assert!(replaced.contains("via 10.0.0.3"), "{replaced}");
        },
    );
}

#[test]
fn a_batch_of_refusals_overruns_nothing() {
    in_namespace("batch::a_batch_of_refusals_overruns_nothing", || async {
        lab();
        let ops: Vec<Op> = (0..5000)
            .map(|n| Op::AddRoute(route(n, "192.0.2.1")))
            .collect();
        let done = crate::dataplane::apply_ops(ops).await.unwrap();
        assert_eq!(
            done.iter().filter(|(_, result)| result.is_err()).count(),
            5000
        );
        assert_eq!(sh("ip route show proto 80"), "");
    });
}
