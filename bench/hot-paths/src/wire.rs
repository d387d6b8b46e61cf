//! As much BGP as a load generator needs: OPEN, UPDATE, KEEPALIVE, four-octet AS numbers, IPv4.
//!
//! Written apart from the speaker's codec, so that an error there cannot hide itself here.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail};

/// Octets of a message header.
pub const HEADER: usize = 19;
/// Type code of an OPEN (RFC 4271 §4.1).
pub const OPEN: u8 = 1;
/// Type code of an UPDATE.
pub const UPDATE: u8 = 2;
/// Type code of a NOTIFICATION.
pub const NOTIFICATION: u8 = 3;
/// Type code of a KEEPALIVE.
pub const KEEPALIVE: u8 = 4;
const ROUTE_REFRESH: u8 = 5;

/// An IPv4 prefix: address bits and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Net {
    /// The address as a number.
    pub bits: u32,
    /// Length of the prefix in bits.
    pub len: u8,
}

/// The path attributes that the scenarios use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// AS_PATH, one sequence.
    pub as_path: Vec<u32>,
    /// NEXT_HOP.
    pub next_hop: Option<Ipv4Addr>,
    /// LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// COMMUNITIES, sorted.
    pub communities: Vec<u32>,
    /// ORIGINATOR_ID.
    pub originator: Option<Ipv4Addr>,
    /// CLUSTER_LIST.
    pub clusters: Vec<u32>,
}

fn message(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xff; 16]);
    out.extend_from_slice(&((HEADER + body.len()) as u16).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
}

/// Appends an OPEN: four-octet AS, IPv4 unicast, route refresh, and what else is wanted.
pub fn open(asn: u32, hold: u16, id: Ipv4Addr, more: &[u8], out: &mut Vec<u8>) {
    let mut capabilities = vec![1, 4, 0, 1, 0, 1, 2, 0, 65, 4];
    capabilities.extend_from_slice(&asn.to_be_bytes());
    capabilities.extend_from_slice(more);
    let mut body = vec![4];
    body.extend_from_slice(&u16::try_from(asn).unwrap_or(23456).to_be_bytes());
    body.extend_from_slice(&hold.to_be_bytes());
    body.extend_from_slice(&id.octets());
    body.push(capabilities.len() as u8 + 2);
    body.extend_from_slice(&[2, capabilities.len() as u8]);
    body.extend_from_slice(&capabilities);
    message(OPEN, &body, out);
}

/// Appends a ROUTE-REFRESH for IPv4 unicast (RFC 2918).
pub fn route_refresh(out: &mut Vec<u8>) {
    message(ROUTE_REFRESH, &[0, 1, 0, 1], out);
}

/// Appends a KEEPALIVE.
pub fn keepalive(out: &mut Vec<u8>) {
    message(KEEPALIVE, &[], out);
}

/// Appends one UPDATE; the caller keeps it below 4096 octets.
pub fn update(withdrawn: &[Net], attrs: Option<&Attrs>, announced: &[Net], out: &mut Vec<u8>) {
    let mut list = Vec::new();
    if let Some(attrs) = attrs {
        attrs.encode(&mut list);
    }
    update_with(withdrawn, &list, announced, out);
}

/// The same with a list of attributes as it is on the wire.
pub fn update_with(withdrawn: &[Net], list: &[u8], announced: &[Net], out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(256);
    body.extend_from_slice(&[0, 0]);
    nlri(withdrawn, &mut body);
    let len = body.len() - 2;
    body[..2].copy_from_slice(&(len as u16).to_be_bytes());
    body.extend_from_slice(&(list.len() as u16).to_be_bytes());
    body.extend_from_slice(list);
    nlri(announced, &mut body);
    assert!(
        body.len() + HEADER <= 4096,
        "the generator made an oversized UPDATE"
    );
    message(UPDATE, &body, out);
}

/// Appends UPDATEs with a path to the prefix for each identifier (RFC 7911 §3).
pub fn paths(attrs: &Attrs, net: Net, ids: RangeInclusive<u32>, out: &mut Vec<u8>) {
    let mut list = Vec::new();
    attrs.encode(&mut list);
    let ids: Vec<u32> = ids.collect();
    // An identifier, the length, and up to four octets of the prefix.
    for some in ids.chunks((4096 - HEADER - 4 - list.len()) / 9) {
        let mut body = vec![0, 0];
        body.extend_from_slice(&(list.len() as u16).to_be_bytes());
        body.extend_from_slice(&list);
        for id in some {
            body.extend_from_slice(&id.to_be_bytes());
            nlri(&[net], &mut body);
        }
        message(UPDATE, &body, out);
    }
}

fn nlri(nets: &[Net], out: &mut Vec<u8>) {
    for net in nets {
        out.push(net.len);
        let octets = usize::from(net.len.div_ceil(8));
        out.extend_from_slice(&net.bits.to_be_bytes()[..octets]);
    }
}

fn attribute(flags: u8, code: u8, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[flags, code, value.len() as u8]);
    out.extend_from_slice(value);
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

impl Attrs {
    /// Appends them as an attribute list.
    pub fn encode(&self, out: &mut Vec<u8>) {
        attribute(0x40, 1, &[0], out);
        let mut path = Vec::new();
        if !self.as_path.is_empty() {
            path.extend_from_slice(&[2, self.as_path.len() as u8]);
            path.extend_from_slice(&words(&self.as_path));
        }
        attribute(0x40, 2, &path, out);
        if let Some(next_hop) = self.next_hop {
            attribute(0x40, 3, &next_hop.octets(), out);
        }
        if let Some(value) = self.local_pref {
            attribute(0x40, 5, &value.to_be_bytes(), out);
        }
        if !self.communities.is_empty() {
            attribute(0xc0, 8, &words(&self.communities), out);
        }
    }

