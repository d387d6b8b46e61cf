//! Calico's label selectors: `rack == 'r1' && has(gpu) || all()`.
//!
//! `||` binds loosest, then `&&`, then `!`. An empty selector matches everything. A missing label
//! makes `!=` and `not in` true and every other comparison false.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A parsed selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// `all()` or empty.
    All,
    /// `global()`: matches objects without a namespace; labels cannot say, so it is false here.
    Global,
    /// `has(k)`.
    Has(String),
    /// `k == 'v'`.
    Equal(String, String),
    /// `k != 'v'`.
    NotEqual(String, String),
    /// `k in {'a','b'}`.
    In(String, BTreeSet<String>),
    /// `k not in {'a','b'}`.
    NotIn(String, BTreeSet<String>),
    /// `k contains 'v'`.
    Contains(String, String),
    /// `k starts with 'v'`.
    StartsWith(String, String),
    /// `k ends with 'v'`.
    EndsWith(String, String),
    /// `!x`.
    Not(Box<Self>),
    /// `a && b`.
    And(Vec<Self>),
    /// `a || b`.
    Or(Vec<Self>),
}

/// Where and why a selector does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("selector {text:?}, column {column}: expected {expected}, found {found}")]
pub struct SelectorError {
    /// The whole selector.
    pub text: String,
    /// Column, counted in characters from 1.
    pub column: usize,
    /// Tokens that would be valid there.
    pub expected: &'static str,
    /// Token found there.
    pub found: String,
}

impl Selector {
    /// Parses a selector.
    ///
    /// # Errors
    /// [`SelectorError`] with column, expectation and finding.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser {
            text,
            rest: text,
            depth: 0,
        };
        if parser.peek().is_empty() {
            return Ok(Self::All);
        }
        let selector = parser.or()?;
        if parser.peek().is_empty() {
            Ok(selector)
        } else {
            Err(parser.error("&&, || or the end"))
        }
    }

    /// True when labels match.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(&|key| labels.get(key).map(String::as_str))
    }

    /// True when the labels match that `get` answers with.
    pub(crate) fn matches_by<'a>(&self, get: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::All => true,
            Self::Global => false,
            Self::Has(key) => get(key).is_some(),
            Self::Equal(key, value) => get(key) == Some(value),
            Self::NotEqual(key, value) => get(key) != Some(value),
            Self::In(key, set) => get(key).is_some_and(|v| set.contains(v)),
            Self::NotIn(key, set) => !get(key).is_some_and(|v| set.contains(v)),
            Self::Contains(key, value) => get(key).is_some_and(|v| v.contains(value)),
            Self::StartsWith(key, value) => get(key).is_some_and(|v| v.starts_with(value)),
            Self::EndsWith(key, value) => get(key).is_some_and(|v| v.ends_with(value)),
            Self::Not(inner) => !inner.matches_by(get),
            Self::And(parts) => parts.iter().all(|p| p.matches_by(get)),
            Self::Or(parts) => parts.iter().any(|p| p.matches_by(get)),
        }
    }

    /// All of some selectors at once.
    pub(crate) fn all_of(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Vec::new();
        for part in parts {
            match part {
                Self::All => {}
                Self::And(parts) => all.extend(parts),
                part => all.push(part),
            }
        }
        match all.len() {
            0 => Self::All,
            1 => all.remove(0),
            _ => Self::And(all),
        }
    }

    /// The same of labels whose names begin with `prefix`: a selector of namespaces looks at what
    /// their profiles hand on. `all()` alone becomes `all`, and `global()` its contrary.
    pub(crate) fn of_parents(self, prefix: &str, all: &Self) -> Self {
        match self {
            Self::All => all.clone(),
            other => other.prefixed(prefix, &Self::Not(Box::new(all.clone()))),
        }
    }

    fn prefixed(self, prefix: &str, global: &Self) -> Self {
        let name = |key: String| format!("{prefix}{key}");
        let each = |parts: Vec<Self>| {
            let parts = parts.into_iter();
            parts.map(|part| part.prefixed(prefix, global)).collect()
        };
        match self {
            Self::All => Self::All,
            Self::Global => global.clone(),
            Self::Has(key) => Self::Has(name(key)),
            Self::Equal(key, value) => Self::Equal(name(key), value),
            Self::NotEqual(key, value) => Self::NotEqual(name(key), value),
            Self::In(key, set) => Self::In(name(key), set),
            Self::NotIn(key, set) => Self::NotIn(name(key), set),
            Self::Contains(key, value) => Self::Contains(name(key), value),
            Self::StartsWith(key, value) => Self::StartsWith(name(key), value),
            Self::EndsWith(key, value) => Self::EndsWith(name(key), value),
            Self::Not(inner) => Self::Not(Box::new(inner.prefixed(prefix, global))),
            Self::And(parts) => Self::And(each(parts)),
            Self::Or(parts) => Self::Or(each(parts)),
        }
    }
}

