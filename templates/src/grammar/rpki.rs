//! `protocol rpki`: a validator's cache, and the tables of origins that it fills. BIRD 2's words.

use std::collections::BTreeMap;

use caracal_bgp::{RtrCache, RtrTime};
use caracal_model::Family;
use nom::combinator::{cut, opt};
use nom::sequence::{preceded, terminated};
use nom::{Err, Parser};

use super::constant::{address, number, text};
use super::fixed;
use super::language::Scope;
use super::lexer::{Located, ParseFault, Res, block, one_of_words, skip, switch, symbol, token};
use super::route::{roa_family, roa_table};

/// A cache, and what its entries go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Where it is, and how it is asked.
    pub rtr: RtrCache,
    /// The name of the table of each family.
    pub tables: BTreeMap<Family, String>,
}

/// The statement, with its name; without a cache it is disabled.
pub(super) type CacheStatement<'a> = Located<'a, (String, Option<Cache>)>;

/// Bounds of RFC 8210 §6, in seconds.
const REFRESH: (u32, u32) = (1, 86_400);
const RETRY: (u32, u32) = (1, 7200);
const EXPIRE: (u32, u32) = (600, 172_800);

/// The version that a cache is asked for first.
const VERSION: u8 = 1;

enum CacheOption<'a> {
    Table(Family, &'a str),
    Remote(String, Option<u16>),
    Port(u16),
    Refresh(RtrTime),
    Retry(RtrTime),
    Expire(RtrTime),
    Disabled(bool),
    Ignored,
}

/// After `protocol rpki`: a name and a block.
pub(super) fn cache<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, CacheStatement<'a>> {
    let (rest, name) = opt(symbol).parse(s)?;
    let at = name.map_or_else(|| skip(s), |name| name.at);
    let name = name.map_or("rpki1", |name| name.value);
    let (rest, options) = block(|s| option(scope, s))(rest)?;
    let wrong = |at, what: &str| Err(Err::Failure(ParseFault::new(at, what)));
    let mut rtr = RtrCache::new(String::new());
    let mut tables = BTreeMap::new();
    let mut disabled = false;
    let mut expire = at;
    for Located { at, value } in options {
        match value {
            CacheOption::Table(family, table) => {
                if tables.insert(family, table).is_some() {
                    return wrong(at, "one channel for each family");
                }
            }
            CacheOption::Remote(host, port) => {
                rtr.host = host;
                rtr.port = port.unwrap_or(rtr.port);
            }
            CacheOption::Port(port) => rtr.port = port,
            CacheOption::Refresh(time) => rtr.refresh = time,
            CacheOption::Retry(time) => rtr.retry = time,
            CacheOption::Expire(time) => (rtr.expire, expire) = (time, at),
            CacheOption::Disabled(off) => disabled = off,
            CacheOption::Ignored => {}
        }
    }
    if rtr.host.is_empty() {
        let what = "a cache with a line \"remote ADDRESS port NUMBER;\"";
        return Err(Err::Failure(ParseFault::missing(at, what)));
    }
    if tables.is_empty() {
        let what = "a channel \"roa4 { table NAME; };\" or \"roa6 { table NAME; };\"";
        return Err(Err::Failure(ParseFault::missing(at, what)));
    }
    if rtr.expire.seconds <= rtr.refresh.seconds.max(rtr.retry.seconds) {
        return wrong(
            expire,
            "an \"expire\" longer than \"refresh\" and \"retry\" (RFC 8210, section 6)",
        );
    }
    if disabled {
        let value = (name.to_owned(), None);
        return Ok((rest, Located { at, value }));
    }
    scope.fill(name, &tables);
    let tables = tables.into_iter();
    let tables = tables.map(|(family, table)| (family, table.to_owned()));
    let tables = tables.collect();
    let value = (name.to_owned(), Some(Cache { rtr, tables }));
    Ok((rest, Located { at, value }))
}

