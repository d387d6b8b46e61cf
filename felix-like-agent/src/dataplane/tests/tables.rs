//! Elements by netlink, as `nft` lists them.

use super::*;
use crate::dataplane::netlink::nftables::TableSocket;
use crate::dataplane::read::hints::OwnChanges;
use crate::dataplane::write::programs::run;
use crate::dataplane::write::tables::TableWriter;
use crate::nft::{ElementData, Fields, SetElement, TableEdit, Transaction};

const TABLE: &str = "table inet edited {
	chain pick {
	}
	map services {
		type ipv4_addr . inet_proto . inet_service : verdict
	}
	map endpoints {
		typeof ip6 daddr . meta l4proto . tcp dport . numgen random mod 2 : ip6 daddr . tcp dport
	}
	set hits {
		type ipv4_addr . inet_proto . inet_service
		counter
	}
	set sources {
		type ifname . ipv4_addr
	}
	set hosts {
		type ipv4_addr
	}
}
";

async fn nft(script: &str) -> String {
    run("nft", &["-f", "-"], script).await.unwrap()
}

fn address(text: &str) -> Fields {
    Fields::default().address(text.parse().unwrap())
}

fn element(key: Fields, data: Option<ElementData>) -> SetElement {
    SetElement { key, data }
}

fn add(set: &str, elements: Vec<SetElement>) -> TableEdit {
    TableEdit::Add(set.to_owned(), elements)
}

/// An edit of each kind.
fn edits() -> Vec<TableEdit> {
    let port = |text: &str| address(text).protocol(6).port(80);
    let refused = Fields::default().address("10.96.0.2".parse().unwrap());
    let index = address("fd00::1").protocol(17).port(80).number(258);
    let to = address("fd00::2").port(8080);
    let source = Fields::default().interface("cali1").unwrap();
    vec![
        TableEdit::AddChain("mark".to_owned()),
        add(
            "services",
            vec![
                element(
                    port("10.96.0.1"),
                    Some(ElementData::Goto("pick".to_owned())),
                ),
                element(refused.protocol(132).port(90), Some(ElementData::Drop)),
            ],
        ),
        add(
            "endpoints",
            vec![element(index, Some(ElementData::Value(to)))],
        ),
        add("hits", vec![element(port("10.96.0.1"), None)]),
        add(
            "sources",
            vec![element(source.address("10.0.0.1".parse().unwrap()), None)],
        ),
    ]
}

#[test]
fn elements_are_those_that_nft_lists() {
    in_namespace("tables::elements_are_those_that_nft_lists", || async {
        nft(TABLE).await;
        let mut socket = TableSocket::open().unwrap();
        socket.transact("edited", &edits()).unwrap();
        let listed = nft("list table inet edited\n").await;
        for line in [
            "elements = { 10.96.0.1 . tcp . 80 : goto pick,",
            "10.96.0.2 . sctp . 90 : drop }",
            "elements = { fd00::1 . udp . 80 . 258 : fd00::2 . 8080 }",
            "elements = { 10.96.0.1 . tcp . 80 counter packets 0 bytes 0 }",
            "elements = { \"cali1\" . 10.0.0.1 }",
            "chain mark {",
        ] {
            assert!(listed.contains(line), "{line}: {listed}");
        }
        // Once more: what is there may be added again, as with `nft`.
        socket.transact("edited", &edits()[1..]).unwrap();
        let gone = edits().into_iter().map(|edit| match edit {
            TableEdit::Add(set, elements) => TableEdit::Delete(set, elements),
            TableEdit::AddChain(chain) => TableEdit::DeleteChain(chain),
            other => other,
        });
        socket
            .transact("edited", &gone.collect::<Vec<_>>())
            .unwrap();
        let listed = nft("list table inet edited\n").await;
        assert!(
            !listed.contains("elements") && !listed.contains("mark"),
            "{listed}"
        );
        socket.transact("edited", &[]).unwrap();
    });
}

#[test]
fn what_the_kernel_refuses_changes_nothing() {
    in_namespace(
        "tables::what_the_kernel_refuses_changes_nothing",
        || async {
            nft(TABLE).await;
            let mut socket = TableSocket::open().unwrap();
            let hosts = |range: std::ops::Range<u32>| {
                let of = |n: u32| element(address(&std::net::Ipv4Addr::from(n).to_string()), None);
                range.map(of).collect::<Vec<_>>()
            };
            let first = 0x0a00_0000;
            let missing = TableEdit::Delete("hosts".to_owned(), hosts(1..2));
            let many = add("hosts", hosts(first..first + 1000));
            let error = socket
                .transact("edited", &[many.clone(), missing])
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
            let error = socket
                .transact("nowhere", std::slice::from_ref(&many))
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
            let listed = nft("list table inet edited\n").await;
            assert!(!listed.contains("elements"), "{listed}");
            // The answers to that are nobody's.
            socket.transact("edited", &[many]).unwrap();
            let listed = nft("list table inet edited\n").await;
            assert_eq!(listed.matches("10.0.").count(), 1000);
        },
    );
}

#[test]
fn what_netlink_cannot_is_done_by_the_script() {
    in_namespace(
        "tables::what_netlink_cannot_is_done_by_the_script",
        || async {
            nft(TABLE).await;
            let writer = TableWriter::new("edited", OwnChanges::default());
            let transaction = |script: &str, edits| Transaction {
                script: script.to_owned(),
                edits,
            };
            let by_netlink = transaction("nonsense", Some(edits()));
            writer.write(&by_netlink).await.unwrap();
            let script = "add element inet edited hosts { 10.0.0.9 }\n";
            let refused = vec![TableEdit::DeleteChain("none".to_owned())];
            writer
                .write(&transaction(script, Some(refused)))
                .await
                .unwrap();
            let listed = nft("list table inet edited\n").await;
            assert!(
                listed.contains("goto pick") && listed.contains("10.0.0.9"),
                "{listed}"
            );
            let refused = writer.write(&transaction("nonsense", None)).await;
            assert!(refused.unwrap_err().to_string().contains("nft says"));
        },
    );
}
