//! Functions and filters. Those that are terms of the form `if CONDITIONS then { ACTIONS VERDICT }`
//! and nothing else become a list of terms, which is what rendered text has; others a program.

use caracal_bgp::{
    AsPathPlace, Asn, Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PeerKind,
    PrefixPattern, Program, RouteSource,
};
use caracal_model::Prefix;
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::multi::{many0, separated_list1};
use nom::sequence::{delimited, preceded, separated_pair, terminated};
use nom::{Err, Parser};

use super::community;
use super::language::{self, Named, Scope};
use super::lexer::{
    Located, ParseFault, Res, block, directive, end_of_line, one_of_words, prefix, skip, string,
    symbol, token, u8_number, u32_number,
};

/// A function or filter.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) symbol: Located<'a, &'a str>,
    /// The name that the symbol stands in for.
    pub(super) name: Option<String>,
    pub(super) filter: Filter,
}

enum Item {
    Name(String),
    Term(FilterTerm),
}

/// What passes in one direction.
#[derive(Clone, Debug, Default)]
pub(super) enum Passes<'a> {
    #[default]
    Nothing,
    All,
    Filter(Located<'a, Filter>),
    /// A filter of the file.
    Named(Located<'a, &'a str>),
}

/// Rejects everything.
pub(super) fn nothing() -> Filter {
    Filter::from(vec![verdict_only(FilterVerdict::Reject)])
}

/// `all`, `none`, `where CONDITION`, `filter NAME`, `filter { STEP … }`.
pub(super) fn passes<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Passes<'a>> {
    let at = skip(s);
    let (rest, word) = one_of_words(&["all", "none", "where", "filter"], s)?;
    let here = |value| Passes::Filter(Located { at, value });
    match word {
        "all" => Ok((rest, Passes::All)),
        "none" => Ok((rest, Passes::Nothing)),
        "where" => {
            let program = |scope: &mut Scope<'a>| language::where_filter(scope, "where", rest);
            either(scope, only(rest), program).map(|(rest, filter)| (rest, here(filter)))
        }
        _ if skip(rest).starts_with('{') => {
            let program = |scope: &mut Scope<'a>| language::filter(scope, "without a name", rest);
            either(scope, inline(rest), program).map(|(rest, filter)| (rest, here(filter)))
        }
        _ => symbol(rest).map(|(rest, name)| (rest, Passes::Named(name))),
    }
}

/// A list of terms, where it is one, or else a program.
fn either<'a>(
    scope: &mut Scope<'a>,
    terms: Res<'a, Filter>,
    program: impl FnOnce(&mut Scope<'a>) -> Res<'a, Program>,
) -> Res<'a, Filter> {
    if let Ok(terms) = terms {
        return Ok(terms);
    }
    let names = scope.mark();
    let read = program(scope);
    if read.is_err() {
        scope.forget(names);
    }
    read.map(|(rest, program)| (rest, Filter::from(program)))
        .map_err(final_error)
}

/// There is no other way to read it.
fn final_error(error: Err<ParseFault<'_>>) -> Err<ParseFault<'_>> {
    match error {
        Err::Error(fault) => Err::Failure(fault),
        other => other,
    }
}

/// `NAME(ARGUMENTS) { … }`: with terms alone, and none or one argument, a filter whose undecided
/// routes the caller goes on with. Otherwise functions of other filters.
pub(super) fn function<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Option<Function<'a>>> {
    let names = scope.mark();
    let program = language::function(scope, s);
    if program.is_err() {
        scope.forget(names);
    }
    let Ok((rest, function)) = terms_function(s) else {
        return program.map(|(rest, ())| (rest, None)).map_err(final_error);
    };
    match program {
        Ok(_) => scope.is_terms(function.symbol.value),
        Err(_) => scope
            .define(function.symbol, Named::Filter)
            .map_err(Err::Failure)?,
    }
    Ok((rest, Some(function)))
}

fn terms_function(s: &str) -> Res<'_, Function<'_>> {
    let (rest, symbol) = symbol(s)?;
    let parameter = (token("bool"), token("is_internal"));
    let (rest, _) = delimited(token("("), opt(parameter), token(")")).parse(rest)?;
    let (rest, (name, terms)) = body(rest)?;
    let filter = Filter::from(terms);
    let function = Function {
        symbol,
        name,
        filter,
    };
    Ok((rest, function))
}

/// `NAME { … }`: what nothing decides is refused, as in BIRD.
pub(super) fn filter<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Function<'a>> {
    let names = scope.mark();
    if let Ok((rest, function)) = terms_filter(s) {
        scope
            .define(function.symbol, Named::Filter)
            .map_err(Err::Failure)?;
        return Ok((rest, function));
    }
    match language::named_filter(scope, s) {
        Ok((rest, (symbol, program))) => {
            let function = Function {
                symbol,
                name: None,
                filter: Filter::from(program),
            };
            Ok((rest, function))
        }
        Err(error) => {
            scope.forget(names);
            Err(final_error(error))
        }
    }
}

