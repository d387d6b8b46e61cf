//! Expressions, with BIRD's precedence: `&&` and `||` side by side, then comparisons, which do not
//! chain, sums, products, `!`, and properties.

mod sets;

use std::sync::Arc;

use caracal_bgp::{
    AsPath, Attribute, Expression, ExtKind, Method, Operator, Value, ValueType, compute,
    enumeration_word,
};
use nom::Err;

use super::super::lexer::{ParseFault, Res, one_of_words, skip, string, symbol, token};
use super::literal::literal;
use super::scope::{Callable, EXPRESSION, Named, Scope};
use super::types;
pub(super) use sets::set;

/// Attributes of BIRD's routes that routes have not here.
const OTHER_ATTRIBUTES: [&str; 10] = [
    "gw_mpls",
    "ifindex",
    "onlink",
    "weight",
    "krt_source",
    "krt_metric",
    "krt_realm",
    "krt_scope",
    "krt_mtu",
    "krt_advmss",
];

/// Operators of different kinds in one chain, at most.
const LONGEST: usize = 40;

/// An expression with its type and the text from which on it was read.
#[derive(Clone, Debug)]
pub(in crate::grammar) struct Typed<'a> {
    pub(super) at: &'a str,
    pub(super) expression: Expression,
    pub(super) value_type: ValueType,
}

impl<'a> Typed<'a> {
    fn constant(at: &'a str, value: Value) -> Self {
        Self {
            at,
            value_type: value.value_type(),
            expression: Expression::Constant(value),
        }
    }

    /// The expression, when it is of this type.
    pub(super) fn of(self, wanted: ValueType) -> Result<Expression, Err<ParseFault<'a>>> {
        if self.value_type.fits(wanted) {
            return Ok(self.expression);
        }
        let (wanted, own) = (wanted.what(), self.value_type.what());
        Err(fault(self.at, format!("{wanted} (this is {own})")))
    }
}

pub(super) fn fault<'a>(at: &'a str, expected: impl Into<String>) -> Err<ParseFault<'a>> {
    Err::Failure(ParseFault::new(at, expected))
}

/// The expression, computed where that needs no route.
fn folded<'a>(
    at: &'a str,
    expression: Expression,
    value_type: ValueType,
) -> Result<Typed<'a>, Err<ParseFault<'a>>> {
    if !expression.is_fixed() {
        return Ok(Typed {
            at,
            expression,
            value_type,
        });
    }
    match compute(&expression) {
        Ok(value) => Ok(Typed::constant(at, value)),
        Err(why) => Err(fault(at, format!("a value that can be computed ({why})"))),
    }
}

/// An expression, its value computed: there is no route.
pub(in crate::grammar) fn computed<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Value> {
    let at = skip(s);
    let (rest, typed) = term(scope, s)?;
    match compute(&typed.expression) {
        Ok(value) => Ok((rest, value)),
        Err(why) => Err(fault(at, format!("a value that can be computed ({why})"))),
    }
}

/// An expression.
pub(in crate::grammar) fn term<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    scope.deeper(EXPRESSION, s, logical)
}

fn logical<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    let (mut rest, mut left) = comparison(scope, s)?;
    let mut changes = 0;
    while let Ok((after, word)) = one_of_words(&["&&", "||"], rest) {
        let (after, right) = comparison(scope, after)?;
        let at = left.at;
        let left_truth = left.of(ValueType::Bool)?;
        let right = right.of(ValueType::Bool)?;
        let expression = match (word, left_truth) {
            // Many of one kind are one expression.
            ("&&", Expression::And(mut all)) => {
                all.push(right);
                Expression::And(all)
            }
            ("||", Expression::Or(mut all)) => {
                all.push(right);
                Expression::Or(all)
            }
            (word, first) => {
                changes += 1;
                chain_has_room(after, changes)?;
                match word {
                    "&&" => Expression::And(vec![first, right]),
                    _ => Expression::Or(vec![first, right]),
                }
            }
        };
        left = folded(at, expression, ValueType::Bool)?;
        rest = after;
    }
    Ok((rest, left))
}

