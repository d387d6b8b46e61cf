//! Writing: create, update, patch, delete. Each is a compare-and-swap in etcd.

use caracal_datastore::{Store, StoreError};
use caracal_model::{Txn, TxnOutcome};
use hyper::StatusCode;
use serde_json::{Value, json};

use super::Api;
use super::answer::{self, Answer};
use super::cache::StoredObject;
use super::kinds::{EXTENSIONS, Kind};
use super::metadata::{self, Birth};
use super::objects;
use super::patch::{self, PatchKind};
use super::read::selector;
use super::request::{Form, Request};
use super::status::{Cause, Failure, Named};

/// Tries of a write that lost a race and did not name a revision.
const TRIES: usize = 10;

/// Change by a client.
pub(super) enum Change<'a> {
    Whole(&'a Value),
    Patch(PatchKind, &'a Value),
}

impl Api {
    pub(super) async fn create(
        &self,
        request: &Request,
        body: Value,
        form: Form,
    ) -> Result<Answer, Failure> {
        let namespace = request.namespace.as_deref();
        if let Some(namespace) = namespace {
            let inside = body["metadata"]["namespace"].as_str().unwrap_or_default();
            if !inside.is_empty() && inside != namespace {
                return Err(Failure::bad(
                    "the namespace of the provided object does not match the namespace sent on \
                     the request",
                ));
            }
            let spaces = self.cache.registry().find("", "v1", "namespaces");
            let key = spaces.map(|k| k.key(None, namespace)).unwrap_or_default();
            if self.current(&key).await?.is_none() {
                let what = Named {
                    kind: "namespaces",
                    name: namespace,
                    ..Named::default()
                };
                return Err(Failure::not_found(&what));
            }
        }
        let unknown = request.query.field_validation()?;
        let birth = Birth::now(&self.now());
        let (object, warnings) = objects::create(&request.kind, namespace, body, &birth, unknown)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = request.key(name);
        let stored = if request.query.is_dry_run() {
            if self.current(&key).await?.is_some() {
                return Err(Failure::exists(&request.named(name)));
            }
            object.clone()
        } else {
            let txn = Txn::new().create(key, encoded(&object));
            match self.commit(&txn).await? {
                Some(revision) => super::cache::at_revision(&object, revision),
                None => return Err(Failure::exists(&request.named(name))),
            }
        };
        if request.kind.group.is_empty() && request.kind.kind == "Namespace" {
            self.default_account(name).await?;
        }
        let body = answer::object(&request.kind, &stored, form);
        Ok(Answer {
            code: StatusCode::CREATED,
            body,
            warnings,
        })
    }

    /// A PUT or a PATCH.
    pub(super) async fn update(
        &self,
        request: &Request,
        change: &Change<'_>,
        form: Form,
    ) -> Result<Answer, Failure> {
        let name = request.name.as_deref().unwrap_or_default();
        let key = request.key(name);
        let is_status = request.subresource.as_deref() == Some("status");
        let unknown = request.query.field_validation()?;
        let what = request.named(name);
        for _ in 0..TRIES {
            let Some(old) = self.current(&key).await? else {
                return Err(Failure::not_found(&what));
            };
            let new = changed(request, &old.object, change)?;
            let is_patch = matches!(change, Change::Patch(..));
            metadata::fits(&request.kind, &old.object, &new, &key, is_patch)?;
            let (new, warnings) =
                objects::update(&request.kind, &old.object, new, is_status, unknown)?;
            let answer = |object: &Value| {
                let body = answer::object(&request.kind, object, form);
                let mut answer = Answer::ok(body);
                answer.warnings = warnings.clone();
                answer
            };
            let metadata = &new["metadata"];
            let is_over = metadata["deletionTimestamp"].is_string()
                && metadata["finalizers"].is_null()
                && !is_graceful(&request.kind, metadata);
            if is_over {
                let txn = Txn::new().delete(&*key, old.revision);
                match self.commit(&txn).await? {
                    Some(_) => return Ok(answer(&new)),
                    None => continue,
                }
            }
            if objects::is_same(&old.object, &new) || request.query.is_dry_run() {
                return Ok(answer(&super::cache::at_revision(&new, old.revision)));
            }
            let txn = Txn::new().update(&*key, old.revision, encoded(&new));
            if let Some(revision) = self.commit(&txn).await? {
                return Ok(answer(&super::cache::at_revision(&new, revision)));
            }
        }
        Err(Failure::modified(&what))
    }

    pub(super) async fn delete(
        &self,
        request: &Request,
        name: &str,
        options: &Value,
        form: Form,
    ) -> Result<Answer, Failure> {
        let key = request.key(name);
        let what = request.named(name);
        let kind = &request.kind;
        for _ in 0..TRIES {
            let Some(old) = self.current(&key).await? else {
                return Err(Failure::not_found(&what));
            };
            preconditions(&what, &old.object, options)?;
            let grace = options["gracePeriodSeconds"].as_i64();
            let grace = grace.or_else(|| request.query.text("gracePeriodSeconds").parse().ok());
            let kept = leaving(kind, &old.object, grace, &self.later(grace));
            if request.query.is_dry_run() {
                return Ok(Answer::ok(answer::object(kind, &old.object, form)));
            }
            let txn = match &kept {
                Some(kept) if objects::is_same(kept, &old.object) => {
                    return Ok(Answer::ok(answer::object(kind, &old.object, form)));
                }
                Some(kept) => Txn::new().update(&*key, old.revision, encoded(kept)),
                None => Txn::new().delete(&*key, old.revision),
            };
            if kept.is_none() {
                self.empty(request, &old).await?;
            }
            let Some(revision) = self.commit(&txn).await? else {
                continue;
            };
            let is_told = kept.is_some() || ["pods", "namespaces"].contains(&&*kind.plural);
            let body = if is_told {
                let object = kept.as_ref().unwrap_or(&old.object);
                let object = super::cache::at_revision(object, revision);
                answer::object(kind, &object, form)
            } else {
                success(&what, &old.object)
            };
            return Ok(Answer::ok(body));
        }
        Err(Failure::modified(&what))
    }

    /// Deletes what is selected; gives the list.
    pub(super) async fn delete_all(
        &self,
        request: &Request,
        options: &Value,
        form: Form,
    ) -> Result<Answer, Failure> {
        let selector = selector(request)?;
        let prefix = request.kind.prefix(request.namespace.as_deref());
        let at = self.newest().await?;
        let listing = self.cache.list(&prefix, at, None).await;
        let listing = listing.map_err(|o| Failure::internal(format!("{o:?}")))?;
        let mut gone = Vec::new();
        for entry in listing.entries {
            if !selector.matches(&entry.object) {
                continue;
            }
            let name = entry.object["metadata"]["name"].as_str();
            match self
                .delete(request, name.unwrap_or_default(), options, form)
                .await
            {
                Err(failure) if failure.code != StatusCode::NOT_FOUND => return Err(failure),
                _ => gone.push(entry.object),
            }
        }
        let gone: Vec<&Value> = gone.iter().map(|o| &**o).collect();
        let metadata = json!({"resourceVersion": listing.revision.to_string()});
        Ok(Answer::ok(answer::list(
            &request.kind,
            &gone,
            &metadata,
            form,
        )))
    }

    /// Objects in a namespace or of a definition are deleted before it. On a real server
    /// controllers do that, after a while.
    async fn empty(&self, request: &Request, old: &StoredObject) -> Result<(), Failure> {
        let name = old.object["metadata"]["name"].as_str().unwrap_or_default();
        let registry = self.cache.registry();
        let mut prefixes = Vec::new();
        if request.kind.kind == "Namespace" && request.kind.group.is_empty() {
            let kinds = registry.once_each().filter(|k| k.is_namespaced);
            prefixes.extend(kinds.map(|k| k.prefix(Some(name))));
        } else if request.kind.group == EXTENSIONS {
            let spec = &old.object["spec"];
            let kinds = registry
                .once_each()
                .filter(|k| spec["group"] == *k.group && spec["names"]["plural"] == *k.plural);
            prefixes.extend(kinds.map(|k| k.prefix(None)));
        }
        for prefix in prefixes {
            let listing = self.cache.list(&prefix, 0, None).await;
            let listing = listing.map_err(|o| Failure::internal(format!("{o:?}")))?;
            for entry in listing.entries {
                let txn = Txn::new().delete(entry.key, entry.revision);
                self.commit(&txn).await?;
            }
        }
        Ok(())
    }

    /// The account that each namespace has.
    pub(super) async fn default_account(&self, namespace: &str) -> Result<(), Failure> {
        let Some(kind) = self.cache.registry().find("", "v1", "serviceaccounts") else {
            return Ok(());
        };
        let account = json!({"metadata": {"name": "default"}});
        let birth = Birth::now(&self.now());
        let unknown = objects::FieldValidation::Ignore;
        let (account, _) = objects::create(&kind, Some(namespace), account, &birth, unknown)?;
        let key = kind.key(Some(namespace), "default");
        self.commit(&Txn::new().create(key, encoded(&account)))
            .await?;
        Ok(())
    }

    /// `pods/binding`: the pod gets its node.
    pub(super) async fn bind(&self, request: &Request, body: &Value) -> Result<Answer, Failure> {
        let name = request.name.as_deref().unwrap_or_default();
        let (key, what) = (request.key(name), request.named(name));
        for _ in 0..TRIES {
            let old = self.current(&key).await?;
            let old = old.ok_or_else(|| Failure::not_found(&what))?;
            if let Some(node) = old.object["spec"]["nodeName"].as_str() {
                let why = format!("pod {name} is already assigned to node \"{node}\"");
                return Err(Failure::conflict(&what, &why));
            }
            let mut new = (*old.object).clone();
            new["spec"]["nodeName"] = body["target"]["name"].clone();
            let txn = Txn::new().update(&*key, old.revision, encoded(&new));
            if self.commit(&txn).await?.is_some() {
                return Ok(Answer::ok(json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                    "code": 201,
                })));
            }
        }
        Err(Failure::modified(&what))
    }

    /// Stores what is no object of the API.
    pub(super) async fn create_raw(&self, key: &str, value: &Value) -> Result<(), Failure> {
        let txn = Txn::new().create(key, encoded(value));
        self.commit(&txn).await.map(drop)
    }

    /// Commits, and waits until lists and watches know of it. `None`: a condition did not hold.
    pub(super) async fn commit(&self, txn: &Txn) -> Result<Option<i64>, Failure> {
        match self.store.commit(txn).await {
            Ok(TxnOutcome::Committed(revision)) => {
                self.cache.reach(revision).await;
                Ok(Some(revision))
            }
            Ok(TxnOutcome::Conflict) => Ok(None),
            Err(StoreError::Refused(why)) if why.contains("too large") => Err(Failure {
                message: "etcdserver: request is too large".to_owned(),
                ..Failure::internal("")
            }),
            Err(error) => Err(Failure::internal(error)),
        }
    }
}

