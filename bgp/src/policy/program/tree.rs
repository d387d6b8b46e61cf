//! What a filter is made of when it has been read: steps and expressions, names already resolved
//! and types checked.

use std::fmt;
use std::sync::Arc;

use super::roa::RoaTable;
use super::set::ValueSet;
use super::value::{DESTINATION, ORIGIN, SCOPE, SOURCE};
use super::value::{ENUMERATIONS, Value, ValueType};
use crate::types::ExtKind;

/// Where something stands in a file. All places are equal: what a filter does is not where it
/// stands.
#[derive(Clone, Debug)]
pub struct Place {
    /// The file.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Place {}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An attribute of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// `net`
    Net,
    /// `source`
    Source,
    /// `dest`
    Destination,
    /// `proto`
    Protocol,
    /// `from`
    From,
    /// `gw`
    Gateway,
    /// `scope`
    Scope,
    /// `preference`
    Preference,
    /// `igp_metric`
    IgpMetric,
    /// `ifname`
    Interface,
    /// `bgp_path`
    Path,
    /// `bgp_local_pref`
    LocalPref,
    /// `bgp_med`
    Med,
    /// `bgp_origin`
    Origin,
    /// `bgp_next_hop`
    NextHop,
    /// `bgp_community`
    Communities,
    /// `bgp_ext_community`
    ExtCommunities,
    /// `bgp_large_community`
    LargeCommunities,
    /// `bgp_originator_id`
    OriginatorId,
    /// `bgp_cluster_list`
    ClusterList,
    /// `bgp_atomic_aggr`
    AtomicAggregate,
    /// `bgp_aggregator`
    Aggregator,
    /// `bgp_aigp`
    AccumulatedMetric,
    /// `bgp_otc`
    OnlyToCustomer,
    /// `krt_prefsrc`, of a route on its way into a table of the kernel.
    PreferredSource,
}

impl Attribute {
    /// All with their names.
    pub const ALL: [(&'static str, Self); 25] = [
        ("net", Self::Net),
        ("source", Self::Source),
        ("dest", Self::Destination),
        ("proto", Self::Protocol),
        ("from", Self::From),
        ("gw", Self::Gateway),
        ("scope", Self::Scope),
        ("preference", Self::Preference),
        ("igp_metric", Self::IgpMetric),
        ("ifname", Self::Interface),
        ("bgp_path", Self::Path),
        ("bgp_local_pref", Self::LocalPref),
        ("bgp_med", Self::Med),
        ("bgp_origin", Self::Origin),
        ("bgp_next_hop", Self::NextHop),
        ("bgp_community", Self::Communities),
        ("bgp_ext_community", Self::ExtCommunities),
        ("bgp_large_community", Self::LargeCommunities),
        ("bgp_originator_id", Self::OriginatorId),
        ("bgp_cluster_list", Self::ClusterList),
        ("bgp_atomic_aggr", Self::AtomicAggregate),
        ("bgp_aggregator", Self::Aggregator),
        ("bgp_aigp", Self::AccumulatedMetric),
        ("bgp_otc", Self::OnlyToCustomer),
        ("krt_prefsrc", Self::PreferredSource),
    ];

    /// The type of its values.
    #[must_use]
    pub const fn value_type(self) -> ValueType {
        match self {
            Self::Net => ValueType::Prefix,
            Self::Source => ValueType::Enum(SOURCE),
            Self::Destination => ValueType::Enum(DESTINATION),
            Self::Scope => ValueType::Enum(SCOPE),
            Self::Protocol | Self::Interface => ValueType::Text,
            Self::Path => ValueType::Path,
            Self::LocalPref
            | Self::Med
            | Self::OnlyToCustomer
            | Self::Preference
            | Self::IgpMetric => ValueType::Int,
            Self::Origin => ValueType::Enum(ORIGIN),
            Self::From | Self::Gateway | Self::NextHop | Self::PreferredSource => ValueType::Ip,
            Self::AtomicAggregate | Self::Aggregator | Self::AccumulatedMetric => ValueType::Void,
            Self::Communities | Self::ClusterList => ValueType::Communities,
            Self::ExtCommunities => ValueType::ExtCommunities,
            Self::LargeCommunities => ValueType::LargeCommunities,
            Self::OriginatorId => ValueType::Quad,
        }
    }

    /// True for one without a value that the language knows: it is there, or is not.
    #[must_use]
    pub const fn is_opaque(self) -> bool {
        matches!(self.value_type(), ValueType::Void)
    }

    /// True when a filter may change it.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(
            self,
            Self::Path
                | Self::LocalPref
                | Self::Med
                | Self::OnlyToCustomer
                | Self::Origin
                | Self::NextHop
                | Self::Communities
                | Self::ExtCommunities
                | Self::LargeCommunities
                | Self::PreferredSource
        )
    }
}

