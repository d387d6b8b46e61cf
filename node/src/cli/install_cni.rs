//! `caracal install-cni`: puts the CNI plugin and its configuration where a container runtime
//! looks, as the init container of the DaemonSet does. Programs first, configuration last, each by
//! one rename: a runtime sees all or nothing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::Datastore;
use caracal_datastore::{draft_of, make_folder, put_file, read_text_file};
use serde_json::{Value, json};

use crate::config::{Env, PluginAccount, environment};
use crate::node::membership::plugin_access;

/// The host's directory of programs for Calico's installer.
const BIN_DIR: &str = "/host/opt/cni/bin";
/// The host's directory of configurations for Calico's installer.
const NET_DIR: &str = "/host/etc/cni/net.d";
/// The same directory as the host knows it, for paths inside the configuration.
const HOST_NET_DIR: &str = "/etc/cni/net.d";
/// Mount point of etcd's certificates in Calico's manifests.
const SECRETS_DIR: &str = "/calico-secrets";
/// Directory of the copies beside the configuration, for a plugin that runs on the host.
const TLS_DIR: &str = "caracal-tls";
/// Certificates by their names in Calico's Secret, with the place-holder for each.
const SECRETS: [(&str, &str); 3] = [
    ("etcd-ca", "__ETCD_CA_CERT_FILE__"),
    ("etcd-cert", "__ETCD_CERT_FILE__"),
    ("etcd-key", "__ETCD_KEY_FILE__"),
];
/// Standard plugins that the image brings along (`deploy/image/build`), as Calico's does.
const STANDARD_DIR: &str = "/cni-plugins";
/// The standard plugin that limits what a pod sends and receives.
const BANDWIDTH: &str = "bandwidth";
/// The plugin's two names.
const PLUGINS: [&str; 2] = ["caracal-cni", "caracal-ipam"];
/// Names of flannel's plugin: ours, and the one of flannel's own configuration, in whose place it
/// is installed then.
const FLANNEL: [&str; 2] = ["caracal-flannel", "flannel"];

/// Programs and files to install, and their directories.
#[derive(Debug, PartialEq, Eq)]
struct InstallPlan {
    bin_dir: PathBuf,
    net_dir: PathBuf,
    /// `net_dir` as the host knows it.
    host_net_dir: PathBuf,
    secrets_dir: PathBuf,
    conf_name: String,
    template: Option<String>,
    endpoints: String,
    /// Calico's data are in Kubernetes' API.
    kubernetes: bool,
    /// The plugin's kubeconfig as the host knows it.
    kubeconfig: PathBuf,
    /// The plugin's account, whose kubeconfig is written here.
    account: Option<PluginAccount>,
    mtu: u32,
    /// Pods get IPv4 addresses, and IPv6 addresses.
    families: [bool; 2],
    /// Programs that are there stay.
    keep_programs: bool,
    /// Folder of the standard plugins that are installed where the host has none.
    standard_dir: PathBuf,
    /// `SKIP_CNI_BINARIES`: standard plugins that are not installed.
    skipped: Vec<String>,
}

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let plan = InstallPlan::from_env(&Env::new(&environment()))?;
    // Without it the configuration would be of no use.
    if let Some(account) = &plan.account {
        make_folder(&plan.net_dir)
            .with_context(|| format!("creating {}", plan.net_dir.display()))?;
        write_kubeconfig(account)?;
    }
    // Install the running executable itself, even if its path now names another file.
    install(&plan, Path::new("/proc/self/exe"))?;
    Ok(ExitCode::SUCCESS)
}

/// The plugin on this machine, to be removed.
pub(super) struct Installed {
    plan: InstallPlan,
    dry_run: bool,
}

impl Installed {
    pub(super) fn from_env(dry_run: bool) -> anyhow::Result<Self> {
        let plan = InstallPlan::from_env(&Env::new(&environment()))?;
        Ok(Self { plan, dry_run })
    }