/// As it is stored: without its revision, which etcd knows.
pub(super) fn encoded(object: &Value) -> Vec<u8> {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.shift_remove("resourceVersion");
    }
    object.to_string().into_bytes()
}

fn changed(request: &Request, old: &Value, change: &Change<'_>) -> Result<Value, Failure> {
    let (kind, patch) = match change {
        Change::Whole(body) => {
            let name = request.name.as_deref().unwrap_or_default();
            let metadata = &body["metadata"];
            for (key, expected) in [
                ("name", Some(name)),
                ("namespace", request.namespace.as_deref()),
            ] {
                let given = metadata[key].as_str().unwrap_or_default();
                let expected = expected.unwrap_or_default();
                if given != expected && !(given.is_empty() && key == "namespace") {
                    return Err(Failure::bad(format!(
                        "the {key} of the object ({given}) does not match the {key} on the URL \
                         ({expected})"
                    )));
                }
            }
            return Ok((*body).clone());
        }
        Change::Patch(kind, patch) => (*kind, *patch),
    };
    if kind == PatchKind::Strategic && request.kind.is_custom() {
        let accepted = "application/json-patch+json, application/merge-patch+json";
        return Err(Failure::media_type(accepted));
    }
    let mut new = patch::apply(kind, old, patch).map_err(|why| {
        if kind == PatchKind::Json {
            let mut failure = Failure::bad(format!("the server rejected our request: {why}"));
            failure.code = StatusCode::UNPROCESSABLE_ENTITY;
            failure.reason = "Invalid";
            failure
        } else {
            Failure::bad(why)
        }
    })?;
    let name = &old["metadata"]["name"];
    if new["metadata"]["name"] != *name {
        let what = Named {
            group: &request.kind.group,
            kind: &request.kind.kind,
            name: name.as_str().unwrap_or_default(),
        };
        let given = &new["metadata"]["name"];
        let cause = Cause::invalid("metadata.name", given, "field is immutable");
        return Err(Failure::invalid(&what, &[cause]));
    }
    // A patch that says nothing of the revision is for any.
    if kind != PatchKind::Json && patch["metadata"]["resourceVersion"].is_null() {
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    }
    Ok(new)
}

