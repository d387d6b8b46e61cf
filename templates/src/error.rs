//! Where a text does not parse: line, column, what was expected and what was found.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// A text that does not parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The file, where the text has said which.
    pub file: Option<Arc<str>>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Tokens that would be valid there.
    pub expected: String,
    /// Token found there.
    pub found: String,
    /// The line.
    pub text: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: expected {}, found {}",
            self.line, self.column, self.expected, self.found
        )
    }
}

impl std::error::Error for ParseError {}

/// All that is wrong with a text, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseErrors {
    /// The first.
    pub first: Box<ParseError>,
    /// The others.
    pub more: Vec<ParseError>,
}

impl ParseErrors {
    /// All of them with their lines, for a terminal.
    #[must_use]
    pub fn report(&self, file: &str) -> String {
        let mut out = self.first.report(file);
        for error in &self.more {
            out.push_str(&error.report(file));
        }
        out
    }
}

impl ParseError {
    /// The error at a place of a text; `part` is a part of the text that begins at the place.
    pub(crate) fn at(text: &str, part: &str, expected: impl Into<String>) -> Self {
        let offset = part.as_ptr() as usize - text.as_ptr() as usize;
        let (before, rest) = text.split_at(offset);
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = text[start..].lines().next().unwrap_or_default();
        Self {
            file: None,
            line: before.matches('\n').count() + 1,
            column: text[start..offset].chars().count() + 1,
            expected: expected.into(),
            found: found(rest),
            text: line.to_owned(),
        }
    }

    /// The error with the line it is in and a caret under the place, for a terminal; `file` is the
    /// name for a text that has none:
    ///
    /// ```text
    /// error: expected ";", found "as"
    ///   --> speaker.conf:3:15
    ///    |
    ///  3 | router id 1.1 as
    ///    |               ^
    /// ```
    #[must_use]
    pub fn report(&self, file: &str) -> String {
        let file = self.file.as_deref().unwrap_or(file);
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        // A tab stays a tab, so that the caret stands under its character at any tab width.
        let indent: String = self
            .text
            .chars()
            .take(self.column - 1)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let mut out = format!("error: expected {}, found {}\n", self.expected, self.found);
        let _ = writeln!(out, "{margin} --> {file}:{}:{}", self.line, self.column);
        let _ = writeln!(out, " {margin} |");
        let _ = writeln!(out, " {number} | {}", self.text);
        let _ = writeln!(out, " {margin} | {indent}^");
        out
    }
}

/// The word or sign at the start of a text, for people.
fn found(rest: &str) -> String {
    const LONGEST: usize = 40;
    let Some(first) = rest.chars().next() else {
        return "the end of the file".to_owned();
    };
    if first == '\n' || first == '\r' {
        return "the end of the line".to_owned();
    }
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '/');
    let word: String = if is_word(first) {
        rest.chars()
            .take_while(|c| is_word(*c))
            .take(LONGEST)
            .collect()
    } else {
        first.to_string()
    };
    format!("{word:?}")
}
