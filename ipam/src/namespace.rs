//! The labels of a pod's namespace, for pools with a `namespaceSelector`. Calico's controllers copy
//! them from Kubernetes into the profile `kns.NAMESPACE`, each behind `pcns.`; etcd has no other
//! trace of them.

use std::collections::BTreeMap;

use caracal_model::{Key, Kind, ValueError};

/// In front of a namespace's name in its profile's.
const PROFILE: &str = "kns.";
/// In front of a namespace's label in its profile.
const LABEL: &str = "pcns.";
/// Labels of every namespace, with or without a profile: its name, as Kubernetes and as Calico have
/// it.
const NAMES: [&str; 2] = ["kubernetes.io/metadata.name", "projectcalico.org/name"];

/// The key of the profile that holds a namespace's labels.
#[must_use]
pub fn namespace_key(namespace: &str) -> Key {
    Key::resource(Kind::Profile, format!("{PROFILE}{namespace}"))
}

/// The labels of a namespace without a profile: its name.
#[must_use]
pub fn namespace_named(namespace: &str) -> BTreeMap<String, String> {
    let name = |label: &str| (label.to_owned(), namespace.to_owned());
    NAMES.map(name).into()
}

/// The namespace that a profile is of; `None` for other profiles.
#[must_use]
pub(crate) fn of_profile(profile: &str) -> Option<&str> {
    profile.strip_prefix(PROFILE)
}

/// The labels of a namespace, from its profile as it stands in etcd.
///
/// # Errors
/// [`ValueError`] with the reason.
pub fn namespace_labels(
    namespace: &str,
    value: &[u8],
) -> Result<BTreeMap<String, String>, ValueError> {
    let value: serde_json::Value =
        serde_json::from_slice(value).map_err(|e| ValueError(e.to_string()))?;
    let mut labels = namespace_named(namespace);
    let stored = value.pointer("/spec/labelsToApply");
    for (label, text) in stored.and_then(|s| s.as_object()).into_iter().flatten() {
        if let (Some(label), Some(text)) = (label.strip_prefix(LABEL), text.as_str()) {
            labels.insert(label.to_owned(), text.to_owned());
        }
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn labels_are_those_behind_the_prefix_and_the_name() {
        let value = br#"{"kind":"Profile","metadata":{"name":"kns.red"},"spec":{"labelsToApply":
            {"pcns.team":"red","pcns.projectcalico.org/name":"red","other":"x"}}}"#;
        assert_eq!(of_profile("kns.red"), Some("red"));
        let expected = [
            ("kubernetes.io/metadata.name", "red"),
            ("projectcalico.org/name", "red"),
            ("team", "red"),
        ];
        let expected = expected.map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(namespace_labels("red", value).unwrap(), expected.into());
        assert_eq!(of_profile("ksa.red.default"), None);
        assert!(namespace_labels("red", b"{").is_err());
    }
}
