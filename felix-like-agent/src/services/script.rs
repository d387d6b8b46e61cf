//! From a change of the table to the transactions that carry it out.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::mem::take;
use std::net::SocketAddr;

use caracal_model::{Family, InsertEach};

use super::layout::{CHECKS, INTERVALS, SERVICES_TABLE, layout, mark, word};
use super::listing::Listed;
use super::parts::{Keeping, Part, keeping, pick_chain, pick_rules, spared};
use super::written::Change;
use crate::nft::{Edit, Element, SetName, Transaction, by_set};

/// Elements of one transaction while the table is filled: the kernel holds a lock until it has
/// taken them all.
const SLICE: usize = 10_000;

const INFALLIBLE: &str = "writing to a String does not fail";

/// The transactions that carry out a change of a table that is there. They take its parts.
pub(super) fn transactions(change: &mut Change) -> Vec<Transaction> {
    let (add, delete) = (take(&mut change.add), take(&mut change.delete));
    let mut first = chains(&add);
    let last = gone(&mut first, &add, &delete, change);
    let mut deleted: Vec<Edit> = elements(delete, Edit::Delete).collect();
    deleted.extend(foreign(&change.foreign));
    // Filling a table cuts nothing off, whatever is in force between; what leads to endpoints comes
    // behind them.
    let mut transactions = Vec::new();
    if deleted.is_empty() && add.len() > SLICE {
        let (leading, filling): (Vec<Part>, Vec<Part>) = add.into_iter().partition(leads);
        transactions.push(first);
        let mut filling = filling.into_iter();
        while filling.len() > 0 {
            transactions.push(elements(filling.by_ref().take(SLICE), Edit::Add).collect());
        }
        transactions.push(elements(leading, Edit::Add).collect());
    } else {
        first.extend(deleted);
        first.extend(elements(add, Edit::Add));
        transactions.push(first);
    }
    transactions.push(last);
    let transactions = transactions.into_iter().filter(|edits| !edits.is_empty());
    transactions.map(Transaction).collect()
}

/// Writes the table anew in one transaction, whatever is there. It takes the change's parts.
pub(super) fn whole(change: &mut Change) -> Transaction {
    let script = format!(
        "add table inet {SERVICES_TABLE}\ndelete table inet {SERVICES_TABLE}\n\
         table inet {SERVICES_TABLE} {{\n{}chain {} {{\n}}\n}}\n",
        layout(),
        mark()
    );
    let add = take(&mut change.add);
    let mut edits = vec![Edit::Script(script)];
    edits.extend(chains(&add));
    let add = elements(add, Edit::Add);
    edits.extend(add.map(|edit| edit.in_words(SERVICES_TABLE)));
    Transaction(edits)
}

/// The script that takes the table away, if there is one.
pub(crate) fn removal() -> String {
    format!("add table inet {SERVICES_TABLE}\ndelete table inet {SERVICES_TABLE}\n")
}

/// The script by which the table that was listed, with or without elements, leaves these endpoints
/// alone at once, whatever it holds. One of another layout is replaced once there is a plan; until
/// then rules of its own stand first in the chains that it may have.
pub(crate) fn spare(listing: &str, endpoints: &BTreeSet<SocketAddr>) -> String {
    let listed = Listed::parse(listing);
    if listed.is_ours() {
        let edits = elements(spared(endpoints), Edit::Add);
        return Transaction(edits.collect()).script(SERVICES_TABLE);
    }
    let mut script = String::new();
    for chain in CHECKS
        .iter()
        .filter(|chain| listed.chains.contains(**chain))
    {
        for at in endpoints {
            let (ip, address, port) = (word(Family::of(at.ip())), at.ip(), at.port());
            writeln!(
                script,
                "insert rule inet {SERVICES_TABLE} {chain} {ip} daddr {address} tcp dport {port} return"
            )
            .expect(INFALLIBLE);
        }
    }
    script
}

/// Elements that lead packets to what others hold.
fn leads(part: &Part) -> bool {
    let leading = ["services", "inside", "outside", "keep"];
    matches!(part, Part::Element(set, _) if leading.iter().any(|of| set.starts_with(of)))
}

