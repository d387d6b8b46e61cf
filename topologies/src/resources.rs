//! Resource files as `calicoctl` takes them, read into a [`Snapshot`]: several YAML documents,
//! JSON, lists.
//!
//! Every resource becomes the key and value that etcd would hold and goes through
//! [`Snapshot::apply`], so that a file and a live cluster with the same content give the same plan.
//! [`assign_block`] adds what only IPAM knows: which blocks a node has.

mod kept;

use std::collections::BTreeMap;

use caracal_bgp::Password;
use caracal_model::{
    API_VERSION, AffinityState, Applied, Block, BlockAffinity, BlockOwner, DocumentKind, Key, Kind,
    NodeName, POLICY_KINDS, Prefix, Problem, ProblemCode, Snapshot,
};
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::SecretName;
use crate::services::document_kind;

pub use kept::WRITTEN_KINDS;

/// Resources of one file, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    entries: Vec<Entry>,
    /// Passwords from Secrets of Kubernetes.
    pub secrets: BTreeMap<SecretName, Password>,
    /// Documents that are no resource Caracal reads, each with line and reason.
    pub unknown: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    line: u64,
    key: Key,
    value: Vec<u8>,
}

/// A file that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ResourcesError {
    /// Not YAML; the source names line and column.
    #[error("the resource file is not YAML")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// Too long; its length in octets.
    #[error("the resource file has {0} octets, more than {LONGEST}")]
    TooLong(usize),
    /// A document or list item that is no resource.
    #[error("line {line}: {reason}")]
    Shape {
        /// Line of the document, from 1.
        line: u64,
        /// Observed and expected value.
        reason: String,
    },
}

/// Reads a resource file. Unknown kinds are noted in [`Resources::unknown`]; the rest is used.
///
/// # Errors
/// [`ResourcesError`] when the text is not YAML or a document has no kind or name.
pub fn resources_from_yaml(text: &str) -> Result<Resources, ResourcesError> {
    let documents: Vec<Spanned<Value>> =
        serde_saphyr::from_multiple_with_options(text, options(text.len())?)
            .map_err(|e| ResourcesError::Syntax(Box::new(e)))?;
    let mut resources = Resources::default();
    for document in documents {
        let line = document.defined.line();
        resources.read(line, document.value)?;
    }
    Ok(resources)
}

/// Longest file, in octets: 10,000 Services with ten endpoints each have a quarter of it.
const LONGEST: usize = 256 << 20;

/// A file is limited by its length, and by nothing that a file of that length may hold; the limits
/// of aliases stay, which make much of little.
fn options(length: usize) -> Result<serde_saphyr::Options, ResourcesError> {
    if length > LONGEST {
        return Err(ResourcesError::TooLong(length));
    }
    let mut options = serde_saphyr::Options::default();
    if let Some(budget) = &mut options.budget {
        // Where a sequence or map ends there is an event, too.
        for limit in [
            &mut budget.max_events,
            &mut budget.max_nodes,
            &mut budget.max_documents,
            &mut budget.max_total_scalar_bytes,
        ] {
            *limit = (*limit).max(length.saturating_mul(2));
        }
    }
    Ok(options)
}

impl Resources {
    /// Number of resources that were understood.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The resources in the order of the file, each with its line, key and value (JSON).
    pub fn entries(&self) -> impl Iterator<Item = (u64, &Key, &[u8])> {
        let entries = self.entries.iter();
        entries.map(|entry| (entry.line, &entry.key, entry.value.as_slice()))
    }

    /// True when nothing was understood.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts every resource into the snapshot; later ones replace earlier ones. Returns kinds that
    /// Caracal does not read, values that are not valid, and fields without effect.
    #[must_use]
    pub fn apply(&self, snapshot: &mut Snapshot) -> Vec<Problem> {
        let mut problems = self.unknown.clone();
        for Entry { line, key, value } in &self.entries {
            let path = key.to_path();
            let revision = snapshot.revision + 1;
            if let Applied::Invalid(reason) = snapshot.apply(&path, Some(value), revision) {
                problems.push(Problem {
                    code: ProblemCode::ResourcesInvalid,
                    subject: path,
                    reason: format!("line {line}: {reason}"),
                });
            } else {
                let notes = snapshot.field_problems(&path).into_iter();
                problems.extend(notes.map(|p| Problem {
                    reason: format!("line {line}: {}", p.reason),
                    ..p
                }));
            }
        }
        problems
    }

