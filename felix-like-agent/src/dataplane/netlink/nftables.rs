//! Elements of an nftables table, and chains without rules or with those of one form, changed in
//! one transaction; elements of a set, read (`linux/netfilter/nf_tables.h`,
//! `linux/netfilter/nfnetlink.h`).

use std::io;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

use super::DUMP_ATTEMPTS;
use super::elements;
use super::expressions::{self, ELEMENT, VALUE};
use super::framing::{
    HEADER, NESTED, attribute, begin, close, finish, half, messages, name, open, word,
};
use crate::nft::{Edit, Element, ElementData, Field, Fields, PickRule, Transaction};

/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// `NFNL_SUBSYS_NFTABLES`.
const NFTABLES: u16 = 10;
/// `NFT_MSG_NEWCHAIN`, `_DELCHAIN`, `_NEWRULE`, `_DELRULE`, `_NEWSETELEM`, `_DELSETELEM`.
const NEW_CHAIN: u16 = NFTABLES << 8 | 3;
const DELETE_CHAIN: u16 = NFTABLES << 8 | 5;
const NEW_RULE: u16 = NFTABLES << 8 | 6;
const DELETE_RULES: u16 = NFTABLES << 8 | 8;
const NEW_ELEMENTS: u16 = NFTABLES << 8 | 12;
const DELETE_ELEMENTS: u16 = NFTABLES << 8 | 14;
/// `NFPROTO_UNSPEC`, `NFPROTO_INET`.
const UNSPECIFIED: u8 = 0;
const INET: u8 = 1;
/// `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE`, `NFTA_SET_ELEM_LIST_TABLE`.
const TABLE: u16 = 1;
/// `NFTA_CHAIN_NAME`; `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`.
const CHAIN: u16 = 3;
const OF_CHAIN: u16 = 2;
const EXPRESSIONS: u16 = 4 | NESTED;
/// `NFTA_SET_ELEM_LIST_SET`, `NFTA_SET_ELEM_LIST_ELEMENTS`.
const SET: u16 = 2;
const ELEMENTS: u16 = 3 | NESTED;
/// `NFTA_SET_ELEM_KEY`, `NFTA_SET_ELEM_DATA`.
const KEY: u16 = 1 | NESTED;
const DATA: u16 = 2 | NESTED;
/// `NFTA_DATA_VERDICT`.
const VERDICT: u16 = 2 | NESTED;
/// `NFTA_VERDICT_CODE`, `NFTA_VERDICT_CHAIN`.
const CODE: u16 = 1;
const TO_CHAIN: u16 = 2;
/// `NFT_GOTO`, `NF_DROP`.
const GOTO: i32 = -4;
const DROP: i32 = 0;
/// Elements in one message: an attribute has 65,535 octets at most, and an element less than 200.
const IN_ONE_MESSAGE: usize = 256;
/// `NLMSG_ERROR`: a refusal, or, with code 0, an acknowledgement. `NLMSG_DONE`: the end of an
/// answer in many messages.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// A kernel that does not answer for this long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel refuses a send that does not fit: 1,000 elements are 100,000 octets.
const SEND_BUFFER: usize = 1 << 20;

/// A socket to nftables of the network namespace in which it was opened.
#[derive(Debug)]
pub(in crate::dataplane) struct TableSocket {
    socket: Socket,
    port: u32,
    sequence: u32,
}

