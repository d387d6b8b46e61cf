//! Tokens: words, signs, numbers, addresses, symbols, strings, comments, `#:` lines, blocks.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use caracal_model::{Family, Prefix};
use nom::combinator::opt;
use nom::error::{ErrorKind, ParseError as NomError};
use nom::{Err, IResult, Parser};

pub(super) type Res<'a, T> = IResult<&'a str, T, ParseFault<'a>>;

/// The furthest place that a parser reached, and what it wanted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParseFault<'a> {
    at: &'a str,
    expected: Vec<String>,
    /// Something is not there that may have been left out after an error before.
    missing: bool,
}

impl<'a> ParseFault<'a> {
    /// Words are expected as they are, so they appear in quotes; descriptions do not.
    pub(super) fn new(at: &'a str, expected: impl Into<String>) -> Self {
        Self {
            at,
            expected: vec![expected.into()],
            missing: false,
        }
    }

    /// Something that ought to stand somewhere does not.
    pub(super) fn missing(at: &'a str, expected: impl Into<String>) -> Self {
        Self {
            missing: true,
            ..Self::new(at, expected)
        }
    }

    fn token(at: &'a str, text: &str) -> Self {
        Self::new(at, format!("{text:?}"))
    }

    /// Where in the text it is, what was expected, and whether something is missing.
    pub(super) fn into_parts(self, text: &str) -> (usize, String, bool) {
        let offset = self.at.as_ptr() as usize - text.as_ptr() as usize;
        let missing = self.missing;
        let mut expected = self.expected;
        expected.dedup();
        let last = expected
            .pop()
            .unwrap_or_else(|| "something else".to_owned());
        let expected = if expected.is_empty() {
            last
        } else {
            format!("{} or {last}", expected.join(", "))
        };
        (offset, expected, missing)
    }
}

impl<'a> NomError<&'a str> for ParseFault<'a> {
    fn from_error_kind(at: &'a str, _: ErrorKind) -> Self {
        Self {
            at,
            expected: Vec::new(),
            missing: false,
        }
    }

    fn append(_: &'a str, _: ErrorKind, other: Self) -> Self {
        other
    }

    fn or(mut self, other: Self) -> Self {
        // Both are parts of one text; the one that begins later got further.
        match self.at.as_ptr().cmp(&other.at.as_ptr()) {
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Equal => {
                for text in other.expected {
                    if !self.expected.contains(&text) {
                        self.expected.push(text);
                    }
                }
                self
            }
        }
    }
}

/// A value with the text from which on it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located<'a, T> {
    pub(super) at: &'a str,
    pub(super) value: T,
}

fn error<'a, T>(at: &'a str, expected: impl Into<String>) -> Res<'a, T> {
    Err(Err::Error(ParseFault::new(at, expected)))
}

/// Skips blanks and comments. A `#:` line is no comment.
pub(super) fn skip(mut s: &str) -> &str {
    loop {
        s = s.trim_start();
        let comment = if s.starts_with('#') && !s.starts_with("#:") {
            s.find('\n').unwrap_or(s.len())
        } else if let Some(rest) = s.strip_prefix("/*") {
            match rest.find("*/") {
                Some(end) => end + 4,
                None => return s,
            }
        } else {
            return s;
        };
        s = &s[comment..];
    }
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A given word or sign.
pub(super) fn token<'a>(text: &'static str) -> impl Fn(&'a str) -> Res<'a, &'a str> {
    move |s| {
        let s = skip(s);
        match s.strip_prefix(text) {
            Some(rest) if !(text.ends_with(is_word_char) && rest.starts_with(is_word_char)) => {
                Ok((rest, &s[..text.len()]))
            }
            _ => Err(Err::Error(ParseFault::token(s, text))),
        }
    }
}

/// One of several words or signs; the answer is the element of the list.
pub(super) fn one_of_words<'a>(words: &[&'static str], s: &'a str) -> Res<'a, &'static str> {
    for word in words {
        if let Ok((rest, _)) = token(word)(s) {
            return Ok((rest, word));
        }
    }
    let expected = words.iter().map(|word| format!("{word:?}")).collect();
    Err(Err::Error(ParseFault {
        at: skip(s),
        expected,
        missing: false,
    }))
}

