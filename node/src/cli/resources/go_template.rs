//! `-o go-template` of `caracal get`: Go's `text/template` over the document that `-o json` prints,
//! as in kubectl. A template that names fields of calicoctl's Go structures (`.Items`,
//! `.ObjectMeta.Name`, `.Spec.CIDR`) gets what calicoctl gives to it: a list of what was asked for,
//! with Go's names of fields.

use std::collections::BTreeMap;
use std::sync::Arc;

use gotmpl::{Template, TemplateError, Value as GoValue};
use serde_json::Value;

/// Fields of Go's structures that every template of calicoctl's names, and no JSON of Calico's has.
const FIELDS_OF_GO: [&str; 4] = [".Items", ".ObjectMeta", ".Spec", ".TypeMeta"];

/// First words of names that Go writes in its own way.
const FIRST_WORDS: [(&str, &str); 16] = [
    ("as", "AS"),
    ("asn", "ASN"),
    ("bfd", "BFD"),
    ("bgp", "BGP"),
    ("cidr", "CIDR"),
    ("cidrs", "CIDRs"),
    ("id", "ID"),
    ("ip", "IP"),
    ("ipip", "IPIP"),
    ("ips", "IPs"),
    ("ipv4", "IPv4"),
    ("ipv6", "IPv6"),
    ("mtu", "MTU"),
    ("nat", "NAT"),
    ("uid", "UID"),
    ("vxlan", "VXLAN"),
];

/// A template that can be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GoTemplate(String);

impl GoTemplate {
    /// Reads a template; the error says in which line and column it cannot be read.
    pub(super) fn parse(text: &str) -> Result<Self, TemplateError> {
        compiled(text).map(|_| Self(text.to_owned()))
    }

    /// The text for a document. The error is a function that does not take the value it gets.
    pub(super) fn fill(&self, document: &Value) -> Result<String, TemplateError> {
        let has_go_names = FIELDS_OF_GO.iter().any(|field| self.0.contains(field));
        let data = match has_go_names {
            true => GoValue::List(Arc::new([go_value(document, true)])),
            false => go_value(document, false),
        };
        compiled(&self.0)?.execute_to_string(&data)
    }
}

fn compiled(text: &str) -> Result<Template, TemplateError> {
    Template::new("go-template").func("join", join).parse(text)
}

/// calicoctl's `join LIST SEPARATOR`.
fn join(arguments: &[GoValue]) -> Result<GoValue, TemplateError> {
    let [list, separator] = arguments else {
        let reason = format!(
            "join takes a list and a separator, not {} values",
            arguments.len()
        );
        return Err(TemplateError::Exec(reason));
    };
    let texts: Vec<_> = match list {
        GoValue::List(items) => items.iter().map(ToString::to_string).collect(),
        GoValue::Nil => Vec::new(),
        other => vec![other.to_string()],
    };
    Ok(GoValue::String(texts.join(&separator.to_string()).into()))
}

/// A value as templates have it; names of fields as in Go, or as they are.
fn go_value(value: &Value, with_go_names: bool) -> GoValue {
    match value {
        Value::Null => GoValue::Nil,
        Value::Bool(value) => GoValue::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => GoValue::Int(number),
            (None, Some(number)) => GoValue::Uint(number),
            (None, None) => GoValue::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => GoValue::String(text.as_str().into()),
        Value::Array(items) => GoValue::List(
            items
                .iter()
                .map(|item| go_value(item, with_go_names))
                .collect(),
        ),
        Value::Object(fields) => {
            let mut map = BTreeMap::new();
            for (name, value) in fields {
                // Labels and annotations are maps in Go, too.
                let is_map = ["labels", "annotations"].contains(&name.as_str());
                let name = match with_go_names {
                    true => go_name(name),
                    false => name.clone(),
                };
                map.insert(name.into(), go_value(value, with_go_names && !is_map));
            }
            GoValue::Map(Arc::new(map))
        }
    }
}