/// A form that is read back, and the same for all that is the same but for blanks and brackets.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, parts: &[Self], by: &str| {
            f.write_str("(")?;
            for (at, part) in parts.iter().enumerate() {
                write!(f, "{}{part}", if at == 0 { "" } else { by })?;
            }
            f.write_str(")")
        };
        let among = |f: &mut fmt::Formatter<'_>, key: &str, word: &str, set: &BTreeSet<String>| {
            write!(f, "{key} {word} {{")?;
            for (at, value) in set.iter().enumerate() {
                write!(f, "{}{}", if at == 0 { "" } else { ", " }, Quoted(value))?;
            }
            f.write_str("}")
        };
        match self {
            Self::All => f.write_str("all()"),
            Self::Global => f.write_str("global()"),
            Self::Has(key) => write!(f, "has({key})"),
            Self::Equal(key, value) => write!(f, "{key} == {}", Quoted(value)),
            Self::NotEqual(key, value) => write!(f, "{key} != {}", Quoted(value)),
            Self::In(key, set) => among(f, key, "in", set),
            Self::NotIn(key, set) => among(f, key, "not in", set),
            Self::Contains(key, value) => write!(f, "{key} contains {}", Quoted(value)),
            Self::StartsWith(key, value) => write!(f, "{key} starts with {}", Quoted(value)),
            Self::EndsWith(key, value) => write!(f, "{key} ends with {}", Quoted(value)),
            Self::Not(inner) => write!(f, "!{inner}"),
            Self::And(parts) => joined(f, parts, " && "),
            Self::Or(parts) => joined(f, parts, " || "),
        }
    }
}

/// A value between the quotes that it does not have itself.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('\'') { '"' } else { '\'' };
        write!(f, "{quote}{}{quote}", self.0)
    }
}

