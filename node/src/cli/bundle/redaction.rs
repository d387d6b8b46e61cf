//! Secrets do not leave the machine: what looks like one, and what is known to be one, is replaced.
//! Rather too much goes than too little.

use std::collections::BTreeSet;
use std::path::Path;

use regex_lite::{Captures, Regex};
use serde_json::Value;

/// In the place of a secret.
pub(super) const REMOVED: &str = "(removed)";

/// Parts of names whose values are secrets, in lower case.
const SECRET_NAMES: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "credential",
    "privatekey",
    "private_key",
    "apikey",
    "api_key",
    "authorization",
];
/// Ends of names whose values are keys and certificates, in lower case.
const SECRET_ENDS: [&str; 6] = [
    "_key",
    "_cert",
    "-key-data",
    "-certificate-data",
    "-authority-data",
    "_pem",
];
/// Ends of names of variables whose values are paths.
const PATH_ENDS: [&str; 2] = ["_FILE", "_DIR"];
/// Octets below which a known secret is not searched for: it would be found in everything.
const SHORTEST: usize = 4;
/// Largest file that is read as a secret.
const LARGEST: u64 = 64 * 1024;

/// What looks like a secret in a text; what stands before it is group 1, where there is one.
const PATTERNS: [&str; 7] = [
    // PEM, also where its beginning or end is cut off.
    r"-----BEGIN (?s:.*?)(?:-----END [A-Z0-9 ]*-----|\z)",
    r"\A[A-Za-z0-9+/=\r\n]*-----END [A-Z0-9 ]*-----",
    // NAME=value, name: value, "name": "value" and bird's `password "value"`.
    r#"((?i:password|passwd|passphrase|token|secret|credential|private[_-]?key|api[_-]?key|key-data|certificate-data|authority-data|authorization)[A-Za-z0-9_.-]*["']?[ \t]*[=:][ \t]*)(?:(?i:bearer|basic)[ \t]+)?(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^ \t\r\n,;&"'{}\[\]]+)"#,
    r#"((?i:password|secret)[ \t]+)(?:"(?:[^"\\]|\\.)*"|'[^']*')"#,
    r"((?i:bearer|basic)[ \t]+)[A-Za-z0-9._~+/=-]{8,}",
    // JSON Web Tokens.
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    // scheme://user:password@host
    r#"((?i:[a-z][a-z0-9+.-]*)://)[^ \t\r\n/@"']+@"#,
];

/// Replaces secrets.
#[derive(Debug)]
pub(super) struct Redaction {
    known: BTreeSet<String>,
    patterns: Vec<Regex>,
}

impl Redaction {
    /// One that knows the secrets in these variables, and those in the folder that
    /// `CARACAL_SECRETS_DIR` names.
    pub(super) fn new(environment: &[(String, String)]) -> Self {
        let mut known = BTreeSet::new();
        for (name, value) in environment {
            if name == "CARACAL_SECRETS_DIR" {
                collect_files(Path::new(value), 3, &mut known);
            } else if is_secret_variable(name) {
                insert(value, &mut known);
            }
        }
        let compiled = |text: &&str| Regex::new(text).expect("a test compiles it");
        Self {
            known,
            patterns: PATTERNS.iter().map(compiled).collect(),
        }
    }

    /// A text without secrets.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for known in &self.known {
            if text.contains(known) {
                text = text.replace(known, REMOVED);
            }
        }
        let replacement = |found: &Captures<'_>| {
            let before = found.get(1).map_or("", |group| group.as_str());
            format!("{before}{REMOVED}")
        };
        for pattern in &self.patterns {
            if pattern.is_match(&text) {
                text = pattern.replace_all(&text, replacement).into_owned();
            }
        }
        text
    }

    /// A value without secrets: texts below names of secrets, and in all other texts what looks
    /// like one.
    pub(super) fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(list) => list.iter_mut().for_each(|inner| self.value(inner)),
            Value::Object(object) => {
                for (name, inner) in object.iter_mut() {
                    match inner {
                        Value::String(text) if is_secret_name(name) => REMOVED.clone_into(text),
                        _ => self.value(inner),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// `NAME=value` of a variable without its secret.
    pub(super) fn variable(&self, name: &str, value: &str) -> String {
        if is_secret_variable(name) && !value.is_empty() {
            return format!("{name}={REMOVED}");
        }
        if PATH_ENDS.iter().any(|end| name.ends_with(end)) {
            return format!("{name}={value}");
        }
        format!("{name}={}", self.text(value))
    }

    /// A file of settings without secrets: `NAME=value` in lines, and comments.
    pub(super) fn settings(&self, text: &str) -> String {
        let line = |line: &str| match line.split_once('=') {
            Some((name, value)) if !line.starts_with('#') => {
                self.variable(name.trim(), value) + "\n"
            }
            _ => self.text(line) + "\n",
        };
        // A value of several lines, such as a key, is seen only in the whole.
        self.text(text).lines().map(line).collect()
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
        || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}

fn is_secret_variable(name: &str) -> bool {
    is_secret_name(name) && !PATH_ENDS.iter().any(|end| name.ends_with(end))
}

fn insert(value: &str, known: &mut BTreeSet<String>) {
    let value = value.trim();
    if value.len() < SHORTEST {
        return;
    }
    known.insert(value.to_owned());
    // As it stands in JSON.
    known.insert(Value::from(value).to_string().trim_matches('"').to_owned());
}

/// The texts of all files below a folder.
fn collect_files(folder: &Path, depth: usize, known: &mut BTreeSet<String>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let Ok(metadata) = std::fs::metadata(&path) else {
            continue;
        };
        if metadata.is_dir() && depth > 0 {
            collect_files(&path, depth - 1, known);
        } else if metadata.is_file() && metadata.len() <= LARGEST {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            insert(&text, known);
        }
    }
}

#[cfg(test)]
mod tests;
