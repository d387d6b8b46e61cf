//! Options of a peer and of its families whose value is given here. A line that says this value is
//! read, and one that says another is an error with the reason.

use nom::Err;

use super::constant::number;
use super::language::Scope;
use super::lexer::{ParseFault, Res, one_of_words, skip, string, switch, token, until_semicolon};

/// What may stand behind the words.
#[derive(Clone, Copy)]
enum Given {
    On,
    Off,
    /// Both: the outcome is the same.
    Either,
    Number(u32),
    /// A line with these words is refused whatever it says.
    Never,
    /// Anything; a note says why it has no effect.
    Noted,
}

struct Fixed {
    words: &'static [&'static str],
    given: Given,
    /// Why it is so.
    why: &'static str,
}

const fn fixed(words: &'static [&'static str], given: Given, why: &'static str) -> Fixed {
    Fixed { words, given, why }
}

const TIMERS: &str = "the speaker has its own timers and log";
const NO_CONFEDERATION: &str = "there are no confederations";

/// Options of a peer. Those with more words come before those that they begin with.
const OF_PEERS: &[Fixed] = &[
    fixed(
        &["path", "metric"],
        Given::On,
        "the length of AS_PATH counts (RFC 4271 §9.1.2.2)",
    ),
    fixed(
        &["igp", "metric"],
        Given::On,
        "the metric to the next hop counts (RFC 4271 §9.1.2.2)",
    ),
    fixed(
        &["med", "metric"],
        Given::Off,
        "MULTI_EXIT_DISC counts between paths of one AS (RFC 4271 §9.1.2.2)",
    ),
    fixed(
        &["deterministic", "med"],
        Given::Either,
        "the order of arrival never counts",
    ),
    fixed(
        &["prefer", "older"],
        Given::Off,
        "the order of arrival never counts",
    ),
    fixed(
        &["default", "bgp_local_pref"],
        Given::Number(100),
        "a route without LOCAL_PREF has 100",
    ),
    fixed(
        &["default", "bgp_med"],
        Given::Number(0),
        "a route without MULTI_EXIT_DISC has the lowest (RFC 4271 §9.1.2.2)",
    ),
    fixed(
        &["interpret", "communities"],
        Given::On,
        "NO_EXPORT and NO_ADVERTISE hold (RFC 1997)",
    ),
    fixed(
        &["capabilities"],
        Given::On,
        "capabilities are always sent (RFC 5492)",
    ),
    fixed(
        &["enable", "route", "refresh"],
        Given::On,
        "it is always offered (RFC 2918)",
    ),
    fixed(
        &["enable", "enhanced", "route", "refresh"],
        Given::On,
        "it is always offered (RFC 7313)",
    ),
    fixed(
        &["enable", "as4"],
        Given::On,
        "AS numbers of 32 bits are always offered (RFC 6793)",
    ),
    fixed(
        &["enable", "extended", "messages"],
        Given::On,
        "they are always offered (RFC 8654)",
    ),
    fixed(
        &["advertise", "hostname"],
        Given::Off,
        "the host's name is not sent",
    ),
    fixed(
        &["allow", "bgp_local_pref"],
        Given::Off,
        "LOCAL_PREF of external peers is never taken (RFC 4271 §5.1.5)",
    ),
    fixed(
        &["allow", "bgp_med"],
        Given::On,
        "MULTI_EXIT_DISC of peers is taken",
    ),
    fixed(
        &["free", "bind"],
        Given::Off,
        "the address of the session has to be one of this machine's",
    ),
    fixed(&["confederation"], Given::Never, NO_CONFEDERATION),
    fixed(
        &["router", "id"],
        Given::Never,
        "all peers hear the router id of the file",
    ),
    fixed(
        &["vrf"],
        Given::Never,
        "there are no VRFs; run a speaker inside of one (`ip vrf exec`)",
    ),
    fixed(
        &["setkey"],
        Given::Noted,
        "the kernel has the key by another way",
    ),
    fixed(&["connect", "delay", "time"], Given::Noted, TIMERS),
    fixed(&["connect", "retry", "time"], Given::Noted, TIMERS),
    fixed(&["error", "wait", "time"], Given::Noted, TIMERS),
    fixed(&["error", "forget", "time"], Given::Noted, TIMERS),
    fixed(&["startup", "hold", "time"], Given::Noted, TIMERS),
    fixed(&["debug"], Given::Noted, TIMERS),
    fixed(
        &["mrtdump"],
        Given::Noted,
        "\"protocol mrt\" and BMP say what a peer sends",
    ),
];

