//! A BGP speaker for container clusters: sessions, the routing table, the choice of the best path.
//!
//! The crate is a pure core and one thin shell. The core has no clock, no socket and no task: time
//! and octets enter as arguments, and what has to be done comes back as values. The shell, behind
//! the feature `speaker`, adds tokio.
//!
//! # The whole speaker
//!
//! `Speaker::spawn` starts it with a [`SpeakerConfig`] and gives a `SpeakerHandle`: everything else
//! (another configuration, commands, questions, status) is a method of the handle.
//! `SpeakerHandle::fib_feed` gives the routes for the forwarding table, as a `FibFeed`.
//!
//! # The core
//!
//! A session is a [`PeerFsm`]: inputs go in with the time, outputs come from its `poll`, and the
//! caller sleeps until its `next_timeout`. The codec is [`decode_message`] and one `encode_…`
//! function for each kind of message. A table is a [`Rib`]; the calls to it, in their order:
//!
//! 1. [`Rib::new`] with a [`SpeakerConfig`]; later configurations go to [`Rib::reconfigure`].
//! 2. [`Rib::set_underlay`] with the links and routes over which next hops are reached. Before the
//!    first call every next hop counts as reached.
//! 3. [`Rib::peer_up`] when a session is established, [`Rib::apply`] for each UPDATE (or
//!    [`Rib::receive`] for several and then [`Rib::decide`]), [`Rib::peer_down`] at the end of the
//!    session.
//! 4. After each call, what its [`Changes`] say: `out` goes to peers, in this order; for each of
//!    `prefixes`, [`Rib::learned`] is the route for the forwarding table.
//! 5. [`Rib::work`] as long as [`Rib::has_work`]: changes of large tables are made in slices.
//! 6. [`Rib::handle_timeout`] when [`Rib::next_timeout`] has come.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::time::Instant;
//!
//! use caracal_bgp::{Asn, Origination, Originations, Rib, RibOptions, RouterId, SpeakerConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = SpeakerConfig {
//!     local_as: Asn(64512),
//!     router_id: RouterId([192, 0, 2, 1].into()),
//!     listen: None,
//!     peers: BTreeMap::new(),
//!     originate: Originations::default(),
//!     filters: BTreeMap::new(),
//!     stations: BTreeMap::new(),
//! };
//! let now = Instant::now();
//! let (mut rib, _) = Rib::new(now, &config, RibOptions::default());
//! let changes = rib.originate(now, "198.51.100.0/24".parse()?, &Origination::default());
//! assert_eq!(changes.prefixes, ["198.51.100.0/24".parse()?]);
//! assert_eq!(rib.counts().paths, 1);
//! assert!(!rib.has_work());
//! # Ok(())
//! # }
//! ```
//!
//! # What is where
//!
//! Everything is at the root of the crate; modules are private. A prefix tells the part where the
//! plain word would not:
//!
//! | names | what they are |
//! |---|---|
//! | [`decode_message`], [`Message`], `encode_…` | the codec: octets to messages and back |
//! | [`PeerFsm`], [`FsmInput`], [`FsmOutput`] | the state machine of one peer |
//! | [`Rib`], [`Changes`], [`LearnedRoute`] | the table and the choice of the best path |
//! | [`Filter`], `Filter…` | filters of routes |
//! | [`Program`], [`Step`], [`Expression`], [`Value`] … | filters of bird-style files |
//! | [`OriginCheck`], `Origin…` | the check of who may announce what; [`Origin`] alone is the attribute |
//! | `Bfd…` | is the other end there (RFC 5880) |
//! | `Rtr…` | entries of a validator's cache (RFC 8210) |
//! | `Bmp…`, `encode_bmp_…` | messages to monitoring stations (RFC 7854) |

mod attrs;
mod bfd;
mod bmp;
mod config;
mod fsm;
mod martian;
mod opens;
mod origin;
mod policy;
mod ranges;
mod rib;
mod rtr;
#[cfg(feature = "speaker")]
mod speaker;
mod types;
mod wire;

