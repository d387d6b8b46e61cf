//! Whom a command asks: the node that runs here, over its admin socket, or with `--node` another
//! one, over its console. The answers are the same.

use std::pin::Pin;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::Datastore;
use serde_json::Value;

use super::{open_store, run_dir};
use crate::admin::{self, Request};
use crate::args::NodeArg;
use crate::config::console::ConsoleFiles;
use crate::config::{Env, environment};
use crate::exit::ExitError;
use crate::others::{self, NoAnswer, Place, routes_path, value_path};

/// How often a console that has no time is asked again, a second later each time.
const TRIES: usize = 10;
const AGAIN: Duration = Duration::from_secs(1);

/// Whom a command asks.
#[derive(Clone, Debug)]
pub(super) enum Whom {
    /// The node or speaker of this run directory.
    Here,
    /// The node of that name.
    Node(String),
}

impl From<&NodeArg> for Whom {
    fn from(argument: &NodeArg) -> Self {
        argument.node.clone().map_or(Self::Here, Self::Node)
    }
}

impl Whom {
    /// Asks for a value.
    pub(super) fn ask(&self, request: &Request) -> anyhow::Result<Value> {
        let name = match self {
            Self::Here => return admin::ask(&run_dir(), request),
            Self::Node(name) => name,
        };
        let (path, part) = value_path(request).with_context(|| only_here(name))?;
        let mut value = on_one_thread(Box::pin(async {
            Other::find(&open_store()?, name).await?.value(&path).await
        }))?;
        Ok(match part {
            Some(part) => value[part].take(),
            None => value,
        })
    }

    /// Asks for routes. Each is given as its line of JSON; the result is their number.
    pub(super) fn ask_rows(
        &self,
        request: &Request,
        mut each: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        let name = match self {
            Self::Here => return admin::ask_rows(&run_dir(), request, each),
            Self::Node(name) => name,
        };
        let count = on_one_thread(Box::pin(async {
            let other = Other::find(&open_store()?, name).await?;
            let (mut count, mut after): (u64, Option<String>) = (0, None);
            loop {
                let path = routes_path(request, after.as_deref());
                let page = other.value(&path.with_context(|| only_here(name))?).await?;
                for route in page["routes"].as_array().into_iter().flatten() {
                    each(&route.to_string())?;
                    count += 1;
                }
                after = page["next"].as_str().map(str::to_owned);
                if after.is_none() {
                    return Ok(count.into());
                }
            }
        }))?;
        Ok(count.as_u64().unwrap_or_default())
    }
}

/// A node that can be asked.
pub(super) struct Other {
    place: Place,
    files: ConsoleFiles,
}

impl Other {
    pub(super) async fn find(store: &Datastore, name: &str) -> anyhow::Result<Self> {
        let place = others::find(store, name).await.map_err(ExitError::from)?;
        let variables = environment();
        let files = ConsoleFiles::from_env(&Env::new(&variables));
        Ok(Self { place, files })
    }

    /// The answer to a question, when the console has time for it.
    pub(super) async fn value(&self, path: &str) -> anyhow::Result<Value> {
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            match others::ask(&self.place, path, &self.files).await {
                Err(NoAnswer::Said { status, .. }) if status == 429 && tries < TRIES => {
                    tokio::time::sleep(AGAIN).await;
                }
                answer => break answer.map_err(ExitError::from)?,
            }
        };
        serde_json::from_slice(&answer)
            .with_context(|| format!("the answer of node {} is not valid", self.place.node))
    }
}

/// Work of a command that asks others.
type Asking<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Value>> + 'a>>;

/// Runs it. One type for all, so that the program has the runtime's loop once.
pub(super) fn on_one_thread(work: Asking<'_>) -> anyhow::Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

fn only_here(name: &str) -> String {
    format!("this is answered on the node alone; run the command on {name}")
}