/// Steps for the elements among these parts.
fn elements(
    parts: impl IntoIterator<Item = Part>,
    edit: fn(SetName, Vec<Element>) -> Edit,
) -> impl Iterator<Item = Edit> {
    let elements = parts.into_iter().filter_map(|part| match part {
        Part::Element(set, element) => Some((set, element)),
        Part::Pick(..) | Part::Keeping(_) => None,
    });
    by_set(elements, edit).map(|edit| match &edit {
        Edit::Add(set, _) | Edit::Delete(set, _) if is_of_intervals(set) => {
            edit.in_words(SERVICES_TABLE)
        }
        _ => edit,
    })
}

fn is_of_intervals(set: &str) -> bool {
    INTERVALS.iter().any(|of| set.starts_with(of))
}

/// Steps that take away elements of no form that we write.
fn foreign(elements: &[(SetName, String)]) -> impl Iterator<Item = Edit> {
    elements.iter().map(|(set, text)| {
        let table = SERVICES_TABLE;
        Edit::Script(format!("delete element inet {table} {set} {{ {text} }}\n"))
    })
}

fn chain(script: &mut String, name: &str, rules: &[String]) {
    let table = SERVICES_TABLE;
    writeln!(
        script,
        "add chain inet {table} {name}\nflush chain inet {table} {name}"
    )
    .expect(INFALLIBLE);
    for rule in rules {
        writeln!(script, "add rule inet {table} {name} {rule}").expect(INFALLIBLE);
    }
}

/// Steps that make chains, with their rules and maps.
fn chains(parts: &BTreeSet<Part>) -> Vec<Edit> {
    let mut edits = Vec::new();
    for part in parts {
        match part {
            Part::Pick(endpoints, count) => {
                let name = pick_chain(*endpoints, *count);
                edits.push(Edit::AddChain(name, pick_rules(*endpoints, *count)));
            }
            Part::Keeping(keeping) => {
                let mut script = String::new();
                let clients = format!("{}; flags dynamic,timeout;", keeping.declared());
                let clients = keeping.maps().map(|map| (map, clients.clone()));
                for (map, declared) in clients.into_iter().chain(keeping.picks()) {
                    writeln!(
                        script,
                        "add map inet {SERVICES_TABLE} {map} {{ {declared} }}"
                    )
                    .expect(INFALLIBLE);
                }
                for (name, rules) in keeping.chains() {
                    chain(&mut script, &name, &rules);
                }
                edits.push(Edit::Script(script));
            }
            Part::Element(..) => {}
        }
    }
    edits
}

/// Chains and maps that go, in a transaction of their own behind `first`: kernels before 6.2 do not
/// take the deletion of a chain and of the element that leads to it in one.
fn gone(
    first: &mut Vec<Edit>,
    add: &BTreeSet<Part>,
    delete: &BTreeSet<Part>,
    strays: &Change,
) -> Vec<Edit> {
    let flush = |name: &String| Edit::Script(format!("flush chain inet {SERVICES_TABLE} {name}\n"));
    let delete_map =
        |map: &String| Edit::Script(format!("delete map inet {SERVICES_TABLE} {map}\n"));
    let stays: BTreeSet<[String; 2]> = add
        .iter()
        .filter_map(keeping)
        .map(Keeping::maps)
        .insert_each();
    let mut last = Vec::new();
    for name in &strays.strays {
        first.push(flush(name));
        last.push(Edit::DeleteChain(name.clone()));
    }
    last.extend(strays.stray_maps.iter().map(delete_map));
    for part in delete {
        if let Part::Pick(endpoints, count) = part {
            last.push(Edit::DeleteChain(pick_chain(*endpoints, *count)));
        }
    }
    for keeping in delete.iter().filter_map(keeping) {
        if stays.contains(&keeping.maps()) {
            continue;
        }
        let chains = keeping.chains();
        first.extend(chains.iter().map(|(name, _)| flush(name)));
        // Those that lead to others go first.
        let chains = chains.into_iter().rev();
        last.extend(chains.map(|(name, _)| Edit::DeleteChain(name)));
        let picks = keeping.picks().map(|(map, _)| map);
        let maps = keeping.maps().into_iter().chain(picks);
        last.extend(maps.map(|map| delete_map(&map)));
    }
    last
}
