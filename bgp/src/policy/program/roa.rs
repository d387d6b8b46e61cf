//! Which AS may originate which prefixes: a table of static entries, and what it says of a route
//! (RFC 6811).

use caracal_model::Prefix;

use super::value::{ORIGIN_STATE, Value};

/// An entry: this AS may announce the prefix, and longer ones up to a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Roa {
    /// The prefix.
    pub prefix: Prefix,
    /// The longest length.
    pub max: u8,
    /// The AS; 0 stands for nobody (RFC 6483 §4).
    pub asn: u32,
}

/// The entries of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoaTable {
    /// Sorted, without duplicates.
    entries: Vec<Roa>,
    /// The lengths of their prefixes, sorted.
    lens: Vec<u8>,
}

/// What a table says of a route (RFC 6811 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoaState {
    /// No entry covers the prefix.
    Unknown,
    /// An entry covers it, is for its AS, and allows its length.
    Valid,
    /// Entries cover it, and none is so.
    Invalid,
}

impl From<Vec<Roa>> for RoaTable {
    fn from(mut entries: Vec<Roa>) -> Self {
        entries.sort_unstable();
        entries.dedup();
        let mut lens: Vec<u8> = entries.iter().map(|entry| entry.prefix.len()).collect();
        lens.sort_unstable();
        lens.dedup();
        Self { entries, lens }
    }
}

impl RoaTable {
    /// The state as a value of the language, or why there is none.
    pub(super) fn state(&self, prefix: &Value, asn: &Value) -> Result<Value, String> {
        let (Value::Prefix(prefix), Value::Int(asn)) = (prefix, asn) else {
            return Err("roa_check is about a prefix and the number of an AS".to_owned());
        };
        let number = match self.check(prefix, *asn) {
            RoaState::Unknown => 0,
            RoaState::Valid => 1,
            RoaState::Invalid => 2,
        };
        Ok(Value::Enum(ORIGIN_STATE, number))
    }

    /// The state of a route with this origin.
    #[must_use]
    pub fn check(&self, prefix: &Prefix, asn: u32) -> RoaState {
        let mut state = RoaState::Unknown;
        for len in self.lens.iter().take_while(|len| **len <= prefix.len()) {
            let covering = Prefix::truncated(prefix.address(), *len);
            let first = self.entries.partition_point(|one| one.prefix < covering);
            let all = self.entries[first..].iter();
            for entry in all.take_while(|one| one.prefix == covering) {
                if entry.asn == asn && asn != 0 && prefix.len() <= entry.max {
                    return RoaState::Valid;
                }
                state = RoaState::Invalid;
            }
        }
        state
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn rfc6811_2_states() {
        let entry = |prefix: &str, max, asn| Roa {
            prefix: prefix.parse().unwrap(),
            max,
            asn,
        };
        let table = RoaTable::from(vec![
            entry("10.0.0.0/8", 16, 1),
            entry("10.0.0.0/8", 24, 2),
            entry("10.1.0.0/16", 16, 3),
            entry("192.0.2.0/24", 24, 0),
            entry("2001:db8::/32", 48, 1),
        ]);
        let state = |prefix: &str, asn| table.check(&prefix.parse().unwrap(), asn);
        assert_eq!(state("11.0.0.0/8", 1), RoaState::Unknown);
        assert_eq!(state("10.0.0.0/7", 1), RoaState::Unknown, "shorter");
        assert_eq!(state("10.0.0.0/8", 1), RoaState::Valid);
        assert_eq!(state("10.9.0.0/16", 1), RoaState::Valid);
        assert_eq!(state("10.9.9.0/24", 1), RoaState::Invalid, "too long");
        assert_eq!(state("10.9.9.0/24", 2), RoaState::Valid, "another entry");
        assert_eq!(state("10.1.0.0/16", 3), RoaState::Valid);
        assert_eq!(state("10.1.0.0/16", 1), RoaState::Valid, "the shorter one");
        assert_eq!(state("10.1.0.0/16", 9), RoaState::Invalid);
        assert_eq!(state("192.0.2.0/24", 0), RoaState::Invalid, "nobody");
        assert_eq!(state("2001:db8:1::/48", 1), RoaState::Valid);
        assert_eq!(state("2001:db9::/32", 1), RoaState::Unknown);
    }
}
