//! Names that are defined so far. BIRD has one space of names, and a name is defined before it is
//! used.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_bgp::{Function, OwnProtocol, Place, Roa, RoaTable, Value, ValueType};
use caracal_model::Family;

use super::super::Learned;
use super::super::lexer::{Located, ParseFault, Res, skip};
use crate::source::Source;

/// The constant of rendered texts.
pub(in crate::grammar) const LOCAL_AS: &str = "caracal_local_as";

/// Weights of expressions and steps inside each other, at most: a thread has room for them.
const DEEPEST: u32 = 192;
/// An expression inside another one.
pub(super) const EXPRESSION: u32 = 4;
/// A step inside another one, as in a chain of `else if`.
pub(super) const STEP: u32 = 1;

/// What a name stands for.
#[derive(Clone, Debug)]
pub(in crate::grammar) enum Named {
    Constant(Value),
    Function(Callable),
    Filter,
    /// A table of origins, and whether it is for IPv6.
    Roa(Arc<RoaTable>, Family),
}

/// A function as its callers see it.
#[derive(Clone, Debug)]
pub(in crate::grammar) struct Callable {
    pub(super) parameters: Vec<ValueType>,
    pub(super) returns: ValueType,
    /// `None`: it is being read.
    pub(super) function: Option<Arc<Function>>,
    /// True when it is a list of terms as well.
    pub(in crate::grammar) is_terms: bool,
}

/// A local variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) slot: u16,
    pub(super) value_type: ValueType,
}