/// Deepest nesting of parentheses and negations; a selector is written by people.
const MAX_DEPTH: usize = 64;

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// Rest of the text without leading blanks.
    fn peek(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        self.rest
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.peek().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Eats a keyword that is not the beginning of a longer label name.
    fn eat_word(&mut self, word: &str) -> bool {
        match self.peek().strip_prefix(word) {
            Some(rest) if !rest.starts_with(is_label_char) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn error(&mut self, expected: &'static str) -> SelectorError {
        let rest = self.peek();
        let done = self.text.len() - rest.len();
        let found = match rest.split_whitespace().next() {
            Some(word) => format!("{word:?}"),
            None => "the end".to_owned(),
        };
        let column = self.text[..done].chars().count() + 1;
        SelectorError {
            text: self.text.to_owned(),
            column,
            expected,
            found,
        }
    }

    fn or(&mut self) -> Result<Selector, SelectorError> {
        let mut parts = vec![self.and()?];
        while self.eat("||") {
            parts.push(self.and()?);
        }
        Ok(if parts.len() == 1 {
            parts.remove(0)
        } else {
            Selector::Or(parts)
        })
    }

    fn and(&mut self) -> Result<Selector, SelectorError> {
        let mut parts = vec![self.not()?];
        while self.eat("&&") {
            parts.push(self.not()?);
        }
        Ok(if parts.len() == 1 {
            parts.remove(0)
        } else {
            Selector::And(parts)
        })
    }

    fn not(&mut self) -> Result<Selector, SelectorError> {
        if !self.peek().starts_with("!=") && self.eat("!") {
            self.deeper()?;
            let inner = self.not()?;
            self.depth -= 1;
            return Ok(Selector::Not(Box::new(inner)));
        }
        self.term()
    }

    fn deeper(&mut self) -> Result<(), SelectorError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(self.error("at most 64 levels of nesting"))
        } else {
            Ok(())
        }
    }

    fn term(&mut self) -> Result<Selector, SelectorError> {
        if self.eat("(") {
            self.deeper()?;
            let inner = self.or()?;
            self.depth -= 1;
            return if self.eat(")") {
                Ok(inner)
            } else {
                Err(self.error(")"))
            };
        }
        if self.eat("all()") {
            return Ok(Selector::All);
        }
        if self.eat("global()") {
            return Ok(Selector::Global);
        }
        if self.eat("has(") {
            let key = self.label()?;
            return if self.eat(")") {
                Ok(Selector::Has(key))
            } else {
                Err(self.error(")"))
            };
        }
        let key = self.label()?;
        self.comparison(key)
    }

    fn comparison(&mut self, key: String) -> Result<Selector, SelectorError> {
        if self.eat("==") {
            return Ok(Selector::Equal(key, self.string()?));
        }
        if self.eat("!=") {
            return Ok(Selector::NotEqual(key, self.string()?));
        }
        if self.eat_word("contains") {
            return Ok(Selector::Contains(key, self.string()?));
        }
        if self.eat_word("starts") {
            self.word("with")?;
            return Ok(Selector::StartsWith(key, self.string()?));
        }
        if self.eat_word("ends") {
            self.word("with")?;
            return Ok(Selector::EndsWith(key, self.string()?));
        }
        if self.eat_word("not") {
            self.word("in")?;
            return Ok(Selector::NotIn(key, self.set()?));
        }
        if self.eat_word("in") {
            return Ok(Selector::In(key, self.set()?));
        }
        Err(self.error("==, !=, in, not in, contains, starts with or ends with"))
    }

    fn word(&mut self, word: &'static str) -> Result<(), SelectorError> {
        if self.eat_word(word) {
            Ok(())
        } else {
            Err(self.error(word))
        }
    }

    fn label(&mut self) -> Result<String, SelectorError> {
        let rest = self.peek();
        let end = rest.find(|c| !is_label_char(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.error("a label name, has(…), all(), ! or ("));
        }
        let (label, rest) = rest.split_at(end);
        self.rest = rest;
        Ok(label.to_owned())
    }

    fn string(&mut self) -> Result<String, SelectorError> {
        let rest = self.peek();
        let Some(quote) = rest.chars().next().filter(|c| matches!(c, '\'' | '"')) else {
            return Err(self.error("a quoted value"));
        };
        match rest[1..].split_once(quote) {
            Some((value, rest)) => {
                self.rest = rest;
                Ok(value.to_owned())
            }
            None => Err(self.error("a value with a closing quote")),
        }
    }

    fn set(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        if !self.eat("{") {
            return Err(self.error("{"));
        }
        let mut set = BTreeSet::new();
        if self.eat("}") {
            return Ok(set);
        }
        loop {
            set.insert(self.string()?);
            if self.eat("}") {
                return Ok(set);
            }
            if !self.eat(",") {
                return Err(self.error(", or }"));
            }
        }
    }
}

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Selector::parse(selector).unwrap().matches(&labels)
    }

    #[test]
    fn every_operator() {
        let l = &[("rack", "r1"), ("zone.io/name", "eu-west")];
        for yes in [
            "",
            "  ",
            "all()",
            "has(rack)",
            "!has(gpu)",
            "rack == 'r1'",
            "rack != \"r2\"",
            "gpu != 'x'",
            "rack in {'r0', 'r1'}",
            "rack not in {'r2'}",
            "gpu not in {'r2'}",
            "rack not in {}",
            "zone.io/name contains '-w'",
            "zone.io/name starts with 'eu'",
            "zone.io/name ends with 'west'",
            "rack == 'r2' || rack == 'r1' && has(zone.io/name)",
            "!(rack == 'r2')",
            "!!has(rack)",
            "(rack=='r1')&&(!has(a)||has(b))",
        ] {
            assert!(matches(yes, l), "{yes}");
        }
        for no in [
            "global()",
            "has(gpu)",
            "rack == 'r2'",
            "gpu == ''",
            "gpu in {''}",
            "gpu contains ''",
            "has(gpu) && all() || rack == 'r3'",
            "!all()",
            "rack in {}",
        ] {
            assert!(!matches(no, l), "{no}");
        }
    }

    #[test]
    fn or_binds_looser_than_and() {
        assert!(matches("all() || all() && !all()", &[]));
        assert!(!matches("(all() || all()) && !all()", &[]));
    }

    #[test]
    fn errors_name_the_column() {
        let e = Selector::parse("rack = 'r1'").unwrap_err();
        assert_eq!((e.column, e.found.as_str()), (6, "\"=\""));
        let e = Selector::parse("rack == 'r1' &&").unwrap_err();
        assert_eq!((e.column, e.found.as_str()), (16, "the end"));
        for bad in [
            "rack == r1",
            "rack == 'r1",
            "has(rack",
            "(all()",
            "a in 'x'",
            "a in {'x' 'y'}",
            "a starts 'x'",
            "all() all()",
        ] {
            assert!(Selector::parse(bad).is_err(), "{bad}");
        }
        assert!(Selector::parse(&"(".repeat(100_000)).is_err());
        assert!(Selector::parse(&"!".repeat(100_000)).is_err());
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for text in [
            "all()",
            "has(a) && !(b == 'x' || b in {'y', \"z'\"})",
            "a not in {} || a != 'b' && c contains 'd'",
            "a starts with 'x' && (global() || a ends with 'y')",
        ] {
            let selector = Selector::parse(text).unwrap();
            assert_eq!(
                Selector::parse(&selector.to_string()),
                Ok(selector),
                "{text}"
            );
        }
    }

    #[test]
    fn selectors_of_parents_look_at_what_these_hand_on() {
        let all = Selector::Has("ns".to_owned());
        let of = |text: &str| {
            Selector::parse(text)
                .unwrap()
                .of_parents("p.", &all)
                .to_string()
        };
        assert_eq!(of(""), "has(ns)");
        assert_eq!(of("global()"), "!has(ns)");
        assert_eq!(of("a == 'x' || !has(b)"), "(p.a == 'x' || !has(p.b))");
        assert_eq!(of("global() || a in {'x'}"), "(!has(ns) || p.a in {'x'})");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = Selector::parse(&text);
        }
    }
}
