//! UPDATE (RFC 4271 §4.3) with the multiprotocol attributes (RFC 4760) folded in, and the revised
//! error handling of RFC 7606.

use std::net::IpAddr;

use bytes::{BufMut, BytesMut};
use caracal_model::{Family, Prefix};
use nom::combinator::rest;
use nom::multi::length_data;
use nom::number::complete::be_u16;

use super::attr::{self, EncodeInput, Parsed};
use super::error::{AttrFault, ErrorHandling, UpdateError, UpdateFault};
use super::format::MessageFormat;
use super::kind::{self, MESSAGE_HEADER_LEN, MessageType};
use super::nlri::{self, Nlri};
use super::notification::UpdateSubcode;
use super::{mp, reader};
use crate::attrs::PathAttrs;

/// One UPDATE. Which family a prefix belongs to is in the prefix; whether it travelled in the
/// classic fields or in MP_REACH_NLRI and MP_UNREACH_NLRI leaves no trace.
///
/// All of `announced` shares `attrs`, next hop included: a message that announces both families
/// with a next hop each decodes into two of these. A prefix in both lists is announced (RFC 4271
/// §4.3), so a receiver applies `withdrawn` first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateMessage {
    /// Prefixes that are no longer reachable through the sender.
    pub withdrawn: Vec<Prefix>,
    /// Prefixes that are reachable with `attrs`.
    pub announced: Vec<Prefix>,
    /// The path identifiers of `withdrawn`, in its order (RFC 7911); empty when none has one.
    pub withdrawn_ids: Vec<u32>,
    /// The path identifiers of `announced`, in its order; empty when none has one.
    pub announced_ids: Vec<u32>,
    /// The attributes of `announced`; `Some` whenever that is not empty.
    pub attrs: Option<PathAttrs>,
    /// The message is the End-of-RIB marker of this family (RFC 4724 §2); all else is empty.
    pub end_of_rib: Option<Family>,
}

impl UpdateMessage {
    /// The End-of-RIB marker of a family (RFC 4724 §2).
    #[must_use]
    pub fn end_of_rib(family: Family) -> Self {
        Self {
            end_of_rib: Some(family),
            ..Self::default()
        }
    }

    /// True when there is nothing in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.withdrawn.is_empty() && self.announced.is_empty() && self.end_of_rib.is_none()
    }
}

/// Content of one UPDATE message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedUpdate {
    /// The routes; for a message that announces both families, the classic part.
    pub update: UpdateMessage,
    /// The MP_REACH_NLRI part of a message that announces both families.
    pub second: Option<Box<UpdateMessage>>,
    /// Faults that do not end the session; they are handled already.
    pub faults: Vec<AttrFault>,
}

impl DecodedUpdate {
    /// The one or two updates, in order.
    pub fn into_updates(self) -> impl Iterator<Item = UpdateMessage> {
        std::iter::once(self.update).chain(self.second.map(|second| *second))
    }
}

/// Prefixes by the place they came from.
#[derive(Default)]
struct UpdatePrefixes {
    withdrawn: NlriList,
    classic: NlriList,
    reach: NlriList,
}

/// Prefixes and, unless none has one, their path identifiers.
#[derive(Default)]
struct NlriList {
    prefixes: Vec<Prefix>,
    ids: Vec<u32>,
}

impl NlriList {
    fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Reads prefixes of a family as the session writes them.
    fn read(
        &mut self,
        input: &[u8],
        family: Family,
        format: &MessageFormat,
    ) -> Result<(), UpdateFault> {
        if format.path_ids_in.contains(family) {
            self.ids.resize(self.prefixes.len(), 0);
            return nlri::decode_with_ids(input, family, &mut self.prefixes, &mut self.ids);
        }
        nlri::decode(input, family, &mut self.prefixes)?;
        self.fill();
        Ok(())
    }

    /// Gives all prefixes an identifier: 0 where one has another.
    fn fill(&mut self) {
        if !self.ids.is_empty() {
            self.ids.resize(self.prefixes.len(), 0);
        }
    }

