//! Types of fields.

use crate::net::Family;

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Type {
    /// A mapping with fields of its own.
    Object,
    /// A list of such mappings.
    Objects,
    /// `true` or `false`.
    Boolean,
    /// A whole number in these bounds.
    Integer(i64, i64),
    /// Any text.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// One of these texts, in any case of letters.
    OneOfAnyCase(&'static [&'static str]),
    /// `ADDRESS/LENGTH` without host bits; of this family, if one is named.
    Cidr(Option<Family>),
    /// An address, with the length of its subnet or without.
    AddressWithLength(Option<Family>),
    /// An address alone.
    Address(Option<Family>),
    /// `IP`, `IP:PORT` or `[IPv6]:PORT`.
    Peer,
    /// A number of 32 bits, or `HIGH.LOW`.
    AsNumber,
    /// A Go duration, such as `90s`.
    Duration,
    /// A selector expression.
    Selector,
    /// `66:07:02:c1:cc:60`.
    Mac,
    /// `AS:VALUE` or `A:B:C`.
    Community,
    /// A port, or `FIRST:LAST`.
    Ports,
    /// An interface or a pattern of interfaces.
    Interface,
    /// A list of one of the types above.
    List(&'static Self),
    /// Whatever its readers make of it: Caracal does not read it.
    Any,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    /// Its path below the resource without indices of lists, as `spec.exportV4.cidr`.
    pub(super) path: &'static str,
    /// Type of its value.
    pub(super) holds: Type,
    /// True when it has to be there, in each mapping that could hold it.
    pub(super) required: bool,
    /// Default as JSON; written into the resource as Calico's clients do.
    pub(super) default: Option<&'static str>,
    /// Why it cannot be changed.
    pub(super) immutable: Option<&'static str>,
}

/// A field of that type.
pub(super) const fn field(path: &'static str, holds: Type) -> Rule {
    Rule {
        path,
        holds,
        required: false,
        default: None,
        immutable: None,
    }
}

impl Rule {
    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) const fn default(mut self, json: &'static str) -> Self {
        self.default = Some(json);
        self
    }

    pub(super) const fn immutable(mut self, reason: &'static str) -> Self {
        self.immutable = Some(reason);
        self
    }
}

pub(super) const PORT: Type = Type::Integer(1, 65_535);
/// A number of 32 bits.
pub(super) const U32: Type = Type::Integer(0, 4_294_967_295);