    /// Reads `stringData` as it is and `data` in base64 (RFC 4648 §4). The namespace is ignored:
    /// references name none.
    fn read_secret(&mut self, line: u64, document: &Value) {
        let name = document.pointer("/metadata/name").and_then(Value::as_str);
        let Some(name) = name else { return };
        let map = |field: &str| {
            document
                .get(field)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
        };
        let decoded = map("data").map(|(key, value)| (key, value.as_str().and_then(base64)));
        let plain = map("stringData").map(|(key, value)| (key, value.as_str().map(str::to_owned)));
        for (key, text) in decoded.chain(plain) {
            match text {
                Some(text) => {
                    let secret = SecretName {
                        name: name.to_owned(),
                        key: key.clone(),
                    };
                    self.secrets.insert(secret, Password(text));
                }
                None => self.unknown.push(Problem {
                    code: ProblemCode::ResourcesSecret,
                    subject: format!("Secret {name}"),
                    reason: format!(
                        "line {line}: key {key:?} is not text in base64; it is passed over"
                    ),
                }),
            }
        }
    }

    fn read(&mut self, line: u64, document: Value) -> Result<(), ResourcesError> {
        let shape = |reason: String| ResourcesError::Shape { line, reason };
        if !document.is_object() {
            return Err(shape(format!(
                "a resource is a mapping with kind and metadata; found {}",
                kind_of(&document)
            )));
        }
        let Some(kind) = document.get("kind").and_then(Value::as_str) else {
            return Err(shape("the resource has no kind".to_owned()));
        };
        // `NodeList`, `IPPoolList` and plain `List`: what `calicoctl get -o yaml` prints.
        if kind.ends_with("List") && document.get("items").is_some() {
            let items = match document.get("items") {
                Some(Value::Array(items)) => items.clone(),
                Some(Value::Null) => Vec::new(),
                _ => return Err(shape(format!("items of {kind} is not a list"))),
            };
            return items.into_iter().try_for_each(|item| self.read(line, item));
        }
        let version = document.get("apiVersion").and_then(Value::as_str);
        if (version, kind) == (Some("v1"), "Secret") {
            self.read_secret(line, &document);
            return Ok(());
        }
        let known = Kind::ALL.into_iter().find(|k| k.as_str() == kind);
        let known = match (document_kind(version, kind), known, version) {
            (Some(kind), ..) => Read::Document(kind),
            (None, Some(kind), None | Some(API_VERSION)) => Read::Resource(kind),
            _ if POLICY_KINDS.iter().any(|(_, policy)| *policy == kind) => {
                self.unknown.push(Problem {
                    code: ProblemCode::PolicyNotEnforced,
                    subject: format!("{}/{kind}", version.unwrap_or("-")),
                    reason: format!(
                        "line {line}: a {kind}, and nobody here would enforce it: Caracal routes and has no policy; run a policy engine \
                         beside it, and give it the policy with its own tool"
                    ),
                });
                return Ok(());
            }
            _ => {
                self.unknown.push(Problem {
                    code: ProblemCode::ResourcesUnknownKind,
                    subject: format!("{}/{kind}", version.unwrap_or("-")),
                    reason: format!(
                        "line {line}: not a resource that Caracal reads; expected {API_VERSION} with one of {}",
                        Kind::ALL.map(Kind::as_str).join(", ")
                    ),
                });
                return Ok(());
            }
        };
        let metadata = document.get("metadata");
        let text = |field: &str| {
            metadata
                .and_then(|m| m.get(field))
                .and_then(Value::as_str)
                .filter(|t| !t.is_empty() && !t.contains('/'))
                .map(str::to_owned)
        };
        let Some(name) = text("name") else {
            return Err(shape(format!(
                "{kind} has no usable metadata.name; it is a non-empty text without a slash"
            )));
        };
        let namespace = || text("namespace").unwrap_or_else(|| "default".to_owned());
        let key = match known {
            Read::Document(kind) => Key::Document {
                kind,
                namespace: namespace(),
                name,
            },
            Read::Resource(kind) => Key::Resource {
                kind,
                namespace: kind.is_namespaced().then(namespace),
                name,
            },
        };
        self.entries.push(Entry {
            line,
            key,
            value: serde_json::to_vec(&document).expect("a JSON value always serialises"),
        });
        Ok(())
    }
}

/// A kind that is read.
enum Read {
    Document(DocumentKind),
    Resource(Kind),
}