    fn append(&mut self, mut other: Self) {
        if !other.ids.is_empty() {
            self.ids.resize(self.prefixes.len(), 0);
        }
        self.prefixes.append(&mut other.prefixes);
        self.ids.append(&mut other.ids);
        self.fill();
    }
}

/// Reads the body of an UPDATE.
pub(super) fn decode(body: &[u8], format: &MessageFormat) -> Result<DecodedUpdate, UpdateError> {
    let fields = (length_data(be_u16), length_data(be_u16), rest);
    let (withdrawn, list, announced) = reader::whole(fields, body).map_err(|_| {
        UpdateError::reset(None, UpdateFault::Lengths, UpdateSubcode::MalformedList)
    })?;
    if withdrawn.is_empty() && list.is_empty() && announced.is_empty() {
        let update = UpdateMessage::end_of_rib(Family::Ipv4);
        return Ok(DecodedUpdate {
            update,
            ..DecodedUpdate::default()
        });
    }
    let mut parsed = attr::decode(list, format)?;
    let mut prefixes = UpdatePrefixes::default();
    classic(withdrawn, format, &mut prefixes.withdrawn)?;
    classic(announced, format, &mut prefixes.classic)?;
    if let Some(family) = end_of_rib(&parsed, withdrawn, announced) {
        return Ok(DecodedUpdate {
            update: UpdateMessage::end_of_rib(family),
            second: None,
            faults: parsed.faults,
        });
    }
    let mp_next_hop = multiprotocol(&mut parsed, format, &mut prefixes)?;
    check(&mut parsed, &prefixes)?;
    Ok(assemble(parsed, prefixes, mp_next_hop))
}

/// Classic prefixes. RFC 7606 §5.3: if they cannot be read, nothing but a reset is safe.
fn classic(input: &[u8], format: &MessageFormat, out: &mut NlriList) -> Result<(), UpdateError> {
    out.read(input, Family::Ipv4, format)
        .map_err(|fault| UpdateError::reset(None, fault, UpdateSubcode::InvalidNetwork))?;
    if !format.families.contains(Family::Ipv4) {
        *out = NlriList::default();
    }
    Ok(())
}

/// RFC 4724 §2: nothing but an empty MP_UNREACH_NLRI.
fn end_of_rib(parsed: &Parsed<'_>, withdrawn: &[u8], announced: &[u8]) -> Option<Family> {
    let unreach = parsed.unreach.as_ref()?;
    let marker = withdrawn.is_empty()
        && announced.is_empty()
        && unreach.nlri.is_empty()
        && parsed.has_only(attr::MP_UNREACH_NLRI);
    unreach.family.family().filter(|_| marker)
}

/// Reads the prefixes of the MP attributes; returns the next hop of the announced ones. Families
/// that were not negotiated are ignored.
fn multiprotocol(
    parsed: &mut Parsed<'_>,
    format: &MessageFormat,
    prefixes: &mut UpdatePrefixes,
) -> Result<Option<PathAttrsNextHop>, UpdateError> {
    let negotiated = |family: &Family| format.families.contains(*family);
    if let Some(unreach) = parsed.unreach
        && let Some(family) = unreach.family.family().filter(negotiated)
    {
        let withdrawn = &mut prefixes.withdrawn;
        withdrawn
            .read(unreach.nlri, family, format)
            .map_err(|fault| UpdateError::disable(attr::MP_UNREACH_NLRI, fault, family))?;
    }
    let Some(reach) = parsed.reach else {
        return Ok(None);
    };
    let Some(family) = reach.family.family().filter(negotiated) else {
        return Ok(None);
    };
    let disable = |fault| UpdateError::disable(attr::MP_REACH_NLRI, fault, family);
    let (global, link_local) =
        mp::decode_next_hop(reach.next_hop, family, format).map_err(disable)?;
    let reached = &mut prefixes.reach;
    reached.read(reach.nlri, family, format).map_err(disable)?;
    if let Err(fault) = attr::host(global) {
        parsed.fault(attr::MP_REACH_NLRI, fault, ErrorHandling::TreatAsWithdraw);
    }
    Ok(Some((global, link_local)))
}

type PathAttrsNextHop = (IpAddr, Option<std::net::Ipv6Addr>);

