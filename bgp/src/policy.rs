//! Route policy: a filter is a list of terms, tried in order; the first whose conditions all hold
//! applies its actions and, when it has a verdict, ends the filter.
//!
//! The data can say everything that Calico's `BGPFilter` can say, and each filter can be written as
//! a bird-style function and read back without loss. A filter of a bird-style file that says more
//! is a [`Program`].

mod program;
mod text;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Family, Prefix};
use serde::{Deserialize, Serialize};

use crate::attrs::{AsPath, PathAttrs, SegmentKind};
use crate::types::{AnyCommunity, Asn};

pub use program::{
    Attribute, Expression, Function, MaskItem, MaskPart, Method, Operator, PathMask, Place,
    PrefixSet, Program, Roa, RoaState, RoaTable, RouteList, SetKind, SetPattern, Step, StepAction,
    Value, ValueSet, ValueType, compute, enumeration_word,
};

/// A named filter. Filters of a peer run in order; the first verdict wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Terms in the order in which they are tried.
    pub terms: Vec<FilterTerm>,
    /// What decides instead of terms, and always does.
    pub program: Option<Arc<Program>>,
    /// Destinations that it is about; of others it says nothing. `None`: all.
    pub family: Option<Family>,
}

impl From<Vec<FilterTerm>> for Filter {
    fn from(terms: Vec<FilterTerm>) -> Self {
        Self {
            terms,
            ..Self::default()
        }
    }
}

impl From<Program> for Filter {
    fn from(program: Program) -> Self {
        Self {
            program: Some(Arc::new(program)),
            ..Self::default()
        }
    }
}

/// One rule: all conditions must hold (an empty list always holds).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterTerm {
    /// Conditions, joined by "and".
    pub conditions: Vec<FilterCondition>,
    /// Actions, applied in order when the conditions hold.
    pub actions: Vec<FilterAction>,
    /// Accept or reject ends the filter; `None` goes on to the next term.
    pub verdict: Option<FilterVerdict>,
}

/// The end of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FilterVerdict {
    /// The route passes, with the actions applied.
    Accept,
    /// The route is refused.
    Reject,
}

/// A question about a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterCondition {
    /// The destination matches one of the patterns (or none of them, when `negated`).
    Prefix {
        /// Patterns joined by "or"; never empty.
        patterns: Vec<PrefixPattern>,
        /// True inverts the answer.
        negated: bool,
    },
    /// The route carries the community.
    Community(AnyCommunity),
    /// The AS path starts with these numbers.
    AsPathPrefix(Vec<Asn>),
    /// These numbers stand in the AS path, side by side; a set counts as each of its members.
    AsPath {
        /// The numbers; never empty but for a whole path.
        asns: Vec<Asn>,
        /// Place of the numbers in the path.
        place: AsPathPlace,
    },
    /// The BGP next hop lies inside the prefix.
    NextHop(Prefix),
    /// The other side is of this kind.
    PeerKind(PeerKind),
    /// The route came from there.
    Source(RouteSource),
    /// The route's interface matches the pattern (`*` stands for any text). A route without an
    /// interface does not match.
    Interface(String),
    /// LOCAL_PREF is present and equals this.
    LocalPref(u32),
}

/// Where in an AS path numbers stand; for its start there is [`FilterCondition::AsPathPrefix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AsPathPlace {
    /// Anywhere in the path.
    Anywhere,
    /// At its end: the last number is the origin.
    End,
    /// The numbers are the whole path.
    Whole,
}

impl AsPathPlace {
    /// True when the numbers stand there.
    fn holds(self, path: &AsPath, asns: &[Asn]) -> bool {
        let elements: Vec<&[Asn]> = path
            .segments()
            .flat_map(|(kind, asns)| match kind {
                SegmentKind::Sequence => asns.chunks(1),
                SegmentKind::Set => asns.chunks(asns.len().max(1)),
            })
            .collect();
        let at = |start: usize| {
            let run = elements.get(start..start + asns.len());
            run.is_some_and(|run| run.iter().zip(asns).all(|(one, asn)| one.contains(asn)))
        };
        let Some(last) = elements.len().checked_sub(asns.len()) else {
            return false;
        };
        match self {
            Self::Anywhere => (0..=last).any(at),
            Self::End => at(last),
            Self::Whole => last == 0 && at(0),
        }
    }
}

/// A destination with a range of lengths: matches every prefix inside `prefix` whose length lies in
/// `min..=max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PrefixPattern {
    /// Prefix that covers all that match.
    pub prefix: Prefix,
    /// Shortest length that matches, at least `prefix.len()`.
    pub min: u8,
    /// Longest length that matches, at most 32 or 128.
    pub max: u8,
}

impl PrefixPattern {
    /// Only the prefix itself.
    #[must_use]
    pub const fn exact(prefix: Prefix) -> Self {
        Self {
            prefix,
            min: prefix.len(),
            max: prefix.len(),
        }
    }

