//! Names of labs and of their namespaces.

use std::fmt;

use crate::topology::MAX_LAB_NAME;

/// A lab's name: letters, digits and dashes. Two labs on one machine have different names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabName(String);

/// The text cannot name a lab.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a lab: use at most {MAX_LAB_NAME} of a-z, 0-9 and '-', starting and ending with a letter or digit"
)]
pub struct LabNameError(String);

impl LabName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`LabNameError`] when it has other characters or is too long.
    pub fn new(name: &str) -> Result<Self, LabNameError> {
        if crate::topology::valid_name(name, MAX_LAB_NAME) && !name.contains('.') {
            Ok(Self(name.to_owned()))
        } else {
            Err(LabNameError(name.to_owned()))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Prefix of all namespaces of the lab, and of no other lab's: dashes of the name become
    /// underscores, so that lab `a` does not own the namespaces of lab `a-b`.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("car-{}-", self.0.replace('-', "_"))
    }

    /// The namespace of a part of the lab.
    #[must_use]
    pub fn netns(&self, part: &str) -> String {
        format!("{}{part}", self.prefix())
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
