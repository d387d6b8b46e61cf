//! Capabilities (RFC 5492): one list of code, length, value.
//!
//! A capability we know is decoded and its length checked; the others are kept as octets.

use bytes::{BufMut, Bytes, BytesMut};
use nom::IResult;
use nom::Parser;
use nom::bytes::complete::take;
use nom::multi::{length_data, many0};
use nom::number::complete::{be_u8, be_u16, be_u24, be_u32};

pub use super::afi_safi::AfiSafi;
use super::error::OpenError;
use super::reader::{self, Misfit};
use crate::types::Asn;

/// Capability of an OPEN (RFC 5492).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// 1: routes of this family (RFC 4760).
    Multiprotocol(AfiSafi),
    /// 2: ROUTE-REFRESH (RFC 2918).
    RouteRefresh,
    /// 5: prefixes of the family may have next hops of this AFI (RFC 8950).
    ExtendedNextHop(Vec<(AfiSafi, u16)>),
    /// 6: messages of up to 65535 octets (RFC 8654).
    ExtendedMessage,
    /// 9: the sender's role on the session (RFC 9234 §4.1), as it came.
    Role(u8),
    /// 64: graceful restart (RFC 4724).
    GracefulRestart(GracefulRestartCapability),
    /// 65: four-octet AS numbers, with the sender's own (RFC 6793).
    FourOctetAs(Asn),
    /// 69: several paths per prefix (RFC 7911).
    AddPath(Vec<(AfiSafi, AddPathMode)>),
    /// 70: begin and end marks around a refresh (RFC 7313).
    EnhancedRouteRefresh,
    /// 71: long-lived graceful restart (RFC 9494).
    LongLivedGracefulRestart(Vec<LongLivedFamily>),
    /// A capability that we do not know.
    Unknown {
        /// Capability code (RFC 5492 §4).
        code: u8,
        /// Octets of the capability's value.
        value: Bytes,
    },
}

/// The value of the Graceful Restart capability (RFC 4724 §3, RFC 8538 §2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GracefulRestartCapability {
    /// R: the sender has restarted; do not wait for its End-of-RIB.
    pub restarting: bool,
    /// N: graceful restart also after a NOTIFICATION (RFC 8538).
    pub notification: bool,
    /// Time for which its routes are to be kept without a session; 12 bits of seconds.
    pub restart_time: u16,
    /// Families for which it can keep forwarding, each with F: it did keep forwarding over the
    /// restart.
    pub families: Vec<(AfiSafi, bool)>,
}

/// The Send/Receive octet of ADD-PATH (RFC 7911 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddPathMode {
    /// 1: receives several paths.
    Receive,
    /// 2: sends several paths.
    Send,
    /// Both directions (3).
    Both,
    /// Anything else, to be ignored.
    Other(u8),
}

/// A family in the Long-Lived Graceful Restart capability (RFC 9494 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LongLivedFamily {
    /// Family that the entry is about.
    pub family: AfiSafi,
    /// F: forwarding state was kept.
    pub forwarding: bool,
    /// Time for which stale routes are to be kept; 24 bits of seconds.
    pub stale_time: u32,
}

const RESTARTING: u16 = 0x8000;
const NOTIFICATION: u16 = 0x4000;
const RESTART_TIME: u16 = 0x0fff;
const FORWARDING: u8 = 0x80;
const STALE_TIME: u32 = 0x00ff_ffff;

