//! Reads fields of JSON that people wrote, and says which one cannot be read, and why.

use serde_json::{Map, Value};

use crate::net::Prefix;
use crate::selector::Selector;

/// Why something cannot be understood: the field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault(pub(super) String);

impl Fault {
    pub(super) fn new(field: &str, what: impl std::fmt::Display) -> Self {
        Self(format!("{field}: {what}"))
    }

    /// The same, of a field inside this one.
    pub(super) fn inside(self, field: &str) -> Self {
        Self(format!("{field}.{}", self.0))
    }
}

pub(super) type Read<T> = Result<T, Fault>;

/// An object, some of whose fields are known.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(Option<&'a Map<String, Value>>);

impl<'a> Fields<'a> {
    /// An object; `null` and what is absent count as one without fields.
    pub(super) fn of(value: &'a Value, field: &str) -> Read<Self> {
        match value {
            Value::Null => Ok(Self(None)),
            Value::Object(map) => Ok(Self(Some(map))),
            _ => Err(Fault::new(field, "expected an object")),
        }
    }

    /// An object whose fields are all among these. Of a field that is not its own name is told.
    pub(super) fn only(value: &'a Value, field: &str, known: &[&str]) -> Read<Self> {
        let fields = Self::of(value, field)?;
        let mut unknown = fields.0.into_iter().flatten();
        let unknown =
            unknown.find(|(key, value)| !known.contains(&key.as_str()) && !is_empty(value));
        match unknown {
            None => Ok(fields),
            Some((key, _)) => Err(Fault::new(key, "this field is not understood")),
        }
    }

    /// Without fields.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// All of them.
    pub(super) fn entries(self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.0.into_iter().flatten()
    }

    pub(super) fn get(self, field: &str) -> &'a Value {
        self.0
            .and_then(|map| map.get(field))
            .unwrap_or(&Value::Null)
    }

    pub(super) fn has(self, field: &str) -> bool {
        !self.get(field).is_null()
    }

    /// Absent is empty.
    pub(super) fn text(self, field: &str) -> Read<&'a str> {
        match self.get(field) {
            Value::Null => Ok(""),
            Value::String(text) => Ok(text),
            _ => Err(Fault::new(field, "expected a text")),
        }
    }

    /// Absent is empty.
    pub(super) fn list(self, field: &str) -> Read<&'a [Value]> {
        match self.get(field) {
            Value::Null => Ok(&[]),
            Value::Array(list) => Ok(list),
            _ => Err(Fault::new(field, "expected a list")),
        }
    }

    pub(super) fn flag(self, field: &str) -> Read<bool> {
        match self.get(field) {
            Value::Null => Ok(false),
            Value::Bool(flag) => Ok(*flag),
            _ => Err(Fault::new(field, "expected true or false")),
        }
    }

    pub(super) fn prefixes(self, field: &str) -> Read<Vec<Prefix>> {
        let each = |value: &Value| {
            let text = value.as_str().unwrap_or_default();
            prefix(text).ok_or_else(|| bad(field, value, "an address or range"))
        };
        self.list(field)?.iter().map(each).collect()
    }

    /// `None` where it is absent.
    pub(super) fn prefix(self, field: &str) -> Read<Option<Prefix>> {
        let text = self.text(field)?;
        match (text, prefix(text)) {
            ("", _) => Ok(None),
            (_, Some(prefix)) => Ok(Some(prefix)),
            _ => Err(bad(field, self.get(field), "an address or range")),
        }
    }

    /// `None` where it is absent or empty.
    pub(super) fn selector(self, field: &str) -> Read<Option<Selector>> {
        let text = self.text(field)?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let selector = Selector::parse(text).map_err(|error| Fault::new(field, error));
        selector.map(Some)
    }
}

/// A range, or a single address. Bits behind the length count for nothing, as everywhere.
fn prefix(text: &str) -> Option<Prefix> {
    match text.split_once('/') {
        None => text.parse().ok().map(Prefix::host),
        Some((address, length)) => {
            let (address, length): (std::net::IpAddr, u8) =
                (address.parse().ok()?, length.parse().ok()?);
            (length <= crate::net::Family::of(address).bits())
                .then(|| Prefix::truncated(address, length))
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(flag) => !flag,
        Value::Number(_) => false,
    }
}

pub(super) fn bad(field: &str, value: &Value, expected: &str) -> Fault {
    Fault::new(field, format_args!("expected {expected}, found {value}"))
}

/// A number below 256.
pub(super) fn octet(value: &Value) -> Option<u8> {
    value.as_u64().and_then(|number| number.try_into().ok())
}

/// A number of a port. 0 is none.
pub(super) fn port(value: &Value) -> Option<u16> {
    let number = value.as_u64().and_then(|number| number.try_into().ok());
    number.filter(|port| *port != 0)
}

/// The number of a protocol, by its name as Calico and Kubernetes write it, or by itself.
pub(super) fn protocol(value: &Value) -> Option<u8> {
    let Some(name) = value.as_str() else {
        return octet(value).filter(|number| *number != 0);
    };
    let known = [
        ("TCP", 6),
        ("UDP", 17),
        ("ICMP", 1),
        ("ICMPV6", 58),
        ("SCTP", 132),
        ("UDPLITE", 136),
    ];
    let mut known = known.into_iter();
    let known = known.find(|(word, _)| word.eq_ignore_ascii_case(name));
    let number = || name.parse().ok().filter(|number| *number != 0);
    known.map(|(_, number)| number).or_else(number)
}
