//! What a template sees. Every field is always there, so that strict mode finds misspelt names; what does
//! not apply is `null`, `false` or an empty list. Fields are added, never changed.

use std::collections::BTreeMap;

use caracal_bgp::config::{NextHopMode, Origination, PeerConfig, SpeakerConfig};
use caracal_bgp::policy::{Action, Condition, Filter, PeerKind, Source, Term, Verdict};
use caracal_bgp::types::{AnyCommunity, PeerName};
use caracal_model::net::{Family, Prefix};
use serde::Serialize;

use crate::pieces::{address, pattern, prefix, quotable, tuple};
use crate::symbols::{RESERVED, Symbol, Symbols};
use crate::{Options, RenderError, Role};

/// The whole configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Context {
    /// True for the role `Daemon`.
    pub daemon: bool,
    /// The BGP Identifier.
    pub router_id: String,
    /// Our AS number.
    pub local_as: u32,
    /// `none`, or `ADDRESS port PORT` with `all` for all addresses.
    pub listen: String,
    /// Names that belong to the templates.
    pub symbols: OwnSymbols,
    /// Filters, sorted by name.
    pub filters: Vec<FilterView>,
    /// What we originate, one entry a family that has routes.
    pub announce: Vec<Announcement>,
    /// Kernel programming, one entry a family; empty unless `daemon`.
    pub kernel: Vec<Kernel>,
    /// Peers, sorted by name.
    pub peers: Vec<Peer>,
}

/// Names that belong to the templates.
#[derive(Clone, Debug, Serialize)]
pub struct OwnSymbols {
    /// The constant with our AS number.
    pub local_as: String,
    /// The template of all peers.
    pub template: String,
}

/// One filter, as a function.
#[derive(Clone, Debug, Serialize)]
pub struct FilterView {
    /// Its symbol.
    pub symbol: String,
    /// Its name as a JSON string, when the symbol is another.
    pub name: Option<String>,
    /// Its terms in order.
    pub terms: Vec<TermView>,
}

/// One term.
#[derive(Clone, Debug, Serialize)]
pub struct TermView {
    /// All must hold; empty = always.
    pub conditions: Vec<ConditionView>,
    /// Changes in order.
    pub actions: Vec<ActionView>,
    /// `accept`, `reject` or null.
    pub verdict: Option<&'static str>,
}

