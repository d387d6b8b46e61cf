//! Variables of a template. Every field is always there, so that strict mode finds misspelt names;
//! what does not apply is `null`, `false` or an empty list. Fields are added, never changed.

mod peer;
mod policy;
mod station;

use std::collections::BTreeMap;

use caracal_bgp::{Origin, Origination, SpeakerConfig, StaticGateway, StaticWay};
use caracal_model::{Family, InsertEach, Prefix};
use serde::Serialize;

pub(crate) use peer::{LIMITS, Reach};

use crate::pieces::{address, link, prefix};
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
    /// Originated prefixes, one entry a family that has routes.
    pub announce: Vec<Announcement>,
    /// Patterns of `ignoredInterfaces`; empty unless `daemon`.
    pub ignored_interfaces: Vec<String>,
    /// There are routes to peers, which are not to be announced.
    pub has_gateways: bool,
    /// Kernel programming, one entry a family; empty unless `daemon`.
    pub kernel: Vec<Kernel>,
    /// Monitoring stations, sorted by name: what follows `#: bmp`.
    pub stations: Vec<String>,
    /// There are peers with BFD, for which BIRD has a protocol.
    pub bfd: bool,
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
    /// Name that BIRD accepts.
    pub symbol: String,
    /// Its name as a JSON string, when the symbol is another.
    pub name: Option<String>,
    /// Its terms in order.
    pub terms: Vec<TermView>,
}

/// A rule of a filter: conditions, changes, verdict.
#[derive(Clone, Debug, Serialize)]
pub struct TermView {
    /// All must hold; empty = always.
    pub conditions: Vec<ConditionView>,
    /// Changes in order.
    pub actions: Vec<ActionView>,
    /// Nothing but a verdict.
    pub bare: bool,
    /// `accept`, `reject` or null.
    pub verdict: Option<&'static str>,
}

/// One condition; `is` says which.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are described at their variants")]
pub enum ConditionView {
    /// Destination in (or, negated, in none of) prefix sets, one for each run of a family, without
    /// brackets. `operator` is `~` or `!~`, `joined_by` is `||` or `&&`.
    Prefix {
        sets: Vec<String>,
        operator: &'static str,
        joined_by: &'static str,
    },
    /// `value` is a pair, `(64512, 100)`.
    Community { value: String },
    /// `value` is a triple.
    LargeCommunity { value: String },
    /// `value` has a word in front: `(rt, 64512, 100)`.
    ExtCommunity { value: String },
    /// Leading AS numbers.
    AsPathPrefix { asns: Vec<u32> },
    /// AS numbers side by side; `open_start` and `open_end`: others may stand before and behind
    /// them.
    AsPath {
        asns: Vec<u32>,
        open_start: bool,
        open_end: bool,
    },
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
    /// `value` has a word in front.
    AddExtCommunity { value: String },
    /// `value` is a pair.
    RemoveCommunity { value: String },
    /// `value` is a triple.
    RemoveLargeCommunity { value: String },
    /// `value` has a word in front.
    RemoveExtCommunity { value: String },
    /// Sets LOCAL_PREF.
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
    /// Where its packets go: `blackhole`, `via 10.0.0.254`.
    pub way: String,
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
    /// Ranges that the daemon cannot reach.
    pub tunnelled: Vec<TunnelledView>,
    /// Ranges of services, which kube-proxy serves, with everything inside.
    pub rejected: Vec<String>,
    /// Symbol of the protocol with the routes to peers.
    pub gateways_symbol: String,
    /// Routes to peers.
    pub gateways: Vec<Gateway>,
}

/// A route to a peer.
#[derive(Clone, Debug, Serialize)]
pub struct Gateway {
    /// The peer.
    pub prefix: String,
    /// The gateway.
    pub via: String,
}

/// A range behind tunnels.
#[derive(Clone, Debug, Serialize)]
pub struct TunnelledView {
    /// The range.
    pub prefix: String,
    /// `VXLAN` or `IPIP`.
    pub encap: &'static str,
    /// Next hops in here need no tunnel.
    pub direct_within: Option<String>,
}

