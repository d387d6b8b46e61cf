//! The kernel-state cache: the kernel as it was last read, with the routes, objects and entries
//! that we have written since. A pass that follows news of the datastore or of BGP alone needs no
//! other reading (decision 0029). The cache never outlives a notification, a failure, or a write of
//! anything else.

use std::time::Duration;

use tokio::time::Instant;

use crate::actual::{Actual, ActualNeighbour};
use crate::dataplane::read::FdbNews;
use crate::kernel_objects::FdbKey;
use crate::op::Op;

/// The cache is compared with the kernel so long after it was first relied on,
const TRUST: Duration = Duration::from_secs(1);
/// or, where that is longer, after so many times as long as the reading took,
const TIMES: u32 = 20;
/// but not longer than this,
const LONGEST: Duration = Duration::from_secs(30);
/// or, in a large table, this for each route and entry that is read: one costs some 10 µs to read,
/// to compare and to forget, so that reading again takes half a percent of the time,
const FOR_EACH: Duration = Duration::from_millis(2);
/// and after this at the latest, which is the default of `routeRefreshInterval`.
const LATEST: Duration = Duration::from_secs(90);
/// After a pass with more ops the kernel is read: that was no small piece of news.
const MOST: usize = 1000;

/// The kernel's routes, devices and entries as they were last read, with our own writes applied.
#[derive(Debug)]
pub(in crate::dataplane) struct KernelCache {
    actual: Option<Actual>,
    /// How long it is relied on.
    trust: Duration,
    /// When it has to be read again; `None` = it is just as it was read.
    until: Option<Instant>,
}

impl Default for KernelCache {
    fn default() -> Self {
        Self {
            actual: None,
            trust: TRUST,
            until: None,
        }
    }
}

impl KernelCache {
    /// The kernel may have changed.
    pub(in crate::dataplane) fn forget(&mut self) {
        (self.actual, self.until) = (None, None);
    }

    /// The kernel was read, and that took so long.
    pub(in crate::dataplane) fn has_read(&mut self, actual: &Actual, took: Duration) {
        let entries = [
            actual.routes.len(),
            actual.objects.len(),
            actual.neighbours.len(),
            actual.fdb.len(),
        ];
        let entries = u32::try_from(entries.iter().sum::<usize>()).unwrap_or(u32::MAX);
        let by_time = (took * TIMES).clamp(TRUST, LONGEST);
        self.trust = by_time.max(FOR_EACH.saturating_mul(entries)).min(LATEST);
    }

    /// The kernel's state, while the cache may be relied on. The caller brings it back with
    /// [`KernelCache::store`], or it is gone.
    pub(in crate::dataplane) fn take(&mut self, now: Instant) -> Option<Actual> {
        if self.until.is_some_and(|until| now >= until) {
            self.forget();
        }
        let known = self.actual.take();
        if known.is_some() {
            self.until.get_or_insert(now + self.trust);
        } else {
            self.until = None;
        }
        known
    }

    /// The operations of a pass that the cache has to follow, noted before they are carried out.
    pub(in crate::dataplane) fn note(ops: &[Op]) -> Option<Vec<Op>> {
        let is_entry = |op: &Op| {
            matches!(
                op,
                Op::AddRoute(_)
                    | Op::ReplaceRoute(_)
                    | Op::DeleteRoute(_)
                    | Op::PutNeighbour(..)
                    | Op::DeleteNeighbour(_)
                    | Op::PutFdb(..)
                    | Op::DeleteFdb(..)
                    | Op::AddObject(_)
                    | Op::ReplaceObject(_)
                    | Op::DeleteObject(_)
                    // No state of this kind: what is known of the rules is the writer's.
                    | Op::PutNat(_)
                    | Op::DeleteNat
            )
        };
        (ops.len() <= MOST && ops.iter().all(is_entry)).then(|| ops.to_vec())
    }

    /// Keeps what a pass knew, and these routes that it wrote. `None` = what it did has to be seen.
    pub(in crate::dataplane) fn store(
        &mut self,
        mut actual: Actual,
        written: Option<Vec<Op>>,
        now: Instant,
    ) {
        let Some(written) = written else {
            return self.forget();
        };
        if !written.is_empty() {
            self.until.get_or_insert(now + self.trust);
        }
        for op in &written {
            write(&mut actual, op);
        }
        self.actual = Some(actual);
    }

    /// True when an entry that came or went is known as the kernel has it now: it was our own
    /// doing.
    pub(in crate::dataplane) fn knows(&self, news: &FdbNews) -> bool {
        let Some(actual) = &self.actual else {
            return false;
        };
        let Some(link) = actual.links.by_index(news.index) else {
            return false;
        };
        let key = FdbKey {
            link: link.name.clone(),
            mac: news.mac,
        };
        (actual.fdb.get(&key) == Some(&news.remote)) == news.is_there
    }

    /// The time of the next reading.
    pub(in crate::dataplane) const fn due(&self) -> Option<Instant> {
        self.until
    }
}