fn terms_filter(s: &str) -> Res<'_, Function<'_>> {
    let (rest, symbol) = symbol(s)?;
    let (rest, (name, terms)) = body(rest)?;
    let filter = closed(terms);
    let function = Function {
        symbol,
        name,
        filter,
    };
    Ok((rest, function))
}

/// With a refusal of what no term decides.
fn closed(mut terms: Vec<FilterTerm>) -> Filter {
    let is_end = |term: &FilterTerm| term.conditions.is_empty() && term.verdict.is_some();
    if !terms.last().is_some_and(is_end) {
        terms.push(verdict_only(FilterVerdict::Reject));
    }
    Filter::from(terms)
}

fn body(s: &str) -> Res<'_, (Option<String>, Vec<FilterTerm>)> {
    let (rest, items) = block(item)(s)?;
    let mut name = None;
    let mut terms = Vec::new();
    for item in items {
        match item.value {
            Item::Name(text) => name = Some(text),
            Item::Term(term) => terms.push(term),
        }
    }
    Ok((rest, (name, terms)))
}

/// After `where`: conditions, in parentheses or not, joined by `&&`. What does not meet them is
/// refused.
fn only(s: &str) -> Res<'_, Filter> {
    let (rest, conditions) = separated_list1(token("&&"), alt((condition, bare))).parse(s)?;
    let accept = FilterTerm {
        conditions,
        actions: Vec::new(),
        verdict: Some(FilterVerdict::Accept),
    };
    let terms = vec![accept, verdict_only(FilterVerdict::Reject)];
    Ok((rest, Filter::from(terms)))
}

/// A condition without parentheses.
fn bare(s: &str) -> Res<'_, FilterCondition> {
    let (rest, condition) = inside(s)?;
    // "And" and "or" are side by side in BIRD: this is for a program to read.
    if s[..s.len() - rest.len()].contains("||") {
        let at = skip(s);
        return Err(Err::Failure(ParseFault::new(
            at,
            "this condition in parentheses",
        )));
    }
    Ok((rest, condition))
}

/// `{ TERM … }`: a filter without a name; what no term decides is refused.
fn inline(s: &str) -> Res<'_, Filter> {
    let (rest, (_, terms)) = body(s)?;
    Ok((rest, closed(terms)))
}

const fn verdict_only(verdict: FilterVerdict) -> FilterTerm {
    FilterTerm {
        conditions: Vec::new(),
        actions: Vec::new(),
        verdict: Some(verdict),
    }
}

fn item(s: &str) -> Res<'_, Item> {
    let (rest, word) = one_of_words(&["if", "accept", "reject", "#:"], s)?;
    match word {
        "if" => term.map(Item::Term).parse(rest),
        "accept" => token(";")
            .map(|_| Item::Term(verdict_only(FilterVerdict::Accept)))
            .parse(rest),
        "reject" => token(";")
            .map(|_| Item::Term(verdict_only(FilterVerdict::Reject)))
            .parse(rest),
        _ => name_line.map(Item::Name).parse(s),
    }
}

/// `#: name "…"`, a JSON string.
pub(super) fn name_line(s: &str) -> Res<'_, String> {
    let (rest, line) = directive(s)?;
    let (text, _) = token("name")(line)?;
    let text = text.trim();
    match serde_json::from_str(text) {
        Ok(name) => Ok((rest, name)),
        Err(_) => Err(Err::Failure(ParseFault::new(
            text,
            "a name as a JSON string",
        ))),
    }
}

/// Parses the text behind `if`.
fn term(s: &str) -> Res<'_, FilterTerm> {
    let always = token("true").map(|_| Vec::new());
    let conditions = alt((always, separated_list1(token("&&"), condition)));
    let (rest, conditions) = terminated(conditions, token("then")).parse(s)?;
    let (rest, steps) = if skip(rest).starts_with('{') {
        block(step)(rest)?
    } else {
        let at = skip(rest);
        let (rest, value) = step(rest)?;
        (rest, vec![Located { at, value }])
    };
    let (actions, verdict) = fold(steps)?;
    Ok((
        rest,
        FilterTerm {
            conditions,
            actions,
            verdict,
        },
    ))
}

/// A statement inside a term.
enum Step {
    Action(FilterAction),
    /// One AS number of a path, the last one first.
    Prepend(Asn),
    /// Ends a path, so that the next one is an action of its own.
    Next,
    Verdict(FilterVerdict),
}

