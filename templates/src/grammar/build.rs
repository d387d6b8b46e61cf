//! Statements into a configuration: names are resolved, defaults filled in, contradictions refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;

use caracal_bgp::{
    Asn, Filter, InterfacePattern, Listen, Origination, PeerConfig, PeerName, RouterId,
    SpeakerConfig, StaticWay, Station, Value, admitted,
};
use caracal_model::{Family, Prefix};

use super::bfd::{BfdLines, BfdTimes};
use super::kernel::{imported, in_place};
use super::language::LOCAL_AS;
use super::lexer::{Located, Number, ParseFault};
use super::neighbor::RemoteAs;
use super::options;
use super::peer::{Call, PeerOption, Policy};
use super::peer_options::{Channel, PeerOptions};
use super::policy::{Function, Passes, nothing};
use super::route::{PREFERENCE, StaticRoutes};
use super::{ChooseRouterId, PeerStatement, Statement};

/// The filter of `import none` and `export none`.
const NOTHING: &str = "none";

/// BGP's own port; a file without a `#: listen` line means it, on all addresses.
const BGP_PORT: u16 = 179;

struct Builder<'a> {
    text: &'a str,
    router_id: Option<Ipv4Addr>,
    router_id_from: Option<Located<'a, Vec<InterfacePattern>>>,
    listen: Option<Option<Listen>>,
    constants: HashMap<&'a str, u32>,
    /// Filter names by symbol.
    filter_names: HashMap<&'a str, String>,
    filters: BTreeMap<String, Filter>,
    originate: BTreeMap<Prefix, Origination>,
    /// How much the routes of ours are preferred.
    preferences: BTreeMap<Prefix, u16>,
    /// Prefixes to which another route of ours is not used, and where the later one stands.
    unused: BTreeMap<Prefix, &'a str>,
    templates: HashMap<&'a str, PeerStatement<'a>>,
    peers: Vec<PeerStatement<'a>>,
    bfd: Vec<BfdLines>,
    stations: BTreeMap<String, Station>,
    notes: Notes<'a>,
}

/// What an interface of a peer means whose address is not link-local.
const FAR_INTERFACE: &str = "\"interface\" says nothing about a peer whose address is not link-local: the kernel's \
                             routes lead to it";

/// Defaults that a peer relies on and that are not BIRD's, the first place of each.
pub(super) type Notes<'a> = BTreeMap<&'static str, &'a str>;