pub use attrs::{
    Aggregator, AsPath, Origin, PathAttrs, RareList, RouteType, Segment, SegmentKind, UnknownAttr,
};
pub use bfd::{
    BfdDiagnostic, BfdEvent, BfdPacket, BfdPacketError, BfdSession, BfdState, BfdTimers,
};
pub use bmp::{
    BMP_COMMON_HEADER, BmpPeerDown, BmpStatistic, BmpTermination, BmpTimestamp, MonitoredSession,
    PolicyView, encode_bmp_initiation, encode_bmp_peer_down, encode_bmp_peer_up,
    encode_bmp_route_monitoring, encode_bmp_statistics, encode_bmp_termination,
};
pub use config::{
    AddPath, BfdOptions, BgpRole, CALICO_LOCAL_PREF, ConfigChange, Counted, DisableAfter,
    GracefulRestart, InterfacePattern, LimitAction, LimitPassed, Listen, NextHopMode, NextHopModes,
    Origination, Originations, OwnNextHops, OwnProtocol, Password, PathCount, PeerChange,
    PeerConfig, PrefixLimit, PrefixLimits, SpeakerConfig, StaticGateway, StaticWay, Station,
    compare_configs,
};
pub use fsm::{
    ConnectFailure, ConnectionEnds, ConnectionId, DownReason, FsmInput, FsmOutput, Negotiated,
    PeerFsm, RemoteGracefulRestart, SessionSettings, SessionStop, SessionUp,
};
pub use martian::{OpenRanges, OpenRangesError};
pub use opens::SessionOpens;
pub use origin::{
    OriginCheck, OriginMode, OriginModeError, OriginRange, OriginReason, OriginRules, OriginUpdate,
    OriginVerdict, OwnerIdentity, PrefixOwner,
};
pub use policy::{
    AsPathPlace, Attribute, Expression, Filter, FilterAction, FilterCondition, FilterTerm,
    FilterVerdict, Function, MaskItem, MaskPart, Method, Operator, PathMask, PeerKind, Place,
    PrefixPattern, PrefixSet, Program, Roa, RoaState, RoaTable, RouteList, RouteSource, SetKind,
    SetPattern, Step, StepAction, Value, ValueSet, ValueType, compute, enumeration_word, glob,
};
pub use rib::{
    AdvertisedRoute, Advertisement, AttrsInfo, BestPathReason, Buckets, Changes, DecidedBy,
    Explanation, FibExportFilter, Gateway, GroupRoute, GroupUpdate, ImportRefusal, LearnedRoute,
    LongLivedRestart, Member, MemberUpdate, MonitoredPath, MrtPeers, MrtProgress, OriginStatus,
    Outbound, PackingBucket, PathId, PathName, PathStatus, PeerCounts, PeerId, Progress,
    RemoteRestart, RemovalImpact, ResolvedNextHop, Rib, RibCounts, RibOptions, RouteChange,
    RouteInfo, RouteQuery, RouteRecord, RouteTable, Screened, SessionInfo, SessionOptions,
    StartupTimes, Underlay, UnderlayRoute, Withheld, admitted,
};
pub use rtr::{RtrCache, RtrTime};
#[cfg(feature = "speaker")]
pub use rtr::{RtrHandle, RtrState, RtrStatus};
#[cfg(feature = "speaker")]
pub use speaker::{
    BfdHandle, BfdStatus, BfdTarget, CannotAnnounce, Capabilities, Convergence, Counters, Endpoint,
    ErrorCounts, ErrorKind, FamilyDetail, FibFeed, KeyedFeed, MessageCounts, MessageDirection,
    Messages, MrtReader, NegotiatedTime, OutBatch, OutChunk, OutFeed, PastError, PeerCommand,
    PeerCommandError, PeerDetail, PeerKey, PeerStatus, RouteReader, SessionStart, SharedUpdate,
    Shutdown, Speaker, SpeakerEnded, SpeakerHandle, SpeakerOptions, SpeakerStatus, StationStatus,
    ToCore, ToSession, TurnTimes, UpdateCounts, choose_router_id, direct_subnets,
    missing_next_hops, run_session,
};
pub use types::{
    Administrator, AnyCommunity, Asn, ClusterId, Community, CommunityError, ExtCommunity,
    ExtCommunityError, ExtForm, ExtKind, LargeCommunity, PeerName, RouterId, SessionState,
};
pub use wire::{
    AddPathMode, AfiSafi, AttrFault, Capability, CeaseSubcode, DecodeError, DecodedUpdate,
    EncodeError, ErrorHandling, FamilySet, GracefulRestartCapability, HeaderError, LongLivedFamily,
    MAX_MESSAGE_LEN, MESSAGE_HEADER_LEN, Message, MessageFormat, MessageType, Nlri, Notification,
    NotificationCode, OpenError, OpenMessage, RefreshError, RefreshKind, RouteRefresh, UpdateError,
    UpdateFault, UpdateMessage, decode_message, encode_announce, encode_end_of_rib,
    encode_keepalive, encode_notification, encode_open, encode_refresh, encode_update,
    encode_withdraw, frame_len,
};
