//! One router's end: what is asked, what is held, and when it changes (RFC 8210 §8).

use std::collections::{BTreeMap, BTreeSet};

use super::pdu::{self, Fault, NO_DATA, Pdu, Query, Times, UNSUPPORTED_VERSION, Unit, Version};
use crate::policy::Roa;

/// What to do after a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing.
    Nothing,
    /// This is to be sent.
    Ask(Query),
    /// The entries are those of the cache; true: they are others than before.
    Current(bool),
    /// The cache has no entries yet; it is asked again later.
    NoData,
}

/// Why the connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum End {
    /// The cache breaks the protocol, and is told.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// It speaks an older version; the next connection does, too.
    #[error("the cache speaks version 0 alone")]
    Older,
    /// It says so.
    #[error("the cache reports {}{}", pdu::error_word(*.code), said(.text))]
    Told { code: u16, text: String },
}

fn said(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!(": {text}"),
    }
}

/// An answer that is not whole.
#[derive(Debug)]
struct Answer {
    session: u16,
    /// All that there is, and not the difference from what is held.
    whole: bool,
    /// What comes (true) and goes.
    changes: BTreeMap<Roa, bool>,
}

/// A router's end of a session with one cache.
#[derive(Debug)]
pub(super) struct Router {
    version: Version,
    /// The cache has answered in this version on this connection.
    agreed: bool,
    /// Session and serial number of what is held.
    held: Option<(u16, u32)>,
    entries: BTreeSet<Roa>,
    asked: Option<Query>,
    answer: Option<Answer>,
    times: Option<Times>,
}

