//! Steps, and what they stand in: blocks, functions, filters.

use std::sync::Arc;

use caracal_bgp::{
    AsPath, Attribute, Expression, Function, Method, Program, Step, StepAction, Value, ValueSet,
    ValueType,
};
use nom::Err;

use super::super::lexer::{Located, ParseFault, Res, one_of_words, skip, symbol, token};
use super::expression::{Typed, applied, attribute, fault, set, term};
use super::scope::{Callable, Named, STEP, Scope};
use super::types;

/// Words of types.
const TYPES: [(&str, ValueType); 14] = [
    ("bool", ValueType::Bool),
    ("int", ValueType::Int),
    ("string", ValueType::Text),
    ("ip", ValueType::Ip),
    ("prefix", ValueType::Prefix),
    ("pair", ValueType::Pair),
    ("quad", ValueType::Quad),
    ("ec", ValueType::Extended),
    ("lc", ValueType::Large),
    ("bgppath", ValueType::Path),
    ("bgpmask", ValueType::Mask),
    ("clist", ValueType::Communities),
    ("eclist", ValueType::ExtCommunities),
    ("lclist", ValueType::LargeCommunities),
];

/// The type whose word stands here, and the text behind it.
fn type_name(s: &str) -> Option<(&str, ValueType)> {
    let found = TYPES.iter().find_map(|(word, value_type)| {
        let (rest, _) = token(word)(s).ok()?;
        Some((rest, *value_type))
    });
    let (rest, own) = found?;
    let Ok((after, _)) = token("set")(rest) else {
        return Some((rest, own));
    };
    let of = match own {
        ValueType::Prefix => ValueType::PrefixSet,
        own => ValueType::Set(own.set_kind()?),
    };
    Some((after, of))
}

/// `NAME { STEP … }`, behind `filter`.
pub(in crate::grammar) fn named_filter<'a>(
    scope: &mut Scope<'a>,
    s: &'a str,
) -> Res<'a, (Located<'a, &'a str>, Program)> {
    let (rest, name) = symbol(s)?;
    let (rest, program) = filter(scope, name.value, rest)?;
    scope.define(name, Named::Filter).map_err(Err::Failure)?;
    Ok((rest, (name, program)))
}

/// `{ STEP … }`.
pub(in crate::grammar) fn filter<'a>(
    scope: &mut Scope<'a>,
    name: &str,
    s: &'a str,
) -> Res<'a, Program> {
    scope.begin(false);
    let (rest, body) = body(scope, s)?;
    Ok((rest, Program::new(name, scope.end(), body)))
}

/// `{ STEP … }` of a route: it is there with what the steps make of it, unless one rejects it.
pub(in crate::grammar) fn attributes<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Program> {
    scope.begin(false);
    let place = scope.place(skip(s));
    let (rest, mut body) = body(scope, s)?;
    let action = StepAction::Accept;
    body.push(Step { place, action });
    Ok((rest, Program::new("of a static route", scope.end(), body)))
}

/// An expression behind `where`: accept if it is true, else reject.
pub(in crate::grammar) fn where_filter<'a>(
    scope: &mut Scope<'a>,
    name: &str,
    s: &'a str,
) -> Res<'a, Program> {
    scope.begin(false);
    let place = scope.place(skip(s));
    let (rest, condition) = term(scope, s)?;
    let condition = condition.of(ValueType::Bool)?;
    let end = |action| {
        vec![Step {
            place: place.clone(),
            action,
        }]
    };
    let action = StepAction::If(condition, end(StepAction::Accept), end(StepAction::Reject));
    let body = end(action);
    Ok((rest, Program::new(name, scope.end(), body)))
}

/// `NAME(TYPE A; TYPE B) [-> TYPE] { STEP … }`, behind `function`.
pub(in crate::grammar) fn function<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, ()> {
    let (rest, name) = symbol(s)?;
    let (mut rest, _) = token("(")(rest)?;
    scope.begin(true);
    let mut parameters = Vec::new();
    while token(")")(rest).is_err() {
        if !parameters.is_empty() {
            (rest, _) = one_of_words(&[";", ",", ")"], rest)?;
        }
        let Some((after, value_type)) = type_name(rest) else {
            return Err(fault(skip(rest), "\")\" or the type of an argument"));
        };
        let (after, argument) = symbol(after)?;
        scope.declare(argument, value_type).map_err(Err::Failure)?;
        parameters.push(value_type);
        rest = after;
    }
    let (mut rest, _) = token(")")(rest)?;
    let mut declared = None;
    if let Ok((after, _)) = token("->")(rest) {
        let Some((after, value_type)) = type_name(after) else {
            return Err(fault(skip(after), "the type of what the function returns"));
        };
        (rest, declared) = (after, Some(value_type));
    }
    let mut callable = Callable {
        parameters,
        returns: declared.unwrap_or(ValueType::Unknown),
        function: None,
        is_terms: false,
    };
    let named = Named::Function(callable.clone());
    scope.define(name, named).map_err(Err::Failure)?;
    scope.returns = declared;
    let (rest, body) = body(scope, rest)?;
    callable.returns = scope.returns.unwrap_or(ValueType::Void);
    callable.function = Some(Arc::new(Function {
        name: name.value.to_owned(),
        locals: scope.end(),
        body,
    }));
    scope.complete(name.value, callable);
    Ok((rest, ()))
}

