//! Reads: objects and lists, as keys and values.

use std::collections::BTreeSet;

use caracal_model::{KeyRange, KeyValue};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::Method;
use serde_json::{Value, json};

use super::api::{Api, ApiFailure};
use super::mapping::{self, ApiGroup, Collection, List, ObjectName, is_in};
use crate::store::{Cursor, FirstPages, Page, ReadAnswer, StoreError};

/// Objects of a part of a list, as Calico has it.
const PAGE: usize = 500;

/// Requests of one read that are under way at a time.
const AT_A_TIME: usize = 8;

/// A kind that every cluster with Calico's data has: its list tells the revision.
const ANCHOR: Collection = Collection::Custom("clusterinformations");

/// Metadata without the rest: a Node's status is most of it and changes with every heartbeat.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(super) const WHOLE: &str = "application/json";

/// Keys and values of an object. One that cannot be mapped is left out, with a warning.
pub(super) fn key_values(
    api: &Api,
    collection: Collection,
    object: &Value,
    group: ApiGroup,
) -> Vec<KeyValue> {
    if collection == Collection::Nodes && api.config.use_pod_cidr {
        return mapping::key_values_with_pod_cidrs(object);
    }
    if mapping::is_deleted(object) {
        return Vec::new();
    }
    mapping::key_values(collection, object, group).unwrap_or_else(|error| {
        let name = &object["metadata"]["name"];
        tracing::warn!(?collection, %name, %error, "an object that cannot be read is left out");
        Vec::new()
    })
}

/// Characters of a query's value that stand for themselves.
fn escaped(text: &str) -> String {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.~/".contains(&c);
    text.bytes().fold(String::new(), |mut all, c| {
        match plain(c) {
            true => all.push(char::from(c)),
            false => all.push_str(&format!("%{c:02X}")),
        }
        all
    })
}

/// The path of a list with what selects its objects; ends in `?` or `&`.
pub(super) fn list_path(api: &Api, group: ApiGroup, list: &List) -> String {
    let mut path = format!("{}?", list.collection.path(group));
    if let Some(labels) = &list.labels {
        path.push_str(&format!("labelSelector={}&", escaped(labels)));
    }
    if let (Collection::Pods, Some(node)) = (list.collection, &api.config.pods_of) {
        let selector = format!("spec.nodeName={node}");
        path.push_str(&format!("fieldSelector={}&", escaped(&selector)));
    }
    path
}

/// One part of a list: values, revision, and the token of the next part.
async fn part(
    api: &Api,
    list: &List,
    limit: usize,
    token: Option<&str>,
    accept: &'static str,
) -> Result<(Vec<KeyValue>, i64, Option<String>), ApiFailure> {
    let group = api.group().await?;
    let mut path = format!("{}limit={limit}", list_path(api, group, list));
    if let Some(token) = token {
        path.push_str(&format!("&continue={}", escaped(token)));
    }
    let answer = match api.read(&path, accept).await {
        // The kind is not installed: there is nothing of it.
        Err(ApiFailure::NotFound) if list.collection != ANCHOR => {
            return Ok((Vec::new(), i64::MAX, None));
        }
        answer => answer?,
    };
    let items = answer["items"].as_array().into_iter().flatten();
    let mut values: Vec<_> = items
        .flat_map(|object| key_values(api, list.collection, object, group))
        .collect();
    values.sort_by(|a, b| a.key.cmp(&b.key));
    let next = answer["metadata"]["continue"].as_str();
    let next = next.filter(|token| !token.is_empty()).map(str::to_owned);
    Ok((values, mapping::revision(&answer), next))
}

async fn whole(api: &Api, list: &List) -> Result<(Vec<KeyValue>, i64), ApiFailure> {
    let (mut all, revision, mut next) = part(api, list, PAGE, None, WHOLE).await?;
    while let Some(token) = next {
        let (more, _, following) = part(api, list, PAGE, Some(&token), WHOLE).await?;
        all.extend(more);
        next = following;
    }
    Ok((all, revision))
}

/// One object; an IPAM object whose deletion was begun is deleted.
pub(super) async fn object(api: &Api, name: &ObjectName) -> Result<Option<Value>, ApiFailure> {
    let path = name.path(api.group().await?);
    let object = match api.get(&path).await {
        Err(ApiFailure::NotFound) => return Ok(None),
        object => object?,
    };
    if !mapping::is_deleted(&object) {
        return Ok(Some(object));
    }
    // The writer that marked it died before the second step.
    finish_deletion(api, &path, &object).await?;
    Ok(None)
}

/// The second step of a deletion.
pub(super) async fn finish_deletion(
    api: &Api,
    path: &str,
    object: &Value,
) -> Result<(), ApiFailure> {
    let this = json!({"uid": object["metadata"]["uid"]});
    match api.delete(path, this).await {
        // Somebody else finished it, and somebody may have made another of the same name.
        Err(ApiFailure::NotFound | ApiFailure::Conflict) | Ok(()) => Ok(()),
        Err(failure) => Err(failure),
    }
}

