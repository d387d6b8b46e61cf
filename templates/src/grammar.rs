//! The subset of BIRD's language that is read back: everything that is rendered, in any order, with
//! BIRD's comments, plus what people write by hand in its place (`define`, `filter`, `import all`).
//!
//! Statements are told apart by their first word, so an error is reported where the text goes wrong
//! and not where some alternative began. Parsing gives statements; the module `build` makes the
//! configuration of them.

mod build;
mod community;
mod dump;
mod kernel;
mod lexer;
mod options;
mod peer;
mod policy;
mod route;
mod station;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use caracal_bgp::{Listen, Origination, SpeakerConfig};
use caracal_model::{Family, Prefix};
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded, terminated};
use nom::{Err, Parser};

use crate::error::ParseError;
pub use dump::Dump;
use dump::{DumpStatement, dump};
use kernel::{KernelStatement, kernel};
pub use kernel::{KernelTable, Learn};
use lexer::{
    Located, Number, ParseFault, Res, block, directive, ip_address, ipv4_address, number,
    one_of_words, skip, string, symbol, token, u16_number,
};
use peer::{PeerOption, peer_option};
use policy::{Function, filter, function};
use route::route;
use station::{StationStatement, station_block, station_line};

/// Content of the file of a standalone speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Configuration of the speaker.
    pub speaker: SpeakerConfig,
    /// The tables of the kernel that best routes go to.
    pub kernel: BTreeMap<Family, KernelTable>,
    /// Files that the table is written to, by name.
    pub dumps: BTreeMap<String, Dump>,
}

/// Reads the configuration of a speaker, and passes over what concerns the kernel and files.
///
/// # Errors
/// [`ParseError`] with line, column, what was expected and what was found.
pub fn parse(text: &str) -> Result<SpeakerConfig, ParseError> {
    let statements = statements(text)?;
    build::build(text, statements).map_err(|fault| fault.into_error(text))
}

/// Reads a whole file.
///
/// # Errors
/// [`ParseError`] with line, column, what was expected and what was found.
pub fn parse_file(text: &str) -> Result<File, ParseError> {
    let mut statements = statements(text)?;
    let mut protocols = BTreeMap::new();
    let mut dumps = BTreeMap::new();
    for statement in &mut statements {
        if let Statement::Dump(Located { at, value }) = statement {
            let (name, dump) = value.clone();
            if dumps.insert(name, dump).is_some() {
                return Err(ParseError::at(text, at, "another name; this one is taken"));
            }
        }
        let Statement::Kernel(Located { at, value }) = statement else {
            continue;
        };
        match std::mem::replace(value, Ok(None)) {
            Err(fault) => return Err(fault.into_error(text)),
            Ok(None) => {}
            Ok(Some(protocol)) => {
                let family = protocol.family;
                if protocols.insert(family, protocol).is_some() {
                    let what = format!("one kernel protocol for {family}; there is another");
                    return Err(ParseError::at(text, at, what));
                }
            }
        }
    }
    let speaker = build::build(text, statements).map_err(|fault| fault.into_error(text))?;
    let table = |(family, protocol): (Family, kernel::KernelProtocol<'_>)| {
        let table = protocol.resolve(&speaker.filters);
        Ok((family, table.map_err(|fault| fault.into_error(text))?))
    };
    let kernel = protocols.into_iter().map(table).collect::<Result<_, _>>()?;
    Ok(File {
        speaker,
        kernel,
        dumps,
    })
}

fn statements(text: &str) -> Result<Vec<Statement<'_>>, ParseError> {
    let mut statements = Vec::new();
    let mut rest = text;
    while !skip(rest).is_empty() {
        match statement(rest) {
            Ok((after, statement)) => {
                statements.push(statement);
                rest = after;
            }
            Err(Err::Error(fault) | Err::Failure(fault)) => return Err(fault.into_error(text)),
            Err(Err::Incomplete(_)) => {
                return Err(ParseError::at(text, &text[text.len()..], "more text"));
            }
        }
    }
    Ok(statements)
}

