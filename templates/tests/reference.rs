//! The reference of the contexts is made from the structs that templates see:
//! docs/templates-context.md says every field with type and meaning, and nothing else.
//! `CARACAL_BLESS=1` writes the page anew.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

/// A struct or an enum of a context.
struct Item {
    name: String,
    doc: String,
    /// Name, type, meaning; of an enum the variant, its fields, its meaning.
    rows: Vec<[String; 3]>,
    is_enum: bool,
}

/// Reads the public structs and enums of a source file. The files keep to rustfmt's form: one field
/// a line.
fn items(source: &str, tag: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let (mut doc, mut open) = (String::new(), false);
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let text = line.trim();
        if let Some(said) = text.strip_prefix("///") {
            if !doc.is_empty() {
                doc.push(' ');
            }
            doc.push_str(said.trim());
            continue;
        }
        let opened = ["pub struct ", "pub enum "]
            .into_iter()
            .find(|word| line.starts_with(word));
        if let Some(word) = opened
            && let Some(name) = text[word.len()..].strip_suffix(" {")
            && !name.ends_with("Error")
        {
            items.push(Item {
                name: name.to_owned(),
                doc: std::mem::take(&mut doc),
                rows: Vec::new(),
                is_enum: word == "pub enum ",
            });
            open = true;
        } else if line == "}" {
            open = false;
        } else if open && !text.starts_with("#[") {
            let item = items.last_mut().unwrap();
            let row = if item.is_enum {
                variant(text, &mut lines, tag)
            } else {
                text.strip_prefix("pub ").and_then(|text| field(text, tag))
            };
            if let Some([name, kind]) = row {
                item.rows.push([name, kind, std::mem::take(&mut doc)]);
            }
        }
        if !text.starts_with("#[") && !text.starts_with("#![") {
            doc.clear();
        }
    }
    items
}

/// `name: Type,`
fn field(text: &str, tag: &str) -> Option<[String; 2]> {
    let (name, kind) = text.trim_end_matches(',').split_once(": ")?;
    Some([name.to_owned(), kind_of(kind, tag)])
}

/// `Name,` or `Name { field: Type },` on one line or several.
fn variant(text: &str, lines: &mut std::str::Lines<'_>, tag: &str) -> Option<[String; 2]> {
    let mut whole = text.to_owned();
    while whole.contains('{') && !whole.contains('}') {
        whole += lines.next()?.trim();
    }
    let whole = whole.trim_end_matches(',');
    let (name, fields) = whole.split_once(" {").unwrap_or((whole, ""));
    let fields: Vec<String> = fields
        .trim_end_matches('}')
        .split(',')
        .filter_map(|one| field(one.trim(), tag))
        .map(|[name, kind]| format!("`{name}`: {kind}"))
        .collect();
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    Some([snake, fields.join(", ")])
}

/// The type in words of templates.
fn kind_of(kind: &str, tag: &str) -> String {
    let inside = |outer: &str| kind.strip_prefix(outer)?.strip_suffix('>');
    if let Some(inner) = inside("Option<") {
        return format!("{} or null", kind_of(inner, tag));
    }
    if let Some(inner) = inside("Vec<") {
        return format!("list of {}", kind_of(inner, tag));
    }
    // The maps of the contexts have a value for each family.
    if let Some(inner) = inside("BTreeMap<&'static str, ") {
        return format!("{} by family", kind_of(inner, tag));
    }
    match kind {
        "String" | "&'static str" => "text".to_owned(),
        "bool" => "bool".to_owned(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "number".to_owned(),
        other => format!("[{other}](#{tag}-{})", other.to_lowercase()),
    }
}

fn section(out: &mut String, tag: &str, title: &str, root: &str, source: &str) {
    let _ = write!(out, "\n## {title}\n\nRoot: `{root}`.\n");
    for item in items(source, tag) {
        let heading = if item.is_enum {
            "| `is` | with | meaning |"
        } else {
            "| field | type | meaning |"
        };
        let _ = write!(
            out,
            "\n### {tag} {}\n\n{}\n\n{heading}\n|---|---|---|\n",
            item.name, item.doc
        );
        for [name, kind, meaning] in item.rows {
            assert!(!meaning.is_empty(), "{}: {name} has no meaning", item.name);
            let _ = writeln!(
                out,
                "| `{name}` | {kind} | {} |",
                meaning.replace('|', "\\|")
            );
        }
    }
}

fn page() -> String {
    let mut out = String::from(
        "# What templates see\n\n\
         Every field of every context, with its type; made from the program's own types by a test. Fields are added, never changed or\n\
         removed. Every field is always there: what does not apply is null, `false` or an empty list. How templates are used:\n\
         [templates.md](templates.md).\n",
    );
    section(
        &mut out,
        "bird2",
        "bird2 and view",
        "Context",
        include_str!("../src/context.rs"),
    );
    let calico = include_str!("../../topologies/src/calico/context.rs");
    section(
        &mut out,
        "calico",
        "calico",
        "Daemon` for shipped templates, `Context` for files that you add",
        calico,
    );
    let router = include_str!("../../topologies/src/router.rs");
    section(&mut out, "router", "frr and bird2-tor", "Router", router);
    out
}

#[test]
fn the_reference_is_what_the_structs_say() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/templates-context.md");
    let made = page();
    if std::env::var_os("CARACAL_BLESS").is_some() {
        std::fs::write(file, &made).unwrap();
    }
    let there = std::fs::read_to_string(file).unwrap_or_default();
    let differs = made
        .lines()
        .zip(there.lines())
        .find(|(made, there)| made != there);
    assert!(
        made == there,
        "docs/templates-context.md is not what the structs say ({differs:?}); CARACAL_BLESS=1 writes it"
    );
}

#[test]
fn fields_that_a_context_has_are_in_the_page() {
    let page = page();
    for row in [
        "| `router_id` | text | The BGP Identifier. |",
        "| `local_pref` | `value`: number |",
        "| `listen_port` | number or null |",
        "| `neighbors` | list of [Neighbor](#router-neighbor) |",
    ] {
        assert!(page.contains(row), "{row}");
    }
}
