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

    /// Octets of what a browser fetches for the first screen; docs/console.md says so.
    const FIRST_SCREEN: usize = 48 * 1024;
    /// And of all places of the page.
    const PAGE: usize = 64 * 1024;

    /// Files that a file names as it is loaded: by an attribute of HTML, or by an import of a
    /// script. `import(…)` comes later.
    fn loads(file: &PageFile) -> Vec<String> {
        let text = file.text();
        let marks: &[&str] = match file.content {
            HTML => &["src=\"", "rel=\"stylesheet\" href=\""],
            _ => &["from \"./"],
        };
        let mut named = Vec::new();
        for mark in marks {
            let rest = text.split(mark).skip(1);
            let paths = rest.filter_map(|rest| rest.split('"').next());
            named.extend(paths.map(|path| format!("/{path}")));
        }
        named
    }

    #[test]
    fn the_page_is_as_small_as_the_documentation_says() {
        let (mut seen, mut next) = (BTreeSet::new(), vec!["/".to_owned()]);
        while let Some(path) = next.pop() {
            let file = page_file(&path).unwrap_or_else(|| panic!("no {path}"));
            if seen.insert(path) {
                next.extend(loads(&file));
            }
        }
        assert!(seen.contains("/map.js") && seen.contains("/console.css"));
        assert!(
            !seen.contains("/changes.js"),
            "it is fetched when somebody opens it"
        );
        let size = |path: &str| page_file(path).map_or(0, |file| file.text().len());
        let first: usize = seen.iter().map(|path| size(path)).sum();
        assert!(first <= FIRST_SCREEN, "{first} octets");
        let all: usize = FILES.iter().map(|(path, _)| size(path)).sum();
        assert!(all <= PAGE, "{all} octets");
        let documented = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/console.md");
        let documented = std::fs::read_to_string(documented).expect("the documentation");
        for limit in [FIRST_SCREEN, PAGE] {
            let words = format!("{} KiB", limit / 1024);
            assert!(documented.contains(&words), "{words}");
        }
    }

    #[test]
    fn the_page_asks_nobody_else_and_makes_no_html() {
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
