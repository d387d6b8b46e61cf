//! BFD: what a peer says of it, and `protocol bfd`, which says what holds for peers that say
//! nothing.

use std::time::Duration;

use caracal_bgp::BfdOptions;
use nom::combinator::opt;
use nom::{Err, Parser};

use super::constant::number;
use super::fixed;
use super::language::Scope;
use super::lexer::{
    Located, ParseFault, Res, block, one_of_words, skip, string, switch, symbol, token,
    until_semicolon,
};

/// BIRD's interval between packets, and how many of them may be missing.
const BIRDS: (Duration, u8) = (Duration::from_millis(100), 5);

/// What a line says of BFD.
#[derive(Clone, Copy, Debug)]
pub(super) enum BfdOption {
    Switch(bool),
    Graceful,
    Interval(Duration),
    Multiplier(u8),
    /// It changes nothing.
    Nothing,
}

/// What holds for peers that say nothing else: those on a link of ours, and those further away.
#[derive(Clone, Copy, Debug)]
pub(super) struct BfdTimes {
    pub(super) direct: BfdOptions,
    pub(super) multihop: BfdOptions,
}

impl BfdTimes {
    /// In a text that somebody has written, BIRD's; what is rendered says everything.
    pub(super) fn new(by_hand: bool) -> Self {
        let (interval, multiplier) = BIRDS;
        let times = match by_hand {
            true => BfdOptions {
                interval,
                multiplier,
                ..BfdOptions::default()
            },
            false => BfdOptions::default(),
        };
        Self {
            direct: times,
            multihop: times,
        }
    }

    /// Takes what a protocol says.
    pub(super) fn take(&mut self, lines: &BfdLines) {
        apply(&mut self.direct, &lines.direct);
        apply(&mut self.multihop, &lines.multihop);
    }
}

fn apply(times: &mut BfdOptions, options: &[BfdOption]) {
    for option in options {
        match option {
            BfdOption::Interval(interval) => times.interval = *interval,
            BfdOption::Multiplier(count) => times.multiplier = *count,
            BfdOption::Switch(_) | BfdOption::Graceful | BfdOption::Nothing => {}
        }
    }
}

/// What a peer says of BFD, on top of what holds for all.
pub(super) fn of_peer(options: &[BfdOption], times: BfdOptions) -> Option<BfdOptions> {
    let mut bfd: Option<BfdOptions> = None;
    for option in options {
        if let BfdOption::Switch(false) = option {
            bfd = None;
            continue;
        }
        let bfd = bfd.get_or_insert(times);
        bfd.graceful |= matches!(option, BfdOption::Graceful);
        apply(bfd, std::slice::from_ref(option));
    }
    bfd
}

/// Behind `bfd` of a peer: nothing, `on`, `off`, `graceful` or `{ interval 300 ms; … }`.
pub(super) fn options<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Vec<BfdOption>> {
    if skip(s).starts_with('{') {
        let (rest, options) = times(scope, s)?;
        let all = std::iter::once(BfdOption::Switch(true)).chain(options);
        return Ok((rest, all.collect()));
    }
    if let Ok((rest, _)) = token("graceful")(s) {
        return Ok((rest, vec![BfdOption::Graceful]));
    }
    switch.map(|on| vec![BfdOption::Switch(on)]).parse(s)
}

/// What `protocol bfd` says.
#[derive(Clone, Debug, Default)]
pub(super) struct BfdLines {
    direct: Vec<BfdOption>,
    multihop: Vec<BfdOption>,
}

/// Behind `protocol bfd`: `[NAME] { interface "*" { … }; multihop { … }; }`.
pub(super) fn protocol<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, BfdLines> {
    let (rest, _) = opt(symbol).parse(s)?;
    let (rest, items) = block(|s| line(scope, s))(rest)?;
    let mut lines = BfdLines::default();
    for Located { value, .. } in items {
        lines.direct.extend(value.direct);
        lines.multihop.extend(value.multihop);
    }
    Ok((rest, lines))
}

