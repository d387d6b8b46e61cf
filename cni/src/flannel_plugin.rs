//! `caracal-flannel`: attaches containers to the node's subnet of a flannel network. Another main
//! plugin, usually `bridge` with `host-local`, does the work; its configuration is rendered from
//! the daemon's `subnet.env` and kept in a file until DEL. No datastore is asked.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::delegate::{Delegate, Part};
use crate::error::{CniError, StatusError};
use crate::flannel_files::{FlannelError, Saved, SavedConfigurations, read_subnet_env};
use crate::kernel::link::Links;
use crate::kernel::netns::Netns;
use crate::spec::config::ValidAttachment;
use crate::spec::{Command, ConfigError, Env, EnvError, FlannelConf, Outcome};

/// Longest wait of an ADD for another call of the same container (CNI-7).
const TURN: Duration = Duration::from_secs(30);
/// The same of a DEL, which goes on then: also an ADD that hangs must end.
const LIMIT: Duration = Duration::from_secs(5);

/// Whose attachment a file is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// That of the call's own container and interface.
    Calls,
    /// Another one, by the names that the file has.
    Anothers,
}

/// One call of flannel's plugin.
struct FlannelCall<'a> {
    env: &'a Env,
    conf: &'a FlannelConf,
    saved: SavedConfigurations,
}

/// Serves a call; the answer of an ADD.
///
/// # Errors
/// [`CniError`].
pub(crate) async fn serve(env: &Env, conf: &FlannelConf) -> Result<Option<Value>, CniError> {
    let call = FlannelCall {
        env,
        conf,
        saved: SavedConfigurations::new(conf.data_dir()),
    };
    match env.command {
        Command::Add => return call.add().await.map(Some),
        Command::Del => call.del().await?,
        Command::Check => call.check()?,
        Command::Status => call.status()?,
        Command::Gc => call.gc()?,
        Command::Version => {}
    }
    Ok(None)
}