fn preconditions(what: &Named<'_>, old: &Value, options: &Value) -> Result<(), Failure> {
    let own = |key: &str| old["metadata"][key].as_str().unwrap_or_default();
    let asked = |key: &str| options["preconditions"][key].as_str();
    if let Some(uid) = asked("uid").filter(|uid| *uid != own("uid")) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The \
             object might have been deleted and then recreated",
            own("uid")
        );
        return Err(Failure::conflict(what, &why));
    }
    let version = asked("resourceVersion").filter(|v| *v != own("resourceVersion"));
    if let Some(version) = version {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the \
             ResourceVersion in record ({}). The object might have been modified",
            own("resourceVersion")
        );
        return Err(Failure::conflict(what, &why));
    }
    Ok(())
}

/// Does a pod still have the time that it was given? Its kubelet ends it by a second deletion.
fn is_graceful(kind: &Kind, metadata: &Value) -> bool {
    let is_pod = kind.group.is_empty() && kind.kind == "Pod";
    is_pod && metadata["deletionGracePeriodSeconds"].as_i64() > Some(0)
}

/// The object on its way out, when it does not go at once.
fn leaving(kind: &Kind, old: &Value, grace: Option<i64>, at: &str) -> Option<Value> {
    let is_pod = kind.group.is_empty() && kind.kind == "Pod";
    let is_bound = old["spec"]["nodeName"]
        .as_str()
        .is_some_and(|n| !n.is_empty());
    let own = old["spec"]["terminationGracePeriodSeconds"].as_i64();
    let grace = grace.unwrap_or_else(|| own.unwrap_or(30));
    let is_graceful = is_pod && is_bound && grace > 0;
    let finalizers = old["metadata"]["finalizers"].as_array();
    if !is_graceful && finalizers.is_none_or(Vec::is_empty) {
        return None;
    }
    let mut kept = old.clone();
    let metadata = &mut kept["metadata"];
    if !metadata["deletionTimestamp"].is_string() {
        metadata["deletionTimestamp"] = at.into();
        metadata["deletionGracePeriodSeconds"] = if is_graceful { grace } else { 0 }.into();
    } else if !is_graceful {
        metadata["deletionGracePeriodSeconds"] = 0.into();
    }
    Some(kept)
}

fn success(what: &Named<'_>, old: &Value) -> Value {
    let mut details = json!({"name": what.name, "kind": what.kind, "uid": old["metadata"]["uid"]});
    if !what.group.is_empty() {
        details["group"] = what.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details})
}

/// The prefix of definitions is where the cache looks for them.
#[cfg(test)]
#[test]
fn definitions_are_where_they_are_looked_for() {
    let kind = super::kinds::Registry::built_in()
        .find(EXTENSIONS, "v1", "customresourcedefinitions")
        .expect("built in");
    assert_eq!(kind.prefix(None), super::kinds::DEFINITIONS);
}
