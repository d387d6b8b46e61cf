//! `protocol mrt`: the table is written to a file every so often (RFC 6396 §4.3). BIRD 2's words.

use std::time::Duration;

use nom::Parser;
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, terminated};

use super::lexer::switch;
use super::lexer::{
    Located, ParseFault, Res, block, one_of_words, skip, string, symbol, token, u32_number,
};

/// A table dump that is made again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The file; `%` stands before a part of the time, as in strftime, or before `N`, the name of
    /// the table.
    pub filename: String,
    /// From one to the next.
    pub period: Duration,
}

/// BIRD's letters that have a meaning here.
const LETTERS: &str = "YmdHMSFTsN%";

/// The statement, with its name.
pub(super) type DumpStatement<'a> = Located<'a, (String, Dump)>;

enum DumpOption<'a> {
    Filename(&'a str),
    Period(u32),
    Ignored,
}

/// After `protocol mrt`: a name and a block.
pub(super) fn dump(s: &str) -> Res<'_, DumpStatement<'_>> {
    let (rest, name) = opt(symbol).parse(s)?;
    let at = name.map_or_else(|| skip(s), |name| name.at);
    let name = name.map_or("mrt1", |name| name.value).to_owned();
    let (rest, options) = block(option)(rest)?;
    let (mut filename, mut period) = (None, None);
    for Located { value, .. } in options {
        match value {
            DumpOption::Filename(text) => filename = Some(text.to_owned()),
            DumpOption::Period(seconds) => period = Some(Duration::from_secs(seconds.into())),
            DumpOption::Ignored => {}
        }
    }
    let (Some(filename), Some(period)) = (filename, period) else {
        let what = "a dump with lines \"filename\" and \"period\"";
        return Err(nom::Err::Failure(ParseFault::missing(at, what)));
    };
    let value = (name, Dump { filename, period });
    Ok((rest, Located { at, value }))
}

fn option(s: &str) -> Res<'_, DumpOption<'_>> {
    let (rest, word) = one_of_words(&["filename", "period", "table", "always"], s)?;
    let end = || cut(token(";"));
    match word {
        "filename" => {
            let at = skip(rest);
            let (rest, name) = terminated(cut(string), end()).parse(rest)?;
            let mut letters = name.split('%').skip(1);
            // Of `%%`, the second begins a part that is empty.
            while let Some(part) = letters.next() {
                let known = match part.chars().next() {
                    Some(letter) => LETTERS.contains(letter),
                    None => letters.next().is_some(),
                };
                if !known {
                    let what = "a name with none but %Y %m %d %H %M %S %F %T %s %N %% in it";
                    return Err(nom::Err::Failure(ParseFault::new(at, what)));
                }
            }
            Ok((rest, DumpOption::Filename(name)))
        }
        "period" => {
            let at = skip(rest);
            let (rest, seconds) = terminated(cut(u32_number), end()).parse(rest)?;
            if seconds == 0 {
                return Err(nom::Err::Failure(ParseFault::new(
                    at,
                    "at least one second",
                )));
            }
            Ok((rest, DumpOption::Period(seconds)))
        }
        // There is one table.
        "table" => {
            if let Ok((rest, _)) = string(rest) {
                return end().map(|_| DumpOption::Ignored).parse(rest);
            }
            terminated(cut(symbol), end())
                .map(|_| DumpOption::Ignored)
                .parse(rest)
        }
        // Identifiers of paths are written where a peer sends them (RFC 8050).
        _ => delimited((cut(token("add")), cut(token("path"))), switch, end())
            .map(|_| DumpOption::Ignored)
            .parse(rest),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{parse, parse_file};

    fn file(text: &str) -> String {
        format!("router id 10.0.0.1;\ndefine caracal_local_as = 64512;\n{text}\n")
    }

    #[test]
    fn birds_words_for_a_dump() {
        let text = file(
            "protocol mrt { table \"*\"; filename \"/tmp/%N_%F_%T.mrt\"; period 300; always add path on; }
             protocol mrt hourly { table master4; filename \"100%%.mrt\"; period 3600; }",
        );
        let read = parse_file(&text).unwrap();
        assert_eq!(read.speaker, parse(&text).unwrap());
        let dump = |filename: &str, seconds| Dump {
            filename: filename.to_owned(),
            period: Duration::from_secs(seconds),
        };
        assert_eq!(read.dumps["mrt1"], dump("/tmp/%N_%F_%T.mrt", 300));
        assert_eq!(read.dumps["hourly"], dump("100%%.mrt", 3600));
    }

    #[test]
    fn what_is_missing_or_wrong_is_told_with_its_place() {
        for (text, expected) in [
            ("protocol mrt { }", "\"filename\" and \"period\""),
            (
                "protocol mrt { filename \"x\"; }",
                "\"filename\" and \"period\"",
            ),
            ("protocol mrt { filename \"%q\"; period 1; }", "%Y %m %d"),
            ("protocol mrt { filename \"x%\"; period 1; }", "%Y %m %d"),
            (
                "protocol mrt { filename \"x\"; period 0; }",
                "at least one second",
            ),
            (
                "protocol mrt { filename \"x\"; period 1; where true; }",
                "found \"where\"",
            ),
            (
                "protocol mrt a { filename \"x\"; period 1; }\nprotocol mrt a { filename \"y\"; period 1; }",
                "another name",
            ),
        ] {
            let report = parse_file(&file(text)).unwrap_err().report("f");
            assert!(report.contains(expected), "{text}: {report}");
        }
    }
}
