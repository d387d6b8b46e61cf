//! A rule of nftables as expressions, which the kernel carries out one behind the other on its
//! registers (`linux/netfilter/nf_tables.h`).

use caracal_model::Family;

use super::framing::{NESTED, attribute, close, name, open};
use crate::nft::PickRule;

/// `NFTA_LIST_ELEM`, `NFTA_DATA_VALUE`.
pub(super) const ELEMENT: u16 = 1 | NESTED;
pub(super) const VALUE: u16 = 1;
/// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`.
const NAME: u16 = 1;
const DATA: u16 = 2 | NESTED;
/// `NFT_REG32_00`: the first of sixteen registers of four octets.
const FIRST_REGISTER: u32 = 8;
/// `NFTA_META_DREG`, `NFTA_META_KEY`; `NFT_META_NFPROTO`, `NFT_META_L4PROTO`.
const META: [u16; 2] = [1, 2];
const FAMILY: u32 = 15;
const PROTOCOL: u32 = 16;
/// `NFTA_CMP_SREG`, `NFTA_CMP_OP`, `NFTA_CMP_DATA`; `NFT_CMP_EQ`.
const COMPARE: [u16; 2] = [1, 2];
const COMPARED: u16 = 3 | NESTED;
const EQUAL: u32 = 0;
/// `NFTA_PAYLOAD_DREG`, `_BASE`, `_OFFSET`, `_LEN`; headers of network and transport.
const PAYLOAD: [u16; 4] = [1, 2, 3, 4];
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// `NFTA_NG_DREG`, `NFTA_NG_MODULUS`, `NFTA_NG_TYPE`, `NFTA_NG_OFFSET`; `NFT_NG_RANDOM`.
const NUMBER: [u16; 4] = [1, 2, 3, 4];
const RANDOM: u32 = 1;
/// `NFTA_LOOKUP_SREG`, `NFTA_LOOKUP_DREG`; `NFTA_LOOKUP_SET`.
const LOOKUP: [u16; 2] = [2, 3];
const LOOKED_UP: u16 = 1;
/// `NFTA_NAT_TYPE`, `_FAMILY`, `_REG_ADDR_MIN`, `_REG_PROTO_MIN`; `NFT_NAT_DNAT`.
const TRANSLATE: [u16; 4] = [1, 2, 3, 5];
const DESTINATION: u32 = 1;

/// Expressions, in a list of them that is open.
struct Expressions<'a>(&'a mut Vec<u8>);

impl Expressions<'_> {
    /// Appends one with these numbers, and with what `more` appends.
    fn put(
        &mut self,
        kind: &str,
        attributes: &[u16],
        numbers: &[u32],
        more: &dyn Fn(&mut Vec<u8>),
    ) {
        let octets = &mut *self.0;
        let start = open(octets, ELEMENT);
        name(octets, NAME, kind);
        let data = open(octets, DATA);
        for (kind, number) in attributes.iter().zip(numbers) {
            attribute(octets, *kind, &number.to_be_bytes());
        }
        more(octets);
        close(octets, data);
        close(octets, start);
    }

    /// Goes on with packets alone of which `key` is this octet.
    fn only(&mut self, key: u32, octet: u8) {
        self.put("meta", &META, &[FIRST_REGISTER, key], &|_| {});
        self.put("cmp", &COMPARE, &[FIRST_REGISTER, EQUAL], &|octets| {
            let compared = open(octets, COMPARED);
            attribute(octets, VALUE, &[octet]);
            close(octets, compared);
        });
    }
}

/// Appends the expressions of a rule, as `nft` makes them of its text.
pub(super) fn put(octets: &mut Vec<u8>, rule: &PickRule) {
    // `NFPROTO_IPV4`, `NFPROTO_IPV6`; place and length of the destination in the header.
    let (family, at, length) = match rule.family {
        Family::Ipv4 => (2, 16, 4),
        Family::Ipv6 => (10, 24, 16),
    };
    let address = FIRST_REGISTER;
    let protocol = address + length / 4;
    let (port, index) = (protocol + 1, protocol + 2);
    let mut all = Expressions(octets);
    all.only(FAMILY, family);
    all.only(PROTOCOL, rule.protocol.number());
    all.put(
        "payload",
        &PAYLOAD,
        &[address, NETWORK, at, length],
        &|_| {},
    );
    all.put("meta", &META, &[protocol, PROTOCOL], &|_| {});
    all.put("payload", &PAYLOAD, &[port, TRANSPORT, 2, 2], &|_| {});
    all.put("numgen", &NUMBER, &[index, rule.among, RANDOM, 0], &|_| {});
    // The endpoint: its address, and its port behind that.
    all.put("lookup", &LOOKUP, &[address, address], &|octets| {
        name(octets, LOOKED_UP, &rule.map);
    });
    let endpoint = [DESTINATION, family.into(), address, protocol];
    all.put("nat", &TRANSLATE, &endpoint, &|_| {});
}
