//! The allocator of the process, the same in every build (decision 0042), and what it does with
//! free memory.

use libmimalloc_sys::{mi_option_set_default, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of `mimalloc.h`, which the bindings do not name.
const PURGE_DELAY: mi_option_t = 15;

/// Free memory goes back to the kernel at once.
///
/// By default mimalloc waits for a second and then for the next allocation that needs memory from
/// the kernel. A daemon that is at rest after a peak makes none, and would keep what the peak took
/// for good (decision 0059). `MIMALLOC_PURGE_DELAY` in the environment still has its effect.
pub(crate) fn configure() {
    set(PURGE_DELAY, 0);
}

#[allow(
    unsafe_code,
    reason = "a setting of the C library; it writes one integer, and no thread but this one runs yet"
)]
fn set(option: mi_option_t, value: std::ffi::c_long) {
    // SAFETY: the library checks the number of the option.
    unsafe { mi_option_set_default(option, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(unsafe_code, reason = "a setting of the C library is read")]
    fn get(option: mi_option_t) -> std::ffi::c_long {
        // SAFETY: the library checks the number of the option.
        unsafe { libmimalloc_sys::mi_option_get(option) }
    }

    #[test]
    fn the_option_is_the_delay_of_a_purge() {
        // The library's own default: another one in this place would be another option.
        assert_eq!(get(PURGE_DELAY), 1000);
        configure();
        assert_eq!(get(PURGE_DELAY), 0);
    }
}
