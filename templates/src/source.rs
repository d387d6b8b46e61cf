//! The text of a file together with what it includes, and where each part of it comes from.

use std::ops::Range;
use std::sync::Arc;

use caracal_bgp::Place;

use crate::error::ParseError;

/// Files inside files, at most; as in BIRD.
const DEEPEST: usize = 8;

/// Octets of all files together, at most.
const LARGEST: usize = 64 << 20;

/// The files that a line `include "PATTERN";` stands for, with their texts: gets the name of the
/// file with the line, and the pattern.
pub type Include<'i> = &'i mut dyn FnMut(&str, &str) -> Result<Vec<(String, String)>, String>;

/// Lines that follow each other in one file.
#[derive(Debug)]
struct Piece {
    /// Where they begin in the text.
    from: usize,
    file: Arc<str>,
    /// Number of the first line, from 1.
    line: u32,
}

/// A text of one or more files. Each line is from one file.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) text: String,
    pieces: Vec<Piece>,
    /// Where each line but the first begins.
    lines: Vec<usize>,
}

impl Source {
    /// A file that includes nothing; a line `include` is left for the grammar to refuse.
    pub(crate) fn of(file: &str, text: &str) -> Self {
        let piece = Piece {
            from: 0,
            file: file.into(),
            line: 1,
        };
        Self {
            text: text.to_owned(),
            pieces: vec![piece],
            lines: line_starts(text),
        }
    }

    /// A file with what it includes.
    pub(crate) fn with_includes(
        file: &str,
        text: &str,
        include: Include<'_>,
    ) -> Result<Self, ParseError> {
        let mut source = Self {
            text: String::new(),
            pieces: Vec::new(),
            lines: Vec::new(),
        };
        source.add(&file.into(), text, 0, include)?;
        source.lines = line_starts(&source.text);
        Ok(source)
    }

    fn add(
        &mut self,
        file: &Arc<str>,
        text: &str,
        depth: usize,
        include: Include<'_>,
    ) -> Result<(), ParseError> {
        let mut done = 0;
        let mut line = 1;
        for found in includes(text) {
            let Line {
                start,
                pattern,
                statement,
            } = found;
            let wrong = |expected: String| {
                let mut error = ParseError::at(text, &text[pattern.start..], expected);
                error.file = Some(Arc::clone(file));
                error
            };
            self.piece(file, line, &text[done..start]);
            line += lines(&text[done..start]);
            if depth == DEEPEST {
                return Err(wrong(format!("at most {DEEPEST} files inside each other")));
            }
            let files = include(file, &text[pattern.clone()]).map_err(wrong)?;
            for (name, content) in files {
                if self.text.len() + content.len() > LARGEST {
                    return Err(wrong(format!(
                        "files of at most {} MiB together",
                        LARGEST >> 20
                    )));
                }
                self.add(&name.into(), &content, depth + 1, include)?;
                if !self.text.is_empty() && !self.text.ends_with('\n') {
                    self.text.push('\n');
                }
            }
            // The line itself keeps its columns.
            let blank = " ".repeat(statement.end - start);
            self.piece(file, line, &blank);
            done = statement.end;
        }
        let begins = self.text.len();
        self.text.push_str(&text[done..]);
        if done == 0 {
            self.pieces.push(Piece {
                from: begins,
                file: Arc::clone(file),
                line,
            });
        }
        Ok(())
    }

    fn piece(&mut self, file: &Arc<str>, line: u32, text: &str) {
        self.pieces.push(Piece {
            from: self.text.len(),
            file: Arc::clone(file),
            line,
        });
        self.text.push_str(text);
    }

    /// File and line of a place in the text.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let after = self.pieces.partition_point(|piece| piece.from <= offset);
        match after.checked_sub(1).and_then(|at| self.pieces.get(at)) {
            Some(piece) => Place {
                file: Arc::clone(&piece.file),
                line: piece.line + self.lines_between(piece.from, offset),
            },
            None => Place {
                file: "".into(),
                line: 1,
            },
        }
    }

    fn lines_between(&self, from: usize, to: usize) -> u32 {
        let before = |offset: usize| self.lines.partition_point(|start| *start <= offset);
        u32::try_from(before(to) - before(from)).unwrap_or(u32::MAX)
    }

    /// The error at a place.
    pub(crate) fn error(&self, offset: usize, expected: impl Into<String>) -> ParseError {
        let offset = offset.min(self.text.len());
        let place = self.place(offset);
        let mut error = ParseError::at(&self.text, &self.text[offset..], expected);
        error.line = usize::try_from(place.line).unwrap_or(usize::MAX);
        error.file = Some(place.file).filter(|file| !file.is_empty());
        error
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    text.match_indices('\n').map(|(at, _)| at + 1).collect()
}