/// The configuration, and what is to be noted about it.
pub(super) fn build<'a>(
    text: &'a str,
    statements: Vec<Statement<'a>>,
    choose: ChooseRouterId<'_>,
) -> Result<(SpeakerConfig, Notes<'a>), ParseFault<'a>> {
    let mut builder = Builder {
        text,
        router_id: None,
        router_id_from: None,
        listen: None,
        constants: HashMap::new(),
        filter_names: HashMap::new(),
        filters: BTreeMap::new(),
        originate: BTreeMap::new(),
        preferences: BTreeMap::new(),
        unused: BTreeMap::new(),
        templates: HashMap::new(),
        peers: Vec::new(),
        bfd: Vec::new(),
        stations: BTreeMap::new(),
        notes: Notes::new(),
    };
    for statement in statements {
        builder.add(statement)?;
    }
    builder.finish(choose)
}

impl<'a> Builder<'a> {
    /// A fault that no place in the text is to blame for.
    fn missing(&self, what: &str) -> ParseFault<'a> {
        ParseFault::missing(&self.text[self.text.len()..], what)
    }

    fn add(&mut self, statement: Statement<'a>) -> Result<(), ParseFault<'a>> {
        match statement {
            Statement::RouterId(id) => self.router_id = Some(id),
            Statement::RouterIdFrom(list) => self.router_id_from = Some(list),
            Statement::Listen(listen) => self.listen = Some(listen),
            Statement::Define(name, Value::Int(value)) => {
                self.constants.insert(name.value, value);
            }
            Statement::Function(function) => self.add_filter(function)?,
            Statement::Routes(routes) => self.add_routes(routes)?,
            Statement::Template(symbol, template) => {
                if self.templates.insert(symbol.value, template).is_some() {
                    return Err(ParseFault::new(
                        symbol.at,
                        "a name that no template has yet",
                    ));
                }
            }
            Statement::Peer(peer) => self.peers.push(peer),
            Statement::Bfd(lines) => self.bfd.push(lines),
            Statement::Station(Located {
                at,
                value: (name, station),
            }) => {
                if self.stations.insert(name, station).is_some() {
                    return Err(ParseFault::new(at, "a name that no station has yet"));
                }
            }
            Statement::Define(..)
            | Statement::Kernel(_)
            | Statement::Direct(_)
            | Statement::Dump(_)
            | Statement::Cache(_)
            | Statement::Done => {}
        }
        Ok(())
    }

    /// Without an address in the file, one of the machine's is the router id, as in BIRD.
    fn choose_router_id(&mut self, choose: ChooseRouterId<'_>) -> Result<Ipv4Addr, ParseFault<'a>> {
        match (self.router_id, &self.router_id_from) {
            (Some(id), from) => {
                if let Some(from) = from {
                    let what =
                        "\"router id from\" has no effect: there is a \"router id ADDRESS;\"";
                    self.notes.insert(what, from.at);
                }
                Ok(id)
            }
            (None, Some(from)) => choose(&from.value).map_err(|seen| {
                let what = format!(
                    "a list that takes an IPv4 address of this machine, or \"router id ADDRESS;\" ({seen})"
                );
                ParseFault::new(from.at, what)
            }),
            (None, None) => choose(&[]).map_err(|seen| {
                let what = format!("a line \"router id ADDRESS;\" somewhere in the file ({seen})");
                self.missing(&what)
            }),
        }
    }

    /// Of several protocols that have a prefix, the preferred one counts and, among equals, the
    /// first, as in BIRD.
    fn add_routes(&mut self, given: StaticRoutes<'a>) -> Result<(), ParseFault<'a>> {
        let mut own = BTreeSet::new();
        let import = imported(given.import, &self.filters)?;
        for Located { at, value } in given.routes {
            let (prefix, route) = value;
            let Some(route) = admitted(import.as_ref(), prefix, route) else {
                continue;
            };
            if !own.insert(prefix) {
                let what = "every route once in a protocol; this one is a repetition";
                return Err(ParseFault::new(at, what));
            }
            let before = self.preferences.get(&prefix).copied();
            if before.is_some() {
                self.unused.insert(prefix, at);
            }
            if before.is_none_or(|before| given.preference > before) {
                self.preferences.insert(prefix, given.preference);
                self.originate.insert(prefix, route);
            }
        }
        Ok(())
    }

    /// A route with gateways is not there while they are on no link, and nothing stands in for it.
    fn check_unused(&self) -> Result<(), ParseFault<'a>> {
        for (prefix, at) in &self.unused {
            let route = self.originate.get(prefix);
            if let Some(StaticWay::Via(_)) = route.map(|route| &route.way) {
                let what = format!(
                    "no second route to {prefix}: the preferred one has gateways, and no other takes its place while \
                     they are on no link"
                );
                return Err(ParseFault::new(at, what));
            }
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

    fn finish(
        mut self,
        choose: ChooseRouterId<'_>,
    ) -> Result<(SpeakerConfig, Notes<'a>), ParseFault<'a>> {
        let router_id = self.choose_router_id(choose)?;
        self.router_id = Some(router_id);
        self.check_unused()?;
        let peers = std::mem::take(&mut self.peers);
        let local_as = match self.constants.get(LOCAL_AS) {
            Some(asn) => Asn(*asn),
            None => self.first_local_as(&peers)?,
        };
        let mut configs = BTreeMap::new();
        for peer in &peers {
            let (name, config) = self.peer(peer, local_as)?;
            if configs.insert(name, config).is_some() {
                return Err(ParseFault::new(
                    peer.symbol.at,
                    "a name that no peer has yet",
                ));
            }
        }
        let config = SpeakerConfig {
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
        };
        Ok((config, self.notes))
    }

    /// True for a text that somebody has written, with BIRD's defaults in mind; what is rendered
    /// says everything.
    fn by_hand(&self) -> bool {
        !self.constants.contains_key(LOCAL_AS)
    }

    /// What holds for peers with BFD.
    fn bfd_times(&self) -> BfdTimes {
        let mut times = BfdTimes::new(self.by_hand());
        for lines in &self.bfd {
            times.take(lines);
        }
        times
    }

    /// Notes defaults that are not BIRD's.
    fn note_defaults(&mut self, at: &'a str, given: &PeerOptions<'a>, config: &PeerConfig) {
        if self.by_hand() {
            for what in given.own_defaults(config) {
                self.notes.entry(what).or_insert(at);
            }
        }
    }

    /// In a file written by hand, our AS is the one of the first peer.
    fn first_local_as(&self, peers: &[PeerStatement<'a>]) -> Result<Asn, ParseFault<'a>> {
        for peer in peers {
            for (_, option) in self.options(peer)? {
                if let PeerOption::Local { asn, .. } = option.value {
                    return self.resolve(asn);
                }
            }
        }
        Err(self.missing(&format!(
            "a line \"define {LOCAL_AS} = NUMBER;\" or a peer with \"local as NUMBER;\""
        )))
    }

    /// The options of a peer, those of its templates first, each with how far down it stands.
    fn options<'b>(
        &'b self,
        peer: &'b PeerStatement<'a>,
    ) -> Result<Vec<(usize, &'b Located<'a, PeerOption<'a>>)>, ParseFault<'a>> {
        let mut chain = vec![peer];
        let mut last = peer;
        while let Some(name) = last.template {
            let Some(template) = self.templates.get(name.value) else {
                return Err(ParseFault::new(name.at, "the name of a template"));
            };
            if chain.len() > self.templates.len() {
                return Err(ParseFault::new(
                    name.at,
                    "a template that is not made of itself",
                ));
            }
            chain.push(template);
            last = template;
        }
        let mut options = Vec::new();
        for (level, statement) in chain.iter().enumerate().rev() {
            options.extend(statement.options.iter().map(|option| (level, option)));
        }
        Ok(options)
    }

    fn peer(
        &mut self,
        peer: &PeerStatement<'a>,
        local_as: Asn,
    ) -> Result<(PeerName, PeerConfig), ParseFault<'a>> {
        let mut given = PeerOptions::default();
        for (level, option) in self.options(peer)? {
            given.take(level, option)?;
        }
        let neighbor = given.neighbor.map(|said| said.value).unwrap_or_default();
        let (Some(address), Some(asn)) = (neighbor.address, neighbor.asn) else {
            let what = "a peer with a line \"neighbor ADDRESS as NUMBER;\"";
            return Err(ParseFault::missing(peer.symbol.at, what));
        };
        let own = match given.local {
            Some((_, number)) => self.resolve(number)?,
            None => local_as,
        };
        let remote_as = match asn {
            RemoteAs::Number(number) => self.resolve(number)?,
            RemoteAs::Internal => own,
        };
        let mut config = PeerConfig::new(address, remote_as);
        config.range = neighbor.range;
        config.port = neighbor.port.unwrap_or(BGP_PORT);
        if let Some((source, number)) = given.local {
            config.source = source;
            let is_own = match number {
                Number::Constant(name) => name.value == LOCAL_AS,
                // Written by hand: the global number again is no override.
                Number::Literal(value) => value == local_as.0 && self.by_hand(),
            };
            config.local_as = (!is_own).then_some(own);
        }
        config.source = given.source.or(config.source);
        self.listening(&given)?;
        let internal = own == config.remote_as;
        let bfd = self.bfd_times();
        given.apply(&mut config, internal, self.router_id, self.by_hand(), bfd);
        config.interface = given.link(&config)?;
        if let (None, Some(interface)) = (&config.interface, &given.interface) {
            self.notes.entry(FAR_INTERFACE).or_insert(interface.at);
        }
        given.keepalive(&config)?;
        given.route_server(internal)?;
        given.roles(internal)?;
        given.first_as(internal)?;
        self.note_defaults(peer.symbol.at, &given, &config);
        self.channels(peer, &given, &mut config, internal)?;
        let name = given
            .name
            .clone()
            .unwrap_or_else(|| peer.symbol.value.clone().into_owned());
        Ok((name.into(), config))
    }

    /// Where a peer's lines say that we listen, we do.
    fn listening(&mut self, given: &PeerOptions<'a>) -> Result<(), ParseFault<'a>> {
        if let Some(Located { at, value: port }) = given.local_port {
            let all = Listen {
                address: None,
                second: None,
                port,
            };
            let listen = self.listen.get_or_insert(Some(all));
            if listen.is_some_and(|listen| listen.port != port) {
                let what = "one port to listen on; another peer or \"#: listen\" says another";
                return Err(ParseFault::new(at, what));
            }
        }
        let on_all = match self.listen {
            None => true,
            Some(listen) => listen.is_some_and(|listen| listen.address.is_none()),
        };
        match given.strict_bind {
            Some(at) if on_all => Err(ParseFault::new(
                at,
                "a line \"#: listen ADDRESS port 179\" above: without it the speaker listens on all addresses",
            )),
            _ => Ok(()),
        }
    }

    fn channels(
        &mut self,
        peer: &PeerStatement<'a>,
        given: &PeerOptions<'a>,
        config: &mut PeerConfig,
        internal: bool,
    ) -> Result<(), ParseFault<'a>> {
        let Some(first) = given.channels.first() else {
            return Err(ParseFault::missing(
                peer.symbol.at,
                "a peer with \"ipv4 { … };\" or \"ipv6 { … };\"",
            ));
        };
        config.next_hop = first.next_hop.into();
        config.add_path = options::add_path(&first.paths);
        let ours = self.preferences.values().copied();
        config.preference = given.preference(ours.fold(PREFERENCE, u16::min))?;
        config.families.clear();
        let required = config.require_policy && !internal;
        // BIRD's default towards internal peers; external ones need the line.
        let nothing = Policy::Passes(Passes::Nothing);
        let silent = (internal && self.by_hand()).then_some(&nothing);
        let (mut imports, mut exports) = (Vec::new(), Vec::new());
        for channel in &given.channels {
            self.check_policy(channel, config, internal)?;
            config.next_hop.set(channel.family, channel.next_hop);
            config.extended_next_hop |= channel.extended_next_hop;
            if options::add_path(&channel.paths) != config.add_path {
                let what = "both families with the same \"add paths\"";
                return Err(ParseFault::new(channel.at, what));
            }
            if let Some(at) = channel.gateway_direct.filter(|_| config.ttl != Some(1)) {
                let what = "\"recursive\": the peer may be further away than one hop";
                return Err(ParseFault::new(at, what));
            }
            if let Some(own) = channel.own_next_hop {
                config.own_next_hops.set(own);
            }
            let [received, accepted, sent] = options::prefix_limits(&channel.limit);
            config.prefix_limits.set(channel.family, received);
            config.import_limits.set(channel.family, accepted);
            config.export_limits.set(channel.family, sent);
            config.families.push(channel.family);
            let name = |direction| format!("{} {direction} {}", peer.symbol.value, channel.family);
            let imported = channel.import.as_ref();
            imports.push(self.policy(imported, [internal, required, true], &name("import"))?);
            let exported = channel.export.as_ref().or(silent);
            exports.push(self.policy(exported, [internal, required, false], &name("export"))?);
        }
        config.import = self.of_families(&config.families, imports);
        config.export = self.of_families(&config.families, exports);
        config.families.sort_unstable();
        Ok(())
    }

    /// RFC 8212: towards another AS, letting everything pass has to be said.
    fn check_policy(
        &self,
        channel: &Channel<'a>,
        config: &PeerConfig,
        internal: bool,
    ) -> Result<(), ParseFault<'a>> {
        if internal {
            return Ok(());
        }
        let both = [&channel.import, &channel.export];
        if config.require_policy {
            if both
                .iter()
                .any(|passes| matches!(passes, Some(Policy::Passes(Passes::All))))
            {
                return Err(ParseFault::new(
                    channel.at,
                    "a filter or no line at all: with \"policy required\", \"all\" is no policy",
                ));
            }
        } else if both.iter().any(|passes| passes.is_none()) {
            return Err(ParseFault::missing(
                channel.at,
                "a family with \"import …;\" and \"export …;\": an external peer needs both (RFC 8212), \"all\" lets \
                 everything pass",
            ));
        }
        Ok(())
    }

    /// The names of the filters of one direction. No policy is no filter.
    fn policy(
        &mut self,
        policy: Option<&Policy<'a>>,
        [internal, required, import]: [bool; 3],
        own_name: &str,
    ) -> Result<Vec<String>, ParseFault<'a>> {
        let passes = match policy {
            None => return Ok(Vec::new()),
            Some(Policy::Calls(calls)) => return self.calls(calls, internal),
            Some(Policy::Passes(passes)) => passes,
        };
        let filter = match passes {
            Passes::All => return Ok(Vec::new()),
            Passes::Named(name) => {
                let known = self.filter_names.get(name.value);
                let filter = known.and_then(|known| self.filters.get(known));
                if let Some(filter) = filter {
                    in_place(filter, import, name.at)?;
                }
                return match known {
                    Some(name) => Ok(vec![name.clone()]),
                    None => Err(ParseFault::new(name.at, "the name of a function or filter")),
                };
            }
            // RFC 8212: without a filter nothing passes anyway.
            Passes::Nothing if required => return Ok(Vec::new()),
            Passes::Nothing => {
                self.filters.insert(NOTHING.to_owned(), nothing());
                return Ok(vec![NOTHING.to_owned()]);
            }
            Passes::Filter(filter) => {
                in_place(&filter.value, import, filter.at)?;
                filter.value.clone()
            }
        };
        self.filters.insert(own_name.to_owned(), filter);
        Ok(vec![own_name.to_owned()])
    }

    /// One list of filters for both families: where they differ, each filter is for its own.
    fn of_families(&mut self, families: &[Family], lists: Vec<Vec<String>>) -> Vec<String> {
        let differ = lists.iter().any(|list| Some(list) != lists.first());
        if !differ {
            return lists.into_iter().next().unwrap_or_default();
        }
        let mut all = Vec::new();
        for (family, list) in families.iter().zip(lists) {
            for name in list {
                let own = format!("{name} ({family})");
                if let Some(filter) = self.filters.get(&name) {
                    let mut filter = filter.clone();
                    filter.family = Some(*family);
                    self.filters.insert(own.clone(), filter);
                }
                all.push(own);
            }
        }
        all
    }

    fn calls(&self, calls: &[Call<'a>], internal: bool) -> Result<Vec<String>, ParseFault<'a>> {
        let mut names = Vec::with_capacity(calls.len());
        for call in calls {
            if call.internal.value != internal {
                return Err(ParseFault::new(
                    call.internal.at,
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
