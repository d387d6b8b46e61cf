//! Names of objects, which are lookup keys only: what an object is of stands in its `spec`.

use caracal_model::{BlockOwner, Family, HandleId, Prefix};
use sha2::Digest as _;

/// The longest name of an object.
const LONGEST: usize = 253;

/// Hexadecimal digits of a hash that stands for the rest of a name.
const HASHED: usize = 11;

/// A CIDR as a name: `10.244.3.64/26` is `10-244-3-64-26`.
#[must_use]
pub(crate) fn of_cidr(cidr: &Prefix) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

/// The CIDR of such a name.
#[must_use]
pub(crate) fn cidr(name: &str) -> Option<Prefix> {
    let (address, len) = name.rsplit_once('-')?;
    let read = |dots: &str| format!("{}/{len}", address.replace('-', dots)).parse().ok();
    read(".").or_else(|| read(":"))
}

/// The name of an affinity.
#[must_use]
pub(crate) fn of_affinity(owner: &BlockOwner, cidr: &Prefix) -> String {
    let (host, block) = (owner_name(owner), of_cidr(cidr));
    let name = format!("{host}-{block}");
    if name.len() < LONGEST {
        return name;
    }
    let hash = hex(&sha2::Sha256::digest(format!("{host}+{cidr}")), HASHED);
    let room = LONGEST - 1 - block.len() - 13;
    let host: String = host.chars().take(room).collect();
    format!("{host}-{block}-{hash}")
}

/// The name of a handle: the id in lower case. An id with characters that no name may have, as that
/// of a further interface of a container, gets a name of its own, with a hash of the id.
#[must_use]
pub(crate) fn of_handle(id: &HandleId) -> String {
    let name = id.as_str().to_lowercase();
    if is_name(&name) {
        return name;
    }
    let allowed = |c: char| match c {
        'a'..='z' | '0'..='9' | '.' => c,
        _ => '-',
    };
    let name = name.replace("..", "-");
    let plain: String = name
        .chars()
        .map(allowed)
        .take(LONGEST - HASHED - 1)
        .collect();
    let hash = hex(&sha2::Sha256::digest(id.as_str()), HASHED);
    let plain = plain.replace(".-", "-").replace("-.", "-");
    let plain = plain.trim_matches(['-', '.']);
    match plain.is_empty() {
        true => hash,
        false => format!("{plain}-{hash}"),
    }
}

/// Whether Kubernetes takes it as the name of a custom resource.
fn is_name(text: &str) -> bool {
    let inside = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.');
    let part = |part: &str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
    text.len() <= LONGEST && text.chars().all(inside) && text.split('.').all(part)
}

/// The labels by which Calico finds an owner's affinities.
#[must_use]
pub(crate) fn affinity_labels(owner: &BlockOwner, family: Family) -> [(&'static str, String); 3] {
    let version = match family {
        Family::Ipv4 => "4",
        Family::Ipv6 => "6",
    };
    let hash = base32(&sha3::Sha3_256::digest(owner_name(owner)));
    [
        (
            "projectcalico.org/affinity-type",
            owner_type(owner).to_owned(),
        ),
        ("projectcalico.org/ip-version", version.to_owned()),
        ("projectcalico.org/hostname-hash", hash),
    ]
}

/// `host` or `virtual`.
#[must_use]
pub(crate) fn owner_type(owner: &BlockOwner) -> &'static str {
    match owner {
        BlockOwner::Host(_) => "host",
        BlockOwner::Virtual(_) => "virtual",
    }
}

/// The name behind the type.
#[must_use]
pub(crate) fn owner_name(owner: &BlockOwner) -> &str {
    match owner {
        BlockOwner::Host(node) => node.as_str(),
        BlockOwner::Virtual(name) => name,
    }
}

fn hex(digest: &[u8], digits: usize) -> String {
    let mut text: String = digest.iter().map(|octet| format!("{octet:02x}")).collect();
    text.truncate(digits);
    text
}

/// RFC 4648 base32 in upper case, without padding.
fn base32(data: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut text = String::with_capacity(data.len().div_ceil(5) * 8);
    for chunk in data.chunks(5) {
        let mut group = [0; 8];
        group[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(group);
        for at in 0..(chunk.len() * 8).div_ceil(5) {
            let index = (bits >> (35 - 5 * at)) & 31;
            text.extend(usize::try_from(index).ok().map(|i| char::from(ALPHABET[i])));
        }
    }
    text
}

/// The UID that users of v3 resources see for an object's own, and the other way round: the bits of
/// each octet reversed, but those that hold version and variant.
#[must_use]
pub(crate) fn reversed_uid(uid: &str) -> Option<String> {
    let digits: String = uid.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut text = String::with_capacity(36);
    for at in 0..16 {
        let octet = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        let octet = match at {
            6 | 8 => octet,
            _ => octet.reverse_bits(),
        };
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{octet:02x}"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cidrs_and_affinities_are_named_as_calico_names_them() {
        let v4: Prefix = "10.244.3.64/26".parse().unwrap();
        let v6: Prefix = "fd00:244::40/122".parse().unwrap();
        assert_eq!(of_cidr(&v4), "10-244-3-64-26");
        assert_eq!(of_cidr(&v6), "fd00-244--40-122");
        let node = BlockOwner::Host("node-1".into());
        assert_eq!(of_affinity(&node, &v4), "node-1-10-244-3-64-26");
        let long = BlockOwner::Host("n".repeat(250).as_str().into());
        let name = of_affinity(&long, &v4);
        assert_eq!(name.len(), 252 - 13 + 13);
        assert!(name.contains("n-10-244-3-64-26-"), "{name}");
    }

    #[test]
    fn the_hash_of_a_host_is_the_one_calico_selects_by() {
        let labels = affinity_labels(&BlockOwner::Host("node-1".into()), Family::Ipv4);
        let hash = "A3XPYDATRKB7Q4SM2O5FN4RXIHBFIL2PITFX26BAIP5XAB2X74CA";
        assert_eq!(labels[2].1, hash);
        assert_eq!((labels[0].1.as_str(), labels[1].1.as_str()), ("host", "4"));
    }

    #[test]
    fn a_handle_that_cannot_be_a_name_gets_one_of_its_own() {
        let name = |id: &str| of_handle(&HandleId::from(id));
        assert_eq!(name("k8s-pod-network.8F2C"), "k8s-pod-network.8f2c");
        let further = name("k8s-pod-network.8f2c:eth1");
        assert!(
            further.starts_with("k8s-pod-network.8f2c-eth1-"),
            "{further}"
        );
        assert!(is_name(&further));
        assert_ne!(further, name("k8s-pod-network.8f2c_eth1"));
        for odd in ["_", "a..b", ".a", &"x/".repeat(200)] {
            assert!(is_name(&name(odd)), "{odd}: {}", name(odd));
        }
    }

    #[test]
    fn uids_are_reversed_both_ways() {
        let (own, shown) = (
            "6f1c2a34-5b6d-4e7f-8a9b-0c1d2e3f4a5b",
            "f638542c-dab6-4efe-8ad9-30b874fc52da",
        );
        assert_eq!(reversed_uid(own).as_deref(), Some(shown));
        assert_eq!(reversed_uid(shown).as_deref(), Some(own));
        assert_eq!(reversed_uid("not one"), None);
    }
}