/// One condition; `is` says which.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are described at their variants")]
pub enum ConditionView {
    /// Destination in (or, negated, in none of) prefix sets, one for each run of a family, without brackets.
    /// `operator` is `~` or `!~`, `joined_by` is `||` or `&&`.
    Prefix {
        sets: Vec<String>,
        operator: &'static str,
        joined_by: &'static str,
    },
    /// `value` is a pair, `(64512, 100)`.
    Community { value: String },
    /// `value` is a triple.
    LargeCommunity { value: String },
    /// Leading AS numbers.
    AsPathPrefix { asns: Vec<u32> },
    /// Range of the next hop.
    NextHop { prefix: String },
    /// The peer is internal.
    Internal,
    /// The peer is external.
    External,
    /// `value` is `RTS_BGP` or `RTS_STATIC`.
    Source { value: &'static str },
    /// Pattern of the interface.
    Interface { pattern: String },
    /// LOCAL_PREF equals `value`.
    LocalPref { value: u32 },
}

/// One action; `is` says which.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are described at their variants")]
pub enum ActionView {
    /// `value` is a pair.
    AddCommunity { value: String },
    /// `value` is a triple.
    AddLargeCommunity { value: String },
    /// `value` is a pair.
    RemoveCommunity { value: String },
    /// `value` is a triple.
    RemoveLargeCommunity { value: String },
    /// LOCAL_PREF.
    SetLocalPref { value: u32 },
    /// MULTI_EXIT_DISC.
    SetMed { value: u32 },
    /// One AS number to prepend; a path of several comes last number first.
    Prepend { value: u32 },
    /// A line that only Caracal reads: `prepend` (an empty path) or `next` (ends a path).
    Note { value: &'static str },
}

/// Originated routes of a family.
#[derive(Clone, Debug, Serialize)]
pub struct Announcement {
    /// `ipv4` or `ipv6`.
    pub family: &'static str,
    /// `IPv4` or `IPv6`.
    pub title: String,
    /// Symbol of the protocol.
    pub symbol: String,
    /// The routes, sorted.
    pub routes: Vec<Route>,
}

/// An originated route.
#[derive(Clone, Debug, Serialize)]
pub struct Route {
    /// The destination.
    pub prefix: String,
    /// Statements that set its attributes.
    pub attributes: Vec<String>,
}

/// Kernel programming of a family.
#[derive(Clone, Debug, Serialize)]
pub struct Kernel {
    /// `ipv4` or `ipv6`.
    pub family: &'static str,
    /// Symbol of the protocol.
    pub symbol: String,
    /// Length of a single address: 32 or 128.
    pub host_len: u8,
    /// Ranges that the daemon cannot reach: `prefix`, `encap`.
    pub tunnelled: Vec<TunnelledView>,
}

/// A range behind tunnels.
#[derive(Clone, Debug, Serialize)]
pub struct TunnelledView {
    /// The range.
    pub prefix: String,
    /// `VXLAN` or `IPIP`.
    pub encap: &'static str,
}

/// A peer.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// Its symbol.
    pub symbol: String,
    /// Its name as a JSON string, when the symbol is another.
    pub name: Option<String>,
    /// Why it exists, as a description.
    pub kind: Option<String>,
    /// Our address on the session.
    pub source: Option<String>,
    /// Our listening port, when it is not 179.
    pub listen_port: Option<u16>,
    /// Our AS on the session, when it is not the constant.
    pub local_as: Option<String>,
    /// The peer's address.
    pub address: String,
    /// The peer's port.
    pub port: u16,
    /// The peer's AS.
    pub remote_as: u32,
    /// `direct`, `multihop` or `multihop HOPS`.
    pub reach: String,
    /// TTL security.
    pub ttl_security: bool,
    /// The exact TTL settings, where `reach` and `ttl_security` do not say them.
    pub ttl_note: Option<String>,
    /// Listen on `source` only.
    pub strict_bind: bool,
    /// Seconds.
    pub hold_time: u64,
    /// Wait for the peer.
    pub passive: bool,
    /// Cluster id, when the peer is a client.
    pub cluster: Option<String>,
    /// Graceful restart is announced.
    pub graceful_restart: bool,
    /// Seconds.
    pub restart_time: u64,
    /// How often our AS may occur; null for never.
    pub allow_own_as: Option<u8>,
    /// The password, when there is one and it may be shown.
    pub password: Option<String>,
    /// There is one, and it may not be shown.
    pub password_hidden: bool,
    /// `ipv4`, `ipv6`.
    pub families: Vec<&'static str>,
    /// `self`, `keep` or null.
    pub next_hop: Option<&'static str>,
    /// The peer's AS is ours on this session.
    pub internal: bool,
    /// Symbols of filters on import.
    pub import: Vec<String>,
    /// Symbols of filters on export.
    pub export: Vec<String>,
}

impl Context {
    /// Builds the view of a configuration.
    ///
    /// # Errors
    /// [`RenderError::Inexpressible`] names the value.
    pub fn new(config: &SpeakerConfig, options: &Options) -> Result<Self, RenderError> {
        let mut symbols = Symbols::default();
        let filter_symbols: BTreeMap<&str, Symbol> = config
            .filters
            .keys()
            .map(|name| (name.as_str(), symbols.assign(name)))
            .collect();
        let daemon = matches!(options.role, Role::Daemon { .. });
        let passwords = options.show_passwords || daemon;
        Ok(Self {
            daemon,
            router_id: config.router_id.to_string(),
            local_as: config.local_as.0,
            listen: config.listen.map_or_else(
                || "none".to_owned(),
                |listen| {
                    let all = || "all".to_owned();
                    format!(
                        "{} port {}",
                        listen.address.map_or_else(all, address),
                        listen.port
                    )
                },
            ),
            symbols: OwnSymbols {
                local_as: format!("{RESERVED}local_as"),
                template: format!("{RESERVED}peer"),
            },
            filters: config
                .filters
                .iter()
                .map(|(name, filter)| filter_view(name, &filter_symbols[name.as_str()], filter))
                .collect::<Result<_, _>>()?,
            announce: announcements(config),
            kernel: kernel(&options.role),
            peers: config
                .peers
                .iter()
                .map(|(name, peer)| {
                    let symbol = symbols.assign(name.as_str());
                    peer_view(config, name, peer, &symbol, &filter_symbols, passwords)
                })
                .collect::<Result<_, _>>()?,
        })
    }
}

/// A string that may hold anything, for a `#:` line.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn filter_view(name: &str, symbol: &Symbol, filter: &Filter) -> Result<FilterView, RenderError> {
    let what = format!("filter {name:?}");
    Ok(FilterView {
        symbol: symbol.text.clone(),
        name: symbol.stands_in.then(|| quoted(name)),
        terms: filter
            .terms
            .iter()
            .map(|term| term_view(term, &what))
            .collect::<Result<_, _>>()?,
    })
}

