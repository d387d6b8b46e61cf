//! The schema of the resources that people write: the type of every field, which fields are
//! required, what defaults they have, and which may not change. One table per kind; `caracal apply`
//! and its sisters validate against it.
//!
//! The *effect* of a field in Caracal is in [`crate::resource::fields`]; a test compares the field
//! names of both tables.

mod check;
mod cluster;
mod crd;
mod cross;
mod duration;
mod kinds;
mod meta;
mod owned;
mod tables;
#[cfg(test)]
mod tests;
mod types;

use serde_json::Value;

use cluster::{conflicts, immutable};
pub use kinds::{ResourceType, WriteRule};
use owned::{carry_over, defaults, export, keep_identity, other_addresses};
use types::Rule;

use crate::resource::{API_VERSION, Kind, ValueError, fields};
use crate::snapshot::Snapshot;

/// The schema of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema(pub Kind);

impl Schema {
    /// Everything that is wrong with a resource as such, without a look at others. Fields that no
    /// table knows are in [`Schema::unknown_fields`].
    #[must_use]
    pub fn validate(self, resource: &Value) -> Vec<ValueError> {
        validate(self.0, resource)
    }

    /// The same for `metadata` alone.
    #[must_use]
    pub fn validate_metadata(self, resource: &Value) -> Vec<ValueError> {
        let mut faults = Vec::new();
        meta::validate(self.0, resource, &mut faults);
        faults
    }

    /// The fields of a resource that no table knows, with what their writer may have meant. A field
    /// that stands in the stored resource already was written by somebody who knows it, and is left
    /// alone.
    #[must_use]
    pub fn unknown_fields(self, resource: &Value, stored: Option<&Value>) -> Vec<ValueError> {
        unknown_fields(self.0, resource, stored)
    }

    /// Fields of Calico's that are set and have no effect here, with the reason of each.
    #[must_use]
    pub fn without_effect(self, resource: &Value) -> Vec<String> {
        without_effect(self.0, resource)
    }

    /// Changes of immutable fields, one entry each.
    #[must_use]
    pub fn immutable(self, stored: &Value, new: &Value) -> Vec<ValueError> {
        immutable(self.0, stored, new)
    }

    /// Conflicts of a resource with other resources of the cluster. `snapshot` holds pools and
    /// blocks.
    #[must_use]
    pub fn conflicts(self, name: &str, new: &Value, snapshot: &Snapshot) -> Vec<ValueError> {
        conflicts(self.0, name, new, snapshot)
    }

    /// Fills in what Calico's clients fill in when they write: defaults of fields that are not set.
    pub fn complete(self, document: &mut Value) {
        defaults(self.0, document);
    }

    /// Puts into a document what it leaves out and the stored resource has: uid and creation time
    /// (which always stay), what servers keep in `metadata`, the status, marks of operations under
    /// way, and what a Node says about itself.
    pub fn carry_over(self, stored: &Value, document: &mut Value) {
        carry_over(self.0, stored, document);
    }

    /// Puts in the stored uid and creation time, whatever a document says.
    pub fn keep_identity(stored: &Value, document: &mut Value) {
        keep_identity(stored, document);
    }

    /// Differences between the addresses in a document of a Node and the stored ones: the node sets
    /// them, and its sessions use them. One sentence each.
    #[must_use]
    pub fn other_addresses(stored: &Value, document: &Value) -> Vec<String> {
        other_addresses(stored, document)
    }

    /// The schema as a CustomResourceDefinition of Kubernetes; `None` for kinds that are something
    /// else there.
    #[must_use]
    pub fn definition(self) -> Option<Value> {
        crd::definition(self.0)
    }

    /// A resource as somebody would write it into a file: without what the datastore adds.
    pub fn export(resource: &mut Value) {
        export(resource);
    }
}