/// The checks that need the whole message (RFC 7606 §3 d, §5.2).
fn check(parsed: &mut Parsed<'_>, prefixes: &UpdatePrefixes) -> Result<(), UpdateError> {
    let announces = !prefixes.classic.is_empty() || !prefixes.reach.is_empty();
    if announces {
        for code in [attr::ORIGIN, attr::AS_PATH] {
            if !parsed.has(code) {
                parsed.fault(code, UpdateFault::Missing, ErrorHandling::TreatAsWithdraw);
            }
        }
    }
    if !prefixes.classic.is_empty() && !parsed.has(attr::NEXT_HOP) {
        parsed.fault(
            attr::NEXT_HOP,
            UpdateFault::Missing,
            ErrorHandling::TreatAsWithdraw,
        );
    }
    // RFC 4760 §3: where all prefixes are in MP_REACH_NLRI, NEXT_HOP is ignored, right or wrong.
    if prefixes.classic.is_empty() && parsed.reach.is_some() {
        let next_hop = parsed.faults.iter_mut();
        for fault in next_hop.filter(|fault| fault.code == Some(attr::NEXT_HOP)) {
            fault.handling = ErrorHandling::AttributeDiscard;
        }
    }
    let severe = parsed
        .faults
        .iter()
        .find(|fault| fault.handling != ErrorHandling::AttributeDiscard);
    // RFC 7606 §5.2: without prefixes to withdraw, the broken attribute may have hidden them.
    let visible = announces || !prefixes.withdrawn.is_empty() || parsed.reach.is_some();
    match severe {
        Some(fault) if !visible => Err(UpdateError::reset(
            fault.code,
            fault.fault.clone(),
            UpdateSubcode::MalformedList,
        )),
        _ => Ok(()),
    }
}

fn assemble(
    parsed: Parsed<'_>,
    prefixes: UpdatePrefixes,
    mp_next_hop: Option<PathAttrsNextHop>,
) -> DecodedUpdate {
    let Parsed {
        mut attrs, faults, ..
    } = parsed;
    let UpdatePrefixes {
        mut withdrawn,
        classic,
        reach,
    } = prefixes;
    if faults
        .iter()
        .any(|fault| fault.handling == ErrorHandling::TreatAsWithdraw)
    {
        withdrawn.append(classic);
        withdrawn.append(reach);
        let update = UpdateMessage {
            withdrawn: withdrawn.prefixes,
            withdrawn_ids: withdrawn.ids,
            ..UpdateMessage::default()
        };
        return DecodedUpdate {
            update,
            second: None,
            faults,
        };
    }
    if classic.is_empty() && reach.is_empty() {
        let update = UpdateMessage {
            withdrawn: withdrawn.prefixes,
            withdrawn_ids: withdrawn.ids,
            ..UpdateMessage::default()
        };
        return DecodedUpdate {
            update,
            second: None,
            faults,
        };
    }
    let mut second = None;
    let mut announced = classic;
    if let Some((global, link_local)) = mp_next_hop.filter(|_| !reach.is_empty()) {
        if announced.is_empty() {
            announced = reach;
            attrs.next_hop = Some(global);
            attrs.link_local_next_hop = link_local;
        } else {
            let mut attrs = attrs.clone();
            attrs.next_hop = Some(global);
            attrs.link_local_next_hop = link_local;
            second = Some(Box::new(UpdateMessage {
                announced: reach.prefixes,
                announced_ids: reach.ids,
                attrs: Some(attrs),
                ..UpdateMessage::default()
            }));
        }
    }
    let update = UpdateMessage {
        withdrawn: withdrawn.prefixes,
        announced: announced.prefixes,
        withdrawn_ids: withdrawn.ids,
        announced_ids: announced.ids,
        attrs: Some(attrs),
        end_of_rib: None,
    };
    DecodedUpdate {
        update,
        second,
        faults,
    }
}

/// Why a route cannot be put on the wire. The caller withdraws the prefixes instead: the peer's
/// last state of them is no longer valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The attributes alone fill a message (RFC 8654 §5).
    #[error("attributes take {len} octets and leave no room in a message of {max}")]
    TooLong {
        /// Octets of the attributes.
        len: usize,
        /// The session's maximum message size.
        max: usize,
    },
    /// There is no next hop of a form that the session allows for the family.
    #[error("next hop {next_hop:?} cannot be announced with {family} prefixes on this session")]
    NextHop {
        /// Next hop of the route.
        next_hop: Option<IpAddr>,
        /// Family of the prefixes.
        family: Family,
    },
}