/// Options of a family of a peer.
const OF_FAMILIES: &[Fixed] = &[
    fixed(
        &["missing", "lladdr"],
        Given::Noted,
        "the link-local address is not told beside a global one",
    ),
    fixed(
        &["secondary"],
        Given::Off,
        "a peer is told the best path, or all with \"add paths\"",
    ),
    fixed(
        &["mandatory"],
        Given::Off,
        "a session comes up with the families that both have",
    ),
    fixed(&["aigp"], Given::Off, "AIGP is not done"),
    fixed(
        &["cost"],
        Given::Number(0),
        "the metric to the next hop is the kernel's",
    ),
    fixed(
        &["graceful", "restart"],
        Given::On,
        "graceful restart is for all families of a peer",
    ),
    fixed(
        &["long", "lived", "graceful", "restart"],
        Given::On,
        "long-lived graceful restart is for all families of a peer",
    ),
    fixed(&["debug"], Given::Noted, TIMERS),
];

/// Reads an option of a peer with a given value.
pub(super) fn of_peer<'a>(scope: &mut Scope<'a>, s: &'a str) -> Option<Res<'a, ()>> {
    find(OF_PEERS, scope, s)
}

/// Reads an option of a family with a given value.
pub(super) fn of_family<'a>(scope: &mut Scope<'a>, s: &'a str) -> Option<Res<'a, ()>> {
    find(OF_FAMILIES, scope, s)
}

/// `None`: the line begins otherwise.
fn find<'a>(known: &[Fixed], scope: &mut Scope<'a>, s: &'a str) -> Option<Res<'a, ()>> {
    known.iter().find_map(|fixed| {
        let mut rest = s;
        for word in fixed.words {
            (rest, _) = token(word)(rest).ok()?;
        }
        Some(read(fixed, scope, skip(s), rest))
    })
}

fn read<'a>(fixed: &Fixed, scope: &mut Scope<'a>, at: &'a str, s: &'a str) -> Res<'a, ()> {
    let words = fixed.words.join(" ");
    let found = skip(s);
    let wrong = |wanted: &str| {
        let what = format!("{wanted}: {}", fixed.why);
        Err(Err::Failure(ParseFault::new(found, what)))
    };
    let rest = match fixed.given {
        Given::On | Given::Off | Given::Either => {
            let (rest, on) = on_or_off(scope, s)?;
            match (fixed.given, on) {
                (Given::On, false) => return wrong("\"on\""),
                (Given::Off, true) => return wrong("\"off\""),
                _ => rest,
            }
        }
        Given::Number(only) => match number::<u32>(scope, s)? {
            (rest, found) if found == only => rest,
            _ => return wrong(&only.to_string()),
        },
        Given::Never => {
            let what = format!("no \"{words}\": {}", fixed.why);
            return Err(Err::Failure(ParseFault::new(at, what)));
        }
        Given::Noted => {
            scope.note(at, &words, fixed.why);
            until_semicolon(s)?.0
        }
    };
    token(";")(rest).map(|(rest, _)| (rest, ()))
}

/// A switch, which may be a number as well.
pub(super) fn on_or_off<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, bool> {
    match skip(s).starts_with(|c: char| c.is_ascii_digit() || c == '(') {
        true => number::<u32>(scope, s).map(|(rest, value)| (rest, value != 0)),
        false => switch(s),
    }
}

/// `description "TEXT";`, `debug …;`, `mrtdump …;`: lines of any protocol that change nothing.
pub(super) fn of_any(s: &str) -> Res<'_, ()> {
    let (rest, word) = one_of_words(&["description", "debug", "mrtdump"], s)?;
    let (rest, _) = match word {
        "description" => string(rest)?,
        _ => until_semicolon(rest)?,
    };
    token(";")(rest).map(|(rest, _)| (rest, ()))
}
