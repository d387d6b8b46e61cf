//! Rules about the shape of the code: imports of cores, circles, façades, sizes. Each rule has a
//! list of exceptions that can only shrink: an exception that is larger than what is there fails as
//! well.

use std::collections::{BTreeMap, BTreeSet};

use super::syntax::{Offer, Source, crates, product};
use super::{PRODUCT, sources};

/// Compares what was found with the exceptions: neither more nor fewer.
fn compare(rule: &str, found: &BTreeMap<String, usize>, exceptions: &[(&str, usize)]) {
    let allowed: BTreeMap<_, _> = exceptions
        .iter()
        .map(|(n, v)| ((*n).to_owned(), *v))
        .collect();
    let mut wrong = Vec::new();
    for (name, value) in found {
        match allowed.get(name) {
            None => wrong.push(format!("{name}: {value}")),
            Some(limit) if value > limit => {
                wrong.push(format!(
                    "{name}: {value}, more than the {limit} of its exception"
                ));
            }
            Some(limit) if value < limit => {
                wrong.push(format!("{name}: {value}; lower its exception of {limit}"));
            }
            Some(_) => {}
        }
    }
    for name in allowed.keys().filter(|n| !found.contains_key(*n)) {
        wrong.push(format!(
            "{name}: the exception is no longer needed, remove it"
        ));
    }
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

/// A core is what a crate consists of without its features.
#[test]
fn cores_have_no_clock_no_socket_no_file_and_no_task() {
    const CORES: [&str; 8] = [
        "model",
        "bgp",
        "ipam",
        "topologies",
        "templates",
        "felix-like-agent",
        "flannel",
        "console",
    ];
    const BANNED: [&str; 22] = [
        "tokio",
        "tokio_util",
        "etcd_client",
        "rtnetlink",
        "netlink_packet_core",
        "netlink_packet_route",
        "netlink_proto",
        "netlink_sys",
        "nix",
        "rustix",
        "libc",
        "socket2",
        "std::fs",
        "std::thread",
        "std::process",
        "std::env",
        "std::net::TcpStream",
        "std::net::TcpListener",
        "std::net::UdpSocket",
        "std::time::Instant::now",
        "std::time::SystemTime::now",
        "std::sync::Mutex",
    ];
    const LOCKS: [&str; 3] = ["std::sync::RwLock", "std::sync::mpsc", "std::sync::Condvar"];
    let mut read = 0;
    for folder in CORES {
        let (_, sources) = product().find(|(f, _)| *f == folder).expect("a crate");
        assert!(
            sources.iter().any(|s| !s.behind_feature),
            "{folder} has no core"
        );
        for source in sources.iter().filter(|s| !s.behind_feature && !s.is_test) {
            read += 1;
            for path in source.named.iter().map(|p| p.join("::")) {
                let banned = BANNED.iter().chain(&LOCKS);
                for word in banned {
                    let rest = path.strip_prefix(word);
                    assert!(
                        !rest.is_some_and(|r| r.is_empty() || r.starts_with("::")),
                        "{}: a core must not use {path}",
                        source.name
                    );
                }
            }
        }
    }
    assert!(read > 150, "only {read} files of cores: are they found?");
}

/// Of the model the speaker uses prefixes, the underlay, and a walk over sorted maps.
#[test]
fn the_speaker_knows_prefixes_and_nothing_else_of_calico() {
    const ALLOWED: [&str; 2] = ["net", "merge_join"];
    let of = |wanted| {
        let found = product().find(|(folder, _)| *folder == wanted);
        found.expect("a crate").1
    };
    let facade = &of("model")[0].aliases;
    let mut names = 0;
    for source in of("bgp").iter().filter(|s| !s.is_test) {
        let of_model = source.named.iter().filter(|p| p[0] == "caracal_model");
        for path in of_model {
            names += 1;
            let home = path.get(1).and_then(|name| facade.get(name));
            assert!(
                home.is_some_and(|home| ALLOWED.contains(&home[0].as_str())),
                "{}: the speaker may use the model's net and merge_join only: {}",
                source.name,
                path.join("::")
            );
        }
    }
    assert!(
        names > 50,
        "only {names} uses of the model: are they found?"
    );
}

/// Follows a path within a crate to the module that holds what it names, through re-exports.
fn home(path: &[String], modules: &BTreeMap<Vec<String>, &Source>) -> Option<Vec<String>> {
    let mut path = path.to_vec();
    for _ in 0..8 {
        if path.first().map(String::as_str) != Some("crate") {
            return None;
        }
        let inside = &path[1..];
        let deepest = (0..=inside.len())
            .rev()
            .map(|n| &inside[..n])
            .find(|m| modules.contains_key(*m))?;
        let source = modules[deepest];
        let Some(next) = inside.get(deepest.len()) else {
            return Some(deepest.to_vec());
        };
        match source.aliases.get(next) {
            Some(alias) if alias.first().is_some_and(|s| s == "crate") && *alias != path => {
                let rest = inside[deepest.len() + 1..].to_vec();
                path = alias.clone();
                path.extend(rest);
            }
            _ => return Some(deepest.to_vec()),
        }
    }
    None
}

/// Groups of rooms of one folder that need each other in a circle, largest first.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reach = |start: &String| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start.clone()];
        while let Some(name) = open.pop() {
            for next in edges.get(&name).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<_, _> = edges.keys().map(|n| (n.clone(), reach(n))).collect();
    let mut groups = BTreeSet::new();
    for (name, seen) in &reached {
        let both = seen
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|r| r.contains(name)));
        let group: BTreeSet<String> = both.cloned().collect();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    groups.into_iter().collect()
}