/// One statement at the top of the file.
#[derive(Debug)]
enum Statement<'a> {
    RouterId(Ipv4Addr),
    Listen(Option<Listen>),
    Define(Located<'a, &'a str>, Number<'a>),
    Function(Function<'a>),
    Routes(Vec<Located<'a, (Prefix, Origination)>>),
    Template(Located<'a, &'a str>, Vec<Located<'a, PeerOption<'a>>>),
    Peer(PeerStatement<'a>),
    Station(StationStatement<'a>),
    /// For a speaker that writes no routes, what it says does not matter.
    Kernel(Located<'a, Result<KernelStatement<'a>, ParseFault<'a>>>),
    /// Only for who writes files.
    Dump(DumpStatement<'a>),
    /// Something that concerns a BIRD daemon only.
    Ignored,
}

#[derive(Debug)]
struct PeerStatement<'a> {
    symbol: Located<'a, &'a str>,
    template: Option<Located<'a, &'a str>>,
    options: Vec<Located<'a, PeerOption<'a>>>,
}

fn statement(s: &str) -> Res<'_, Statement<'_>> {
    let (rest, word) = one_of_words(
        &[
            "router", "define", "log", "function", "filter", "protocol", "template", "#:",
        ],
        s,
    )?;
    match word {
        "router" => delimited(token("id"), ipv4_address, token(";"))
            .map(Statement::RouterId)
            .parse(rest),
        "define" => (
            terminated(symbol, token("=")),
            terminated(number, token(";")),
        )
            .map(|(name, value)| Statement::Define(name, value))
            .parse(rest),
        "log" => log(rest),
        "function" => function.map(Statement::Function).parse(rest),
        "filter" => filter.map(Statement::Function).parse(rest),
        "protocol" => protocol(rest),
        "template" => {
            let (rest, name) = preceded(token("bgp"), symbol).parse(rest)?;
            let (rest, options) = block(peer_option)(rest)?;
            Ok((rest, Statement::Template(name, options)))
        }
        // The directive is read again as a whole line.
        _ => top_line(s),
    }
}

/// `log stderr all;`: where a BIRD daemon logs.
fn log(s: &str) -> Res<'_, Statement<'_>> {
    let target = alt((token("stderr"), token("syslog"), string));
    let classes = alt((
        token("all"),
        delimited(token("{"), lexer::until_brace, token("}")),
    ));
    (target, classes, token(";"))
        .map(|_| Statement::Ignored)
        .parse(s)
}

fn protocol(s: &str) -> Res<'_, Statement<'_>> {
    let (rest, word) = one_of_words(
        &[
            "bgp", "static", "bmp", "mrt", "device", "direct", "bfd", "kernel",
        ],
        s,
    )?;
    if word == "bmp" {
        return station_block.map(Statement::Station).parse(rest);
    }
    if word == "mrt" {
        return dump.map(Statement::Dump).parse(rest);
    }
    let (rest, name) = opt(symbol).parse(rest)?;
    match word {
        "bgp" => {
            let (rest, template) = opt(preceded(token("from"), cut(symbol))).parse(rest)?;
            let Some(symbol) = name else {
                return Err(Err::Failure(ParseFault::new(rest, "the name of the peer")));
            };
            let (rest, options) = block(peer_option)(rest)?;
            let statement = PeerStatement {
                symbol,
                template,
                options,
            };
            Ok((rest, Statement::Peer(statement)))
        }
        "static" => {
            let (rest, routes) = block(route)(rest)?;
            let routes = routes.into_iter().filter_map(Located::transpose);
            Ok((rest, Statement::Routes(routes.collect())))
        }
        "kernel" => {
            let at = skip(rest);
            let (after, ()) = lexer::balanced_block(rest)?;
            let value = match kernel(rest) {
                Ok((_, statement)) => Ok(statement),
                Err(Err::Error(fault) | Err::Failure(fault)) => Err(fault),
                Err(Err::Incomplete(_)) => Err(ParseFault::new(at, "a kernel protocol")),
            };
            Ok((after, Statement::Kernel(Located { at, value })))
        }
        _ => lexer::balanced_block
            .map(|()| Statement::Ignored)
            .parse(rest),
    }
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
