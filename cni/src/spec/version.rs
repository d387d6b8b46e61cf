//! The versions of the specification that the plugins speak, and the answer to `VERSION`.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

/// A version of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CniVersion {
    /// 0.3.1: results with interfaces, and chaining.
    V0_3_1,
    /// 0.4.0: adds `CHECK`.
    V0_4_0,
    /// 1.0.0: `ips` loses `version`.
    V1_0_0,
    /// 1.1.0: adds `STATUS` and `GC`; interfaces and routes say their MTU.
    V1_1_0,
}

/// A version that is not spoken here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cniVersion {seen:?} is not supported; set one of {supported} in the network configuration",
    supported = CniVersion::ALL.map(CniVersion::as_str).join(", ")
)]
pub(crate) struct VersionError {
    /// Version in the configuration; empty when there is none.
    pub seen: String,
}

impl CniVersion {
    /// All versions, oldest first.
    pub(crate) const ALL: [Self; 4] = [Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    pub(crate) const NEWEST: Self = Self::V1_1_0;

    /// As the configuration writes it.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// The answer to `VERSION`. The specification wants the version of the question repeated,
    /// whatever it is.
    #[must_use]
    pub(crate) fn answer(asked: Option<&str>) -> Value {
        json!({
            "cniVersion": asked.unwrap_or_else(|| Self::NEWEST.as_str()),
            "supportedVersions": Self::ALL.map(Self::as_str),
        })
    }
}

impl FromStr for CniVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| VersionError {
                seen: text.to_owned(),
            })
    }
}

impl fmt::Display for CniVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
