//! Files of resources, read into documents.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use caracal_model::{Key, Kind};
use serde_json::Value;

/// A resource of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document {
    /// `pools.yaml, line 3`.
    pub(super) origin: String,
    pub(super) kind: Kind,
    pub(super) key: Key,
    /// The resource as it is written there.
    pub(super) value: Value,
}

/// Reads files, folders and standard input, in that order. Documents that name no namespace are of
/// `namespace`.
pub(super) fn read(paths: &[PathBuf], namespace: &str) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("reading standard input")?;
            documents.extend(parse("standard input", &text, namespace)?);
            continue;
        }
        for file in files(path)? {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("reading {}", file.display()))?;
            documents.extend(parse(&file.display().to_string(), &text, namespace)?);
        }
    }
    anyhow::ensure!(
        !documents.is_empty(),
        "there is no resource in what was given"
    );
    Ok(documents)
}

/// The file, or the resource files of a folder in the order of their names.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let reading = || format!("reading {}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(reading)? {
        let file = entry.with_context(reading)?.path();
        let extension = file.extension().and_then(|e| e.to_str());
        if file.is_file() && matches!(extension, Some("yaml" | "yml" | "json")) {
            files.push(file);
        }
    }
    files.sort_unstable();
    anyhow::ensure!(
        !files.is_empty(),
        "{}: there is no *.yaml, *.yml or *.json",
        path.display()
    );
    Ok(files)
}

pub(super) fn parse(file: &str, text: &str, namespace: &str) -> anyhow::Result<Vec<Document>> {
    let resources =
        caracal_topologies::resources_from_yaml(text).with_context(|| file.to_owned())?;
    if let Some(unknown) = resources.unknown.first() {
        anyhow::bail!("{file}: {}: {}", unknown.subject, unknown.reason);
    }
    anyhow::ensure!(
        resources.secrets.is_empty(),
        "{file}: a Secret is not kept in this datastore; place it in CARACAL_SECRETS_DIR of the nodes"
    );
    let mut documents = Vec::new();
    for (line, key, value) in resources.entries() {
        let mut value: Value =
            serde_json::from_slice(value).expect("invariant: written by the reader");
        let origin = format!("{file}, line {line}");
        let Key::Resource { kind, name, .. } = key else {
            anyhow::bail!(
                "{origin}: a document of Kubernetes' API is placed with `caracal services apply` where the datastore is etcd, else with kubectl"
            );
        };
        let (kind, name) = (*kind, name.clone());
        let mut own = None;
        if kind.is_namespaced() {
            let found = value.pointer("/metadata/namespace").and_then(Value::as_str);
            let found = found.filter(|text| !text.is_empty());
            let namespace = found.unwrap_or(namespace).to_owned();
            if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert("namespace".to_owned(), namespace.clone().into());
            }
            own = Some(namespace);
        }
        let key = Key::Resource {
            kind,
            namespace: own,
            name,
        };
        documents.push(Document {
            origin,
            kind,
            key,
            value,
        });
    }
    Ok(documents)
}
