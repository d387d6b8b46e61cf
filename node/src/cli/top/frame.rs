//! A frame of `caracal top`: what is known of a node as lines of a given width. No clock, no
//! terminal. What others wrote (names, reasons, messages of peers) is text here and nothing else:
//! it moves no cursor and changes no colour.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use caracal_model::{NodeStatus, PeerStatusJson};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::cli::duration;
use crate::metrics::{self, process::Figures};

/// Widest name of a peer.
const WIDEST_NAME: usize = 32;
/// Narrowest room for the reason of a session that is down.
const NARROWEST_REASON: usize = 12;
/// And the narrowest beside the state and the time.
const NARROWEST_NAME: usize = 12;
/// Columns that are left out last: state, name and time.
const CORE: usize = 3;
/// Between two columns.
const GAP: usize = 2;

/// How a text looks. Each says something in words or signs as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Bold,
    Quiet,
    Good,
    Warning,
    Bad,
    Reverse,
}

/// A text that looks one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) look: Look,
    pub(super) text: String,
}

pub(super) type Line = Vec<Span>;

fn span(look: Look, text: impl Into<String>) -> Span {
    let text = text.into();
    Span { look, text }
}

/// A node as it was at one time.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at: Instant,
    /// How long the node took to answer.
    pub(super) took: Duration,
    pub(super) status: NodeStatus,
    /// Processors and passes; an older node does not tell them.
    pub(super) figures: Option<Figures>,
}

/// What the rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Peer,
    Asn,
    State,
    Since,
    Received,
    Change,
    Accepted,
    Sent,
}

impl Column {
    pub(super) const ALL: [Self; 8] = [
        Self::Peer,
        Self::Asn,
        Self::State,
        Self::Since,
        Self::Received,
        Self::Change,
        Self::Accepted,
        Self::Sent,
    ];

    const fn title(self) -> &'static str {
        match self {
            Self::Peer => "PEER",
            Self::Asn => "AS",
            Self::State => "STATE",
            Self::Since => "SINCE",
            Self::Received => "RECEIVED",
            Self::Change => "CHANGE/S",
            Self::Accepted => "ACCEPTED",
            Self::Sent => "SENT",
        }
    }

    /// Where there is no room for all, those with the largest number go first.
    const fn rank(self) -> u8 {
        match self {
            Self::State => 0,
            Self::Peer => 1,
            Self::Since => 2,
            Self::Received => 3,
            Self::Sent => 4,
            Self::Asn => 5,
            Self::Change => 6,
            Self::Accepted => 7,
        }
    }

    const fn is_text(self) -> bool {
        matches!(self, Self::Peer | Self::State)
    }

    /// The column beside it, round and round.
    pub(super) fn beside(self, forward: bool) -> Self {
        let count = Self::ALL.len();
        let at = Self::ALL.iter().position(|column| *column == self);
        let step = if forward { 1 } else { count - 1 };
        Self::ALL[(at.unwrap_or_default() + step) % count]
    }
}

/// What a frame is made of.
pub(super) struct View {
    /// The last look, and the one before it.
    pub(super) seen: Seen,
    pub(super) before: Option<Seen>,
    /// Why the node does not answer now.
    pub(super) silent: Option<String>,
    pub(super) sort: Column,
    pub(super) is_reverse: bool,
    /// The first row that is shown.
    pub(super) first: usize,
}

