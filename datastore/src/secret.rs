//! The content of a Secret.

use std::collections::BTreeMap;
use std::fmt;

/// Texts of a Secret by key; empty where there is none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretContent(pub BTreeMap<String, String>);

// Nothing of what is secret.
impl fmt::Debug for SecretContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
