//! A reader of filters in the language of BIRD 1.6, as far as the set `calico` uses it, that says
//! what becomes of a route.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_bgp::PrefixPattern;
use caracal_model::{Family, Prefix};

/// A route as BIRD's filters see it.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) net: Prefix,
    /// `RTS_BGP`, `RTS_STATIC`, …
    pub(super) source: &'static str,
    pub(super) ifname: Option<&'static str>,
    pub(super) path: Vec<u32>,
    /// Attributes that are numbers; what is not there is not defined.
    pub(super) numbers: BTreeMap<String, u32>,
    /// Communities of two and of three parts.
    pub(super) communities: BTreeSet<Vec<u32>>,
}

/// Functions, and the filters of sessions.
#[derive(Debug, Default)]
pub(super) struct Daemon {
    functions: BTreeMap<String, (Option<String>, Vec<Statement>)>,
    /// By name of the session: import and export.
    sessions: BTreeMap<String, [Vec<Statement>; 2]>,
    /// Ranges of static routes that lead nowhere.
    pub(super) blackholes: BTreeSet<Prefix>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(&'static str),
}

#[derive(Clone, Debug)]
enum Statement {
    If(Expression, Vec<Self>, Vec<Self>),
    Verdict(bool),
    Set(String, Expression),
    /// A method of an attribute, or a function.
    Call(String, Vec<Expression>),
}

#[derive(Clone, Debug)]
enum Expression {
    Word(String),
    Text(String),
    Not(Box<Self>),
    Two(&'static str, Box<Self>, Box<Self>),
    Tuple(Vec<Self>),
    Patterns(Vec<PrefixPattern>),
    Words(Vec<String>),
    /// `*` is `None`.
    Path(Vec<Option<u32>>),
    Defined(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Bool(bool),
    Number(u32),
    Net(Prefix),
    Text(String),
    Tuple(Vec<u32>),
    Undefined,
}

const SIGNS: [&str; 20] = [
    "&&", "||", "!=", "!~", "<=", ">=", "[=", "=]", "<", ">", "=", "~", "!", "(", ")", "{", "}",
    "[", "]", ",",
];

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut rest = line.split('#').next().unwrap().trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_ascii_alphanumeric() || "_.:/*".contains(c);
            let (token, after) = if first == '"' || first == '\'' {
                let (inside, after) = rest[1..].split_once(first).unwrap();
                let token = match first {
                    '"' => Token::Text(inside.to_owned()),
                    _ => Token::Word(inside.to_owned()),
                };
                (token, after)
            } else if is_word(first) {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                (Token::Word(rest[..end].to_owned()), &rest[end..])
            } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                (Token::Sign(sign), &rest[sign.len()..])
            } else {
                let sign = match first {
                    ';' => ";",
                    '-' => "-",
                    '+' => "+",
                    _ => panic!("{first:?} in {line:?}"),
                };
                (Token::Sign(sign), &rest[1..])
            };
            found.push(token);
            rest = after.trim_start();
        }
    }
    found
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

impl Reader {
    fn next(&mut self) -> Token {
        self.at += 1;
        self.tokens[self.at - 1].clone()
    }

    fn is(&self, text: &str) -> bool {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => word == text,
            Some(Token::Sign(sign)) => *sign == text,
            _ => false,
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let is = self.is(text);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, text: &str) {
        let near = &self.tokens[self.at.saturating_sub(8)..=self.at];
        assert!(self.is(text), "{text:?} is not at the end of {near:?}");
        self.at += 1;
    }

    fn word(&mut self) -> String {
        match self.next() {
            Token::Word(word) => word,
            other => panic!("{other:?} is no word"),
        }
    }

