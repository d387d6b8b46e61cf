//! `protocol kernel`: the table of the kernel that best routes go to, and that routes of others
//! come from. BIRD 2's words; one protocol for each family.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caracal_bgp::{Filter, OwnProtocol};
use caracal_model::{Family, IfName};
use nom::Parser;
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded, terminated};

use super::constant::number;
use super::fixed;
use super::language::Scope;
use super::lexer::{
    Located, ParseFault, Res, block, directive, end_of_line, family, one_of_words, switch, token,
    u8_number,
};
use super::policy::{self, Passes, nothing};

/// BIRD's number of next hops of `merge paths on` without a limit.
const MERGE_LIMIT: u32 = 16;

/// BIRD's preference of routes that the kernel's table has of others.
pub(super) const PREFERENCE: u16 = 10;

/// The kernel's table for routes of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Which routes are written; `None`: all, our own ones as blackholes.
    pub export: Option<Filter>,
    /// Routes of others in the table are announced.
    pub learn: Option<Learn>,
    /// Links of peers and gateways with link-local addresses.
    pub near: BTreeSet<IfName>,
}

/// Which routes of others are announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learn {
    /// Those of the kernel itself and of other BGP daemons as well.
    pub all: bool,
    /// Which of them; `None`: all.
    pub import: Option<Filter>,
    /// The name of the protocol; `None`: `kernel1`.
    pub protocol: Option<Arc<OwnProtocol>>,
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
            export: None,
            learn: None,
            near: BTreeSet::new(),
        }
    }
}

#[derive(Clone, Debug)]
enum KernelOption<'a> {
    Channel(Family, KernelChannel<'a>),
    Table(u32),
    Metric(u32),
    Paths(u32),
    Persist(bool),
    Protocol(u8),
    /// `None`: nothing is learned; true: all.
    Learn(Option<bool>),
    Disabled(bool),
    Ignored,
}

/// The lines of a family.
#[derive(Clone, Debug)]
struct KernelChannel<'a> {
    import: Passes<'a>,
    export: Passes<'a>,
}

/// A whole protocol, its filters not yet looked up.
#[derive(Clone, Debug)]
pub(super) struct KernelProtocol<'a> {
    pub(super) family: Family,
    table: KernelTable,
    import: Passes<'a>,
    export: Passes<'a>,
}

/// `None`: nothing is exported, as is BIRD's default, and nothing learned.
pub(super) type KernelStatement<'a> = Option<KernelProtocol<'a>>;

impl<'a> KernelProtocol<'a> {
    /// The table with its filters.
    pub(super) fn resolve(
        self,
        filters: &BTreeMap<String, Filter>,
    ) -> Result<KernelTable, ParseFault<'a>> {
        let import = imported(self.import, filters)?;
        let learn = self.table.learn.map(|learn| Learn { import, ..learn });
        Ok(KernelTable {
            export: of_passes(self.export, filters)?,
            learn,
            ..self.table
        })
    }
}

/// The filter of a direction in which nothing goes to a table of the kernel.
pub(super) fn imported<'a>(
    passes: Passes<'a>,
    filters: &BTreeMap<String, Filter>,
) -> Result<Option<Filter>, ParseFault<'a>> {
    let at = match &passes {
        Passes::Filter(filter) => Some(filter.at),
        Passes::Named(name) => Some(name.at),
        Passes::All | Passes::Nothing => None,
    };
    let filter = of_passes(passes, filters)?;
    if let (Some(filter), Some(at)) = (&filter, at) {
        in_place(filter, true, at)?;
    }
    Ok(filter)
}

/// Refuses a filter with steps that are for another place than a channel of a peer, or than its
/// `import`.
pub(super) fn in_place<'a>(
    filter: &Filter,
    import: bool,
    at: &'a str,
) -> Result<(), ParseFault<'a>> {
    let what = if filter.is_for_the_kernel() {
        "a filter without \"krt_prefsrc\", which is for \"export\" of \"protocol kernel\""
    } else if import && filter.sets_next_hop() {
        "a filter without \"bgp_next_hop = …\", which is for \"export\" to a peer: packets go where the peer said"
    } else {
        return Ok(());
    };
    Err(ParseFault::new(at, what))
}

