//! Indices of endpoints: who stays keeps its index where possible, so that one endpoint more or
//! less is a change of one or two elements.

use std::collections::BTreeSet;

use caracal_model::InsertEach;

use super::address::ServiceTarget;

/// The wanted targets in an order that differs from `before` as little as can be.
pub(super) fn keep_indices(
    before: &[ServiceTarget],
    wanted: &[ServiceTarget],
) -> Vec<ServiceTarget> {
    let all: BTreeSet<ServiceTarget> = wanted.iter().copied().insert_each();
    let mut left = all.clone();
    let mut places: Vec<Option<ServiceTarget>> = vec![None; all.len()];
    for (place, target) in places.iter_mut().zip(before) {
        *place = left.take(target);
    }
    let mut left = left.into_iter();
    places
        .into_iter()
        .filter_map(|place| place.or_else(|| left.next()))
        .collect()
}