    /// The prefix and everything more specific.
    #[must_use]
    pub const fn or_longer(prefix: Prefix) -> Self {
        Self {
            prefix,
            min: prefix.len(),
            max: prefix.family().bits(),
        }
    }

    /// True when `prefix` lies inside and its length is in range.
    #[must_use]
    pub fn matches(&self, prefix: &Prefix) -> bool {
        (self.min..=self.max).contains(&prefix.len()) && self.prefix.covers(prefix)
    }
}

impl fmt::Display for PrefixPattern {
    /// bird's notation: `P`, `P+`, or `P{min,max}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.prefix.len();
        if self.min == len && self.max == len {
            write!(f, "{}", self.prefix)
        } else if self.min == len && self.max == self.prefix.family().bits() {
            write!(f, "{}+", self.prefix)
        } else {
            write!(f, "{}{{{},{}}}", self.prefix, self.min, self.max)
        }
    }
}

/// Relation of a peer to us, by its AS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PeerKind {
    /// The peer is in our AS (IBGP).
    Internal,
    /// The peer is in another AS (EBGP).
    External,
}

/// The origin of a route inside this speaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RouteSource {
    /// Learned from a BGP peer.
    Bgp,
    /// Originated by this speaker.
    Static,
}

/// A change to a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterAction {
    /// Adds a community if it is absent.
    AddCommunity(AnyCommunity),
    /// Removes a community if it is present.
    RemoveCommunity(AnyCommunity),
    /// Sets LOCAL_PREF (RFC 4271 §5.1.5), whatever it was.
    SetLocalPref(u32),
    /// Sets MULTI_EXIT_DISC.
    SetMed(u32),
    /// Puts these AS numbers in front of the path; the first ends up leftmost.
    PrependAsPath(Vec<Asn>),
}

/// A route on its way through filters. Actions change `attrs`; later terms see the changes.
#[derive(Clone, Debug)]
pub(crate) struct RouteView<'a> {
    /// Destination of the route.
    pub prefix: Prefix,
    /// The attributes; owned as soon as an action has changed them.
    pub attrs: Cow<'a, PathAttrs>,
    /// Relation to the peer of the session: internal, external, reflector client.
    pub peer: PeerKind,
    /// Where the route came from.
    pub source: RouteSource,
    /// The interface through which the route leaves, when it is a kernel route.
    pub interface: Option<&'a str>,
    /// The gateway of the route, when it has one.
    pub gateway: Option<IpAddr>,
    /// Who brought the route.
    pub sender: Sender<'a>,
    /// `krt_prefsrc`: the address that packets are sent from, on the way into a kernel's table.
    pub preferred_source: Option<IpAddr>,
    /// A filter has set MULTI_EXIT_DISC.
    pub med_is_set: bool,
    /// The next hop that a filter has set.
    pub told_next_hop: Option<IpAddr>,
}

impl<'a> RouteView<'a> {
    /// A route of which nothing else is known.
    pub(crate) fn new(
        prefix: Prefix,
        attrs: Cow<'a, PathAttrs>,
        peer: PeerKind,
        source: RouteSource,
    ) -> Self {
        Self {
            prefix,
            attrs,
            peer,
            source,
            interface: None,
            gateway: None,
            sender: Sender::default(),
            preferred_source: None,
            med_is_set: false,
            told_next_hop: None,
        }
    }

    /// NEXT_HOP as filters see it.
    pub(crate) fn bgp_next_hop(&self) -> Option<IpAddr> {
        self.told_next_hop.or_else(|| self.attrs.bgp_next_hop())
    }
}

/// Who brought a route: a peer, or a protocol of our own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sender<'a> {
    /// The name of the peer or protocol.
    pub name: &'a str,
    /// The address of the peer; `None`: the route is ours.
    pub address: Option<IpAddr>,
    /// Of routes to one destination, BIRD uses that of the highest number.
    pub preference: u16,
}

/// What filters ask of a route beyond its attributes: it is looked up for them alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asks {
    /// Its interface or gateway.
    pub way: bool,
    /// Who brought it.
    pub sender: bool,
}

impl Sender<'_> {
    /// The first static protocol, without a name.
    pub(crate) const STATIC: Self = Self {
        name: "static1",
        address: None,
        preference: 200,
    };
}

impl Asks {
    /// What one of both asks.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self {
            way: self.way || other.way,
            sender: self.sender || other.sender,
        }
    }
}

/// A verdict together with the term that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilterDecision {
    /// End of the filter that the term led to.
    pub verdict: FilterVerdict,
    /// Index of the term within its filter, from 0.
    pub term: usize,
    /// Where a program has decided.
    pub place: Option<Place>,
}

impl Filter {
    /// What it asks of a route beyond its attributes.
    pub(crate) fn asks(&self) -> Asks {
        let mut conditions = self.terms.iter().flat_map(|term| &term.conditions);
        let way = conditions.any(|condition| matches!(condition, FilterCondition::Interface(_)));
        let program = self.program.as_ref().map(|program| program.asks());
        program.unwrap_or_default().or(Asks { way, sender: false })
    }