fn option<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, CacheOption<'a>> {
    const WORDS: [&str; 11] = [
        "roa4",
        "roa6",
        "remote",
        "port",
        "refresh",
        "retry",
        "expire",
        "transport",
        "disabled",
        "max",
        "min",
    ];
    if let Ok((rest, ())) = fixed::of_any(s) {
        return Ok((rest, CacheOption::Ignored));
    }
    let (rest, word) = one_of_words(&WORDS, s)?;
    let end = || cut(token(";"));
    match word {
        "roa4" | "roa6" => {
            let family = roa_family(word);
            let (rest, table) = roa_table(scope, family, rest)?;
            Ok((rest, CacheOption::Table(family, table)))
        }
        "remote" => terminated(|s| remote(scope, s), end()).parse(rest),
        "port" => terminated(cut(|s| number(scope, s)), end())
            .map(CacheOption::Port)
            .parse(rest),
        "refresh" => time(scope, REFRESH, rest).map(|(rest, t)| (rest, CacheOption::Refresh(t))),
        "retry" => time(scope, RETRY, rest).map(|(rest, t)| (rest, CacheOption::Retry(t))),
        "expire" => time(scope, EXPIRE, rest).map(|(rest, t)| (rest, CacheOption::Expire(t))),
        "transport" => transport(rest),
        "disabled" => terminated(switch, end())
            .map(CacheOption::Disabled)
            .parse(rest),
        bound => {
            let (rest, _) = token("version")(rest)?;
            let at = skip(rest);
            let (rest, version) = number::<u8>(scope, rest)?;
            let what = match bound {
                "max" if version < VERSION => "1: version 1 is asked for first (RFC 8210)",
                "min" if version > 0 => "0: version 0 is taken from a cache that has no other",
                _ => return end().map(|_| CacheOption::Ignored).parse(rest),
            };
            Err(Err::Failure(ParseFault::new(at, what)))
        }
    }
}

/// Behind `remote`: a name in quotes or an address, and a port.
fn remote<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, CacheOption<'a>> {
    let at = skip(s);
    let (rest, host) = match text(scope, at) {
        Ok((_, name)) if name.is_empty() => {
            return Err(Err::Failure(ParseFault::new(at, "the name of a machine")));
        }
        Ok(found) => found,
        Err(_) => {
            let (rest, address) = cut(|s| address(scope, s)).parse(at)?;
            (rest, address.to_string())
        }
    };
    let port = preceded(token("port"), cut(|s| number(scope, s)));
    let (rest, port) = opt(port).parse(rest)?;
    Ok((rest, CacheOption::Remote(host, port)))
}

/// `[keep] SECONDS;`
fn time<'a>(scope: &mut Scope<'a>, (least, most): (u32, u32), s: &'a str) -> Res<'a, RtrTime> {
    let (rest, keep) = opt(token("keep")).parse(s)?;
    let at = skip(rest);
    let (rest, seconds) = terminated(cut(|s| number(scope, s)), cut(token(";"))).parse(rest)?;
    if !(least..=most).contains(&seconds) {
        let what = format!("a number from {least} to {most} (RFC 8210, section 6)");
        return Err(Err::Failure(ParseFault::new(at, what)));
    }
    let keep = keep.is_some();
    Ok((rest, RtrTime { seconds, keep }))
}

