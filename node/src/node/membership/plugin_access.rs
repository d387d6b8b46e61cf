//! The CNI plugin's kubeconfig: the plugin runs on the host, so the node asks for a token in the
//! name of the plugin's account, writes it beside the CNI configuration, and renews it.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use caracal_datastore::Datastore;
use caracal_model::{Problem, ProblemCode};

use crate::config::PluginAccount;
use crate::node::problems::ProblemReporter;
use caracal_datastore::put_file;

/// Pause after a failed try.
const RETRY: Duration = Duration::from_secs(10);

/// Writes the kubeconfig; the token's lifetime. Where the datastore is etcd the plugin reads pods
/// by it, and the account is asked for at the API server of the environment.
pub(crate) async fn write(store: &Datastore, account: &PluginAccount) -> anyhow::Result<Duration> {
    let name = &account.name;
    let mut access = store.plugin_access(name).await;
    if let Ok(None) = access {
        let api = Datastore::kubernetes_from_env()?;
        access = api.plugin_access(name).await;
    }
    let access = access.with_context(|| format!("asking for a token of the account {name}"))?;
    let access = access.context("Kubernetes' API has accounts")?;
    let written = put_file(&account.file, access.kubeconfig.as_bytes(), 0o600);
    written.with_context(|| format!("writing {}", account.file.display()))?;
    Ok(access.lasts)
}

/// Keeps the kubeconfig: a new token in half of the old one's lifetime.
pub(crate) async fn write_plugin_access(
    store: Datastore,
    account: PluginAccount,
    problems: ProblemReporter,
) {
    loop {
        let pause = match write(&store, &account).await {
            Ok(lasts) => {
                tracing::info!(
                    file = %account.file.display(), account = account.name, seconds = lasts.as_secs(),
                    "the CNI plugin's kubeconfig has a new token"
                );
                problems.replace(Vec::new());
                lasts / 2
            }
            Err(error) => {
                problems.warn(vec![problem(&account.file, &error)]);
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn problem(file: &Path, error: &anyhow::Error) -> Problem {
    Problem {
        code: ProblemCode::CniToken,
        subject: file.display().to_string(),
        reason: format!(
            "the CNI plugin's kubeconfig cannot be renewed: {error:#}; once its token has expired, pods get no addresses. It is \
             tried again"
        ),
    }
}