/// The word of an enumeration.
#[must_use]
pub fn enumeration_word(word: &str) -> Option<Value> {
    for (place, enumeration) in (0u8..).zip(&ENUMERATIONS) {
        for (known, number) in enumeration.words {
            if *known == word {
                return Some(Value::Enum(place, *number));
            }
        }
    }
    None
}

/// Operators of two values, but for "and" and "or".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `~`
    Match,
    /// `!~`
    NotMatch,
}

/// What is asked of a value, or done to a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `.first`
    First,
    /// `.last`
    Last,
    /// `.last_nonaggregated`
    LastNonaggregated,
    /// `.len`
    Len,
    /// `.prepend(N)`
    Prepend,
    /// `.add(…)`
    Add,
    /// `.delete(…)`
    Delete,
    /// `.filter(…)`
    Filter,
    /// `.min`
    Min,
    /// `.max`
    Max,
    /// `.mask(N)`
    Mask,
    /// `.is_v4`
    IsV4,
    /// `.ip`
    Ip,
    /// `.type`
    Type,
    /// `.asn`
    Asn,
    /// `.data`, `.data1`
    Data,
    /// `.data2`
    Data2,
}

/// A part of a mask that may be known at run time only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MaskPart {
    /// `*`
    Any,
    /// `?`
    One,
    /// `+`
    More,
    /// An AS or a set.
    Value(Expression),
    /// `A..B`
    Range(Expression, Expression),
}

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A value that is known.
    Constant(Value),
    /// A local variable, by its place in the frame.
    Variable(u16),
    /// An attribute of the route.
    Attribute(Attribute),
    /// `defined(ATTRIBUTE)`
    Defined(Attribute),
    /// `!`
    Not(Box<Self>),
    /// `&&` between all of these.
    And(Vec<Self>),
    /// `||` between all of these.
    Or(Vec<Self>),
    /// Any other operator.
    Binary(Operator, Box<[Self; 2]>),
    /// A property, or a method with its argument.
    Method(Method, Box<Self>, Option<Box<Self>>),
    /// `(A, B)`
    Pair(Box<[Self; 2]>),
    /// `(A, B, C)`
    Large(Box<[Self; 3]>),
    /// `(rt, A, B)`; without a kind `(generic, A, B)`.
    Extended(Option<ExtKind>, Box<[Self; 2]>),
    /// `[= … =]` with parts that are not known.
    Mask(Box<[MaskPart]>),
    /// A call.
    Call(Arc<Function>, Box<[Self]>),
    /// A call of the function that this stands in.
    Recursion(Box<[Self]>),
    /// `roa_check(TABLE)`, or with a prefix and an AS.
    Origin(Arc<RoaTable>, Option<Box<[Self; 2]>>),
}