fn line<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, BfdLines> {
    const WORDS: [&str; 6] = [
        "interface",
        "multihop",
        "neighbor",
        "accept",
        "strict",
        "disabled",
    ];
    if let Ok((rest, ())) = fixed::of_any(s) {
        return Ok((rest, BfdLines::default()));
    }
    let at = skip(s);
    let wrong = |at, what: &str| Err(Err::Failure(ParseFault::new(at, what)));
    let (rest, word) = one_of_words(&WORDS, s)?;
    let mut lines = BfdLines::default();
    let rest = match word {
        "interface" => {
            let pattern = skip(rest);
            let (rest, name) = string(rest)?;
            if name != "*" || token("{")(rest).is_err() && token(";")(rest).is_err() {
                let what =
                    "\"*\": times for some interfaces stand in \"bfd { … };\" of the peers there";
                return wrong(pattern, what);
            }
            let (rest, options) = opt(|s| times(scope, s)).parse(rest)?;
            lines.direct = options.unwrap_or_default();
            rest
        }
        "multihop" => {
            let (rest, options) = times(scope, rest)?;
            lines.multihop = options;
            rest
        }
        "neighbor" => {
            let what = "no \"neighbor\": BFD runs with BGP peers only, where they say \"bfd;\"";
            return wrong(at, what);
        }
        "disabled" => match switch(rest)? {
            (rest, false) => rest,
            (_, true) => return wrong(at, "no line: peers without BFD say no \"bfd;\""),
        },
        _ => {
            let why =
                "there is a BFD session with each peer that says \"bfd;\", and with nobody else";
            scope.note(at, word, why);
            until_semicolon(rest)?.0
        }
    };
    token(";")(rest).map(|(rest, _)| (rest, lines))
}

/// `{ interval 300 ms; multiplier 3; }`.
fn times<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Vec<BfdOption>> {
    let (rest, options) = block(|s| time(scope, s))(s)?;
    let mut both: [Option<Located<'a, Duration>>; 2] = [None; 2];
    let mut all = Vec::new();
    for Located { at, value } in options {
        match value {
            Time::Option(option) => all.push(option),
            Time::Receive(value) => both[0] = Some(Located { at, value }),
            Time::Send(value) => both[1] = Some(Located { at, value }),
        }
    }
    match both {
        [None, None] => {}
        [Some(receive), Some(send)] if receive.value == send.value => {
            all.push(BfdOption::Interval(send.value));
        }
        [Some(one), _] | [_, Some(one)] => {
            let what =
                "\"interval\": packets come and go at one interval, or both lines say the same";
            return Err(Err::Failure(ParseFault::new(one.at, what)));
        }
    }
    Ok((rest, all))
}

enum Time {
    Option(BfdOption),
    Receive(Duration),
    Send(Duration),
}

fn time<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Time> {
    const WORDS: [&str; 6] = [
        "interval",
        "multiplier",
        "min",
        "idle",
        "passive",
        "authentication",
    ];
    let at = skip(s);
    let (rest, word) = one_of_words(&WORDS, s)?;
    let (rest, time) = match word {
        "interval" => duration(scope, rest)
            .map(|(rest, interval)| (rest, Time::Option(BfdOption::Interval(interval))))?,
        "multiplier" => number(scope, rest)
            .map(|(rest, count)| (rest, Time::Option(BfdOption::Multiplier(count))))?,
        "min" => {
            let (rest, way) = one_of_words(&["rx", "tx"], rest)?;
            let (rest, _) = token("interval")(rest)?;
            let (rest, interval) = duration(scope, rest)?;
            let time = match way {
                "rx" => Time::Receive(interval),
                _ => Time::Send(interval),
            };
            (rest, time)
        }
        "idle" => {
            let (rest, _) = (token("tx"), token("interval")).parse(rest)?;
            let (rest, _) = duration(scope, rest)?;
            let why = "a session that is not up sends once a second (RFC 5880 §6.8.3)";
            scope.note(at, "idle tx interval", why);
            (rest, Time::Option(BfdOption::Nothing))
        }
        "passive" => match switch(rest)? {
            (rest, false) => (rest, Time::Option(BfdOption::Nothing)),
            (_, true) => {
                let what = "no \"passive\": both ends begin";
                return Err(Err::Failure(ParseFault::new(at, what)));
            }
        },
        _ => {
            let found = skip(rest);
            let Ok((rest, _)) = token("none")(rest) else {
                let what = "\"none\": packets of BFD carry no authentication";
                return Err(Err::Failure(ParseFault::new(found, what)));
            };
            (rest, Time::Option(BfdOption::Nothing))
        }
    };
    token(";")(rest).map(|(rest, _)| (rest, time))
}

/// `300 ms`, `200 us`, `1 s`.
fn duration<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Duration> {
    let (rest, number): (_, u32) = number(scope, s)?;
    let (rest, unit) = one_of_words(&["ms", "us", "s"], rest)?;
    let duration = match unit {
        "ms" => Duration::from_millis(number.into()),
        "us" => Duration::from_micros(number.into()),
        _ => Duration::from_secs(number.into()),
    };
    Ok((rest, duration))
}
