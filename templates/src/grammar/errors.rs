//! All errors of a file at once: what does not parse is left out, and the rest is read again.

use std::ops::Range;

use super::lexer::skip;
use super::{File, Surroundings, read};
use crate::error::ParseErrors;
use crate::source::Source;

/// Errors that are shown at most.
const MOST: usize = 20;

/// Reads a text; `whole`: with what concerns the kernel and files.
pub(super) fn read_all(
    source: &Source,
    whole: bool,
    around: Surroundings<'_>,
) -> Result<File, ParseErrors> {
    let mut text = source.text.clone();
    let mut left_out: Vec<Range<usize>> = Vec::new();
    let mut found = Vec::new();
    loop {
        let (offset, expected, missing) = match read(source, &text, whole, around) {
            Ok(file) if found.is_empty() => return Ok(file),
            Ok(_) => break,
            Err(fault) => fault.into_parts(&text),
        };
        // What depends on something that was left out may be right.
        let follows = !left_out.is_empty()
            && (missing || names(&source.text, &left_out, &source.text[offset..]));
        if !follows {
            found.push((offset, expected));
        }
        let item = item_around(&text, offset);
        let Some(item) = item.filter(|item| !text[item.clone()].trim().is_empty()) else {
            break;
        };
        if found.len() == MOST {
            break;
        }
        let blank: String = text[item.clone()]
            .split_inclusive('\n')
            .map(|line| {
                let end = if line.ends_with('\n') { "\n" } else { "" };
                format!("{}{end}", " ".repeat(line.len() - end.len()))
            })
            .collect();
        text.replace_range(item.clone(), &blank);
        left_out.push(item);
    }
    found.sort_by_key(|(offset, _)| *offset);
    let mut errors = found
        .into_iter()
        .map(|(offset, expected)| source.error(offset, expected));
    let first = errors.next();
    let first = first.unwrap_or_else(|| source.error(source.text.len(), "another text"));
    Err(ParseErrors {
        first: Box::new(first),
        more: errors.collect(),
    })
}

/// True when the word at the start of `at` stands in what was left out, elsewhere.
fn names(text: &str, left_out: &[Range<usize>], at: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let at = at.trim_start_matches('\'');
    let word = &at[..at.find(|c| !is_part(c)).unwrap_or(at.len())];
    let place = at.as_ptr() as usize - text.as_ptr() as usize;
    let mut parts = left_out.iter().filter(|range| !range.contains(&place));
    !word.is_empty()
        && parts.any(|range| {
            text[range.clone()]
                .split(|c| !is_part(c))
                .any(|w| w == word)
        })
}

/// The innermost statement around a place: up to its `;`, or with its block.
fn item_around(text: &str, offset: usize) -> Option<Range<usize>> {
    // Where the statement of each open block begins, and the brackets that are open in it.
    let mut starts: Vec<Option<usize>> = vec![None];
    let mut brackets = 0usize;
    let mut rest = skip(text);
    while let Some(c) = rest.chars().next() {
        let at = text.len() - rest.len();
        let mut step = c.len_utf8();
        let mut end = None;
        match c {
            '#' => step = rest.find('\n').unwrap_or(rest.len()),
            '"' => step += rest[1..].find(['"', '\n']).map_or(0, |end| end + 1),
            '[' => brackets += 1,
            ']' => brackets = brackets.saturating_sub(1),
            '{' if brackets == 0 => {
                starts.last_mut()?.get_or_insert(at);
                starts.push(None);
            }
            '}' if brackets == 0 => {
                // The last statement of the block had no end.
                let open = starts.pop().flatten();
                if let Some(open) = open.filter(|open| (*open..=at).contains(&offset)) {
                    return Some(open..at);
                }
                if starts.is_empty() {
                    starts.push(Some(at));
                }
                let behind = skip(&rest[1..]);
                if behind.starts_with(';') {
                    step = rest.len() - behind.len() + 1;
                }
                end = Some(at + step);
            }
            ';' => {
                brackets = 0;
                starts.last_mut()?.get_or_insert(at);
                end = Some(at + step);
            }
            _ => {
                starts.last_mut()?.get_or_insert(at);
            }
        }
        if let Some(end) = end {
            let start = starts.last_mut()?.take().unwrap_or(at);
            if (start..end).contains(&offset) {
                return Some(start..end);
            }
        }
        rest = skip(&rest[step..]);
    }
    None
}
