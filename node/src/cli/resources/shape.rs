//! `-o` of `caracal get`: the forms of the other commands, columns that are asked for, and
//! templates: kubectl's `jsonpath` and Go's.

use std::ffi::OsStr;

use caracal_model::ResourceType;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, ValueEnum};
use serde_json::Value;

use super::columns;
use super::field_path::{FieldPath, PathError, Reader, plain};
use super::form::Form;
use super::go_template::GoTemplate;

/// What stands for a field that is not there, as in kubectl.
const NOTHING: &str = "<none>";

/// Forms that take a text after `=`, with an example of it and what they are.
const WITH_TEXT: [(&str, &str, &str); 5] = [
    (
        "custom-columns=",
        "NAME:.metadata.name",
        "A table of HEADING:.field,… or of the kind's own headings",
    ),
    (
        "jsonpath=",
        "'{.metadata.name}'",
        "A text with fields in braces, as in kubectl",
    ),
    ("jsonpath-file=", "FILE", "The same from a file"),
    (
        "go-template=",
        "'{{range .items}}{{.metadata.name}} {{end}}'",
        "A template of Go's, as in kubectl; with Go's names of fields as in calicoctl",
    ),
    ("go-template-file=", "FILE", "The same from a file"),
];

/// How resources are printed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// As other commands print.
    Form(Form),
    /// A table of these columns.
    Columns(Vec<Column>),
    /// A text with fields in it.
    Template(Template),
    /// A template of Go's.
    GoTemplate(GoTemplate),
}

/// A column that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Column {
    /// One of the kind's own, by its heading, as in calicoctl.
    Own(String),
    /// A heading and a field, as in kubectl.
    Field(String, FieldPath),
}

/// A text with fields in braces.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Values(FieldPath),
    Range(FieldPath, Vec<Self>),
}

/// Reads `-o`.
#[derive(Clone, Debug)]
pub(super) struct ShapeParser;

impl TypedValueParser for ShapeParser {
    type Value = Shape;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Shape, clap::Error> {
        (Shape::parse as fn(&str) -> Result<Shape, String>).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let forms = Form::value_variants().iter();
        let forms = forms.filter_map(ValueEnum::to_possible_value);
        let with_text = WITH_TEXT.iter();
        let with_text = with_text.map(|(name, _, help)| PossibleValue::new(*name).help(*help));
        Some(Box::new(forms.chain(with_text)))
    }
}

impl Shape {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let template = |text: &str| {
            let read = Template::parse(text).map(Self::Template);
            read.map_err(|error| format!("{name}, {error}"))
        };
        let go_template = |text: &str| {
            let read = GoTemplate::parse(text).map(Self::GoTemplate);
            read.map_err(|error| error.to_string())
        };
        match (name, rest) {
            ("custom-columns", Some(rest)) => columns_of(rest).map(Self::Columns),
            ("jsonpath", Some(rest)) => template(rest),
            ("jsonpath-file", Some(path)) => template(&text_of(path)?),
            ("go-template" | "template", Some(rest)) => go_template(rest),
            ("go-template-file" | "templatefile", Some(path)) => go_template(&text_of(path)?),
            _ => {
                let with_text = WITH_TEXT
                    .iter()
                    .find(|(form, ..)| form.trim_end_matches('=') == name);
                if let Some((form, example, _)) = with_text {
                    return Err(format!("{name} needs a text: {form}{example}"));
                }
                let form = Form::from_str(text, false).map(Self::Form);
                form.map_err(|_| {
                    "no such form; there are table (ps), wide, json, yaml, name, custom-columns=…, jsonpath=…, jsonpath-file=…, go-template=… and go-template-file=…"
                        .to_owned()
                })
            }
        }
    }
}

