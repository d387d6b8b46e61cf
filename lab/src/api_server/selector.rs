//! Which objects a list or a watch wants: `labelSelector` and `fieldSelector`.

use serde_json::Value;

use super::kinds::Kind;

/// One requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// One requirement on a field: its path, the value, and whether it has to be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    path: String,
    value: String,
    is_equal: bool,
}

/// Labels and fields of the objects that a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Field>,
}

impl Selector {
    /// From the two parameters of a request. The error is the message of the 400.
    pub(super) fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, String> {
        let labels = split(labels)
            .into_iter()
            .map(requirement)
            .collect::<Result<_, _>>()?;
        let mut parsed = Vec::new();
        for term in fields.split(',').filter(|t| !t.trim().is_empty()) {
            let (path, value, is_equal) = comparison(term)
                .ok_or_else(|| format!("invalid selector: '{term}'; can't understand '{term}'"))?;
            if !selectable(kind).contains(&&*path) {
                return Err(format!("field label not supported: {path}"));
            }
            parsed.push(Field {
                path,
                value,
                is_equal,
            });
        }
        Ok(Self {
            labels,
            fields: parsed,
        })
    }

    /// Only the object of this name.
    pub(super) fn require_name(&mut self, name: &str) {
        self.fields.push(Field {
            path: "metadata.name".to_owned(),
            value: name.to_owned(),
            is_equal: true,
        });
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        let labels = self.labels.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => {
                label(key).is_some_and(|v| values.iter().any(|w| w == v))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|v| values.iter().all(|w| w != v))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
        });
        labels
            && self
                .fields
                .iter()
                .all(|f| (field(object, &f.path) == f.value) == f.is_equal)
    }
}

/// The fields that a kind may be selected by.
fn selectable(kind: &Kind) -> &'static [&'static str] {
    match (&*kind.group, &*kind.plural) {
        ("", "pods") => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.hostNetwork",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["metadata.name", "spec.unschedulable"],
        ("", "secrets") => &["metadata.name", "metadata.namespace", "type"],
        ("", "namespaces") => &["metadata.name", "status.phase"],
        ("", "services") => &[
            "metadata.name",
            "metadata.namespace",
            "spec.clusterIP",
            "spec.type",
        ],
        _ if kind.is_namespaced => &["metadata.name", "metadata.namespace"],
        _ => &["metadata.name"],
    }
}

fn field(object: &Value, path: &str) -> String {
    let mut value = object;
    for part in path.split('.') {
        value = value.get(part).unwrap_or(&Value::Null);
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(is) => is.to_string(),
        _ if ["spec.hostNetwork", "spec.unschedulable"].contains(&path) => "false".to_owned(),
        _ => String::new(),
    }
}

/// At commas that are not in parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

fn comparison(term: &str) -> Option<(String, String, bool)> {
    for (operator, is_equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = term.split_once(operator) {
            return Some((key.trim().to_owned(), value.trim().to_owned(), is_equal));
        }
    }
    None
}

fn requirement(term: &str) -> Result<Requirement, String> {
    let wrong = || format!("unable to parse requirement: {term:?} is not a label requirement");
    if let Some(list) = term.strip_suffix(')') {
        let (head, list) = list.split_once('(').ok_or_else(wrong)?;
        let values = list.split(',').map(|v| v.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => Ok(Requirement::In(checked(key)?, values)),
            (Some(key), Some("notin"), None) => Ok(Requirement::NotIn(checked(key)?, values)),
            _ => Err(wrong()),
        };
    }
    if let Some((key, value, is_equal)) = comparison(term) {
        let (key, values) = (checked(&key)?, vec![value]);
        return Ok(if is_equal {
            Requirement::In(key, values)
        } else {
            Requirement::NotIn(key, values)
        });
    }
    match term.strip_prefix('!') {
        Some(key) => Ok(Requirement::Absent(checked(key.trim())?)),
        None => Ok(Requirement::Exists(checked(term)?)),
    }
}

fn checked(key: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if key.is_empty() || !key.chars().all(fine) {
        return Err(format!(
            "unable to parse requirement: key {key:?} is not valid"
        ));
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::kinds::Registry;
    use super::*;

    fn selects(labels: &str, fields: &str) -> Vec<&'static str> {
        let pods = Registry::built_in().find("", "v1", "pods").expect("pods");
        let selector = Selector::parse(&pods, labels, fields).expect("a selector");
        let pod = |name: &str, labels: Value, node: &str| {
            let spec = json!({"nodeName": node});
            json!({"metadata": {"name": name, "labels": labels}, "spec": spec})
        };
        let pods = [
            ("a", pod("a", json!({"app": "web", "tier": "1"}), "n1")),
            ("b", pod("b", json!({"app": "db"}), "n2")),
            ("c", pod("c", Value::Null, "")),
        ];
        let chosen = pods.into_iter().filter(|(_, pod)| selector.matches(pod));
        chosen.map(|(name, _)| name).collect()
    }

    #[test]
    fn labels_and_fields_select() {
        assert_eq!(selects("", ""), ["a", "b", "c"]);
        assert_eq!(selects("app=web", ""), ["a"]);
        assert_eq!(selects("app in (web, db),!tier", ""), ["b"]);
        // An object without the label is not in the list either.
        assert_eq!(selects("app notin (web)", ""), ["b", "c"]);
        assert_eq!(selects("app!=web,app", ""), ["b"]);
        assert_eq!(selects("", "spec.nodeName=n1"), ["a"]);
        assert_eq!(selects("", "spec.nodeName!=,metadata.name!=a"), ["b"]);
        assert_eq!(selects("", "spec.hostNetwork=false"), ["a", "b", "c"]);
    }

    #[test]
    fn what_cannot_be_selected_by_is_refused() {
        let registry = Registry::built_in();
        let nodes = registry.find("", "v1", "nodes").expect("nodes");
        let error = Selector::parse(&nodes, "", "spec.podCIDR=x").expect_err("refused");
        assert_eq!(error, "field label not supported: spec.podCIDR");
        Selector::parse(&nodes, "a in b", "").expect_err("no parentheses");
        Selector::parse(&nodes, "", "metadata.name").expect_err("no value");
    }
}