fn parsed<'a, T: FromStr>(
    s: &'a str,
    is_part: impl Fn(char) -> bool,
    expected: &str,
) -> Res<'a, T> {
    let s = skip(s);
    let end = s.find(|c| !is_part(c)).unwrap_or(s.len());
    match s[..end].parse() {
        Ok(value) => Ok((&s[end..], value)),
        Err(_) => error(s, expected),
    }
}

pub(super) fn u32_number(s: &str) -> Res<'_, u32> {
    parsed(s, |c| c.is_ascii_digit(), "a number up to 4294967295")
}

/// A number, decimal or after `0x`.
pub(super) fn hex_number(s: &str) -> Res<'_, u32> {
    let at = skip(s);
    let Some(digits) = at.strip_prefix("0x") else {
        return u32_number(s);
    };
    let end = digits.find(|c: char| !c.is_ascii_hexdigit());
    let end = end.unwrap_or(digits.len());
    match u32::from_str_radix(&digits[..end], 16) {
        Ok(value) => Ok((&digits[end..], value)),
        Err(_) => error(at, "a number up to 0xffffffff"),
    }
}

pub(super) fn u16_number(s: &str) -> Res<'_, u16> {
    parsed(s, |c| c.is_ascii_digit(), "a number up to 65535")
}

pub(super) fn u8_number(s: &str) -> Res<'_, u8> {
    parsed(s, |c| c.is_ascii_digit(), "a number up to 255")
}

const fn is_address_char(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '.' | ':')
}

pub(super) fn ipv4_address(s: &str) -> Res<'_, Ipv4Addr> {
    parsed(s, is_address_char, "an IPv4 address")
}

pub(super) fn ip_address(s: &str) -> Res<'_, IpAddr> {
    parsed(s, is_address_char, "an address")
}

/// A prefix without host bits.
pub(super) fn prefix(s: &str) -> Res<'_, Prefix> {
    let s = skip(s);
    let end = s
        .find(|c| !(is_address_char(c) || c == '/'))
        .unwrap_or(s.len());
    match Prefix::parse_strict(&s[..end]) {
        Ok(prefix) if s[..end].contains('/') => Ok((&s[end..], prefix)),
        Ok(_) => error(s, "a prefix, ADDRESS/LENGTH"),
        Err(e) => error(s, format!("a prefix ({e})")),
    }
}

/// A number, or the name of a constant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number<'a> {
    Literal(u32),
    Constant(Located<'a, &'a str>),
}

pub(super) fn number(s: &str) -> Res<'_, Number<'_>> {
    let at = skip(s);
    if at.starts_with(|c: char| c.is_ascii_digit()) {
        let (rest, value) = u32_number(at)?;
        return Ok((rest, Number::Literal(value)));
    }
    match symbol(at) {
        Ok((rest, name)) => Ok((rest, Number::Constant(name))),
        Err(_) => error(at, "a number or the name of a constant"),
    }
}

/// A name, bare or in single quotes.
pub(super) fn symbol(s: &str) -> Res<'_, Located<'_, &str>> {
    let at = skip(s);
    if let Some(quoted) = at.strip_prefix('\'') {
        let is_part = |c: char| is_word_char(c) || matches!(c, '-' | '.' | ':');
        let end = quoted.find(|c| !is_part(c)).unwrap_or(quoted.len());
        let rest = &quoted[end..];
        return match rest.strip_prefix('\'') {
            Some(rest) if end > 0 => Ok((
                rest,
                Located {
                    at,
                    value: &quoted[..end],
                },
            )),
            _ => error(rest, "a name of letters, digits, _ - . : and a closing '"),
        };
    }
    let end = at.find(|c| !is_word_char(c)).unwrap_or(at.len());
    if end == 0 || at.starts_with(|c: char| c.is_ascii_digit()) {
        return error(at, "a name");
    }
    Ok((
        &at[end..],
        Located {
            at,
            value: &at[..end],
        },
    ))
}

/// The link that an address is on, behind it: `%INTERFACE`.
pub(super) fn link(s: &str) -> Res<'_, Option<&str>> {
    match token("%")(s) {
        Ok((rest, _)) => match symbol(rest) {
            Ok((rest, interface)) => Ok((rest, Some(interface.value))),
            Err(Err::Error(fault)) => Err(Err::Failure(fault)),
            Err(error) => Err(error),
        },
        Err(_) => Ok((s, None)),
    }
}

