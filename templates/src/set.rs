//! Sets of templates: what is shipped, what users put over it, and where a template is wrong.
//!
//! A set renders a context into files. It never looks at the context itself: the types of the
//! contexts, which stand in `context.rs` here and in the `topologies` crate, are the interface.

use handlebars::{Handlebars, RenderErrorReason};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A shipped set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// One file for an unpatched BIRD 2, both families.
    Bird2,
    /// Six files for Calico's fork of BIRD 1.6.
    Calico,
    /// `frr.conf` of a router that peers with the cluster.
    Frr,
    /// `bird.conf` of a BIRD 2 router that peers with the cluster.
    Bird2Tor,
}

/// A file that a set makes.
struct Output {
    file: &'static str,
    /// The first of these templates that exists.
    templates: &'static [&'static str],
    /// Where its root is in the context.
    root: &'static str,
}

const fn output(
    file: &'static str,
    templates: &'static [&'static str],
    root: &'static str,
) -> Output {
    Output {
        file,
        templates,
        root,
    }
}

macro_rules! shipped {
    ($($folder:literal / $name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name, ".hbs")))),*]
    };
}

impl Set {
    /// In the order of `caracal render --help`.
    pub const ALL: [Self; 4] = [Self::Bird2, Self::Calico, Self::Frr, Self::Bird2Tor];

    /// Name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bird2 => "bird2",
            Self::Calico => "calico",
            Self::Frr => "frr",
            Self::Bird2Tor => "bird2-tor",
        }
    }

    /// Names and texts of its templates.
    #[must_use]
    pub const fn sources(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Bird2 => shipped!(
                "bird2" / "bird.cfg",
                "bird2" / "filters",
                "bird2" / "condition",
                "bird2" / "actions",
                "bird2" / "announce",
                "bird2" / "kernel",
                "bird2" / "peers",
            ),
            Self::Calico => shipped!(
                "calico" / "bird.cfg",
                "calico" / "bird_aggr.cfg",
                "calico" / "bird_ipam.cfg",
                "calico" / "filters",
                "calico" / "rule",
                "calico" / "peers",
            ),
            Self::Frr => shipped!("frr" / "frr.conf", "frr" / "family"),
            Self::Bird2Tor => shipped!("bird2-tor" / "bird.conf"),
        }
    }

    const fn outputs(self) -> &'static [Output] {
        const CALICO: &[Output] = &[
            output("bird.cfg", &["bird.cfg"], "/ipv4"),
            output("bird_aggr.cfg", &["bird_aggr.cfg"], "/ipv4"),
            output("bird_ipam.cfg", &["bird_ipam.cfg"], "/ipv4"),
            output("bird6.cfg", &["bird6.cfg", "bird.cfg"], "/ipv6"),
            output(
                "bird6_aggr.cfg",
                &["bird6_aggr.cfg", "bird_aggr.cfg"],
                "/ipv6",
            ),
            output(
                "bird6_ipam.cfg",
                &["bird6_ipam.cfg", "bird_ipam.cfg"],
                "/ipv6",
            ),
        ];
        const BIRD2: &[Output] = &[output("bird.conf", &["bird.cfg"], "")];
        const FRR: &[Output] = &[output("frr.conf", &["frr.conf"], "")];
        const TOR: &[Output] = &[output("bird.conf", &["bird.conf"], "")];
        match self {
            Self::Bird2 => BIRD2,
            Self::Calico => CALICO,
            Self::Frr => FRR,
            Self::Bird2Tor => TOR,
        }
    }
}

/// A rendered file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// Its name, without a folder.
    pub file: String,
    /// Its content.
    pub text: String,
}

/// A set that is ready to render.
#[derive(Debug)]
pub struct Templates {
    set: Set,
    registry: Handlebars<'static>,
    /// File and text of each template, for errors.
    sources: BTreeMap<String, (String, String)>,
    /// Files that users added.
    added: Vec<String>,
}

impl Templates {
    /// A set as it is shipped.
    #[must_use]
    pub fn shipped(set: Set) -> Self {
        let mut registry = Handlebars::new();
        // A name that the context lacks is an error, not an empty text.
        registry.set_strict_mode(true);
        registry.register_escape_fn(handlebars::no_escape);
        let mut templates = Self {
            set,
            registry,
            sources: BTreeMap::new(),
            added: Vec::new(),
        };
        for (name, text) in set.sources() {
            let file = format!("{}/{name}.hbs (built in)", set.as_str());
            templates
                .register(name, &file, text)
                .expect("shipped templates compile, a test sees to it");
        }
        templates
    }