impl Capability {
    /// Capability code (RFC 5492 §4).
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Multiprotocol(_) => 1,
            Self::RouteRefresh => 2,
            Self::ExtendedNextHop(_) => 5,
            Self::ExtendedMessage => 6,
            Self::Role(_) => 9,
            Self::GracefulRestart(_) => 64,
            Self::FourOctetAs(_) => 65,
            Self::AddPath(_) => 69,
            Self::EnhancedRouteRefresh => 70,
            Self::LongLivedGracefulRestart(_) => 71,
            Self::Unknown { code, .. } => *code,
        }
    }

    fn decode(code: u8, value: &[u8]) -> Result<Self, OpenError> {
        let parsed = match code {
            1 => multiprotocol(value).map(Self::Multiprotocol),
            2 => empty(value).map(|()| Self::RouteRefresh),
            5 => whole(many0((be_u16, be_u16, be_u16)), value).map(|list| {
                Self::ExtendedNextHop(
                    list.into_iter()
                        .map(|(afi, safi, next_hop)| {
                            // RFC 8950 §4 gives the SAFI two octets here.
                            let safi = u8::try_from(safi).unwrap_or(u8::MAX);
                            (AfiSafi { afi, safi }, next_hop)
                        })
                        .collect(),
                )
            }),
            6 => empty(value).map(|()| Self::ExtendedMessage),
            9 => whole(be_u8, value).map(Self::Role),
            64 => whole((be_u16, many0((afi_safi, be_u8))), value).map(|(flags, families)| {
                Self::GracefulRestart(GracefulRestartCapability {
                    restarting: flags & RESTARTING != 0,
                    notification: flags & NOTIFICATION != 0,
                    restart_time: flags & RESTART_TIME,
                    families: families
                        .into_iter()
                        .map(|(family, flags)| (family, flags & FORWARDING != 0))
                        .collect(),
                })
            }),
            65 => whole(be_u32, value).map(|asn| Self::FourOctetAs(Asn(asn))),
            69 => whole(many0((afi_safi, be_u8)), value).map(|list| {
                Self::AddPath(
                    list.into_iter()
                        .map(|(family, mode)| (family, mode.into()))
                        .collect(),
                )
            }),
            70 => empty(value).map(|()| Self::EnhancedRouteRefresh),
            71 => whole(many0((afi_safi, be_u8, be_u24)), value).map(|list| {
                Self::LongLivedGracefulRestart(
                    list.into_iter()
                        .map(|(family, flags, stale_time)| LongLivedFamily {
                            family,
                            forwarding: flags & FORWARDING != 0,
                            stale_time,
                        })
                        .collect(),
                )
            }),
            _ => Some(Self::Unknown {
                code,
                value: Bytes::copy_from_slice(value),
            }),
        };
        parsed.ok_or(OpenError::Capability {
            code,
            len: value.len(),
        })
    }

    /// Appends code, length and value.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.code());
        let at = out.len();
        out.put_u8(0);
        self.encode_value(out);
        let len = out.len() - at - 1;
        if let Some(field) = out.get_mut(at) {
            *field = u8::try_from(len).unwrap_or(u8::MAX);
        }
    }

    fn encode_value(&self, out: &mut BytesMut) {
        match self {
            Self::Multiprotocol(family) => {
                out.put_u16(family.afi);
                out.put_u8(0);
                out.put_u8(family.safi);
            }
            Self::RouteRefresh | Self::ExtendedMessage | Self::EnhancedRouteRefresh => {}
            Self::ExtendedNextHop(list) => {
                for (family, next_hop) in list {
                    out.put_u16(family.afi);
                    out.put_u16(family.safi.into());
                    out.put_u16(*next_hop);
                }
            }
            Self::GracefulRestart(restart) => {
                let restarting = if restart.restarting { RESTARTING } else { 0 };
                let notification = if restart.notification {
                    NOTIFICATION
                } else {
                    0
                };
                out.put_u16(restarting | notification | (restart.restart_time & RESTART_TIME));
                for (family, forwarding) in &restart.families {
                    put_afi_safi(*family, out);
                    out.put_u8(if *forwarding { FORWARDING } else { 0 });
                }
            }
            Self::Role(role) => out.put_u8(*role),
            Self::FourOctetAs(asn) => out.put_u32(asn.0),
            Self::AddPath(list) => {
                for (family, mode) in list {
                    put_afi_safi(*family, out);
                    out.put_u8((*mode).into());
                }
            }
            Self::LongLivedGracefulRestart(list) => {
                for entry in list {
                    put_afi_safi(entry.family, out);
                    let flags = if entry.forwarding { FORWARDING } else { 0 };
                    out.put_u32(u32::from(flags) << 24 | (entry.stale_time & STALE_TIME));
                }
            }
            Self::Unknown { value, .. } => out.put_slice(value),
        }
    }
}

/// A list of capabilities that fills `value`; `Err` when a length does not fit.
pub(super) fn decode_list(value: &[u8]) -> Result<Vec<Capability>, OpenError> {
    let list = whole(many0((be_u8, length_data(be_u8))), value).ok_or(OpenError::Cut)?;
    list.into_iter()
        .map(|(code, value)| Capability::decode(code, value))
        .collect()
}

fn whole<'a, T>(
    parser: impl Parser<&'a [u8], Output = T, Error = Misfit>,
    value: &'a [u8],
) -> Option<T> {
    reader::whole(parser, value).ok()
}

fn empty(value: &[u8]) -> Option<()> {
    value.is_empty().then_some(())
}

fn afi_safi(input: &[u8]) -> IResult<&[u8], AfiSafi, Misfit> {
    let (input, (afi, safi)) = (be_u16, be_u8).parse(input)?;
    Ok((input, AfiSafi { afi, safi }))
}

fn multiprotocol(value: &[u8]) -> Option<AfiSafi> {
    let (afi, _reserved, safi) = whole((be_u16, take(1usize), be_u8), value)?;
    Some(AfiSafi { afi, safi })
}

fn put_afi_safi(family: AfiSafi, out: &mut BytesMut) {
    out.put_u16(family.afi);
    out.put_u8(family.safi);
}

impl From<u8> for AddPathMode {
    fn from(octet: u8) -> Self {
        match octet {
            1 => Self::Receive,
            2 => Self::Send,
            3 => Self::Both,
            other => Self::Other(other),
        }
    }
}

impl From<AddPathMode> for u8 {
    fn from(mode: AddPathMode) -> Self {
        match mode {
            AddPathMode::Receive => 1,
            AddPathMode::Send => 2,
            AddPathMode::Both => 3,
            AddPathMode::Other(octet) => octet,
        }
    }
}