/// Applies an operation that the kernel did not refuse.
fn write(actual: &mut Actual, op: &Op) {
    match op {
        Op::AddRoute(route) => actual.push_route(route.clone().into()),
        Op::ReplaceRoute(route) => actual.replace_route(route.clone().into()),
        Op::DeleteRoute(route) => {
            actual.remove_route(route);
        }
        Op::PutNeighbour(key, mac) => {
            let entry = ActualNeighbour {
                mac: Some(*mac),
                permanent: true,
            };
            actual.neighbours.insert(key.clone(), entry);
        }
        Op::DeleteNeighbour(key) => drop(actual.neighbours.remove(key)),
        Op::PutFdb(key, remote) => drop(actual.fdb.insert(key.clone(), *remote)),
        Op::DeleteFdb(key, _) => drop(actual.fdb.remove(key)),
        Op::AddObject(object) | Op::ReplaceObject(object) => actual.put_object(object),
        // No route that is known leads through it, or it would not go.
        Op::DeleteObject(id) => drop(actual.objects.remove(id)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::actual::ActualObject;
    use crate::kernel_objects::{ForwardingTarget, Route};
    use crate::links::Link;
    use crate::testing;

    fn route(prefix: &str) -> Route {
        Route {
            prefix: prefix.parse().unwrap(),
            metric: 0,
            protocol: 80,
            target: ForwardingTarget::Blackhole,
            mtu: None,
            source: None,
        }
    }

    #[test]
    fn what_is_written_is_known_as_the_kernel_has_it() {
        let (a, b) = (route("10.244.1.0/26"), route("10.244.2.0/26"));
        let unreachable = Route {
            protocol: 81,
            ..a.clone()
        };
        let mut kernel = Actual::default();
        let mut cache = KernelCache::default();
        let now = Instant::now();
        cache.store(kernel.clone(), Some(Vec::new()), now);
        for op in [
            Op::AddRoute(a.clone()),
            Op::AddRoute(b.clone()),
            Op::ReplaceRoute(unreachable.clone()),
            Op::DeleteRoute(b.into()),
            Op::DeleteRoute(unreachable.into()),
        ] {
            testing::apply_op(&mut kernel, &op).unwrap();
            let known = cache.take(now).unwrap();
            let noted = KernelCache::note(std::slice::from_ref(&op));
            cache.store(known, noted, now);
            assert_eq!(cache.actual.as_ref(), Some(&kernel), "{op}");
        }
    }

    #[test]
    fn it_is_read_again_a_while_after_it_was_relied_on() {
        let mut cache = KernelCache::default();
        let start = Instant::now();
        assert!(cache.take(start).is_none());
        cache.store(Actual::default(), Some(Vec::new()), start);
        assert_eq!(cache.due(), None, "it is as it was read");
        let later = start + 100 * TRUST;
        let known = cache.take(later).unwrap();
        cache.store(known, Some(Vec::new()), later);
        assert_eq!(cache.due(), Some(later + TRUST));
        let known = cache.take(later + TRUST / 2).unwrap();
        cache.store(known, Some(Vec::new()), later + TRUST / 2);
        assert_eq!(cache.due(), Some(later + TRUST), "not put off");
        assert!(cache.take(later + TRUST).is_none());
        assert_eq!(cache.due(), None);
        // Where reading is dear, more seldom.
        for (took, trust) in [
            (TRUST / 10, 2 * TRUST),
            (TRUST / 100, TRUST),
            (LONGEST, LONGEST),
        ] {
            cache.has_read(&Actual::default(), took);
            cache.store(Actual::default(), Some(Vec::new()), start);
            assert!(cache.take(start).is_some());
            assert_eq!(cache.due(), Some(start + trust));
            cache.forget();
        }
        // And where there is much to read, whatever else the machine does.
        let object = || ActualObject {
            protocol: 80,
            hop: None,
        };
        for (objects, trust) in [(10, TRUST), (20_000, 20_000 * FOR_EACH), (100_000, LATEST)] {
            let large = Actual {
                objects: (0..objects).map(|id| (id, object())).collect(),
                ..Actual::default()
            };
            cache.has_read(&large, Duration::ZERO);
            cache.store(Actual::default(), Some(Vec::new()), start);
            assert!(cache.take(start).is_some());
            assert_eq!(cache.due(), Some(start + trust));
            cache.forget();
        }
    }

    #[test]
    fn an_entry_that_is_known_as_it_is_now_is_no_news() {
        let link = Link::new(7, "vxlan.calico");
        let news = |remote: u8, is_there| FdbNews {
            index: link.index,
            mac: [2; 6],
            remote: [10, 0, 0, remote].into(),
            is_there,
        };
        let key = FdbKey {
            link: link.name.clone(),
            mac: [2; 6],
        };
        let actual = Actual {
            links: [link.clone()].into_iter().collect(),
            ..Actual::default()
        };
        let now = Instant::now();
        let mut cache = KernelCache::default();
        assert!(!cache.knows(&news(2, true)), "nothing was read");
        let put = [Op::PutFdb(key.clone(), [10, 0, 0, 2].into())];
        cache.store(actual.clone(), KernelCache::note(&put), now);
        for (remote, is_there, known) in [
            (2, true, true),
            (3, true, false),
            (2, false, false),
            (3, false, true),
        ] {
            let news = news(remote, is_there);
            assert_eq!(cache.knows(&news), known, "{news:?}");
        }
        cache.store(actual, Some(Vec::new()), now);
        assert!(cache.knows(&news(2, false)));
        let elsewhere = FdbNews {
            index: link.index + 1,
            ..news(2, false)
        };
        assert!(!cache.knows(&elsewhere));
    }

    #[test]
    fn nothing_but_routes_and_entries_is_known_without_reading() {
        let mut cache = KernelCache::default();
        let now = Instant::now();
        let address = Op::AddAddress("lo".into(), "10.244.1.1/32".parse().unwrap());
        let noted = KernelCache::note(&[Op::AddRoute(route("10.244.1.0/26")), address]);
        cache.store(Actual::default(), noted, now);
        assert!(cache.take(now).is_none());
        let many = vec![Op::AddRoute(route("10.244.1.0/26")); MOST + 1];
        assert!(KernelCache::note(&many).is_none());
    }
}
