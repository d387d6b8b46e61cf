//! `caracal render`: configuration files for routing daemons, from the datastore or from files,
//! once or whenever something changes.

pub(super) mod input;
mod install;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use caracal_model::{InsertEach, NodeName, Snapshot};
use caracal_templates::{
    Daemon, Options, Rendered, Role, Set, TemplateError, Templates, Tunnelled,
};
use caracal_topologies::{PlanOptions, RouterError, plan, plan_calico, router, tunnelled_pools};

use self::input::{Data, Source};
use self::install::Installer;
use crate::args::{RenderArgs, Style};
use crate::config::{self, Env};
use crate::exit::{ExitError, REFUSED, not_found};

/// Interval of reading files again with `--watch`. The datastore tells of changes itself.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &RenderArgs) -> anyhow::Result<ExitCode> {
    let mut source = Source::open(&args.input, args.node.as_deref(), &args.affinity)?;
    if args.watch {
        return watch(args, &mut source);
    }
    let files = files(args, &source.read()?)?;
    let Some(folder) = &args.out else {
        print(&files);
        return Ok(ExitCode::SUCCESS);
    };
    let mut installer = Installer::new(folder, args);
    for path in installer.install(&files)? {
        eprintln!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Goes on until it is killed. What cannot be rendered or is refused by the check is reported once
/// and leaves the last good files as they are.
fn watch(args: &RenderArgs, source: &mut Source) -> anyhow::Result<ExitCode> {
    let folder = args.out.as_ref().context("--watch needs --out DIR")?;
    let mut installer = Installer::new(folder, args);
    let mut last_fault = String::new();
    loop {
        let result = source
            .read()
            .and_then(|data| files(args, &data))
            .and_then(|files| installer.install(&files));
        match result {
            Ok(changed) => {
                last_fault.clear();
                for path in changed {
                    eprintln!("{}", path.display());
                }
            }
            Err(e) => {
                let fault = format!("{e:#}");
                if fault != last_fault {
                    eprintln!("caracal: the last good files stay in place: {fault}");
                }
                last_fault = fault;
            }
        }
        source.wait(INTERVAL);
    }
}

/// Standard output: one file as it is, several under their names.
fn print(files: &[Rendered]) {
    for file in files {
        if files.len() > 1 {
            println!("==> {} <==", file.file);
        }
        print!("{}", file.text);
    }
}

fn files(args: &RenderArgs, data: &Data) -> anyhow::Result<Vec<Rendered>> {
    let Data { snapshot, .. } = data;
    let vars = std::env::vars().insert_each();
    let env = Env::new(&vars);
    let most = config::max_prefixes(&env)?;
    let options = PlanOptions {
        router_id: config::router_id(&env)?.choice(),
        // The view says what the node's own speaker does, with its default. Another daemon has the
        // limits that somebody set.
        max_prefixes: match args.style {
            Style::View => Some(most.unwrap_or_default()),
            Style::Bird2 | Style::Calico | Style::Frr | Style::Bird2Tor => most,
        },
        show_passwords: args.show_passwords || args.out.is_some(),
        secrets: data.secrets.clone(),
        ..PlanOptions::default()
    };
    match args.style {
        Style::Frr | Style::Bird2Tor => {
            let set = if args.style == Style::Frr {
                Set::Frr
            } else {
                Set::Bird2Tor
            };
            let address = args.peer.context(
                "this style is for a router outside the cluster: give its address with --peer",
            )?;
            let context = router(snapshot, address, &options).map_err(|error| match error {
                RouterError::Unknown { .. } => not_found(error.to_string()),
                error => error.into(),
            })?;
            render(args, set, &context)
        }
        Style::Calico => {
            let node = node(args, snapshot)?;
            let planned = plan_calico(snapshot, &node, &options);
            report(&planned.problems);
            render(args, Set::Calico, &planned.context)
        }
        Style::Bird2 | Style::View => {
            let node = node(args, snapshot)?;
            let planned = plan(snapshot, &node, &options);
            report(&planned.problems);
            let role = if args.style == Style::Bird2 {
                Role::Daemon(Daemon {
                    tunnelled: tunnelled(snapshot, &node),
                    rejected: planned.kernel.services.clone(),
                    reachable_by: planned.kernel.reachable_by.clone(),
                    ignored_interfaces: planned.kernel.ignored_interfaces.clone(),
                })
            } else {
                Role::View
            };
            let options = Options {
                role,
                show_passwords: options.show_passwords,
                ..Options::default()
            };
            let context = caracal_templates::Context::new(&planned.config, &options)?;
            render(args, Set::Bird2, &context)
        }
    }
}

/// Problems that were shown already are not shown again by `--watch`: the text is the same.
fn report(problems: &[caracal_model::Problem]) {
    use std::sync::{LazyLock, Mutex};
    static SHOWN: LazyLock<Mutex<Vec<caracal_model::Problem>>> = LazyLock::new(Mutex::default);
    let Ok(mut shown) = SHOWN.lock() else { return };
    if *shown == problems {
        return;
    }
    for problem in problems {
        eprintln!("{}: {}", problem.subject, problem.reason);
    }
    problems.clone_into(&mut shown);
}

fn node(args: &RenderArgs, snapshot: &Snapshot) -> anyhow::Result<NodeName> {
    let name = args
        .node
        .as_deref()
        .context("which node? give --node NAME or set NODENAME")?;
    let node = NodeName::from(name);
    if !snapshot.nodes.contains_key(&node) {
        let known: Vec<&str> = snapshot.nodes.keys().map(NodeName::as_str).collect();
        return Err(not_found(format!(
            "there is no Node {node}; known: {}",
            known.join(", ")
        )));
    }
    Ok(node)
}

fn render(
    args: &RenderArgs,
    set: Set,
    context: &impl serde::Serialize,
) -> anyhow::Result<Vec<Rendered>> {
    let mut templates = Templates::shipped(set);
    for (path, text) in user_templates(args.templates.as_deref())? {
        templates
            .add(&path.display().to_string(), &text)
            .map_err(|e| fault(&e))?;
    }
    templates.files(context).map_err(|e| fault(&e))
}

fn fault(error: &TemplateError) -> anyhow::Error {
    ExitError::new(REFUSED, error.report()).into()
}

/// The templates of a folder, by path.
fn user_templates(folder: Option<&Path>) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut texts = BTreeMap::new();
    let Some(folder) = folder else {
        return Ok(texts);
    };
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "hbs") {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("reading {}", path.display()))?;
            texts.insert(path, text);
        }
    }
    Ok(texts)
}

/// Pools whose routes a BIRD daemon cannot program.
fn tunnelled(snapshot: &Snapshot, node: &NodeName) -> Vec<Tunnelled> {
    tunnelled_pools(snapshot, node)
        .into_iter()
        .map(|pool| Tunnelled {
            prefix: pool.prefix,
            encap: pool.encap,
            direct_within: pool.direct_within,
        })
        .collect()
}
