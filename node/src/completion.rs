//! Completion while a command is typed. `caracal completion SHELL` prints what a shell needs to
//! ask this program at each Tab; the answer has commands and flags, and the names that exist at
//! that moment: resources from the datastore, peers of the running daemon, labs.
//!
//! What cannot be had in [`PATIENCE`] is not offered, and nothing is printed about it.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use caracal_datastore::Datastore;
use caracal_model::{Kind, ResourceType};
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use serde_json::Value;

use crate::admin::{Request, ask};
use crate::config::run_dir;
use crate::stored::names_of;

/// Set by the script of [`script`] to the name of the shell that asks.
const VARIABLE: &str = "_CARACAL_COMPLETE";

/// Longest wait of a person at the keyboard.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Prints what a shell reads to ask this program for completions.
pub(crate) fn script(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    Shells::builtins()
        .completer(&shell.to_string())
        .ok_or_else(|| anyhow::anyhow!("no completions for {shell}"))?
        .write_registration(VARIABLE, "caracal", "caracal", "caracal", &mut script)?;
    print!("{}", String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// Answers the shell that asks for completions of a program; false when none does.
pub(crate) fn answer(program: fn() -> clap::Command) -> bool {
    CompleteEnv::with_factory(program)
        .var(VARIABLE)
        .try_complete(std::env::args_os(), None)
        .unwrap_or_else(|error| error.exit())
}

/// Kinds of resources; behind `KIND/` the names of that kind.
pub(crate) fn kinds() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let Some(typed) = typed.to_str() else {
            return Vec::new();
        };
        let candidates = match typed.split_once('/') {
            Some((kind, _)) => ResourceType::named(kind)
                .map(resource_names)
                .unwrap_or_default()
                .into_iter()
                .map(|name| format!("{kind}/{name}"))
                .collect(),
            None => ResourceType::all()
                .map(|kind| kind.short().to_owned())
                .collect::<Vec<_>>(),
        };
        let fits = |name: &String| name.starts_with(typed);
        candidates
            .into_iter()
            .filter(fits)
            .map(CompletionCandidate::new)
            .collect()
    })
}

/// Names of the kind that was typed before.
pub(crate) fn names() -> ArgValueCandidates {
    candidates(|| {
        let kind = kind_among(std::env::args_os());
        kind.map(resource_names).unwrap_or_default()
    })
}

/// Names of one kind.
pub(crate) fn names_of_kind(kind: Kind) -> ArgValueCandidates {
    candidates(move || resource_names(ResourceType::Resource(kind)))
}

/// Peers of the daemon on this machine.
pub(crate) fn peers() -> ArgValueCandidates {
    candidates(|| in_time(peer_names))
}

/// Labs on this machine.
pub(crate) fn labs() -> ArgValueCandidates {
    candidates(|| {
        #[cfg_attr(
            not(feature = "lab"),
            expect(unused_mut, reason = "no labs in this program")
        )]
        let mut listed = Vec::new();
        #[cfg(feature = "lab")]
        let _code = caracal_lab::lab_list(&mut listed);
        let listed = String::from_utf8_lossy(&listed);
        listed.lines().map(str::to_owned).collect()
    })
}

fn candidates(list: impl Fn() -> Vec<String> + Send + Sync + 'static) -> ArgValueCandidates {
    ArgValueCandidates::new(move || {
        let names = list().into_iter();
        names.map(CompletionCandidate::new).collect::<Vec<_>>()
    })
}

/// The first word of a command line that is the name of a kind. What the shell typed comes behind
/// `--`, with the program's name and the command first.
fn kind_among(words: impl Iterator<Item = OsString>) -> Option<ResourceType> {
    let mut typed = words.skip_while(|word| word != "--").skip(3);
    typed.find_map(|word| ResourceType::named(word.to_str()?).ok())
}

fn resource_names(kind: ResourceType) -> Vec<String> {
    in_time(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async { names_of(&Datastore::from_env()?, kind).await })
    })
}

/// Names, addresses and BGPPeers of the peers.
fn peer_names() -> anyhow::Result<Vec<String>> {
    let status = ask(&run_dir(), &Request::Status)?;
    let peers = status["peers"].as_array().map_or(&[][..], Vec::as_slice);
    let words = |peer: &Value| {
        let known = ["name", "address", "bgpPeer"].map(|field| peer[field].as_str());
        let known = known.into_iter().flatten();
        known.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut words: Vec<String> = peers.iter().flat_map(words).collect();
    words.sort_unstable();
    words.dedup();
    Ok(words)
}

/// What a look-up yields within [`PATIENCE`]; it is left behind when it takes longer.
fn in_time(look: impl FnOnce() -> anyhow::Result<Vec<String>> + Send + 'static) -> Vec<String> {
    let (found, answer) = mpsc::sync_channel(1);
    std::thread::spawn(move || found.send(look()));
    match answer.recv_timeout(PATIENCE) {
        Ok(Ok(names)) => names,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_in(line: &str) -> Option<ResourceType> {
        kind_among(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_kind_is_the_word_after_the_command_also_behind_flags() {
        let pool = Some(ResourceType::Resource(Kind::IpPool));
        assert_eq!(kind_in("caracal -- caracal get ippools "), pool);
        assert_eq!(kind_in("caracal -- caracal delete --force IPPool p"), pool);
        assert_eq!(kind_in("caracal -- caracal get nonsense "), None);
        let node = Some(ResourceType::Resource(Kind::Node));
        assert_eq!(kind_in("caracal -- caracal label node a ippool"), node);
    }

    #[test]
    fn kinds_are_offered_by_their_short_names() {
        let offered = kinds().complete(OsStr::new("ipp"));
        assert_eq!(offered, [CompletionCandidate::new("ippool")]);
    }

    #[test]
    fn each_shell_has_a_script() {
        for shell in <clap_complete::Shell as clap::ValueEnum>::value_variants() {
            let known = Shells::builtins();
            assert!(known.completer(&shell.to_string()).is_some(), "{shell}");
        }
    }
}
