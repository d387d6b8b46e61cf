//! Filters of a bird-style file that are more than a list of terms: small typed programs.
//!
//! The grammar reads a file, resolves its names, checks types, and makes the sets; what is left for
//! each route is to walk over steps. A filter that is only terms is no program: it stays the list
//! that it is.
//!
//! | module | what it is |
//! |---|---|
//! | `set` | intervals and prefix patterns, compiled once |
//! | `mask` | path masks |
//! | `value` | values, their types, and their text |
//! | `tree` | steps and expressions |
//! | `list` | paths and lists of communities |
//! | `roa` | which AS may originate what |
//! | `route` | attributes of a route |
//! | `machine` | one run over a route |
//! | `numbers` | arithmetic |
//! | `quick` | conditions of common forms |
//! | `stop` | why a run goes no further |
//! | `text` | the program in words |
//!
//! A value that is missing, and what cannot be computed, behaves as in BIRD 2: what is missing is
//! less than everything and equal to nothing; what cannot be computed rejects the route.

mod list;
mod machine;
mod mask;
mod numbers;
mod quick;
mod roa;
mod route;
mod set;
mod stop;
mod text;
mod tree;
mod value;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::Machine;
pub use mask::{MaskItem, PathMask};
pub use roa::{Roa, RoaState, RoaTable};
pub use set::{PrefixSet, SetKind, SetPattern, ValueSet};
use stop::Stop;
pub use tree::{
    Attribute, Expression, Function, MaskPart, Method, Operator, Place, Step, StepAction,
    enumeration_word,
};
use tree::{any_in, any_step};
pub use value::{RouteList, Value, ValueType};

use super::{Asks, FilterVerdict, RouteView};

/// A filter as a program.
#[derive(Debug)]
pub struct Program {
    /// Name of the filter, for the log.
    pub name: Arc<str>,
    /// Places of its frame.
    pub locals: u16,
    /// Its steps.
    pub body: Vec<Step>,
    /// Runs that could not be finished.
    faults: AtomicU64,
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.locals == other.locals && self.body == other.body
    }
}

impl Eq for Program {}

impl Program {
    /// A program of these steps.
    #[must_use]
    pub fn new(name: &str, locals: u16, body: Vec<Step>) -> Self {
        Self {
            name: name.into(),
            locals,
            body,
            faults: AtomicU64::new(0),
        }
    }

    /// Runs it over a route, whose attributes it changes. A route that nothing decides about is
    /// rejected.
    pub(crate) fn run(&self, route: &mut RouteView<'_>) -> (FilterVerdict, Option<Place>) {
        let prefix = route.prefix;
        let print = |line: &str| self.log(&format!("{line} ({prefix})"));
        let mut machine = Machine::new(Some(route), self.locals, &print);
        let ended = machine.run(&self.body);
        let place = machine.place.take();
        match ended {
            Ok(()) => (FilterVerdict::Reject, None),
            Err(Stop::End(verdict, place)) => (verdict, place),
            Err(Stop::Fault(why)) => {
                let count = self.faults.fetch_add(1, Ordering::Relaxed);
                // The first ones, then ever fewer.
                if count < 10 || count.is_power_of_two() {
                    let at = place.as_ref().map(ToString::to_string).unwrap_or_default();
                    self.log(&format!(
                        "{at}: {why}; {prefix} is rejected ({} so far)",
                        count + 1
                    ));
                }
                (FilterVerdict::Reject, place)
            }
        }
    }

    #[cfg(feature = "speaker")]
    fn log(&self, line: &str) {
        tracing::info!(filter = %self.name, "{line}");
    }

    /// A core alone has no log.
    #[cfg(not(feature = "speaker"))]
    const fn log(&self, _: &str) {}

    /// What it asks of a route beyond its attributes.
    pub(crate) fn asks(&self) -> Asks {
        let some = |wanted: &[Attribute]| reads(&self.body, wanted);
        Asks {
            way: some(&[Attribute::Interface, Attribute::Gateway]),
            sender: some(&[Attribute::Protocol, Attribute::From, Attribute::Preference]),
        }
    }

    /// True when some step reads the attribute or changes it.
    pub(crate) fn names(&self, attribute: Attribute) -> bool {
        reads(&self.body, &[attribute]) || sets(&self.body, attribute)
    }

    /// True when some step changes the attribute.
    pub(crate) fn sets(&self, attribute: Attribute) -> bool {
        sets(&self.body, attribute)
    }
}

/// True when steps, or those of a function that they call, read one of these attributes.
fn reads(steps: &[Step], wanted: &[Attribute]) -> bool {
    any_in(steps, &|expression| match expression {
        Expression::Attribute(attribute) | Expression::Defined(attribute) => {
            wanted.contains(attribute)
        }
        Expression::Call(function, _) => reads(&function.body, wanted),
        _ => false,
    })
}

/// True when steps, or those of a function that they call, change the attribute.
fn sets(steps: &[Step], attribute: Attribute) -> bool {
    let changes = |action: &StepAction| match action {
        StepAction::Set(set, _) | StepAction::Unset(set) => *set == attribute,
        _ => false,
    };
    let calls = |expression: &Expression| match expression {
        Expression::Call(function, _) => sets(&function.body, attribute),
        _ => false,
    };
    any_step(steps, &changes) || any_in(steps, &calls)
}

/// Computes an expression that needs no route.
///
/// # Errors
/// Why it has no value.
pub fn compute(expression: &Expression) -> Result<Value, String> {
    let mut machine = Machine::new(None, 0, &|_| ());
    match machine.settled(expression, None) {
        Ok(value) => Ok(value),
        Err(Stop::Fault(why)) => Err(why),
        Err(Stop::End(..)) => Err("it accepts or rejects, and there is no route here".to_owned()),
    }
}

#[cfg(test)]
mod tests;
