//! Statements into a configuration: names are resolved, defaults filled in, contradictions refused.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::time::Duration;

use caracal_bgp::{
    Asn, ClusterId, Filter, GracefulRestart, Listen, NextHopMode, Origination, Password,
    PeerConfig, PeerName, RouterId, SpeakerConfig, Station,
};
use caracal_model::Prefix;

use super::lexer::{Located, Number, ParseFault};
use super::options::{self, Extras};
use super::peer::{Call, Channel, PeerOption};
use super::policy::Function;
use super::{PeerStatement, Statement};
use crate::context::Reach;
use crate::symbols::RESERVED;

/// BGP's own port; a file without a `#: listen` line means it, on all addresses.
const BGP_PORT: u16 = 179;

struct Builder<'a> {
    text: &'a str,
    router_id: Option<Ipv4Addr>,
    listen: Option<Option<Listen>>,
    constants: HashMap<&'a str, u32>,
    /// Filter names by symbol.
    filter_names: HashMap<&'a str, String>,
    filters: BTreeMap<String, Filter>,
    originate: BTreeMap<Prefix, Origination>,
    templates: HashMap<&'a str, Vec<Located<'a, PeerOption<'a>>>>,
    peers: Vec<PeerStatement<'a>>,
    stations: BTreeMap<String, Station>,
}

pub(super) fn build<'a>(
    text: &'a str,
    statements: Vec<Statement<'a>>,
) -> Result<SpeakerConfig, ParseFault<'a>> {
    let mut builder = Builder {
        text,
        router_id: None,
        listen: None,
        constants: HashMap::new(),
        filter_names: HashMap::new(),
        filters: BTreeMap::new(),
        originate: BTreeMap::new(),
        templates: HashMap::new(),
        peers: Vec::new(),
        stations: BTreeMap::new(),
    };
    for statement in statements {
        builder.add(statement)?;
    }
    builder.finish()
}

