//! The file of a standalone speaker.

use std::path::{Path, PathBuf};

use caracal_templates::File;

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

pub(crate) fn read(path: &Path) -> Result<File, FileError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| FileError::Read(path.to_owned(), error))?;
    parse(&text, &path.display().to_string())
}

fn parse(text: &str, name: &str) -> Result<File, FileError> {
    caracal_templates::parse_file(text).map_err(|error| FileError::Invalid(error.report(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_its_place() {
        let FileError::Invalid(report) =
            parse("router id 10.0.0.1;\nprotocol bpg x {\n", "s.conf").unwrap_err()
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
            parse(example, "docs/speaker.md").unwrap();
        }
    }

    #[test]
    fn a_missing_file_is_not_an_invalid_one() {
        let error = read(Path::new("/nonexistent/speaker.conf")).unwrap_err();
        assert!(matches!(error, FileError::Read(..)));
        assert_eq!(error.to_string(), "cannot read /nonexistent/speaker.conf");
    }
}