/// Octets of an UPDATE before its variable parts: header and two length fields.
const FIXED: usize = MESSAGE_HEADER_LEN + 4;
/// Octets of the longest prefix, with its length octet and a path identifier.
const LONGEST_PREFIX: usize = 21;
/// Octets of AFI and SAFI.
const AFI_SAFI: usize = 3;

/// Appends UPDATEs that announce `prefixes` of `family` with `attrs`, as few as the maximum message
/// size allows. Prefixes of the other family are skipped.
///
/// # Errors
/// [`EncodeError`]; `out` is then unchanged.
pub fn encode_announce<N: Nlri>(
    family: Family,
    attrs: &PathAttrs,
    prefixes: &[N],
    format: &MessageFormat,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let next_hop = attrs.next_hop.filter(|next_hop| match (family, next_hop) {
        (Family::Ipv4, IpAddr::V4(_)) | (Family::Ipv6, IpAddr::V6(_)) => true,
        (Family::Ipv4, IpAddr::V6(_)) => format.extended_next_hop,
        (Family::Ipv6, IpAddr::V4(_)) => false,
    });
    let Some(next_hop) = next_hop else {
        return Err(EncodeError::NextHop {
            next_hop: attrs.next_hop,
            family,
        });
    };
    let classic = next_hop.is_ipv4();
    let mut list = BytesMut::with_capacity(128);
    attr::encode(
        &EncodeInput {
            attrs,
            format,
            classic,
        },
        &mut list,
    );
    let mut head = BytesMut::new();
    if !classic {
        mp::encode_reach_head(family, next_hop, attrs.link_local_next_hop, &mut head);
    }
    let taken = FIXED
        + list.len()
        + if classic {
            0
        } else {
            attr::MP_HEADER_LEN + head.len()
        };
    let max = format.max_send();
    if taken + LONGEST_PREFIX > max {
        return Err(EncodeError::TooLong {
            len: taken - FIXED,
            max,
        });
    }
    for chunk in chunks(family, prefixes, max - taken) {
        kind::write(out, MessageType::Update, |out| {
            out.put_u16(0);
            if classic {
                super::put_len_u16(out, list.len());
                out.put_slice(&list);
                put_prefixes(chunk, family, out);
            } else {
                let len = head.len() + chunk_len(chunk, family);
                super::put_len_u16(out, attr::MP_HEADER_LEN + len + list.len());
                // RFC 7606 §5.1: the MP attribute comes first.
                attr::put_mp_header(attr::MP_REACH_NLRI, len, out);
                out.put_slice(&head);
                put_prefixes(chunk, family, out);
                out.put_slice(&list);
            }
        });
    }
    Ok(())
}

/// Appends path attributes as a table dump has them (RFC 6396 §4.3.4): AS numbers of four octets,
/// and of MP_REACH_NLRI the next hop alone.
pub(crate) fn encode_table_attributes(attrs: &PathAttrs, out: &mut BytesMut) {
    let format = MessageFormat {
        four_octet_as: true,
        internal: true,
        ..MessageFormat::default()
    };
    let source = EncodeInput {
        attrs,
        format: &format,
        classic: true,
    };
    attr::encode(&source, out);
    if let Some(IpAddr::V6(next_hop)) = attrs.next_hop {
        let octets = next_hop.octets();
        attr::put_mp_header(attr::MP_REACH_NLRI, 1 + octets.len(), out);
        super::put_len_u8(out, octets.len());
        out.put_slice(&octets);
    }
}