    /// Removes the configuration, so that no pod is made any more; and, when there is no interface
    /// of a pod that the plugin has to delete, programs and credentials. True when these stay.
    pub(super) fn remove(&self, pods: usize) -> anyhow::Result<bool> {
        let plan = &self.plan;
        let conf = plan.net_dir.join(&plan.conf_name);
        let is_ours = |text: String| text.contains(PLUGINS[0]) || text.contains(FLANNEL[0]);
        let ours = read_text_file(&conf).is_ok_and(is_ours);
        let kubeconfig = plan
            .kubeconfig
            .file_name()
            .map(|name| plan.net_dir.join(name));
        let programs = PLUGINS.iter().chain(&FLANNEL[..1]);
        let programs = programs.map(|name| plan.bin_dir.join(name));
        let rest = kubeconfig.into_iter().chain([plan.net_dir.join(TLS_DIR)]);
        let rest = rest.chain(programs);
        let rest: Vec<PathBuf> = rest.filter(|path| path.exists()).collect();
        let stays = pods > 0 && !rest.is_empty();
        let mut gone: Vec<PathBuf> = ours.then_some(conf).into_iter().collect();
        if !stays {
            gone.extend(rest);
        }
        for path in gone {
            if self.dry_run {
                println!("would delete {}", path.display());
                continue;
            }
            let deleted = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            deleted.with_context(|| format!("deleting {}", path.display()))?;
            println!("delete {}", path.display());
        }
        Ok(stays)
    }
}

impl InstallPlan {
    fn from_env(env: &Env<'_>) -> anyhow::Result<Self> {
        let dir = |name, default: &str| PathBuf::from(env.text(name).unwrap_or(default));
        let conf_name = env.parse("CNI_CONF_NAME", |name| match name {
            name if name.contains('/') || name.starts_with('.') => {
                Err("expected the name of a file, such as 10-caracal.conflist".to_owned())
            }
            name if name.ends_with(".conflist") || name.ends_with(".conf") => Ok(name.to_owned()),
            _ => Err("runtimes read names that end in .conflist or .conf only".to_owned()),
        })?;
        let mtu = env.parse("CNI_MTU", |text| {
            text.parse::<u32>()
                .map_err(|_| "expected an MTU in octets; 0 = the node's".to_owned())
        })?;
        // Pods have the families that the nodes have.
        let is_set = |name| env.text(name).map(|text| text != "none");
        let ipv6 = is_set("IP6").unwrap_or(false);
        let ipv4 = !ipv6 || is_set("IP").unwrap_or(true);
        Ok(Self {
            bin_dir: dir("CNI_BIN_DIR", BIN_DIR),
            net_dir: dir("CNI_CONF_DIR", NET_DIR),
            host_net_dir: dir("CNI_NET_DIR", HOST_NET_DIR),
            secrets_dir: dir("CARACAL_ETCD_SECRETS_DIR", SECRETS_DIR),
            conf_name: conf_name.unwrap_or_else(|| "10-caracal.conflist".to_owned()),
            template: env.text("CNI_NETWORK_CONFIG").map(str::to_owned),
            endpoints: env.text("ETCD_ENDPOINTS").unwrap_or_default().to_owned(),
            kubernetes: env.text("DATASTORE_TYPE") == Some("kubernetes"),
            kubeconfig: dir("CNI_NET_DIR", HOST_NET_DIR).join(PluginAccount::file_name(env)),
            account: PluginAccount::from_env(env),
            mtu: mtu.unwrap_or_default(),
            families: [ipv4, ipv6],
            keep_programs: !env.flag("UPDATE_CNI_BINARIES", true)?,
            standard_dir: PathBuf::from(STANDARD_DIR),
            skipped: env
                .text("SKIP_CNI_BINARIES")
                .unwrap_or_default()
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
        })
    }

    /// The text of the configuration, its place-holders filled in, and the names of our programs
    /// that it needs.
    fn configuration(
        &self,
        tls: &BTreeMap<&str, String>,
    ) -> anyhow::Result<(String, Vec<&'static str>)> {
        let template = self.template.clone();
        let template = template.unwrap_or_else(|| self.default_template());
        let mut text = template
            .replace("__CNI_MTU__", &self.mtu.to_string())
            .replace("__ETCD_ENDPOINTS__", &self.endpoints)
            .replace(
                "__KUBECONFIG_FILEPATH__",
                &self.kubeconfig.display().to_string(),
            )
            .replace("__LOG_LEVEL__", "info");
        for (_, holder) in SECRETS {
            text = text.replace(holder, tls.get(holder).map_or("", String::as_str));
        }
        let value: Value = serde_json::from_str(&text)
            .context("CNI_NETWORK_CONFIG is not valid JSON once its place-holders are filled in")?;
        let programs = programs_of(&value);
        anyhow::ensure!(
            !programs.is_empty(),
            "CNI_NETWORK_CONFIG names no plugin of type {} or {}: a runtime would not call Caracal",
            PLUGINS[0],
            FLANNEL[0]
        );
        if let Some(unknown) = place_holder(&text) {
            anyhow::bail!(
                "CNI_NETWORK_CONFIG: {unknown} is no place-holder that is known here; there are __CNI_MTU__, \
                 __KUBECONFIG_FILEPATH__, __ETCD_ENDPOINTS__, __ETCD_CA_CERT_FILE__, __ETCD_CERT_FILE__, __ETCD_KEY_FILE__ and __LOG_LEVEL__"
            );
        }
        Ok((format!("{value:#}\n"), programs))
    }

