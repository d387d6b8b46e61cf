//! `protocol kernel`: the table of the kernel that best routes go to. BIRD 2's words; one protocol for each family.

use caracal_model::net::Family;
use nom::Parser;
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded, terminated};

use super::lexer::{
    Fault, Located, Res, block, directive, end_of_line, family, one_of_words, token, u8_number,
    u32_number,
};
use super::peer::switch;

/// BIRD's number of next hops of `merge paths on` without a limit.
const MERGE_LIMIT: u32 = 16;

/// The kernel's table for routes of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTable {
    /// Number of the table.
    pub table: u32,
    /// Metric of every route; 0 = the kernel's own default.
    pub metric: u32,
    /// Next hops of one route at most.
    pub paths: u32,
    /// The routes stay when the speaker leaves for good.
    pub persist: bool,
    /// Protocol number of our routes, when it is not the usual one.
    pub protocol: Option<u8>,
}

impl Default for KernelTable {
    /// BIRD's defaults.
    fn default() -> Self {
        Self {
            table: 254,
            metric: 32,
            paths: 1,
            persist: false,
            protocol: None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum KernelOption {
    /// True: best routes are written.
    Channel(Family, bool),
    Table(u32),
    Metric(u32),
    Paths(u32),
    Persist(bool),
    Protocol(u8),
    Ignored,
}

/// A whole protocol. `None`: nothing is exported, as is BIRD's default.
pub(super) type KernelStatement = Option<(Family, KernelTable)>;

/// The block of a kernel protocol.
pub(super) fn kernel(s: &str) -> Res<'_, KernelStatement> {
    let (rest, options) = block(option)(s)?;
    let mut table = KernelTable::default();
    let mut channel = None;
    for Located { at, value } in options {
        match value {
            KernelOption::Channel(family, export) => {
                if channel.is_some() {
                    let what =
                        "one family in a kernel protocol; the other needs a protocol of its own";
                    return Err(nom::Err::Failure(Fault::new(at, what)));
                }
                channel = Some((family, export));
            }
            KernelOption::Table(number) => table.table = number,
            KernelOption::Metric(metric) => table.metric = metric,
            KernelOption::Paths(paths) => table.paths = paths,
            KernelOption::Persist(on) => table.persist = on,
            KernelOption::Protocol(number) => table.protocol = Some(number),
            KernelOption::Ignored => {}
        }
    }
    let exported = channel.filter(|(_, export)| *export);
    Ok((rest, exported.map(|(family, _)| (family, table))))
}

fn option(s: &str) -> Res<'_, KernelOption> {
    const WORDS: [&str; 9] = [
        "ipv4", "ipv6", "kernel", "metric", "merge", "persist", "scan", "graceful", "#:",
    ];
    let (rest, word) = one_of_words(&WORDS, s)?;
    let end = || cut(token(";"));
    match word {
        "ipv4" | "ipv6" => {
            let (_, family) = family(s)?;
            let (rest, items) = terminated(opt(block(channel)), end()).parse(rest)?;
            let mut exports = items.into_iter().flatten().filter_map(|item| item.value);
            let export = exports.next_back().unwrap_or(false);
            Ok((rest, KernelOption::Channel(family, export)))
        }
        "kernel" => delimited(cut(token("table")), cut(u32_number), end())
            .map(KernelOption::Table)
            .parse(rest),
        "metric" => terminated(cut(u32_number), end())
            .map(KernelOption::Metric)
            .parse(rest),
        "merge" => {
            let limit = opt(preceded(token("limit"), cut(u32_number)));
            let (rest, (on, limit)) =
                delimited(cut(token("paths")), (switch, limit), end()).parse(rest)?;
            let paths = match (on, limit) {
                (false, _) => 1,
                (_, limit) => limit.unwrap_or(MERGE_LIMIT).max(1),
            };
            Ok((rest, KernelOption::Paths(paths)))
        }
        "persist" => terminated(switch, end())
            .map(KernelOption::Persist)
            .parse(rest),
        // The kernel says when something changes.
        "scan" => delimited(cut(token("time")), cut(u32_number), end())
            .map(|_| KernelOption::Ignored)
            .parse(rest),
        // It is what the speaker does anyway.
        "graceful" => delimited(cut(token("restart")), switch, end())
            .map(|_| KernelOption::Ignored)
            .parse(rest),
        _ => {
            let (rest, line) = directive(s)?;
            let (line, number) = preceded(token("protocol"), cut(u8_number)).parse(line)?;
            end_of_line(line)?;
            Ok((rest, KernelOption::Protocol(number)))
        }
    }
}

/// A line of the family: `Some` for `export`.
fn channel(s: &str) -> Res<'_, Option<bool>> {
    let (rest, word) = one_of_words(&["import", "export"], s)?;
    let some = |text, answer| terminated(token(text), token(";")).map(move |_| answer);
    let learned = (
        token("where"),
        token("source"),
        token("="),
        token("RTS_BGP"),
        token(";"),
    );
    let (rest, all) = cut(alt((
        some("all", true),
        some("none", false),
        learned.map(|_| true),
    )))
    .parse(rest)?;
    // Nothing is imported either way: routes of others are not announced.
    Ok((rest, (word == "export").then_some(all)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{parse, parse_file};

    fn tables(text: &str) -> Result<Vec<(Family, KernelTable)>, String> {
        let text = format!(
            "router id 10.0.0.1;\ndefine caracal_local_as = 64512;\n{text}\n\
             protocol bgp a {{ local as 64512; neighbor 10.0.0.2 as 64512; ipv4; }}\n"
        );
        let file = parse_file(&text).map_err(|error| error.report("f"))?;
        assert_eq!(file.speaker, parse(&text).unwrap());
        Ok(file.kernel.into_iter().collect())
    }

    #[test]
    fn birds_words_for_a_kernel_table() {
        let both = tables(
            "protocol kernel k4 {
               ipv4 { import none; export all; };
               kernel table 100; metric 50; merge paths on limit 4; persist;
               scan time 10; graceful restart on;
               #: protocol 90
             }
             protocol kernel { ipv6 { export where source = RTS_BGP; }; merge paths; }",
        );
        let v4 = KernelTable {
            table: 100,
            metric: 50,
            paths: 4,
            persist: true,
            protocol: Some(90),
        };
        let v6 = KernelTable {
            paths: MERGE_LIMIT,
            ..KernelTable::default()
        };
        assert_eq!(both, Ok(vec![(Family::Ipv4, v4), (Family::Ipv6, v6)]));
    }

    #[test]
    fn without_an_export_nothing_is_written() {
        for text in [
            "",
            "protocol kernel { }",
            "protocol kernel { ipv4; }",
            "protocol kernel { ipv4 { import all; }; }",
            "protocol kernel { ipv4 { export all; export none; }; }",
        ] {
            assert_eq!(tables(text), Ok(vec![]), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_told_with_its_place() {
        for (text, found) in [
            ("protocol kernel { learn; }", "found \"learn\""),
            (
                "protocol kernel { ipv4 { export filter x; }; }",
                "found \"filter\"",
            ),
            ("protocol kernel { kernel table x; }", "a number"),
            (
                "protocol kernel { ipv4 { export all; }; ipv6 { export all; }; }",
                "one family",
            ),
            (
                "protocol kernel { ipv4 { export all; }; }\nprotocol kernel { ipv4 { export all; }; }",
                "one kernel protocol",
            ),
        ] {
            let report = tables(text).unwrap_err();
            assert!(report.contains(found), "{text}: {report}");
        }
    }
}
