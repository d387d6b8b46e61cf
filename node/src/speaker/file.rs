//! The file of a standalone speaker.

use std::path::{Path, PathBuf};

use caracal_bgp::{RouterId, choose_router_id};
use caracal_templates::{File, Learned, ParseErrors, Surroundings, Texts};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// It says something that cannot be understood; the report shows line, column, the line itself,
    /// what was found and what was expected.
    #[error("{0}")]
    Invalid(String),
}

/// The file with all that it includes, and what it says with these entries of RPKI caches. Where it
/// leaves the router id to this machine's addresses, the one in force stays as long as the machine
/// has it.
pub(crate) fn read(
    path: &Path,
    in_force: Option<RouterId>,
    learned: &Learned,
) -> Result<(Texts, File), FileError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| FileError::Read(path.to_owned(), error))?;
    parse(&text, &path.display().to_string(), in_force, learned)
}

fn parse(
    text: &str,
    name: &str,
    in_force: Option<RouterId>,
    learned: &Learned,
) -> Result<(Texts, File), FileError> {
    let invalid = |errors: ParseErrors| FileError::Invalid(errors.report(name));
    let texts = Texts::new(name, text, &mut included).map_err(invalid)?;
    let kept = in_force.map(|id| id.0);
    let file = texts.read(Surroundings {
        router_id: &|patterns| choose_router_id(patterns, kept),
        learned,
    });
    Ok((texts, file.map_err(invalid)?))
}

/// The same texts with other entries. The router id stays, whatever the machine has now.
pub(crate) fn learn(
    texts: &Texts,
    path: &Path,
    in_force: RouterId,
    learned: &Learned,
) -> Result<File, FileError> {
    let file = texts.read(Surroundings {
        router_id: &|_| Ok(in_force.0),
        learned,
    });
    file.map_err(|errors| FileError::Invalid(errors.report(&path.display().to_string())))
}

/// The files of a line `include "PATTERN";` with their texts, by name: beside the file with the
/// line, unless the pattern begins at the root. A pattern may match nothing; a name may not.
fn included(file: &str, pattern: &str) -> Result<Vec<(String, String)>, String> {
    let folder = Path::new(file).parent().unwrap_or_else(|| Path::new(""));
    let mut paths = vec![PathBuf::from(folder)];
    for part in Path::new(pattern).components() {
        let name = part.as_os_str().to_string_lossy();
        if !name.contains(['*', '?']) {
            paths.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let mut found = Vec::new();
        for path in &paths {
            let shown = if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            };
            for entry in std::fs::read_dir(shown).into_iter().flatten().flatten() {
                let entry = entry.file_name();
                let text = entry.to_string_lossy();
                // Hidden files are asked for by their point.
                let hidden = text.starts_with('.') && !name.starts_with('.');
                if !hidden && caracal_bgp::glob(&name, &text) {
                    found.push(path.join(&entry));
                }
            }
        }
        paths = found;
    }
    paths.sort();
    let is_pattern = pattern.contains(['*', '?']);
    let mut texts = Vec::new();
    for path in paths {
        if is_pattern && !path.is_file() {
            continue;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => texts.push((path.display().to_string(), text)),
            Err(error) => {
                return Err(format!(
                    "a file that can be read ({}: {error})",
                    path.display()
                ));
            }
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, name: &str) -> Result<File, FileError> {
        parse(text, name, None, &Learned::new()).map(|(_, file)| file)
    }

    fn read(path: &Path) -> Result<File, FileError> {
        super::read(path, None, &Learned::new()).map(|(_, file)| file)
    }

    #[test]
    fn an_error_shows_its_place() {
        let FileError::Invalid(report) =
            parsed("router id 10.0.0.1;\nprotocol bpg x {\n", "s.conf").unwrap_err()
        else {
            panic!("readable");
        };
        assert!(report.contains("s.conf:2:10"), "{report}");
        assert!(report.contains("found \"bpg\""), "{report}");
        assert!(report.contains("expected \"bgp\""), "{report}");
    }

    #[test]
    fn the_examples_of_the_reference_are_valid() {
        let reference = include_str!("../../../docs/speaker.md");
        let examples: Vec<&str> = reference
            .split("```bird\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert!(!examples.is_empty());
        for example in examples {
            parsed(example, "docs/speaker.md").unwrap();
        }
    }

    #[test]
    fn files_include_others_beside_them() {
        let folder = std::env::temp_dir().join(format!("caracal-include-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("peers")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let peer = |name: &str, n: u8| {
            format!("protocol bgp {name} {{ local as OURS; neighbor 10.0.0.{n} as OURS; ipv4; }}")
        };
        write(
            "main.conf",
            "router id 10.0.0.1;\ninclude \"our.inc\";\ninclude \"peers/*.conf\";\ninclude \"none/*\";\n",
        );
        write("our.inc", "define OURS = 64512;");
        write("peers/b.conf", &peer("b", 3));
        write("peers/a.conf", &peer("a", 2));
        write("peers/.c.conf", "nonsense");
        let file = read(&folder.join("main.conf")).unwrap();
        assert_eq!(file.speaker.peers.len(), 2);
        write("peers/b.conf", "\nprotocol bpg b { }\nrouter id 1;\n");
        let FileError::Invalid(report) = read(&folder.join("main.conf")).unwrap_err() else {
            panic!("readable");
        };
        // All errors, each with its own file and line.
        assert!(report.contains("peers/b.conf:2:10"), "{report}");
        assert!(report.contains("peers/b.conf:3:11"), "{report}");
        write(
            "main.conf",
            "router id 10.0.0.1;\n include \"missing.inc\";\n",
        );
        let FileError::Invalid(report) = read(&folder.join("main.conf")).unwrap_err() else {
            panic!("readable");
        };
        assert!(report.contains("main.conf:2:11"), "{report}");
        assert!(report.contains("missing.inc"), "{report}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn without_an_address_in_the_file_a_list_says_which_of_the_machine_is_the_router_id() {
        let peer = "protocol bgp a { local as 64512; neighbor 10.0.0.2 as 64512; ipv4; }\n";
        let text = format!("router id from \"nothing*\", -\"lo\";\n{peer}");
        let FileError::Invalid(report) = parsed(&text, "s.conf").unwrap_err() else {
            panic!("readable");
        };
        assert!(report.contains("s.conf:1:16"), "{report}");
        assert!(report.contains("lo 127.0.0.1 (loopback)"), "{report}");
        assert!(report.contains("or \"router id ADDRESS;\""), "{report}");
    }

    #[test]
    fn a_missing_file_is_not_an_invalid_one() {
        let error = read(Path::new("/nonexistent/speaker.conf")).unwrap_err();
        assert!(matches!(error, FileError::Read(..)));
        assert_eq!(error.to_string(), "cannot read /nonexistent/speaker.conf");
    }
}
