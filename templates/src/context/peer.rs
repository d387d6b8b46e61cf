//! Peers as templates see them.

use std::collections::BTreeMap;
use std::time::Duration;

use caracal_bgp::{
    AddPath, BgpRole, Counted, LimitAction, NextHopMode, PathCount, PeerConfig, PeerName,
    PrefixLimit, SpeakerConfig,
};
use caracal_model::Family;

use super::{Limit, Peer, quoted};
use crate::RenderError;
use crate::pieces::{address, quotable};
use crate::symbols::Symbol;

/// The limits by what they count, with their word.
pub(crate) const LIMITS: [(&str, Counted); 3] = [
    ("receive", Counted::Received),
    ("import", Counted::Accepted),
    ("export", Counted::Sent),
];

pub(super) fn peer_view(
    config: &SpeakerConfig,
    name: &PeerName,
    peer: &PeerConfig,
    symbol: &Symbol,
    filters: &BTreeMap<&str, Symbol>,
    passwords: bool,
) -> Result<Peer, RenderError> {
    let what = format!("peer {:?}", name.as_str());
    let seconds = |field: &str, time| seconds_up_to(&format!("{what}, {field}"), time, 65_535);
    let symbols = |names: &[String]| filter_symbols(&what, names, filters);
    let password = match &peer.password {
        Some(password) if passwords => Some(quotable(&password.0, &format!("{what}, password"))?),
        _ => None,
    };
    let reach = Reach::from_ttl(peer.ttl, peer.ttl_security);
    let internal = peer.local_as.unwrap_or(config.local_as) == peer.remote_as;
    let denied = peer.require_policy && !internal;
    let listen = config.listen;
    let family_limits = family_limits(&what, peer)?;
    let first = peer.families.first();
    let limits = first.and_then(|family| family_limits.get(family.as_str()));
    let limits = limits.cloned().unwrap_or_default();
    let received = limits.iter().find(|limit| limit.other.is_none());
    Ok(Peer {
        symbol: symbol.text.clone(),
        name: symbol.stands_in.then(|| quoted(name.as_str())),
        kind: match peer.kind.as_str() {
            "" => None,
            kind => Some(quotable(kind, &format!("{what}, kind"))?),
        },
        source: peer.source.map(address),
        listen_port: listen
            .map(|l| l.port)
            .filter(|port| *port != 179 && *port != 0),
        local_as: peer.local_as.map(|asn| asn.to_string()),
        address: address(peer.address),
        interface: interface(&what, peer)?,
        port: peer.port,
        remote_as: peer.remote_as.0,
        reach: reach.text(),
        ttl_security: reach.security,
        ttl_note: (reach.settings() != (peer.ttl, peer.ttl_security))
            .then(|| ttl_note(peer.ttl, peer.ttl_security)),
        strict_bind: peer.source.is_some() && listen.is_some_and(|l| l.address == peer.source),
        hold_time: seconds("hold time", peer.hold_time)?,
        disabled: peer.disabled,
        passive: peer.passive,
        cluster: peer.client_of.map(|cluster| cluster.to_string()),
        rs_client: peer.rs_client && !internal,
        role: peer.role.filter(|_| !internal).map(BgpRole::word),
        dynamic_name: match &peer.dynamic_name {
            Some(text) => Some(quotable(text, &format!("{what}, dynamic name"))?),
            None => None,
        },
        require_roles: peer.require_roles && peer.role.is_some() && !internal,
        graceful_restart: peer.graceful_restart.is_some(),
        restart_time: peer.graceful_restart.map_or(Ok(0), |restart| {
            seconds("restart time", restart.restart_time)
        })?,
        allow_own_as: Some(peer.allow_own_as).filter(|count| *count > 0),
        enforce_first_as: peer.enforce_first_as && !internal,
        preference: Some(peer.preference).filter(|value| *value != PeerConfig::PREFERENCE),
        disable_after_error: peer.disable_after.error,
        disable_after_cease: peer.disable_after.cease_words(),
        password_hidden: peer.password.is_some() && password.is_none(),
        password,
        families: peer.families.iter().map(|family| family.as_str()).collect(),
        range: peer.range.map(|range| range.to_string()),
        long_lived_partial: peer.long_lived_partial,
        long_lived: match peer.long_lived {
            Some(time) => Some(seconds_of(&what, time)?.to_string()),
            None => None,
        },
        bfd_interval: peer.bfd.map(|bfd| bfd.interval.as_micros().to_string()),
        bfd_multiplier: peer.bfd.map_or(0, |bfd| bfd.multiplier),
        bfd_graceful: peer.bfd.is_some_and(|bfd| bfd.graceful),
        add_paths: add_paths(peer.add_path),
        best_paths: match peer.add_path.send {
            Some(PathCount::Best(count)) => Some(count.to_string()),
            Some(PathCount::All) | None => None,
        },
        own_next_hops: own_next_hops(peer),
        extended_next_hop: peer.extended_next_hop,
        no_import: denied && peer.import.is_empty(),
        no_export: denied && peer.export.is_empty(),
        require_policy: peer.require_policy,
        limit: received.map(|limit| limit.max.to_string()),
        limit_action: received.map_or("disable", |limit| limit.action),
        limit_warning: received.map_or(0, |limit| limit.warning),
        limit_restart: received.map_or(0, |limit| limit.restart),
        limits: limits.clone(),
        family_limits,
        next_hop: first.and_then(|first| next_hop(peer, *first)),
        next_hops: next_hops(peer),
        internal,
        import: symbols(&peer.import)?,
        export: symbols(&peer.export)?,
    })
}

