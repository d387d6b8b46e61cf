//! Notes on the fields of the values in a snapshot: mistakes, and fields without effect.

use std::collections::BTreeMap;

use super::{Problem, Snapshot};
use crate::code::ProblemCode;
use crate::keys::Key;
use crate::resource::Kind;
use crate::resource::fields::{self, FieldNote, NoteKind};

/// Name of the value under IPAM's own key, in messages.
const IPAM_CONFIGURATION: &str = "IPAM configuration";

impl Snapshot {
    /// Notes on the fields of a value that was just stored. Endpoints, of which there are many, are
    /// not parsed a second time: what has no place in their type is looked at.
    pub(super) fn notes_of(&self, path: &str, value: Option<&[u8]>) -> Vec<FieldNote> {
        let (Some(value), Ok(key)) = (value, Key::parse(path)) else {
            return Vec::new();
        };
        match key {
            Key::Resource {
                kind: Kind::WorkloadEndpoint,
                namespace,
                name,
            } => {
                let endpoint = self.workloads.get(&(namespace.unwrap_or_default(), name));
                endpoint.map_or_else(Vec::new, |endpoint| {
                    let (metadata, spec) = (&endpoint.metadata.extra, &endpoint.spec.extra);
                    fields::notes_of_rest(Kind::WorkloadEndpoint, metadata, spec)
                })
            }
            Key::Resource { kind, .. } => serde_json::from_slice(value)
                .map(|value| fields::notes(kind, &value))
                .unwrap_or_default(),
            Key::IpamConfig => self.ipam_config.as_ref().map_or_else(Vec::new, |config| {
                fields::notes_of_object(fields::IPAM_CONFIG, &config.extra)
            }),
            _ => Vec::new(),
        }
    }

    /// Notes on the fields of one value, as problems.
    #[must_use]
    pub fn field_problems(&self, path: &str) -> Vec<Problem> {
        let kind = kind_of(path);
        let notes = self.notes.get(path).into_iter().flatten();
        notes
            .map(|note| field_problem(path, note, note.text(kind)))
            .collect()
    }

    /// Fields that are not known here and resemble none that is, as problems: mistakes of a person,
    /// or fields of a newer Calico, which writes them by itself. For who types and who examines;
    /// [`Snapshot::problems`] does not have them.
    #[must_use]
    pub fn foreign_fields(&self) -> Vec<Problem> {
        self.all_field_problems(|path, note| !is_told(path, note))
    }

    /// Notes on the fields of all values that are chosen, as problems: one entry a field, of
    /// endpoints one for all that have it.
    pub(super) fn all_field_problems(
        &self,
        chosen: impl Fn(&str, &FieldNote) -> bool,
    ) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut endpoints: BTreeMap<_, (&str, &FieldNote, usize)> = BTreeMap::new();
        for (path, notes) in &self.notes {
            let notes = notes.iter().filter(|note| chosen(path, note));
            if !path.contains(Kind::WorkloadEndpoint.plural()) {
                let kind = kind_of(path);
                problems.extend(notes.map(|note| field_problem(path, note, note.text(kind))));
                continue;
            }
            for note in notes {
                let same = (note.field.clone(), note.is_unknown());
                endpoints.entry(same).or_insert((path, note, 0)).2 += 1;
            }
        }
        for (first, note, count) in endpoints.into_values() {
            let text = note.text(Kind::WorkloadEndpoint.as_str());
            let text = match count {
                1 => text,
                more => format!("{text} ({more} WorkloadEndpoints have it; this is the first)"),
            };
            problems.push(field_problem(first, note, text));
        }
        problems
    }
}

/// True for what is told in every status: also an unknown field that resembles a known one, and one
/// by which a filter refuses everything.
pub(super) fn is_told(path: &str, note: &FieldNote) -> bool {
    let is_foreign = note.what == NoteKind::Unknown(None);
    !is_foreign || (kind_of(path) == Kind::BgpFilter.as_str() && note.is_about_content())
}

fn kind_of(path: &str) -> &'static str {
    match Key::parse(path) {
        Ok(Key::Resource { kind, .. }) => kind.as_str(),
        _ => IPAM_CONFIGURATION,
    }
}

fn field_problem(path: &str, note: &FieldNote, reason: String) -> Problem {
    let code = match note.is_unknown() {
        true => ProblemCode::DatastoreUnknownField,
        false => ProblemCode::DatastoreFieldWithoutEffect,
    };
    Problem {
        code,
        subject: path.to_owned(),
        reason,
    }
}
