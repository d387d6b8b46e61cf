//! Changes of what is stored: patches and labels.

use caracal_model::Kind;
use serde_json::{Map, Value};

/// A change of a resource.
#[derive(Clone, Debug)]
pub(super) enum ResourceChange {
    /// RFC 7386.
    Merge(Value),
    /// RFC 6902.
    Operations(json_patch::Patch),
    /// Labels to set and to remove.
    Labels(Labels),
}

/// Labels to set and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels {
    pub(super) set: Vec<(String, String)>,
    pub(super) remove: Vec<String>,
    /// Labels that have another value may change.
    pub(super) overwrite: bool,
}

impl ResourceChange {
    /// The resource with the change.
    ///
    /// # Errors
    /// Says in a sentence why it cannot be made.
    pub(super) fn apply(&self, mut resource: Value, kind: Kind) -> Result<Value, String> {
        let before = resource.clone();
        match self {
            Self::Merge(patch) => json_patch::merge(&mut resource, patch),
            Self::Operations(patch) => json_patch::patch(&mut resource, patch)
                .map_err(|error| format!("the patch does not apply: {error}"))?,
            Self::Labels(labels) => labels.apply(&mut resource)?,
        }
        if !resource.is_object() || !resource["metadata"].is_object() {
            return Err("the patch leaves no resource with metadata".to_owned());
        }
        for name in ["name", "namespace"] {
            let (was, is) = (&before["metadata"][name], &resource["metadata"][name]);
            if was != is && (kind.is_namespaced() || name != "namespace") {
                return Err(format!(
                    "metadata.{name} {is}: it is {was} and cannot be changed; create another resource and delete this one"
                ));
            }
        }
        for name in ["kind", "apiVersion"] {
            if before[name] != resource[name] {
                return Err(format!("{name} {}: it cannot be changed", resource[name]));
            }
        }
        Ok(resource)
    }
}

impl Labels {
    /// Reads `KEY=VALUE` and `KEY-`; with `remove` also `KEY`.
    ///
    /// # Errors
    /// Says which word is neither.
    pub(super) fn parse(words: &[String], overwrite: bool, remove: bool) -> Result<Self, String> {
        let mut labels = Self {
            overwrite,
            ..Self::default()
        };
        for word in words {
            match (word.split_once('='), word.strip_suffix('-')) {
                (Some((key, value)), _) if !remove && !key.is_empty() => {
                    labels.set.push((key.to_owned(), value.to_owned()));
                }
                (None, Some(key)) if !key.is_empty() => labels.remove.push(key.to_owned()),
                (None, None) if remove => labels.remove.push(word.clone()),
                _ => {
                    return Err(format!(
                        "{word:?} is neither KEY=VALUE nor KEY- (or KEY with --remove)"
                    ));
                }
            }
        }
        if labels.set.is_empty() && labels.remove.is_empty() {
            return Err("which labels? give KEY=VALUE to set one, KEY- to remove one".to_owned());
        }
        Ok(labels)
    }

    fn apply(&self, resource: &mut Value) -> Result<(), String> {
        let Some(Value::Object(metadata)) = resource.get_mut("metadata") else {
            return Err("the stored resource has no metadata".to_owned());
        };
        let mut labels = match metadata.shift_remove("labels") {
            Some(Value::Object(labels)) => labels,
            _ => Map::new(),
        };
        for key in &self.remove {
            labels.shift_remove(key);
        }
        for (key, value) in &self.set {
            let was = labels.get(key).and_then(Value::as_str);
            if let Some(was) = was.filter(|was| was != value)
                && !self.overwrite
            {
                return Err(format!(
                    "label {key} is {was:?} already; --overwrite changes it to {value:?}"
                ));
            }
            labels.insert(key.clone(), value.clone().into());
        }
        if !labels.is_empty() {
            metadata.insert("labels".to_owned(), Value::Object(labels));
        }
        Ok(())
    }
}