fn lines(text: &str) -> u32 {
    u32::try_from(text.matches('\n').count()).unwrap_or(u32::MAX)
}

/// A line `include "PATTERN";`.
struct Line {
    /// Where the line begins.
    start: usize,
    pattern: Range<usize>,
    /// The words, from the start of the line to the semicolon.
    statement: Range<usize>,
}

/// The lines of a text that include others; not those in comments.
fn includes(text: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut starts = true;
    while let Some(c) = text[at..].chars().next() {
        if std::mem::take(&mut starts)
            && let Some(line) = include_line(text, at)
        {
            at = line.statement.end;
            found.push(line);
            continue;
        }
        let rest = &text[at..];
        let end = |mark: &str| rest.find(mark).map_or(rest.len(), |end| end);
        at += match c {
            '#' => end("\n"),
            '"' => {
                let closed = rest[1..]
                    .find(['"', '\n'])
                    .map_or(rest.len(), |end| end + 1);
                closed + usize::from(rest[closed..].starts_with('"'))
            }
            '/' if rest.starts_with("/*") => (end("*/") + 2).min(rest.len()),
            '\n' => {
                starts = true;
                1
            }
            other => other.len_utf8(),
        };
    }
    found
}

fn include_line(text: &str, start: usize) -> Option<Line> {
    let blank = |s: &str| s.len() - s.trim_start_matches([' ', '\t']).len();
    let mut at = start + blank(&text[start..]);
    at += text[at..]
        .strip_prefix("include")
        .map(|_| "include".len())?;
    at += blank(&text[at..]);
    text[at..].strip_prefix('"')?;
    let from = at + 1;
    let len = text[from..].find(['"', '\n'])?;
    text[from + len..].strip_prefix('"')?;
    at = from + len + 1;
    at += blank(&text[at..]);
    text[at..].strip_prefix(';')?;
    Some(Line {
        start,
        pattern: from..from + len,
        statement: start..at + 1,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn files(
        list: &[(&str, &str)],
    ) -> impl FnMut(&str, &str) -> Result<Vec<(String, String)>, String> {
        let list: Vec<(String, String)> = list
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        move |_, pattern| {
            let found: Vec<_> = list
                .iter()
                .filter(|(name, _)| name == pattern)
                .cloned()
                .collect();
            match found.is_empty() {
                true => Err(format!("a file that is there; {pattern:?} is not")),
                false => Ok(found),
            }
        }
    }

    #[test]
    fn lines_keep_their_files_and_numbers() {
        let main = "one\n/*\ninclude \"b\";\n*/\n  include \"b\"; three\nfour \"\ninclude\";\n";
        let source =
            Source::with_includes("a", main, &mut files(&[("b", "two\ntwo and a half")])).unwrap();
        let place = |word: &str| source.place(source.text.find(word).unwrap()).to_string();
        assert_eq!(place("one"), "a:1");
        assert_eq!(place("two"), "b:1");
        assert_eq!(place("half"), "b:2");
        assert_eq!(place("three"), "a:5");
        assert_eq!(place("four"), "a:6");
        let error = source.error(source.text.find("three").unwrap(), "x");
        assert_eq!((error.line, error.column), (5, 16));
    }

    #[test]
    fn a_circle_of_files_ends_with_an_error() {
        let error = Source::with_includes(
            "a",
            "include \"a\";",
            &mut files(&[("a", "include \"a\";")]),
        )
        .unwrap_err();
        assert!(error.expected.contains("at most 8"), "{error}");
        let error = Source::with_includes("a", "\n include \"c\";", &mut files(&[])).unwrap_err();
        assert_eq!((error.line, error.column), (2, 11), "{error}");
    }
}
