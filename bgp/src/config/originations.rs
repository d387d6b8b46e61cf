//! The routes that a speaker originates: any number of them, so that copies of a configuration
//! share them.

use std::collections::{BTreeMap, btree_map};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use caracal_model::Prefix;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Origination;

type Map = BTreeMap<Prefix, Origination>;

/// Routes to originate, by prefix. A copy costs nothing; a copy that is changed becomes a map of
/// its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Originations(Arc<Map>);

impl Originations {
    /// True when both are the same map in memory. Two that are equal need not be.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Originations {
    type Target = Map;

    fn deref(&self) -> &Map {
        &self.0
    }
}

impl DerefMut for Originations {
    fn deref_mut(&mut self) -> &mut Map {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Map> for Originations {
    fn from(map: Map) -> Self {
        Self(Arc::new(map))
    }
}

impl<const N: usize> From<[(Prefix, Origination); N]> for Originations {
    fn from(routes: [(Prefix, Origination); N]) -> Self {
        Map::from(routes).into()
    }
}

impl FromIterator<(Prefix, Origination)> for Originations {
    fn from_iter<I: IntoIterator<Item = (Prefix, Origination)>>(routes: I) -> Self {
        Map::from_iter(routes).into()
    }
}

impl<'a> IntoIterator for &'a Originations {
    type Item = (&'a Prefix, &'a Origination);
    type IntoIter = btree_map::Iter<'a, Prefix, Origination>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Serialize for Originations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Originations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::from)
    }
}
