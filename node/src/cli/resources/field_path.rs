//! Paths to fields as kubectl's users write them: `.metadata.name`, `.spec.filters[0]`,
//! `.metadata.labels.kubernetes\.io/hostname`, `.items[?(@.spec.asNumber>64512)].metadata.name`.
//! That dialect is older than RFC 9535 and differs from it: names may hold `-` and escaped dots,
//! the `$` may be absent, a filter is in parentheses.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

/// A path that was checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FieldPath {
    /// From the whole document, also within a range.
    from_root: bool,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Fields of these names.
    Fields(Vec<String>),
    /// Every field, or every item of a list.
    Every,
    /// Fields of this name at any depth.
    Anywhere(String),
    Item(i64),
    Items(Option<i64>, Option<i64>),
    /// Items for which a condition holds.
    Where(Condition),
}

#[derive(Clone, Debug, PartialEq)]
struct Condition {
    left: Operand,
    /// Without one the left side has to be there.
    test: Option<(Test, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(FieldPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Test {
    Equal,
    Differs,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// Why a path or a template cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("character {at}: {reason}")]
pub(super) struct PathError {
    /// Which character, from 1 on.
    pub(super) at: usize,
    reason: String,
}

/// A text that is read from its beginning, one character after the other.
pub(super) struct Reader {
    characters: Vec<char>,
    at: usize,
}

impl Reader {
    pub(super) fn new(text: &str) -> Self {
        Self {
            characters: text.chars().collect(),
            at: 0,
        }
    }

    pub(super) fn error(&self, reason: impl fmt::Display) -> PathError {
        PathError {
            at: self.at + 1,
            reason: reason.to_string(),
        }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    /// Takes a text that comes next; false when another comes.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let length = text.chars().count();
        let comes = self.characters.iter().skip(self.at).take(length);
        let is_it = comes.copied().eq(text.chars());
        if is_it {
            self.at += length;
        }
        is_it
    }

    pub(super) fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<(), PathError> {
        if self.take(text) {
            return Ok(());
        }
        Err(match self.peek() {
            Some(seen) => self.error(format!("{text:?} is expected, and {seen:?} comes")),
            None => self.error(format!("{text:?} is expected, and the text ends")),
        })
    }

    /// A text in single or double quotes, with `\n`, `\t` and the like.
    pub(super) fn quoted(&mut self) -> Result<String, PathError> {
        let Some(quote @ ('\'' | '"')) = self.next() else {
            return Err(self.error("a text in quotes is expected"));
        };
        let mut text = String::new();
        loop {
            match self.next() {
                Some(c) if c == quote => return Ok(text),
                Some('\\') => text.push(match self.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some(other) => other,
                    None => return Err(self.error("the text ends within quotes")),
                }),
                Some(c) => text.push(c),
                None => return Err(self.error("the text ends within quotes")),
            }
        }
    }

    fn name(&mut self) -> Result<String, PathError> {
        let mut name = String::new();
        while let Some(c) = self.peek() {
            match c {
                '\\' => {
                    self.at += 1;
                    let escaped = self.next();
                    name.push(escaped.ok_or_else(|| self.error("the text ends after \\"))?);
                }
                '.' | '[' | ']' | '{' | '}' | '(' | ')' | '=' | '!' | '<' | '>' | ',' => break,
                c if c.is_whitespace() => break,
                c => {
                    self.at += 1;
                    name.push(c);
                }
            }
        }
        match name.is_empty() {
            true => Err(self.error("the name of a field is expected")),
            false => Ok(name),
        }
    }

    fn number(&mut self) -> Result<Option<i64>, PathError> {
        let from = self.at;
        self.take("-");
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == from {
            return Ok(None);
        }
        let text: String = self.characters[from..self.at].iter().collect();
        text.parse()
            .map(Some)
            .map_err(|_| self.error(format!("{text:?} is not a number")))
    }
}

impl FieldPath {
    /// A whole text as a path; the dot before the first name, and braces around it, may be absent.
    pub(super) fn parse(text: &str) -> Result<Self, PathError> {
        let mut reader = Reader::new(text);
        let in_braces = reader.take("{");
        let is_bare = |c: char| !matches!(c, '.' | '[' | '$' | '@');
        let path = match reader.peek() {
            Some(c) if is_bare(c) => {
                let first = Step::Fields(vec![reader.name()?]);
                let mut path = Self::read(&mut reader)?;
                path.steps.insert(0, first);
                path
            }
            _ => Self::read(&mut reader)?,
        };
        if in_braces {
            reader.expect("}")?;
        }
        match reader.peek() {
            None if path.steps.is_empty() && !text.contains(['$', '@', '.']) => {
                Err(reader.error("the name of a field is expected"))
            }
            None => Ok(path),
            Some(seen) => Err(reader.error(format!("{seen:?} is not expected"))),
        }
    }

    /// The path that comes next in a text.
    pub(super) fn read(reader: &mut Reader) -> Result<Self, PathError> {
        let from_root = reader.take("$");
        if !from_root {
            reader.take("@");
        }
        let mut steps = Vec::new();
        loop {
            if reader.take("..") {
                steps.push(Step::Anywhere(reader.name()?));
            } else if reader.take(".") {
                // A dot alone is the whole.
                let ends = |c: char| c.is_whitespace() || matches!(c, '}' | '[' | ')');
                match reader.peek() {
                    Some('*') => {
                        reader.next();
                        steps.push(Step::Every);
                    }
                    None if steps.is_empty() => {}
                    Some(c) if ends(c) && steps.is_empty() => {}
                    _ => steps.push(Step::Fields(vec![reader.name()?])),
                }
            } else if reader.take("[") {
                steps.push(Step::in_brackets(reader)?);
            } else {
                return Ok(Self { from_root, steps });
            }
        }
    }

    /// What a path leads to from the current value.
    pub(super) fn values<'a>(&self, root: &'a Value, current: &'a Value) -> Vec<&'a Value> {
        let from = if self.from_root { root } else { current };
        let mut found = vec![from];
        for step in &self.steps {
            let next = found.into_iter().flat_map(|value| step.select(root, value));
            found = next.collect();
        }
        found
    }
}

impl Step {
    /// After the opening bracket.
    fn in_brackets(reader: &mut Reader) -> Result<Self, PathError> {
        let step = if reader.take("*") {
            Self::Every
        } else if reader.take("?(") {
            let condition = Condition::read(reader)?;
            reader.expect(")")?;
            Self::Where(condition)
        } else if matches!(reader.peek(), Some('\'' | '"')) {
            let mut names = vec![reader.quoted()?];
            while reader.take(",") {
                reader.skip_spaces();
                names.push(reader.quoted()?);
            }
            Self::Fields(names)
        } else {
            let first = reader.number()?;
            match (first, reader.take(":")) {
                (first, true) => Self::Items(first, reader.number()?),
                (Some(item), false) => Self::Item(item),
                (None, false) => {
                    return Err(reader.error("a number, *, a name in quotes or ?(…) is expected"));
                }
            }
        };
        reader.expect("]")?;
        Ok(step)
    }

    fn select<'a>(&self, root: &'a Value, value: &'a Value) -> Vec<&'a Value> {
        let items = || value.as_array().map(Vec::as_slice).unwrap_or_default();
        match self {
            Self::Fields(names) => names.iter().filter_map(|name| value.get(name)).collect(),
            Self::Every => children(value),
            Self::Anywhere(name) => {
                let mut found = Vec::new();
                anywhere(value, name, &mut found);
                found
            }
            Self::Item(item) => position(*item, items().len())
                .and_then(|at| items().get(at))
                .into_iter()
                .collect(),
            Self::Items(from, to) => {
                let length = items().len();
                let bound = |given: Option<i64>, absent: usize| match given {
                    Some(given) => {
                        let beyond = if given < 0 { 0 } else { length };
                        position(given, length).unwrap_or(beyond)
                    }
                    None => absent,
                };
                let (from, to) = (bound(*from, 0), bound(*to, length));
                items().get(from..to).unwrap_or_default().iter().collect()
            }
            Self::Where(condition) => {
                let all = children(value).into_iter();
                all.filter(|item| condition.holds(root, item)).collect()
            }
        }
    }
}

/// A position in a list, from its end when it is negative.
fn position(given: i64, length: usize) -> Option<usize> {
    let at = match given < 0 {
        true => i64::try_from(length).ok()? + given,
        false => given,
    };
    usize::try_from(at).ok().filter(|at| *at <= length)
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn anywhere<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    found.extend(value.get(name));
    for child in children(value) {
        anywhere(child, name, found);
    }
}

impl Condition {
    fn read(reader: &mut Reader) -> Result<Self, PathError> {
        const TESTS: [(&str, Test); 6] = [
            ("==", Test::Equal),
            ("!=", Test::Differs),
            ("<=", Test::AtMost),
            (">=", Test::AtLeast),
            ("<", Test::Less),
            (">", Test::More),
        ];
        reader.skip_spaces();
        let left = Operand::read(reader)?;
        reader.skip_spaces();
        let test = TESTS.iter().find(|(word, _)| reader.take(word));
        let test = match test {
            Some((_, test)) => {
                reader.skip_spaces();
                Some((*test, Operand::read(reader)?))
            }
            None => None,
        };
        reader.skip_spaces();
        Ok(Self { left, test })
    }

    fn holds(&self, root: &Value, item: &Value) -> bool {
        let Some((test, right)) = &self.test else {
            return self.left.value(root, item).is_some();
        };
        let (left, right) = (self.left.value(root, item), right.value(root, item));
        let (Some(left), Some(right)) = (left, right) else {
            return false;
        };
        let order = order(left, right);
        match test {
            Test::Equal => order == Some(Ordering::Equal),
            Test::Differs => order != Some(Ordering::Equal),
            Test::Less => order == Some(Ordering::Less),
            Test::AtMost => order.is_some_and(Ordering::is_le),
            Test::More => order == Some(Ordering::Greater),
            Test::AtLeast => order.is_some_and(Ordering::is_ge),
        }
    }
}

fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64()?.partial_cmp(&right.as_f64()?),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        _ => (left == right).then_some(Ordering::Equal),
    }
}

impl Operand {
    fn read(reader: &mut Reader) -> Result<Self, PathError> {
        if matches!(reader.peek(), Some('@' | '$' | '.')) {
            return FieldPath::read(reader).map(Self::Path);
        }
        if matches!(reader.peek(), Some('\'' | '"')) {
            return Ok(Self::Literal(reader.quoted()?.into()));
        }
        for (word, value) in [
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("null", Value::Null),
        ] {
            if reader.take(word) {
                return Ok(Self::Literal(value));
            }
        }
        match reader.number()? {
            Some(number) => Ok(Self::Literal(number.into())),
            None => Err(reader.error("@.FIELD, a text in quotes or a number is expected")),
        }
    }

    fn value<'a>(&'a self, root: &'a Value, item: &'a Value) -> Option<&'a Value> {
        match self {
            Self::Path(path) => path.values(root, item).into_iter().next(),
            Self::Literal(value) => Some(value),
        }
    }
}

/// A value within a line: texts without quotes, everything else as JSON.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