/// A session.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// Name of the protocol that BIRD accepts.
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
    /// The link of a link-local one.
    pub interface: Option<String>,
    /// The peer's port.
    pub port: u16,
    /// The peer's AS.
    pub remote_as: u32,
    /// `direct`, `multihop` or `multihop HOPS`.
    pub reach: String,
    /// Accept packets with TTL 255 only (RFC 5082).
    pub ttl_security: bool,
    /// The exact TTL settings, where `reach` and `ttl_security` do not say them.
    pub ttl_note: Option<String>,
    /// Listen on `source` only.
    pub strict_bind: bool,
    /// In seconds.
    pub hold_time: u64,
    /// No session is wanted.
    pub disabled: bool,
    /// Wait for the peer.
    pub passive: bool,
    /// Cluster id, when the peer is a client.
    pub cluster: Option<String>,
    /// The external peer is a client of a route server.
    pub rs_client: bool,
    /// Our role towards the external peer (RFC 9234); null for none.
    pub role: Option<&'static str>,
    /// No session with a peer that names no role.
    pub require_roles: bool,
    /// The beginning of the names of a range's peers; null for the range's name.
    pub dynamic_name: Option<String>,
    /// Graceful restart is announced.
    pub graceful_restart: bool,
    /// In seconds.
    pub restart_time: u64,
    /// How often our AS may occur; null for never.
    pub allow_own_as: Option<u8>,
    /// The peer's AS has to be the first of each path.
    pub enforce_first_as: bool,
    /// How much its routes are preferred; null for the usual.
    pub preference: Option<u16>,
    /// No session after an error, until somebody enables the peer.
    pub disable_after_error: bool,
    /// The same after a Cease of the peer: `on`, or a list of BIRD's words.
    pub disable_after_cease: Option<String>,
    /// The password, when there is one and it may be shown.
    pub password: Option<String>,
    /// There is one, and it may not be shown.
    pub password_hidden: bool,
    /// `ipv4`, `ipv6`.
    pub families: Vec<&'static str>,
    /// The addresses that it may come from, when it is a range.
    pub range: Option<String>,
    /// Seconds that long-lived stale routes are kept.
    pub long_lived: Option<String>,
    /// Long-lived stale routes go to it, though it does not know them.
    pub long_lived_partial: bool,
    /// Microseconds between BFD packets.
    pub bfd_interval: Option<String>,
    /// Lost BFD packets that mean down.
    pub bfd_multiplier: u8,
    /// The loss of a peer by BFD may be its restart.
    pub bfd_graceful: bool,
    /// `all`, `rx` or `tx` for several paths.
    pub add_paths: Option<&'static str>,
    /// How many paths are sent, when it is not all.
    pub best_paths: Option<String>,
    /// Our own next hop by family, where it is not our end of the session.
    pub own_next_hops: BTreeMap<&'static str, Option<String>>,
    /// IPv6 next hops for IPv4.
    pub extended_next_hop: bool,
    /// Nothing comes in, for lack of a policy.
    pub no_import: bool,
    /// Nothing goes out, for lack of a policy.
    pub no_export: bool,
    /// No routes without a filter.
    pub require_policy: bool,
    /// How many prefixes may come, in the first of `families`.
    pub limit: Option<String>,
    /// `warn`, `block`, `disable`, `restart`.
    pub limit_action: &'static str,
    /// Percentage.
    pub limit_warning: u8,
    /// In seconds.
    pub limit_restart: u64,
    /// Limits of the prefixes that come, that are accepted, and that go, in the first of
    /// `families`.
    pub limits: Vec<Limit>,
    /// The same in each of `families`, by family.
    pub family_limits: BTreeMap<&'static str, Vec<Limit>>,
    /// `self`, `keep` or null, of the first of `families`.
    pub next_hop: Option<&'static str>,
    /// The same in each of `families`, by family.
    pub next_hops: BTreeMap<&'static str, Option<&'static str>>,
    /// The peer's AS is ours on this session.
    pub internal: bool,
    /// Symbols of filters on import.
    pub import: Vec<String>,
    /// Symbols of filters on export.
    pub export: Vec<String>,
}

