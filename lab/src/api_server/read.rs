//! Reading: one object, lists in pages, discovery's smaller siblings.

use std::time::Duration;

use caracal_datastore::Store;
use caracal_model::KeyRange;
use serde_json::{Value, json};

use super::Api;
use super::answer::{self, Answer};
use super::cache::{Outside, StoredObject};
use super::kinds::ROOT;
use super::request::{Form, Request};
use super::selector::Selector;
use super::status::{Cause, Failure, Named};

/// Limit of the wait for a revision of the future.
const FUTURE: Duration = Duration::from_secs(3);

/// Continuation of a list: the token that the client sends back.
#[derive(Debug, PartialEq, Eq)]
struct Continue {
    revision: i64,
    /// The last key that was told.
    after: String,
}

impl Continue {
    /// Opaque to clients: hexadecimal.
    fn token(&self) -> String {
        let text = format!("{} {}", self.revision, self.after);
        text.bytes().map(|b| format!("{b:02x}")).collect()
    }

    fn parse(token: &str) -> Option<Self> {
        let bytes: Option<Vec<u8>> = (0..token.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(token.get(at..at + 2)?, 16).ok())
            .collect();
        let text = String::from_utf8(bytes?).ok()?;
        let (revision, after) = text.split_once(' ')?;
        Some(Self {
            revision: revision.parse().ok()?,
            after: after.to_owned(),
        })
    }
}

impl Api {
    /// The newest revision of etcd: what was written before this call is not newer.
    pub(super) async fn newest(&self) -> Result<i64, Failure> {
        let range = [KeyRange::Key(format!("{ROOT}revision"))];
        match self.store.read(&range).await {
            Ok(answer) => Ok(answer.revision),
            Err(error) => Err(Failure::internal(error)),
        }
    }

    /// One object as it is now.
    pub(super) async fn current(&self, key: &str) -> Result<Option<StoredObject>, Failure> {
        let at = self.newest().await?;
        Ok(self.cache.get(key, at).await)
    }

    /// Waits for the revision that a client has seen.
    async fn wait_for(&self, revision: i64) -> Result<(), Failure> {
        let reached = tokio::time::timeout(FUTURE, self.cache.reach(revision)).await;
        if reached.is_err() {
            let newest = self.cache.reach(0).await;
            return Err(Failure::too_new(revision, newest));
        }
        Ok(())
    }

    pub(super) async fn get(&self, request: &Request, form: Form) -> Result<Answer, Failure> {
        let name = request.name.as_deref().unwrap_or_default();
        let at = match request.query.revision()? {
            Some(0) => 0,
            Some(revision) => {
                self.wait_for(revision).await?;
                revision
            }
            None => self.newest().await?,
        };
        let entry = self.cache.get(&request.key(name), at).await;
        let entry = entry.ok_or_else(|| Failure::not_found(&request.named(name)))?;
        Ok(Answer::ok(answer::object(
            &request.kind,
            &entry.object,
            form,
        )))
    }

    pub(super) async fn list(&self, request: &Request, form: Form) -> Result<Answer, Failure> {
        let query = &request.query;
        let selector = selector(request)?;
        let matching = matching(request)?;
        let revision = query.revision()?;
        let limit = query.text("limit").parse::<usize>().unwrap_or(0);
        let token = query.text("continue");
        let from = match token {
            "" => None,
            token => Some(Continue::parse(token).ok_or_else(|| {
                Failure::bad("continue key is not valid: it was not given by this server")
            })?),
        };
        let (at, exact) = match (&from, revision) {
            (Some(from), _) => (0, Some(from.revision)),
            (None, None) => (self.newest().await?, None),
            (None, Some(revision)) => {
                self.wait_for(revision).await?;
                let exact = (matching == "Exact").then_some(revision);
                (revision, exact)
            }
        };
        let prefix = request.kind.prefix(request.namespace.as_deref());
        let listing = self.cache.list(&prefix, at, exact).await;
        let listing = listing.map_err(|outside| too_old(&outside, from.is_some(), exact))?;
        // Without a limit, and from the cache as it is.
        let limit = if revision == Some(0) && from.is_none() {
            0
        } else {
            limit
        };
        let after = from.map_or(String::new(), |from| from.after);
        let mut wanted = listing.entries.iter();
        let mut wanted = wanted.by_ref().filter(|e| e.key > after);
        let mut chosen: Vec<&StoredObject> = Vec::new();
        let mut metadata = json!({"resourceVersion": listing.revision.to_string()});
        for entry in wanted.by_ref().filter(|e| selector.matches(&e.object)) {
            if limit > 0 && chosen.len() == limit {
                let after = chosen.last().map_or(String::new(), |e| e.key.clone());
                let next = Continue {
                    revision: listing.revision,
                    after,
                };
                metadata["continue"] = next.token().into();
                if selector == Selector::default() {
                    metadata["remainingItemCount"] = (1 + wanted.count()).into();
                }
                break;
            }
            chosen.push(entry);
        }
        let values: Vec<&Value> = chosen.iter().map(|e| &*e.object).collect();
        Ok(Answer::ok(answer::list(
            &request.kind,
            &values,
            &metadata,
            form,
        )))
    }
}