/// A string in double quotes; there are no escapes.
pub(super) fn string(s: &str) -> Res<'_, &str> {
    let s = skip(s);
    let Some(inner) = s.strip_prefix('"') else {
        return error(s, "a string in double quotes");
    };
    match inner.find(['"', '\n']) {
        Some(end) if inner[end..].starts_with('"') => Ok((&inner[end + 1..], &inner[..end])),
        _ => error(s, "a string with a closing quotation mark on the same line"),
    }
}

/// A string with JSON's escapes, as only `#:` lines have them.
pub(super) fn json_string(s: &str) -> Res<'_, String> {
    let s = skip(s);
    let mut values = serde_json::Deserializer::from_str(s).into_iter::<String>();
    match values.next() {
        Some(Ok(text)) => Ok((&s[values.byte_offset()..], text)),
        _ => error(s, "a JSON string"),
    }
}

/// The content of a `#:` line.
pub(super) fn directive(s: &str) -> Res<'_, &str> {
    let (rest, _) = token("#:")(s)?;
    let end = rest.find('\n').unwrap_or(rest.len());
    Ok((&rest[end..], &rest[..end]))
}

/// Nothing more on a `#:` line.
pub(super) fn end_of_line(line: &str) -> Result<(), Err<ParseFault<'_>>> {
    let rest = line.trim_start();
    if rest.is_empty() {
        Ok(())
    } else {
        Err(Err::Failure(ParseFault::new(rest, "the end of the line")))
    }
}

/// Everything up to a closing brace.
pub(super) fn until_brace(s: &str) -> Res<'_, &str> {
    let end = s.find('}').unwrap_or(s.len());
    Ok((&s[end..], &s[..end]))
}

/// Everything up to a semicolon.
pub(super) fn until_semicolon(s: &str) -> Res<'_, &str> {
    let end = s.find(';').unwrap_or(s.len());
    Ok((&s[end..], &s[..end]))
}

pub(super) fn family(s: &str) -> Res<'_, Family> {
    let (rest, word) = one_of_words(&["ipv4", "ipv6"], s)?;
    let family = if word == "ipv4" {
        Family::Ipv4
    } else {
        Family::Ipv6
    };
    Ok((rest, family))
}

/// `{ ITEM … }`, each item with its place. A semicolon more is nothing.
pub(super) fn block<'a, T>(
    mut item: impl FnMut(&'a str) -> Res<'a, T>,
) -> impl FnMut(&'a str) -> Res<'a, Vec<Located<'a, T>>> {
    move |s| {
        let (mut rest, _) = token("{")(s)?;
        let mut items = Vec::new();
        loop {
            while let Ok((after, _)) = token(";")(rest) {
                rest = after;
            }
            let fault = match token("}")(rest) {
                Ok((rest, _)) => return Ok((rest, items)),
                Err(Err::Error(fault)) => fault,
                Err(other) => return Err(other),
            };
            let at = skip(rest);
            match item(rest) {
                Ok((after, value)) => {
                    items.push(Located { at, value });
                    rest = after;
                }
                Err(Err::Error(other)) => return Err(Err::Failure(other.or(fault))),
                Err(other) => return Err(other),
            }
        }
    }
}

/// `{ … }` with anything inside, braces in pairs.
pub(super) fn balanced_block(s: &str) -> Res<'_, ()> {
    let (mut rest, _) = token("{")(s)?;
    let mut depth = 1usize;
    loop {
        rest = skip(rest);
        let Some(c) = rest.chars().next() else {
            return Err(Err::Failure(ParseFault::token(rest, "}")));
        };
        match c {
            '"' => {
                rest = string(rest)?.0;
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            '#' => {
                rest = directive(rest)?.0;
                continue;
            }
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
        if depth == 0 {
            return Ok((rest, ()));
        }
    }
}

/// `on` or nothing, `off`.
pub(super) fn switch(s: &str) -> Res<'_, bool> {
    let (rest, word) = opt(|s| one_of_words(&["on", "yes", "off", "no"], s)).parse(s)?;
    Ok((rest, !matches!(word, Some("off" | "no"))))
}
