//! Elements of an nftables set, read (`linux/netfilter/nf_tables.h`): of each the octets of its key
//! and of its data, without what they mean.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};

use super::framing::{HEADER, attributes, begin, finish, half, name};

/// `NFT_MSG_NEWSETELEM`, `NFT_MSG_GETSETELEM` of `NFNL_SUBSYS_NFTABLES`.
const NEW: u16 = 10 << 8 | 12;
const GET: u16 = 10 << 8 | 13;
/// `NFPROTO_INET`, version 0, and two octets that a question leaves empty (`struct nfgenmsg`).
const GENERIC: [u8; 4] = [1, 0, 0, 0];
/// `NFTA_SET_ELEM_LIST_TABLE`, `_SET`, `_ELEMENTS`.
const TABLE: u16 = 1;
const SET: u16 = 2;
const ELEMENTS: u16 = 3;
/// `NFTA_SET_ELEM_KEY`, `NFTA_SET_ELEM_DATA`; `NFTA_DATA_VALUE`.
const KEY: u16 = 1;
const DATA: u16 = 2;
const VALUE: u16 = 1;

/// The message that asks for all elements of a set in a table of family `inet`.
pub(super) fn question((table, set): (&str, &str), sequence: u32) -> Vec<u8> {
    let mut message = Vec::new();
    let start = begin(&mut message, GET, NLM_F_REQUEST | NLM_F_DUMP, sequence);
    message.extend_from_slice(&GENERIC);
    name(&mut message, TABLE, table);
    name(&mut message, SET, set);
    finish(&mut message, start);
    message
}

/// Reads what an answer has: `read` gets the octets of a key, and those of data or none.
pub(super) fn read<T>(message: &[u8], read: impl Fn(&[u8], &[u8]) -> Option<T>) -> Vec<T> {
    if half(message, 4) != Some(NEW) {
        return Vec::new();
    }
    let lists = attributes(message.get(HEADER + GENERIC.len()..).unwrap_or_default());
    let lists = lists.filter(|(kind, _)| *kind == ELEMENTS);
    let elements = lists.flat_map(|(_, list)| attributes(list));
    let element = |(_, element)| {
        let value = |of| {
            let nested = attributes(element).find(|(kind, _)| *kind == of);
            let mut inside = nested
                .into_iter()
                .flat_map(|(_, nested)| attributes(nested));
            inside.find(|(kind, _)| *kind == VALUE)
        };
        let (_, key) = value(KEY)?;
        read(key, value(DATA).map_or(&[], |(_, data)| data))
    };
    elements.filter_map(element).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::framing::{NESTED, attribute, close, open};
    use super::*;

    #[test]
    fn an_answer_is_read_and_a_broken_one_ends_the_reading() {
        let mut message = Vec::new();
        let start = begin(&mut message, NEW, 0, 1);
        message.extend_from_slice(&GENERIC);
        name(&mut message, TABLE, "t");
        let list = open(&mut message, ELEMENTS | NESTED);
        for octet in [7, 8] {
            let at = open(&mut message, 1 | NESTED);
            // A flag, or a time, that is none of both.
            attribute(&mut message, 5, &[0; 8]);
            for (kind, value) in [(KEY, [octet; 4]), (DATA, [octet + 1; 4])] {
                let inside = open(&mut message, kind | NESTED);
                attribute(&mut message, VALUE, &value);
                close(&mut message, inside);
            }
            close(&mut message, at);
        }
        close(&mut message, list);
        finish(&mut message, start);
        let pairs = |message: &[u8]| read(message, |key, data| Some((key[0], data[0])));
        assert_eq!(pairs(&message), [(7, 8), (8, 9)]);
        for cut in 0..message.len() {
            assert!(pairs(&message[..cut]).len() < 3);
        }
    }
}