impl FlannelCall<'_> {
    /// Attaches the container. Of an ADD that fails nothing stays, and what is left of one that was
    /// killed goes first (CNI-2).
    async fn add(&self) -> Result<Value, CniError> {
        let (container_id, ifname) = (&self.env.container_id, &self.env.ifname);
        let netns = self.env.netns.as_deref().ok_or(EnvError::Missing {
            variable: "CNI_NETNS",
            command: Command::Add.as_str(),
        })?;
        let netns = Netns::open(netns)?;
        if !netns.take_turn(TURN).await {
            let seconds = TURN.as_secs();
            return Err(CniError::Busy { seconds });
        }
        let inside = Links::inside(&netns, || Ok(()))?;
        if inside.by_name(ifname).await?.is_some() {
            // What undid this ADD would take an attachment that works.
            let ifname = ifname.clone();
            return Err(FlannelError::Occupied { ifname }.into());
        }
        let version = self.conf.version().map_err(ConfigError::from)?;
        let (kind, conf) = self.rendered(Map::new())?;
        let delegate = Delegate::find(Part::Main, &kind, self.env, &conf)?;
        let find = || self.saved.find(container_id, ifname);
        while let Some(left) = find().filter(Saved::is_of_this_interface) {
            let path = left.path.display();
            tracing::info!(%path, "what an earlier ADD has left is detached first");
            self.detach(&left, Whose::Calls)?;
        }
        let file = self.saved.of(container_id, ifname);
        self.saved.put(&file, &conf)?;
        match delegate.add() {
            Ok(outcome) => Ok(outcome.to_json(version)),
            Err(error) => {
                tracing::warn!(%error, "ADD failed; removing what there is of the attachment");
                let undone = delegate.run(Command::Del).map_err(CniError::from);
                let undone = undone.and_then(|_| file.delete().map_err(CniError::from));
                if let Err(error) = undone {
                    tracing::warn!(%error, "something of the failed ADD stays until DEL or GC");
                }
                Err(error.into())
            }
        }
    }

    /// The plugin that does the work, and its configuration with more keys.
    fn rendered(&self, more: Map<String, Value>) -> Result<(String, Vec<u8>), CniError> {
        let env = read_subnet_env(&self.conf.subnet_file())?;
        let mut conf = self.conf.render(&env)?;
        conf.extend(more);
        let kind = conf.get("type").and_then(Value::as_str);
        Ok((kind.unwrap_or_default().to_owned(), text(conf)))
    }

    /// Detaches the container. What is gone is no error (CNI-4).
    async fn del(&self) -> Result<(), CniError> {
        let netns = self.env.netns.as_deref().map(Netns::open);
        if let Some(Ok(netns)) = &netns
            && !netns.take_turn(LIMIT).await
        {
            tracing::warn!("another call for this container takes long; going on beside it");
        }
        match self.saved.find(&self.env.container_id, &self.env.ifname) {
            Some(saved) => self.detach(&saved, Whose::Calls),
            None => Ok(()),
        }
    }

    /// Has the plugin that made an attachment take it away.
    fn detach(&self, saved: &Saved, whose: Whose) -> Result<(), CniError> {
        let (mut conf, kind) = saved.read()?;
        if let (Some(previous), Whose::Calls) = (&self.conf.prev_result, whose) {
            self.insert_previous(previous.clone(), &mut conf);
        }
        let conf = text(conf);
        let mut delegate = Delegate::find(Part::Main, &kind, self.env, &conf)?;
        if whose == Whose::Anothers {
            delegate = delegate.of(&saved.container_id, &saved.ifname);
        }
        delegate.run(Command::Del)?;
        if saved.is_of_this_interface() {
            saved.delete()?;
        }
        Ok(())
    }

    /// A result is in the format of the version that the call has now.
    fn insert_previous(&self, previous: Value, conf: &mut Map<String, Value>) {
        conf.insert("cniVersion".into(), self.conf.cni_version.clone().into());
        conf.insert("prevResult".into(), previous);
    }

    /// Has the plugin that made the attachment compare it.
    fn check(&self) -> Result<(), CniError> {
        let (container_id, ifname) = (&self.env.container_id, &self.env.ifname);
        let saved = self.saved.find(container_id, ifname);
        let saved = saved.ok_or_else(|| FlannelError::Unknown {
            ifname: ifname.clone(),
            dir: self.saved.dir().to_owned(),
        })?;
        let (mut conf, kind) = saved.read()?;
        if let Some(previous) = &self.conf.prev_result {
            let version = self.conf.version().map_err(ConfigError::from)?;
            let previous = Outcome::from_json(previous).map_err(CniError::PrevResult)?;
            let previous = previous.with_next_hops().to_json(version);
            self.insert_previous(previous, &mut conf);
        }
        Delegate::find(Part::Main, &kind, self.env, &text(conf))?.run(Command::Check)?;
        Ok(())
    }

    /// Could an ADD be served? The daemon must have written its file, and the plugin that does the
    /// work must be there and ready.
    fn status(&self) -> Result<(), CniError> {
        let rendered = self.rendered(Map::new());
        let (kind, conf) = rendered.map_err(|error| match error {
            CniError::Flannel(error) => StatusError::Flannel(error).into(),
            other => other,
        })?;
        Delegate::find(Part::Main, &kind, self.env, &conf)?.run(Command::Status)?;
        Ok(())
    }

    /// Detaches what the runtime does not list, and has the plugin that does the work clear up.
    fn gc(&self) -> Result<(), CniError> {
        let alive = self.conf.valid_attachments.as_deref();
        let alive = alive.ok_or_else(|| ConfigError::Invalid {
            key: "cni.dev/valid-attachments",
            reason: "GC needs the list of attachments that are alive".to_owned(),
        })?;
        let is_alive = |saved: &Saved| {
            let is_it = |a: &ValidAttachment| {
                a.container_id == saved.container_id && (!saved.named || a.ifname == saved.ifname)
            };
            alive.iter().any(is_it)
        };
        for saved in self.saved.all()? {
            if is_alive(&saved) {
                continue;
            }
            let (conf, _) = saved.read()?;
            // Networks share the directory.
            if conf.get("name").and_then(Value::as_str) == Some(self.conf.name.as_str()) {
                self.detach(&saved, Whose::Anothers)?;
                let path = saved.path.display();
                tracing::info!(%path, "detached: the runtime knows no such attachment");
            }
        }
        let list = alive
            .iter()
            .map(|a| json!({ "containerID": a.container_id, "ifname": a.ifname }));
        let more = [("cni.dev/valid-attachments".to_owned(), list.collect())];
        let (kind, conf) = self.rendered(more.into_iter().collect())?;
        Delegate::find(Part::Main, &kind, self.env, &conf)?.run(Command::Gc)?;
        Ok(())
    }
}

fn text(conf: Map<String, Value>) -> Vec<u8> {
    Value::Object(conf).to_string().into_bytes()
}
