//! Names as BIRD's language can write them.
//!
//! All of BIRD's names live in one space together with its keywords, have at most 64 octets, and
//! outside of letters, digits and `_` may hold `-`, `.` and `:` in quotes. A name of ours that does
//! not fit gets a stand-in, and a `#: name` line in the block says the real one.

use std::collections::BTreeSet;

/// The symbols that the shipped templates use for themselves begin with this.
pub(crate) const RESERVED: &str = "caracal_";

/// BIRD's limit (`SYM_MAX_LEN`).
const MAX_LEN: usize = 64;

/// Words of BIRD's language that end in digits, without them.
const NUMBERED_WORDS: [&str; 17] = [
    "as", "cost", "data", "flow", "ip", "ipv", "master", "md", "metric", "ospf", "roa", "sha",
    "type", "v", "vpn", "x", "ext",
];

/// Hands out symbols, each once.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    taken: BTreeSet<String>,
}

/// A symbol, as text for the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// As it is written, with quotes where needed.
    pub text: String,
    /// True when the symbol is not the name, so that the name must be written beside it.
    pub stands_in: bool,
}

impl Symbols {
    /// A symbol for a name: the name itself, the name with a colon when it may be a keyword, or a
    /// number.
    pub(crate) fn assign(&mut self, name: &str) -> Symbol {
        let with_colon = format!("{name}:");
        let number = (1..).map(|n| format!("unnamed:{n}"));
        let candidates = [name.to_owned(), with_colon].into_iter().chain(number);
        for candidate in candidates {
            if usable(&candidate) && self.taken.insert(candidate.clone()) {
                return Symbol {
                    stands_in: candidate != name,
                    text: written(&candidate),
                };
            }
        }
        unreachable!("there are more numbers than names")
    }
}

fn is_word(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// True when BIRD takes the name for a symbol.
fn usable(name: &str) -> bool {
    if name.is_empty() || name.len() > MAX_LEN || name.starts_with(RESERVED) {
        return false;
    }
    if is_word(name) {
        return !may_be_keyword(name);
    }
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'))
}

/// BIRD's words are all lower case or all upper case. Of these, only words that certainly are none
/// pass.
fn may_be_keyword(word: &str) -> bool {
    let lower = word.contains(|c: char| c.is_ascii_lowercase());
    let upper = word.contains(|c: char| c.is_ascii_uppercase());
    if lower && upper || word.starts_with("calico_") {
        return false;
    }
    let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = stem.len() < word.len() && stem.chars().all(|c| c.is_ascii_lowercase());
    !numbered || NUMBERED_WORDS.contains(&stem)
}

fn written(name: &str) -> String {
    if is_word(name) {
        name.to_owned()
    } else {
        format!("'{name}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_bird_can_write_stay_as_they_are() {
        let mut symbols = Symbols::default();
        let mut text = |name: &str| symbols.assign(name).text;
        assert_eq!(text("Mesh_10_0_0_2"), "Mesh_10_0_0_2");
        assert_eq!(
            text("calico_export_to_bgp_peers"),
            "calico_export_to_bgp_peers"
        );
        assert_eq!(
            text("bgp_only-pods_importFilterV4"),
            "'bgp_only-pods_importFilterV4'"
        );
        assert_eq!(text("tor1"), "tor1");
    }

    #[test]
    fn names_that_bird_cannot_write_get_a_stand_in() {
        let mut symbols = Symbols::default();
        for (name, expected) in [
            ("table", "'table:'"),
            ("ipv4", "'ipv4:'"),
            ("caracal_x", "'unnamed:1'"),
            ("", "':'"),
            ("käse", "'unnamed:2'"),
            ("table:", "'table::'"),
            ("RTS_BGP", "'RTS_BGP:'"),
        ] {
            let symbol = symbols.assign(name);
            assert_eq!((symbol.text.as_str(), symbol.stands_in), (expected, true));
        }
        let long = "Mesh".repeat(17);
        assert_eq!(symbols.assign(&long).text, "'unnamed:3'");
        assert_eq!(symbols.assign("Mesh").text, "Mesh");
        assert_eq!(symbols.assign("Mesh").text, "'Mesh:'");
    }
}
