//! The page: files that are part of the program. A browser asks nobody but the node for anything.

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// Its media type.
    pub content: &'static str,
    packed: &'static [u8],
}

impl PageFile {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> String {
        unpacked(self.packed)
    }
}

/// A file as `build.rs` has packed it.
macro_rules! packed {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name))
    };
}

fn unpacked(packed: &[u8]) -> String {
    let octets = miniz_oxide::inflate::decompress_to_vec(packed);
    String::from_utf8(octets.unwrap_or_default()).unwrap_or_default()
}

/// The description of the API, OpenAPI 3.1.
#[must_use]
pub fn description() -> String {
    unpacked(packed!("openapi.json"))
}

/// Headers of every answer: scripts, styles and data come from the node alone, nothing frames the
/// page, and no text of the datastore can become a program.
pub const SECURITY_HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
];

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [(&str, PageFile); 10] = [
    ("/", file(HTML, packed!("index.html"))),
    ("/console.css", file(STYLE, packed!("console.css"))),
    ("/console.js", file(SCRIPT, packed!("console.js"))),
    ("/api.js", file(SCRIPT, packed!("api.js"))),
    ("/draw.js", file(SCRIPT, packed!("draw.js"))),
    ("/map.js", file(SCRIPT, packed!("map.js"))),
    ("/node.js", file(SCRIPT, packed!("node.js"))),
    ("/prefix.js", file(SCRIPT, packed!("prefix.js"))),
    ("/pools.js", file(SCRIPT, packed!("pools.js"))),
    ("/changes.js", file(SCRIPT, packed!("changes.js"))),
];

const fn file(content: &'static str, packed: &'static [u8]) -> PageFile {
    PageFile { content, packed }
}

/// The file of a path.
#[must_use]
pub fn page_file(path: &str) -> Option<PageFile> {
    let found = FILES.iter().find(|(name, _)| *name == path);
    found.map(|(_, file)| *file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::question::PATHS;

    /// 300 KiB is the most that a page may take; this one is sent as it is.
    #[test]
    fn the_page_is_small_and_asks_nobody_else() {
        let size: usize = FILES.iter().map(|(_, file)| file.text().len()).sum();
        assert!(size < 100 * 1024, "{size}");
        for (name, file) in FILES {
            let text = file.text();
            assert!(!text.is_empty(), "{name}");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let elsewhere = text.matches("://").count();
            let of_svg = text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(elsewhere, of_svg, "{name} names another place");
        }
    }

    #[test]
    fn what_the_page_imports_is_there() {
        for (name, file) in FILES {
            let text = file.text();
            let quoted = text.split('"').skip(1).step_by(2);
            for path in quoted.filter_map(|word| word.strip_prefix("./")) {
                assert!(page_file(&format!("/{path}")).is_some(), "{name}: {path}");
            }
        }
    }

    #[test]
    fn the_description_has_each_path_and_no_other() {
        let description: serde_json::Value = serde_json::from_str(&description()).expect("JSON");
        assert_eq!(description["openapi"], "3.1.0");
        let described = description["paths"].as_object().expect("paths");
        let described: BTreeSet<&str> = described.keys().map(String::as_str).collect();
        assert_eq!(described, BTreeSet::from(PATHS));
    }
}