/// The field of Calico's Go structures that JSON has under this name.
fn go_name(name: &str) -> String {
    if name == "metadata" {
        return "ObjectMeta".to_owned();
    }
    let word = name.find(|c: char| c.is_ascii_uppercase());
    let (word, rest) = name.split_at(word.unwrap_or(name.len()));
    if let Some((_, word)) = FIRST_WORDS.iter().find(|(in_json, _)| *in_json == word) {
        return format!("{word}{rest}");
    }
    let mut letters = name.chars();
    match letters.next() {
        Some(first) => format!("{}{}", first.to_ascii_uppercase(), letters.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn pools() -> Value {
        json!({"kind": "IPPoolList", "apiVersion": "projectcalico.org/v3", "items": [
            {"kind": "IPPool", "metadata": {"name": "a", "labels": {"rack": "r1"}},
                "spec": {"cidr": "10.0.0.0/16", "blockSize": 26, "ipipMode": "Always",
                    "natOutgoing": true, "allowedUses": ["Workload", "Tunnel"]}},
            {"kind": "IPPool", "metadata": {"name": "b"}, "spec": {"cidr": "10.1.0.0/16", "blockSize": 29}},
        ]})
    }

    fn filled(template: &str) -> String {
        GoTemplate::parse(template).unwrap().fill(&pools()).unwrap()
    }

    #[test]
    fn fields_have_the_names_of_json_as_in_kubectl() {
        for (template, wanted) in [
            ("{{.kind}}", "IPPoolList"),
            (
                r#"{{range .items}}{{.metadata.name}}={{.spec.cidr}}{{"\n"}}{{end}}"#,
                "a=10.0.0.0/16\nb=10.1.0.0/16\n",
            ),
            ("{{(index .items 1).spec.blockSize}}", "29"),
            (
                "{{range $i, $p := .items}}{{if $i}}, {{end}}{{$p.metadata.name}}{{end}}",
                "a, b",
            ),
            (
                "{{range .items}}{{if gt .spec.blockSize 26}}{{.metadata.name}}{{end}}{{end}}",
                "b",
            ),
            ("{{len .items}} {{printf \"%q\" .kind}}", "2 \"IPPoolList\""),
            ("{{.nothing}}", "<no value>"),
            (
                "{{range .items}}{{with .spec.allowedUses}}{{join . \",\"}}{{end}}{{end}}",
                "Workload,Tunnel",
            ),
            ("{{index (index .items 0).metadata.labels \"rack\"}}", "r1"),
        ] {
            assert_eq!(filled(template), wanted, "{template}");
        }
    }

    #[test]
    fn a_template_of_calicoctls_is_filled_as_there() {
        for (template, wanted) in [
            (
                "{{range .}}{{range .Items}}{{.ObjectMeta.Name}} {{.Spec.CIDR}} {{.Spec.BlockSize}}\n{{end}}{{end}}",
                "a 10.0.0.0/16 26\nb 10.1.0.0/16 29\n",
            ),
            (
                "{{range .}}{{with index .Items 0}}{{.Spec.IPIPMode}} {{.Spec.NATOutgoing}} {{.Kind}} {{.ObjectMeta.Labels.rack}}{{end}}{{end}}",
                "Always true IPPool r1",
            ),
        ] {
            assert_eq!(filled(template), wanted, "{template}");
        }
    }

    #[test]
    fn names_of_go_s_fields() {
        for (name, wanted) in [
            ("metadata", "ObjectMeta"),
            ("cidr", "CIDR"),
            ("asNumber", "ASNumber"),
            ("peerIP", "PeerIP"),
            ("ipv4VXLANTunnelAddr", "IPv4VXLANTunnelAddr"),
            ("vxlanMode", "VXLANMode"),
            ("assigned", "Assigned"),
            ("serviceClusterIPs", "ServiceClusterIPs"),
        ] {
            assert_eq!(go_name(name), wanted);
        }
    }

    #[test]
    fn what_cannot_be_read_or_filled_is_told() {
        let error = GoTemplate::parse("{{range .items}}\n{{.metadata.name").unwrap_err();
        let said = error.to_string();
        assert!(said.contains("go-template:2:"), "{said}");
        let template = GoTemplate::parse("{{index .kind 400}}").unwrap();
        assert!(template.fill(&pools()).is_err());
    }
}