fn interface(what: &str, peer: &PeerConfig) -> Result<Option<String>, RenderError> {
    let name = peer.interface.as_ref().map(|name| name.as_str());
    let quoted = name.map(|name| quotable(name, &format!("{what}, interface")));
    quoted.transpose()
}

/// The limits that there are, by family.
fn family_limits(
    what: &str,
    peer: &PeerConfig,
) -> Result<BTreeMap<&'static str, Vec<Limit>>, RenderError> {
    let families = peer.families.iter();
    families
        .map(|family| Ok((family.as_str(), limits(what, peer, *family)?)))
        .collect()
}

/// The limits that there are in a family.
fn limits(what: &str, peer: &PeerConfig, family: Family) -> Result<Vec<Limit>, RenderError> {
    let known = LIMITS.into_iter().filter_map(|(word, counted)| {
        let limit = peer.limits(counted).for_family(family)?;
        Some((word, counted, limit))
    });
    let view = |(word, counted, limit): (&'static str, Counted, PrefixLimit)| {
        let (action, restart) = match limit.action {
            LimitAction::Warn => ("warn", 0),
            LimitAction::Block => ("block", 0),
            LimitAction::Disable => ("disable", 0),
            LimitAction::Restart(pause) => ("restart", seconds_of(what, pause)?),
        };
        Ok(Limit {
            word,
            other: (counted != Counted::Received).then_some(word),
            max: limit.max,
            action,
            warning: limit.warning,
            restart,
        })
    };
    known.map(view).collect()
}

/// `next hop address` of each family, or null.
/// The rules for NEXT_HOP, by family.
fn next_hops(peer: &PeerConfig) -> BTreeMap<&'static str, Option<&'static str>> {
    let families = peer.families.iter();
    families
        .map(|family| (family.as_str(), next_hop(peer, *family)))
        .collect()
}

/// The rule for NEXT_HOP of a family; none for the usual one.
const fn next_hop(peer: &PeerConfig, family: Family) -> Option<&'static str> {
    match peer.next_hop.for_family(family) {
        NextHopMode::Auto => None,
        NextHopMode::Own => Some("self"),
        NextHopMode::Keep => Some("keep"),
    }
}

fn own_next_hops(peer: &PeerConfig) -> BTreeMap<&'static str, Option<String>> {
    let of_family = |family: Family| {
        let own = peer.own_next_hops.for_family(family);
        (family.as_str(), own.map(|own| own.to_string()))
    };
    [Family::Ipv4, Family::Ipv6].map(of_family).into()
}

/// Whole seconds that fit into 32 bits.
fn seconds_of(what: &str, time: Duration) -> Result<u64, RenderError> {
    seconds_up_to(what, time, u32::MAX)
}

/// A time as whole seconds, at most `most`.
fn seconds_up_to(what: &str, time: Duration, most: u32) -> Result<u64, RenderError> {
    if time.subsec_nanos() == 0 && time.as_secs() <= u64::from(most) {
        return Ok(time.as_secs());
    }
    Err(RenderError::Inexpressible {
        what: what.to_owned(),
        value: format!("{time:?}"),
        reason: match most {
            65_535 => "times are whole seconds up to 65535",
            _ => "times are whole seconds up to 4294967295",
        },
    })
}

/// The symbols of a peer's filters.
fn filter_symbols(
    what: &str,
    names: &[String],
    filters: &BTreeMap<&str, Symbol>,
) -> Result<Vec<String>, RenderError> {
    let symbol = |name: &String| match filters.get(name.as_str()) {
        Some(symbol) => Ok(symbol.text.clone()),
        None => Err(RenderError::Inexpressible {
            what: what.to_owned(),
            value: format!("a reference to filter {name:?}"),
            reason: "there is no such filter",
        }),
    };
    names.iter().map(symbol).collect()
}

/// `add paths` of a channel.
const fn add_paths(paths: AddPath) -> Option<&'static str> {
    match (paths.receive, paths.send) {
        (true, Some(_)) => Some("on"),
        (true, None) => Some("rx"),
        (false, Some(_)) => Some("tx"),
        (false, None) => None,
    }
}

/// How far away a peer may be, in BIRD's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// `None` = direct; `Some(None)` = multihop without a limit.
    pub(crate) multihop: Option<Option<u8>>,
    pub(crate) security: bool,
}

impl Reach {
    /// The closest words for our settings.
    fn from_ttl(ttl: Option<u8>, security: Option<u8>) -> Self {
        let multihop = match (ttl, security) {
            (_, Some(hops)) => Some(Some(hops.max(1))),
            (None, None) => Some(None),
            (Some(0 | 1), None) => None,
            (Some(hops), None) => Some(Some(hops)),
        };
        Self {
            multihop,
            security: security.is_some(),
        }
    }

    /// Our settings (TTL, TTL security) for the words.
    pub(crate) const fn settings(self) -> (Option<u8>, Option<u8>) {
        match (self.multihop, self.security) {
            (None, false) => (Some(1), None),
            (None, true) => (Some(255), Some(1)),
            (Some(hops), false) => (hops, None),
            // BIRD's default limit for multihop sessions.
            (Some(None), true) => (Some(255), Some(64)),
            (Some(hops), true) => (Some(255), hops),
        }
    }

    fn text(self) -> String {
        match self.multihop {
            None => "direct".to_owned(),
            Some(None) => "multihop".to_owned(),
            Some(Some(hops)) => format!("multihop {hops}"),
        }
    }
}

/// `ttl 0 security 3`, with `none` for what is not set.
fn ttl_note(ttl: Option<u8>, security: Option<u8>) -> String {
    let text = |value: Option<u8>| value.map_or_else(|| "none".to_owned(), |v| v.to_string());
    format!("ttl {} security {}", text(ttl), text(security))
}
