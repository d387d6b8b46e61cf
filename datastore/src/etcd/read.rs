//! Consistent reads of many ranges: the first request fixes the revision, what does not fit into an
//! answer is read page by page at that revision.

use caracal_model::{KeyRange, KeyValue};
use etcd_client::{GetOptions, GetResponse, Txn as EtcdTxn, TxnOp, TxnOpResponse};

use super::EtcdStore;
use crate::store::{Cursor, FirstPages, Page, ReadAnswer, StoreError};

/// Keys of one range in one answer. Blocks are the largest values, a few kilobytes each.
pub(super) const PAGE: i64 = 500;

/// Keys without values in one answer.
const KEYS: i64 = 5_000;

/// etcd's default limit of operations in a transaction (`--max-txn-ops`).
const MAX_TXN_OPS: usize = 128;

/// A range as etcd wants it: `[start, end)`; an empty end = the one key.
pub(super) struct Bounds {
    pub(super) start: Vec<u8>,
    end: Vec<u8>,
}

impl Bounds {
    pub(super) fn from_range(range: &KeyRange) -> Self {
        match range {
            KeyRange::Key(key) => Self {
                start: key.clone().into_bytes(),
                end: Vec::new(),
            },
            KeyRange::Prefix(prefix) => Self {
                // etcd refuses an empty key; zero is the first one there can be.
                start: if prefix.is_empty() {
                    vec![0]
                } else {
                    prefix.clone().into_bytes()
                },
                end: prefix_end(prefix.as_bytes()),
            },
        }
    }

    /// The rest of a range.
    fn beginning(range: &KeyRange, from: &Cursor) -> Self {
        let whole = Self::from_range(range);
        match from.is_empty() {
            true => whole,
            false => Self {
                start: from.clone(),
                end: whole.end,
            },
        }
    }

    pub(super) fn options(&self, revision: i64, limit: i64) -> GetOptions {
        let options = GetOptions::new().with_revision(revision).with_limit(limit);
        if self.end.is_empty() {
            options
        } else {
            options.with_range(self.end.clone())
        }
    }
}

/// The first key after all that start with `prefix`; zero = no upper end.
pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    vec![0]
}

pub(super) async fn read(store: &EtcdStore, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
    let first = first_pages(store, ranges).await?;
    let mut answer = ReadAnswer {
        revision: first.revision,
        cluster: first.cluster,
        ranges: Vec::with_capacity(ranges.len()),
    };
    for (page, range) in first.pages.into_iter().zip(ranges) {
        let mut all = page.values;
        let mut next = page.next;
        while let Some(from) = next {
            let page = next_page(store, range, &from, answer.revision).await?;
            all.extend(page.values);
            next = page.next;
        }
        answer.ranges.push(all);
    }
    Ok(answer)
}

pub(super) async fn first_pages(
    store: &EtcdStore,
    ranges: &[KeyRange],
) -> Result<FirstPages, StoreError> {
    let mut first = FirstPages {
        // Zero = the current one; the first answer says which that is.
        revision: 0,
        cluster: 0,
        pages: Vec::with_capacity(ranges.len()),
    };
    let bounds: Vec<Bounds> = ranges.iter().map(Bounds::from_range).collect();
    // An empty transaction tells the revision too.
    let chunks: Vec<&[Bounds]> = if bounds.is_empty() {
        vec![&[]]
    } else {
        bounds.chunks(MAX_TXN_OPS).collect()
    };
    for chunk in chunks {
        let pages = chunk_of_pages(store, chunk, &mut first).await?;
        first.pages.extend(pages.into_iter().map(page));
    }
    Ok(first)
}

pub(super) async fn next_page(
    store: &EtcdStore,
    range: &KeyRange,
    from: &Cursor,
    revision: i64,
) -> Result<Page, StoreError> {
    let bounds = Bounds::beginning(range, from);
    part(store, &bounds, bounds.options(revision, PAGE), revision).await
}