/// A chain of operators is an expression inside another one for each of them.
fn chain_has_room(at: &str, length: usize) -> Result<(), Err<ParseFault<'_>>> {
    if length > LONGEST {
        return Err(fault(skip(at), "a shorter expression"));
    }
    Ok(())
}

fn comparison<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    const SIGNS: [(&str, Operator); 8] = [
        ("!=", Operator::NotEqual),
        ("!~", Operator::NotMatch),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("=", Operator::Equal),
        ("<", Operator::Less),
        (">", Operator::Greater),
        ("~", Operator::Match),
    ];
    let (rest, left) = sum(scope, s)?;
    let at = skip(rest);
    let found = SIGNS.iter().find(|(sign, _)| at.starts_with(sign));
    let Some((sign, operator)) = found.filter(|_| !at.starts_with("=]")) else {
        return Ok((rest, left));
    };
    let (rest, right) = sum(scope, &at[sign.len()..])?;
    Ok((rest, joined(*operator, left, right)?))
}

fn sum<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    let (mut rest, mut left) = product(scope, s)?;
    for length in 0.. {
        chain_has_room(rest, length)?;
        let at = skip(rest);
        let operator = match at.chars().next() {
            Some('+') if !at.starts_with("++") => Operator::Add,
            Some('-') if !at.starts_with("->") => Operator::Subtract,
            _ => return Ok((rest, left)),
        };
        let (after, right) = product(scope, &at[1..])?;
        left = joined(operator, left, right)?;
        rest = after;
    }
    Ok((rest, left))
}

fn product<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    let (mut rest, mut left) = unary(scope, s)?;
    for length in 0.. {
        chain_has_room(rest, length)?;
        let at = skip(rest);
        let operator = match at.chars().next() {
            Some('*') => Operator::Multiply,
            Some('/') => Operator::Divide,
            _ => return Ok((rest, left)),
        };
        let (after, right) = unary(scope, &at[1..])?;
        left = joined(operator, left, right)?;
        rest = after;
    }
    Ok((rest, left))
}

/// `LEFT OPERATOR RIGHT`.
fn joined<'a>(
    operator: Operator,
    mut left: Typed<'a>,
    mut right: Typed<'a>,
) -> Result<Typed<'a>, Err<ParseFault<'a>>> {
    as_router_id(&mut left, right.value_type);
    as_router_id(&mut right, left.value_type);
    let Some(value_type) = types::operator_type(operator, left.value_type, right.value_type) else {
        let (own, other) = (left.value_type.what(), right.value_type.what());
        let what = format!("operands that go together (these are {own} and {other})");
        return Err(fault(left.at, what));
    };
    let both = Box::new([left.expression, right.expression]);
    folded(left.at, Expression::Binary(operator, both), value_type)
}

/// An address beside a router id is one.
fn as_router_id(one: &mut Typed<'_>, other: ValueType) {
    if other == ValueType::Quad
        && let Expression::Constant(Value::Ip(std::net::IpAddr::V4(address))) = one.expression
    {
        one.expression = Expression::Constant(Value::Quad(address.to_bits()));
        one.value_type = ValueType::Quad;
    }
}

fn unary<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    let at = skip(s);
    match at.strip_prefix('!') {
        Some(rest) => {
            let (rest, inner) = scope.deeper(EXPRESSION, rest, unary)?;
            let inner = Box::new(inner.of(ValueType::Bool)?);
            Ok((rest, folded(at, Expression::Not(inner), ValueType::Bool)?))
        }
        None => properties(scope, s),
    }
}