fn fold(
    steps: Vec<Located<'_, Step>>,
) -> Result<(Vec<FilterAction>, Option<FilterVerdict>), Err<ParseFault<'_>>> {
    let mut actions = Vec::new();
    let mut path_open = false;
    let mut verdict = None;
    for Located { at, value } in steps {
        if verdict.is_some() {
            return Err(Err::Failure(ParseFault::new(
                at,
                "\"}\" (nothing runs after accept or reject)",
            )));
        }
        let continues = std::mem::take(&mut path_open);
        match value {
            Step::Action(action) => actions.push(action),
            Step::Next => {}
            Step::Verdict(end) => verdict = Some(end),
            Step::Prepend(asn) => {
                path_open = true;
                match actions.last_mut() {
                    Some(FilterAction::PrependAsPath(path)) if continues => path.insert(0, asn),
                    _ => actions.push(FilterAction::PrependAsPath(vec![asn])),
                }
            }
        }
    }
    Ok((actions, verdict))
}

fn step(s: &str) -> Res<'_, Step> {
    const WORDS: [&str; 9] = [
        "accept",
        "reject",
        "bgp_community",
        "bgp_large_community",
        "bgp_ext_community",
        "bgp_local_pref",
        "bgp_med",
        "bgp_path",
        "#:",
    ];
    let (rest, word) = one_of_words(&WORDS, s)?;
    match word {
        "accept" => token(";")
            .map(|_| Step::Verdict(FilterVerdict::Accept))
            .parse(rest),
        "reject" => token(";")
            .map(|_| Step::Verdict(FilterVerdict::Reject))
            .parse(rest),
        list if community::LISTS.contains(&list) => change(rest, list),
        "bgp_local_pref" => assigned(rest)
            .map(|(rest, value)| (rest, Step::Action(FilterAction::SetLocalPref(value)))),
        "bgp_med" => {
            assigned(rest).map(|(rest, value)| (rest, Step::Action(FilterAction::SetMed(value))))
        }
        "bgp_path" => delimited(
            (token("."), token("prepend"), token("(")),
            u32_number,
            (token(")"), token(";")),
        )
        .map(|asn| Step::Prepend(Asn(asn)))
        .parse(rest),
        _ => {
            let (rest, line) = directive(s)?;
            let (line, word) = one_of_words(&["prepend", "next"], line)?;
            end_of_line(line)?;
            let step = if word == "next" {
                Step::Next
            } else {
                Step::Action(FilterAction::PrependAsPath(Vec::new()))
            };
            Ok((rest, step))
        }
    }
}

/// `= NUMBER;`.
pub(super) fn assigned(s: &str) -> Res<'_, u32> {
    delimited(token("="), u32_number, token(";")).parse(s)
}

/// `.add(C);` or `.delete(C);`.
fn change<'a>(s: &'a str, list: &str) -> Res<'a, Step> {
    let (rest, _) = token(".")(s)?;
    let (rest, word) = one_of_words(&["add", "delete"], rest)?;
    let value = community::operand_of(list);
    let (rest, community) = delimited(token("("), value, (token(")"), token(";"))).parse(rest)?;
    let action = match word {
        "add" => FilterAction::AddCommunity(community),
        _ => FilterAction::RemoveCommunity(community),
    };
    Ok((rest, Step::Action(action)))
}

/// One condition in parentheses.
fn condition(s: &str) -> Res<'_, FilterCondition> {
    delimited(token("("), inside, token(")")).parse(s)
}

fn inside(s: &str) -> Res<'_, FilterCondition> {
    alt((
        destination,
        community,
        as_path,
        next_hop,
        peer_kind,
        source,
        interface,
        local_pref,
    ))
    .parse(s)
}

/// `net ~ [ SET ] || net ~ [ SET ]`, or `net !~ [ SET ] && net !~ [ SET ]`.
fn destination(s: &str) -> Res<'_, FilterCondition> {
    let (rest, operator) = preceded(token("net"), operator).parse(s)?;
    let negated = operator == "!~";
    let (joined_by, operator) = if negated { ("&&", "!~") } else { ("||", "~") };
    let (rest, mut patterns) = pattern_set(rest)?;
    let more = (token(joined_by), token("net"), token(operator));
    let (rest, sets) = many0(preceded(more, cut(pattern_set))).parse(rest)?;
    patterns.extend(sets.into_iter().flatten());
    Ok((rest, FilterCondition::Prefix { patterns, negated }))
}

fn operator(s: &str) -> Res<'_, &'static str> {
    one_of_words(&["!~", "~"], s)
}

