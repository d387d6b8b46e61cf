//! What changes tables of ours: steps, which are carried out together or not at all. The shell
//! gives them to the kernel itself where all of them are data, and else their text to `nft`: a
//! program costs a hundred times as much as one element.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use caracal_model::merge_join;

use super::element::{Element, Fields, SetName};
use super::mark::SetHash;
use super::rule::PickRule;

/// More elements than this are left to `nft`: they do not fit into one send.
const MOST_ELEMENTS: usize = 1000;
/// A rule is as long as so many elements.
const RULE: usize = 6;

const INFALLIBLE: &str = "writing to a String does not fail";

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Elements come into a set or map, which is not one of intervals.
    Add(SetName, Vec<Element>),
    /// Elements go out of it.
    Delete(SetName, Vec<Element>),
    /// A chain that the kernel does not call: it has these rules alone afterwards. With none of
    /// them it is a mark.
    AddChain(String, Vec<PickRule>),
    /// A chain to which nothing leads.
    DeleteChain(String),
    /// Whatever else, in the words of `nft`, by lines.
    Script(String),
}

impl Edit {
    /// The same, for `nft` alone.
    pub(crate) fn in_words(&self, table: &str) -> Self {
        let mut script = String::new();
        self.write(table, &mut script);
        Self::Script(script)
    }

    /// Appends it in the words of `nft`.
    fn write(&self, table: &str, script: &mut String) {
        match self {
            Self::Add(set, elements) => put(script, ("add", table, set), elements),
            Self::Delete(set, elements) => put(script, ("delete", table, set), elements),
            Self::AddChain(chain, rules) => {
                *script += &format!("add chain inet {table} {chain}\n");
                if !rules.is_empty() {
                    *script += &format!("flush chain inet {table} {chain}\n");
                }
                for rule in rules {
                    *script += &format!("add rule inet {table} {chain} {rule}\n");
                }
            }
            Self::DeleteChain(chain) => *script += &format!("delete chain inet {table} {chain}\n"),
            Self::Script(lines) => script.push_str(lines),
        }
    }
}

fn put(script: &mut String, (verb, table, set): (&str, &str, &str), elements: &[Element]) {
    let start = format!("{verb} element inet {table} {set} {{ ");
    join(script, &start, elements).expect(INFALLIBLE);
}

/// Elements between braces, behind `start`. Nothing of none, which nftables would not take.
fn join<T: fmt::Display>(out: &mut impl fmt::Write, start: &str, of: &[T]) -> fmt::Result {
    for (at, element) in of.iter().enumerate() {
        write!(out, "{}{element}", if at == 0 { start } else { ", " })?;
    }
    out.write_str(if of.is_empty() { "" } else { " }\n" })
}

/// Steps for elements, set by set: those of one set stand together. One step is made at a time: of
/// a large table the elements are as long as its text.
pub(crate) fn by_set(
    elements: impl IntoIterator<Item = (SetName, Element)>,
    edit: fn(SetName, Vec<Element>) -> Edit,
) -> impl Iterator<Item = Edit> {
    let mut elements = elements.into_iter().peekable();
    std::iter::from_fn(move || {
        let (set, first) = elements.next()?;
        let mut all = vec![first];
        while let Some((_, element)) = elements.next_if(|(of, _)| *of == set) {
            all.push(element);
        }
        Some(edit(set, all))
    })
}

/// Steps on one table, all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transaction(pub(crate) Vec<Edit>);

impl From<String> for Transaction {
    fn from(script: String) -> Self {
        Self(vec![Edit::Script(script)])
    }
}

impl Transaction {
    /// For `nft`; empty = nothing is to be done.
    pub(crate) fn script(&self, table: &str) -> String {
        let mut script = String::new();
        self.0
            .iter()
            .for_each(|edit| edit.write(table, &mut script));
        script
    }

    /// True when no program is needed for it.
    pub(crate) fn is_data(&self) -> bool {
        let elements = |edit: &Edit| match edit {
            Edit::Add(_, elements) | Edit::Delete(_, elements) => elements.len(),
            Edit::AddChain(_, rules) => rules.len() * RULE,
            Edit::DeleteChain(_) => 0,
            Edit::Script(_) => MOST_ELEMENTS + 1,
        };
        self.0.iter().map(elements).sum::<usize>() <= MOST_ELEMENTS
    }
}

/// Sets with their elements, sorted.
#[derive(Debug, Default)]
pub(crate) struct Sets(BTreeMap<SetName, Vec<Fields>>);

impl Sets {
    pub(crate) fn put(&mut self, set: &str, mut keys: Vec<Fields>) {
        keys.sort_unstable();
        keys.dedup();
        self.0.insert(set.into(), keys);
    }

    /// Writes the elements of a set as they stand in its declaration.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, set: &str) -> fmt::Result {
        join(f, "\t\telements = { ", self.of(set))
    }

    /// The sum of the elements' hashes: when some come and others go, it follows from those alone.
    pub(crate) fn sum(&self) -> u64 {
        let sums = self.0.iter();
        let sums = sums.map(|(name, keys)| SetHash::new(name).sum(keys));
        sums.fold(0, u64::wrapping_add)
    }

    /// The elements of a set; none where there is no such set.
    pub(crate) fn of(&self, set: &str) -> &[Fields] {
        self.0.get(set).map(Vec::as_slice).unwrap_or_default()
    }

    /// All sets, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SetName, &[Fields])> {
        self.0.iter().map(|(set, keys)| (set, keys.as_slice()))
    }

    /// The elements of one that another one lacks, and those that it has more.
    pub(crate) fn differing(before: &[Fields], now: &[Fields]) -> (Vec<Fields>, Vec<Fields>) {
        let (mut gone, mut added) = (Vec::new(), Vec::new());
        for (key, was, is) in merge_join(keys(before), keys(now)) {
            match (was, is) {
                (Some(()), None) => gone.push(*key),
                (None, Some(())) => added.push(*key),
                _ => {}
            }
        }
        (gone, added)
    }

    /// Steps for elements of a set that go and come.
    pub(crate) fn edits(
        edits: &mut Vec<Edit>,
        set: &SetName,
        gone: Vec<Fields>,
        added: Vec<Fields>,
    ) {
        let mut push = |edit: fn(SetName, Vec<Element>) -> Edit, keys: Vec<Fields>| {
            if !keys.is_empty() {
                let elements = keys.into_iter().map(Element::from);
                edits.push(edit(Arc::clone(set), elements.collect()));
            }
        };
        push(Edit::Delete, gone);
        push(Edit::Add, added);
    }

    /// Steps that make these sets the others, and what they add to the sum. `None` = others has a
    /// set more.
    pub(crate) fn change(&self, others: &Self) -> Option<(Vec<Edit>, u64)> {
        let (mut edits, mut sum) = (Vec::new(), 0_u64);
        for (set, now) in &others.0 {
            let before = self.0.get(set)?;

            let (gone, added) = Self::differing(before, now);
            let hash = SetHash::new(set);
            sum = sum
                .wrapping_add(hash.sum(&added))
                .wrapping_sub(hash.sum(&gone));
            Self::edits(&mut edits, set, gone, added);
        }
        Some((edits, sum))
    }
}

fn keys(of: &[Fields]) -> impl Iterator<Item = (&Fields, ())> {
    of.iter().map(|key| (key, ()))
}