fn properties<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    let (mut rest, mut subject) = primary(scope, s)?;
    for length in 0.. {
        chain_has_room(rest, length)?;
        let at = skip(rest);
        // Two points are a range.
        if !at.starts_with('.') || at.starts_with("..") {
            return Ok((rest, subject));
        }
        let (after, name) = symbol(&at[1..])?;
        let Some((method, takes)) = types::method(name.value) else {
            return Err(fault(name.at, "a property or method"));
        };
        (rest, subject) = applied(scope, method, takes, subject, after)?;
    }
    Ok((rest, subject))
}

/// Behind `SUBJECT.METHOD`.
pub(super) fn applied<'a>(
    scope: &mut Scope<'a>,
    method: Method,
    takes: bool,
    subject: Typed<'a>,
    s: &'a str,
) -> Res<'a, Typed<'a>> {
    if !takes {
        return Ok((s, method_of(method, subject, None)?));
    }
    let (rest, _) = token("(")(s)?;
    let (rest, argument) = term(scope, rest)?;
    let (rest, _) = token(")")(rest)?;
    Ok((rest, method_of(method, subject, Some(argument))?))
}

fn method_of<'a>(
    method: Method,
    subject: Typed<'a>,
    argument: Option<Typed<'a>>,
) -> Result<Typed<'a>, Err<ParseFault<'a>>> {
    let given = argument.as_ref().map(|argument| argument.value_type);
    let Some(value_type) = types::method_type(method, subject.value_type, given) else {
        let own = subject.value_type.what();
        return Err(match &argument {
            Some(argument) if types::element(subject.value_type).is_some() => {
                let given = argument.value_type.what();
                fault(
                    argument.at,
                    format!("what goes with {own} (this is {given})"),
                )
            }
            _ => fault(
                subject.at,
                format!("something with this property (this is {own})"),
            ),
        });
    };
    let argument = argument.map(|argument| Box::new(argument.expression));
    let expression = Expression::Method(method, Box::new(subject.expression), argument);
    folded(subject.at, expression, value_type)
}

fn primary<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Typed<'a>> {
    const EMPTY: [&str; 4] = ["+empty+", "---empty---", "--empty--", "-empty-"];
    let at = skip(s);
    if let (rest, Some(value)) = literal(at)? {
        return Ok((rest, Typed::constant(at, value)));
    }
    if at.starts_with('(') {
        return parentheses(scope, at);
    }
    if at.starts_with('[') {
        let (rest, (expression, value_type)) = sets::brackets(scope, at)?;
        return Ok((rest, folded(at, expression, value_type)?));
    }
    if at.starts_with('"') {
        let (rest, text) = string(at)?;
        return Ok((rest, Typed::constant(at, Value::Text(text.into()))));
    }
    if let Some(word) = EMPTY.iter().find(|word| at.starts_with(**word)) {
        let value = match *word {
            "+empty+" => Value::Path(Arc::new(AsPath::default())),
            "-empty-" => Value::Communities(Arc::from([])),
            "--empty--" => Value::ExtCommunities(Arc::from([])),
            _ => Value::LargeCommunities(Arc::from([])),
        };
        return Ok((&at[word.len()..], Typed::constant(at, value)));
    }
    word(scope, at)
}

/// `(E)`, `(A, B)`, `(A, B, C)`, `(rt, A, B)`.
fn parentheses<'a>(scope: &mut Scope<'a>, at: &'a str) -> Res<'a, Typed<'a>> {
    let inside = &at[1..];
    if let Some((rest, kind)) = extended_kind(inside) {
        let (rest, first) = term(scope, rest)?;
        let (rest, _) = token(",")(rest)?;
        let (rest, second) = term(scope, rest)?;
        let (rest, _) = token(")")(rest)?;
        let first = match first.value_type {
            ValueType::Ip | ValueType::Quad => first.expression,
            _ => first.of(ValueType::Int)?,
        };
        let both = Box::new([first, second.of(ValueType::Int)?]);
        let expression = Expression::Extended(kind, both);
        return Ok((rest, folded(at, expression, ValueType::Extended)?));
    }
    let (rest, first) = term(scope, inside)?;
    let Ok((rest, _)) = token(",")(rest) else {
        let (rest, _) = closing(rest, &[",", ")"])?;
        return Ok((rest, Typed { at, ..first }));
    };
    let (rest, second) = term(scope, rest)?;
    let first = as_number(first)?;
    let second = as_number(second)?;
    if let Ok((rest, _)) = token(",")(rest) {
        let (rest, third) = term(scope, rest)?;
        let (rest, _) = token(")")(rest)?;
        let all = Box::new([first, second, as_number(third)?]);
        return Ok((rest, folded(at, Expression::Large(all), ValueType::Large)?));
    }
    let (rest, _) = closing(rest, &[",", ")"])?;
    let pair = Expression::Pair(Box::new([first, second]));
    Ok((rest, folded(at, pair, ValueType::Pair)?))
}

