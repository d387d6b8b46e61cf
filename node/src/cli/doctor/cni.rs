//! The CNI plugin as a runtime sees it: which configuration it takes, and whether the programs and
//! files that this one names are there.

use std::path::{Path, PathBuf};

use caracal_model::DoctorCode;
use serde_json::Value;

use super::{CheckVerdict, DoctorFinding};
use crate::cli::install_cni::missing_plugins;

/// A folder of the host's that a runtime reads.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The variable that names it otherwise.
    variable: &'static str,
    /// Where the DaemonSet mounts it.
    mounted: &'static str,
    on_host: &'static str,
}

const CONFIGURATIONS: Place = Place {
    variable: "CNI_CONF_DIR",
    mounted: "/host/etc/cni/net.d",
    on_host: "/etc/cni/net.d",
};
const PROGRAMS: Place = Place {
    variable: "CNI_BIN_DIR",
    mounted: "/host/opt/cni/bin",
    on_host: "/opt/cni/bin",
};

/// The folders that a runtime reads.
#[derive(Debug)]
pub(super) struct CniFolders {
    configurations: PathBuf,
    programs: PathBuf,
}

impl CniFolders {
    /// Those that the arguments name, else the environment, else the mounted ones where there are
    /// such, else the host's.
    pub(super) fn new(configurations: Option<&Path>, programs: Option<&Path>) -> Self {
        let of = |named: Option<&Path>, place: Place| match named {
            Some(dir) => dir.to_owned(),
            None => {
                let named = std::env::var_os(place.variable).map(PathBuf::from);
                folder(named, Path::new(place.mounted), place.on_host)
            }
        };
        Self {
            configurations: of(configurations, CONFIGURATIONS),
            programs: of(programs, PROGRAMS),
        }
    }
}

fn folder(named: Option<PathBuf>, mounted: &Path, on_host: &str) -> PathBuf {
    let named = named.filter(|dir| !dir.as_os_str().is_empty());
    named.unwrap_or_else(|| match mounted.is_dir() {
        true => mounted.to_owned(),
        false => PathBuf::from(on_host),
    })
}

/// The path of a file as the host knows it.
fn on_host(path: &Path) -> PathBuf {
    match path.strip_prefix("/host") {
        Ok(rest) => Path::new("/").join(rest),
        Err(_) => path.to_owned(),
    }
}

/// Names of CNI configurations in the order in which runtimes read them; the first one counts.
pub(crate) fn conflists(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            [".conf", ".conflist", ".json"]
                .iter()
                .any(|end| name.ends_with(end))
        })
        .collect();
    names.sort_unstable();
    names
}

/// Looks at the configuration that counts, and where it is ours, at what it names.
pub(super) fn check_cni(findings: &mut Vec<DoctorFinding>, folders: &CniFolders) {
    const CHECK: DoctorCode = DoctorCode::CniConfiguration;
    let dir = &folders.configurations;
    let names = conflists(dir);
    let text =
        |name: &String| caracal_datastore::read_text_file(&dir.join(name)).unwrap_or_default();
    let is_ours = |name: &&String| text(name).contains("caracal-cni");
    let subject = dir.display().to_string();
    let (verdict, seen, fix) = match (names.first(), names.iter().find(is_ours)) {
        (None, _) => (
            CheckVerdict::Warn,
            "no CNI configuration: the runtime starts no pods".to_owned(),
            "caracal install-cni".to_owned(),
        ),
        (Some(first), Some(ours)) if first == ours => {
            findings.push(DoctorFinding::ok(
                CHECK,
                subject,
                format!("{ours} is the first"),
            ));
            findings.push(check_programs(folders, ours, &text(ours)));
            return;
        }
        (Some(first), Some(ours)) => (
            CheckVerdict::Fail,
            format!("{first} comes before {ours}: the runtime calls another plugin for new pods"),
            format!(
                "remove {}, or rename it so that it does not end in .conf, .conflist or .json",
                on_host(&dir.join(first)).display()
            ),
        ),
        (Some(first), None) => (
            CheckVerdict::Warn,
            format!("{first} is another plugin's, and there is none of ours"),
            "caracal install-cni; CNI_CONF_NAME names the file to replace".to_owned(),
        ),
    };
    findings.push(DoctorFinding::new(CHECK, subject, verdict, seen, fix));
}

/// Looks at the programs and files that our configuration names.
fn check_programs(folders: &CniFolders, name: &str, text: &str) -> DoctorFinding {
    const CHECK: DoctorCode = DoctorCode::CniPrograms;
    let programs = &folders.programs;
    let subject = programs.display().to_string();
    let warn = |seen: String, fix: &str| {
        DoctorFinding::new(CHECK, subject.clone(), CheckVerdict::Warn, seen, fix)
    };
    let fail = |seen: String, fix: &str| {
        DoctorFinding::new(CHECK, subject.clone(), CheckVerdict::Fail, seen, fix)
    };
    let configuration: Value = match serde_json::from_str(text) {
        Ok(configuration) => configuration,
        Err(error) => {
            return fail(
                format!("{name} is not valid JSON: {error}; the runtime starts no pods"),
                "caracal install-cni",
            );
        }
    };
    if !programs.is_dir() {
        return warn(
            "there is no such folder, or it is not mounted here".to_owned(),
            "caracal install-cni; runtimes look for plugins there",
        );
    }
    let missing = missing_plugins(programs, text);
    if !missing.is_empty() {
        return fail(
            format!(
                "{name} names {}, which is not there: no pod starts on this node",
                missing.join(", ")
            ),
            "caracal install-cni; for standard plugins it needs the image, or the package containernetworking-plugins",
        );
    }
    let missing = missing_files(&folders.configurations, &configuration);
    if !missing.is_empty() {
        return fail(
            format!(
                "{name} names {}, which is not there: the plugin cannot ask the datastore",
                missing.join(", ")
            ),
            "caracal install-cni; `caracal node` keeps a kubeconfig fresh where its account may make tokens",
        );
    }
    DoctorFinding::ok(
        CHECK,
        subject.clone(),
        format!("all plugins that {name} names are there"),
    )
}