impl TableSocket {
    /// Opens it in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel has no netfilter.
    pub(in crate::dataplane) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(netlink_sys::protocols::NETLINK_NETFILTER)?;
        let port = socket.bind_auto()?.port_number();
        let options = SockRef::from(&socket);
        options.set_read_timeout(Some(PATIENCE))?;
        options.set_send_buffer_size(SEND_BUFFER)?;
        Ok(Self {
            socket,
            port,
            sequence: 0,
        })
    }

    /// By which the kernel names its changes to whoever listens.
    pub(in crate::dataplane) const fn port(&self) -> u32 {
        self.port
    }

    /// Carries out one transaction on a table of family `inet`, or nothing of it.
    ///
    /// # Errors
    /// The kernel's refusal; [`io::ErrorKind::WouldBlock`] when it does not answer;
    /// [`io::ErrorKind::Unsupported`] when a step is `nft`'s alone.
    pub(in crate::dataplane) fn transact(
        &mut self,
        table: &str,
        transaction: &Transaction,
    ) -> io::Result<()> {
        let first = self.sequence.wrapping_add(1);
        let (batch, last) = batch(table, &transaction.0, first)?;
        self.sequence = last.wrapping_add(1);
        if last == first {
            // Nothing but brackets, which are not answered.
            return Ok(());
        }
        let sent = self.socket.send_to(&batch, &SocketAddr::new(0, 0), 0)?;
        if sent != batch.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for answer in messages(&datagram).filter(|m| m[4..6] == ERROR.to_ne_bytes()) {
                let sequence = word(answer, 8).unwrap_or_default();
                // One of a transaction before, which was given up.
                if sequence.wrapping_sub(first) > last.wrapping_sub(first) {
                    continue;
                }
                match word(answer, HEADER).map(u32::cast_signed) {
                    Some(0) if sequence == last => return Ok(()),
                    Some(0) => {}
                    Some(code) => return Err(io::Error::from_raw_os_error(-code)),
                    None => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
        }
    }
}