    /// The list of plugins when nobody gave one: the same for both datastores, but for the way to
    /// the data. In etcd clusters the plugin looks pods up in Kubernetes' API where it has an
    /// account there.
    ///
    /// The plugin `bandwidth` is named where its program is or will be: without it no pod would
    /// start. Debian's crashes at the CHECK of a pod that has no limit, hence `disableCheck`.
    fn default_template(&self) -> String {
        let mut plugin = match self.kubernetes {
            true => json!({
                "type": PLUGINS[0],
                "datastore_type": "kubernetes",
                "kubernetes": { "kubeconfig": "__KUBECONFIG_FILEPATH__" },
                "ipam": { "type": PLUGINS[1] },
            }),
            false => json!({
                "type": PLUGINS[0],
                "etcd_endpoints": "__ETCD_ENDPOINTS__",
                "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__",
                "etcd_cert_file": "__ETCD_CERT_FILE__",
                "etcd_key_file": "__ETCD_KEY_FILE__",
                "ipam": { "type": PLUGINS[1] },
            }),
        };
        if let [ipv4, true] = self.families {
            plugin["ipam"]["assign_ipv4"] = json!(ipv4);
            plugin["ipam"]["assign_ipv6"] = json!(true);
        }
        if self.account.is_some() && !self.kubernetes {
            plugin["policy"] = json!({ "type": "k8s" });
            plugin["kubernetes"] = json!({ "kubeconfig": "__KUBECONFIG_FILEPATH__" });
        }
        plugin["capabilities"] = json!({ "io.kubernetes.cri.pod-annotations": true });
        let mut plugins = vec![
            plugin,
            json!({
                "type": "portmap",
                "snat": true,
                "capabilities": { "portMappings": true },
            }),
        ];
        let limits = self.has_standard(BANDWIDTH);
        if limits {
            plugins.push(json!({ "type": BANDWIDTH, "capabilities": { "bandwidth": true } }));
        }
        let mut list = json!({
            "cniVersion": "1.0.0",
            "name": "k8s-pod-network",
            "plugins": plugins,
        });
        if limits {
            list["disableCheck"] = json!(true);
        }
        list.to_string()
    }

    /// True when a standard plugin is on this host, or is installed there.
    fn has_standard(&self, name: &str) -> bool {
        let is_brought = || self.standard_dir.join(name).exists() && !self.skips(OsStr::new(name));
        self.bin_dir.join(name).exists() || is_brought()
    }

    /// True for a standard plugin that is not installed (`SKIP_CNI_BINARIES`).
    fn skips(&self, name: &OsStr) -> bool {
        self.skipped.iter().any(|skipped| name == skipped.as_str())
    }
}

/// The names of our programs that a configuration needs.
fn programs_of(configuration: &Value) -> Vec<&'static str> {
    let plugins = configuration["plugins"].as_array();
    let plugins = plugins.into_iter().flatten().chain([configuration]);
    let kinds: Vec<_> = plugins
        .filter_map(|plugin| plugin["type"].as_str())
        .collect();
    let calicos = PLUGINS.iter().filter(|_| kinds.contains(&PLUGINS[0]));
    let flannels = FLANNEL.iter().filter(|name| kinds.contains(name));
    calicos.chain(flannels).copied().collect()
}

/// A `__NAME__` that is left.
fn place_holder(text: &str) -> Option<&str> {
    let start = text.find("__")?;
    let end = text[start + 2..].find("__")? + start + 4;
    Some(&text[start..end])
}