/// The filter of a direction; `None`: all passes.
pub(super) fn of_passes<'a>(
    passes: Passes<'a>,
    filters: &BTreeMap<String, Filter>,
) -> Result<Option<Filter>, ParseFault<'a>> {
    match passes {
        Passes::Nothing => Ok(Some(nothing())),
        Passes::All => Ok(None),
        Passes::Filter(filter) => Ok(Some(filter.value)),
        Passes::Named(name) => match filters.get(name.value) {
            Some(filter) => Ok(Some(filter.clone())),
            None => {
                let what = "the name of a filter of this file";
                Err(ParseFault::new(name.at, what))
            }
        },
    }
}

/// The block of a kernel protocol.
pub(super) fn kernel<'a>(
    scope: &mut Scope<'a>,
    protocol: Option<Arc<OwnProtocol>>,
    s: &'a str,
) -> Res<'a, KernelStatement<'a>> {
    let (rest, options) = block(|s| option(scope, s))(s)?;
    let mut table = KernelTable::default();
    let mut channel = None;
    let mut disabled = false;
    for Located { at, value } in options {
        match value {
            KernelOption::Channel(family, passes) => {
                if channel.is_some() {
                    let what =
                        "one family in a kernel protocol; the other needs a protocol of its own";
                    return Err(nom::Err::Failure(ParseFault::new(at, what)));
                }
                channel = Some((family, passes));
            }
            KernelOption::Table(number) => table.table = number,
            KernelOption::Metric(metric) => table.metric = metric,
            KernelOption::Paths(paths) => table.paths = paths,
            KernelOption::Persist(on) => table.persist = on,
            KernelOption::Protocol(number) => table.protocol = Some(number),
            KernelOption::Learn(learn) => {
                table.learn = learn.map(|all| Learn {
                    all,
                    import: None,
                    protocol: protocol.clone(),
                });
            }
            KernelOption::Disabled(on) => disabled = on,
            KernelOption::Ignored => {}
        }
    }
    if disabled {
        return Ok((rest, None));
    }
    let Some((family, KernelChannel { import, export })) = channel else {
        return Ok((rest, None));
    };
    if matches!(import, Passes::Nothing) {
        table.learn = None;
    }
    let idle = matches!(export, Passes::Nothing) && table.learn.is_none();
    let protocol = KernelProtocol {
        family,
        table,
        import,
        export,
    };
    Ok((rest, (!idle).then_some(protocol)))
}

fn option<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, KernelOption<'a>> {
    const WORDS: [&str; 11] = [
        "ipv4", "ipv6", "kernel", "metric", "merge", "persist", "learn", "scan", "graceful",
        "disabled", "#:",
    ];
    if let Ok((rest, ())) = fixed::of_any(s) {
        return Ok((rest, KernelOption::Ignored));
    }
    let (rest, word) = one_of_words(&WORDS, s)?;
    let end = || cut(token(";"));
    match word {
        "ipv4" | "ipv6" => {
            let (_, family) = family(s)?;
            let lines = opt(block(|s| channel_line(scope, family, s)));
            let (rest, items) = terminated(lines, end()).parse(rest)?;
            // BIRD's defaults.
            let mut channel = KernelChannel {
                import: Passes::All,
                export: Passes::Nothing,
            };
            for Located { value, .. } in items.into_iter().flatten() {
                match value {
                    Some(("import", passes)) => channel.import = passes,
                    Some((_, passes)) => channel.export = passes,
                    None => {}
                }
            }
            Ok((rest, KernelOption::Channel(family, channel)))
        }
        "disabled" => terminated(switch, end())
            .map(KernelOption::Disabled)
            .parse(rest),
        "kernel" => delimited(cut(token("table")), cut(|s| number(scope, s)), end())
            .map(KernelOption::Table)
            .parse(rest),
        "metric" => terminated(cut(|s| number(scope, s)), end())
            .map(KernelOption::Metric)
            .parse(rest),
        "merge" => {
            let limit = opt(preceded(token("limit"), cut(|s| number(scope, s))));
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
        "learn" => {
            let all = token("all").map(|_| Some(true));
            let some = switch.map(|on| on.then_some(false));
            terminated(alt((all, some)), end())
                .map(KernelOption::Learn)
                .parse(rest)
        }
        // The kernel says when something changes.
        "scan" => delimited(cut(token("time")), cut(|s| number::<u32>(scope, s)), end())
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

/// A line of the family of a kernel protocol; `None`: it changes nothing.
fn channel_line<'a>(
    scope: &mut Scope<'a>,
    family: Family,
    s: &'a str,
) -> Res<'a, Option<(&'static str, Passes<'a>)>> {
    if let Ok((rest, _)) = token("table")(s) {
        let (rest, ()) = super::master(super::master_of(family), rest)?;
        return token(";").map(|_| None).parse(rest);
    }
    line(scope, s).map(|(rest, line)| (rest, Some(line)))
}

