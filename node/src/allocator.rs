//! The allocator of the process, the same in every build (decision 0042), and what it does with
//! free memory.

use std::convert::Infallible;
use std::ffi::c_long;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libmimalloc_sys::{mi_collect, mi_option_set_default, mi_option_t};
use tokio::runtime::Builder;
use tokio::sync::Notify;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of `mimalloc.h`, which the bindings do not name.
const PURGE_DELAY: mi_option_t = 15;

/// How long free memory is kept for whoever needs it next, in milliseconds: what is withdrawn is
/// often announced again at once, and memory that the kernel has to give anew costs a page fault
/// for each four kilooctets.
const KEPT: c_long = 100;

/// How often a daemon that works looks for free memory that has been kept for so long.
const LOOK: Duration = Duration::from_secs(2);

/// How often threads may wake up between two looks in a process that is at rest. A look itself
/// wakes one or two.
const FEW: u64 = 8;

/// So many looks of a process at rest, and it looks no more.
const QUIET: u32 = 5;

/// Sets how long free memory is kept. `MIMALLOC_PURGE_DELAY` in the environment still has its
/// effect.
pub(crate) fn configure() {
    set(PURGE_DELAY, KEPT);
}

/// Task of a runtime that gives back to the kernel, again and again, what has been free for long
/// enough. It has no timer while the runtime is at rest.
///
/// mimalloc itself looks only when somebody needs memory or has freed some. A daemon that is at
/// rest after a peak does neither, and would keep what the peak took for good (decision 0101).
pub(crate) fn give_back(
    runtime: &mut Builder,
) -> impl Future<Output = Infallible> + Send + 'static {
    let wakes = Arc::new(Wakes::new());
    let noted = wakes.clone();
    runtime.on_thread_unpark(move || noted.note());
    look_while_awake(wakes, || tokio::time::sleep(LOOK), collect)
}

/// Looks while threads wake up, and some times more after that: the table gives memory back when it
/// has come to rest itself, which takes it four seconds and hardly wakes anybody.
async fn look_while_awake<P: Future>(
    wakes: Arc<Wakes>,
    mut pause: impl FnMut() -> P,
    mut look: impl FnMut(),
) -> Infallible {
    let (mut seen, mut quiet) = (0, 0);
    loop {
        pause().await;
        look();
        let now = wakes.count();
        quiet = if now - seen <= FEW { quiet + 1 } else { 0 };
        if quiet == QUIET {
            wakes.more_than(now + FEW).await;
            quiet = 0;
        }
        seen = wakes.count();
    }
}

/// How often threads of a runtime have woken up: without that nothing is allocated, nor freed.
#[derive(Debug)]
struct Wakes {
    count: AtomicU64,
    /// The count above which somebody is to be told; the largest: nobody.
    tell: AtomicU64,
    told: Notify,
}

impl Wakes {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            tell: AtomicU64::new(u64::MAX),
            told: Notify::const_new(),
        }
    }

    /// A thread has woken up. Called very often.
    fn note(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count > self.tell.load(Ordering::Relaxed)
            && self.tell.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
        {
            self.told.notify_one();
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until it was more often than that.
    async fn more_than(&self, count: u64) {
        self.tell.store(count, Ordering::Relaxed);
        self.told.notified().await;
    }
}

#[allow(
    unsafe_code,
    reason = "a function of the C library; it may be called by any thread at any time"
)]
fn collect() {
    // SAFETY: it looks at the free memory of the calling thread, and gives back what is due.
    unsafe { mi_collect(false) }
}

#[allow(
    unsafe_code,
    reason = "a setting of the C library; it writes one integer, and no thread but this one runs yet"
)]
fn set(option: mi_option_t, value: c_long) {
    // SAFETY: the library checks the number of the option.
    unsafe { mi_option_set_default(option, value) }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[allow(unsafe_code, reason = "a setting of the C library is read")]
    fn get(option: mi_option_t) -> c_long {
        // SAFETY: the library checks the number of the option.
        unsafe { libmimalloc_sys::mi_option_get(option) }
    }

    #[tokio::test]
    async fn it_looks_while_threads_wake_up_and_some_times_more() {
        let wakes = Arc::new(Wakes::new());
        let looks = Arc::new(AtomicU64::new(0));
        // Each permit is a pause that may end; what is left of them, nobody waited for.
        let pauses = Arc::new(Semaphore::new(0));
        let (noted, counted, ends) = (wakes.clone(), looks.clone(), pauses.clone());
        let pause = move || {
            let ends = ends.clone();
            async move { ends.acquire().await.expect("it is open").forget() }
        };
        let look = move || {
            // What the look itself wakes.
            (0..2).for_each(|_| noted.note());
            counted.fetch_add(1, Ordering::Relaxed);
        };
        tokio::spawn(look_while_awake(wakes.clone(), pause, look));
        let looks_in = async |time: usize| {
            pauses.add_permits(time);
            for _ in 0..10 * time + 100 {
                tokio::task::yield_now().await;
            }
            let left = pauses.forget_permits(time);
            (looks.swap(0, Ordering::Relaxed), left)
        };
        // Then it rests, without a timer.
        assert_eq!(looks_in(100).await, (u64::from(QUIET), 95));
        (0..FEW / 2).for_each(|_| wakes.note());
        assert_eq!(looks_in(100).await, (0, 100), "hardly anything happened");
        (0..FEW).for_each(|_| wakes.note());
        assert_eq!(looks_in(0).await, (0, 0), "it pauses first");
        for _ in 0..10 {
            (0..2 * FEW).for_each(|_| wakes.note());
            assert_eq!(looks_in(1).await, (1, 0), "threads work");
        }
        // What was freed just before the last look is due at the next.
        assert_eq!(looks_in(100).await, (u64::from(QUIET), 95));
        assert_eq!(looks_in(100).await, (0, 100));
    }

    /// With real threads, whose wake-ups the runtime counts: what a look wakes does not keep it
    /// going.
    #[test]
    fn a_runtime_without_work_is_left_alone() {
        let mut runtime = Builder::new_multi_thread();
        let wakes = Arc::new(Wakes::new());
        let noted = wakes.clone();
        runtime.on_thread_unpark(move || noted.note());
        let runtime = runtime.enable_all().worker_threads(4).build();
        let runtime = runtime.expect("a runtime");
        let before = wakes.count();
        let pause = async { tokio::time::sleep(Duration::from_millis(10)).await };
        let slept = runtime.spawn(pause);
        runtime.block_on(slept).expect("it ends");
        // A task that a timer wakes wakes one thread, and that one at most another.
        assert!(wakes.count() - before <= FEW);
    }

    #[test]
    fn the_option_is_the_delay_of_a_purge() {
        // The library's own default: another one in this place would be another option.
        assert_eq!(get(PURGE_DELAY), 1000);
        configure();
        assert_eq!(get(PURGE_DELAY), KEPT);
    }
}