/// The names of a file, and those of the block that is being read.
#[derive(Debug)]
pub(in crate::grammar) struct Scope<'a> {
    source: &'a Source,
    /// The text that is read: that of the source, with what could not be read left out.
    text: &'a str,
    names: Vec<(&'a str, Named)>,
    /// Entries of tables of origins, by the name of the table.
    pub(in crate::grammar) roas: Vec<(&'a str, Roa)>,
    /// Those of an earlier reading: a filter may stand above the entries.
    pub(in crate::grammar) known_roas: Vec<(&'a str, Roa)>,
    /// What caches have sent, by the name of their protocol.
    pub(in crate::grammar) learned: Option<&'a Learned>,
    /// The entries of a cache that go to a table, by the name of the table.
    pub(in crate::grammar) fed: Vec<(&'a str, Arc<[Roa]>)>,
    /// Those of an earlier reading.
    pub(in crate::grammar) known_fed: Vec<(&'a str, Arc<[Roa]>)>,
    /// Protocols without a name so far, by their kind.
    unnamed: BTreeMap<&'static str, usize>,
    /// Lines that change nothing here.
    pub(in crate::grammar) notes: Vec<String>,
    variables: Vec<Variable<'a>>,
    /// Places of the frame, so far and at most.
    pub(super) locals: u16,
    /// Expressions and steps inside each other.
    depth: u32,
    /// True inside of a filter or function, where there is a route.
    pub(super) has_route: bool,
    /// True inside of a function, which may return.
    pub(super) in_function: bool,
    /// What `return` has returned so far.
    pub(super) returns: Option<ValueType>,
}

impl<'a> Scope<'a> {
    pub(in crate::grammar) const fn new(source: &'a Source, text: &'a str) -> Self {
        Self {
            source,
            text,
            names: Vec::new(),
            roas: Vec::new(),
            known_roas: Vec::new(),
            learned: None,
            fed: Vec::new(),
            known_fed: Vec::new(),
            unnamed: BTreeMap::new(),
            notes: Vec::new(),
            variables: Vec::new(),
            locals: 0,
            depth: 0,
            has_route: false,
            in_function: false,
            returns: None,
        }
    }

    /// File and line of a part of the text.
    pub(super) fn place(&self, at: &str) -> Place {
        let offset = (at.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.source.place(offset)
    }

    /// The words at a place are understood, and change nothing here. A rendered text has some of
    /// them for the daemons that read it, and nothing is said about those.
    pub(in crate::grammar) fn note(&mut self, at: &str, words: &str, why: &str) {
        if self.find(LOCAL_AS).is_none() {
            self.tell(at, &format!("\"{words}\" has no effect: {why}"));
        }
    }

    /// Something is to be said about a place.
    pub(in crate::grammar) fn tell(&mut self, at: &str, what: &str) {
        let place = self.place(at);
        self.notes.push(format!("{place}: {what}"));
    }

    pub(in crate::grammar) fn find(&self, name: &str) -> Option<&Named> {
        let found = self.names.iter().rev().find(|(known, _)| *known == name);
        found.map(|(_, named)| named)
    }

    /// BIRD's name of the next protocol of a kind that has none.
    pub(in crate::grammar) fn unnamed(&mut self, kind: &'static str) -> String {
        let number = self.unnamed.entry(kind).or_default();
        *number += 1;
        format!("{kind}{number}")
    }

    /// A protocol with routes of ours, its preference and the usual one of its kind; `None`:
    /// filters see it as the first of its kind. So they do in a rendered text, whose names nobody
    /// has given.
    pub(in crate::grammar) fn own_protocol(
        &mut self,
        kind: &'static str,
        name: Option<Located<'a, &'a str>>,
        [preference, usual]: [u16; 2],
    ) -> Option<Arc<OwnProtocol>> {
        let name = match name {
            Some(name) => name.value.to_owned(),
            None => self.unnamed(kind),
        };
        let is_first = name.strip_suffix('1') == Some(kind) && preference == usual;
        let hidden = is_first || self.find(LOCAL_AS).is_some();
        (!hidden).then(|| Arc::new(OwnProtocol { name, preference }))
    }

    /// A new name.
    pub(in crate::grammar) fn define(
        &mut self,
        name: Located<'a, &'a str>,
        named: Named,
    ) -> Result<(), ParseFault<'a>> {
        if self.find(name.value).is_some() {
            let what = format!(
                "a name that is not taken; {:?} is already defined",
                name.value
            );
            return Err(ParseFault::new(name.at, what));
        }
        self.names.push((name.value, named));
        Ok(())
    }

    /// A new table of origins, with the entries that are known.
    pub(in crate::grammar) fn define_roas(
        &mut self,
        name: Located<'a, &'a str>,
        family: Family,
    ) -> Result<(), ParseFault<'a>> {
        let entries = self.known_roas.iter();
        let own = entries.filter(|(table, _)| *table == name.value);
        let mut table: Vec<Roa> = own.map(|(_, entry)| *entry).collect();
        for (_, entries) in self.known_fed.iter().filter(|(to, _)| *to == name.value) {
            let of_family = entries.iter().filter(|e| e.prefix.family() == family);
            table.extend(of_family);
        }
        self.define(name, Named::Roa(Arc::new(table.into()), family))
    }

    /// What a cache has sent goes to these tables.
    pub(in crate::grammar) fn fill(&mut self, cache: &str, tables: &BTreeMap<Family, &'a str>) {
        let learned = self.learned.and_then(|learned| learned.get(cache));
        if let Some(entries) = learned.filter(|entries| !entries.is_empty()) {
            let tables = tables.values();
            self.fed
                .extend(tables.map(|table| (*table, Arc::clone(entries))));
        }
    }

    /// The table of origins of a family: the one with the name, or the first.
    pub(in crate::grammar) fn roa_table(
        &self,
        name: Option<&str>,
        family: Family,
    ) -> Option<&'a str> {
        let mut names = self.names.iter();
        let found = names.find(|(known, named)| {
            let wanted = name.is_none_or(|name| name == *known);
            wanted && matches!(named, Named::Roa(_, of) if *of == family)
        });
        found.map(|(known, _)| *known)
    }

    /// The function that has just been read takes the place of the one that was being read.
    pub(super) fn complete(&mut self, name: &str, callable: Callable) {
        let mut names = self.names.iter_mut().rev();
        if let Some((_, named)) = names.find(|(known, _)| *known == name) {
            *named = Named::Function(callable);
        }
    }

    /// The function is a list of terms as well.
    pub(in crate::grammar) fn is_terms(&mut self, name: &str) {
        let mut names = self.names.iter_mut().rev();
        if let Some((_, Named::Function(function))) = names.find(|(known, _)| *known == name) {
            function.is_terms = true;
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<Variable<'a>> {
        let mut variables = self.variables.iter().rev();
        variables.find(|variable| variable.name == name).copied()
    }

    /// A new variable of the block.
    pub(super) fn declare(
        &mut self,
        name: Located<'a, &'a str>,
        value_type: ValueType,
    ) -> Result<Variable<'a>, ParseFault<'a>> {
        let slot = self.locals;
        let Some(next) = slot.checked_add(1) else {
            return Err(ParseFault::new(name.at, "fewer variables"));
        };
        self.locals = next;
        let variable = Variable {
            name: name.value,
            slot,
            value_type,
        };
        self.variables.push(variable);
        Ok(variable)
    }

    /// Reads something that may stand inside itself.
    pub(super) fn deeper<T>(
        &mut self,
        weight: u32,
        s: &'a str,
        read: impl FnOnce(&mut Self, &'a str) -> Res<'a, T>,
    ) -> Res<'a, T> {
        if self.depth + weight > DEEPEST {
            let what = "fewer expressions and steps inside each other";
            return Err(nom::Err::Failure(ParseFault::new(skip(s), what)));
        }
        self.depth += weight;
        let read = read(self, s);
        self.depth -= weight;
        read
    }

    /// Variables known at the moment, for [`Scope::leave`].
    pub(super) const fn enter(&self) -> usize {
        self.variables.len()
    }

    /// The variables of a block end with it.
    pub(super) fn leave(&mut self, variables: usize) {
        self.variables.truncate(variables);
    }

    /// A function or filter begins: it sees no variables but its own.
    pub(super) fn begin(&mut self, in_function: bool) {
        self.in_function = in_function;
        self.variables.clear();
        self.locals = 0;
        self.has_route = true;
        self.returns = None;
    }

    /// Names known at the moment, for [`Scope::forget`].
    pub(in crate::grammar) const fn mark(&self) -> usize {
        self.names.len()
    }

    /// What could not be read to its end has defined nothing.
    pub(in crate::grammar) fn forget(&mut self, names: usize) {
        self.names.truncate(names);
        self.end();
    }

    /// It has ended.
    pub(super) fn end(&mut self) -> u16 {
        self.variables.clear();
        self.has_route = false;
        std::mem::take(&mut self.locals)
    }
}