/// A line of the family: `import …;` or `export …;`.
pub(super) fn line<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, (&'static str, Passes<'a>)> {
    let (rest, direction) = one_of_words(&["import", "export"], s)?;
    let passes = |s| policy::passes(scope, s);
    let (rest, passes) = terminated(cut(passes), token(";")).parse(rest)?;
    Ok((rest, (direction, passes)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_bgp::{FilterCondition, FilterTerm, FilterVerdict, RouteSource};

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
            near: BTreeSet::new(),
            table: 100,
            metric: 50,
            paths: 4,
            persist: true,
            protocol: Some(90),
            export: None,
            learn: None,
        };
        let learned = FilterTerm {
            conditions: vec![FilterCondition::Source(RouteSource::Bgp)],
            actions: vec![],
            verdict: Some(FilterVerdict::Accept),
        };
        let mut terms = nothing().terms;
        terms.insert(0, learned);
        let v6 = KernelTable {
            paths: MERGE_LIMIT,
            export: Some(Filter::from(terms)),
            ..KernelTable::default()
        };
        assert_eq!(both, Ok(vec![(Family::Ipv4, v4), (Family::Ipv6, v6)]));
    }

    /// The one table of a file.
    fn table(text: &str) -> KernelTable {
        let found = tables(text).unwrap();
        let [(_, table)] = &found[..] else {
            panic!("{found:?}");
        };
        table.clone()
    }

    #[test]
    fn filters_of_a_table() {
        let filter = "filter f { if (net ~ [ 10.0.0.0/8+ ]) then accept; }";
        let by_name = table(&format!(
            "protocol kernel {{ ipv4 {{ export filter f; }}; }} {filter}"
        ));
        let inline = table(
            "protocol kernel { ipv4 { export filter { if (net ~ [ 10.0.0.0/8+ ]) then accept; }; }; }",
        );
        let only = table("protocol kernel { ipv4 { export where net ~ [ 10.0.0.0/8+ ]; }; }");
        assert!(by_name.export.is_some());
        assert_eq!(by_name, inline);
        assert_eq!(by_name, only);
        let both = table(
            "protocol kernel { ipv4 { export where source = RTS_BGP && (net !~ [ 10.0.0.0/8+ ]); }; }",
        );
        assert_eq!(both.export.unwrap().terms[0].conditions.len(), 2);
        let report = tables("protocol kernel { ipv4 { export filter nobody; }; }").unwrap_err();
        assert!(report.contains("the name of a filter"), "{report}");
        // Without parentheses it is no list of terms.
        let mixed = "net ~ [ 10.0.0.0/8 ] || net ~ [ fd00::/8 ]";
        for text in [mixed, &format!("({mixed})")] {
            let table = table(&format!(
                "protocol kernel {{ ipv4 {{ export where {text}; }}; }}"
            ));
            let export = table.export.unwrap();
            assert_eq!(export.program.is_some(), text == mixed, "{text}");
        }
    }

    #[test]
    fn routes_of_others_are_learned_when_the_file_says_so() {
        let some = |text: &str| table(&format!("protocol kernel {{ {text} }}"));
        let plain = some("ipv4; learn;");
        assert_eq!(plain.learn, Some(Learn::default()));
        assert_eq!(plain.export, Some(nothing()), "and nothing is written");
        let all = some(
            "learn all; ipv4 { import where ifname != \"\" && ifname ~ \"eth*\"; export all; };",
        );
        let learn = all.learn.unwrap();
        assert!(learn.all);
        assert_eq!(
            learn.import.unwrap().terms[0].conditions,
            [FilterCondition::Interface("eth*".to_owned())]
        );
        assert_eq!(
            some("ipv4 { import none; export all; }; learn;").learn,
            None
        );
        assert_eq!(some("ipv4 { export all; }; learn; learn off;").learn, None);
        assert_eq!(
            tables("protocol kernel { ipv4 { import none; }; learn; }"),
            Ok(vec![])
        );
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
            ("protocol kernel { learn most; }", "found \"most\""),
            (
                "protocol kernel { ipv4 { export some; }; }",
                "found \"some\"",
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