    fn daemon(mut self) -> Daemon {
        let mut daemon = Daemon::default();
        while self.at < self.tokens.len() {
            let Token::Word(word) = self.next() else {
                continue;
            };
            match word.as_str() {
                "function" => {
                    let name = self.word();
                    self.expect("(");
                    let parameter = self.take("bool").then(|| self.word());
                    self.expect(")");
                    let body = self.block();
                    daemon.functions.insert(name, (parameter, body));
                }
                "route" => {
                    let net = self.word().parse().unwrap();
                    if self.take("blackhole") {
                        daemon.blackholes.insert(net);
                    }
                }
                "protocol" if self.take("bgp") => {
                    let name = self.word();
                    let import = self.filter("import");
                    let export = self.filter("export");
                    daemon.sessions.insert(name, [import, export]);
                }
                _ => {}
            }
        }
        daemon
    }

    /// The next `import filter { … }`.
    fn filter(&mut self, direction: &str) -> Vec<Statement> {
        while !self.is(direction) {
            self.at += 1;
        }
        self.at += 1;
        self.expect("filter");
        self.block()
    }

    fn block(&mut self) -> Vec<Statement> {
        self.expect("{");
        let mut statements = Vec::new();
        while !self.take("}") {
            statements.push(self.statement());
        }
        statements
    }

    fn branch(&mut self) -> Vec<Statement> {
        match self.is("{") {
            true => self.block(),
            false => vec![self.statement()],
        }
    }

    fn statement(&mut self) -> Statement {
        let word = self.word();
        let statement = match word.as_str() {
            "if" => {
                let condition = self.expression();
                self.expect("then");
                let then = self.branch();
                let otherwise = match self.take("else") {
                    true => self.branch(),
                    false => Vec::new(),
                };
                return Statement::If(condition, then, otherwise);
            }
            "accept" => Statement::Verdict(true),
            "reject" => Statement::Verdict(false),
            name if self.take("=") => Statement::Set(name.to_owned(), self.expression()),
            name => {
                self.expect("(");
                let mut arguments = Vec::new();
                while !self.take(")") {
                    arguments.push(self.expression());
                    self.take(",");
                }
                Statement::Call(name.to_owned(), arguments)
            }
        };
        self.expect(";");
        statement
    }

    /// Both logical operators bind alike, from left to right.
    fn expression(&mut self) -> Expression {
        let mut left = self.comparison();
        loop {
            let sign = match (self.take("&&"), self.is("||")) {
                (true, _) => "&&",
                (false, true) => {
                    self.at += 1;
                    "||"
                }
                (false, false) => return left,
            };
            left = Expression::Two(sign, Box::new(left), Box::new(self.comparison()));
        }
    }

    fn comparison(&mut self) -> Expression {
        let left = self.difference();
        for sign in ["=", "!=", "~", "!~", "<", ">"] {
            if self.take(sign) {
                return Expression::Two(sign, Box::new(left), Box::new(self.difference()));
            }
        }
        left
    }

    fn difference(&mut self) -> Expression {
        let left = self.one();
        match self.take("-") {
            true => Expression::Two("-", Box::new(left), Box::new(self.one())),
            false => left,
        }
    }

    fn one(&mut self) -> Expression {
        match self.next() {
            Token::Text(text) => Expression::Text(text),
            Token::Sign("!") => Expression::Not(Box::new(self.one())),
            Token::Sign("(") => {
                let mut parts = vec![self.expression()];
                while self.take(",") {
                    parts.push(self.expression());
                }
                self.expect(")");
                match parts.len() {
                    1 => parts.remove(0),
                    _ => Expression::Tuple(parts),
                }
            }
            Token::Sign("[=") => {
                let mut mask = Vec::new();
                while !self.take("=]") {
                    let word = self.word();
                    mask.push((word != "*").then(|| word.parse().unwrap()));
                }
                Expression::Path(mask)
            }
            Token::Sign("[") => self.set(),
            Token::Word(word) if word == "defined" => {
                self.expect("(");
                let name = self.word();
                self.expect(")");
                Expression::Defined(name)
            }
            Token::Word(word) => Expression::Word(word),
            other => panic!("{other:?} begins no expression"),
        }
    }