async fn range(api: &Api, range: &KeyRange) -> Result<(Vec<KeyValue>, i64), ApiFailure> {
    let (mut values, revision) = match range {
        KeyRange::Key(path) => {
            let name = ObjectName::from_path(path);
            let object = match &name {
                Some(name) => object(api, name).await?.map(|o| (name.collection, o)),
                None => None,
            };
            let group = api.group().await?;
            let values =
                object.map(|(collection, object)| key_values(api, collection, &object, group));
            let values = values.unwrap_or_default();
            let revision = values.first().map_or(0, |kv| kv.mod_revision);
            (values, revision)
        }
        KeyRange::Prefix(prefix) => {
            let (mut all, mut newest) = (Vec::new(), 0);
            for list in lists_below(api, prefix) {
                let (values, revision) = whole(api, &list).await?;
                all.extend(values);
                newest = newest.max(if revision == i64::MAX { 0 } else { revision });
            }
            (all, newest)
        }
    };
    values.retain(|kv| is_in(range, &kv.key));
    values.sort_by(|a, b| a.key.cmp(&b.key));
    Ok((values, revision))
}

/// All ranges, one after the other: there is no one moment over several kinds.
pub(super) async fn read(api: &Api, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
    let ask = |one: KeyRange| async move { range(api, &one).await };
    let asked = stream::iter(ranges.iter().cloned().map(ask));
    let answers: Result<Vec<_>, ApiFailure> = asked.buffered(AT_A_TIME).try_collect().await;
    let answers = answers.map_err(|failure| failure.into_error(api.server(), "a list"))?;
    let revision = answers.iter().map(|(_, revision)| *revision).max();
    Ok(ReadAnswer {
        revision: revision.unwrap_or_default(),
        cluster: 0,
        ranges: answers.into_iter().map(|(values, _)| values).collect(),
    })
}

/// The lists that hold all keys below a prefix.
pub(super) fn lists_below(api: &Api, prefix: &str) -> Vec<List> {
    match api.config.use_pod_cidr {
        true => List::under_prefix_with_pod_cidrs(prefix),
        false => List::under_prefix(prefix),
    }
}

/// How a kind is listed to be followed. Of Nodes the metadata, unless `podCIDRs` are read.
fn accept(api: &Api, collection: Collection) -> &'static str {
    match collection {
        Collection::Nodes if !api.config.use_pod_cidr => METADATA_LIST,
        _ => WHOLE,
    }
}

/// Where a list goes on: which of a range's lists, and the server's token.
fn cursor(at: usize, token: Option<&str>) -> Cursor {
    format!("{at} {}", token.unwrap_or_default()).into_bytes()
}

/// The first part of each range. Two ranges over one kind, as the blocks of both families, are one
/// list, which is told with the first of them.
pub(super) async fn first_pages(api: &Api, ranges: &[KeyRange]) -> Result<FirstPages, StoreError> {
    let fail = |failure: ApiFailure| match failure {
        ApiFailure::NotFound => StoreError::Refused(
            "the cluster has none of Calico's custom resources: kubectl apply -k deploy/crds"
                .to_owned(),
        ),
        failure => failure.into_error(api.server(), "a list"),
    };
    let anchor = List {
        collection: ANCHOR,
        labels: None,
    };
    let (_, mut revision, _) = part(api, &anchor, 1, None, WHOLE).await.map_err(fail)?;
    let mut listed = BTreeSet::new();
    let mut pages = Vec::with_capacity(ranges.len());
    for one in ranges {
        let lists = lists_of(api, one);
        if lists.is_empty() || lists.iter().all(|list| !listed.insert(list.clone())) {
            pages.push(Page {
                values: Vec::new(),
                next: None,
            });
            continue;
        }
        let (page, at) = page(api, &lists, 0, None).await.map_err(fail)?;
        revision = revision.min(at);
        pages.push(page);
    }
    let cluster = api.cluster().await.map_err(fail)?;
    Ok(FirstPages {
        revision,
        cluster,
        pages,
    })
}

fn lists_of(api: &Api, range: &KeyRange) -> Vec<List> {
    match range {
        KeyRange::Prefix(prefix) => lists_below(api, prefix),
        KeyRange::Key(path) => {
            let name = ObjectName::from_path(path);
            let list = name.map(|name| List {
                collection: name.collection,
                labels: None,
            });
            list.into_iter().collect()
        }
    }
}

async fn page(
    api: &Api,
    lists: &[List],
    at: usize,
    token: Option<&str>,
) -> Result<(Page, i64), ApiFailure> {
    let Some(list) = lists.get(at) else {
        return Ok((
            Page {
                values: Vec::new(),
                next: None,
            },
            i64::MAX,
        ));
    };
    let (values, revision, next) =
        part(api, list, PAGE, token, accept(api, list.collection)).await?;
    let next = match next {
        Some(token) => Some(cursor(at, Some(&token))),
        None => (at + 1 < lists.len()).then(|| cursor(at + 1, None)),
    };
    Ok((Page { values, next }, revision))
}

pub(super) async fn next_page(
    api: &Api,
    range: &KeyRange,
    from: &Cursor,
) -> Result<Page, StoreError> {
    let text = String::from_utf8_lossy(from);
    let (at, token) = text.split_once(' ').unwrap_or(("0", ""));
    let token = Some(token).filter(|token| !token.is_empty());
    let lists = lists_of(api, range);
    let (page, _) = page(api, &lists, at.parse().unwrap_or_default(), token)
        .await
        .map_err(|failure| failure.into_error(api.server(), "a list"))?;
    Ok(page)
}

impl Api {
    /// A read in a form.
    async fn read(&self, path: &str, accept: &'static str) -> Result<Value, ApiFailure> {
        self.call_accepting(Method::GET, path, WHOLE, None, accept)
            .await
    }
}