/// `)`; `words` are what could stand there.
fn closing<'a>(s: &'a str, words: &[&'static str]) -> Res<'a, ()> {
    match one_of_words(words, s)? {
        (rest, ")") => Ok((rest, ())),
        _ => Err(fault(skip(s), "\")\"")),
    }
}

fn as_number(part: Typed<'_>) -> Result<Expression, Err<ParseFault<'_>>> {
    part.of(ValueType::Int)
}

/// `rt,`, `ro,`, `generic,`: the start of an extended community; `None` is the kind of `generic`.
fn extended_kind(s: &str) -> Option<(&str, Option<ExtKind>)> {
    let (rest, word) = one_of_words(&["rt", "ro", "generic"], s).ok()?;
    let (rest, _) = token(",")(rest).ok()?;
    let kind = match word {
        "rt" => Some(ExtKind::RouteTarget),
        "ro" => Some(ExtKind::RouteOrigin),
        _ => None,
    };
    Some((rest, kind))
}

/// A word: a name, an attribute, or one of the language.
fn word<'a>(scope: &mut Scope<'a>, at: &'a str) -> Res<'a, Typed<'a>> {
    let Ok((rest, name)) = symbol(at) else {
        return Err(Err::Error(ParseFault::new(at, "an expression")));
    };
    if let Some(variable) = scope.variable(name.value) {
        let typed = Typed {
            at,
            expression: Expression::Variable(variable.slot),
            value_type: variable.value_type,
        };
        return Ok((rest, typed));
    }
    match scope.find(name.value) {
        Some(Named::Constant(value)) => {
            let typed = Typed::constant(at, value.clone());
            return Ok((rest, typed));
        }
        Some(Named::Function(callable)) => {
            let callable = callable.clone();
            return call(scope, at, &callable, rest);
        }
        Some(Named::Filter | Named::Roa(..)) | None => {}
    }
    match name.value {
        "true" => return Ok((rest, Typed::constant(at, Value::Bool(true)))),
        "false" => return Ok((rest, Typed::constant(at, Value::Bool(false)))),
        "defined" => return defined(scope, at, rest),
        "roa_check" => return roa_check(scope, at, rest),
        "prepend" | "add" | "delete" | "filter" => return old_form(scope, at, name.value, rest),
        _ => {}
    }
    if let Some(value) = enumeration_word(name.value) {
        return Ok((rest, Typed::constant(at, value)));
    }
    let attribute = attribute(scope, at, name.value)?;
    if attribute.is_opaque() {
        let what = format!(
            "\"defined({})\": its value is none of the language",
            name.value
        );
        return Err(fault(at, what));
    }
    let typed = Typed {
        at,
        expression: Expression::Attribute(attribute),
        value_type: attribute.value_type(),
    };
    Ok((rest, typed))
}

/// The attribute of this name.
pub(super) fn attribute<'a>(
    scope: &Scope<'a>,
    at: &'a str,
    name: &str,
) -> Result<Attribute, Err<ParseFault<'a>>> {
    let mut known = Attribute::ALL.iter();
    let Some((_, attribute)) = known.find(|(known, _)| *known == name) else {
        let what = if OTHER_ATTRIBUTES.contains(&name) {
            format!("an attribute that routes have here; {name:?} is one of BIRD's only")
        } else {
            format!("a name that is defined above; {name:?} is not")
        };
        return Err(fault(at, what));
    };
    if !scope.has_route {
        return Err(fault(at, "a value that needs no route, outside of filters"));
    }
    Ok(*attribute)
}