    /// Reads an attribute list.
    pub fn decode(list: &[u8]) -> Result<Self> {
        let mut attrs = Self::default();
        for item in AttrIter(list) {
            let (code, value) = item?;
            let numbers = || {
                value
                    .chunks_exact(4)
                    .map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]]))
            };
            let one = || numbers().next().context("an attribute without value");
            match code {
                1 | 4 => {}
                2 => attrs.as_path = as_path(value)?,
                3 => attrs.next_hop = Some(one()?.into()),
                5 => attrs.local_pref = Some(one()?),
                8 => {
                    attrs.communities = numbers().collect();
                    attrs.communities.sort_unstable();
                }
                9 => attrs.originator = Some(one()?.into()),
                10 => attrs.clusters = numbers().collect(),
                other => bail!("attribute {other} was not announced"),
            }
        }
        Ok(attrs)
    }
}

fn as_path(mut value: &[u8]) -> Result<Vec<u32>> {
    let mut path = Vec::new();
    while let [2, count, rest @ ..] = value {
        let octets = usize::from(*count) * 4;
        let segment = rest.get(..octets).context("AS_PATH is cut off")?;
        path.extend(
            segment
                .chunks_exact(4)
                .map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]])),
        );
        value = &rest[octets..];
    }
    anyhow::ensure!(
        value.is_empty(),
        "AS_PATH has another segment than a sequence"
    );
    Ok(path)
}

/// The second AS of the path, which is the sender's when the speaker under test has put its own in
/// front.
pub fn second_as(list: &[u8]) -> Option<u32> {
    let (_, value) = AttrIter(list).flatten().find(|(code, _)| *code == 2)?;
    let octets = value.get(6..10)?;
    Some(u32::from_be_bytes(octets.try_into().ok()?))
}

struct AttrIter<'a>(&'a [u8]);

impl<'a> Iterator for AttrIter<'a> {
    type Item = Result<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let (code, len, rest) = match self.0 {
            [flags, code, high, low, rest @ ..] if flags & 0x10 != 0 => {
                (*code, usize::from(u16::from_be_bytes([*high, *low])), rest)
            }
            [_, code, len, rest @ ..] => (*code, usize::from(*len), rest),
            _ => {
                self.0 = &[];
                return Some(Err(anyhow::anyhow!("the attribute list is cut off")));
            }
        };
        let Some((value, rest)) = rest.split_at_checked(len) else {
            self.0 = &[];
            return Some(Err(anyhow::anyhow!("an attribute is cut off")));
        };
        self.0 = rest;
        Some(Ok((code, value)))
    }
}

/// The three parts of an UPDATE: withdrawn prefixes, attribute list, announced prefixes.
pub fn split_update(body: &[u8]) -> Result<(&[u8], &[u8], &[u8])> {
    let part = |input: &[u8]| -> Option<usize> {
        let len = u16::from_be_bytes(input.get(..2)?.try_into().ok()?);
        Some(2 + usize::from(len))
    };
    let cut = || anyhow::anyhow!("an UPDATE is cut off");
    let at = part(body).ok_or_else(cut)?;
    let (withdrawn, rest) = body.split_at_checked(at).ok_or_else(cut)?;
    let at = part(rest).ok_or_else(cut)?;
    let (list, announced) = rest.split_at_checked(at).ok_or_else(cut)?;
    Ok((&withdrawn[2..], &list[2..], announced))
}

/// Calls `each` for every prefix.
pub fn each_net(mut input: &[u8], mut each: impl FnMut(Net)) -> Result<()> {
    while let Some((len, rest)) = input.split_first() {
        let octets = usize::from(len.div_ceil(8));
        if *len > 32 || rest.len() < octets {
            bail!("a prefix is cut off or longer than 32 bits");
        }
        let mut bits = [0; 4];
        bits[..octets].copy_from_slice(&rest[..octets]);
        each(Net {
            bits: u32::from_be_bytes(bits),
            len: *len,
        });
        input = &rest[octets..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_update_reads_back() {
        let attrs = Attrs {
            as_path: vec![65001, 70000],
            next_hop: Some([10, 0, 0, 1].into()),
            local_pref: Some(100),
            communities: vec![1, 2],
            ..Attrs::default()
        };
        let net = |bits, len| Net { bits, len };
        let nets = [net(0x0a00_0000, 8), net(0x0a01_0180, 25)];
        let mut out = Vec::new();
        update(&nets[..1], Some(&attrs), &nets[1..], &mut out);
        assert_eq!(
            usize::from(u16::from_be_bytes([out[16], out[17]])),
            out.len()
        );
        let (withdrawn, list, announced) = split_update(&out[HEADER..]).unwrap();
        let mut seen = Vec::new();
        each_net(withdrawn, |net| seen.push(net)).unwrap();
        each_net(announced, |net| seen.push(net)).unwrap();
        assert_eq!(seen, nets);
        assert_eq!(Attrs::decode(list).unwrap(), attrs);
        assert_eq!(second_as(list), Some(70000));
        assert!(split_update(&out[HEADER..HEADER + 3]).is_err());
    }
}