/// Variables as old files declare them, and a block.
fn body<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Vec<Step>> {
    let mut rest = s;
    while let Some((after, value_type)) = type_name(rest) {
        let (after, name) = symbol(after)?;
        let (after, _) = token(";")(after)?;
        scope.declare(name, value_type).map_err(Err::Failure)?;
        rest = after;
    }
    block(scope, rest)
}

fn block<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Vec<Step>> {
    let (mut rest, _) = token("{")(s)?;
    let variables = scope.enter();
    let mut steps = Vec::new();
    loop {
        if let Ok((after, _)) = token("}")(rest) {
            scope.leave(variables);
            return Ok((after, steps));
        }
        (rest, _) = step(scope, rest, &mut steps)?;
    }
}

/// What stands behind `then`, `else` and `do`.
fn branch<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Vec<Step>> {
    if skip(s).starts_with('{') {
        return block(scope, s);
    }
    let mut steps = Vec::new();
    let (rest, ()) = step(scope, s, &mut steps)?;
    Ok((rest, steps))
}

fn step<'a>(scope: &mut Scope<'a>, s: &'a str, steps: &mut Vec<Step>) -> Res<'a, ()> {
    scope.deeper(STEP, s, |scope, s| one_step(scope, s, steps))
}

fn one_step<'a>(scope: &mut Scope<'a>, s: &'a str, steps: &mut Vec<Step>) -> Res<'a, ()> {
    const WORDS: [&str; 10] = [
        "if", "case", "for", "accept", "reject", "return", "printn", "print", "unset", "{",
    ];
    let at = skip(s);
    let place = scope.place(at);
    if let Some((rest, value_type)) = type_name(at) {
        let (rest, action) = declaration(scope, value_type, rest)?;
        steps.push(Step { place, action });
        return Ok((rest, ()));
    }
    let Ok((rest, word)) = one_of_words(&WORDS, at) else {
        let (rest, action) = change(scope, at)?;
        steps.push(Step { place, action });
        return Ok((rest, ()));
    };
    let (rest, action) = match word {
        "if" => condition(scope, rest)?,
        "case" => case(scope, rest)?,
        "for" => each(scope, rest)?,
        "return" => result(scope, at, rest)?,
        "unset" => unset(scope, rest)?,
        "{" => {
            let (rest, inner) = block(scope, at)?;
            steps.extend(inner);
            return Ok((rest, ()));
        }
        word => {
            let (rest, values) = values(scope, rest)?;
            let prints = word.starts_with("print");
            if prints && values.is_empty() {
                return Err(fault(skip(rest), "what is to be printed"));
            }
            if !values.is_empty() {
                steps.push(Step {
                    place: place.clone(),
                    action: StepAction::Print(values),
                });
            }
            let action = match word {
                "accept" => StepAction::Accept,
                "reject" => StepAction::Reject,
                _ => return Ok((rest, ())),
            };
            (rest, action)
        }
    };
    steps.push(Step { place, action });
    Ok((rest, ()))
}

/// `E, E …;` or `;`.
fn values<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Vec<Expression>> {
    let mut values = Vec::new();
    if let Ok((rest, _)) = token(";")(s) {
        return Ok((rest, values));
    }
    let mut rest = s;
    loop {
        let (after, value) = term(scope, rest)?;
        values.push(value.expression);
        let (after, word) = one_of_words(&[",", ";"], after)?;
        rest = after;
        if word == ";" {
            return Ok((rest, values));
        }
    }
}

/// `NAME;`, `NAME = E;`, behind the type.
fn declaration<'a>(
    scope: &mut Scope<'a>,
    value_type: ValueType,
    s: &'a str,
) -> Res<'a, StepAction> {
    let (rest, name) = symbol(s)?;
    let (rest, word) = one_of_words(&[";", "="], rest)?;
    let (rest, value) = match word {
        "=" => {
            let (rest, value) = term(scope, rest)?;
            let (rest, _) = token(";")(rest)?;
            (rest, value.of(value_type)?)
        }
        _ => (rest, Expression::Constant(Value::Void)),
    };
    let variable = scope.declare(name, value_type).map_err(Err::Failure)?;
    Ok((rest, StepAction::Assign(variable.slot, value)))
}