fn term_view(term: &Term, what: &str) -> Result<TermView, RenderError> {
    let mut actions = Vec::new();
    for (index, action) in term.actions.iter().enumerate() {
        let before = index.checked_sub(1).map(|i| &term.actions[i]);
        // Two paths in a row would read back as one.
        if let (Some(Action::PrependAsPath(_)), Action::PrependAsPath(_)) = (before, action) {
            actions.push(ActionView::Note { value: "next" });
        }
        action_views(action, &mut actions);
    }
    Ok(TermView {
        conditions: term
            .conditions
            .iter()
            .map(|condition| condition_view(condition, what))
            .collect::<Result<_, _>>()?,
        actions,
        verdict: term.verdict.map(|verdict| match verdict {
            Verdict::Accept => "accept",
            Verdict::Reject => "reject",
        }),
    })
}

fn condition_view(condition: &Condition, what: &str) -> Result<ConditionView, RenderError> {
    Ok(match condition {
        Condition::Prefix { patterns, negated } => {
            if patterns.is_empty() {
                return Err(RenderError::Inexpressible {
                    what: what.to_owned(),
                    value: "a prefix condition without patterns".to_owned(),
                    reason: "a set has at least one element",
                });
            }
            let runs = patterns.chunk_by(|a, b| a.prefix.family() == b.prefix.family());
            let sets = runs.map(|run| {
                let texts: Result<Vec<_>, _> = run.iter().map(|p| pattern(p, what)).collect();
                texts.map(|texts| texts.join(", "))
            });
            ConditionView::Prefix {
                sets: sets.collect::<Result<_, _>>()?,
                operator: if *negated { "!~" } else { "~" },
                joined_by: if *negated { "&&" } else { "||" },
            }
        }
        Condition::Community(community) => {
            let value = tuple(community);
            match community {
                AnyCommunity::Standard(_) => ConditionView::Community { value },
                AnyCommunity::Large(_) => ConditionView::LargeCommunity { value },
            }
        }
        Condition::AsPathPrefix(asns) => ConditionView::AsPathPrefix {
            asns: asns.iter().map(|asn| asn.0).collect(),
        },
        Condition::NextHop(range) => ConditionView::NextHop {
            prefix: prefix(range),
        },
        Condition::PeerKind(PeerKind::Internal) => ConditionView::Internal,
        Condition::PeerKind(PeerKind::External) => ConditionView::External,
        Condition::Source(source) => ConditionView::Source {
            value: match source {
                Source::Bgp => "RTS_BGP",
                Source::Static => "RTS_STATIC",
            },
        },
        Condition::Interface(text) => ConditionView::Interface {
            pattern: quotable(text, &format!("{what}, interface"))?,
        },
        Condition::LocalPref(value) => ConditionView::LocalPref { value: *value },
    })
}

fn action_views(action: &Action, out: &mut Vec<ActionView>) {
    match action {
        Action::AddCommunity(community) => {
            let value = tuple(community);
            out.push(match community {
                AnyCommunity::Standard(_) => ActionView::AddCommunity { value },
                AnyCommunity::Large(_) => ActionView::AddLargeCommunity { value },
            });
        }
        Action::RemoveCommunity(community) => {
            let value = tuple(community);
            out.push(match community {
                AnyCommunity::Standard(_) => ActionView::RemoveCommunity { value },
                AnyCommunity::Large(_) => ActionView::RemoveLargeCommunity { value },
            });
        }
        Action::SetLocalPref(value) => out.push(ActionView::SetLocalPref { value: *value }),
        Action::SetMed(value) => out.push(ActionView::SetMed { value: *value }),
        Action::PrependAsPath(asns) if asns.is_empty() => {
            out.push(ActionView::Note { value: "prepend" });
        }
        Action::PrependAsPath(asns) => {
            out.extend(
                asns.iter()
                    .rev()
                    .map(|asn| ActionView::Prepend { value: asn.0 }),
            );
        }
    }
}

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

