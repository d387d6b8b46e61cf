//! Writes of a dry run: an overlay over the data of a real store. Machines that read through it run
//! to their end as they would with the real store.

use std::collections::BTreeMap;

use caracal_model::{Compare, KeyRange, KeyValue, Txn, TxnOutcome, TxnWrite};

/// Writes that were not made: key, revision, value (`None` = deleted).
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    writes: BTreeMap<String, (i64, Option<Vec<u8>>)>,
}

impl Overlay {
    /// Changes what the real store answered into what it would answer.
    pub(crate) fn lay_over(&self, ranges: &[KeyRange], answers: &mut [Vec<KeyValue>]) {
        for (range, list) in ranges.iter().zip(answers) {
            list.retain(|kv| !self.writes.contains_key(&kv.key));
            let written = self.writes.iter().filter(|(key, _)| covers(range, key));
            list.extend(written.filter_map(|(key, (revision, value))| {
                Some(KeyValue {
                    key: key.clone(),
                    value: value.clone()?,
                    mod_revision: *revision,
                })
            }));
            list.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }

    /// Keeps the writes of a transaction whose comparisons hold. `stored` is what the real store
    /// has, at `revision`, of the keys that are compared.
    pub(crate) fn commit(&mut self, txn: &Txn, stored: &[KeyValue], revision: i64) -> TxnOutcome {
        let revision_of = |key: &str| match self.writes.get(key) {
            Some((revision, value)) => value.as_ref().map(|_| *revision),
            None => stored
                .iter()
                .find(|kv| kv.key == key)
                .map(|kv| kv.mod_revision),
        };
        let holds = txn.compare.iter().all(|compare| match compare {
            Compare::Absent(key) => revision_of(key).is_none(),
            Compare::Unchanged(key, revision) => revision_of(key) == Some(*revision),
        });
        if !holds {
            return TxnOutcome::Conflict;
        }
        let latest = self.writes.values().map(|(revision, _)| *revision).max();
        let revision = latest.unwrap_or(0).max(revision) + 1;
        for write in &txn.writes {
            let (key, value) = match write {
                TxnWrite::Put(key, value) => (key, Some(value.clone())),
                TxnWrite::Delete(key) => (key, None),
            };
            self.writes.insert(key.clone(), (revision, value));
        }
        TxnOutcome::Committed(revision)
    }
}

fn covers(range: &KeyRange, key: &str) -> bool {
    match range {
        KeyRange::Key(one) => one == key,
        KeyRange::Prefix(prefix) => key.starts_with(prefix.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(key: &str) -> KeyValue {
        KeyValue {
            key: key.to_owned(),
            value: b"real".to_vec(),
            mod_revision: 7,
        }
    }

    fn txn(compare: Compare, write: TxnWrite) -> Txn {
        let mut txn = Txn::new();
        txn.compare.push(compare);
        txn.writes.push(write);
        txn
    }

    #[test]
    fn what_was_written_is_read_and_compared() {
        let mut overlay = Overlay::default();
        let put = TxnWrite::Put("/a".to_owned(), b"new".to_vec());
        let unchanged = |revision| Compare::Unchanged("/a".to_owned(), revision);
        let real = [stored("/a")];
        let old = txn(unchanged(6), put.clone());
        assert_eq!(overlay.commit(&old, &real, 9), TxnOutcome::Conflict);
        let first = txn(unchanged(7), put);
        assert_eq!(overlay.commit(&first, &real, 9), TxnOutcome::Committed(10));
        assert_eq!(overlay.commit(&first, &real, 9), TxnOutcome::Conflict);

        let ranges = [KeyRange::Prefix("/".to_owned())];
        let mut answers = [vec![stored("/a"), stored("/b")]];
        overlay.lay_over(&ranges, &mut answers);
        let seen: Vec<_> = answers[0]
            .iter()
            .map(|kv| (kv.key.as_str(), kv.mod_revision))
            .collect();
        assert_eq!(seen, [("/a", 10), ("/b", 7)]);

        let delete = txn(unchanged(10), TxnWrite::Delete("/a".to_owned()));
        assert_eq!(overlay.commit(&delete, &real, 9), TxnOutcome::Committed(11));
        let mut answers = [vec![stored("/a")]];
        overlay.lay_over(&ranges, &mut answers);
        assert_eq!(answers[0], []);
        let absent = txn(
            Compare::Absent("/a".to_owned()),
            TxnWrite::Delete("/b".to_owned()),
        );
        assert_eq!(overlay.commit(&absent, &real, 9), TxnOutcome::Committed(12));
    }
}