impl<'a> Builder<'a> {
    /// A fault that no place in the text is to blame for.
    fn missing(&self, what: &str) -> ParseFault<'a> {
        ParseFault::new(&self.text[self.text.len()..], what)
    }

    fn add(&mut self, statement: Statement<'a>) -> Result<(), ParseFault<'a>> {
        match statement {
            Statement::RouterId(id) => self.router_id = Some(id),
            Statement::Listen(listen) => self.listen = Some(listen),
            Statement::Define(name, Number::Literal(value)) => {
                self.constants.insert(name.value, value);
            }
            Statement::Define(_, Number::Constant(name)) => {
                return Err(ParseFault::new(name.at, "a number"));
            }
            Statement::Function(function) => self.add_filter(function)?,
            Statement::Routes(routes) => {
                for Located { at, value } in routes {
                    if self.originate.insert(value.0, value.1).is_some() {
                        return Err(ParseFault::new(
                            at,
                            "every route once; this one is a repetition",
                        ));
                    }
                }
            }
            Statement::Template(name, options) => {
                self.templates.insert(name.value, options);
            }
            Statement::Peer(peer) => self.peers.push(peer),
            Statement::Station(Located {
                at,
                value: (name, station),
            }) => {
                if self.stations.insert(name, station).is_some() {
                    return Err(ParseFault::new(at, "a name that no station has yet"));
                }
            }
            Statement::Kernel(_) | Statement::Dump(_) | Statement::Ignored => {}
        }
        Ok(())
    }

    fn add_filter(&mut self, function: Function<'a>) -> Result<(), ParseFault<'a>> {
        let symbol = function.symbol;
        let name = function.name.unwrap_or_else(|| symbol.value.to_owned());
        let known = self.filter_names.insert(symbol.value, name.clone());
        if known.is_some() || self.filters.insert(name, function.filter).is_some() {
            return Err(ParseFault::new(symbol.at, "a name that no filter has yet"));
        }
        Ok(())
    }

    fn resolve(&self, number: Number<'a>) -> Result<Asn, ParseFault<'a>> {
        match number {
            Number::Literal(value) => Ok(Asn(value)),
            Number::Constant(name) => {
                self.constants
                    .get(name.value)
                    .copied()
                    .map(Asn)
                    .ok_or_else(|| {
                        ParseFault::new(
                            name.at,
                            format!("a constant; {:?} is not defined", name.value),
                        )
                    })
            }
        }
    }

    fn finish(mut self) -> Result<SpeakerConfig, ParseFault<'a>> {
        let Some(router_id) = self.router_id else {
            return Err(self.missing("a line \"router id ADDRESS;\" somewhere in the file"));
        };
        let peers = std::mem::take(&mut self.peers);
        let own_constant = format!("{RESERVED}local_as");
        let local_as = match self.constants.get(own_constant.as_str()) {
            Some(asn) => Asn(*asn),
            None => self.first_local_as(&peers)?,
        };
        let mut configs = BTreeMap::new();
        for peer in &peers {
            let (name, config) = self.peer(peer, local_as, &own_constant)?;
            if configs.insert(name, config).is_some() {
                return Err(ParseFault::new(
                    peer.symbol.at,
                    "a name that no peer has yet",
                ));
            }
        }
        Ok(SpeakerConfig {
            local_as,
            router_id: RouterId(router_id),
            listen: self.listen.unwrap_or(Some(Listen {
                address: None,
                second: None,
                port: BGP_PORT,
            })),
            peers: configs,
            originate: self.originate.into(),
            filters: self.filters,
            stations: self.stations,
        })
    }

    /// In a file written by hand, our AS is the one of the first peer.
    fn first_local_as(&self, peers: &[PeerStatement<'a>]) -> Result<Asn, ParseFault<'a>> {
        let number = peers
            .iter()
            .flat_map(|p| self.options(p))
            .find_map(|o| match o.value {
                PeerOption::Local { asn, .. } => Some(asn),
                _ => None,
            });
        match number {
            Some(number) => self.resolve(number),
            None => Err(self.missing(&format!(
                "a line \"define {RESERVED}local_as = NUMBER;\" or a peer with \"local as NUMBER;\""
            ))),
        }
    }

    /// The options of a peer, its template's first.
    fn options<'b>(
        &'b self,
        peer: &'b PeerStatement<'a>,
    ) -> impl Iterator<Item = &'b Located<'a, PeerOption<'a>>> {
        let template = peer.template.and_then(|t| self.templates.get(t.value));
        template.into_iter().flatten().chain(&peer.options)
    }

    fn peer(
        &self,
        peer: &PeerStatement<'a>,
        local_as: Asn,
        own_constant: &str,
    ) -> Result<(PeerName, PeerConfig), ParseFault<'a>> {
        if let Some(template) = peer.template
            && !self.templates.contains_key(template.value)
        {
            return Err(ParseFault::new(template.at, "the name of a template"));
        }
        let mut given = PeerOptions::default();
        for option in self.options(peer) {
            given.take(option);
        }
        let Some(Located {
            value: (address, range, port, number),
            ..
        }) = given.neighbor
        else {
            let what = "a peer with a line \"neighbor ADDRESS as NUMBER;\"";
            return Err(ParseFault::new(peer.symbol.at, what));
        };
        let mut config = PeerConfig::new(address, self.resolve(number)?);
        config.range = range;
        config.port = port.unwrap_or(BGP_PORT);
        if let Some((source, number)) = given.local {
            config.source = source;
            let is_own = match number {
                Number::Constant(name) => name.value == own_constant,
                // Written by hand: the global number again is no override.
                Number::Literal(value) => {
                    value == local_as.0 && !self.constants.contains_key(own_constant)
                }
            };
            config.local_as = if is_own {
                None
            } else {
                Some(self.resolve(number)?)
            };
        }
        let internal = config.local_as.unwrap_or(local_as) == config.remote_as;
        given.apply(&mut config, internal, self.router_id);
        self.channels(peer, &given, &mut config, internal)?;
        let name = given.name.unwrap_or(peer.symbol.value);
        Ok((name.into(), config))
    }

    fn channels(
        &self,
        peer: &PeerStatement<'a>,
        given: &PeerOptions<'_, 'a>,
        config: &mut PeerConfig,
        internal: bool,
    ) -> Result<(), ParseFault<'a>> {
        let Some((_, first)) = given.channels.first() else {
            return Err(ParseFault::new(
                peer.symbol.at,
                "a peer with \"ipv4 { … };\" or \"ipv6 { … };\"",
            ));
        };
        config.import = self.policy(first.import.as_ref(), internal)?;
        config.export = self.policy(first.export.as_ref(), internal)?;
        config.next_hop = first.next_hop;
        config.add_path = options::add_path(&first.paths);
        config.prefix_limit = options::prefix_limit(&first.limit);
        config.families.clear();
        for (at, channel) in &given.channels {
            // RFC 8212: towards another AS, letting everything pass has to be said.
            if channel.none && (internal || !config.require_policy) {
                return Err(ParseFault::new(
                    at,
                    "\"all\" or a filter; \"none\" stands only beside \"#: policy required\", for an external peer",
                ));
            }
            let silent = channel.import.is_none() || channel.export.is_none();
            if config.require_policy && !internal {
                let all = |calls: &Option<Vec<Call<'_>>>| calls.as_ref().is_some_and(Vec::is_empty);
                if all(&channel.import) || all(&channel.export) {
                    return Err(ParseFault::new(
                        at,
                        "a filter or no line at all: with \"policy required\", \"all\" is no policy",
                    ));
                }
            } else if !internal && silent {
                return Err(ParseFault::new(
                    at,
                    "a family with \"import …;\" and \"export …;\": an external peer needs both (RFC 8212), \"all\" lets \
                     everything pass",
                ));
            }
            let same = self.policy(channel.import.as_ref(), internal)? == config.import
                && self.policy(channel.export.as_ref(), internal)? == config.export
                && channel.next_hop == config.next_hop
                && options::add_path(&channel.paths) == config.add_path
                && options::prefix_limit(&channel.limit) == config.prefix_limit;
            config.extended_next_hop |= channel.extended_next_hop;
            if !same || config.families.contains(&channel.family) {
                return Err(ParseFault::new(
                    at,
                    "each family once, all with the same filters, next hop, paths and limit",
                ));
            }
            if let Some(own) = channel.own_next_hop {
                config.own_next_hops.set(own);
            }
            config.families.push(channel.family);
        }
        config.families.sort_unstable();
        Ok(())
    }

    /// No policy is no filter.
    fn policy(
        &self,
        calls: Option<&Vec<Call<'a>>>,
        internal: bool,
    ) -> Result<Vec<String>, ParseFault<'a>> {
        calls.map_or_else(|| Ok(Vec::new()), |calls| self.calls(calls, internal))
    }

    fn calls(&self, calls: &[Call<'a>], internal: bool) -> Result<Vec<String>, ParseFault<'a>> {
        let mut names = Vec::with_capacity(calls.len());
        for call in calls {
            if let Some(said) = call.internal
                && said.value != internal
            {
                return Err(ParseFault::new(
                    said.at,
                    format!("{internal:?}, from the AS numbers of the peer"),
                ));
            }
            match self.filter_names.get(call.symbol.value) {
                Some(name) => names.push(name.clone()),
                None => {
                    return Err(ParseFault::new(
                        call.symbol.at,
                        "the name of a function or filter",
                    ));
                }
            }
        }
        Ok(names)
    }
}

/// Address, range, port and AS.
type Neighbor<'a> = (std::net::IpAddr, Option<Prefix>, Option<u16>, Number<'a>);