fn install(plan: &InstallPlan, program: &Path) -> anyhow::Result<()> {
    for dir in [&plan.bin_dir, &plan.net_dir] {
        make_folder(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let tls = copy_secrets(plan)?;
    // Nothing is installed when the configuration cannot be.
    let (text, names) = plan.configuration(&tls)?;
    programs(plan, program, &names)?;
    standard_plugins(plan)?;
    if plan.template.is_none() && !plan.has_standard(BANDWIDTH) {
        eprintln!(
            "caracal: warning: the plugin {BANDWIDTH} is not in {}, and {} does not name it: kubernetes.io/ingress-bandwidth and \
             kubernetes.io/egress-bandwidth limit no pod. Install it, and call install-cni again",
            plan.bin_dir.display(),
            plan.conf_name
        );
    }
    for missing in missing_plugins(&plan.bin_dir, &text) {
        eprintln!(
            "caracal: warning: {} names the plugin {missing}, which is not in {}: no pod starts before it is there. The package \
             containernetworking-plugins or kubernetes-cni has it",
            plan.conf_name,
            plan.bin_dir.display()
        );
    }
    let path = plan.net_dir.join(&plan.conf_name);
    put_file(&path, text.as_bytes(), 0o600)
        .with_context(|| format!("writing {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// The plugin's kubeconfig, which the node renews afterwards.
fn write_kubeconfig(account: &PluginAccount) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = Datastore::from_env()?;
        plugin_access::write(&store, account).await
    })?;
    println!("{}", account.file.display());
    Ok(())
}

/// One file under several names.
fn programs(plan: &InstallPlan, program: &Path, names: &[&str]) -> anyhow::Result<()> {
    let paths: Vec<PathBuf> = names.iter().map(|name| plan.bin_dir.join(name)).collect();
    let Some((first, others)) = paths.split_first() else {
        return Ok(());
    };
    if plan.keep_programs && paths.iter().all(|path| path.exists()) {
        println!("{} stays (UPDATE_CNI_BINARIES=false)", first.display());
        return Ok(());
    }
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    put_file(first, &bytes, 0o755).with_context(|| format!("writing {}", first.display()))?;
    println!("{}", first.display());
    for other in others {
        let draft = draft_of(other);
        let _absent = fs::remove_file(&draft);
        let linked = fs::hard_link(first, &draft).and_then(|()| fs::rename(&draft, other));
        // Not every file system has links.
        linked
            .or_else(|_| put_file(other, &bytes, 0o755))
            .with_context(|| format!("writing {}", other.display()))?;
        println!("{}", other.display());
    }
    Ok(())
}

/// Installs the standard plugins of the image that the host does not have; its own may be newer.
fn standard_plugins(plan: &InstallPlan) -> anyhow::Result<()> {
    let entries = match fs::read_dir(&plan.standard_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).context(plan.standard_dir.display().to_string()),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let target = plan.bin_dir.join(&name);
        if plan.skips(&name) || target.exists() {
            continue;
        }
        let bytes = fs::read(entry.path()).with_context(|| entry.path().display().to_string())?;
        put_file(&target, &bytes, 0o755)
            .with_context(|| format!("writing {}", target.display()))?;
        println!("{}", target.display());
    }
    Ok(())
}

/// Plugins that a configuration names and that are not in the folder of programs.
pub(super) fn missing_plugins(bin_dir: &Path, configuration: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(configuration).unwrap_or_default();
    let plugins = value["plugins"].as_array();
    let plugins = plugins.into_iter().flatten().chain([&value]);
    let named = plugins.flat_map(|plugin| {
        let [kind, ipam] = [&plugin["type"], &plugin["ipam"]["type"]].map(Value::as_str);
        let is_flannels = kind.is_some_and(|kind| FLANNEL.contains(&kind));
        match is_flannels {
            true => {
                let delegate = plugin["delegate"]["type"].as_str().unwrap_or("bridge");
                [kind, Some(delegate), ipam.or(Some("host-local"))]
            }
            false => [kind, ipam, None],
        }
    });
    let named = named.flatten();
    named
        .filter(|name| !bin_dir.join(name).exists())
        .map(str::to_owned)
        .collect()
}

/// The certificates that are there, copied to the host; their paths there, by place-holder.
fn copy_secrets(plan: &InstallPlan) -> anyhow::Result<BTreeMap<&'static str, String>> {
    let mut paths = BTreeMap::new();
    for (name, holder) in SECRETS {
        let source = plan.secrets_dir.join(name);
        let bytes = match fs::read(&source) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| source.display().to_string()),
        };
        // A Secret without certificates has empty values in Calico's manifest.
        if bytes.is_empty() {
            continue;
        }
        let dir = plan.net_dir.join(TLS_DIR);
        make_folder(&dir).with_context(|| format!("creating {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        let copy = dir.join(name);
        put_file(&copy, &bytes, 0o600).with_context(|| format!("writing {}", copy.display()))?;
        let on_host = plan.host_net_dir.join(TLS_DIR).join(name);
        paths.insert(holder, on_host.display().to_string());
    }
    Ok(paths)
}

#[cfg(test)]
mod tests;
