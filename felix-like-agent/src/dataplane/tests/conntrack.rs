//! Which flows the kernel tells of.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};

use super::*;
use crate::dataplane::conntrack::{End, forget_flows};
use crate::transport::Transport;

#[test]
fn flows_to_few_ends_are_asked_for_alone() {
    in_namespace(
        "conntrack::flows_to_few_ends_are_asked_for_alone",
        || async {
            sh("ip link set lo up
            for n in 1 2; do ip addr add 10.9.0.$n/32 dev lo; done
            ip -6 addr add fd00:9::1/128 dev lo nodad
            nft -f - <<'END'
            table inet seen {
                chain sent {
                    type filter hook output priority 0
                    ct state new counter
                }
            }
END");
            let all = [
                "10.9.0.1:53",
                "10.9.0.1:54",
                "10.9.0.2:53",
                "[fd00:9::1]:53",
            ];
            let all = all.map(|at| at.parse::<SocketAddr>().unwrap());
            // Who listens is not refused, and refused flows end.
            let sockets = all.map(|at| UdpSocket::bind(at).unwrap());
            for (to, from) in all.iter().zip(&sockets) {
                from.send_to(b"x", to).unwrap();
            }
            let ends = |of: &[usize]| {
                let end = |n: &usize| (Transport::Udp, (all[*n].ip(), all[*n].port()));
                of.iter().map(end).collect::<Vec<_>>()
            };
            let told = |ends: &[(Transport, End)], stale: bool| {
                let told = RefCell::new(Vec::new());
                let forgotten = forget_flows(ends, |flow| {
                    told.borrow_mut().push((flow.protocol, flow.to));
                    stale
                });
                let number = forgotten.unwrap().get(&Transport::Udp).copied();
                let mut told = told.into_inner();
                told.sort();
                (told, number.unwrap_or_default())
            };
            for of in [&[0][..], &[3], &[1, 3], &[0, 1, 2, 3], &[]] {
                let sought = ends(of);
                assert_eq!(told(&sought, false), (sought, 0));
            }
            // More than a few.
            let many = ends(&[0; 9]);
            assert_eq!(told(&many, false).0.len(), 4);
            assert_eq!(told(&ends(&[0, 3]), true).1, 2);
            assert_eq!(told(&many, false).0, ends(&[1, 2]));
        },
    );
}
