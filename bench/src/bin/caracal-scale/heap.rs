//! How much of the heap a thread holds: the allocator counts, so that a figure is of the data and
//! not of the machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a counter.
pub struct Counting;

thread_local! {
    static IN_USE: Cell<i64> = const { Cell::new(0) };
}

/// Octets that this thread has taken and not given back. What goes from thread to thread is counted
/// wrong; the simulation has one.
#[must_use]
pub fn in_use() -> i64 {
    IN_USE.get()
}

fn count(octets: usize, sign: i64) {
    let octets = i64::try_from(octets).unwrap_or(i64::MAX);
    // At the end of a thread there is no counter any more.
    let _gone = IN_USE.try_with(|counter| counter.set(counter.get() + sign * octets));
}

#[allow(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call goes to the system's allocator as it came; the counter touches no memory of
// it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
