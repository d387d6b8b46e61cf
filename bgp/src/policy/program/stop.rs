//! Why a run goes no further.

use super::tree::Place;
use crate::policy::FilterVerdict;

/// Why steps go no further.
#[derive(Debug)]
pub(super) enum Stop {
    /// The filter has decided.
    End(FilterVerdict, Option<Place>),
    /// Something cannot be computed; the route is rejected.
    Fault(String),
}

pub(super) type Answer<T> = Result<T, Stop>;

pub(super) fn fault<T>(text: impl Into<String>) -> Answer<T> {
    Err(Stop::Fault(text.into()))
}
