//! The allocator of the process, the same in every build (decision 0042), and what it does with
//! free memory.

use std::convert::Infallible;
use std::ffi::c_long;
use std::time::Duration;

use libmimalloc_sys::{mi_collect, mi_option_set_default, mi_option_t};
use tokio::time::MissedTickBehavior;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of `mimalloc.h`, which the bindings do not name.
const PURGE_DELAY: mi_option_t = 15;

/// Time in milliseconds after which free memory is given back to the kernel: what is withdrawn is
/// often announced again at once, and memory that the kernel has to give anew costs a page fault
/// for each four kilooctets.
const KEPT: c_long = 100;

/// Interval at which a daemon gives free memory of that age back.
const LOOK: Duration = Duration::from_secs(2);

/// Sets how long free memory is kept. `MIMALLOC_PURGE_DELAY` in the environment still has its
/// effect.
pub(crate) fn configure() {
    set(PURGE_DELAY, KEPT);
}

/// Gives back to the kernel, again and again, what has been free for long enough.
///
/// mimalloc itself looks only when somebody needs memory or has freed some. A daemon that is at
/// rest after a peak does neither, and would keep what the peak took for good (decision 0101).
pub(crate) async fn give_back() -> Infallible {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        collect();
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
    use super::*;

    #[allow(unsafe_code, reason = "a setting of the C library is read")]
    fn get(option: mi_option_t) -> c_long {
        // SAFETY: the library checks the number of the option.
        unsafe { libmimalloc_sys::mi_option_get(option) }
    }

    #[test]
    fn the_option_is_the_delay_of_a_purge() {
        // The library's own default: another one in this place would be another option.
        assert_eq!(get(PURGE_DELAY), 1000);
        configure();
        assert_eq!(get(PURGE_DELAY), KEPT);
    }
}
