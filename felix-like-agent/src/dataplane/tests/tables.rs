//! Elements by netlink, as `nft` lists them.

use super::*;
use crate::dataplane::netlink::nftables::TableSocket;
use crate::dataplane::read::hints::OwnChanges;
use crate::dataplane::write::programs::run;
use crate::dataplane::write::tables::TableWriter;
use crate::nft::{Edit, Element, Transaction};

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

fn add<'a>(set: &str, elements: impl IntoIterator<Item = &'a str>) -> Edit {
    let elements = elements
        .into_iter()
        .map(|text| Element::parse(text).unwrap());
    Edit::Add(set.into(), elements.collect())
}

/// An edit of each kind.
fn edits() -> Vec<Edit> {
    vec![
        Edit::AddChain("mark".to_owned(), Vec::new()),
        add(
            "services",
            [
                "10.96.0.1 . tcp . 80 : goto pick",
                "10.96.0.2 . sctp . 90 : drop",
            ],
        ),
        add("endpoints", ["fd00::1 . udp . 80 . 258 : fd00::2 . 8080"]),
        add("hits", ["10.96.0.1 . tcp . 80"]),
        add("sources", ["\"cali1\" . 10.0.0.1"]),
    ]
}

fn transact(socket: &mut TableSocket, table: &str, edits: &[Edit]) -> std::io::Result<()> {
    socket.transact(table, &Transaction(edits.to_vec()))
}

#[test]
fn elements_are_those_that_nft_lists() {
    in_namespace("tables::elements_are_those_that_nft_lists", || async {
        nft(TABLE).await;
        let mut socket = TableSocket::open().unwrap();
        transact(&mut socket, "edited", &edits()).unwrap();
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
        transact(&mut socket, "edited", &edits()[1..]).unwrap();
        let gone = edits().into_iter().map(|edit| match edit {
            Edit::Add(set, elements) => Edit::Delete(set, elements),
            Edit::AddChain(chain, _) => Edit::DeleteChain(chain),
            other => other,
        });
        transact(&mut socket, "edited", &gone.collect::<Vec<_>>()).unwrap();
        let listed = nft("list table inet edited\n").await;
        assert!(
            !listed.contains("elements") && !listed.contains("mark"),
            "{listed}"
        );
        transact(&mut socket, "edited", &[]).unwrap();
    });
}

#[test]
fn what_the_kernel_refuses_changes_nothing() {
    in_namespace(
        "tables::what_the_kernel_refuses_changes_nothing",
        || async {
            nft(TABLE).await;
            let mut socket = TableSocket::open().unwrap();
            let hosts = |range: std::ops::Range<u32>| -> Vec<String> {
                let of = |n: u32| std::net::Ipv4Addr::from(n).to_string();
                range.map(of).collect()
            };
            let first = 0x0a00_0000;
            let missing = match add("hosts", hosts(1..2).iter().map(String::as_str)) {
                Edit::Add(set, elements) => Edit::Delete(set, elements),
                other => other,
            };
            let many = hosts(first..first + 1000);
            let many = add("hosts", many.iter().map(String::as_str));
            let both = [many.clone(), missing];
            let error = transact(&mut socket, "edited", &both).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
            let many = [many];
            let error = transact(&mut socket, "nowhere", &many).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
            // An interval is left to `nft`, and so is what else has words alone.
            for edit in [add("hosts", ["10.0.0.0/8"]), Edit::Script(String::new())] {
                let error = transact(&mut socket, "edited", &[edit]).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
            }
            let listed = nft("list table inet edited\n").await;
            assert!(!listed.contains("elements"), "{listed}");
            // The answers to that are nobody's.
            transact(&mut socket, "edited", &many).unwrap();
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
            // With no `nft` that works.
            std::fs::create_dir_all(programs()).unwrap();
            std::os::unix::fs::symlink("/bin/false", programs().join("nft")).unwrap();
            writer.write(Transaction(edits())).await.unwrap();
            let script = "add element inet edited hosts { 10.0.0.9 }\n";
            let script = || Transaction::from(script.to_owned());
            assert!(writer.write(script()).await.is_err());
            std::fs::remove_dir_all(programs()).unwrap();
            writer.write(script()).await.unwrap();
            let listed = nft("list table inet edited\n").await;
            assert!(
                listed.contains("goto pick") && listed.contains("10.0.0.9"),
                "{listed}"
            );
            // What the kernel refuses, too: the words say why.
            let nobody = Edit::DeleteChain("none".to_owned());
            let nonsense = Edit::Script("nonsense".to_owned());
            for edit in [nobody, nonsense] {
                let refused = writer.write(Transaction(vec![edit])).await;
                assert!(refused.unwrap_err().to_string().contains("nft says"));
            }
        },
    );
}
