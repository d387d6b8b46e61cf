//! BIRD 2's language, as far as a BGP speaker with a table of each family has a meaning for it:
//! files that people write by hand, with constants, includes, functions and filters that are
//! programs; and everything that is rendered, which comes back as the configuration that it was.
//! What is not done is refused with its place and what to write instead; a line that changes
//! nothing here is noted.
//!
//! Statements are told apart by their first word, so an error is reported where the text goes wrong
//! and not where some alternative began. Parsing gives statements; the module `build` makes the
//! configuration of them.

mod bfd;
mod build;
mod community;
mod constant;
mod direct;
mod dump;
mod errors;
mod fixed;
mod kernel;
mod language;
mod lexer;
mod neighbor;
mod options;
mod peer;
mod peer_options;
mod policy;
mod route;
mod router_id;
mod rpki;
mod station;
mod way;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use caracal_bgp::{InterfacePattern, Listen, Roa, SpeakerConfig, Value};
use caracal_model::Family;
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded, terminated};
use nom::{Err, Parser};

use crate::error::{ParseError, ParseErrors};
use crate::source::{Include, Source};
use bfd::BfdLines;
pub use direct::Direct;
use direct::{DirectProtocol, direct};
pub use dump::Dump;
use dump::{DumpStatement, dump};
use kernel::{KernelStatement, kernel};
pub use kernel::{KernelTable, Learn};
use language::{LOCAL_AS, Named, Scope};
use lexer::{
    Located, ParseFault, Res, balanced_block, block, directive, ip_address, one_of_words, skip,
    string, symbol, token, u16_number,
};
use peer::{PeerOption, peer_option};
use policy::Function;
use route::{StaticRoutes, routes};
pub use rpki::Cache;
use rpki::{CacheStatement, cache};
use station::{StationStatement, station_block, station_line};

/// The start of the name of a static protocol with ways to peers, in a rendered text.
const GATEWAYS: &str = "caracal_gateways_";

/// Content of the file of a standalone speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Configuration of the speaker.
    pub speaker: SpeakerConfig,
    /// The tables of the kernel that best routes go to.
    pub kernel: BTreeMap<Family, KernelTable>,
    /// Interfaces whose subnets are announced; the first protocol that has a subnet counts.
    pub direct: Vec<Direct>,
    /// Files that the table is written to, by name.
    pub dumps: BTreeMap<String, Dump>,
    /// Validators whose entries are in tables that filters ask, by the name of their protocol.
    pub caches: BTreeMap<String, Cache>,
    /// Lines that are understood and change nothing here, with the reason.
    pub notes: Vec<String>,
}

/// Chooses the router id where a file leaves it to the addresses of the machine: the lowest of
/// those that the patterns take, or of all when there are none. An error says what was seen.
pub type ChooseRouterId<'c> = &'c dyn Fn(&[InterfacePattern]) -> Result<Ipv4Addr, String>;

/// What validators' caches have sent, by the name of their protocol.
pub type Learned = BTreeMap<String, Arc<[Roa]>>;

/// What a file leaves to where it is read.
#[derive(Clone, Copy)]
pub struct Surroundings<'s> {
    /// The addresses of the machine.
    pub router_id: ChooseRouterId<'s>,
    /// The entries of RPKI caches.
    pub learned: &'s Learned,
}

impl Surroundings<'static> {
    /// A text alone has no machine, and nobody has sent anything.
    fn none() -> Self {
        static NOTHING: Learned = Learned::new();
        Self {
            router_id: &|_| Err("no machine is asked".to_owned()),
            learned: &NOTHING,
        }
    }
}

/// Reads the configuration of a speaker, and passes over what concerns the kernel and files.
///
/// # Errors
/// [`ParseError`] with line, column, what was expected and what was found: the first in the file.
pub fn parse(text: &str) -> Result<SpeakerConfig, ParseError> {
    let source = Source::of("", text);
    match errors::read_all(&source, false, Surroundings::none()) {
        Ok(file) => Ok(file.speaker),
        Err(errors) => Err(*errors.first),
    }
}

