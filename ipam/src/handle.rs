//! Counts of addresses by block under a handle (IPAM-2).

use caracal_model::{IpamHandle, Prefix};

/// Adds addresses of a block.
pub fn add(handle: &mut IpamHandle, block: Prefix, count: u64) {
    let held = handle.block.entry(block).or_default();
    *held = held.saturating_add(count);
}

/// Takes addresses of a block away; an entry that reaches zero goes.
pub fn remove(handle: &mut IpamHandle, block: Prefix, count: u64) {
    if let Some(held) = handle.block.get_mut(&block) {
        *held = held.saturating_sub(count);
        if *held == 0 {
            handle.block.remove(&block);
        }
    }
}

/// True when the key can go.
#[must_use]
pub fn is_empty(handle: &IpamHandle) -> bool {
    handle.block.is_empty()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ipam_2_counts_by_block() {
        let (a, b) = (
            "10.0.0.0/30".parse().unwrap(),
            "fd00::/126".parse().unwrap(),
        );
        let mut handle = IpamHandle::default();
        add(&mut handle, a, 2);
        add(&mut handle, b, 1);
        add(&mut handle, a, 1);
        assert_eq!(handle.block[&a], 3);
        remove(&mut handle, a, 3);
        assert!(!handle.block.contains_key(&a));
        remove(&mut handle, a, 1);
        remove(&mut handle, b, 7);
        assert!(is_empty(&handle));
    }
}
