//! Reads: objects and lists, as keys and values.

use std::collections::BTreeSet;

use caracal_model::{KeyRange, KeyValue};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

use super::api::{Api, ApiFailure};
use super::lists::{WHOLE, escaped, key_values, list_path, listed_form, lists_below};
use super::mapping::{self, Collection, List, ObjectName, is_in};
use super::services;
use super::streamed::{Part, StreamedLists};
use crate::store::{Cursor, FirstPages, Page, ReadAnswer, StoreError};

/// Objects of a part of a list, as Calico has it.
const PAGE: usize = 500;

/// Requests of one read that are under way at a time.
const AT_A_TIME: usize = 8;

/// A kind that every cluster with Calico's data has: its list tells the revision.
pub(super) const ANCHOR: Collection = Collection::Custom("clusterinformations");

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
    let answer = match api.read_at_once(&path, accept).await {
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

/// Where the reading of a range goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Which of the range's lists.
    at: usize,
    how: ListedBy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ListedBy {
    /// Pages: the server's token of the next one.
    Pages(Option<String>),
    /// A stream: the number of the one that was begun.
    Stream(Option<u64>),
}

impl Place {
    fn cursor(&self) -> Cursor {
        let at = self.at;
        let text = match &self.how {
            ListedBy::Pages(token) => format!("{at} {}", token.as_deref().unwrap_or_default()),
            // No token has such a sign.
            ListedBy::Stream(number) => format!("{at} +{}", number.unwrap_or_default()),
        };
        text.into_bytes()
    }

    fn parse(cursor: &Cursor) -> Self {
        // From the beginning.
        if cursor.is_empty() {
            let how = ListedBy::Stream(None);
            return Self { at: 0, how };
        }
        let text = String::from_utf8_lossy(cursor);
        let (at, rest) = text.split_once(' ').unwrap_or(("0", ""));
        let token = || Some(rest.to_owned()).filter(|token| !token.is_empty());
        Self {
            at: at.parse().unwrap_or_default(),
            how: match rest.strip_prefix('+') {
                Some(number) => ListedBy::Stream(number.parse().ok().filter(|n| *n > 0)),
                None => ListedBy::Pages(token()),
            },
        }
    }
}

/// The revision of what is stored now, not of the server's memory.
pub(super) async fn newest_revision(api: &Api) -> Result<i64, ApiFailure> {
    let anchor = List {
        collection: ANCHOR,
        labels: None,
    };
    let (_, revision, _) = part(api, &anchor, 1, None, WHOLE).await?;
    Ok(revision)
}

/// The first part of each range. Two ranges over one kind, as the blocks of both families, are one
/// list, which is told with the first of them.
///
/// Where lists are streams nothing is read of them yet: one is open at a time, so that the server
/// never waits for a reader.
pub(super) async fn first_pages(
    api: &Api,
    streams: &StreamedLists,
    ranges: &[KeyRange],
) -> Result<FirstPages, StoreError> {
    let fail = |failure: ApiFailure| match failure {
        ApiFailure::NotFound => StoreError::Refused(
            "the cluster has none of Calico's custom resources: kubectl apply -k deploy/crds"
                .to_owned(),
        ),
        failure => failure.into_error(api.server(), "a list"),
    };
    let mut revision = newest_revision(api).await.map_err(fail)?;
    if !api.services.is_given() {
        let announced = announces_services(api).await.map_err(fail)?;
        api.services.set_announced(announced);
    }
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
        if streams.are_wanted() {
            let how = ListedBy::Stream(None);
            pages.push(Page {
                values: Vec::new(),
                next: Some(Place { at: 0, how }.cursor()),
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

/// Does a BGPConfiguration have addresses of Services announced?
async fn announces_services(api: &Api) -> Result<bool, ApiFailure> {
    let path = services::CONFIGURATIONS.path(api.group().await?);
    let answer = match api.get(&path).await {
        Err(ApiFailure::NotFound) => return Ok(false),
        answer => answer?,
    };
    let mut items = answer["items"].as_array().into_iter().flatten();
    Ok(items.any(services::announces))
}

/// What is followed of the lists of a range.
fn lists_of(api: &Api, range: &KeyRange) -> Vec<List> {
    match range {
        KeyRange::Prefix(prefix) => {
            let mut lists = lists_below(api, prefix);
            lists.retain(|list| api.services.follows(list.collection));
            lists
        }
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
        part(api, list, PAGE, token, listed_form(api, list.collection)).await?;
    let (at, further) = match next {
        Some(token) => (at, Some(token)),
        None => (at + 1, None),
    };
    let how = ListedBy::Pages(further);
    let next = (at < lists.len()).then(|| Place { at, how }.cursor());
    Ok((Page { values, next }, revision))
}

pub(super) async fn next_page(
    api: &Api,
    streams: &StreamedLists,
    range: &KeyRange,
    from: &Cursor,
    revision: i64,
) -> Result<Page, StoreError> {
    let place = Place::parse(from);
    let lists = lists_of(api, range);
    let fail = |failure: ApiFailure| failure.into_error(api.server(), "a list");
    let token = match place.how {
        ListedBy::Pages(token) => token,
        ListedBy::Stream(number) => {
            let part = streamed_part(api, streams, lists.get(place.at), number, revision).await;
            if let Some((values, number)) = part.map_err(fail)? {
                let at = place.at + usize::from(number.is_none());
                let how = ListedBy::Stream(number);
                let next = (at < lists.len()).then(|| Place { at, how }.cursor());
                return Ok(Page { values, next });
            }
            None
        }
    };
    let page = page(api, &lists, place.at, token.as_deref()).await;
    Ok(page.map_err(fail)?.0)
}

/// A part of a list as a stream; `None`: it is to be read in pages, from its beginning.
async fn streamed_part(
    api: &Api,
    streams: &StreamedLists,
    list: Option<&List>,
    number: Option<u64>,
    least: i64,
) -> Result<Option<Part>, ApiFailure> {
    let part = match (number, list) {
        // What was given on before may be gone meanwhile: everything is listed again.
        (Some(number), _) => return streams.go_on(api, number).await.map(Some),
        (None, Some(list)) if streams.are_wanted() => streams.begin(api, list, least).await,
        (None, _) => return Ok(None),
    };
    Ok(part.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back() {
        let pages = ["eyJ2IjoibWV0YSJ9", "0"].map(|token| ListedBy::Pages(Some(token.to_owned())));
        let streams = [None, Some(7)].map(ListedBy::Stream);
        let all = pages.into_iter().chain(streams);
        for (at, how) in all.chain([ListedBy::Pages(None)]).enumerate() {
            let place = Place { at, how };
            assert_eq!(Place::parse(&place.cursor()), place);
        }
        let how = ListedBy::Stream(None);
        assert_eq!(Place::parse(&Cursor::new()), Place { at: 0, how });
    }
}