    /// True when it asks for the way of a route or for who brought it, which are no attributes.
    #[must_use]
    pub fn asks_for_more(&self) -> bool {
        self.asks() != Asks::default()
    }

    /// True when some step is about what only a table of the kernel has.
    #[must_use]
    pub fn is_for_the_kernel(&self) -> bool {
        let program = self.program.as_ref();
        program.is_some_and(|program| program.names(Attribute::PreferredSource))
    }

    /// True when some step sets the next hop, which has a meaning on the way to a peer alone.
    #[must_use]
    pub fn sets_next_hop(&self) -> bool {
        let program = self.program.as_ref();
        program.is_some_and(|program| program.sets(Attribute::NextHop))
    }

    /// What the filter says of a route, and what it makes of it. `None`: it decides nothing.
    #[must_use]
    pub fn judge(
        &self,
        prefix: Prefix,
        attrs: PathAttrs,
        source: RouteSource,
        peer: PeerKind,
    ) -> (Option<FilterVerdict>, PathAttrs) {
        let mut route = RouteView::new(prefix, Cow::Owned(attrs), peer, source);
        if source == RouteSource::Static {
            route.sender = Sender::STATIC;
        }
        let decided = self.run(&mut route);
        let verdict = decided.map(|decided| decided.verdict);
        (verdict, route.attrs.into_owned())
    }

    /// Runs the filter over a route and changes its attributes. `None`: no term decided, the next
    /// filter decides; changes made so far stay.
    pub(crate) fn run(&self, route: &mut RouteView<'_>) -> Option<FilterDecision> {
        if self
            .family
            .is_some_and(|family| family != route.prefix.family())
        {
            return None;
        }
        if let Some(program) = &self.program {
            let (verdict, place) = program.run(route);
            let term = 0;
            return Some(FilterDecision {
                verdict,
                term,
                place,
            });
        }
        for (index, term) in self.terms.iter().enumerate() {
            if !term
                .conditions
                .iter()
                .all(|condition| condition.holds(route))
            {
                continue;
            }
            for action in &term.actions {
                action.apply(route);
            }
            if let Some(verdict) = term.verdict {
                return Some(FilterDecision {
                    verdict,
                    term: index,
                    place: None,
                });
            }
        }
        None
    }
}

impl FilterCondition {
    /// True when the condition holds for the route.
    pub(crate) fn holds(&self, route: &RouteView<'_>) -> bool {
        let attrs = &*route.attrs;
        match self {
            Self::Prefix { patterns, negated } => {
                patterns
                    .iter()
                    .any(|pattern| pattern.matches(&route.prefix))
                    != *negated
            }
            Self::Community(community) => attrs.has_community(*community),
            Self::AsPathPrefix(asns) => attrs.as_path.starts_with(asns),
            Self::AsPath { asns, place } => place.holds(&attrs.as_path, asns),
            Self::NextHop(prefix) => route.bgp_next_hop().is_some_and(|hop| prefix.contains(hop)),
            Self::PeerKind(kind) => route.peer == *kind,
            // What is announced of the kernel's table is no static route.
            Self::Source(source) => route.source == *source && !attrs.route_type.is_kernels(),
            Self::Interface(pattern) => route.interface.is_some_and(|name| glob(pattern, name)),
            Self::LocalPref(value) => attrs.local_pref == Some(*value),
        }
    }
}

impl FilterAction {
    /// Changes the route's attributes.
    fn apply(&self, route: &mut RouteView<'_>) {
        route.med_is_set |= matches!(self, Self::SetMed(_));
        let attrs = route.attrs.to_mut();
        match self {
            Self::AddCommunity(community) => attrs.add_community(*community),
            Self::RemoveCommunity(community) => attrs.remove_community(*community),
            Self::SetLocalPref(value) => attrs.local_pref = Some(*value),
            Self::SetMed(value) => attrs.med = Some(*value),
            Self::PrependAsPath(asns) => {
                for asn in asns.iter().rev() {
                    attrs.as_path.prepend(*asn);
                }
            }
        }
    }
}

/// True when `text` matches `pattern`, in which `*` stands for any text, also none, and `?` for one
/// character.
#[must_use]
pub fn glob(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Behind the last `*`, and where the text that it takes ends; that may be longer.
    let mut star = None;
    loop {
        let rest = text.clone();
        match (pattern.next(), text.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                text = rest;
                star = Some((pattern.clone(), text.clone()));
                continue;
            }
            (Some('?'), Some(_)) => continue,
            (Some(wanted), Some(seen)) if wanted == seen => continue,
            _ => {}
        }
        let Some((behind, mut longer)) = star else {
            return false;
        };
        if longer.next().is_none() {
            return false;
        }
        pattern = behind.clone();
        text = longer.clone();
        star = Some((behind, longer));
    }
}

#[cfg(test)]
mod tests;
