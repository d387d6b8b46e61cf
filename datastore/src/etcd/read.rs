//! Consistent reads of many ranges: the first request fixes the revision, what does not fit into an answer
//! is read page by page at that revision.

use caracal_model::txn::{KeyValue, Range};
use etcd_client::{GetOptions, GetResponse, Txn as EtcdTxn, TxnOp, TxnOpResponse};

use super::EtcdStore;
use crate::store::{ReadAnswer, StoreError};

/// Keys of one range in one answer. Blocks are the largest values, a few kilobytes each.
const PAGE: i64 = 1000;

/// etcd's default limit of operations in a transaction (`--max-txn-ops`).
const MAX_TXN_OPS: usize = 128;

/// A range as etcd wants it: `[start, end)`; an empty end = the one key.
struct Bounds {
    start: Vec<u8>,
    end: Vec<u8>,
}

impl Bounds {
    fn of(range: &Range) -> Self {
        match range {
            Range::Key(key) => Self {
                start: key.clone().into_bytes(),
                end: Vec::new(),
            },
            Range::Prefix(prefix) => Self {
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

    fn options(&self, revision: i64) -> GetOptions {
        let options = GetOptions::new().with_revision(revision).with_limit(PAGE);
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

pub(super) async fn read(store: &EtcdStore, ranges: &[Range]) -> Result<ReadAnswer, StoreError> {
    let mut answer = ReadAnswer {
        // Zero = the current one; the first answer says which that is.
        revision: 0,
        cluster: 0,
        ranges: Vec::with_capacity(ranges.len()),
    };
    let bounds: Vec<Bounds> = ranges.iter().map(Bounds::of).collect();
    // An empty transaction tells the revision too.
    let chunks: Vec<&[Bounds]> = if bounds.is_empty() {
        vec![&[]]
    } else {
        bounds.chunks(MAX_TXN_OPS).collect()
    };
    for chunk in chunks {
        let pages = first_pages(store, chunk, &mut answer).await?;
        for (mut page, bounds) in pages.into_iter().zip(chunk) {
            let mut all = Vec::new();
            let mut more = take(&mut page, &mut all);
            while let Some(start) = more {
                let rest = Bounds {
                    start,
                    end: bounds.end.clone(),
                };
                let mut page = next_page(store, &rest, answer.revision).await?;
                more = take(&mut page, &mut all);
            }
            answer.ranges.push(all);
        }
    }
    Ok(answer)
}

async fn first_pages(
    store: &EtcdStore,
    chunk: &[Bounds],
    so_far: &mut ReadAnswer,
) -> Result<Vec<GetResponse>, StoreError> {
    let at = so_far.revision;
    let ops: Vec<TxnOp> = chunk
        .iter()
        .map(|bounds| TxnOp::get(bounds.start.clone(), Some(bounds.options(at))))
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

async fn next_page(
    store: &EtcdStore,
    bounds: &Bounds,
    revision: i64,
) -> Result<GetResponse, StoreError> {
    store
        .repeatable(|mut session| async move {
            let options = bounds.options(revision);
            Ok(session.kv.get(bounds.start.clone(), Some(options)).await?)
        })
        .await
        .map_err(|e| compacted_at(e, revision))
}

/// Moves a page's values over; says where the next page starts, if there is one.
fn take(page: &mut GetResponse, all: &mut Vec<KeyValue>) -> Option<Vec<u8>> {
    let more = page.more();
    let mut next = None;
    for kv in page.take_kvs() {
        let mod_revision = kv.mod_revision();
        let (key, value) = kv.into_key_value();
        if more {
            next = Some([&key[..], &[0]].concat());
        }
        all.push(KeyValue {
            key: text(key),
            value,
            mod_revision,
        });
    }
    next
}

/// Calico's keys are text. Bytes that are not become replacement characters, so that such a key is reported
/// as malformed instead of being passed over.
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
