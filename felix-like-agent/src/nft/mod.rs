//! What changes nftables tables of ours: a script for `nft`, and, where nothing but elements of
//! sets and empty chains change, the same as data, which the shell gives to the kernel itself. A
//! program costs a hundred times as much as one element.

use std::net::IpAddr;

/// More elements than this are left to `nft`: they do not fit into one send.
const MOST_ELEMENTS: usize = 1000;
/// Octets of an interface's name in a key (`IFNAMSIZ`).
const INTERFACE: usize = 16;

/// All or nothing, on one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// For `nft`.
    pub(crate) script: String,
    /// The same; `None` = it is more than elements and empty chains.
    pub(crate) edits: Option<Vec<TableEdit>>,
}

impl From<String> for Transaction {
    fn from(script: String) -> Self {
        Self {
            script,
            edits: None,
        }
    }
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableEdit {
    /// Elements come into a set or map, which is not one of intervals.
    Add(String, Vec<SetElement>),
    /// Elements go out of it.
    Delete(String, Vec<SetElement>),
    /// An empty chain that the kernel does not call.
    AddChain(String),
    /// An empty chain to which nothing leads.
    DeleteChain(String),
}

/// True when a program is not needed for so many elements.
pub(crate) fn are_few(edits: &[TableEdit]) -> bool {
    let elements = edits.iter().map(|edit| match edit {
        TableEdit::Add(_, elements) | TableEdit::Delete(_, elements) => elements.len(),
        TableEdit::AddChain(_) | TableEdit::DeleteChain(_) => 0,
    });
    elements.sum::<usize>() <= MOST_ELEMENTS
}

/// An element of a set, or of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetElement {
    pub(crate) key: Fields,
    /// `None` in sets.
    pub(crate) data: Option<ElementData>,
}

/// Where an element of a map leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ElementData {
    Value(Fields),
    /// To this chain.
    Goto(String),
    Drop,
}

/// The octets of a key or value. Each field fills up whole registers of four octets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<u8>);

impl Fields {
    pub(crate) fn octets(&self) -> &[u8] {
        &self.0
    }

    fn field(mut self, octets: &[u8]) -> Self {
        self.0.extend_from_slice(octets);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// `ipv4_addr`, `ipv6_addr`.
    pub(crate) fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.field(&address.octets()),
            IpAddr::V6(address) => self.field(&address.octets()),
        }
    }

    /// `ifname`. `None` = no interface can have this name.
    pub(crate) fn interface(self, name: &str) -> Option<Self> {
        let mut octets = [0; INTERFACE];
        // The last octet ends it.
        octets[..INTERFACE - 1]
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Some(self.field(&octets))
    }

    /// `inet_proto`, by number.
    pub(crate) fn protocol(self, number: u8) -> Self {
        self.field(&[number])
    }

    /// `inet_service`.
    pub(crate) fn port(self, port: u16) -> Self {
        self.field(&port.to_be_bytes())
    }

    /// A number of 32 bits that the kernel itself has made, such as a random one.
    pub(crate) fn number(self, number: u32) -> Self {
        self.field(&number.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_fill_up_registers() {
        let address = |text: &str| text.parse().unwrap();
        let port = Fields::default()
            .address(address("10.96.0.1"))
            .protocol(6)
            .port(0x1234)
            .number(2);
        let number = 2_u32.to_ne_bytes();
        let expected = [[10, 96, 0, 1], [6, 0, 0, 0], [0x12, 0x34, 0, 0], number];
        assert_eq!(port.octets(), expected.concat());
        let pair = Fields::default().interface("cali1").unwrap();
        let pair = pair.address(address("fd00::1"));
        assert_eq!(pair.octets().len(), 32);
        assert_eq!(&pair.octets()[..8], b"cali1\0\0\0");
        assert!(Fields::default().interface("cali0123456789a").is_some());
        assert_eq!(Fields::default().interface("cali0123456789ab"), None);
    }
}