/// Appends UPDATEs that withdraw `prefixes` of `family`, as few as possible. Prefixes of the other
/// family are skipped.
pub fn encode_withdraw<N: Nlri>(
    family: Family,
    prefixes: &[N],
    format: &MessageFormat,
    out: &mut BytesMut,
) {
    let taken = match family {
        Family::Ipv4 => FIXED,
        Family::Ipv6 => FIXED + attr::MP_HEADER_LEN + AFI_SAFI,
    };
    for chunk in chunks(family, prefixes, format.max_send() - taken) {
        let len = chunk_len(chunk, family);
        kind::write(out, MessageType::Update, |out| match family {
            Family::Ipv4 => {
                super::put_len_u16(out, len);
                put_prefixes(chunk, family, out);
                out.put_u16(0);
            }
            Family::Ipv6 => {
                put_unreach_head(family, len, out);
                put_prefixes(chunk, family, out);
            }
        });
    }
}

/// Appends the End-of-RIB marker of `family` (RFC 4724 §2).
pub fn encode_end_of_rib(family: Family, out: &mut BytesMut) {
    kind::write(out, MessageType::Update, |out| match family {
        Family::Ipv4 => out.put_u32(0),
        Family::Ipv6 => put_unreach_head(family, 0, out),
    });
}

/// Empty withdrawn routes, then MP_UNREACH_NLRI up to its prefixes of `len` octets.
fn put_unreach_head(family: Family, len: usize, out: &mut BytesMut) {
    out.put_u16(0);
    super::put_len_u16(out, attr::MP_HEADER_LEN + AFI_SAFI + len);
    attr::put_mp_header(attr::MP_UNREACH_NLRI, AFI_SAFI + len, out);
    mp::put_family(family, out);
}

/// Cuts `prefixes` into runs of which the members of `family` take at most `room` octets.
fn chunks<N: Nlri>(family: Family, prefixes: &[N], room: usize) -> impl Iterator<Item = &[N]> {
    let mut left = prefixes;
    std::iter::from_fn(move || {
        // A message starts with a destination of the family; others before it are skipped.
        let start = left
            .iter()
            .position(|nlri| nlri.prefix().family() == family)?;
        left = left.get(start..)?;
        let mut used = 0;
        let fits = left.iter().take_while(|nlri| {
            used += if nlri.prefix().family() == family {
                nlri.encoded_len()
            } else {
                0
            };
            used <= room
        });
        let (chunk, rest) = left.split_at_checked(fits.count())?;
        left = rest;
        Some(chunk)
    })
}

fn chunk_len<N: Nlri>(chunk: &[N], family: Family) -> usize {
    chunk
        .iter()
        .filter(|nlri| nlri.prefix().family() == family)
        .map(Nlri::encoded_len)
        .sum()
}

fn put_prefixes<N: Nlri>(chunk: &[N], family: Family, out: &mut BytesMut) {
    for nlri in chunk.iter().filter(|nlri| nlri.prefix().family() == family) {
        nlri.encode(out);
    }
}

/// Prefixes with their path identifiers, 0 for those that have none.
fn with_ids(prefixes: &[Prefix], ids: &[u32]) -> Vec<(Prefix, u32)> {
    let ids = ids.iter().copied().chain(std::iter::repeat(0));
    prefixes.iter().copied().zip(ids).collect()
}

/// Appends `update` as messages: withdrawals, then announcements, then the marker.
///
/// # Errors
/// [`EncodeError`] when an announcement does not fit; what is before it stays in `out`.
pub fn encode_update(
    update: &UpdateMessage,
    format: &MessageFormat,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    for family in [Family::Ipv4, Family::Ipv6] {
        if format.path_ids_out.contains(family) {
            let paths = with_ids(&update.withdrawn, &update.withdrawn_ids);
            encode_withdraw(family, &paths, format, out);
        } else {
            encode_withdraw(family, &update.withdrawn, format, out);
        }
    }
    if let Some(attrs) = &update.attrs {
        for family in [Family::Ipv4, Family::Ipv6] {
            if !update
                .announced
                .iter()
                .any(|prefix| prefix.family() == family)
            {
                continue;
            }
            if format.path_ids_out.contains(family) {
                let paths = with_ids(&update.announced, &update.announced_ids);
                encode_announce(family, attrs, &paths, format, out)?;
            } else {
                encode_announce(family, attrs, &update.announced, format, out)?;
            }
        }
    }
    if let Some(family) = update.end_of_rib {
        encode_end_of_rib(family, out);
    }
    Ok(())
}