/// Rooms side by side in one folder form no circle. A folder and what lies in it may know each
/// other.
#[test]
fn no_folder_has_a_circle_of_files() {
    const EXCEPTIONS: [(&str, usize); 0] = [];
    let mut found = BTreeMap::new();
    for (folder, sources) in crates() {
        let sources: Vec<_> = sources.iter().filter(|s| !s.is_test).collect();
        let modules: BTreeMap<_, _> = sources.iter().map(|s| (s.module.clone(), *s)).collect();
        let mut rooms: BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for source in &sources {
            for path in &source.named {
                let Some(target) = home(path, &modules) else {
                    continue;
                };
                let common = source
                    .module
                    .iter()
                    .zip(&target)
                    .take_while(|(a, b)| a == b);
                let common = common.count();
                if let (Some(from), Some(to)) = (source.module.get(common), target.get(common)) {
                    let room = rooms.entry(target[..common].to_vec()).or_default();
                    room.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
        for (room, edges) in rooms {
            for circle in circles(&edges) {
                let names: Vec<_> = circle.iter().map(String::as_str).collect();
                let place = std::iter::once(folder).chain(room.iter().map(String::as_str));
                let place = place.collect::<Vec<_>>().join("/");
                found.insert(format!("{place}: {}", names.join(" ")), circle.len());
            }
        }
    }
    compare(
        "files that need each other in a circle",
        &found,
        &EXCEPTIONS,
    );
}

#[test]
fn functions_have_at_most_100_lines() {
    const EXCEPTIONS: [(&str, usize); 0] = [];
    let mut found = BTreeMap::new();
    let mut functions = 0;
    for (_, sources) in crates() {
        for source in sources.iter().filter(|s| !s.is_test) {
            // The wiring of a node is read as a table.
            let most = if source.name.starts_with("node/src/node/") {
                60
            } else {
                100
            };
            functions += source.functions.len();
            for (name, lines) in source.functions.iter().filter(|(_, lines)| *lines > most) {
                found.insert(format!("{} {name}", source.name), *lines);
            }
        }
    }
    assert!(functions > 3_000, "only {functions} functions were found");
    compare("functions that are too long", &found, &EXCEPTIONS);
}

#[test]
fn files_have_at_most_600_lines() {
    const EXCEPTIONS: [(&str, usize); 0] = [];
    let mut found = BTreeMap::new();
    for (_, sources) in crates() {
        for source in sources.iter().filter(|s| !s.is_test) {
            let lines = source.text.lines().count();
            if lines > 600 {
                found.insert(source.name.clone(), lines);
            }
        }
    }
    compare("files that are too long", &found, &EXCEPTIONS);
}

/// rustfmt holds code to 100 columns and leaves comments alone. Tables and addresses cannot be
/// broken.
#[test]
fn comments_have_at_most_100_columns() {
    const EXCEPTIONS: [(&str, usize); 0] = [];
    let mut found = BTreeMap::new();
    for folder in PRODUCT.iter().chain(&["tests", "fuzz"]) {
        for (name, text) in sources(folder) {
            for (number, line) in text.lines().enumerate() {
                let words = line.trim_start();
                let is_comment = words.starts_with("//");
                let breaks = !words.contains("://") && !words.contains("| ");
                if is_comment && breaks && line.chars().count() > 100 {
                    found.insert(format!("{name}:{}", number + 1), 1);
                }
            }
        }
    }
    compare("comments that are too wide", &found, &EXCEPTIONS);
}

/// Private modules, one façade of `pub use` at the root of each library, one path to each item.
#[test]
fn libraries_have_a_facade() {
    const EXCEPTIONS: [(&str, usize); 0] = [];
    let mut found = BTreeMap::new();
    for (folder, sources) in crates() {
        let lib = &sources[0];
        if !lib.name.ends_with("lib.rs") {
            continue;
        }
        let mut paths = BTreeMap::new();
        for source in sources {
            if !source.module.is_empty() {
                continue;
            }
            for offer in &source.offered {
                match offer {
                    Offer::Module(name) => {
                        found.insert(format!("{folder}: {name}"), 1);
                    }
                    Offer::Name(name) => {
                        let before = paths.insert(name.clone(), source.name.clone());
                        assert_eq!(before, None, "{}: {name} has two paths", source.name);
                    }
                    Offer::Everything => panic!("{}: offers everything", source.name),
                }
            }
        }
    }
    compare("public modules at the root of a crate", &found, &EXCEPTIONS);
}

/// Words of every source, by file.
fn words() -> Vec<(&'static str, BTreeSet<&'static str>)> {
    PRODUCT
        .iter()
        .chain(&["tests", "fuzz"])
        .flat_map(|folder| sources(folder))
        .map(|(name, text)| {
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            (name.as_str(), words.collect())
        })
        .collect()
}

/// The functions and constants of a façade are named outside of the crate. Types stand in
/// signatures too.
#[test]
fn what_is_offered_is_used() {
    const EXCEPTIONS: [(&str, usize); 0] = [];
    let everywhere = words();
    let mut found = BTreeMap::new();
    for (folder, all) in crates() {
        let lib = &all[0];
        if !lib.name.ends_with("lib.rs") {
            continue;
        }
        let inside = format!("{folder}/src/");
        for offer in &lib.offered {
            let Offer::Name(name) = offer else { continue };
            let second = name.chars().nth(1);
            if name.starts_with(char::is_uppercase) && second.is_some_and(char::is_lowercase) {
                continue;
            }
            let mut others = everywhere
                .iter()
                .filter(|(file, _)| !file.starts_with(&inside));
            if !others.any(|(_, words)| words.contains(name.as_str())) {
                found.insert(format!("{folder}: {name}"), 1);
            }
        }
    }
    compare("offered and used by nobody", &found, &EXCEPTIONS);
}

/// Each public method is named outside of its crate, or, in a core, by a module of the crate that
/// is behind a feature: its shell, or its help for tests. It goes by the name alone: a method that
/// shares its name with another one passes.
#[test]
fn public_methods_are_used_outside() {
    const EXCEPTIONS: [(&str, usize); 0] = [];
    let everywhere = words();
    let (mut found, mut methods) = (BTreeMap::new(), 0);
    for (folder, all) in crates() {
        if !all[0].name.ends_with("lib.rs") {
            continue;
        }
        let inside = format!("{folder}/src/");
        let shell: BTreeSet<&str> = all
            .iter()
            .filter(|s| s.behind_feature && !s.name.contains("tests"))
            .map(|s| s.name.as_str())
            .collect();
        for source in all.iter().filter(|s| !s.is_test) {
            let is_outside = |file: &str| {
                !file.starts_with(&inside) || (!source.behind_feature && shell.contains(file))
            };
            methods += source.methods.len();
            for (of, name) in &source.methods {
                let used = everywhere
                    .iter()
                    .any(|(file, words)| is_outside(file) && words.contains(name.as_str()));
                if !used {
                    found.insert(format!("{}: {of}::{name}", source.name), 1);
                }
            }
        }
    }
    assert!(methods > 500, "only {methods} public methods were found");
    compare("public methods for nobody", &found, &EXCEPTIONS);
}