fn announcements(config: &SpeakerConfig) -> Vec<Announcement> {
    FAMILIES
        .into_iter()
        .map(|family| Announcement {
            family: family.as_str(),
            title: family.to_string(),
            symbol: format!("{RESERVED}announce_{}", family.as_str()),
            routes: config
                .originate
                .iter()
                .filter(|(prefix, _)| prefix.family() == family)
                .map(|(prefix, origination)| route(prefix, origination))
                .collect(),
        })
        .filter(|announcement| !announcement.routes.is_empty())
        .collect()
}

fn route(destination: &Prefix, origination: &Origination) -> Route {
    let mut attributes = Vec::new();
    if let Some(next_hop) = origination.next_hop {
        attributes.push(format!("bgp_next_hop = {};", address(next_hop)));
    }
    if let Some(value) = origination.local_pref {
        attributes.push(format!("bgp_local_pref = {value};"));
    }
    if let Some(value) = origination.med {
        attributes.push(format!("bgp_med = {value};"));
    }
    for community in &origination.communities {
        let list = match community {
            AnyCommunity::Standard(_) => "bgp_community",
            AnyCommunity::Large(_) => "bgp_large_community",
        };
        attributes.push(format!("{list}.add({});", tuple(community)));
    }
    Route {
        prefix: prefix(destination),
        attributes,
    }
}

fn kernel(role: &Role) -> Vec<Kernel> {
    let Role::Daemon { tunnelled } = role else {
        return Vec::new();
    };
    FAMILIES
        .into_iter()
        .map(|family| Kernel {
            family: family.as_str(),
            symbol: format!("{RESERVED}kernel_{}", family.as_str()),
            host_len: family.bits(),
            tunnelled: tunnelled
                .iter()
                .filter(|range| range.prefix.family() == family)
                .map(|range| TunnelledView {
                    prefix: prefix(&range.prefix),
                    encap: range.encap,
                })
                .collect(),
        })
        .collect()
}

fn peer_view(
    config: &SpeakerConfig,
    name: &PeerName,
    peer: &PeerConfig,
    symbol: &Symbol,
    filters: &BTreeMap<&str, Symbol>,
    passwords: bool,
) -> Result<Peer, RenderError> {
    let what = format!("peer {:?}", name.as_str());
    let seconds = |field: &str, time: std::time::Duration| {
        if time.subsec_nanos() == 0 && time.as_secs() <= 65_535 {
            return Ok(time.as_secs());
        }
        Err(RenderError::Inexpressible {
            what: format!("{what}, {field}"),
            value: format!("{time:?}"),
            reason: "times are whole seconds up to 65535",
        })
    };
    let symbols = |names: &[String]| {
        let symbol = |name: &String| match filters.get(name.as_str()) {
            Some(symbol) => Ok(symbol.text.clone()),
            None => Err(RenderError::Inexpressible {
                what: what.clone(),
                value: format!("a reference to filter {name:?}"),
                reason: "there is no such filter",
            }),
        };
        names.iter().map(symbol).collect::<Result<Vec<_>, _>>()
    };
    let password = match &peer.password {
        Some(password) if passwords => Some(quotable(&password.0, &format!("{what}, password"))?),
        _ => None,
    };
    let reach = Reach::of(peer.ttl, peer.ttl_security);
    let listen = config.listen;
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
        port: peer.port,
        remote_as: peer.remote_as.0,
        reach: reach.text(),
        ttl_security: reach.security,
        ttl_note: (reach.settings() != (peer.ttl, peer.ttl_security))
            .then(|| ttl_note(peer.ttl, peer.ttl_security)),
        strict_bind: peer.source.is_some() && listen.is_some_and(|l| l.address == peer.source),
        hold_time: seconds("hold time", peer.hold_time)?,
        passive: peer.passive,
        cluster: peer.client_of.map(|cluster| cluster.to_string()),
        graceful_restart: peer.graceful_restart.is_some(),
        restart_time: peer.graceful_restart.map_or(Ok(0), |restart| {
            seconds("restart time", restart.restart_time)
        })?,
        allow_own_as: Some(peer.allow_own_as).filter(|count| *count > 0),
        password_hidden: peer.password.is_some() && password.is_none(),
        password,
        families: peer.families.iter().map(|family| family.as_str()).collect(),
        next_hop: match peer.next_hop {
            NextHopMode::Auto => None,
            NextHopMode::Own => Some("self"),
            NextHopMode::Keep => Some("keep"),
        },
        internal: peer.local_as.unwrap_or(config.local_as) == peer.remote_as,
        import: symbols(&peer.import)?,
        export: symbols(&peer.export)?,
    })
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
    fn of(ttl: Option<u8>, security: Option<u8>) -> Self {
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