/// The selector of a request for several objects.
pub(super) fn selector(request: &Request) -> Result<Selector, Failure> {
    let (labels, fields) = (
        request.query.text("labelSelector"),
        request.query.text("fieldSelector"),
    );
    let mut selector = Selector::parse(&request.kind, labels, fields).map_err(|why| {
        let kind = &request.kind;
        Failure::bad(format!(
            "Unable to find {:?} that match label selector {labels:?}, field selector \
             {fields:?}: {why}",
            format!("{}, Resource={}", kind.api_version(), kind.plural)
        ))
    })?;
    // A watch of one object by its path.
    if let Some(name) = &request.name {
        selector.require_name(name);
    }
    Ok(selector)
}

/// `resourceVersionMatch`, checked with the parameters it belongs to.
pub(super) fn matching(request: &Request) -> Result<&str, Failure> {
    let query = &request.query;
    let matching = query.text("resourceVersionMatch");
    let invalid = |causes: &[Cause]| {
        let what = Named {
            group: "meta.k8s.io",
            kind: "ListOptions",
            name: "",
        };
        Err(Failure::invalid(&what, causes))
    };
    let field = "resourceVersionMatch";
    let initial = query.is("sendInitialEvents");
    if !["", "Exact", "NotOlderThan"].contains(&matching) {
        let message = format!(
            "Unsupported value: \"{matching}\": supported values: \"Exact\", \"NotOlderThan\""
        );
        return invalid(&[Cause::new("FieldValueNotSupported", field, message)]);
    }
    if request.verb == "watch" {
        if initial && matching != "NotOlderThan" {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            return invalid(&[Cause::forbidden(field, why)]);
        }
        if !initial && !matching.is_empty() {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                       provided";
            return invalid(&[Cause::forbidden(field, why)]);
        }
        return Ok(matching);
    }
    if matching.is_empty() {
        return Ok(matching);
    }
    if query.text("resourceVersion").is_empty() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return invalid(&[Cause::forbidden(field, why)]);
    }
    if !query.text("continue").is_empty() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        return invalid(&[Cause::forbidden(field, why)]);
    }
    if matching == "Exact" && query.text("resourceVersion") == "0" {
        let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        return invalid(&[Cause::forbidden(field, why)]);
    }
    Ok(matching)
}

fn too_old(outside: &Outside, is_continued: bool, exact: Option<i64>) -> Failure {
    match outside {
        Outside::New { newest } => Failure::too_new(exact.unwrap_or_default(), *newest),
        Outside::Old { .. } if is_continued => Failure::expired(
            "The provided continue parameter is too old to display a consistent list result. You \
             must start a new list without the continue parameter.",
        ),
        Outside::Old { oldest } => {
            let asked = exact.unwrap_or_default();
            Failure::expired(format!("too old resource version: {asked} ({oldest})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back() {
        let from = Continue {
            revision: 12,
            after: "/registry/core/pods/a/b".to_owned(),
        };
        assert_eq!(Continue::parse(&from.token()), Some(from));
        assert_eq!(Continue::parse("zz"), None);
        assert_eq!(Continue::parse("é"), None);
    }
}
