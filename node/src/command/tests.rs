//! docs/cli.md against the program.

use std::collections::BTreeMap;

use clap::error::ErrorKind;
use clap::{Command as Definition, CommandFactory, Parser};

use super::{Args, changes_something};
use crate::cli::hints::{HINTS, of};

/// A row of the table of commands.
struct Row {
    changes: bool,
    output: bool,
    watch: bool,
    codes: Vec<u8>,
    example: String,
}

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
    std::fs::read_to_string(path).expect("docs/cli.md")
}

fn rows() -> BTreeMap<String, Row> {
    let page = page();
    let (_, table) = page.split_once("## Commands").expect("a table of commands");
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let yes = |cell: &str| match cell {
        "yes" => true,
        "" => false,
        other => panic!("docs/cli.md: {other:?} is neither `yes` nor empty"),
    };
    let lines = table.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells = cells(line);
        let [name, changes, output, watch, codes, example] = &cells[..] else {
            panic!("docs/cli.md: six cells are needed: {line}")
        };
        let codes = codes.split(", ").filter(|code| !code.is_empty());
        let row = Row {
            changes: yes(changes),
            output: yes(output),
            watch: yes(watch),
            codes: codes.map(|code| code.parse().expect("a code")).collect(),
            example: example.trim_matches('`').to_owned(),
        };
        (name.trim_matches('`').to_owned(), row)
    };
    lines.map(row).collect()
}

/// Every command that does something, with its path: `bgp routes`.
fn commands() -> BTreeMap<String, Definition> {
    fn walk(path: &str, command: &Definition, into: &mut BTreeMap<String, Definition>) {
        if !command.is_subcommand_required_set() {
            into.insert(path.to_owned(), command.clone());
        }
        for inner in command.get_subcommands().filter(|c| c.get_name() != "help") {
            let path = format!("{path} {}", inner.get_name());
            walk(path.trim(), inner, into);
        }
    }
    let mut found = BTreeMap::new();
    walk("", &Args::command(), &mut found);
    found
}

#[test]
fn every_command_has_a_row_in_the_documentation() {
    let (rows, commands) = (rows(), commands());
    let missing: Vec<_> = commands.keys().filter(|c| !rows.contains_key(*c)).collect();
    let gone: Vec<_> = rows.keys().filter(|r| !commands.contains_key(*r)).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "docs/cli.md needs rows for {missing:?}, and has rows of no command: {gone:?}"
    );
}

#[test]
fn rows_say_which_flags_a_command_has() {
    let commands = commands();
    for (name, row) in rows() {
        let Some(command) = commands.get(&name) else {
            continue;
        };
        let has = |flag: &str| command.get_arguments().any(|a| a.get_id() == flag);
        assert_eq!(row.output, has("output"), "docs/cli.md, {name}: -o");
        assert_eq!(row.watch, has("watch"), "docs/cli.md, {name}: --watch");
    }
}

#[test]
fn examples_are_valid_and_rows_say_what_changes_something() {
    for (name, row) in rows() {
        let words = shell_words(&row.example);
        let args = Args::try_parse_from(&words)
            .unwrap_or_else(|error| panic!("docs/cli.md, {name}: {}: {error}", row.example));
        assert!(
            words[1..].join(" ").starts_with(&name),
            "docs/cli.md, {name}: {}",
            row.example
        );
        assert_eq!(
            row.changes,
            changes_something(&args.command),
            "docs/cli.md, {name}: changes"
        );
    }
}

#[test]
fn exit_codes_of_rows_are_in_the_table_of_codes() {
    let page = page();
    for (name, row) in rows() {
        for code in row.codes {
            assert!(
                page.contains(&format!("\n| {code} | ")),
                "docs/cli.md, {name}: exit code {code} is not explained"
            );
        }
    }
}

/// Words of an example; quotes stand around whole words without blanks.
fn shell_words(example: &str) -> Vec<String> {
    let words = example.split_whitespace();
    words
        .map(|word| word.trim_matches('\'').to_owned())
        .collect()
}

/// A command with names in the place of its placeholders.
fn filled(command: &str) -> Vec<String> {
    let fill = |word: String| match word.as_str() {
        "ADDRESS" => "10.0.0.1".to_owned(),
        "PREFIX" => "10.244.0.0/26".to_owned(),
        "N" => "2".to_owned(),
        _ => word,
    };
    shell_words(command).into_iter().map(fill).collect()
}

fn assert_is_command(place: &str, command: &str) {
    if let Err(error) = Args::try_parse_from(filled(command)) {
        panic!("{place}: {command}: {error}");
    }
}

/// The tables for users of calicoctl and of birdc.
#[test]
fn commands_of_the_first_pages_are_valid() {
    for page in ["calico-operator", "bird-user"] {
        let path = format!("{}/../docs/start/{page}.md", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a page");
        let rows = text.lines().filter_map(|line| line.rsplit_once(" | "));
        let cells = rows.filter(|(left, _)| left.starts_with("| `"));
        let commands = cells.flat_map(|(_, right)| right.split('`').skip(1).step_by(2));
        let commands: Vec<&str> = commands.filter(|c| c.starts_with("caracal ")).collect();
        assert!(commands.len() > 10, "{page}: {commands:?}");
        for command in commands {
            assert_is_command(page, command);
        }
    }
}

#[test]
fn what_is_called_otherwise_elsewhere_has_a_hint() {
    for (theirs, here) in HINTS {
        let typed: Vec<String> = theirs.split(' ').map(str::to_owned).collect();
        let line = [vec!["caracal".to_owned()], typed.clone()].concat();
        let error = Args::try_parse_from(line).expect_err("it is a command here");
        assert_eq!(error.kind(), ErrorKind::InvalidSubcommand, "{theirs}");
        let hint = of(&typed).expect("a hint");
        for command in here.split("; ") {
            assert!(hint.contains(&format!("`{command}`")), "{hint}");
            assert_is_command(theirs, command);
        }
    }
    let words = ["datastore", "migrate", "import", "-f", "x"].map(str::to_owned);
    assert!(of(&words).is_some_and(|hint| hint.contains("datastore import -f FILE")));
    assert_eq!(of(&["get".to_owned()]), None);
}
