//! Every field of every resource that Caracal reads: which ones are honoured, which ones of
//! Calico's are not, and which do not apply. A field that is in no table is a mistake, and the
//! nearest known name is a hint at what was meant.
//!
//! `docs/resources.md` shows the same tables; a test holds the two against each other.

mod bgp;
mod felix;
mod other;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Kind;
use crate::names::NodeName;
use crate::spelling::nearest_name;
pub use felix::FELIX_FIELDS;

/// Effect of a field in Caracal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldEffect {
    /// Read, and followed.
    Honoured,
    /// Calico's, and without effect here: any value but these (Calico's default, or what is done
    /// anyway) is a problem, with the reason.
    Without(&'static [&'static str], &'static str),
    /// Calico's, and nothing here could differ by it; what it is for.
    NotApplicable(&'static str),
}

/// A field: its path below the resource (`spec.` for most) without indices of lists, and what it
/// does here. A path that begins others is an object, or a list of objects.
pub type FieldEntry = (&'static str, FieldEffect);

/// The fields of a kind; `None` for kinds that are not read.
#[must_use]
pub(crate) const fn fields_of(kind: Kind) -> Option<&'static [FieldEntry]> {
    Some(match kind {
        Kind::BgpConfiguration => bgp::CONFIGURATION,
        Kind::BgpPeer => bgp::PEER,
        Kind::BgpFilter => bgp::FILTER,
        Kind::FelixConfiguration => FELIX_FIELDS,
        Kind::IpPool => other::IP_POOL,
        Kind::IpReservation => other::IP_RESERVATION,
        Kind::Node => other::NODE,
        Kind::WorkloadEndpoint => other::WORKLOAD_ENDPOINT,
        Kind::ClusterInformation => other::CLUSTER_INFORMATION,
        Kind::IpamConfiguration => other::IPAM_CONFIGURATION,
        Kind::Profile
        | Kind::Tier
        | Kind::HostEndpoint
        | Kind::KubeControllersConfiguration
        | Kind::CalicoNodeStatus => return None,
    })
}

/// The fields of the value under `/calico/ipam/v2/config`.
pub(crate) const IPAM_CONFIG: &[FieldEntry] = other::IPAM_CONFIG;

/// Something about a field that its writer should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FieldNote {
    /// Where it stands, as `spec.exportV4[0].cidr`.
    pub field: String,
    /// The note itself.
    pub what: NoteKind,
}

/// Kind of a note on a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NoteKind {
    /// No field of this kind has this name; the nearest that exists.
    Unknown(Option<String>),
    /// Calico's, with a value that has no effect here; the value and the reason.
    Without(String, String),
}

impl FieldNote {
    /// One sentence, and what follows.
    #[must_use]
    pub fn text(&self, kind: &str) -> String {
        let Self { field, what } = self;
        let nearest = match what {
            NoteKind::Without(value, reason) => {
                return format!("{field} {value} has no effect: {reason}");
            }
            NoteKind::Unknown(nearest) => nearest,
        };
        let follows = match kind == Kind::BgpFilter.as_str() && self.is_about_content() {
            true => "The filter refuses every route until it is corrected",
            false => "It has no effect",
        };
        // IPPool, IPAM …: spoken with a vowel.
        let article = if kind.starts_with('I') { "an" } else { "a" };
        match nearest {
            Some(nearest) => format!(
                "{field}: {article} {kind} has no such field; did you mean {nearest}? {follows}"
            ),
            None => format!("{field}: {article} {kind} has no field of this name. {follows}"),
        }
    }

    /// True when it is no field of `metadata`: what the resource says may be another thing than its
    /// writer meant.
    #[must_use]
    pub fn is_about_content(&self) -> bool {
        !self.field.starts_with("metadata.")
    }

    /// True when no field has this name.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self.what, NoteKind::Unknown(_))
    }
}

/// Kubernetes' ObjectMeta. What is in labels, annotations and the lists is their writers' own.
const METADATA: &[FieldEntry] = &[
    ("metadata.name", FieldEffect::Honoured),
    ("metadata.namespace", FieldEffect::Honoured),
    ("metadata.labels", FieldEffect::Honoured),
    ("metadata.annotations", FieldEffect::Honoured),
    ("metadata.uid", FieldEffect::Honoured),
    ("metadata.resourceVersion", FieldEffect::Honoured),
    ("metadata.generation", FieldEffect::Honoured),
    ("metadata.creationTimestamp", FieldEffect::Honoured),
    ("metadata.deletionTimestamp", FieldEffect::Honoured),
    ("metadata.deletionGracePeriodSeconds", FieldEffect::Honoured),
    ("metadata.generateName", FieldEffect::Honoured),
    ("metadata.selfLink", FieldEffect::Honoured),
    ("metadata.ownerReferences", FieldEffect::Honoured),
    ("metadata.finalizers", FieldEffect::Honoured),
    ("metadata.managedFields", FieldEffect::Honoured),
];

/// Fields of every resource beside its spec.
const COMMON: &[FieldEntry] = &[
    ("kind", FieldEffect::Honoured),
    ("apiVersion", FieldEffect::Honoured),
    ("metadata", FieldEffect::Honoured),
    ("spec", FieldEffect::Honoured),
    ("status", FieldEffect::Honoured),
];