/// Credentials that a configuration names in the runtime's folder, and that are not in it. Others
/// may be where this process cannot look.
fn missing_files(dir: &Path, configuration: &Value) -> Vec<String> {
    let plugins = configuration["plugins"].as_array();
    let plugins = plugins.into_iter().flatten().chain([configuration]);
    let named = plugins.flat_map(|plugin| {
        [
            &plugin["kubernetes"]["kubeconfig"],
            &plugin["etcd_ca_cert_file"],
            &plugin["etcd_cert_file"],
            &plugin["etcd_key_file"],
        ]
    });
    let named = named.filter_map(Value::as_str);
    let is_missing = |path: &&str| {
        let below = Path::new(path).strip_prefix(CONFIGURATIONS.on_host);
        below.is_ok_and(|below| !dir.join(below).exists())
    };
    named.filter(is_missing).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use caracal_datastore::TestFolder;

    use super::*;

    #[test]
    fn the_folder_is_the_named_one_else_the_mounted_one_else_the_hosts() {
        let named = |name: &str| Some(PathBuf::from(name));
        let (there, missing) = (std::env::temp_dir(), Path::new("/nonexistent/net.d"));
        let net_d = CONFIGURATIONS.on_host;
        assert_eq!(folder(named("/x"), &there, net_d), Path::new("/x"));
        assert_eq!(folder(None, &there, net_d), there);
        assert_eq!(folder(named(""), &there, net_d), there);
        assert_eq!(folder(None, missing, net_d), Path::new("/etc/cni/net.d"));
        let shown = |path: &str| on_host(Path::new(path));
        assert_eq!(
            shown("/host/etc/cni/net.d/05-x.conf"),
            Path::new("/etc/cni/net.d/05-x.conf")
        );
        assert_eq!(shown("/etc/cni/net.d"), Path::new("/etc/cni/net.d"));
    }

    #[test]
    fn the_first_configuration_counts_and_what_it_names_is_looked_for() {
        let dir = TestFolder::new("doctor");
        let (conf, bin) = (dir.join("net.d"), dir.join("bin"));
        fs::create_dir_all(&conf).unwrap();
        let folders = CniFolders::new(Some(&conf), Some(&bin));
        let verdicts = || {
            let mut findings = Vec::new();
            check_cni(&mut findings, &folders);
            let said = findings.iter().map(|f| (f.verdict, f.seen.clone()));
            said.collect::<Vec<_>>()
        };
        let last = || verdicts().pop().unwrap();
        assert_eq!(last().0, CheckVerdict::Warn);
        let ours = conf.join("10-caracal.conflist");
        fs::write(&ours, "caracal-cni {").unwrap();
        fs::write(conf.join(".10.caracal-new"), "{}").unwrap();
        assert_eq!(verdicts()[0].0, CheckVerdict::Ok);
        let (verdict, seen) = last();
        assert!(
            verdict == CheckVerdict::Fail && seen.contains("not valid JSON"),
            "{seen}"
        );
        let text = r#"{"plugins": [{"type": "caracal-cni", "ipam": {"type": "caracal-ipam"},
            "kubernetes": {"kubeconfig": "/etc/cni/net.d/kubeconfig"}, "etcd_key_file": "/elsewhere/key"},
            {"type": "portmap"}]}"#;
        fs::write(&ours, text).unwrap();
        let (verdict, seen) = last();
        assert!(
            verdict == CheckVerdict::Warn && seen.contains("no such folder"),
            "{seen}"
        );
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("caracal-cni"), "").unwrap();
        let (verdict, seen) = last();
        assert_eq!(verdict, CheckVerdict::Fail);
        assert!(seen.contains("caracal-ipam, portmap"), "{seen}");
        for name in ["caracal-ipam", "portmap"] {
            fs::write(bin.join(name), "").unwrap();
        }
        let (verdict, seen) = last();
        assert_eq!(verdict, CheckVerdict::Fail);
        assert!(seen.contains("/etc/cni/net.d/kubeconfig, which"), "{seen}");
        fs::write(conf.join("kubeconfig"), "").unwrap();
        assert_eq!(verdicts().len(), 2);
        assert_eq!(last().0, CheckVerdict::Ok);
        fs::write(conf.join("05-cilium.conflist"), "{}").unwrap();
        assert_eq!(verdicts().len(), 1);
        assert_eq!(last().0, CheckVerdict::Fail);
    }
}