/// Reads a whole file that includes no others.
///
/// # Errors
/// [`ParseError`] with line, column, what was expected and what was found: the first in the file.
pub fn parse_file(text: &str) -> Result<File, ParseError> {
    let source = Source::of("", text);
    errors::read_all(&source, true, Surroundings::none()).map_err(|errors| *errors.first)
}

/// A file with those that it includes. It is read again, as it was, when a cache has sent other
/// entries.
#[derive(Debug)]
pub struct Texts(Source);

impl Texts {
    /// Collects the texts.
    ///
    /// # Errors
    /// A line `include` that cannot be followed.
    pub fn new(name: &str, text: &str, include: Include<'_>) -> Result<Self, ParseErrors> {
        let source = Source::with_includes(name, text, include);
        source.map(Self).map_err(|first| ParseErrors {
            first: Box::new(first),
            more: Vec::new(),
        })
    }

    /// Reads them.
    ///
    /// # Errors
    /// All errors, as far as each can be told from those before it.
    pub fn read(&self, around: Surroundings<'_>) -> Result<File, ParseErrors> {
        errors::read_all(&self.0, true, around)
    }
}

/// Reads a whole file with those that it includes, before any cache has sent anything.
///
/// # Errors
/// All errors, as far as each can be told from those before it.
pub fn read_file(
    name: &str,
    text: &str,
    include: Include<'_>,
    router_id: ChooseRouterId<'_>,
) -> Result<File, ParseErrors> {
    let learned = &Learned::new();
    let around = Surroundings { router_id, learned };
    Texts::new(name, text, include)?.read(around)
}

/// Computes an expression that needs no route, and shows its value as `birdc eval` does.
///
/// # Errors
/// [`ParseError`] with the place, also when the expression has no value.
pub fn eval(text: &str) -> Result<String, ParseError> {
    let source = Source::of("", text);
    let mut scope = Scope::new(&source, &source.text);
    let fault = match language::computed(&mut scope, &source.text) {
        Ok((rest, value)) if skip(rest).is_empty() => return Ok(value.to_string()),
        Ok((rest, _)) => ParseFault::new(skip(rest), "the end of the expression"),
        Err(Err::Error(fault) | Err::Failure(fault)) => fault,
        Err(Err::Incomplete(_)) => ParseFault::new(&source.text, "an expression"),
    };
    let (offset, expected, _) = fault.into_parts(&source.text);
    Err(source.error(offset, expected))
}

/// Reads a text; `whole`: with what concerns the kernel and files.
fn read<'a>(
    source: &'a Source,
    text: &'a str,
    whole: bool,
    around: Surroundings<'a>,
) -> Result<File, ParseFault<'a>> {
    let mut scope = Scope::new(source, text);
    scope.learned = Some(around.learned);
    let mut read = statements(&mut scope, text)?;
    if !(scope.roas.is_empty() && scope.fed.is_empty()) {
        // Filters may stand above the entries that they ask for.
        let (known_roas, known_fed) = (scope.roas, scope.fed);
        scope = Scope::new(source, text);
        (scope.known_roas, scope.known_fed) = (known_roas, known_fed);
        read = statements(&mut scope, text)?;
    }
    let mut statements = read;
    let mut protocols = BTreeMap::new();
    let mut dumps = BTreeMap::new();
    let mut caches = BTreeMap::new();
    let mut directs = Vec::new();
    for statement in &mut statements {
        if let Statement::Cache(Located { at, value }) = statement {
            let (name, cache) = value.clone();
            if caches.insert(name, cache).is_some() {
                return Err(ParseFault::new(at, "another name; this one is taken"));
            }
        }
        if let Statement::Dump(Located { at, value }) = statement {
            let (name, dump) = value.clone();
            if dumps.insert(name, dump).is_some() {
                return Err(ParseFault::new(at, "another name; this one is taken"));
            }
        }
        if let Statement::Direct(protocol) = statement {
            directs.push(protocol.clone());
        }
        let Statement::Kernel(Located { at, value }) = statement else {
            continue;
        };
        match std::mem::replace(value, Ok(None)) {
            Err(fault) if whole => return Err(fault),
            Ok(Some(protocol)) if whole => {
                let family = protocol.family;
                if protocols.insert(family, protocol).is_some() {
                    let what = format!("one kernel protocol for {family}; there is another");
                    return Err(ParseFault::new(at, what));
                }
            }
            Err(_) | Ok(_) => {}
        }
    }
    let (speaker, notes) = build::build(text, statements, around.router_id)?;
    for (what, at) in notes {
        scope.tell(at, what);
    }
    let mut kernel = BTreeMap::new();
    for (family, protocol) in protocols {
        let mut table = protocol.resolve(&speaker.filters)?;
        table.near = speaker.links();
        kernel.insert(family, table);
    }
    let mut direct = Vec::new();
    for protocol in directs {
        direct.extend(protocol.resolve(&speaker.filters)?);
    }
    Ok(File {
        speaker,
        kernel,
        direct,
        dumps,
        caches: caches
            .into_iter()
            .filter_map(|(name, cache)| Some((name, cache?)))
            .collect(),
        notes: scope.notes,
    })
}