    /// Puts a template of the user's over the shipped one of the same name, or adds it. `file` is
    /// the path of the file, for errors; its name without `.hbs` is the template's. A new name with
    /// a dot in it is a new file that is rendered with the whole context; a new name without one is
    /// a part for other templates.
    ///
    /// # Errors
    /// [`TemplateError`] says where the template is wrong.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), TemplateError> {
        let name = file.rsplit('/').next().unwrap_or(file);
        let name = name.strip_suffix(".hbs").unwrap_or(name);
        let outputs = self.set.outputs();
        let known = self.set.sources().iter().any(|(n, _)| *n == name)
            || outputs.iter().any(|o| o.templates.contains(&name));
        self.register(name, file, text)?;
        if !known && name.contains('.') {
            self.added.push(name.to_owned());
        }
        Ok(())
    }

    fn register(&mut self, name: &str, file: &str, text: &str) -> Result<(), TemplateError> {
        // A condition stands inside a line; all other templates are whole lines.
        let template = if name == "condition" {
            text.trim_end()
        } else {
            text
        };
        let source = (file.to_owned(), text.to_owned());
        self.sources.insert(name.to_owned(), source);
        self.registry
            .register_template_string(name, template)
            .map_err(|e| {
                let (line, column) = e.pos().unwrap_or((1, 1));
                self.error(Some(name), line, column, e.reason().to_string())
            })
    }

    /// All files of the set, then those that users added.
    ///
    /// # Errors
    /// [`TemplateError`] says where a template is wrong.
    pub fn files(&self, context: &impl Serialize) -> Result<Vec<Rendered>, TemplateError> {
        let context = serde_json::to_value(context)
            .expect("invariant: contexts are structures of texts and numbers");
        let mut files = Vec::new();
        for Output {
            file,
            templates,
            root,
        } in self.set.outputs()
        {
            let exists = |name: &&&str| self.registry.has_template(name);
            let template = templates.iter().find(exists).unwrap_or(&templates[0]);
            let root = context.pointer(root).unwrap_or(&Value::Null);
            files.push(Rendered {
                file: (*file).to_owned(),
                text: self.render(template, root)?,
            });
        }
        for file in &self.added {
            files.push(Rendered {
                file: file.clone(),
                text: self.render(file, &context)?,
            });
        }
        Ok(files)
    }

    /// One template.
    ///
    /// # Errors
    /// [`TemplateError`] says where the template is wrong.
    pub fn render(&self, name: &str, context: &impl Serialize) -> Result<String, TemplateError> {
        let mut text = self.registry.render(name, context).map_err(|e| {
            let (line, column) = (e.line_no.unwrap_or(1), e.column_no.unwrap_or(1));
            let name = e.template_name.as_deref().or(Some(name));
            let reason = match e.reason() {
                RenderErrorReason::MissingVariable(Some(field)) => {
                    format!("the context has no field {field}")
                }
                RenderErrorReason::PartialNotFound(part) => {
                    format!("there is no template {part}")
                }
                other => other.to_string(),
            };
            self.error(name, line, column, reason)
        })?;
        // A template that ends with a block leaves its last line open.
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }

    fn error(
        &self,
        name: Option<&str>,
        line: usize,
        column: usize,
        reason: String,
    ) -> TemplateError {
        let source = name.and_then(|name| self.sources.get(name));
        let (file, text) = source.map_or(("a template", ""), |(f, t)| (f.as_str(), t.as_str()));
        TemplateError {
            file: file.to_owned(),
            line,
            column,
            reason,
            text: text
                .lines()
                .nth(line.saturating_sub(1))
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// A template that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {reason}")]
pub struct TemplateError {
    /// Name of the template.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The fault.
    pub reason: String,
    /// The line.
    pub text: String,
}

impl TemplateError {
    /// The error with the line it is in and a caret under the place, for a terminal.
    #[must_use]
    pub fn report(&self) -> String {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let before = self.text.chars().take(self.column.saturating_sub(1));
        let indent: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let mut out = format!("error: {}\n", self.reason);
        let _ = writeln!(
            out,
            "{margin} --> {}:{}:{}",
            self.file, self.line, self.column
        );
        let _ = writeln!(out, " {margin} |");
        let _ = writeln!(out, " {number} | {}", self.text);
        let _ = writeln!(out, " {margin} | {indent}^");
        out
    }
}