    fn set(&mut self) -> Expression {
        let (mut patterns, mut words) = (Vec::new(), Vec::new());
        while !self.take("]") {
            let word = self.word();
            match word.parse::<Prefix>() {
                Err(_) => words.push(word),
                Ok(prefix) => {
                    let mut pattern = PrefixPattern::exact(prefix);
                    if self.take("{") {
                        pattern.min = self.word().parse().unwrap();
                        self.expect(",");
                        pattern.max = self.word().parse().unwrap();
                        self.expect("}");
                    }
                    patterns.push(pattern);
                }
            }
            self.take(",");
        }
        match words.is_empty() {
            true => Expression::Patterns(patterns),
            false => Expression::Words(words),
        }
    }
}

/// `*` and `?` in BIRD's patterns.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|at| fits(rest, &text[at..])),
        ([b'?', rest @ ..], [_, text @ ..]) => fits(rest, text),
        ([one, rest @ ..], [other, text @ ..]) => one == other && fits(rest, text),
        _ => false,
    }
}

fn path_fits(mask: &[Option<u32>], path: &[u32]) -> bool {
    match (mask, path) {
        ([], []) => true,
        ([None, rest @ ..], _) => (0..=path.len()).any(|at| path_fits(rest, &path[at..])),
        ([Some(one), rest @ ..], [other, path @ ..]) => one == other && path_fits(rest, path),
        _ => false,
    }
}

impl Daemon {
    /// Reads the three files of a daemon.
    pub(super) fn read(text: &str) -> Self {
        let (tokens, at) = (tokens(text), 0);
        Reader { tokens, at }.daemon()
    }

    pub(super) fn imports(&self, session: &str, route: &mut Route) -> bool {
        self.verdict(&self.sessions[session][0], route)
    }

    pub(super) fn exports(&self, session: &str, route: &mut Route) -> bool {
        self.verdict(&self.sessions[session][1], route)
    }

    fn verdict(&self, filter: &[Statement], route: &mut Route) -> bool {
        let said = self.run(filter, &BTreeMap::new(), route);
        said.expect("the filter has a verdict")
    }

    fn run(
        &self,
        statements: &[Statement],
        local: &BTreeMap<String, bool>,
        route: &mut Route,
    ) -> Option<bool> {
        for statement in statements {
            let verdict = match statement {
                Statement::Verdict(verdict) => Some(*verdict),
                Statement::If(condition, then, otherwise) => {
                    let branch = match truth(condition, local, route) {
                        true => then,
                        false => otherwise,
                    };
                    self.run(branch, local, route)
                }
                Statement::Set(name, value) => {
                    let Value::Number(value) = value_of(value, local, route) else {
                        panic!("{statement:?}");
                    };
                    route.numbers.insert(name.clone(), value);
                    None
                }
                Statement::Call(name, arguments) => self.call(name, arguments, local, route),
            };
            if verdict.is_some() {
                return verdict;
            }
        }
        None
    }

    fn call(
        &self,
        name: &str,
        arguments: &[Expression],
        local: &BTreeMap<String, bool>,
        route: &mut Route,
    ) -> Option<bool> {
        let mut values = arguments.iter().map(|e| value_of(e, local, route));
        match name {
            "bgp_community.add" | "bgp_large_community.add" => {
                let Some(Value::Tuple(parts)) = values.next() else {
                    panic!("{name} {arguments:?}");
                };
                route.communities.insert(parts);
                None
            }
            "bgp_path.prepend" => {
                let Some(Value::Number(asn)) = values.next() else {
                    panic!("{name} {arguments:?}");
                };
                route.path.insert(0, asn);
                None
            }
            _ => {
                let (parameter, body) = &self.functions[name];
                let given = values.next();
                let local = match (parameter, given) {
                    (Some(name), Some(Value::Bool(value))) => [(name.clone(), value)].into(),
                    (None, None) => BTreeMap::new(),
                    other => panic!("{name}: {other:?}"),
                };
                self.run(body, &local, route)
            }
        }
    }
}

fn truth(expression: &Expression, local: &BTreeMap<String, bool>, route: &Route) -> bool {
    match value_of(expression, local, route) {
        Value::Bool(value) => value,
        other => panic!("{expression:?} is {other:?}"),
    }
}