fn condition<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, StepAction> {
    let (rest, condition) = term(scope, s)?;
    let condition = condition.of(ValueType::Bool)?;
    let (rest, _) = token("then")(rest)?;
    let (rest, yes) = branch(scope, rest)?;
    let (rest, no) = match token("else")(rest) {
        // The `else` of a `case` has a colon.
        Ok((after, _)) if !skip(after).starts_with(':') => branch(scope, after)?,
        _ => (rest, Vec::new()),
    };
    Ok((rest, StepAction::If(condition, yes, no)))
}

fn case<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, StepAction> {
    let (rest, subject) = term(scope, s)?;
    let kind = subject.value_type.set_kind();
    if kind.is_none() && subject.value_type != ValueType::Unknown {
        let what = format!(
            "a number, pair, address or word (this is {})",
            subject.value_type.what()
        );
        return Err(fault(subject.at, what));
    }
    let (mut rest, _) = token("{")(rest)?;
    let mut branches: Vec<(Option<ValueSet>, Vec<Step>)> = Vec::new();
    loop {
        if let Ok((after, _)) = token("}")(rest) {
            return Ok((after, StepAction::Case(subject.expression, branches)));
        }
        if let Ok((after, _)) = token("else")(rest) {
            let (after, _) = token(":")(after)?;
            branches.push((None, Vec::new()));
            rest = after;
            continue;
        }
        let at = skip(rest);
        match (set(scope, rest, ":"), branches.last_mut()) {
            (Ok((after, set)), _) => {
                let own = Value::Set(Arc::new(set.clone())).value_type();
                if kind.is_some_and(|kind| own != ValueType::Set(kind)) {
                    let what = format!("values of the type of the case (these are {})", own.what());
                    return Err(fault(at, what));
                }
                branches.push((Some(set), Vec::new()));
                rest = after;
            }
            (Err(error), None) => return Err(error),
            (Err(_), Some((_, steps))) => (rest, _) = step(scope, rest, steps)?,
        }
    }
}

/// `TYPE NAME in LIST do STEP`, behind `for`.
fn each<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, StepAction> {
    let (rest, declared) = match type_name(s) {
        Some((rest, value_type)) => (rest, Some(value_type)),
        None => (s, None),
    };
    let (rest, name) = symbol(rest)?;
    let (rest, _) = token("in")(rest)?;
    let (rest, list) = term(scope, rest)?;
    let Some(element) = types::element(list.value_type) else {
        let what = format!("a path or a list (this is {})", list.value_type.what());
        return Err(fault(list.at, what));
    };
    if declared.is_some_and(|declared| !element.fits(declared)) {
        return Err(fault(name.at, format!("a variable for {}", element.what())));
    }
    let (rest, _) = token("do")(rest)?;
    let variables = scope.enter();
    let variable = scope
        .declare(name, declared.unwrap_or(element))
        .map_err(Err::Failure)?;
    let (rest, body) = branch(scope, rest)?;
    scope.leave(variables);
    Ok((rest, StepAction::For(variable.slot, list.expression, body)))
}

fn result<'a>(scope: &mut Scope<'a>, at: &'a str, s: &'a str) -> Res<'a, StepAction> {
    if !scope.in_function {
        return Err(fault(at, "\"accept\" or \"reject\": only functions return"));
    }
    let (rest, value) = term(scope, s)?;
    let (rest, _) = token(";")(rest)?;
    let value = match scope.returns {
        None | Some(ValueType::Unknown) => {
            scope.returns = Some(value.value_type);
            value.expression
        }
        Some(known) => value.of(known)?,
    };
    Ok((rest, StepAction::Return(value)))
}

fn unset<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, StepAction> {
    let (rest, _) = token("(")(s)?;
    let (rest, name) = symbol(rest)?;
    let found = attribute(scope, name.at, name.value)?;
    let stays = matches!(
        found,
        Attribute::Path | Attribute::Origin | Attribute::NextHop
    );
    if stays || !(found.is_writable() || found.is_opaque()) {
        return Err(fault(name.at, "an attribute that can be taken away"));
    }
    let (rest, _) = token(")")(rest)?;
    let (rest, _) = token(";")(rest)?;
    Ok((rest, StepAction::Unset(found)))
}

/// What a step changes.
#[derive(Clone, Copy)]
enum Target {
    Variable(u16),
    Attribute(Attribute),
}