/// Notes on the fields of a resource. FelixConfiguration's known ones are left to who resolves
/// them: which of several resources counts is not in one value.
#[must_use]
pub(crate) fn notes(kind: Kind, resource: &Value) -> Vec<FieldNote> {
    let mut notes = Vec::new();
    let (Some(fields), Value::Object(resource)) = (fields_of(kind), resource) else {
        return notes;
    };
    let checks_effect = kind != Kind::FelixConfiguration;
    for (name, value) in resource {
        if name == "spec" {
            if let Value::Object(spec) = value {
                walk(fields, "spec.", "spec.", spec, checks_effect, &mut notes);
            }
        } else if let ("metadata", Value::Object(metadata)) = (name.as_str(), value) {
            notes.extend(metadata.keys().filter_map(|name| of_metadata(name)));
        } else if !COMMON.iter().any(|(known, _)| known == name) {
            notes.push(FieldNote {
                field: name.clone(),
                what: NoteKind::Unknown(nearest(COMMON, "", name)),
            });
        }
    }
    if kind == Kind::FelixConfiguration {
        notes.extend(of_selected_nodes(fields, resource));
    }
    notes
}

/// A note on the selector of a FelixConfiguration that counts for no node by its name, so that
/// nobody who resolves settings sees it.
fn of_selected_nodes(fields: &[FieldEntry], resource: &Map<String, Value>) -> Option<FieldNote> {
    const FIELD: &str = "spec.nodeSelector";
    let name = resource.get("metadata")?.get("name")?.as_str()?;
    let value = resource.get("spec")?.get("nodeSelector")?;
    let (_, effect) = fields.iter().find(|(known, _)| *known == FIELD)?;
    let FieldEffect::Without(_, reason) = effect else {
        return None;
    };
    let is_read = name == "default" || NodeName::of_configuration(name).is_some();
    (!is_read).then(|| FieldNote {
        field: FIELD.to_owned(),
        what: NoteKind::Without(short(value), (*reason).to_owned()),
    })
}

/// A note when Kubernetes' ObjectMeta has no such field.
fn of_metadata(name: &str) -> Option<FieldNote> {
    let is_name = |known: &str| known.strip_prefix("metadata.") == Some(name);
    let known = METADATA.iter().any(|(known, _)| is_name(known));
    (!known).then(|| FieldNote {
        field: format!("metadata.{name}"),
        what: NoteKind::Unknown(nearest(METADATA, "metadata.", name)),
    })
}

/// The same for the fields of an object that is no resource.
#[must_use]
pub(crate) fn notes_of_object(
    fields: &'static [FieldEntry],
    object: &Map<String, Value>,
) -> Vec<FieldNote> {
    let mut notes = Vec::new();
    walk(fields, "", "", object, true, &mut notes);
    notes
}

/// The same for metadata and a spec of which only the fields without a place in their types are
/// left: cheap where there are many.
#[must_use]
pub(crate) fn notes_of_rest(
    kind: Kind,
    metadata: &Map<String, Value>,
    rest: &Map<String, Value>,
) -> Vec<FieldNote> {
    let mut notes: Vec<FieldNote> = metadata.keys().filter_map(|key| of_metadata(key)).collect();
    if let Some(fields) = fields_of(kind).filter(|_| !rest.is_empty()) {
        walk(fields, "spec.", "spec.", rest, true, &mut notes);
    }
    notes
}

/// `path` is the place in the table, `shown` the place in the value, both with the dot behind them.
fn walk(
    fields: &[FieldEntry],
    path: &str,
    shown: &str,
    object: &Map<String, Value>,
    checks_effect: bool,
    notes: &mut Vec<FieldNote>,
) {
    for (name, value) in object {
        // Texts are made of what is found: nearly always there is nothing to say.
        let behind = |known: &'static str| known.strip_prefix(path)?.strip_prefix(name.as_str());
        let effect = fields.iter().find(|(known, _)| behind(known) == Some(""));
        let is_object = |known: &'static str| behind(known).is_some_and(|r| r.starts_with('.'));
        let is_object = fields.iter().any(|(known, _)| is_object(known));
        let field = || format!("{shown}{name}");
        let below = || format!("{path}{name}.");
        if effect.is_none() && !is_object {
            let what = NoteKind::Unknown(nearest(fields, path, name));
            let field = field();
            notes.push(FieldNote { field, what });
            continue;
        }
        if let Some((_, FieldEffect::Without(harmless, reason))) = effect
            && checks_effect
            && !is_harmless(value, harmless)
        {
            let what = NoteKind::Without(short(value), (*reason).to_owned());
            let field = field();
            notes.push(FieldNote { field, what });
            continue;
        }
        match value {
            Value::Object(inner) if is_object => {
                let (below, shown) = (below(), field() + ".");
                walk(fields, &below, &shown, inner, checks_effect, notes);
            }
            Value::Array(items) if is_object => {
                let (below, field) = (below(), field());
                for (index, item) in items.iter().enumerate() {
                    if let Value::Object(inner) = item {
                        let shown = format!("{field}[{index}].");
                        walk(fields, &below, &shown, inner, checks_effect, notes);
                    }
                }
            }
            _ => {}
        }
    }
}

/// True for a value that asks for nothing else than what is done: an empty one, or one of these.
#[must_use]
pub(crate) fn is_harmless(value: &Value, harmless: &[&str]) -> bool {
    let text = match value {
        Value::Null => return true,
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => return true,
        Value::Object(fields) if fields.is_empty() => return true,
        other => other.to_string(),
    };
    text.is_empty() || harmless.iter().any(|h| h.eq_ignore_ascii_case(&text))
}

/// A value for a sentence: long ones are cut.
fn short(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The name beside `name` that is spelled most like it; none when all are too far.
#[must_use]
pub(crate) fn nearest(fields: &[FieldEntry], path: &str, name: &str) -> Option<String> {
    let siblings = fields.iter().filter_map(|(known, _)| {
        let sibling = known.strip_prefix(path)?;
        Some(sibling.split_once('.').map_or(sibling, |(first, _)| first))
    });
    nearest_name(siblings, name).map(str::to_owned)
}