/// A limit of prefixes.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// `receive`, `import` or `export`.
    pub word: &'static str,
    /// The same, but null for `receive`, which a line without a word is about.
    pub other: Option<&'static str>,
    /// How many there may be.
    pub max: u32,
    /// `warn`, `block`, `disable`, `restart`.
    pub action: &'static str,
    /// Percentage.
    pub warning: u8,
    /// In seconds.
    pub restart: u64,
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
            .insert_each();
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
                    let first = listen.address.map_or_else(all, address);
                    let and = |second| format!(" and {}", address(second));
                    let second = listen.second.map(and).unwrap_or_default();
                    format!("{first}{second} port {}", listen.port)
                },
            ),
            symbols: OwnSymbols {
                local_as: format!("{RESERVED}local_as"),
                template: format!("{RESERVED}peer"),
            },
            filters: config
                .filters
                .iter()
                .map(|(name, filter)| {
                    policy::filter_view(name, &filter_symbols[name.as_str()], filter)
                })
                .collect::<Result<_, _>>()?,
            announce: announcements(config),
            ignored_interfaces: match &options.role {
                Role::Daemon(daemon) => daemon.ignored_interfaces.clone(),
                Role::View => Vec::new(),
            },
            has_gateways: matches!(&options.role, Role::Daemon(d) if !d.reachable_by.is_empty()),
            kernel: kernel(&options.role),
            stations: config
                .stations
                .iter()
                .map(|(name, station)| station::line(name, station))
                .collect::<Result<_, _>>()?,
            bfd: config.peers.values().any(|peer| peer.bfd.is_some()),
            peers: config
                .peers
                .iter()
                .map(|(name, peer)| {
                    let symbol = symbols.assign(name.as_str());
                    peer::peer_view(config, name, peer, &symbol, &filter_symbols, passwords)
                })
                .collect::<Result<_, _>>()?,
        })
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
    let origin = match origination.origin {
        Origin::Igp => None,
        Origin::Egp => Some("ORIGIN_EGP"),
        Origin::Incomplete => Some("ORIGIN_INCOMPLETE"),
    };
    if let Some(origin) = origin {
        attributes.push(format!("bgp_origin = {origin};"));
    }
    for asn in origination.as_path.iter().rev() {
        attributes.push(format!("bgp_path.prepend({asn});"));
    }
    for community in &origination.communities {
        let (list, value) = (community.bird_attribute(), community.bird_value());
        attributes.push(format!("{list}.add({value});"));
    }
    Route {
        prefix: prefix(destination),
        way: way(&origination.way),
        attributes,
    }
}

fn way(way: &StaticWay) -> String {
    match way {
        StaticWay::Blackhole => "blackhole".to_owned(),
        StaticWay::Unreachable => "unreachable".to_owned(),
        StaticWay::Prohibit => "prohibit".to_owned(),
        StaticWay::Via(gateways) => {
            let gateway = |gateway: &StaticGateway| {
                let weight = match gateway.extra_weight {
                    0 => String::new(),
                    extra => format!(" weight {}", u16::from(extra) + 1),
                };
                match &gateway.interface {
                    Some(interface) if gateway.address.is_unspecified() => {
                        format!("via \"{interface}\"{weight}")
                    }
                    interface => {
                        let link = link(interface.as_ref());
                        let on_link = match gateway.is_on_any_link() {
                            true => " onlink",
                            false => "",
                        };
                        format!("via {}{link}{on_link}{weight}", address(gateway.address))
                    }
                }
            };
            let gateways: Vec<String> = gateways.iter().map(gateway).collect();
            gateways.join(" ")
        }
        StaticWay::Recursive(looked_up) => format!("recursive {}", address(*looked_up)),
        // No file has such a route; its protocols say which there are.
        StaticWay::Interface(_) | StaticWay::Inherited { .. } => "unreachable".to_owned(),
    }
}

fn kernel(role: &Role) -> Vec<Kernel> {
    let Role::Daemon(daemon) = role else {
        return Vec::new();
    };
    FAMILIES
        .into_iter()
        .map(|family| Kernel {
            family: family.as_str(),
            symbol: format!("{RESERVED}kernel_{}", family.as_str()),
            host_len: family.bits(),
            rejected: daemon
                .rejected
                .iter()
                .filter(|range| range.family() == family)
                .map(prefix)
                .collect(),
            gateways_symbol: format!("{RESERVED}gateways_{}", family.as_str()),
            gateways: daemon
                .reachable_by
                .iter()
                .filter(|(peer, _)| peer.family() == family)
                .map(|(peer, via)| Gateway {
                    prefix: prefix(peer),
                    via: address(*via),
                })
                .collect(),
            tunnelled: daemon
                .tunnelled
                .iter()
                .filter(|range| range.prefix.family() == family)
                .map(|range| TunnelledView {
                    prefix: prefix(&range.prefix),
                    encap: range.encap,
                    direct_within: range.direct_within.as_ref().map(prefix),
                })
                .collect(),
        })
        .collect()
}

/// A string that may hold anything, for a `#:` line.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
