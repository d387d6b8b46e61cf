//! Options of peers that are off unless the file asks for them: BFD, long-lived graceful restart,
//! limits, ADD-PATH.

use std::time::Duration;

use caracal_bgp::{AddPath, Counted, LimitAction, PathCount, PrefixLimit};
use nom::Parser;
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::sequence::{preceded, terminated};

use super::bfd::BfdOption;
use super::constant::number;
use super::language::Scope;
use super::lexer::switch;
use super::lexer::{Res, directive, end_of_line, one_of_words, token, u8_number, u32_number};
use crate::context::LIMITS;

/// BIRD's default for `long lived stale time`.
const STALE_TIME: Duration = Duration::from_secs(3600);
/// The pause of `action restart` without a `#: limit` line.
const RESTART: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) enum Extra {
    LongLived(bool),
    LongLivedTime(u32),
    LongLivedPartial,
    Bfd(Vec<BfdOption>),
    RequirePolicy,
}

/// `add paths` option of a family.
#[derive(Clone, Copy, Debug)]
pub(super) enum PathOption {
    /// `add paths …;`
    Switch(AddPath),
    /// `#: add paths best N`
    Best(u8),
}

/// A line about a limit of the prefixes of a family, and what it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitOption {
    pub(super) counted: Counted,
    pub(super) line: LimitLine,
}

/// What is said of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum LimitLine {
    /// `… limit MAX action …;`; `None` = off.
    Limit(Option<(u32, LimitAction)>),
    /// `#: … limit warning PERCENT restart SECONDS`
    Details { warning: u8, restart: u32 },
}

/// The options of a peer, the last of each kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    pub(super) long_lived: Option<Duration>,
    pub(super) long_lived_partial: bool,
    /// All lines about BFD, in order.
    pub(super) bfd: Vec<BfdOption>,
    pub(super) require_policy: bool,
}

impl Extras {
    pub(super) fn take(&mut self, extra: &Extra) {
        match extra {
            Extra::LongLived(on) => {
                self.long_lived = on.then(|| self.long_lived.unwrap_or(STALE_TIME));
            }
            Extra::LongLivedTime(seconds) => {
                self.long_lived = Some(Duration::from_secs((*seconds).into()));
            }
            Extra::Bfd(options) => self.bfd.extend(options),
            Extra::LongLivedPartial => self.long_lived_partial = true,
            Extra::RequirePolicy => self.require_policy = true,
        }
    }
}

/// The lines of a family about several paths, together.
pub(super) fn add_path(options: &[PathOption]) -> AddPath {
    let mut all = AddPath::default();
    for option in options {
        match option {
            PathOption::Switch(mode) => all = *mode,
            PathOption::Best(count) => all.send = Some(PathCount::Best(*count)),
        }
    }
    all
}

/// The lines of a family about the number of prefixes, together: the limits of what is received,
/// accepted, sent.
pub(super) fn prefix_limits(options: &[LimitOption]) -> [Option<PrefixLimit>; 3] {
    LIMITS.map(|(_, counted)| prefix_limit(options, counted))
}

fn prefix_limit(options: &[LimitOption], counted: Counted) -> Option<PrefixLimit> {
    let mut limit = None;
    for option in options.iter().filter(|option| option.counted == counted) {
        match (option.line, &mut limit) {
            (LimitLine::Limit(said), limit) => {
                *limit = said.map(|(max, action)| PrefixLimit {
                    action,
                    ..PrefixLimit::new(max)
                });
            }
            (LimitLine::Details { warning, restart }, Some(limit)) => {
                limit.warning = warning;
                if matches!(limit.action, LimitAction::Restart(_)) {
                    let pause = Duration::from_secs(restart.into());
                    limit.action = LimitAction::Restart(pause);
                }
            }
            (LimitLine::Details { .. }, None) => {}
        }
    }
    limit
}

/// After `long`: `lived graceful restart on;`, `lived stale time SECONDS;`.
pub(super) fn long_lived<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Extra> {
    let (rest, _) = token("lived")(s)?;
    let (rest, word) = one_of_words(&["graceful", "stale"], rest)?;
    if word == "graceful" {
        let aware = token("aware").map(|_| false);
        return preceded(token("restart"), alt((aware, switch)))
            .map(Extra::LongLived)
            .parse(rest);
    }
    preceded(token("time"), |s| number(scope, s))
        .map(Extra::LongLivedTime)
        .parse(rest)
}

/// After `add`: `paths on;`, `off`, `rx` or `tx`.
pub(super) fn add_paths(s: &str) -> Res<'_, PathOption> {
    let (rest, _) = token("paths")(s)?;
    let (rest, word) = opt(|s| one_of_words(&["rx", "tx"], s)).parse(rest)?;
    let (rest, on) = match word {
        Some(_) => (rest, true),
        None => switch(rest)?,
    };
    let mode = AddPath {
        receive: on && word != Some("tx"),
        send: (on && word != Some("rx")).then_some(PathCount::All),
    };
    token(";").map(|_| PathOption::Switch(mode)).parse(rest)
}

/// After `receive`, `import` or `export`, and `limit`: `MAX action warn;`, `block`, `disable` (the
/// default) or `restart`; `off;`.
pub(super) fn limit<'a>(
    scope: &mut Scope<'a>,
    counted: Counted,
    s: &'a str,
) -> Res<'a, LimitOption> {
    let option = |line| LimitOption { counted, line };
    let rest = s;
    if let Ok((rest, _)) = token("off")(rest) {
        let off = option(LimitLine::Limit(None));
        return token(";").map(|_| off).parse(rest);
    }
    let (rest, max) = number(scope, rest)?;
    let word = cut(|s| one_of_words(&["warn", "block", "disable", "restart"], s));
    let action = preceded(token("action"), word);
    let (rest, action) = terminated(opt(action), token(";")).parse(rest)?;
    let action = match action {
        Some("warn") => LimitAction::Warn,
        Some("block") => LimitAction::Block,
        Some("restart") => LimitAction::Restart(RESTART),
        _ => LimitAction::Disable,
    };
    Ok((rest, option(LimitLine::Limit(Some((max, action))))))
}

/// A `#:` line of a family.
pub(super) enum ChannelLine {
    Paths(PathOption),
    Limit(LimitOption),
}

/// `#: add paths best N`, `#: limit warning PERCENT restart SECONDS` about `receive limit`, and the
/// same with `import limit` and `export limit`.
pub(super) fn channel_line(s: &str) -> Res<'_, ChannelLine> {
    let (rest, line) = directive(s)?;
    let (line, word) = one_of_words(&["add", "limit", "import", "export"], line)?;
    let (line, value) = if word == "add" {
        let (line, count) = preceded((token("paths"), token("best")), u8_number).parse(line)?;
        (line, ChannelLine::Paths(PathOption::Best(count)))
    } else {
        let known = LIMITS.iter().find(|(limit, _)| *limit == word);
        let (line, counted) = match known {
            Some((_, counted)) => (token("limit")(line)?.0, *counted),
            None => (line, Counted::Received),
        };
        let (line, warning) = preceded(token("warning"), u8_number).parse(line)?;
        let (line, restart) = preceded(token("restart"), u32_number).parse(line)?;
        let details = LimitLine::Details { warning, restart };
        let option = LimitOption {
            counted,
            line: details,
        };
        (line, ChannelLine::Limit(option))
    };
    end_of_line(line)?;
    Ok((rest, value))
}