fn defined<'a>(scope: &mut Scope<'a>, at: &'a str, s: &'a str) -> Res<'a, Typed<'a>> {
    let (rest, _) = token("(")(s)?;
    let (rest, name) = symbol(rest)?;
    let attribute = attribute(scope, name.at, name.value)?;
    let (rest, _) = token(")")(rest)?;
    let typed = Typed {
        at,
        expression: Expression::Defined(attribute),
        value_type: ValueType::Bool,
    };
    Ok((rest, typed))
}

/// `roa_check(TABLE)`, `roa_check(TABLE, PREFIX, AS)`.
fn roa_check<'a>(scope: &mut Scope<'a>, at: &'a str, s: &'a str) -> Res<'a, Typed<'a>> {
    let (rest, _) = token("(")(s)?;
    let (rest, name) = symbol(rest)?;
    let Some(Named::Roa(table, _)) = scope.find(name.value) else {
        let what = "the name of a table that is defined above (\"roa4 table NAME;\")";
        return Err(fault(name.at, what));
    };
    let table = Arc::clone(table);
    let (rest, both) = match token(",")(rest) {
        Err(_) if !scope.has_route => {
            let what = "a prefix and an AS: outside of filters there is no route";
            return Err(fault(skip(rest), what));
        }
        Err(_) => (rest, None),
        Ok((rest, _)) => {
            let (rest, prefix) = term(scope, rest)?;
            let (rest, _) = token(",")(rest)?;
            let (rest, asn) = term(scope, rest)?;
            let both = [prefix.of(ValueType::Prefix)?, asn.of(ValueType::Int)?];
            (rest, Some(Box::new(both)))
        }
    };
    let (rest, _) = token(")")(rest)?;
    let state = enumeration_word("ROA_VALID").map(|word| word.value_type());
    let value_type = state.unwrap_or(ValueType::Unknown);
    Ok((
        rest,
        folded(at, Expression::Origin(table, both), value_type)?,
    ))
}

/// `prepend(PATH, N)`: methods as functions.
fn old_form<'a>(scope: &mut Scope<'a>, at: &'a str, name: &str, s: &'a str) -> Res<'a, Typed<'a>> {
    let (rest, _) = token("(")(s)?;
    let (rest, subject) = term(scope, rest)?;
    let (rest, _) = token(",")(rest)?;
    let (rest, argument) = term(scope, rest)?;
    let (rest, _) = token(")")(rest)?;
    let Some((method, _)) = types::method(name) else {
        return Err(fault(at, "a method"));
    };
    Ok((rest, method_of(method, subject, Some(argument))?))
}

/// Behind the name of a function.
fn call<'a>(
    scope: &mut Scope<'a>,
    at: &'a str,
    callable: &Callable,
    s: &'a str,
) -> Res<'a, Typed<'a>> {
    let (mut rest, _) = token("(")(s)?;
    let mut arguments = Vec::with_capacity(callable.parameters.len());
    for (index, wanted) in callable.parameters.iter().enumerate() {
        if index > 0 {
            (rest, _) = token(",")(rest)?;
        }
        let (after, argument) = term(scope, rest)?;
        arguments.push(argument.of(*wanted)?);
        rest = after;
    }
    let (rest, _) = token(")")(rest)?;
    let arguments = arguments.into_boxed_slice();
    let expression = match &callable.function {
        Some(function) => Expression::Call(Arc::clone(function), arguments),
        None => Expression::Recursion(arguments),
    };
    let typed = Typed {
        at,
        expression,
        value_type: callable.returns,
    };
    Ok((rest, typed))
}