/// The rules for the fields of a kind; `None` for kinds whose content Caracal does not read.
const fn rules_of(kind: Kind) -> Option<&'static [Rule]> {
    Some(match kind {
        Kind::BgpConfiguration => tables::bgp::CONFIGURATION,
        Kind::BgpPeer => tables::bgp::PEER,
        Kind::BgpFilter => tables::bgp::FILTER,
        Kind::FelixConfiguration => tables::felix::CONFIGURATION,
        Kind::IpPool => tables::other::IP_POOL,
        Kind::IpReservation => tables::other::IP_RESERVATION,
        Kind::Node => tables::other::NODE,
        Kind::WorkloadEndpoint => tables::other::WORKLOAD_ENDPOINT,
        Kind::ClusterInformation => tables::other::CLUSTER_INFORMATION,
        Kind::IpamConfiguration => tables::other::IPAM_CONFIGURATION,
        Kind::Profile
        | Kind::Tier
        | Kind::HostEndpoint
        | Kind::KubeControllersConfiguration
        | Kind::CalicoNodeStatus => return None,
    })
}

fn validate(kind: Kind, resource: &Value) -> Vec<ValueError> {
    let mut faults = Vec::new();
    let version = resource.get("apiVersion").and_then(Value::as_str);
    if version != Some(API_VERSION) {
        let seen = version.unwrap_or("nothing");
        faults.push(ValueError(format!(
            "apiVersion: expected {API_VERSION}, found {seen}"
        )));
    }
    meta::validate(kind, resource, &mut faults);
    let Some(rules) = rules_of(kind) else {
        return faults;
    };
    let empty = Value::Object(serde_json::Map::new());
    let spec = match resource.get("spec") {
        None | Some(Value::Null) => &empty,
        Some(spec) => spec,
    };
    check::object(rules, "spec.", "spec", spec, &mut faults);
    // Rules between fields are only looked at where each field for itself is right: else one
    // mistake is told twice.
    if faults.is_empty() {
        cross::validate(kind, resource, &mut faults);
    }
    faults
}

fn unknown_fields(kind: Kind, resource: &Value, stored: Option<&Value>) -> Vec<ValueError> {
    let unknown = |value: &Value| -> Vec<fields::FieldNote> {
        let notes = fields::notes(kind, value).into_iter();
        notes.filter(fields::FieldNote::is_unknown).collect()
    };
    let known: Vec<String> = stored.map_or_else(Vec::new, |stored| {
        let notes = unknown(stored).into_iter();
        notes.map(|note| without_indices(&note.field)).collect()
    });
    let new = unknown(resource)
        .into_iter()
        .filter(|note| !known.contains(&without_indices(&note.field)));
    new.map(|note| ValueError(unknown_field(kind, &note)))
        .collect()
}

fn unknown_field(kind: Kind, note: &fields::FieldNote) -> String {
    let article = article(kind);
    match &note.what {
        fields::NoteKind::Unknown(Some(nearest)) => format!(
            "{}: {article} {kind} has no such field; did you mean {nearest}?",
            note.field
        ),
        _ => format!("{}: {article} {kind} has no field of this name", note.field),
    }
}

/// `a` or `an`, as the kind is spoken.
fn article(kind: Kind) -> &'static str {
    if kind.as_str().starts_with('I') {
        "an"
    } else {
        "a"
    }
}

/// `spec.exportV4[3].cidr` becomes `spec.exportV4.cidr`.
fn without_indices(field: &str) -> String {
    let mut inside = false;
    let keep = |c: &char| {
        inside = (inside || *c == '[') && *c != ']';
        !inside && *c != ']'
    };
    field.chars().filter(keep).collect()
}

fn without_effect(kind: Kind, resource: &Value) -> Vec<String> {
    let mut texts: Vec<String> = fields::notes(kind, resource)
        .into_iter()
        .filter(|note| !note.is_unknown())
        .map(|note| note.text(kind.as_str()))
        .collect();
    if kind.is_of_others() {
        texts.push(format!("Caracal does not read a {kind}: it is for Calico's programs, and its spec is not checked"));
    }
    let spec = resource.get("spec").and_then(Value::as_object);
    let Some(table) = fields::fields_of(kind).filter(|_| kind == Kind::FelixConfiguration) else {
        return texts;
    };
    // Of a FelixConfiguration the other table tells nothing: which of several resources counts is
    // not in one value.
    for (name, value) in spec.into_iter().flatten() {
        let path = format!("spec.{name}");
        let found = table.iter().find(|(known, _)| *known == path);
        if let Some((_, fields::FieldEffect::Without(harmless, reason))) = found
            && !fields::is_harmless(value, harmless)
        {
            let text = format!("{path} {value} has no effect: {reason}");
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    texts
}