/// `tcp;`, or what is not done.
fn transport(s: &str) -> Res<'_, CacheOption<'_>> {
    let at = skip(s);
    let what = "\"tcp;\": a connection by SSH, or with a password, is not done; \"ssh -L\" beside this speaker leads to \
                the cache, too";
    let (rest, _) = token("tcp")(s).map_err(|_| Err::Failure(ParseFault::new(at, what)))?;
    match token(";")(rest) {
        Ok((rest, _)) => Ok((rest, CacheOption::Ignored)),
        Err(_) => Err(Err::Failure(ParseFault::new(at, what))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use caracal_bgp::{AsPath, Asn, FilterVerdict, PathAttrs, PeerKind, Roa, RouteSource};

    use super::*;
    use crate::{Learned, Surroundings, Texts, parse_file};

    fn file(text: &str) -> String {
        format!("router id 10.0.0.1;\ndefine caracal_local_as = 64512;\n{text}\n")
    }

    const CACHE: &str = "roa4 table r4;
        roa6 table r6;
        protocol rpki validator {
          roa4 { table r4; };
          roa6 { table r6; };
          remote \"rtr.example.net\" port 3323;
          refresh keep 60; retry 10; expire 600;
          transport tcp;
        }";

    fn time(seconds: u32, keep: bool) -> RtrTime {
        RtrTime { seconds, keep }
    }

    #[test]
    fn birds_words_for_a_cache() {
        let read = parse_file(&file(CACHE)).unwrap();
        let cache = &read.caches["validator"];
        let rtr = RtrCache {
            host: "rtr.example.net".to_owned(),
            port: 3323,
            refresh: time(60, true),
            retry: time(10, false),
            expire: time(600, false),
        };
        assert_eq!(cache.rtr, rtr);
        let tables: Vec<&str> = cache.tables.values().map(String::as_str).collect();
        assert_eq!(tables, ["r4", "r6"]);
        let text = "roa4 table t; protocol rpki { roa4; remote 192.0.2.1; }";
        let read = parse_file(&file(text)).unwrap();
        let rtr = RtrCache::new("192.0.2.1".to_owned());
        assert_eq!(read.caches["rpki1"].rtr, rtr, "the defaults");
        assert_eq!(read.caches["rpki1"].tables[&Family::Ipv4], "t");
        let off = text.replace("remote", "disabled; remote");
        assert!(parse_file(&file(&off)).unwrap().caches.is_empty());
    }

    /// What BIRD needs for filters to run again is so here without a word.
    #[test]
    fn lines_of_a_channel_that_are_so_anyway() {
        let text = |inside: &str| {
            let peer = "protocol bgp a { local as 1; neighbor 10.0.0.2 as 1; ipv4";
            file(&format!("{peer} {{ {inside} import all; }}; }}"))
        };
        let lines = "import table on; export table; rpki reload on; import keep filtered;";
        let with = parse_file(&text(lines)).unwrap();
        assert_eq!(with, parse_file(&text("")).unwrap());
    }

    #[test]
    fn what_is_missing_or_wrong_is_told_with_its_place() {
        for (inside, expected) in [
            ("roa4 { table r4; };", "remote ADDRESS"),
            ("remote 192.0.2.1;", "a channel \"roa4"),
            (
                "roa4 { table r6; }; remote 192.0.2.1;",
                "a table of this family",
            ),
            (
                "roa4; roa4; remote 192.0.2.1;",
                "one channel for each family",
            ),
            ("roa4; remote 192.0.2.1; refresh 0;", "from 1 to 86400"),
            ("roa4; remote 192.0.2.1; expire 599;", "from 600 to 172800"),
            (
                "roa4; remote 192.0.2.1; expire 3600;",
                "longer than \"refresh\"",
            ),
            (
                "roa4; remote 192.0.2.1; transport ssh { user \"x\"; };",
                "SSH, or with a password",
            ),
            (
                "roa4; remote 192.0.2.1; transport tcp { authentication md5; };",
                "SSH, or with a password",
            ),
            ("roa4; remote \"\";", "the name of a machine"),
            ("roa4; remote 192.0.2.1; min version 1;", "0: version 0"),
            ("roa4; remote 192.0.2.1; max version 0;", "1: version 1"),
        ] {
            let text = format!("roa4 table r4; roa6 table r6;\nprotocol rpki {{ {inside} }}");
            let report = parse_file(&file(&text)).unwrap_err().report("f");
            assert!(report.contains(expected), "{inside}: {report}");
        }
        let twice = format!("{CACHE}\nprotocol rpki validator {{ roa4; remote 192.0.2.1; }}");
        let report = parse_file(&file(&twice)).unwrap_err().report("f");
        assert!(report.contains("another name"), "{report}");
    }

    /// What a cache has sent is in the tables that filters ask, wherever these stand, beside static
    /// entries; each family in its own.
    #[test]
    fn entries_of_a_cache_are_in_its_tables() {
        let text = file(&format!(
            "roa4 table other;
             {CACHE}
             protocol static {{ roa4 {{ table r4; }}; route 10.2.0.0/16 max 24 as 2; }}
             filter judged {{ if roa_check(r4) = ROA_VALID then accept; reject; }}
             filter elsewhere {{ if roa_check(other) = ROA_UNKNOWN then accept; reject; }}"
        ));
        let texts = Texts::new("f", &text, &mut |_, _| Ok(Vec::new())).unwrap();
        let entry = |prefix: &str, asn| Roa {
            prefix: prefix.parse().unwrap(),
            max: 24,
            asn,
        };
        let entries = [entry("10.1.0.0/16", 1), entry("2001:db8::/24", 1)];
        let learned = |entries: &[Roa]| {
            let entries: Arc<[Roa]> = entries.into();
            Learned::from([("validator".to_owned(), entries)])
        };
        let read = |learned: &Learned| {
            let around = Surroundings {
                router_id: &|_| Err("no machine".to_owned()),
                learned,
            };
            texts.read(around).unwrap()
        };
        let none = read(&Learned::new());
        assert_eq!(none, read(&learned(&[])));
        let some = read(&learned(&entries));
        let (before, after) = (&none.speaker.filters, &some.speaker.filters);
        assert_ne!(before["judged"], after["judged"]);
        assert_eq!(before["elsewhere"], after["elsewhere"]);
        let accepts = |filter: &str, prefix: &str, asn| {
            let attrs = PathAttrs {
                as_path: AsPath::sequence([Asn(asn)]),
                ..PathAttrs::default()
            };
            let prefix = prefix.parse().unwrap();
            let filter = &some.speaker.filters[filter];
            let judged = filter.judge(prefix, attrs, RouteSource::Bgp, PeerKind::External);
            judged.0 == Some(FilterVerdict::Accept)
        };
        assert!(accepts("judged", "10.1.0.0/16", 1));
        assert!(!accepts("judged", "10.1.0.0/16", 2));
        assert!(accepts("judged", "10.2.0.0/16", 2), "a static entry");
        assert!(accepts("elsewhere", "10.1.0.0/16", 1));
    }
}
