//! `caracal get`.

use std::cell::RefCell;
use std::process::ExitCode;

use caracal_datastore::Store;
use caracal_model::{API_VERSION, KeyRange, ResourceType, Schema, Selector};
use serde_json::{Value, json};

use super::args::GetArgs;
use super::form::Form;
use super::shape::{self, Shape};
use super::{columns, kind_and_names};
use crate::args::Output;
use crate::cli::{open_store, output};
use crate::exit::{DEGRADED, NOT_FOUND};
use crate::stored::{found, prefix};

/// A question, once its words are understood.
struct Question<'a> {
    args: &'a GetArgs,
    targets: Vec<ResourceType>,
    names: Vec<String>,
    selector: Option<Selector>,
}

/// What was found, and what is to be said of it.
struct Answer {
    /// The resources as a list.
    list: Value,
    complaints: Vec<String>,
    code: u8,
}

pub(super) fn run(args: &GetArgs) -> anyhow::Result<ExitCode> {
    let question = match Question::new(args) {
        Ok(question) => question,
        Err(code) => return Ok(code),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let store = runtime.block_on(async { open_store() })?;
    let ask = || runtime.block_on(question.answer(&store));
    if args.watch {
        return watch(&question, ask);
    }
    let answer = ask()?;
    let code = question.show(&answer.list)?;
    complain(&answer.complaints);
    Ok(match answer.code {
        0 => code,
        code => ExitCode::from(code),
    })
}

fn complain(complaints: &[String]) {
    for complaint in complaints {
        eprintln!("caracal: {complaint}");
    }
}

/// Prints again whenever the resources differ. What cannot be read is told once.
fn watch(
    question: &Question<'_>,
    ask: impl Fn() -> anyhow::Result<Answer>,
) -> anyhow::Result<ExitCode> {
    let form = match question.args.output {
        Shape::Form(form) => form.output(),
        _ => Output::Table,
    };
    let told = RefCell::new(Vec::new());
    let ask = || {
        let Answer {
            mut list,
            complaints,
            ..
        } = ask()?;
        // That of the whole datastore, in which other things change.
        list["metadata"] = json!({});
        if *told.borrow() != complaints {
            complain(&complaints);
            *told.borrow_mut() = complaints;
        }
        Ok(list)
    };
    output::watch(form, ask, |list| question.show(list))
}

impl<'a> Question<'a> {
    fn new(args: &'a GetArgs) -> Result<Self, ExitCode> {
        let kinds: Vec<&str> = args.kind.split(',').collect();
        let (targets, names) = match &kinds[..] {
            [one] => kind_and_names(one, &args.names).map(|(one, names)| (vec![one], names))?,
            _ if !args.names.is_empty() => {
                return Err(super::usage(
                    "names go with one kind; ask for one at a time",
                ));
            }
            several => {
                let mut targets = Vec::new();
                for kind in several {
                    let target = ResourceType::named(kind);
                    let target = target.map_err(|reason| super::usage(&reason))?;
                    if !targets.contains(&target) {
                        targets.push(target);
                    }
                }
                (targets, Vec::new())
            }
        };
        let selector = args.selector.as_deref().map(Selector::parse).transpose();
        Ok(Self {
            args,
            targets,
            names,
            selector: selector.map_err(|error| super::usage(&format!("--selector: {error}")))?,
        })
    }

    /// Where resources of a kind are looked for; `None`: everywhere.
    fn namespace(&self, target: ResourceType) -> Option<String> {
        let namespaced = matches!(target, ResourceType::Resource(kind) if kind.is_namespaced());
        (namespaced && !self.args.all_namespaces).then(|| self.args.space.or_default())
    }

    async fn answer<S: Store>(&self, store: &S) -> anyhow::Result<Answer> {
        let prefix =
            |target: &ResourceType| KeyRange::Prefix(prefix(*target, self.namespace(*target)));
        let ranges: Vec<_> = self.targets.iter().map(prefix).collect();
        let read = store.read(&ranges).await?;
        let (mut items, mut complaints, mut code) = (Vec::new(), Vec::new(), 0);
        for (target, entries) in self.targets.iter().zip(&read.ranges) {
            let found = found(*target, entries);
            let (mut shown, mut missing) = pick(found.resources, &self.names);
            if let Some(selector) = &self.selector {
                shown.retain(|resource| selector.matches(&super::labels(resource)));
            }
            items.append(&mut shown);
            let last = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
            for (key, reason) in found.unreadable {
                let name = last(&key);
                if self.names.is_empty() || self.names.contains(&name) {
                    complaints.push(format!("{key}: {reason}"));
                    code = DEGRADED;
                    missing.retain(|missing| **missing != name);
                }
            }
            if !missing.is_empty() {
                code = NOT_FOUND;
            }
            let place = self.namespace(*target);
            let place = place.map_or_else(String::new, |name| format!(" in namespace {name}"));
            let kind = target.as_str();
            complaints.extend(
                missing
                    .iter()
                    .map(|name| format!("there is no {kind} {name}{place}")),
            );
        }
        if self.args.export {
            items.iter_mut().for_each(Schema::export);
        }
        Ok(Answer {
            list: list(&self.targets, read.revision, items),
            complaints,
            code,
        })
    }

    /// One that was asked for by its name is printed by itself, as calicoctl does.
    const fn is_alone(&self) -> bool {
        self.names.len() == 1
    }

    fn show(&self, list: &Value) -> anyhow::Result<ExitCode> {
        let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let document = match items {
            [one] if self.is_alone() => Some(one),
            [] if self.is_alone() => None,
            _ => Some(list),
        };
        match (&self.args.output, document) {
            (Shape::Template(template), Some(document)) => print!("{}", template.fill(document)),
            (Shape::GoTemplate(template), Some(document)) => match template.fill(document) {
                Ok(text) => print!("{text}"),
                Err(error) => return Ok(super::usage(&format!("go-template: {error}"))),
            },
            (Shape::Form(form @ (Form::Json | Form::Yaml)), Some(document)) => {
                form.output().print(document);
            }
            (Shape::Form(Form::Table | Form::Wide | Form::Name) | Shape::Columns(_), _) => {
                return self.show_rows(items);
            }
            (_, None) => {}
        }
        Ok(ExitCode::SUCCESS)
    }

    /// A table for each kind.
    fn show_rows(&self, items: &[Value]) -> anyhow::Result<ExitCode> {
        let mut first = true;
        for target in &self.targets {
            let kind = target.as_str();
            let is_one = |item: &&Value| self.targets.len() == 1 || item["kind"] == kind;
            let of_kind: Vec<Value> = items.iter().filter(is_one).cloned().collect();
            let (headings, rows, output) = match &self.args.output {
                Shape::Columns(asked) => match shape::table(*target, asked, &of_kind) {
                    Ok((headings, rows)) => (headings, rows, Output::Wide),
                    Err(reason) => return Ok(super::usage(&reason)),
                },
                Shape::Form(Form::Name) => {
                    print_names(*target, &of_kind);
                    continue;
                }
                _ if of_kind.is_empty() && self.is_alone() => continue,
                Shape::Form(form) => {
                    let (headings, rows) = columns::table(*target, *form == Form::Wide, &of_kind);
                    let headings = headings.iter().map(ToString::to_string).collect();
                    (headings, rows, form.output())
                }
                Shape::Template(_) | Shape::GoTemplate(_) => continue,
            };
            if !std::mem::take(&mut first) {
                println!();
            }
            print_table(output, &headings, rows, self.args.no_headers);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_names(target: ResourceType, shown: &[Value]) {
    for resource in shown {
        println!("{}", super::name_of(target, resource));
    }
}

fn print_table(output: Output, headings: &[String], rows: Vec<Vec<String>>, bare: bool) {
    let headings: Vec<&str> = headings
        .iter()
        .map(String::as_str)
        .filter(|_| !bare)
        .collect();
    if bare && rows.is_empty() {
        return;
    }
    let mut table = output.table(&headings);
    table.add_rows(rows);
    println!("{table}");
}

/// The resources with these names, or all without names; and the names that nothing has.
fn pick(resources: Vec<Value>, names: &[String]) -> (Vec<Value>, Vec<&String>) {
    if names.is_empty() {
        return (resources, Vec::new());
    }
    let (mut shown, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        let is_it = |r: &&Value| r["metadata"]["name"].as_str() == Some(name.as_str());
        let before = shown.len();
        shown.extend(resources.iter().filter(is_it).cloned());
        if shown.len() == before {
            missing.push(name);
        }
    }
    (shown, missing)
}

/// Resources as one value; of several kinds it is a `List`, as in kubectl.
fn list(targets: &[ResourceType], revision: i64, items: Vec<Value>) -> Value {
    let (kind, version) = match targets {
        [one] => (format!("{}List", one.as_str()), API_VERSION),
        _ => ("List".to_owned(), "v1"),
    };
    json!({"kind": kind, "apiVersion": version,
        "metadata": {"resourceVersion": revision.to_string()}, "items": items})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_datastore::MemoryStore;
    use caracal_model::{Key, Kind, Txn};
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        get: GetArgs,
    }

    fn args(words: &str) -> GetArgs {
        let words = ["get"].into_iter().chain(words.split(' '));
        Line::try_parse_from(words).unwrap().get
    }

    async fn store() -> MemoryStore {
        let store = MemoryStore::new();
        for (kind, name) in [
            (Kind::IpPool, "p"),
            (Kind::Node, "a"),
            (Kind::Node, "b"),
            (Kind::BgpPeer, "x"),
        ] {
            let value = json!({"kind": kind.as_str(), "apiVersion": API_VERSION,
                "metadata": {"name": name}, "spec": {}});
            let path = Key::resource(kind, name).to_path();
            let txn = Txn::new().create(path, value.to_string().into_bytes());
            store.commit(&txn).await.unwrap();
        }
        store
    }

    async fn ask(words: &str) -> Answer {
        let args = args(words);
        let question = Question::new(&args).map_err(|_| "no question").unwrap();
        question.answer(&store().await).await.unwrap()
    }

    fn names(answer: &Answer) -> Vec<String> {
        let items = answer.list["items"].as_array().unwrap();
        let name = |item: &Value| format!("{}/{}", item["kind"], item["metadata"]["name"]);
        items
            .iter()
            .map(|item| name(item).replace('"', ""))
            .collect()
    }

    #[tokio::test]
    async fn several_kinds_are_one_list_in_the_order_of_the_words() {
        let several = ask("nodes,ippool,no").await;
        assert_eq!(names(&several), ["Node/a", "Node/b", "IPPool/p"]);
        assert_eq!(
            (several.list["kind"].as_str(), several.code),
            (Some("List"), 0)
        );
        let one = ask("nodes b").await;
        assert_eq!(names(&one), ["Node/b"]);
        assert_eq!(one.list["kind"], "NodeList");
        assert!(Question::new(&args("nodes,nothing")).is_err());
        assert!(Question::new(&args("nodes,ippools a")).is_err());
    }

    #[tokio::test]
    async fn what_is_missing_has_its_exit_code() {
        let missing = ask("ippool nobody").await;
        assert_eq!((names(&missing), missing.code), (vec![], NOT_FOUND));
        assert_eq!(missing.complaints, ["there is no IPPool nobody"]);
    }
}
