//! The control packet (RFC 5880 §4.1) and what makes one invalid (§6.8.6).

use std::fmt;

/// Version of BFD that RFC 5880 defines.
const VERSION: u8 = 1;
/// Octets of a packet without authentication.
pub(super) const PACKET_LEN: usize = 24;

const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const CONTROL_PLANE_INDEPENDENT: u8 = 0x08;
const AUTHENTICATION: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

/// State of a session (RFC 5880 §4.1, Sta).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BfdState {
    /// Held down by its operator.
    AdminDown,
    /// Not there, or just created.
    Down,
    /// The other end is there, and does not yet know that we are.
    Init,
    /// Both ends see each other.
    Up,
}

impl BfdState {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::AdminDown => 0,
            Self::Down => 1,
            Self::Init => 2,
            Self::Up => 3,
        }
    }
}

impl fmt::Display for BfdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AdminDown => "AdminDown",
            Self::Down => "Down",
            Self::Init => "Init",
            Self::Up => "Up",
        })
    }
}

/// Why a session last changed its state (RFC 5880 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BfdDiagnostic {
    /// No diagnostic (0).
    None,
    /// 1: nothing came for the detection time.
    TimeExpired,
    /// 3: the other end said so.
    NeighborDown,
    /// 7: its operator's wish.
    AdministrativelyDown,
    /// A code that RFC 5880 §4.1 does not define.
    Other(u8),
}

impl BfdDiagnostic {
    const fn from_octet(octet: u8) -> Self {
        match octet & 0x1f {
            0 => Self::None,
            1 => Self::TimeExpired,
            3 => Self::NeighborDown,
            7 => Self::AdministrativelyDown,
            other => Self::Other(other),
        }
    }

    const fn octet(self) -> u8 {
        match self {
            Self::None => 0,
            Self::TimeExpired => 1,
            Self::NeighborDown => 3,
            Self::AdministrativelyDown => 7,
            Self::Other(octet) => octet,
        }
    }
}

impl fmt::Display for BfdDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no diagnostic"),
            Self::TimeExpired => f.write_str("control detection time expired"),
            Self::NeighborDown => f.write_str("neighbor signaled session down"),
            Self::AdministrativelyDown => f.write_str("administratively down"),
            Self::Other(code) => write!(f, "diagnostic {code}"),
        }
    }
}

/// A control packet. Intervals are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdPacket {
    /// Why the sender's session last changed its state.
    pub diagnostic: BfdDiagnostic,
    /// The state of the sender's session.
    pub state: BfdState,
    /// P: please confirm these parameters.
    pub poll: bool,
    /// F: confirmed.
    pub confirms: bool,
    /// C: the sender's BFD does not share the fate of its control plane.
    pub control_plane_independent: bool,
    /// D: once up, do not send periodically.
    pub demand: bool,
    /// The sender is down after so many lost packets.
    pub multiplier: u8,
    /// The sender's number for the session; never 0.
    pub my_discriminator: u32,
    /// The receiver's number for it; 0 when the sender does not know it.
    pub your_discriminator: u32,
    /// The sender would like to send no faster than this.
    pub desired_min_tx: u32,
    /// The sender can take packets no faster than this; 0: it wants none.
    pub required_min_rx: u32,
}

/// Why a packet must be discarded (RFC 5880 §6.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BfdPacketError {
    /// Too short for its length field, or that for the protocol.
    #[error("{0} octets are no BFD packet")]
    Length(usize),
    /// Version other than 1.
    #[error("version {0}, expected 1")]
    Version(u8),
    /// It is authenticated, and no session here is.
    #[error("the packet is authenticated, the session is not")]
    Authentication,
    /// The multipoint bit is set.
    #[error("the multipoint bit is set")]
    Multipoint,
    /// The detection multiplier is 0.
    #[error("the detection multiplier is 0")]
    Multiplier,
    /// The sender's discriminator is 0.
    #[error("the sender's discriminator is 0")]
    MyDiscriminator,
    /// Ours is 0 although the sender has seen us.
    #[error("our discriminator is 0 in state {0}")]
    YourDiscriminator(BfdState),
}

impl BfdPacket {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`BfdPacketError`].
    pub fn decode(octets: &[u8]) -> Result<Self, BfdPacketError> {
        let Some((fixed, _)) = octets.split_first_chunk::<PACKET_LEN>() else {
            return Err(BfdPacketError::Length(octets.len()));
        };
        let [first, second, multiplier, len, words @ ..] = fixed;
        let len = usize::from(*len);
        if len < PACKET_LEN || len > octets.len() {
            return Err(BfdPacketError::Length(octets.len().min(len)));
        }
        if first >> 5 != VERSION {
            return Err(BfdPacketError::Version(first >> 5));
        }
        if second & AUTHENTICATION != 0 {
            return Err(BfdPacketError::Authentication);
        }
        if second & MULTIPOINT != 0 {
            return Err(BfdPacketError::Multipoint);
        }
        let word = |n: usize| {
            let octets = words.get(4 * n..4 * n + 4).unwrap_or_default();
            u32::from_be_bytes(octets.try_into().unwrap_or_default())
        };
        let packet = Self {
            diagnostic: BfdDiagnostic::from_octet(*first),
            state: BfdState::from_bits(second >> 6),
            poll: second & POLL != 0,
            confirms: second & FINAL != 0,
            control_plane_independent: second & CONTROL_PLANE_INDEPENDENT != 0,
            demand: second & DEMAND != 0,
            multiplier: *multiplier,
            my_discriminator: word(0),
            your_discriminator: word(1),
            desired_min_tx: word(2),
            required_min_rx: word(3),
        };
        packet.check()
    }

    fn check(self) -> Result<Self, BfdPacketError> {
        if self.multiplier == 0 {
            return Err(BfdPacketError::Multiplier);
        }
        if self.my_discriminator == 0 {
            return Err(BfdPacketError::MyDiscriminator);
        }
        let unknown = matches!(self.state, BfdState::Down | BfdState::AdminDown);
        if self.your_discriminator == 0 && !unknown {
            return Err(BfdPacketError::YourDiscriminator(self.state));
        }
        Ok(self)
    }

    /// The packet as octets.
    #[must_use]
    pub fn encode(&self) -> [u8; PACKET_LEN] {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let mut out = [0; PACKET_LEN];
        out[0] = VERSION << 5 | self.diagnostic.octet();
        out[1] = self.state.bits() << 6
            | flag(self.poll, POLL)
            | flag(self.confirms, FINAL)
            | flag(self.control_plane_independent, CONTROL_PLANE_INDEPENDENT)
            | flag(self.demand, DEMAND);
        out[2] = self.multiplier;
        out[3] = 24;
        let words = [
            self.my_discriminator,
            self.your_discriminator,
            self.desired_min_tx,
            self.required_min_rx,
        ];
        for (place, word) in out[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}
