//! Names of interfaces that may stand in rules.

use std::fmt;

use crate::nft::{Field, InterfaceName};

/// The name of an interface, or the beginning of such names, as it may stand in a script for nft or
/// iptables: letters, digits, `.`, `_` and `-`. Names come from the datastore and from the kernel,
/// which allows quotes, braces and more; rules are made of these names alone, so that none can end
/// a rule and begin another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlainName(InterfaceName);

impl PlainName {
    /// `None` when the text may not stand in rules.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        // A `-` in front would be an option to iptables.
        let good = !text.is_empty() && text.chars().all(plain) && !text.starts_with('-');
        InterfaceName::new(text).filter(|_| good).map(Self)
    }

    /// As [`Self::new`], short enough for `NAME+` of iptables.
    #[must_use]
    pub fn beginning(text: &str) -> Option<Self> {
        Self::new(text).filter(|_| InterfaceName::new(&format!("{text}+")).is_some())
    }
}

impl From<&PlainName> for Field {
    fn from(name: &PlainName) -> Self {
        Self::Interface(name.0)
    }
}

impl fmt::Display for PlainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Interfaces that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interfaces {
    /// The one of that name.
    Named(PlainName),
    /// All whose name begins so.
    Beginning(PlainName),
}

impl Interfaces {
    /// Reads the spelling of iptables: a `+` at the end stands for anything.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text.strip_suffix('+') {
            Some(start) => PlainName::beginning(start).map(Self::Beginning),
            None => PlainName::new(text).map(Self::Named),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_nothing_that_means_something_in_rules() {
        for good in ["cali", "eth0.100", "br-lan", "vxlan_9", "abcdefghijklmno"] {
            assert!(PlainName::new(good).is_some(), "{good}");
        }
        let bad = [
            "",
            "-i",
            "a b",
            "a\"",
            "a\n",
            "a{",
            "a;",
            "a*",
            "a+",
            "a/b",
            "a#",
            "é",
            "a\0",
            "a\\",
            "$a",
            "@a",
            "abcdefghijklmnop",
        ];
        for bad in bad {
            assert!(PlainName::new(bad).is_none(), "{bad:?}");
        }
        assert!(PlainName::beginning("abcdefghijklmno").is_none());
        let eth = PlainName::new("eth").unwrap();
        assert_eq!(
            Interfaces::from_text("eth+"),
            Some(Interfaces::Beginning(eth.clone()))
        );
        assert_eq!(Interfaces::from_text("eth"), Some(Interfaces::Named(eth)));
        assert_eq!(Interfaces::from_text("+"), None);
    }
}