/// Decodes base64 that holds UTF-8. Padding is optional.
fn base64(text: &str) -> Option<String> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim().trim_end_matches('=').bytes();
    let (mut out, mut bits, mut held) = (Vec::new(), 0_u32, 0_u32);
    for digit in digits {
        let value = ALPHABET.iter().position(|d| *d == digit)?;
        held = held << 6 | u32::try_from(value).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
        held &= (1 << bits) - 1;
    }
    (held == 0 && bits < 6).then(|| String::from_utf8(out).ok())?
}

const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Gives a node a block as IPAM would: a confirmed affinity, and an empty block if none is known.
pub fn assign_block(snapshot: &mut Snapshot, node: &NodeName, block: Prefix) {
    let owner = BlockOwner::Host(node.clone());
    let revision = snapshot.revision + 1;
    let affinity = BlockAffinity::new(AffinityState::Confirmed).to_json();
    let path = Key::Affinity(owner.clone(), block).to_path();
    snapshot.apply(&path, Some(&affinity), revision);
    // A range of millions of addresses is no block; the affinity alone says what is announced.
    if !snapshot.blocks.contains_key(&block) && block.size() <= 1 << 16 {
        let value = Block::new(block, Some(&owner), 1).to_json();
        snapshot.apply(&Key::Block(block).to_path(), Some(&value), revision);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = "\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: p}
spec: {cidr: 10.244.0.0/16}
---
# an empty document and a list
---
kind: NodeList
apiVersion: projectcalico.org/v3
items:
  - kind: Node
    apiVersion: projectcalico.org/v3
    metadata: {name: a}
    spec: {bgp: {ipv4Address: 10.0.0.1/24}}
  - {kind: Node, metadata: {name: b}, spec: {bgp: {ipv4Address: 10.0.0.2/24}}}
---
kind: List
apiVersion: v1
items: [{kind: BGPPeer, metadata: {name: x}, spec: {peerIP: 10.0.0.9, asNumber: 0}}]
---
{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"s\"}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}}
";

    #[test]
    fn documents_lists_and_json() {
        let resources = resources_from_yaml(FILE).unwrap();
        assert_eq!(resources.len(), 4);
        let mut snapshot = Snapshot::default();
        let problems = resources.apply(&mut snapshot);
        assert_eq!(snapshot.nodes.len(), 2);
        assert_eq!(snapshot.pools.len(), 1);
        let codes: Vec<_> = problems
            .iter()
            .map(|p| (p.code.as_str(), p.subject.as_str()))
            .collect();
        assert_eq!(
            codes,
            [
                ("resources.unknown_kind", "v1/ConfigMap"),
                ("policy.not_enforced", "networking.k8s.io/v1/NetworkPolicy"),
                (
                    "resources.invalid",
                    "/calico/resources/v3/projectcalico.org/bgppeers/x"
                ),
            ]
        );
        assert!(problems[0].reason.starts_with("line 21: "), "{problems:?}");
        assert!(problems[2].reason.contains("asNumber 0 is reserved"));
    }

    #[test]
    fn a_file_that_is_no_resource_file_is_refused_with_its_line() {
        let error = |text| resources_from_yaml(text).unwrap_err().to_string();
        assert_eq!(error("a: 1"), "line 1: the resource has no kind");
        assert_eq!(
            error("kind: Node\n---\n- 1"),
            "line 1: Node has no usable metadata.name; it is a non-empty text without a slash"
        );
        assert_eq!(
            error("[1]"),
            "line 1: a resource is a mapping with kind and metadata; found a list"
        );
        assert!(matches!(
            resources_from_yaml("a: [1"),
            Err(ResourcesError::Syntax(_))
        ));
    }

    #[test]
    fn a_claim_is_a_confirmed_affinity_with_a_block() {
        let mut snapshot = Snapshot::default();
        let node = NodeName::from("a");
        let block: Prefix = "10.244.1.64/26".parse().unwrap();
        assign_block(&mut snapshot, &node, block);
        let (cidr, affinity) = snapshot.affinities_of(&node).next().unwrap();
        assert_eq!(cidr, block);
        assert_eq!(affinity.state, AffinityState::Confirmed);
        assert_eq!(
            snapshot.blocks[&block].whole().unwrap().allocations.len(),
            64
        );
        assign_block(&mut snapshot, &node, "fd00::/64".parse().unwrap());
        assert_eq!(snapshot.blocks.len(), 1);
    }
}