/// Patterns of one family, as BIRD demands.
fn pattern_set(s: &str) -> Res<'_, Vec<PrefixPattern>> {
    let (rest, patterns): (_, Vec<PrefixPattern>) =
        delimited(token("["), separated_list1(token(","), pattern), token("]")).parse(s)?;
    let family = patterns.first().map(|first| first.prefix.family());
    let one = |pattern: &PrefixPattern| Some(pattern.prefix.family()) == family;
    if patterns.iter().all(one) {
        return Ok((rest, patterns));
    }
    let what = "prefixes of one family in a set";
    Err(Err::Failure(ParseFault::new(skip(s), what)))
}

fn pattern(s: &str) -> Res<'_, PrefixPattern> {
    let (rest, prefix) = prefix(s)?;
    if let Some(rest) = rest.strip_prefix('+') {
        return Ok((rest, PrefixPattern::or_longer(prefix)));
    }
    if !rest.starts_with('{') {
        return Ok((rest, PrefixPattern::exact(prefix)));
    }
    let (after, (min, max)) = delimited(
        token("{"),
        separated_pair(u8_number, token(","), u8_number),
        token("}"),
    )
    .parse(rest)?;
    check_lengths(rest, prefix, min, max)?;
    Ok((after, PrefixPattern { prefix, min, max }))
}

fn check_lengths(at: &str, prefix: Prefix, min: u8, max: u8) -> Result<(), Err<ParseFault<'_>>> {
    let (own, bits) = (prefix.len(), prefix.family().bits());
    if own <= min && min <= max && max <= bits {
        return Ok(());
    }
    let expected = format!("lengths {{MIN,MAX}} with {own} <= MIN <= MAX <= {bits}");
    Err(Err::Failure(ParseFault::new(at, expected)))
}

fn community(s: &str) -> Res<'_, FilterCondition> {
    community::carried.map(FilterCondition::Community).parse(s)
}

/// `bgp_path ~ [= 65001 65002 * =]`, with or without a `*` at either end.
fn as_path(s: &str) -> Res<'_, FilterCondition> {
    let open = || opt(token("*")).map(|star| star.is_some());
    let (rest, (start, asns, end)) = delimited(
        (token("bgp_path"), token("~"), token("[=")),
        (open(), many0(u32_number.map(Asn)), open()),
        token("=]"),
    )
    .parse(s)?;
    let place = match (start, end) {
        (false, true) => return Ok((rest, FilterCondition::AsPathPrefix(asns))),
        // Any path.
        (true, _) if asns.is_empty() => return Ok((rest, FilterCondition::AsPathPrefix(asns))),
        (true, true) => AsPathPlace::Anywhere,
        (true, false) => AsPathPlace::End,
        (false, false) => AsPathPlace::Whole,
    };
    Ok((rest, FilterCondition::AsPath { asns, place }))
}

/// `defined(ATTRIBUTE) && ATTRIBUTE`: an absent attribute must not be compared.
fn defined<'a>(
    attribute: &'static str,
) -> impl Parser<&'a str, Output = (), Error = ParseFault<'a>> {
    (
        token("defined"),
        token("("),
        token(attribute),
        token(")"),
        token("&&"),
        token(attribute),
    )
        .map(|_| ())
}

fn next_hop(s: &str) -> Res<'_, FilterCondition> {
    preceded((defined("bgp_next_hop"), token("~")), prefix)
        .map(FilterCondition::NextHop)
        .parse(s)
}

fn local_pref(s: &str) -> Res<'_, FilterCondition> {
    preceded((defined("bgp_local_pref"), token("=")), u32_number)
        .map(FilterCondition::LocalPref)
        .parse(s)
}

fn peer_kind(s: &str) -> Res<'_, FilterCondition> {
    let internal = token("is_internal").map(|_| PeerKind::Internal);
    let external = (token("!"), token("is_internal")).map(|_| PeerKind::External);
    alt((internal, external))
        .map(FilterCondition::PeerKind)
        .parse(s)
}

fn source(s: &str) -> Res<'_, FilterCondition> {
    let bgp = token("RTS_BGP").map(|_| RouteSource::Bgp);
    let fixed = token("RTS_STATIC").map(|_| RouteSource::Static);
    preceded((token("source"), token("=")), alt((bgp, fixed)))
        .map(FilterCondition::Source)
        .parse(s)
}

/// `ifname != "" && ifname ~ "cali*"`: a route without an interface does not match.
fn interface(s: &str) -> Res<'_, FilterCondition> {
    let has_one = (
        token("ifname"),
        token("!="),
        token("\"\""),
        token("&&"),
        token("ifname"),
        token("~"),
    );
    preceded(has_one, string)
        .map(|pattern| FilterCondition::Interface(pattern.to_owned()))
        .parse(s)
}