pub(super) async fn next_keys(
    store: &EtcdStore,
    range: &KeyRange,
    from: &Cursor,
    revision: i64,
) -> Result<Page, StoreError> {
    let bounds = Bounds::beginning(range, from);
    let options = bounds.options(revision, KEYS).with_keys_only();
    part(store, &bounds, options, revision).await
}

async fn part(
    store: &EtcdStore,
    bounds: &Bounds,
    options: GetOptions,
    revision: i64,
) -> Result<Page, StoreError> {
    let (start, options) = (&bounds.start, &options);
    let answer = store
        .repeatable(|mut session| async move {
            let options = Some(options.clone());
            Ok(session.kv.get(start.clone(), options).await?)
        })
        .await;
    answer.map(page).map_err(|e| compacted_at(e, revision))
}

pub(super) async fn values(
    store: &EtcdStore,
    keys: &[String],
    revision: i64,
) -> Result<Vec<KeyValue>, StoreError> {
    let mut at = FirstPages {
        revision,
        cluster: 0,
        pages: Vec::new(),
    };
    let mut values = Vec::with_capacity(keys.len());
    for some in keys.chunks(MAX_TXN_OPS) {
        let some = some.iter().cloned().map(KeyRange::Key);
        let bounds: Vec<Bounds> = some.map(|key| Bounds::from_range(&key)).collect();
        let answers = chunk_of_pages(store, &bounds, &mut at).await?;
        values.extend(answers.into_iter().flat_map(|answer| page(answer).values));
    }
    Ok(values)
}

async fn chunk_of_pages(
    store: &EtcdStore,
    chunk: &[Bounds],
    so_far: &mut FirstPages,
) -> Result<Vec<GetResponse>, StoreError> {
    let at = so_far.revision;
    let ops: Vec<TxnOp> = chunk
        .iter()
        .map(|bounds| TxnOp::get(bounds.start.clone(), Some(bounds.options(at, PAGE))))
        .collect();
    let txn = &EtcdTxn::new().and_then(ops);
    let answer = store
        .repeatable(|mut session| async move { Ok(session.kv.txn(txn.clone()).await?) })
        .await
        .map_err(|e| compacted_at(e, at))?;
    if at == 0 {
        let header = answer.header();
        so_far.revision = header.map_or(0, |header| header.revision());
        so_far.cluster = header.map_or(0, |header| header.cluster_id());
    }
    let pages: Vec<GetResponse> = answer
        .op_responses()
        .into_iter()
        .filter_map(|op| match op {
            TxnOpResponse::Get(page) => Some(page),
            _ => None,
        })
        .collect();
    if pages.len() != chunk.len() {
        return Err(StoreError::Refused(format!(
            "etcd answered {} of {} ranges",
            pages.len(),
            chunk.len()
        )));
    }
    Ok(pages)
}

/// An answer's values, and where the next one starts if there is one.
fn page(mut answer: GetResponse) -> Page {
    let more = answer.more();
    let answers = answer.take_kvs();
    let mut page = Page {
        values: Vec::with_capacity(answers.len()),
        next: None,
    };
    for kv in answers {
        let mod_revision = kv.mod_revision();
        let (key, value) = kv.into_key_value();
        if more {
            page.next = Some([&key[..], &[0]].concat());
        }
        page.values.push(KeyValue {
            key: text(key),
            value,
            mod_revision,
        });
    }
    page
}

/// Calico's keys are text. Bytes that are not become replacement characters, so that such a key is
/// reported as malformed instead of being passed over.
pub(super) fn text(key: Vec<u8>) -> String {
    String::from_utf8(key).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

fn compacted_at(error: StoreError, revision: i64) -> StoreError {
    match error {
        StoreError::Compacted { oldest, .. } => StoreError::Compacted {
            asked: revision,
            oldest,
        },
        error => error,
    }
}