fn text_of(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

/// `HEADING:PATH,HEADING,…`; commas within brackets belong to a path.
fn columns_of(text: &str) -> Result<Vec<Column>, String> {
    let mut parts = vec![String::new()];
    let mut depth = 0_usize;
    for c in text.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match parts.last_mut() {
            Some(part) if c != ',' || depth > 0 => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    let column = |part: &String| {
        let place = |reason: &dyn std::fmt::Display| format!("custom-columns {part:?}: {reason}");
        match part.split_once(':') {
            Some(("", _)) => Err(place(&"the heading is empty")),
            Some((heading, path)) => {
                let path = FieldPath::parse(path).map_err(|error| place(&error))?;
                Ok(Column::Field(heading.to_owned(), path))
            }
            None if part.is_empty() => Err(place(&"HEADING:.FIELD or a heading is expected")),
            None => Ok(Column::Own(part.clone())),
        }
    };
    parts.iter().map(column).collect()
}

/// The heading and the rows of columns that were asked for. The error names a heading that the kind
/// does not have.
pub(super) fn table(
    target: ResourceType,
    asked: &[Column],
    resources: &[Value],
) -> Result<(Vec<String>, Vec<Vec<String>>), String> {
    let (own, own_rows) = columns::table(target, true, resources);
    let mut headings = Vec::new();
    let mut rows = vec![Vec::new(); resources.len()];
    for column in asked {
        match column {
            Column::Own(heading) => {
                let at = own.iter().position(|own| own.eq_ignore_ascii_case(heading));
                let at = at.ok_or_else(|| {
                    format!(
                        "custom-columns: {} has no column {heading:?}; it has {}; a field is {heading}:.spec.FIELD",
                        target.as_str(),
                        own.join(", ")
                    )
                })?;
                headings.push(own[at].to_owned());
                for (row, own) in rows.iter_mut().zip(&own_rows) {
                    row.push(own[at].clone());
                }
            }
            Column::Field(heading, path) => {
                headings.push(heading.clone());
                for (row, resource) in rows.iter_mut().zip(resources) {
                    let values = path.values(resource, resource);
                    let texts: Vec<_> = values.into_iter().map(plain).collect();
                    row.push(match texts.is_empty() {
                        true => NOTHING.to_owned(),
                        false => texts.join(","),
                    });
                }
            }
        }
    }
    Ok((headings, rows))
}

impl Template {
    /// Reads a template; the error says at which character it cannot be read.
    pub(super) fn parse(text: &str) -> Result<Self, PathError> {
        let mut reader = Reader::new(text);
        let parts = parts(&mut reader, false)?;
        if !parts.iter().any(|part| !matches!(part, Part::Text(_))) && !text.contains('{') {
            let start = Reader::new(text);
            return Err(start.error("no field in it: fields are in braces, as {.metadata.name}"));
        }
        Ok(Self(parts))
    }

    /// The text of a document.
    pub(super) fn fill(&self, document: &Value) -> String {
        let mut text = String::new();
        fill(&self.0, document, document, &mut text);
        text
    }
}

/// Parts up to the end of the text, or of a range.
fn parts(reader: &mut Reader, in_range: bool) -> Result<Vec<Part>, PathError> {
    let mut found = Vec::new();
    let mut text = String::new();
    loop {
        match reader.next() {
            None if in_range => return Err(reader.error("this range has no {end}")),
            None => break,
            Some('{') => {
                if !text.is_empty() {
                    found.push(Part::Text(std::mem::take(&mut text)));
                }
                reader.skip_spaces();
                if reader.take("end") {
                    if !in_range {
                        return Err(reader.error("{end} without {range …}"));
                    }
                    closed(reader)?;
                    return Ok(found);
                }
                found.push(in_braces(reader)?);
            }
            Some(c) => text.push(c),
        }
    }
    if !text.is_empty() {
        found.push(Part::Text(text));
    }
    Ok(found)
}

/// After an opening brace.
fn in_braces(reader: &mut Reader) -> Result<Part, PathError> {
    if reader.take("range ") {
        reader.skip_spaces();
        let path = FieldPath::read(reader)?;
        closed(reader)?;
        return Ok(Part::Range(path, parts(reader, true)?));
    }
    let part = match reader.peek() {
        Some('"' | '\'') => Part::Text(reader.quoted()?),
        Some('.' | '[' | '$' | '@') => Part::Values(FieldPath::read(reader)?),
        _ => {
            let wanted = ".FIELD, a text in quotes, range or end is expected";
            return Err(reader.error(wanted));
        }
    };
    closed(reader)?;
    Ok(part)
}

fn closed(reader: &mut Reader) -> Result<(), PathError> {
    reader.skip_spaces();
    reader.expect("}")
}

fn fill(parts: &[Part], root: &Value, current: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(literal) => text.push_str(literal),
            Part::Values(path) => {
                let values = path.values(root, current);
                let values: Vec<_> = values.into_iter().map(plain).collect();
                text.push_str(&values.join(" "));
            }
            Part::Range(path, inner) => {
                for item in path.values(root, current) {
                    // `{range .items}` goes over the items, too.
                    match item {
                        Value::Array(items) => {
                            for item in items {
                                fill(inner, root, item, text);
                            }
                        }
                        item => fill(inner, root, item, text),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn pools() -> Value {
        json!({"kind": "IPPoolList", "items": [
            {"metadata": {"name": "a", "labels": {"example.org/rack": "r1", "plain-label": "x"}},
                "spec": {"cidr": "10.0.0.0/16", "blockSize": 26, "allowedUses": ["Workload", "Tunnel"]}},
            {"metadata": {"name": "b"},
                "spec": {"cidr": "10.1.0.0/16", "blockSize": 29, "disabled": true}},
        ]})
    }

    fn filled(template: &str) -> String {
        Template::parse(template).unwrap().fill(&pools())
    }

    #[test]
    fn templates_are_filled_as_kubectl_does() {
        for (template, wanted) in [
            ("{.kind}", "IPPoolList"),
            ("{$.kind}: {.items[*].metadata.name}", "IPPoolList: a b"),
            ("{.items[0].spec.allowedUses}", r#"["Workload","Tunnel"]"#),
            ("{.items[-1].spec.cidr}", "10.1.0.0/16"),
            ("{.items[0:1].metadata.name}", "a"),
            ("{.items[1:].metadata.name}", "b"),
            ("{.items[0].metadata.labels.example\\.org/rack}", "r1"),
            ("{.items[0].metadata.labels['example.org/rack']}", "r1"),
            ("{.items[0].metadata.labels.plain-label}", "x"),
            ("{.items[0]['kind', 'metadata'].name}", "a"),
            ("{..cidr}", "10.0.0.0/16 10.1.0.0/16"),
            ("{.items[?(@.spec.disabled)].metadata.name}", "b"),
            ("{.items[?(@.spec.disabled==true)].metadata.name}", "b"),
            ("{.items[?(@.spec.blockSize < 29)].metadata.name}", "a"),
            (
                "{.items[?(@.metadata.name!=\"a\")].spec.cidr}",
                "10.1.0.0/16",
            ),
            (
                "{range .items[*]}{.metadata.name}={.spec.cidr}{\"\\n\"}{end}.",
                "a=10.0.0.0/16\nb=10.1.0.0/16\n.",
            ),
            (
                "{range .items}{.metadata.name}{range .spec.allowedUses} {@}{end};{end}",
                "a Workload Tunnel;b;",
            ),
            ("{range .items[*]}{$.kind} {end}", "IPPoolList IPPoolList "),
            ("{.items[*].spec.nothing}", ""),
        ] {
            assert_eq!(filled(template), wanted, "{template}");
        }
    }

    #[test]
    fn a_template_that_cannot_be_read_says_where() {
        for (template, said) in [
            (
                "{.metadata.name",
                "character 16: \"}\" is expected, and the text ends",
            ),
            (
                "{.items[}",
                "character 9: a number, *, a name in quotes or ?(…) is expected",
            ),
            (
                "{.items[0}",
                "character 10: \"]\" is expected, and '}' comes",
            ),
            ("{.a..}", "character 6: the name of a field is expected"),
            ("{\"x}", "character 5: the text ends within quotes"),
            (
                "{range .items[*]}{.a}",
                "character 22: this range has no {end}",
            ),
            ("{.a}{end}", "character 9: {end} without {range …}"),
            (
                "{metadata}",
                "character 2: .FIELD, a text in quotes, range or end is expected",
            ),
            (
                "{.items[?(@.a=)]}",
                "character 14: \")\" is expected, and '=' comes",
            ),
            (
                ".metadata.name",
                "character 1: no field in it: fields are in braces, as {.metadata.name}",
            ),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert_eq!(error.to_string(), said, "{template}");
        }
    }

    #[test]
    fn columns_are_calicoctls_and_kubectls() {
        let target = ResourceType::named("ippool").unwrap();
        let items = pools()["items"].as_array().unwrap().clone();
        let shown = |text: &str| match Shape::parse(text).unwrap() {
            Shape::Columns(columns) => table(target, &columns, &items),
            other => panic!("{other:?}"),
        };
        let (headings, rows) = shown(
            "custom-columns=name,BLOCK:.spec.blockSize,USES:{.spec.allowedUses[*]},CIDR:spec.cidr",
        )
        .unwrap();
        assert_eq!(headings, ["NAME", "BLOCK", "USES", "CIDR"]);
        assert_eq!(rows[0], ["a", "26", "Workload,Tunnel", "10.0.0.0/16"]);
        assert_eq!(rows[1], ["b", "29", "<none>", "10.1.0.0/16"]);
        let error = shown("custom-columns=NAME,MASK").unwrap_err();
        assert!(
            error.contains("IPPool has no column \"MASK\"; it has NAME, CIDR"),
            "{error}"
        );
    }

    #[test]
    fn every_wrong_form_is_told() {
        let said = |text: &str| Shape::parse(text).unwrap_err();
        for (text, wanted) in [
            ("custom-columns", "custom-columns needs a text"),
            ("custom-columns=", "HEADING:.FIELD or a heading is expected"),
            (
                "custom-columns=A:.b[",
                "custom-columns \"A:.b[\": character 4: a number",
            ),
            ("custom-columns=:.b", "the heading is empty"),
            ("jsonpath={.a", "jsonpath, character 4: \"}\" is expected"),
            ("jsonpath-file=/nonexistent", "/nonexistent: No such file"),
            ("go-template={{.", "go-template:1:"),
            (
                "go-template",
                "go-template needs a text: go-template='{{range",
            ),
            (
                "go-template-file=/nonexistent",
                "/nonexistent: No such file",
            ),
            ("xml", "no such form"),
        ] {
            assert!(said(text).contains(wanted), "{text}: {}", said(text));
        }
        assert_eq!(Shape::parse("ps"), Ok(Shape::Form(Form::Table)));
        assert_eq!(Shape::parse("yaml"), Ok(Shape::Form(Form::Yaml)));
    }
}