impl Expression {
    /// True when it, or an expression inside it, meets the condition. What a called function does
    /// is not looked at.
    #[must_use]
    pub fn any(&self, condition: &dyn Fn(&Self) -> bool) -> bool {
        if condition(self) {
            return true;
        }
        match self {
            Self::Constant(_) | Self::Variable(_) | Self::Attribute(_) | Self::Defined(_) => false,
            Self::Not(inner) => inner.any(condition),
            Self::And(all) | Self::Or(all) => all.iter().any(|one| one.any(condition)),
            Self::Binary(_, both) | Self::Pair(both) | Self::Extended(_, both) => {
                both.iter().any(|one| one.any(condition))
            }
            Self::Large(all) => all.iter().any(|one| one.any(condition)),
            Self::Origin(_, both) => {
                let mut all = both.iter().flat_map(|both| both.iter());
                all.any(|one| one.any(condition))
            }
            Self::Method(_, subject, argument) => {
                subject.any(condition) || argument.iter().any(|one| one.any(condition))
            }
            Self::Mask(parts) => parts.iter().any(|part| match part {
                MaskPart::Value(value) => value.any(condition),
                MaskPart::Range(low, high) => low.any(condition) || high.any(condition),
                MaskPart::Any | MaskPart::One | MaskPart::More => false,
            }),
            Self::Call(_, arguments) | Self::Recursion(arguments) => {
                arguments.iter().any(|one| one.any(condition))
            }
        }
    }

    /// True when it may change the route, which is what functions may do.
    #[must_use]
    pub(super) fn has_calls(&self) -> bool {
        self.any(&|one| matches!(one, Self::Call(..) | Self::Recursion(_)))
    }

    /// True when its value is the same for every route and every call.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        !self.any(&|one| {
            matches!(
                one,
                Self::Variable(_)
                    | Self::Attribute(_)
                    | Self::Defined(_)
                    | Self::Call(..)
                    | Self::Recursion(_)
                    | Self::Origin(_, None)
            )
        })
    }
}

/// A function of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Places of its frame; its arguments are the first.
    pub locals: u16,
    /// Its steps.
    pub body: Vec<Step>,
}

/// A step with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where it stands.
    pub place: Place,
    /// What it does.
    pub action: StepAction,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// `if … then … else …`
    If(Expression, Vec<Step>, Vec<Step>),
    /// `case`: the first branch with the value, or the one without a set.
    Case(Expression, Vec<(Option<ValueSet>, Vec<Step>)>),
    /// `for`: each element in turn is in the place of the frame.
    For(u16, Expression, Vec<Step>),
    /// A variable gets a value.
    Assign(u16, Expression),
    /// An attribute gets a value.
    Set(Attribute, Expression),
    /// `unset(ATTRIBUTE)`
    Unset(Attribute),
    /// A call for what it does.
    Call(Expression),
    /// `accept`
    Accept,
    /// `reject`
    Reject,
    /// `return`
    Return(Expression),
    /// `print`
    Print(Vec<Expression>),
}

/// True when some of these steps, or one inside it, meets the condition. What a called function
/// does is not looked at.
pub(super) fn any_step(steps: &[Step], condition: &dyn Fn(&StepAction) -> bool) -> bool {
    let any = |steps: &[Step]| any_step(steps, condition);
    steps.iter().any(|step| {
        condition(&step.action)
            || match &step.action {
                StepAction::If(_, yes, no) => any(yes) || any(no),
                StepAction::Case(_, branches) => branches.iter().any(|(_, branch)| any(branch)),
                StepAction::For(_, _, body) => any(body),
                _ => false,
            }
    })
}

/// True when an expression of these steps, or one inside it, meets the condition. What a called
/// function does is not looked at.
pub(super) fn any_in(steps: &[Step], condition: &dyn Fn(&Expression) -> bool) -> bool {
    let any = |steps: &[Step]| any_in(steps, condition);
    let meets = |expression: &Expression| expression.any(condition);
    steps.iter().any(|step| match &step.action {
        StepAction::If(question, yes, no) => meets(question) || any(yes) || any(no),
        StepAction::Case(subject, branches) => {
            meets(subject) || branches.iter().any(|(_, branch)| any(branch))
        }
        StepAction::For(_, subject, body) => meets(subject) || any(body),
        StepAction::Assign(_, value)
        | StepAction::Set(_, value)
        | StepAction::Call(value)
        | StepAction::Return(value) => meets(value),
        StepAction::Print(values) => values.iter().any(meets),
        StepAction::Unset(_) | StepAction::Accept | StepAction::Reject => false,
    })
}