/// Options of a peer, the last of each kind.
#[derive(Default)]
struct PeerOptions<'b, 'a> {
    name: Option<&'b str>,
    kind: Option<&'a str>,
    local: Option<(Option<std::net::IpAddr>, Number<'a>)>,
    neighbor: Option<Located<'a, Neighbor<'a>>>,
    reach: Option<Option<Option<u8>>>,
    ttl_security: bool,
    ttl: Option<(Option<u8>, Option<u8>)>,
    hold_time: Option<u16>,
    disabled: bool,
    passive: bool,
    client: bool,
    cluster_id: Option<Ipv4Addr>,
    graceful: Option<bool>,
    restart_time: Option<u16>,
    allow_own_as: u8,
    password: Option<&'a str>,
    channels: Vec<(&'a str, &'b Channel<'a>)>,
    extras: Extras,
}

impl<'b, 'a> PeerOptions<'b, 'a> {
    fn take(&mut self, option: &'b Located<'a, PeerOption<'a>>) {
        match &option.value {
            PeerOption::Name(name) => self.name = Some(name),
            PeerOption::Kind(kind) => self.kind = Some(kind),
            PeerOption::Local { address, asn } => self.local = Some((*address, *asn)),
            PeerOption::Neighbor {
                address,
                range,
                port,
                asn,
            } => {
                self.neighbor = Some(Located {
                    at: option.at,
                    value: (*address, *range, *port, *asn),
                });
            }
            PeerOption::Reach(reach) => self.reach = Some(*reach),
            PeerOption::TtlSecurity(on) => self.ttl_security = *on,
            PeerOption::Ttl(ttl, security) => self.ttl = Some((*ttl, *security)),
            PeerOption::HoldTime(seconds) => self.hold_time = Some(*seconds),
            PeerOption::Disabled(on) => self.disabled = *on,
            PeerOption::Passive(on) => self.passive = *on,
            PeerOption::Client(on) => self.client = *on,
            PeerOption::ClusterId(id) => self.cluster_id = Some(*id),
            PeerOption::GracefulRestart(on) => self.graceful = Some(*on),
            PeerOption::RestartTime(seconds) => self.restart_time = Some(*seconds),
            PeerOption::AllowOwnAs(count) => self.allow_own_as = *count,
            PeerOption::Password(text) => self.password = Some(text),
            PeerOption::Channel(channel) => self.channels.push((option.at, channel)),
            PeerOption::Extra(extra) => self.extras.take(extra),
            PeerOption::Ignored => {}
        }
    }

    fn apply(&self, config: &mut PeerConfig, internal: bool, router_id: Option<Ipv4Addr>) {
        // BIRD's defaults: internal peers may be anywhere, external ones are neighbours.
        let multihop = self.reach.unwrap_or_else(|| internal.then_some(None));
        let reach = Reach {
            multihop,
            security: self.ttl_security,
        };
        (config.ttl, config.ttl_security) = self.ttl.unwrap_or_else(|| reach.settings());
        if let Some(seconds) = self.hold_time {
            config.hold_time = Duration::from_secs(seconds.into());
        }
        config.disabled = self.disabled;
        config.passive = self.passive;
        config.client_of = self
            .client
            .then(|| self.cluster_id.or(router_id).map(ClusterId))
            .flatten();
        config.graceful_restart = match (self.graceful, self.restart_time) {
            (Some(false), _) => None,
            (_, Some(seconds)) => Some(GracefulRestart {
                restart_time: Duration::from_secs(seconds.into()),
            }),
            (_, None) => Some(GracefulRestart::default()),
        };
        config.allow_own_as = self.allow_own_as;
        config.password = self.password.map(|text| Password(text.to_owned()));
        self.kind.unwrap_or_default().clone_into(&mut config.kind);
        config.next_hop = NextHopMode::Auto;
        config.long_lived = self.extras.long_lived;
        config.long_lived_partial = self.extras.long_lived_partial;
        config.bfd = self.extras.bfd;
        config.require_policy = self.extras.require_policy;
    }
}