/// Text that a terminal shows as it stands: what would control it, or turn around what stands
/// beside it, is a sign in its place.
pub(super) fn clean(text: &str) -> String {
    let shown = |c: char| match c {
        '\t' | '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        // Marks that order text from right to left, and characters without a place of their own.
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => '\u{fffd}',
        '\u{feff}' | '\u{061c}' | '\u{fff9}'..='\u{fffb}' => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// At most so many columns of a text; what is cut off is told.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut kept, mut room) = (String::new(), width.saturating_sub(1));
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if wide > room {
            break;
        }
        room -= wide;
        kept.push(c);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

fn padded(text: &str, width: usize, is_text: bool) -> String {
    let text = cut(text, width);
    let blanks = " ".repeat(width - text.width());
    match is_text {
        true => text + &blanks,
        false => blanks + &text,
    }
}

/// Parts one after the other, on as many lines as they need.
fn flow(parts: Vec<Span>, width: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = vec![Vec::new()];
    let mut used = 0;
    for mut part in parts {
        part.text = cut(&part.text, width);
        let wide = part.text.width();
        if used > 0 && used + GAP + wide > width {
            lines.push(Vec::new());
            used = 0;
        }
        let Some(line) = lines.last_mut() else { break };
        if used > 0 {
            line.push(span(Look::Plain, " ".repeat(GAP)));
            used += GAP;
        }
        used += wide;
        line.push(part);
    }
    lines
}

impl View {
    /// The frame. `height`: rows of the terminal; `None`: as many as there are, for a file.
    pub(super) fn frame(&self, width: usize, height: Option<usize>) -> Vec<Line> {
        let mut lines = self.head(width);
        let problems = self.problems(width, height.map(|height| (height / 3).max(2)));
        let help = height.map(|_| self.help(width));
        let rows = self.rows();
        let room = height.map_or(rows.len(), |height| {
            let taken = lines.len() + 2 + problems.len() + 1;
            height.saturating_sub(taken).max(1)
        });
        lines.push(Vec::new());
        lines.extend(self.table(&rows, width, room));
        lines.extend(problems);
        if let (Some(height), Some(help)) = (height, help) {
            lines.truncate(height.saturating_sub(1));
            lines.resize(height.saturating_sub(1), Vec::new());
            lines.push(help);
        }
        lines
    }

    /// How many rows may be above the first one that is shown.
    pub(super) fn last_first(&self) -> usize {
        self.seen.status.peers.len().saturating_sub(1)
    }

    /// Seconds between the two looks.
    fn interval(&self) -> Option<f64> {
        let before = self.before.as_ref()?;
        let passed = self.seen.at.saturating_duration_since(before.at);
        Some(passed.as_secs_f64()).filter(|seconds| *seconds > 0.0)
    }

    fn head(&self, width: usize) -> Vec<Line> {
        let status = &self.seen.status;
        let plain = |text: String| span(Look::Plain, clean(&text));
        let mut first = vec![
            span(Look::Bold, clean(&status.node)),
            plain(format!("up {}", duration(status.uptime_seconds))),
            plain(format!("AS {}", status.asn)),
        ];
        let datastore = &status.datastore;
        // A standalone speaker has neither of the two.
        if !matches!(datastore.state.as_str(), "" | "none") {
            let text = format!("datastore {} at {}", datastore.state, datastore.revision);
            let look = match datastore.state.as_str() {
                "fresh" => Look::Plain,
                _ => Look::Warning,
            };
            first.push(span(look, clean(&text)));
        }
        let kernel = &status.kernel;
        if !matches!(kernel.phase.as_str(), "" | "none") {
            first.push(plain(format!(
                "kernel {} at {}",
                kernel.phase, kernel.revision
            )));
        }
        if let Some(drain) = &status.drain {
            first.push(span(
                Look::Warning,
                clean(&format!("out of service: {drain}")),
            ));
        }
        let mut lines = flow(first, width);
        lines.extend(flow(self.figures(), width));
        if let Some(reason) = &self.silent {
            let text = format!("▲ the node does not answer, it is asked again: {reason}");
            lines.push(vec![span(Look::Bad, cut(&clean(&text), width))]);
        }
        lines
    }

    /// Sessions, problems, processor, memory, and what goes into the kernel.
    fn figures(&self) -> Vec<Span> {
        let status = &self.seen.status;
        let up = status.peers.iter().filter(|peer| is_up(peer)).count();
        let all = status.peers.len();
        let look = |good| if good { Look::Good } else { Look::Bad };
        let sign = |good| if good { '●' } else { '▲' };
        let wrong = status.problems.len();
        let mut parts = vec![
            span(
                look(up == all),
                format!("{} sessions {up} of {all}", sign(up == all)),
            ),
            span(
                look(wrong == 0),
                format!("{} problems {wrong}", sign(wrong == 0)),
            ),
        ];
        let received: usize = status.peers.iter().map(|peer| peer.received).sum();
        parts.push(span(Look::Plain, format!("received {received}")));
        let Some(figures) = &self.seen.figures else {
            return parts;
        };
        let before = self.before.as_ref().and_then(|seen| seen.figures.as_ref());
        let passed = self.interval().zip(before);
        if let Some((seconds, before)) = passed {
            let cpu = 100.0 * (figures.cpu_seconds - before.cpu_seconds).max(0.0) / seconds;
            parts.push(span(Look::Plain, format!("CPU {cpu:.1} %")));
        }
        let mebibytes = figures.resident_bytes / 1_048_576.0;
        parts.push(span(Look::Plain, format!("memory {mebibytes:.0} MiB")));
        let plain = |text: String| span(Look::Plain, text);
        let speaker = figures.speaker.as_ref();
        let speakers = speaker.zip(before.and_then(|before| before.speaker.as_ref()));
        if let (Some((now, was)), Some((seconds, _))) = (speakers, passed) {
            let rate = |now: u64, was: u64| per_second(now.saturating_sub(was), seconds);
            let (received, sent) = (rate(now.received, was.received), rate(now.sent, was.sent));
            parts.push(plain(format!("UPDATEs {received}/s in, {sent}/s out")));
        }
        let answered = 1000.0 * self.seen.took.as_secs_f64();
        parts.push(plain(format!("answers in {answered:.1} ms")));
        if let Some(speaker) = speaker {
            let longest = 1000.0 * speaker.longest_turn_seconds;
            parts.push(plain(format!("longest turn {longest:.1} ms")));
        }
        let agent = figures.agent.as_ref();
        let agents = agent.zip(before.and_then(|before| before.agent.as_ref()));
        if let (Some((now, was)), Some((seconds, _))) = (agents, passed) {
            let changes = now.applied.saturating_sub(was.applied);
            let text = format!("kernel changes {}/s", per_second(changes, seconds));
            parts.push(span(Look::Plain, text));
            let passes = now.passes.saturating_sub(was.passes);
            let spent = 1000.0 * (now.pass_seconds - was.pass_seconds).max(0.0);
            // Nothing has changed since the last look: how long it took on average until then.
            let mean = match passes {
                0 if now.passes > 0 => 1000.0 * now.pass_seconds / metrics::total(now.passes),
                0 => 0.0,
                passes => spent / metrics::total(passes),
            };
            let text = format!("passes {}/s of {mean:.1} ms", per_second(passes, seconds));
            parts.push(span(Look::Plain, text));
        }
        parts
    }

    /// Change of received prefixes a second.
    fn change(&self, peer: &PeerStatusJson) -> Option<f64> {
        let seconds = self.interval()?;
        let peers = &self.before.as_ref()?.status.peers;
        let before = peers.iter().find(|before| before.name == peer.name)?;
        let of = |peer: &PeerStatusJson| metrics::count(peer.received);
        Some((of(peer) - of(before)) / seconds)
    }

    /// The peers in order.
    fn rows(&self) -> Vec<&PeerStatusJson> {
        let mut rows: Vec<&PeerStatusJson> = self.seen.status.peers.iter().collect();
        let change = |peer: &PeerStatusJson| self.change(peer).unwrap_or_default().abs();
        let by = |a: &PeerStatusJson, b: &PeerStatusJson| match self.sort {
            Column::Peer => Ordering::Equal,
            Column::Asn => a.asn.cmp(&b.asn),
            // Those that are down, and of them those that are not meant to be, first.
            Column::State => rank(a).cmp(&rank(b)),
            Column::Since => a.since_seconds.cmp(&b.since_seconds),
            Column::Received => b.received.cmp(&a.received),
            Column::Change => change(b).total_cmp(&change(a)),
            Column::Accepted => b.accepted.cmp(&a.accepted),
            Column::Sent => b.advertised.cmp(&a.advertised),
        };
        rows.sort_by(|a, b| by(a, b).then_with(|| a.name.cmp(&b.name)));
        if self.is_reverse {
            rows.reverse();
        }
        rows
    }

    fn cell(&self, peer: &PeerStatusJson, column: Column) -> String {
        match column {
            Column::Peer => clean(peer.bgp_peer.as_deref().unwrap_or(&peer.name)),
            Column::Asn => peer.asn.to_string(),
            Column::State => format!("{} {}", sign(peer), clean(state(peer))),
            Column::Since => duration(peer.since_seconds),
            Column::Received => peer.received.to_string(),
            Column::Change => match self.change(peer) {
                Some(change) if change.abs() >= 0.5 => format!("{change:+.0}"),
                _ => "-".to_owned(),
            },
            Column::Accepted => peer.accepted.to_string(),
            Column::Sent => peer.advertised.to_string(),
        }
    }

    /// The columns that there is room for, with their widths.
    fn columns(&self, rows: &[&PeerStatusJson], width: usize) -> Vec<(Column, usize)> {
        let wide = |column: Column| {
            let cells = rows.iter().map(|peer| self.cell(peer, column).width());
            // One more for the sign of the order.
            let wide = cells.max().unwrap_or(0).max(column.title().len() + 1);
            match column {
                Column::Peer => wide.min(WIDEST_NAME),
                _ => wide,
            }
        };
        let mut columns: Vec<_> = Column::ALL.into_iter().map(|c| (c, wide(c))).collect();
        let total = |columns: &[(Column, usize)]| {
            let cells: usize = columns.iter().map(|(_, wide)| wide).sum();
            cells + GAP * columns.len().saturating_sub(1)
        };
        // Of what matters most, the name gives way before another column goes.
        for (fewest, narrowest) in [(CORE, NARROWEST_NAME), (1, 1)] {
            while total(&columns) > width && columns.len() > fewest {
                let last = columns.iter().map(|(column, _)| column.rank()).max();
                columns.retain(|(column, _)| Some(column.rank()) != last);
            }
            let over = total(&columns).saturating_sub(width);
            if let Some((_, wide)) = columns.iter_mut().find(|(c, _)| *c == Column::Peer) {
                *wide = wide.saturating_sub(over).max(narrowest.min(*wide));
            }
        }
        columns
    }

    fn table(&self, rows: &[&PeerStatusJson], width: usize, room: usize) -> Vec<Line> {
        let columns = self.columns(rows, width);
        let used: usize = columns.iter().map(|(_, wide)| wide + GAP).sum();
        let left = width.saturating_sub(used);
        let title = |&(column, wide): &(Column, usize)| {
            let mark = match (column == self.sort, self.is_reverse) {
                (true, false) => "▾",
                (true, true) => "▴",
                (false, _) => "",
            };
            padded(&format!("{}{mark}", column.title()), wide, column.is_text())
        };
        let titles: Vec<String> = columns.iter().map(title).collect();
        let mut head = titles.join(&" ".repeat(GAP));
        if left >= NARROWEST_REASON {
            head.push_str("  REASON");
        }
        let mut lines = vec![vec![span(
            Look::Reverse,
            padded(&head, width.min(400), true),
        )]];
        if rows.is_empty() {
            lines.push(vec![span(
                Look::Quiet,
                cut("no peers are configured", width),
            )]);
        }
        let first = self.first.min(rows.len().saturating_sub(1));
        let shown = rows.iter().skip(first).take(room);
        lines.extend(shown.map(|peer| {
            let mut line = Line::new();
            for (n, &(column, wide)) in columns.iter().enumerate() {
                if n > 0 {
                    line.push(span(Look::Plain, " ".repeat(GAP)));
                }
                let look = match column {
                    Column::State => look_of(peer),
                    _ => Look::Plain,
                };
                let text = padded(&self.cell(peer, column), wide, column.is_text());
                line.push(span(look, text));
            }
            let reason = peer.reason.as_deref().filter(|_| left >= NARROWEST_REASON);
            if let Some(reason) = reason {
                line.push(span(Look::Plain, " ".repeat(GAP)));
                line.push(span(Look::Quiet, cut(&clean(reason), left)));
            }
            line
        }));
        lines
    }

    /// What is wrong, at most so many lines.
    fn problems(&self, width: usize, most: Option<usize>) -> Vec<Line> {
        let problems = &self.seen.status.problems;
        if problems.is_empty() {
            return Vec::new();
        }
        let most = most.unwrap_or(usize::MAX).saturating_sub(2);
        let mut lines = vec![Vec::new()];
        let shown = if problems.len() > most {
            most.saturating_sub(1)
        } else {
            most
        };
        lines.extend(problems.iter().take(shown).map(|problem| {
            let code = clean(problem.code.as_str());
            let text = clean(&format!(" {}: {}", problem.subject, problem.reason));
            let room = width.saturating_sub(code.width() + 2);
            let code = cut(&format!("▲ {code}"), width);
            vec![span(Look::Bad, code), span(Look::Plain, cut(&text, room))]
        }));
        let omitted = problems.len().saturating_sub(shown);
        if omitted > 0 {
            let text = format!("▲ {omitted} more problems: caracal status");
            lines.push(vec![span(Look::Bad, cut(&text, width))]);
        }
        lines
    }

    fn help(&self, width: usize) -> Line {
        let hidden = self.first.min(self.last_first());
        let above = match hidden {
            0 => String::new(),
            hidden => format!("  ({hidden} above)"),
        };
        let text = format!("q quit  ←→ sort  r reverse  ↑↓ scroll{above}");
        vec![span(Look::Quiet, cut(&text, width))]
    }
}

/// A number of things in a time, in short.
fn per_second(count: u64, seconds: f64) -> String {
    let rate = metrics::total(count) / seconds;
    match rate >= 9.95 {
        true => format!("{rate:.0}"),
        false => format!("{rate:.1}"),
    }
}

fn is_up(peer: &PeerStatusJson) -> bool {
    peer.state == "Established"
}

fn state(peer: &PeerStatusJson) -> &str {
    match peer.disabled {
        true => "disabled",
        false => &peer.state,
    }
}

fn rank(peer: &PeerStatusJson) -> u8 {
    match (is_up(peer), peer.disabled) {
        (false, false) => 0,
        (false, true) => 1,
        (true, _) => 2,
    }
}

fn sign(peer: &PeerStatusJson) -> char {
    match rank(peer) {
        0 => '▲',
        1 => '■',
        _ => '●',
    }
}

fn look_of(peer: &PeerStatusJson) -> Look {
    match rank(peer) {
        0 => Look::Bad,
        1 => Look::Quiet,
        _ => Look::Good,
    }
}
