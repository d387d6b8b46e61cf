#![allow(clippy::unwrap_used)]
use std::os::unix::fs::PermissionsExt;

use caracal_datastore::TestFolder;

use super::*;
use crate::node::problems::{Problems, Registry};

const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes";

/// A folder that is not there yet, in one that goes with the test.
fn folder(name: &str) -> (TestFolder, PathBuf) {
    let kept = TestFolder::new(name);
    let folder = kept.join("lib");
    (kept, folder)
}

fn me() -> NodeName {
    "me".into()
}

fn example(nodes: usize) -> Snapshot {
    let mut snapshot = Snapshot {
        whole_blocks_of: Some(me()),
        ..Snapshot::default()
    };
    for number in 0..nodes {
        let name = if number == 0 {
            "me".to_owned()
        } else {
            format!("node-{number}")
        };
        let text = format!(
            r#"{{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{{}}}}"#
        );
        snapshot.apply(&format!("{NODES}/{name}"), Some(text.as_bytes()), 7);
    }
    snapshot.revision = 99;
    snapshot
}

fn accepted(snapshot: &Snapshot) -> Accepted {
    Accepted {
        snapshot: Arc::new(snapshot.clone()),
        store: StoreId(5),
        restored: false,
    }
}

#[test]
fn what_is_remembered_is_recalled_and_nobody_elses_to_read() {
    let (_kept, dir) = folder("remember");
    assert!(recall(&dir, &me()).unwrap().is_none());
    let snapshot = example(3);
    for _ in 0..2 {
        let octets = write(&dir, &me(), &accepted(&snapshot), StoredEndpoints::All).unwrap();
        assert_eq!(octets, fs::metadata(path(&dir)).unwrap().len());
    }
    let mode = fs::metadata(path(&dir)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let recalled = recall(&dir, &me()).unwrap().unwrap();
    assert_eq!(*recalled.snapshot, snapshot);
    assert_eq!(recalled.store, StoreId(5));
    let others = recall(&dir, &"you".into()).unwrap_err();
    assert_eq!(others.to_string(), "it is the file of node me");
}

#[test]
fn every_cut_and_every_flipped_octet_is_noticed() {
    let (_kept, dir) = folder("remember-bad");
    write(&dir, &me(), &accepted(&example(3)), StoredEndpoints::All).unwrap();
    let text = fs::read(path(&dir)).unwrap();
    assert!(read(&text, &me()).is_ok());
    for length in 0..text.len() {
        let error = read(&text[..length], &me()).unwrap_err();
        let named = matches!(error, RecallError::CutOff | RecallError::Checksum);
        assert!(named, "cut at {length}: {error}");
    }
    for at in 0..text.len() {
        let mut flipped = text.clone();
        flipped[at] ^= 4;
        assert!(read(&flipped, &me()).is_err(), "flipped at {at}");
    }
    let problem = unused(&dir, &RecallError::Checksum);
    assert!(problem.reason.contains("damaged"), "{}", problem.reason);
    // A later format, rightly summed.
    let body = br#"{"caracal":"snapshot","version":2,"node":"me","revision":1,"store":1}"#;
    let body = [&body[..], b"\n"].concat();
    let later = format!("end\t0\t{}\n", hex(&Sha256::digest(&body)));
    let error = read(&[&body[..], later.as_bytes()].concat(), &me()).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

fn view(snapshot: Snapshot) -> View {
    View {
        revision: snapshot.revision,
        wakes: snapshot.revision.unsigned_abs() * 1000 + snapshot.nodes.len() as u64,
        snapshot: Arc::new(snapshot),
        freshness: caracal_datastore::Freshness::Fresh,
        synced: true,
        fault: None,
        store: StoreId(1),
        absent: Vec::new(),
    }
}

fn parts(dir: &Path, view: View) -> (Parts, watch::Sender<View>, Problems) {
    let (sender, view) = watch::channel(view);
    let registry = Registry::default();
    let seen = registry.problems();
    let parts = Parts {
        lib_dir: dir.to_owned(),
        me: me(),
        view,
        all_endpoints: Box::new(|_| false),
        problems: registry.reporter("rememberer"),
    };
    (parts, sender, seen)
}

#[test]
fn changes_are_written_seldom_and_own_ones_sooner() {
    let before = view(example(2));
    let (parts, _sender, _seen) = parts(Path::new("/nowhere"), before.clone());
    let ended = Instant::now();
    let written = |took| Written {
        revision: before.revision,
        wakes: Some(before.wakes),
        own: OwnRevisions::from_snapshot(&before.snapshot, &me()),
        restored: false,
        ended,
        took,
    };
    let quick = Duration::from_millis(20);
    assert!(parts.due(&before, None).is_some(), "the first one at once");
    assert_eq!(parts.due(&before, Some(&written(quick))), None);
    let quiet = View {
        snapshot: Arc::new(example(3)),
        ..before.clone()
    };
    assert_eq!(
        parts.due(&quiet, Some(&written(quick))),
        None,
        "nothing follows from it"
    );
    let others = view(example(3));
    let due = |view: &View, took| parts.due(view, Some(&written(took)));
    assert_eq!(due(&others, quick), Some(ended + REST));
    // A slow write makes the next ones rarer.
    let slow = Duration::from_secs(1);
    assert_eq!(due(&others, slow), Some(ended + slow * PART));
    let mut own = example(2);
    let key = format!("{NODES}/me");
    let node = br#"{"metadata":{"name":"me","labels":{"a":"b"}},"spec":{}}"#;
    own.apply(&key, Some(node), 100);
    assert_eq!(due(&view(own.clone()), quick), Some(ended + OWN_REST));
    // A block is announced after a restart only when it is remembered.
    let key = "/calico/ipam/v2/host/me/ipv4/block/10.9.0.0-26";
    own.apply(key, Some(br#"{"state":"confirmed"}"#), 101);
    let own = view(own);
    assert_eq!(due(&own, quick), Some(ended + BLOCKS_REST));
    assert_eq!(
        due(&own, slow * 2),
        Some(ended + slow * 2),
        "never all the time"
    );
}

#[tokio::test]
async fn what_changed_is_written_at_the_end() {
    let (_kept, dir) = folder("remember-task");
    let (parts, sender, seen) = parts(&dir, view(example(1)));
    let rememberer = spawn(parts);
    sender.send_replace(view(example(181)));
    rememberer.finish().await;
    let recalled = recall(&dir, &me()).unwrap().unwrap();
    assert_eq!(recalled.snapshot.nodes.len(), 181);
    assert!(seen.borrow().all().next().is_none());
}

/// What was accepted is written at once, with the doubt, when the datastore turns out to be
/// restored; the doubt goes with the fault.
#[tokio::test]
async fn a_restored_datastore_is_remembered_as_one() {
    let (_kept, dir) = folder("remember-restored");
    let fault = DatastoreFault::Restored("pool q".to_owned());
    let held = |fault: &DatastoreFault| View {
        fault: Some(fault.clone()),
        freshness: caracal_datastore::Freshness::Stale {
            since: Instant::now(),
            reason: fault.to_string(),
        },
        ..view(example(3))
    };
    let (parts, sender, seen) = parts(&dir, held(&DatastoreFault::OwnNode));
    let rememberer = spawn(parts);
    // Nothing was written before, and it is not current.
    sender.send_replace(held(&fault));
    let recalled = written_within(&dir, 3, true).await;
    assert_eq!(recalled.store, StoreId(1));
    // A later one is written although nobody waits for a minute.
    sender.send_replace(view(example(4)));
    written_within(&dir, 4, false).await;
    sender.send_replace(held(&fault));
    written_within(&dir, 3, true).await;
    // What is another fault leaves the doubt.
    sender.send_replace(held(&DatastoreFault::OwnNode));
    rememberer.finish().await;
    assert!(recall(&dir, &me()).unwrap().unwrap().restored);
    assert!(seen.borrow().all().next().is_none());
}

/// Waits for a file with so many nodes: less than the time of a write that nothing hastens.
async fn written_within(dir: &Path, nodes: usize, restored: bool) -> Accepted {
    let deadline = Instant::now() + OWN_REST;
    loop {
        match recall(dir, &me()).unwrap() {
            Some(it) if it.snapshot.nodes.len() == nodes && it.restored == restored => return it,
            seen => assert!(Instant::now() < deadline, "{seen:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_a_problem() {
    // A file in the place of the directory: root may write everywhere.
    let (_kept, dir) = folder("remember-file");
    fs::write(&dir, "").unwrap();
    assert!(recall(&dir, &me()).unwrap().is_none());
    let (parts, _sender, mut seen) = parts(&dir, view(example(1)));
    let rememberer = spawn(parts);
    let reported = seen
        .wait_for(|found| found.all().next().is_some())
        .await
        .unwrap();
    assert_eq!(reported.all().next().unwrap().code, "node.lib_dir");
    drop(reported);
    rememberer.finish().await;
}

/// 5,000 nodes, 20,000 blocks. `cargo test --release -p caracal remember -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn size_and_time_of_a_large_cluster() {
    let mut snapshot = example(5000);
    for number in 0..20_000_usize {
        let owner = match number % 5000 {
            0 => "me".to_owned(),
            node => format!("node-{node}"),
        };
        let cidr = format!(
            "10.{}.{}.{}",
            number >> 10,
            number >> 2 & 255,
            (number & 3) * 64
        );
        let allocations: Vec<String> = (0..64)
            .map(|n| if n < 30 { "0".into() } else { "null".into() })
            .collect();
        let block = format!(
            r#"{{"cidr":"{cidr}/26","affinity":"host:{owner}","allocations":[{}],"unallocated":[],"attributes":[{{"secondary":{{"node":"{owner}"}}}}]}}"#,
            allocations.join(",")
        );
        let key = format!("/calico/ipam/v2/assignment/ipv4/block/{cidr}-26");
        snapshot.apply(&key, Some(block.as_bytes()), 8);
        let key = format!("/calico/ipam/v2/host/{owner}/ipv4/block/{cidr}-26");
        snapshot.apply(&key, Some(br#"{"state":"confirmed"}"#), 8);
    }
    assert!(
        snapshot.invalid.is_empty(),
        "{:?}",
        snapshot.invalid.iter().next()
    );
    let (_kept, dir) = folder("remember-large");
    let large = accepted(&snapshot);
    for _ in 0..3 {
        let begun = std::time::Instant::now();
        let octets = write(&dir, &me(), &large, StoredEndpoints::Of(&me())).unwrap();
        let written = begun.elapsed();
        let begun = std::time::Instant::now();
        recall(&dir, &me()).unwrap();
        println!(
            "{octets} octets, written in {written:?}, read in {:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (_kept, folder) = folder("remember-kinds");
    fs::create_dir_all(&folder).unwrap();
    let place = path(&folder);
    let fifo = |place: &Path| {
        let made = std::process::Command::new("mkfifo").arg(place).status();
        assert!(made.unwrap().success());
    };
    let link = |place: &Path| std::os::unix::fs::symlink("/dev/zero", place).unwrap();
    let makers: [&dyn Fn(&Path); 3] = [&fifo, &link, &|place| fs::create_dir(place).unwrap()];
    for make in makers {
        make(&place);
        let refused = recall(&folder, &me()).unwrap_err();
        let RecallError::Io(refused) = refused else {
            panic!("{refused:?}")
        };
        assert!(
            refused.to_string().contains("expected a regular file"),
            "{refused}"
        );
        let _other = fs::remove_file(&place).or_else(|_| fs::remove_dir(&place));
    }
}