impl Router {
    pub(super) const fn new() -> Self {
        Self {
            version: Version::V1,
            agreed: false,
            held: None,
            entries: BTreeSet::new(),
            asked: None,
            answer: None,
            times: None,
        }
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    pub(super) const fn held(&self) -> Option<(u16, u32)> {
        self.held
    }

    pub(super) const fn entries(&self) -> &BTreeSet<Roa> {
        &self.entries
    }

    /// The times of the cache, as far as it has said any that RFC 8210 §6 allows.
    pub(super) fn times(&self) -> Option<Times> {
        self.times.filter(|times| {
            (1..=86_400).contains(&times.refresh)
                && (1..=7200).contains(&times.retry)
                && (600..=172_800).contains(&times.expire)
                && times.expire > times.refresh.max(times.retry)
        })
    }

    /// True while an answer is awaited.
    pub(super) const fn waits(&self) -> bool {
        self.asked.is_some()
    }

    /// There is a connection: the first question.
    pub(super) fn connected(&mut self) -> Query {
        self.agreed = false;
        self.ask()
    }

    /// A question, now that none is under way.
    pub(super) fn ask(&mut self) -> Query {
        self.asking(match self.held {
            Some((session, serial)) => Query::Serial { session, serial },
            None => Query::Reset,
        })
    }

    fn asking(&mut self, query: Query) -> Query {
        self.asked = Some(query);
        self.answer = None;
        query
    }

    /// The entries are too old, or not to be trusted. True when there were some.
    pub(super) fn flush(&mut self) -> bool {
        self.held = None;
        self.answer = None;
        !std::mem::take(&mut self.entries).is_empty()
    }

    /// Takes a unit.
    ///
    /// # Errors
    /// Why the connection ends.
    pub(super) fn take(&mut self, unit: &Unit) -> Result<Outcome, End> {
        // Before the version is agreed, a notice means nothing, whatever its version (§7).
        if matches!(unit.pdu, Pdu::Notify { .. }) && (!self.agreed || self.waits()) {
            return Ok(Outcome::Nothing);
        }
        if let Pdu::Error { code, text } = &unit.pdu {
            return self.told(*code, text);
        }
        self.agree(unit.version)?;
        match &unit.pdu {
            Pdu::Notify { session, serial } => Ok(match self.held {
                Some(held) if held == (*session, *serial) => Outcome::Nothing,
                Some((held, _)) if held == *session => Outcome::Ask(self.ask()),
                _ => Outcome::Ask(self.asking(Query::Reset)),
            }),
            Pdu::Response { session } => self.begin(*session).map(|()| Outcome::Nothing),
            Pdu::Prefix { announced, entry } => {
                self.change(*announced, *entry)?;
                Ok(Outcome::Nothing)
            }
            Pdu::EndOfData {
                session,
                serial,
                times,
            } => {
                self.times = *times;
                self.end(*session, *serial).map(Outcome::Current)
            }
            Pdu::Reset => match self.asked {
                Some(Query::Serial { .. }) if self.answer.is_none() => {
                    Ok(Outcome::Ask(self.asking(Query::Reset)))
                }
                _ => Err(corrupt("a cache reset that answers no serial query")),
            },
            Pdu::RouterKey | Pdu::Error { .. } => Ok(Outcome::Nothing),
        }
    }

    /// RFC 8210 §7: the first answer says in which version the connection goes on.
    fn agree(&mut self, theirs: u8) -> Result<(), End> {
        let ours = self.version as u8;
        if !self.agreed && theirs < ours {
            self.version = Version::V0;
        } else if theirs != ours {
            return Err(Fault::OtherVersion(ours, theirs).into());
        }
        self.agreed = true;
        Ok(())
    }

    fn told(&mut self, code: u16, text: &str) -> Result<Outcome, End> {
        match code {
            NO_DATA => {
                self.asked = None;
                self.answer = None;
                Ok(Outcome::NoData)
            }
            UNSUPPORTED_VERSION if !self.agreed && self.version == Version::V1 => {
                self.version = Version::V0;
                Err(End::Older)
            }
            _ => {
                // A cache that has begun anew may say so with a report instead of a cache reset, as
                // StayRTR does. What is held is replaced as a whole when everything has come.
                if matches!(self.asked, Some(Query::Serial { .. })) {
                    self.held = None;
                }
                Err(End::Told {
                    code,
                    text: text.to_owned(),
                })
            }
        }
    }

    fn begin(&mut self, session: u16) -> Result<(), End> {
        let whole = match (self.asked, &self.answer) {
            (Some(Query::Reset), None) => true,
            (Some(Query::Serial { session: ours, .. }), None) if ours == session => false,
            (Some(Query::Serial { .. }), None) => return Err(self.other_session()),
            _ => return Err(corrupt("an answer to no question")),
        };
        self.answer = Some(Answer {
            session,
            whole,
            changes: BTreeMap::new(),
        });
        Ok(())
    }

    /// RFC 8210 §5.1: what came with another session is not to be trusted.
    fn other_session(&mut self) -> End {
        self.flush();
        corrupt("another session than the one that was asked about")
    }

    fn change(&mut self, announced: bool, entry: Roa) -> Result<(), End> {
        let Some(answer) = &mut self.answer else {
            return Err(corrupt("an entry outside of an answer"));
        };
        let held = !answer.whole && self.entries.contains(&entry);
        let there = answer.changes.get(&entry).copied().unwrap_or(held);
        if there == announced {
            let text = format!("{} max {} as {}", entry.prefix, entry.max, entry.asn);
            return Err(match announced {
                true => Fault::Duplicate(text),
                false => Fault::Unknown(text),
            }
            .into());
        }
        answer.changes.insert(entry, announced);
        Ok(())
    }

    /// True when the entries are others now.
    fn end(&mut self, session: u16, serial: u32) -> Result<bool, End> {
        let Some(answer) = self.answer.take() else {
            return Err(corrupt("the end of no answer"));
        };
        if answer.session != session {
            return Err(self.other_session());
        }
        self.asked = None;
        self.held = Some((session, serial));
        if answer.whole {
            let there = answer.changes.into_iter().filter(|(_, there)| *there);
            let entries = there.map(|(entry, _)| entry).collect();
            let before = std::mem::replace(&mut self.entries, entries);
            return Ok(before != self.entries);
        }
        let mut differs = false;
        for (entry, announced) in answer.changes {
            differs |= match announced {
                true => self.entries.insert(entry),
                false => self.entries.remove(&entry),
            };
        }
        Ok(differs)
    }
}

fn corrupt(text: &str) -> End {
    Fault::Corrupt(text.to_owned()).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;

    use super::*;

    const SESSION: u16 = 7;

    fn entry(n: u8) -> Roa {
        Roa {
            prefix: format!("10.{n}.0.0/16").parse().unwrap(),
            max: 24,
            asn: 65000,
        }
    }

    fn unit(version: u8, pdu: Pdu) -> Unit {
        let octets = Bytes::new();
        Unit {
            version,
            pdu,
            octets,
        }
    }

    fn response() -> Pdu {
        Pdu::Response { session: SESSION }
    }

    fn announced(n: u8) -> Pdu {
        Pdu::Prefix {
            announced: true,
            entry: entry(n),
        }
    }

    fn withdrawn(n: u8) -> Pdu {
        Pdu::Prefix {
            announced: false,
            entry: entry(n),
        }
    }

    fn end(serial: u32) -> Pdu {
        Pdu::EndOfData {
            session: SESSION,
            serial,
            times: None,
        }
    }

    fn notify(session: u16, serial: u32) -> Pdu {
        Pdu::Notify { session, serial }
    }

    /// Takes these units; what the last one led to.
    fn all(router: &mut Router, units: impl IntoIterator<Item = Pdu>) -> Result<Outcome, End> {
        let mut last = Ok(Outcome::Nothing);
        for pdu in units {
            last = router.take(&unit(router.version as u8, pdu));
            if last.is_err() {
                break;
            }
        }
        last
    }

    fn numbers(router: &Router) -> Vec<u8> {
        let all = (0..=255).filter(|n| router.entries.contains(&entry(*n)));
        all.collect()
    }

    /// One that holds entries 1 and 2 of serial number 5.
    fn held() -> Router {
        let mut router = Router::new();
        assert_eq!(router.connected(), Query::Reset);
        let answer = [response(), announced(1), announced(2), end(5)];
        assert_eq!(all(&mut router, answer), Ok(Outcome::Current(true)));
        assert_eq!(numbers(&router), [1, 2]);
        assert_eq!(router.held(), Some((SESSION, 5)));
        router
    }

    fn since(serial: u32) -> Query {
        let session = SESSION;
        Query::Serial { session, serial }
    }

    #[test]
    fn rfc8210_8_2_a_notice_leads_to_the_difference() {
        let mut router = held();
        assert_eq!(
            all(&mut router, [notify(SESSION, 5)]),
            Ok(Outcome::Nothing),
            "nothing is new"
        );
        let asked = all(&mut router, [notify(SESSION, 6)]);
        assert_eq!(asked, Ok(Outcome::Ask(since(5))));
        // Another one while the answer is awaited.
        let again = all(&mut router, [notify(SESSION, 7)]);
        assert_eq!(again, Ok(Outcome::Nothing));
        let half = [response(), announced(3), withdrawn(1)];
        assert_eq!(all(&mut router, half), Ok(Outcome::Nothing));
        assert_eq!(numbers(&router), [1, 2], "nothing of it before its end");
        assert_eq!(all(&mut router, [end(7)]), Ok(Outcome::Current(true)));
        assert_eq!(numbers(&router), [2, 3]);
        assert_eq!(router.ask(), since(7));
        let nothing = [response(), end(7)];
        assert_eq!(all(&mut router, nothing), Ok(Outcome::Current(false)));
    }

    #[test]
    fn what_comes_and_goes_in_one_answer_is_no_change() {
        let mut router = held();
        router.ask();
        let answer = [
            response(),
            announced(3),
            withdrawn(3),
            withdrawn(1),
            announced(1),
            end(6),
        ];
        assert_eq!(all(&mut router, answer), Ok(Outcome::Current(false)));
        assert_eq!(numbers(&router), [1, 2]);
    }

    #[test]
    fn a_lost_connection_loses_nothing_and_goes_on_with_the_difference() {
        let mut router = held();
        router.ask();
        assert!(all(&mut router, [response(), withdrawn(1)]).is_ok());
        assert_eq!(router.connected(), since(5));
        assert_eq!(numbers(&router), [1, 2]);
        let answer = [response(), withdrawn(2), end(6)];
        assert_eq!(all(&mut router, answer), Ok(Outcome::Current(true)));
        assert_eq!(numbers(&router), [1]);
    }

    #[test]
    fn rfc8210_8_3_a_cache_that_has_forgotten_is_asked_for_everything() {
        let mut router = held();
        router.ask();
        let asked = all(&mut router, [Pdu::Reset]);
        assert_eq!(asked, Ok(Outcome::Ask(Query::Reset)));
        assert_eq!(numbers(&router), [1, 2], "until the new set is whole");
        let answer = [response(), announced(2), announced(9), end(1)];
        assert_eq!(all(&mut router, answer), Ok(Outcome::Current(true)));
        assert_eq!(numbers(&router), [2, 9]);
        assert!(all(&mut router, [Pdu::Reset]).is_err(), "no question");
    }

    #[test]
    fn rfc8210_8_4_no_data_is_no_reason_to_forget_any() {
        let mut router = held();
        router.ask();
        let (code, text) = (NO_DATA, String::new());
        let outcome = all(&mut router, [Pdu::Error { code, text }]);
        assert_eq!(outcome, Ok(Outcome::NoData));
        assert_eq!(numbers(&router), [1, 2]);
        assert!(!router.waits());
    }

    #[test]
    fn rfc8210_5_1_another_session_flushes() {
        let mut router = held();
        router.ask();
        let other = Pdu::Response { session: 8 };
        let ended = all(&mut router, [other]).unwrap_err();
        assert!(ended.to_string().contains("another session"), "{ended}");
        assert_eq!(numbers(&router), [] as [u8; 0]);
        assert_eq!(router.connected(), Query::Reset);
        // A notice of another session is no answer: the cache has begun anew.
        let mut router = held();
        let asked = all(&mut router, [notify(8, 1)]);
        assert_eq!(asked, Ok(Outcome::Ask(Query::Reset)));
        assert_eq!(numbers(&router), [1, 2]);
    }

    #[test]
    fn rfc8210_12_what_breaks_the_protocol_ends_the_connection() {
        for (units, said) in [
            (vec![response(), announced(1)], "twice"),
            (vec![response(), withdrawn(9)], "has not announced"),
            (
                vec![response(), announced(9), announced(9)],
                "10.9.0.0/16 max 24 as 65000 twice",
            ),
            (vec![announced(9)], "outside of an answer"),
            (vec![end(9)], "end of no answer"),
            (vec![response(), response()], "an answer to no question"),
        ] {
            let mut router = held();
            router.ask();
            let ended = all(&mut router, units.clone()).unwrap_err().to_string();
            assert!(ended.contains(said), "{units:?}: {ended}");
            assert_eq!(numbers(&router), [1, 2], "what was whole stays");
        }
        // A report instead of an answer: everything is asked for next.
        let mut router = held();
        router.ask();
        let (code, text) = (0, "another session".to_owned());
        let ended = all(&mut router, [Pdu::Error { code, text }]).unwrap_err();
        assert!(ended.to_string().contains("corrupt data"), "{ended}");
        assert_eq!(router.connected(), Query::Reset);
        assert_eq!(numbers(&router), [1, 2], "until everything has come");
        let mut router = held();
        let (code, text) = (1, "tired".to_owned());
        let ended = all(&mut router, [Pdu::Error { code, text }]).unwrap_err();
        assert_eq!(ended.to_string(), "the cache reports internal error: tired");
    }

    #[test]
    fn rfc8210_7_an_older_cache_is_understood() {
        // It answers in its own version.
        let mut router = Router::new();
        router.connected();
        let early = router.take(&unit(0, notify(SESSION, 1)));
        assert_eq!(early, Ok(Outcome::Nothing));
        assert_eq!(router.version(), Version::V1, "a notice agrees to nothing");
        router.take(&unit(0, response())).unwrap();
        assert_eq!(router.version(), Version::V0);
        router.take(&unit(0, announced(1))).unwrap();
        router.take(&unit(0, end(1))).unwrap();
        assert_eq!(numbers(&router), [1]);
        let other = router.take(&unit(1, notify(SESSION, 2))).unwrap_err();
        assert!(other.to_string().contains("from version 0"), "{other}");
        // Or it refuses ours.
        let mut router = Router::new();
        router.connected();
        let (code, text) = (UNSUPPORTED_VERSION, String::new());
        let refused = Pdu::Error { code, text };
        let ended = router.take(&unit(0, refused.clone()));
        assert_eq!(ended, Err(End::Older));
        router.connected();
        assert_eq!(router.version(), Version::V0);
        let ended = router.take(&unit(0, refused));
        assert!(matches!(ended, Err(End::Told { .. })), "{ended:?}");
    }

    #[test]
    fn rfc8210_6_times_outside_of_their_bounds_do_not_count() {
        let mut router = held();
        let good = Times {
            refresh: 60,
            retry: 10,
            expire: 600,
        };
        for (times, counts) in [
            (good, true),
            (Times { refresh: 0, ..good }, false),
            (
                Times {
                    retry: 7201,
                    ..good
                },
                false,
            ),
            (
                Times {
                    expire: 599,
                    ..good
                },
                false,
            ),
            (
                Times {
                    refresh: 600,
                    ..good
                },
                false,
            ),
        ] {
            router.ask();
            let whole = Pdu::EndOfData {
                session: SESSION,
                serial: 6,
                times: Some(times),
            };
            assert!(all(&mut router, [response(), whole]).is_ok());
            assert_eq!(router.times(), counts.then_some(times));
        }
    }
}
