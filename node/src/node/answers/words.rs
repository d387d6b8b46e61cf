//! The words of a node's datastore: Kubernetes' API has objects and no keys.

use caracal_datastore::Datastore;
use caracal_model::{Key, Problem};
use serde_json::Value;

/// An answer in the words of a datastore, in each of its texts.
pub(super) fn answer_of(store: &Datastore, answer: Value) -> Value {
    match store.has_nodes_of_kubernetes() {
        true => with_objects(answer),
        false => answer,
    }
}

/// Problems in the words of a datastore.
pub(super) fn problems_of(store: &Datastore, problems: Vec<Problem>) -> Vec<Problem> {
    match store.has_nodes_of_kubernetes() {
        true => problems.into_iter().map(Problem::spoken).collect(),
        false => problems,
    }
}

/// An answer with objects in the place of keys.
fn with_objects(answer: Value) -> Value {
    match answer {
        Value::String(text) => Value::String(Key::spoken_in(&text)),
        Value::Array(items) => items.into_iter().map(with_objects).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            fields.map(|(name, v)| (name, with_objects(v))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_named_in_each_text() {
        const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/c1";
        let answer = json!({"revision": 7,
            "problems": [{"code": "node.missing", "subject": NODE, "reason": format!("{NODE} is gone")}]});
        let told = json!({"revision": 7,
            "problems": [{"code": "node.missing", "subject": "Node c1", "reason": "Node c1 is gone"}]});
        assert_eq!(with_objects(answer), told);
    }
}