impl TableSocket {
    /// The elements of a set in a table of family `inet`, as `read` makes them of the octets of key
    /// and data.
    ///
    /// # Errors
    /// The kernel's refusal; [`io::ErrorKind::WouldBlock`] when it does not answer;
    /// [`io::ErrorKind::Interrupted`] while others change the table all the time.
    pub(in crate::dataplane) fn elements<T>(
        &mut self,
        of: (&str, &str),
        read: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_ATTEMPTS {
            let found = self.dump(of, &read)?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// `None` = the table has changed meanwhile.
    fn dump<T>(
        &mut self,
        of: (&str, &str),
        read: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> io::Result<Option<Vec<T>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let question = elements::question(of, self.sequence);
        self.socket.send_to(&question, &SocketAddr::new(0, 0), 0)?;
        let (mut found, mut is_whole) = (Vec::new(), true);
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for answer in messages(&datagram) {
                // One of a transaction before, which was given up.
                if word(answer, 8) != Some(self.sequence) {
                    continue;
                }
                is_whole &= half(answer, 6).is_none_or(|flags| flags & NLM_F_DUMP_INTR == 0);
                match (half(answer, 4), word(answer, HEADER).map(u32::cast_signed)) {
                    (Some(ERROR | DONE), Some(code)) if code < 0 => {
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    (Some(ERROR | DONE), _) => return Ok(is_whole.then_some(found)),
                    _ => found.extend(elements::read(answer, &read)),
                }
            }
        }
    }
}

/// The messages of a transaction, and the number of the last one that is answered.
fn batch(table: &str, edits: &[Edit], first: u32) -> io::Result<(Vec<u8>, u32)> {
    let mut batch = Batch {
        octets: Vec::new(),
        sequence: first,
    };
    batch.bracket(BATCH_BEGIN);
    for edit in edits {
        match edit {
            Edit::Add(set, elements) => {
                batch.elements(NEW_ELEMENTS, NLM_F_CREATE, (table, set), elements)?;
            }
            Edit::Delete(set, elements) => {
                batch.elements(DELETE_ELEMENTS, 0, (table, set), elements)?;
            }
            Edit::AddChain(chain, rules) => {
                batch.chain(NEW_CHAIN, NLM_F_CREATE, (table, chain));
                batch.rules((table, chain), rules);
            }
            Edit::DeleteChain(chain) => batch.chain(DELETE_CHAIN, 0, (table, chain)),
            Edit::Script(_) => return Err(io::ErrorKind::Unsupported.into()),
        }
    }
    let last = batch.sequence.wrapping_sub(1);
    batch.bracket(BATCH_END);
    Ok((batch.octets, last))
}

struct Batch {
    octets: Vec<u8>,
    /// Of the next message.
    sequence: u32,
}

impl Batch {
    fn message(&mut self, (kind, flags): (u16, u16), family: u8, subject: u16) -> usize {
        let start = begin(&mut self.octets, kind, NLM_F_REQUEST | flags, self.sequence);
        self.sequence = self.sequence.wrapping_add(1);
        // `struct nfgenmsg`: family, version 0, and the subsystem where it is a bracket.
        self.octets.extend_from_slice(&[family, 0]);
        self.octets.extend_from_slice(&subject.to_be_bytes());
        start
    }

    fn bracket(&mut self, kind: u16) {
        let start = self.message((kind, 0), UNSPECIFIED, NFTABLES);
        finish(&mut self.octets, start);
    }

    fn chain(&mut self, kind: u16, flags: u16, (table, chain): (&str, &str)) {
        let start = self.message((kind, NLM_F_ACK | flags), INET, 0);
        name(&mut self.octets, TABLE, table);
        name(&mut self.octets, CHAIN, chain);
        finish(&mut self.octets, start);
    }

    /// Puts rules in the place of those that a chain has; with none of them nothing is said.
    fn rules(&mut self, (table, chain): (&str, &str), rules: &[PickRule]) {
        let all = (DELETE_RULES, NLM_F_ACK);
        let one = (NEW_RULE, NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND);
        let flush = rules.first().map(|_| (all, None));
        let rules = rules.iter().map(|rule| (one, Some(rule)));
        for (kind, rule) in flush.into_iter().chain(rules) {
            let start = self.message(kind, INET, 0);
            let octets = &mut self.octets;
            name(octets, TABLE, table);
            name(octets, OF_CHAIN, chain);
            if let Some(rule) = rule {
                let list = open(octets, EXPRESSIONS);
                expressions::put(octets, rule);
                close(octets, list);
            }
            finish(octets, start);
        }
    }

    fn elements(
        &mut self,
        kind: u16,
        flags: u16,
        (table, set): (&str, &str),
        elements: &[Element],
    ) -> io::Result<()> {
        for elements in elements.chunks(IN_ONE_MESSAGE) {
            let start = self.message((kind, NLM_F_ACK | flags), INET, 0);
            let octets = &mut self.octets;
            name(octets, TABLE, table);
            name(octets, SET, set);
            let list = open(octets, ELEMENTS);
            for element in elements {
                let at = open(octets, ELEMENT);
                let key = open(octets, KEY);
                value(octets, &element.key)?;
                close(octets, key);
                // What goes is found by its key.
                if let Some(to) = element.data.as_ref().filter(|_| kind == NEW_ELEMENTS) {
                    data(octets, to)?;
                }
                close(octets, at);
            }
            close(octets, list);
            finish(&mut self.octets, start);
        }
        Ok(())
    }
}

fn value(octets: &mut Vec<u8>, fields: &Fields) -> io::Result<()> {
    // Intervals are `nft`'s.
    let fields = fields.octets().ok_or(io::ErrorKind::Unsupported)?;
    attribute(octets, VALUE, &fields);
    Ok(())
}

fn data(octets: &mut Vec<u8>, to: &ElementData) -> io::Result<()> {
    let start = open(octets, DATA);
    match to {
        ElementData::Value(address, port) => {
            let to = [Field::Address(*address), Field::Port(*port)];
            value(octets, &to.into())?;
        }
        ElementData::Goto(chain) => verdict(octets, GOTO, Some(chain)),
        ElementData::Drop => verdict(octets, DROP, None),
    }
    close(octets, start);
    Ok(())
}

fn verdict(octets: &mut Vec<u8>, code: i32, chain: Option<&str>) {
    let start = open(octets, VERDICT);
    attribute(octets, CODE, &code.to_be_bytes());
    if let Some(chain) = chain {
        name(octets, TO_CHAIN, chain);
    }
    close(octets, start);
}