fn value_of(expression: &Expression, local: &BTreeMap<String, bool>, route: &Route) -> Value {
    let number = |expression: &Expression| match value_of(expression, local, route) {
        Value::Number(number) => number,
        other => panic!("{expression:?} is {other:?}"),
    };
    match expression {
        Expression::Text(text) => Value::Text(text.clone()),
        Expression::Defined(name) => {
            let value = value_of(&Expression::Word(name.clone()), local, route);
            Value::Bool(value != Value::Undefined)
        }
        Expression::Not(inside) => Value::Bool(!truth(inside, local, route)),
        Expression::Tuple(parts) => Value::Tuple(parts.iter().map(number).collect()),
        Expression::Word(word) => word_value(word, local, route),
        Expression::Two("&&", left, right) => {
            Value::Bool(truth(left, local, route) && truth(right, local, route))
        }
        Expression::Two("||", left, right) => {
            Value::Bool(truth(left, local, route) || truth(right, local, route))
        }
        Expression::Two("-", left, right) => Value::Number(number(left) - number(right)),
        Expression::Two("<", left, right) => Value::Bool(number(left) < number(right)),
        Expression::Two(">", left, right) => Value::Bool(number(left) > number(right)),
        Expression::Two(sign @ ("~" | "!~"), left, right) => {
            Value::Bool(holds(left, right, local, route) == (*sign == "~"))
        }
        Expression::Two(sign @ ("=" | "!="), left, right) => {
            let same = value_of(left, local, route) == value_of(right, local, route);
            Value::Bool(same == (*sign == "="))
        }
        other => panic!("{other:?} has no value of its own"),
    }
}

fn word_value(word: &str, local: &BTreeMap<String, bool>, route: &Route) -> Value {
    if let Some(value) = local.get(word) {
        return Value::Bool(*value);
    }
    if let Ok(number) = word.parse() {
        return Value::Number(number);
    }
    if let Ok(net) = word.parse::<Prefix>() {
        return Value::Net(net);
    }
    if let Ok(address) = word.parse::<IpAddr>() {
        return Value::Net(Prefix::host(address));
    }
    match word {
        "net" => Value::Net(route.net),
        "source" => Value::Text(route.source.to_owned()),
        "ifname" => route
            .ifname
            .map_or(Value::Undefined, |name| Value::Text(name.to_owned())),
        "true" | "false" => Value::Bool(word == "true"),
        constant if constant.starts_with("RTS_") => Value::Text(constant.to_owned()),
        name => match route.numbers.get(name) {
            Some(number) => Value::Number(*number),
            None => Value::Undefined,
        },
    }
}

/// The operator `~`.
fn holds(
    left: &Expression,
    right: &Expression,
    local: &BTreeMap<String, bool>,
    route: &Route,
) -> bool {
    match (left, right) {
        (Expression::Word(list), Expression::Path(mask)) if list == "bgp_path" => {
            path_fits(mask, &route.path)
        }
        (value, Expression::Word(list)) if list.ends_with("_community") => {
            let Value::Tuple(parts) = value_of(value, local, route) else {
                panic!("{value:?}");
            };
            route.communities.contains(&parts)
        }
        (value, Expression::Patterns(patterns)) => {
            let Value::Net(net) = value_of(value, local, route) else {
                panic!("{value:?}");
            };
            patterns.iter().any(|pattern| pattern.matches(&net))
        }
        (value, Expression::Words(words)) => {
            let Value::Text(word) = value_of(value, local, route) else {
                panic!("{value:?}");
            };
            words.contains(&word)
        }
        _ => match (value_of(left, local, route), value_of(right, local, route)) {
            (Value::Net(net), Value::Net(range)) => {
                Family::of(net.address()) == Family::of(range.address()) && range.covers(&net)
            }
            (Value::Text(text), Value::Text(pattern)) => fits(pattern.as_bytes(), text.as_bytes()),
            other => panic!("{other:?}"),
        },
    }
}