fn statements<'a>(
    scope: &mut Scope<'a>,
    text: &'a str,
) -> Result<Vec<Statement<'a>>, ParseFault<'a>> {
    let mut statements = Vec::new();
    let mut rest = text;
    loop {
        while let Ok((after, _)) = token(";")(rest) {
            rest = after;
        }
        if skip(rest).is_empty() {
            return Ok(statements);
        }
        match statement(scope, rest) {
            Ok((after, statement)) => {
                statements.push(statement);
                rest = after;
            }
            Err(Err::Error(fault) | Err::Failure(fault)) => return Err(fault),
            Err(Err::Incomplete(_)) => {
                return Err(ParseFault::new(&text[text.len()..], "more text"));
            }
        }
    }
}

/// One statement at the top of the file.
#[derive(Debug)]
enum Statement<'a> {
    RouterId(Ipv4Addr),
    RouterIdFrom(Located<'a, Vec<InterfacePattern>>),
    Listen(Option<Listen>),
    Define(Located<'a, &'a str>, Value),
    Function(Function<'a>),
    Routes(StaticRoutes<'a>),
    Template(Located<'a, &'a str>, PeerStatement<'a>),
    Peer(PeerStatement<'a>),
    Station(StationStatement<'a>),
    /// What holds for peers with BFD.
    Bfd(BfdLines),
    /// For a speaker that writes no routes, what it says does not matter.
    Kernel(Located<'a, Result<KernelStatement<'a>, ParseFault<'a>>>),
    /// The same, of subnets of interfaces.
    Direct(DirectProtocol<'a>),
    /// Only for who writes files.
    Dump(DumpStatement<'a>),
    /// A validator.
    Cache(CacheStatement<'a>),
    /// Nothing more follows from it: it has defined a name, or has a note.
    Done,
}

/// A peer or a template of peers.
#[derive(Debug)]
struct PeerStatement<'a> {
    symbol: Located<'a, Cow<'a, str>>,
    template: Option<Located<'a, &'a str>>,
    options: Vec<Located<'a, PeerOption<'a>>>,
}

fn statement<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Statement<'a>> {
    const WORDS: [&str; 18] = [
        "router",
        "define",
        "log",
        "function",
        "filter",
        "protocol",
        "template",
        "#:",
        "ipv4",
        "ipv6",
        "roa4",
        "roa6",
        "timeformat",
        "debug",
        "watchdog",
        "mrtdump",
        "hostname",
        "graceful",
    ];
    let at = skip(s);
    let (rest, word) = one_of_words(&WORDS, s)?;
    match word {
        "router" => router_id::router_id(scope, rest),
        "define" => {
            let (rest, name) = terminated(symbol, token("=")).parse(rest)?;
            let (rest, value) = language::computed(scope, rest)?;
            let (rest, _) = token(";")(rest)?;
            let named = Named::Constant(value.clone());
            scope.define(name, named).map_err(Err::Failure)?;
            Ok((rest, Statement::Define(name, value)))
        }
        "log" => log(rest),
        "function" => {
            let (rest, function) = policy::function(scope, rest)?;
            Ok((rest, function.map_or(Statement::Done, Statement::Function)))
        }
        "filter" => {
            let (rest, filter) = policy::filter(scope, rest)?;
            Ok((rest, Statement::Function(filter)))
        }
        "protocol" => protocol(scope, rest),
        "template" => {
            let (rest, _) = token("bgp")(rest)?;
            let (rest, name) = symbol(rest)?;
            let (rest, template) = peer(scope, rest, Some(name))?;
            Ok((rest, Statement::Template(name, template)))
        }
        "ipv4" | "ipv6" => {
            let (rest, _) = token("table")(rest)?;
            let (rest, ()) = master(if word == "ipv4" { "master4" } else { "master6" }, rest)?;
            token(";").map(|_| Statement::Done).parse(rest)
        }
        "roa4" | "roa6" => {
            let (rest, _) = token("table")(rest)?;
            let (rest, name) = symbol(rest)?;
            let (rest, _) = token(";")(rest)?;
            let family = route::roa_family(word);
            scope.define_roas(name, family).map_err(Err::Failure)?;
            Ok((rest, Statement::Done))
        }
        "graceful" => {
            let words = (token("restart"), token("wait"));
            let (rest, _) = preceded(words, |s| constant::number::<u32>(scope, s)).parse(rest)?;
            let why =
                "a restart waits for End-of-RIB of each peer, as long as its restart time says";
            scope.note(at, "graceful restart wait", why);
            token(";").map(|_| Statement::Done).parse(rest)
        }
        "timeformat" | "debug" | "watchdog" | "mrtdump" | "hostname" => {
            let (rest, _) = lexer::until_semicolon(rest)?;
            let why = match word {
                "hostname" => "the host's name is not sent",
                _ => "log lines and times are chosen by options of the command",
            };
            scope.note(at, word, why);
            token(";").map(|_| Statement::Done).parse(rest)
        }
        // The directive is read again as a whole line.
        _ => top_line(s),
    }
}

/// Protocols of BIRD's that are not done, and what to do without them.
const NOT_DONE: [(&str, &str); 5] = [
    (
        "pipe",
        "no \"pipe\": there is one table for each family, and no other to lead routes to; its filters belong into \
         \"import\" and \"export\" of the peers",
    ),
    ("ospf", ANOTHER_DAEMON),
    ("rip", ANOTHER_DAEMON),
    ("babel", ANOTHER_DAEMON),
    (
        "radv",
        "no \"radv\": router advertisements are for another program",
    ),
];

const ANOTHER_DAEMON: &str = "a protocol that there is; routes of another daemon come from the table of the kernel \
                              with \"learn;\" of \"protocol kernel\"";

/// The name of the table of a family.
const fn master_of(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "master4",
        Family::Ipv6 => "master6",
    }
}

/// The name of the only table that there is for a family.
fn master<'a>(name: &'static str, s: &'a str) -> Res<'a, ()> {
    let (rest, found) = symbol(s)?;
    if found.value == name {
        return Ok((rest, ()));
    }
    let what = format!("{name:?}: there is one table for each family");
    Err(Err::Failure(ParseFault::new(found.at, what)))
}

/// `log stderr all;`: where a BIRD daemon logs.
fn log(s: &str) -> Res<'_, Statement<'_>> {
    let name = (opt(token("name")), opt(string)).map(|_| "");
    let target = alt((token("stderr"), preceded(token("syslog"), name), string));
    let classes = alt((
        token("all"),
        delimited(token("{"), lexer::until_brace, token("}")),
    ));
    (target, classes, token(";"))
        .map(|_| Statement::Done)
        .parse(s)
}

/// Behind the name: `[from TEMPLATE] { OPTION … }`. A peer without a name has a number, as in BIRD.
fn peer<'a>(
    scope: &mut Scope<'a>,
    s: &'a str,
    name: Option<Located<'a, &'a str>>,
) -> Res<'a, PeerStatement<'a>> {
    let symbol = match name {
        Some(Located { at, value }) => Located {
            at,
            value: Cow::Borrowed(value),
        },
        None => {
            let value = Cow::Owned(scope.unnamed("bgp"));
            Located { at: skip(s), value }
        }
    };
    let (rest, template) = opt(preceded(token("from"), cut(lexer::symbol))).parse(s)?;
    let (rest, options) = block(|s| peer_option(scope, s))(rest)?;
    let peer = PeerStatement {
        symbol,
        template,
        options,
    };
    Ok((rest, peer))
}

fn protocol<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Statement<'a>> {
    const WORDS: [&str; 9] = [
        "bgp", "static", "bmp", "mrt", "device", "direct", "bfd", "kernel", "rpki",
    ];
    for (word, what) in NOT_DONE {
        if token(word)(s).is_ok() {
            return Err(Err::Failure(ParseFault::new(skip(s), what)));
        }
    }
    let (rest, word) = one_of_words(&WORDS, s)?;
    match word {
        "bmp" => return station_block.map(Statement::Station).parse(rest),
        "mrt" => return dump.map(Statement::Dump).parse(rest),
        "rpki" => {
            let (rest, cache) = cache(scope, rest)?;
            return Ok((rest, Statement::Cache(cache)));
        }
        "bfd" => {
            let (rest, lines) = bfd::protocol(scope, rest)?;
            return Ok((rest, Statement::Bfd(lines)));
        }
        "bgp" => {
            let (rest, name) = match token("from")(rest) {
                Ok(_) => (rest, None),
                Err(_) => opt(symbol).parse(rest)?,
            };
            let (rest, peer) = peer(scope, rest, name)?;
            return Ok((rest, Statement::Peer(peer)));
        }
        _ => {}
    }
    let (rest, name) = opt(symbol).parse(rest)?;
    match word {
        "static" => {
            // Ways to peers, of a rendered text: a daemon's own, which nobody announces.
            if name.is_some_and(|name| name.value.starts_with(GATEWAYS)) {
                return balanced_block.map(|()| Statement::Done).parse(rest);
            }
            let (rest, routes) = routes(scope, name, rest)?;
            Ok((rest, Statement::Routes(routes)))
        }
        "kernel" => {
            let at = skip(rest);
            let (after, ()) = balanced_block(rest)?;
            let protocol = scope.own_protocol("kernel", name, [kernel::PREFERENCE; 2]);
            let value = match kernel(scope, protocol, rest) {
                Ok((_, statement)) => Ok(statement),
                Err(Err::Error(fault) | Err::Failure(fault)) => Err(fault),
                Err(Err::Incomplete(_)) => Err(ParseFault::new(at, "a kernel protocol")),
            };
            Ok((after, Statement::Kernel(Located { at, value })))
        }
        "device" => balanced_block.map(|()| Statement::Done).parse(rest),
        _ => connected(scope, skip(s), name, rest),
    }
}

/// `protocol direct`. In a rendered text its routes only resolve next hops, and the filters of that
/// text keep them in.
fn connected<'a>(
    scope: &mut Scope<'a>,
    at: &'a str,
    name: Option<Located<'a, &'a str>>,
    s: &'a str,
) -> Res<'a, Statement<'a>> {
    if scope.find(LOCAL_AS).is_some() {
        return balanced_block.map(|()| Statement::Done).parse(s);
    }
    let protocol = scope.own_protocol("direct", name, [direct::PREFERENCE; 2]);
    let (rest, protocol) = direct(scope, at, protocol, s)?;
    Ok((rest, protocol.map_or(Statement::Done, Statement::Direct)))
}

/// A `#:` line at the top of the file.
fn top_line(s: &str) -> Res<'_, Statement<'_>> {
    let (rest, line) = directive(s)?;
    let (after, word) = one_of_words(&["listen", "bmp"], line)?;
    let (line, statement) = if word == "bmp" {
        station_line.map(Statement::Station).parse(line)?
    } else {
        listen.map(Statement::Listen).parse(after)?
    };
    lexer::end_of_line(line)?;
    Ok((rest, statement))
}

/// After `#: listen`: `all port 179`, `10.0.0.1 port 179`, `10.0.0.1 and fd00::1 port 179`, `none`.
fn listen(s: &str) -> Res<'_, Option<Listen>> {
    let second = opt(preceded(token("and"), ip_address));
    let all = token("all").map(|_| (None, None));
    let place = alt((all, (ip_address.map(Some), second)));
    let place = (place, preceded(token("port"), u16_number)).map(|((address, second), port)| {
        Some(Listen {
            address,
            second,
            port,
        })
    });
    alt((token("none").map(|_| None), place)).parse(s)
}