/// `NAME = E;`, `NAME.METHOD(E);`, `NAME.empty;`, a call.
fn change<'a>(scope: &mut Scope<'a>, at: &'a str) -> Res<'a, StepAction> {
    let Ok((rest, name)) = symbol(at) else {
        return Err(fault(at, "a step or \"}\""));
    };
    if let Some(Named::Function(_)) = scope.find(name.value)
        && scope.variable(name.value).is_none()
    {
        let (rest, call) = term(scope, at)?;
        let (rest, _) = token(";")(rest)?;
        return Ok((rest, StepAction::Call(call.expression)));
    }
    let (rest, word) = one_of_words(&["=", "."], rest).map_err(|_| unknown(scope, name))?;
    let (target, current) = target(scope, name)?;
    let changed = |value: Expression| match target {
        Target::Variable(slot) => StepAction::Assign(slot, value),
        Target::Attribute(attribute) => StepAction::Set(attribute, value),
    };
    let wanted = current.value_type;
    if word == "=" {
        let (rest, value) = term(scope, rest)?;
        let (rest, _) = token(";")(rest)?;
        return Ok((rest, changed(value.of(wanted)?)));
    }
    let (rest, method) = symbol(rest)?;
    if method.value == "empty" {
        let (rest, _) = token(";")(rest)?;
        let empty = match wanted {
            ValueType::Path => Value::Path(Arc::new(AsPath::default())),
            ValueType::Communities => Value::Communities(Arc::from([])),
            ValueType::ExtCommunities => Value::ExtCommunities(Arc::from([])),
            ValueType::LargeCommunities => Value::LargeCommunities(Arc::from([])),
            _ => return Err(fault(method.at, "a method of this type")),
        };
        return Ok((rest, changed(Expression::Constant(empty))));
    }
    match types::method(method.value) {
        Some((
            known @ (Method::Prepend | Method::Add | Method::Delete | Method::Filter),
            takes,
        )) => {
            let (rest, value) = applied(scope, known, takes, current, rest)?;
            let (rest, _) = token(";")(rest)?;
            Ok((rest, changed(value.of(wanted)?)))
        }
        _ => {
            let what = "\"add\", \"delete\", \"filter\", \"prepend\" or \"empty\"";
            Err(fault(method.at, what))
        }
    }
}

/// The error for a step that begins with a name.
fn unknown<'a>(scope: &Scope<'a>, name: Located<'a, &'a str>) -> Err<ParseFault<'a>> {
    match scope.variable(name.value) {
        Some(_) => fault(name.at, "a step: \"=\" or a method behind the name"),
        None => match attribute(scope, name.at, name.value) {
            Ok(_) => fault(name.at, "a step: \"=\" or a method behind the name"),
            Err(error) => error,
        },
    }
}

/// Why a filter cannot set an attribute.
const fn why_not(attribute: Attribute) -> &'static str {
    match attribute {
        Attribute::Preference => {
            "routes of peers are compared by \"bgp_local_pref\", and those of ours come before them"
        }
        Attribute::Gateway | Attribute::Interface | Attribute::Destination => {
            "packets go where the next hop of the route leads"
        }
        Attribute::IgpMetric => "the way to a next hop has the metric of the kernel's route",
        Attribute::ClusterList | Attribute::OriginatorId => {
            "it says where in the AS the route has been, and loops are found by it"
        }
        Attribute::AtomicAggregate | Attribute::Aggregator | Attribute::AccumulatedMetric => {
            "its value is none of the language; \"unset\" takes it away"
        }
        Attribute::Scope => "nothing here depends on it",
        _ => "it says where the route comes from",
    }
}

/// The variable or attribute of the name, and its value.
fn target<'a>(
    scope: &Scope<'a>,
    name: Located<'a, &'a str>,
) -> Result<(Target, Typed<'a>), Err<ParseFault<'a>>> {
    let at = name.at;
    if let Some(variable) = scope.variable(name.value) {
        let current = Typed {
            at,
            expression: Expression::Variable(variable.slot),
            value_type: variable.value_type,
        };
        return Ok((Target::Variable(variable.slot), current));
    }
    if let Some(Named::Constant(_)) = scope.find(name.value) {
        return Err(fault(at, "a variable or an attribute; this is a constant"));
    }
    let found = attribute(scope, at, name.value)?;
    if !found.is_writable() {
        let what = format!("an attribute that a filter may set ({})", why_not(found));
        return Err(fault(at, what));
    }
    let current = Typed {
        at,
        expression: Expression::Attribute(found),
        value_type: found.value_type(),
    };
    Ok((Target::Attribute(found), current))
}
