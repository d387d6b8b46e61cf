//! `protocol direct`: the subnets of this machine's interfaces as routes that can be announced.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_bgp::{Filter, InterfacePattern, OwnProtocol};
use caracal_model::Family;
use nom::combinator::{cut, opt};
use nom::sequence::terminated;
use nom::{Err, Parser};

use super::fixed;
use super::kernel::{imported, line};
use super::language::Scope;
use super::lexer::{Located, ParseFault, Res, block, family, one_of_words, skip, switch, token};
use super::policy::Passes;
use super::router_id;

/// BIRD's preference of subnets of interfaces.
pub(super) const PREFERENCE: u16 = 240;

/// The interfaces of one protocol, and what of their subnets is a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direct {
    /// The first that an interface matches decides; an empty list takes all.
    pub interfaces: Vec<InterfacePattern>,
    /// The families that there are, each with its filter; `None`: all of them.
    pub import: BTreeMap<Family, Option<Filter>>,
    /// Its name; `None`: `direct1`.
    pub protocol: Option<Arc<OwnProtocol>>,
}

/// A whole protocol, its filters not yet looked up.
#[derive(Clone, Debug)]
pub(super) struct DirectProtocol<'a> {
    interfaces: Vec<InterfacePattern>,
    import: BTreeMap<Family, Passes<'a>>,
    protocol: Option<Arc<OwnProtocol>>,
}

impl<'a> DirectProtocol<'a> {
    /// The protocol with its filters; `None`: it has no routes.
    pub(super) fn resolve(
        self,
        filters: &BTreeMap<String, Filter>,
    ) -> Result<Option<Direct>, ParseFault<'a>> {
        let mut import = BTreeMap::new();
        for (family, passes) in self.import {
            if !matches!(passes, Passes::Nothing) {
                import.insert(family, imported(passes, filters)?);
            }
        }
        Ok((!import.is_empty()).then_some(Direct {
            interfaces: self.interfaces,
            import,
            protocol: self.protocol,
        }))
    }
}

#[derive(Clone, Debug)]
enum DirectOption<'a> {
    Channel(Family, Passes<'a>),
    Interfaces(Vec<InterfacePattern>),
    Disabled(bool),
    Ignored,
}

/// The block of a direct protocol; `at`: where it begins.
pub(super) fn direct<'a>(
    scope: &mut Scope<'a>,
    at: &'a str,
    protocol: Option<Arc<OwnProtocol>>,
    s: &'a str,
) -> Res<'a, Option<DirectProtocol<'a>>> {
    let (rest, options) = block(|s| option(scope, s))(s)?;
    let (mut interfaces, mut import, mut disabled) = (Vec::new(), BTreeMap::new(), false);
    for Located { at, value } in options {
        match value {
            DirectOption::Channel(family, passes) => {
                if import.insert(family, passes).is_some() {
                    let what = "each family once in a direct protocol";
                    return Err(Err::Failure(ParseFault::new(at, what)));
                }
            }
            DirectOption::Interfaces(list) => interfaces.extend(list),
            DirectOption::Disabled(off) => disabled = off,
            DirectOption::Ignored => {}
        }
    }
    if disabled {
        return Ok((rest, None));
    }
    if import.is_empty() {
        let why = "without a line \"ipv4;\" or \"ipv6;\" it has no routes, as in BIRD 2";
        scope.note(at, "protocol direct", why);
        return Ok((rest, None));
    }
    let direct = DirectProtocol {
        interfaces,
        import,
        protocol,
    };
    Ok((rest, Some(direct)))
}

fn option<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, DirectOption<'a>> {
    const WORDS: [&str; 4] = ["ipv4", "ipv6", "interface", "disabled"];
    if let Ok((rest, ())) = fixed::of_any(s) {
        return Ok((rest, DirectOption::Ignored));
    }
    let (rest, word) = one_of_words(&WORDS, s)?;
    let end = || cut(token(";"));
    match word {
        "ipv4" | "ipv6" => {
            let (_, family) = family(s)?;
            let lines = opt(block(|s| import_line(scope, s)));
            let (rest, lines) = terminated(lines, end()).parse(rest)?;
            let last = lines.into_iter().flatten().next_back();
            let passes = last.map_or(Passes::All, |line| line.value);
            Ok((rest, DirectOption::Channel(family, passes)))
        }
        "interface" => {
            let (rest, list) = router_id::patterns(rest)?;
            Ok((rest, DirectOption::Interfaces(list)))
        }
        _ => terminated(switch, end())
            .map(DirectOption::Disabled)
            .parse(rest),
    }
}

/// `import …;`, the one line of a family: nothing is written to interfaces.
fn import_line<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Passes<'a>> {
    let at = skip(s);
    match line(scope, s)? {
        (rest, ("import", passes)) => Ok((rest, passes)),
        _ => {
            let what = "\"import\": nothing is exported to a direct protocol";
            Err(Err::Failure(ParseFault::new(at, what)))
        }
    }
}
