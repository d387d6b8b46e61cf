//! A program in BIRD's words, as it was understood: constants stand where their names stood,
//! variables are numbered, and of a long set the beginning is shown.

use std::cell::RefCell;
use std::fmt::{self, Formatter, Write as _};
use std::sync::Arc;

use super::tree::{
    Attribute, Expression, Function, MaskPart, Method, Operator, Step, StepAction, any_in,
};
use super::value::{ENUMERATIONS, Value};
use super::{Program, ValueSet};
use crate::types::ExtKind;

/// Characters of a constant that are shown, about.
const SHOWN: usize = 100;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        steps(f, &self.body, 1)?;
        for function in functions(&self.body) {
            writeln!(f, "  function {} {{", function.name)?;
            steps(f, &function.body, 2)?;
            writeln!(f, "  }}")?;
        }
        Ok(())
    }
}

/// The functions that steps call, and those that these call, each once.
fn functions(body: &[Step]) -> Vec<Arc<Function>> {
    let found: RefCell<Vec<Arc<Function>>> = RefCell::default();
    let note = |expression: &Expression| {
        if let Expression::Call(function, _) = expression {
            let mut found = found.borrow_mut();
            if found.iter().all(|known| !Arc::ptr_eq(known, function)) {
                found.push(function.clone());
            }
        }
        false
    };
    any_in(body, &note);
    let mut looked = 0;
    loop {
        let next = found.borrow().get(looked).cloned();
        let Some(function) = next else { break };
        any_in(&function.body, &note);
        looked += 1;
    }
    found.into_inner()
}

fn steps(f: &mut Formatter<'_>, body: &[Step], depth: usize) -> fmt::Result {
    body.iter().try_for_each(|one| step(f, one, depth))
}

fn step(f: &mut Formatter<'_>, step: &Step, depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    f.write_str(&indent)?;
    match &step.action {
        StepAction::If(condition, yes, no) => {
            writeln!(f, "if {condition} then {{")?;
            steps(f, yes, depth + 1)?;
            if !no.is_empty() {
                writeln!(f, "{indent}}} else {{")?;
                steps(f, no, depth + 1)?;
            }
            writeln!(f, "{indent}}}")
        }
        StepAction::Case(subject, branches) => {
            writeln!(f, "case {subject} {{")?;
            for (set, branch) in branches {
                match set {
                    Some(set) => writeln!(f, "{indent}  {}:", shortened(&set.to_string()))?,
                    None => writeln!(f, "{indent}  else:")?,
                }
                steps(f, branch, depth + 2)?;
            }
            writeln!(f, "{indent}}}")
        }
        StepAction::For(variable, subject, body) => {
            writeln!(f, "for v{variable} in {subject} do {{")?;
            steps(f, body, depth + 1)?;
            writeln!(f, "{indent}}}")
        }
        StepAction::Assign(variable, value) => writeln!(f, "v{variable} = {value};"),
        StepAction::Set(attribute, value) => writeln!(f, "{} = {value};", attribute.word()),
        StepAction::Unset(attribute) => writeln!(f, "unset({});", attribute.word()),
        StepAction::Call(call) => writeln!(f, "{call};"),
        StepAction::Accept => writeln!(f, "accept;"),
        StepAction::Reject => writeln!(f, "reject;"),
        StepAction::Return(value) => writeln!(f, "return {value};"),
        StepAction::Print(values) => writeln!(f, "print {};", list(values, ", ")),
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(value) => constant(f, value),
            Self::Variable(place) => write!(f, "v{place}"),
            Self::Attribute(attribute) => f.write_str(attribute.word()),
            Self::Defined(attribute) => write!(f, "defined({})", attribute.word()),
            Self::Not(inner) => write!(f, "! {inner}"),
            Self::And(all) => write!(f, "({})", list(all, " && ")),
            Self::Or(all) => write!(f, "({})", list(all, " || ")),
            Self::Binary(operator, both) => {
                let [left, right] = &**both;
                write!(f, "({left} {} {right})", operator.word())
            }
            Self::Method(method, subject, None) => write!(f, "{subject}.{}", method.word()),
            Self::Method(method, subject, Some(argument)) => {
                write!(f, "{subject}.{}({argument})", method.word())
            }
            Self::Pair(both) => write!(f, "({})", list(&**both, ", ")),
            Self::Large(all) => write!(f, "({})", list(&**all, ", ")),
            Self::Extended(kind, both) => {
                let kind = kind.map_or("generic", ExtKind::as_str);
                write!(f, "({kind}, {})", list(&**both, ", "))
            }
            Self::Mask(parts) => mask(f, parts),
            Self::Call(function, arguments) => {
                write!(f, "{}({})", function.name, list(arguments, ", "))
            }
            Self::Recursion(arguments) => write!(f, "itself({})", list(arguments, ", ")),
            Self::Origin(_, None) => f.write_str("roa_check(…)"),
            Self::Origin(_, Some(both)) => write!(f, "roa_check(…, {})", list(&**both, ", ")),
        }
    }
}

fn list(all: &[Expression], between: &str) -> String {
    let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
    texts.join(between)
}

fn mask(f: &mut Formatter<'_>, parts: &[MaskPart]) -> fmt::Result {
    f.write_str("[= ")?;
    for part in parts {
        match part {
            MaskPart::Any => f.write_str("* "),
            MaskPart::One => f.write_str("? "),
            MaskPart::More => f.write_str("+ "),
            MaskPart::Value(value) => write!(f, "{value} "),
            MaskPart::Range(low, high) => write!(f, "{low}..{high} "),
        }?;
    }
    f.write_str("=]")
}

fn constant(f: &mut Formatter<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Bool(on) => f.write_str(if *on { "true" } else { "false" }),
        Value::Text(text) => write!(f, "{text:?}"),
        Value::Enum(place, number) => {
            let words = ENUMERATIONS.get(usize::from(*place)).map(|all| all.words);
            let mut words = words.unwrap_or_default().iter();
            match words.find(|(_, known)| known == number) {
                Some((word, _)) => f.write_str(word),
                None => write!(f, "{value}"),
            }
        }
        Value::Set(set) => f.write_str(&shortened(&ValueSet::to_string(set))),
        other => f.write_str(&shortened(&other.to_string())),
    }
}

/// The beginning of a long list, and how many elements it has.
fn shortened(text: &str) -> String {
    if text.len() <= SHOWN {
        return text.to_owned();
    }
    let mut depth = 0u32;
    let (mut elements, mut end) = (1usize, 0usize);
    for (place, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 1 => {
                elements += 1;
                if place <= SHOWN {
                    end = place;
                }
            }
            _ => {}
        }
    }
    let mut short = text.get(..end).unwrap_or_default().to_owned();
    let _ = write!(short, ", … {elements} in all]");
    short
}

impl Attribute {
    /// Its name in the language.
    #[must_use]
    pub fn word(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(_, known)| *known == self)
            .map_or("", |(word, _)| word)
    }
}

impl Operator {
    const fn word(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Match => "~",
            Self::NotMatch => "!~",
        }
    }
}

impl Method {
    const fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
            Self::LastNonaggregated => "last_nonaggregated",
            Self::Len => "len",
            Self::Prepend => "prepend",
            Self::Add => "add",
            Self::Delete => "delete",
            Self::Filter => "filter",
            Self::Min => "min",
            Self::Max => "max",
            Self::Mask => "mask",
            Self::IsV4 => "is_v4",
            Self::Ip => "ip",
            Self::Type => "type",
            Self::Asn => "asn",
            Self::Data => "data",
            Self::Data2 => "data2",
        }
    }
}
