//! Values of sysctls before the agent first wrote them: a small file, written before the sysctl is,
//! so that an uninstallation can restore them even if the process was killed.
//!
//! Values of a workload's interface and of a VXLAN device are left out: they go with the device.
//! After a boot of the machine the file is nobody's: the kernel has begun anew.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::dataplane::write::sysctl;
use crate::kernel_objects::IPIP_DEVICE;

/// Name of the file in the library directory.
pub(in crate::dataplane) const FILE: &str = "sysctls";

/// Identifies the time since the machine was started.
const BOOT_ID: &str = "kernel/random/boot_id";
/// More octets than a record has.
const LONGEST: u64 = 4 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    boot: String,
    values: BTreeMap<String, SavedSysctl>,
}

/// One sysctl that the agent has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::dataplane) struct SavedSysctl {
    /// Its value before.
    pub(in crate::dataplane) was: String,
    /// Value that the agent wrote last.
    set: String,
    /// Others that the kernel changes with it, and their values before.
    #[serde(default)]
    beside: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(in crate::dataplane) struct SavedSysctls {
    path: PathBuf,
    record: Record,
}

impl SavedSysctls {
    /// Reads the file; none, or one of an earlier boot, is an empty one.
    pub(in crate::dataplane) fn open(lib_dir: &Path) -> Self {
        let path = lib_dir.join(FILE);
        let boot = sysctl::read_one(BOOT_ID).unwrap_or_default();
        // A FIFO would wait for its other end, and a device may have no end.
        let found = std::fs::metadata(&path);
        let is_record = found.is_ok_and(|found| found.is_file() && found.len() <= LONGEST);
        let text = is_record.then(|| std::fs::read(&path).unwrap_or_default());
        let known = text.and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let record = known.filter(|r| r.boot == boot).unwrap_or(Record {
            boot,
            values: BTreeMap::new(),
        });
        Self { path, record }
    }

    /// Notes the present value of a sysctl that is about to be written.
    pub(in crate::dataplane) fn note(&mut self, path: &str, value: &str) -> io::Result<()> {
        if !outlives_us(path) {
            return Ok(());
        }
        let known = self.record.values.get(path);
        if known.is_some_and(|known| known.set == value) {
            return Ok(());
        }
        let Some(now) = sysctl::read_one(path) else {
            return Ok(());
        };
        let mut original = known.cloned().unwrap_or_else(|| SavedSysctl {
            was: now,
            set: String::new(),
            beside: sysctl::read(&beside(path)),
        });
        original.set = value.to_owned();
        self.record.values.insert(path.to_owned(), original);
        self.write()
    }

    /// Writes that restore the saved values, in order. A sysctl that somebody else has changed
    /// since stays.
    pub(in crate::dataplane) fn to_restore(&self) -> Vec<(String, String)> {
        let mut values = Vec::new();
        for (path, original) in &self.record.values {
            if sysctl::read_one(path).as_ref() != Some(&original.set) {
                continue;
            }
            if original.was != original.set {
                values.push((path.clone(), original.was.clone()));
            }
            // Writing it changes them once more: most to what they were.
            let differs = |(path, was): &(&String, &String)| **was != implied(path, &original.was);
            let others = original.beside.iter().filter(differs);
            values.extend(others.map(|(path, was)| (path.clone(), was.clone())));
        }
        values.retain(|(path, _)| sysctl::read_one(path).is_some());
        values
    }

    /// Removes the file.
    pub(in crate::dataplane) fn forget(self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The old file or the new one, even if the machine dies.
    fn write(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or_else(|| Path::new("."));
        std::fs::create_dir_all(folder)?;
        let draft = folder.join(format!(".{FILE}.new"));
        let text = serde_json::to_vec(&self.record)?;
        let _absent = std::fs::remove_file(&draft);
        let mut file = std::fs::File::create_new(&draft)?;
        file.write_all(&text)?;
        // The mask of the process may have taken bits away.
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.sync_all()?;
        std::fs::rename(&draft, &self.path)
    }
}

/// The interface that a sysctl belongs to.
fn interface(path: &str) -> Option<&str> {
    let mut parts = path.split('/').skip(2);
    matches!(parts.next()?, "conf" | "neigh").then(|| parts.next())?
}

fn outlives_us(path: &str) -> bool {
    interface(path).is_none_or(|name| ["all", "default", IPIP_DEVICE].contains(&name))
}

/// Sysctls that the kernel changes together with this one: turning forwarding on or off sets it on
/// every interface, and settings that depend on being a host or a router (RFC 1122, RFC 1812).
fn beside(path: &str) -> Vec<String> {
    let family = match path {
        "net/ipv4/ip_forward" => "ipv4",
        "net/ipv6/conf/all/forwarding" => "ipv6",
        _ => return Vec::new(),
    };
    let folder = format!("net/{family}/conf");
    let mut paths: Vec<String> = sysctl::names(&folder)
        .into_iter()
        .map(|name| format!("{folder}/{name}/forwarding"))
        .filter(|other| other != path)
        .collect();
    paths.sort_unstable();
    if family == "ipv4" {
        paths.push(format!("{folder}/all/accept_redirects"));
    }
    paths
}

/// Value that the kernel gives to one of those when forwarding becomes `value`.
fn implied(path: &str, value: &str) -> &'static str {
    match (path.ends_with("/accept_redirects"), value) {
        (true, "0") | (false, "1") => "1",
        _ => "0",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_goes_with_its_device_is_left_out() {
        for (path, kept) in [
            ("net/ipv4/ip_forward", true),
            ("net/ipv6/conf/all/forwarding", true),
            ("net/ipv4/conf/tunl0/rp_filter", true),
            ("net/ipv4/conf/vxlan.calico/rp_filter", false),
            ("net/ipv4/conf/cali123/proxy_arp", false),
            ("net/ipv4/neigh/cali123/proxy_delay", false),
        ] {
            assert_eq!(outlives_us(path), kept, "{path}");
        }
    }

    #[test]
    fn the_first_value_is_kept_across_writes_and_processes() {
        let folder = std::env::temp_dir().join(format!("caracal-sysctls-{}", std::process::id()));
        // Nothing is written but the file: the value of this path is the machine's.
        let path = "net/ipv4/ip_forward";
        let was = sysctl::read_one(path).unwrap();
        let mut first = SavedSysctls::open(&folder);
        first.note(path, "7").unwrap();
        let mut second = SavedSysctls::open(&folder);
        assert_eq!(second.record, first.record);
        second.note(path, "8").unwrap();
        let third = SavedSysctls::open(&folder);
        let original = &third.record.values[path];
        assert_eq!((original.was.as_str(), original.set.as_str()), (&*was, "8"));
        assert!(
            original
                .beside
                .contains_key("net/ipv4/conf/default/forwarding")
        );
        assert_eq!(third.to_restore(), [], "somebody else has set it since");
        // A boot later nothing is known.
        let text = std::fs::read_to_string(folder.join(FILE)).unwrap();
        let other = text.replace(&third.record.boot, "another");
        std::fs::write(folder.join(FILE), other).unwrap();
        assert_eq!(SavedSysctls::open(&folder).record.values.len(), 0);
        third.forget().unwrap();
        assert!(!folder.join(FILE).exists());
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn what_the_agent_set_is_put_back() {
        let path = "net/ipv4/ip_forward";
        let now = sysctl::read_one(path).unwrap();
        let other = if now == "0" { "1" } else { "0" };
        let original = SavedSysctl {
            was: other.to_owned(),
            set: now,
            beside: [
                ("net/ipv4/conf/gone9/forwarding".to_owned(), "7".to_owned()),
                ("net/ipv4/conf/lo/forwarding".to_owned(), other.to_owned()),
                (
                    "net/ipv4/conf/default/forwarding".to_owned(),
                    "7".to_owned(),
                ),
            ]
            .into(),
        };
        let saved_sysctls = SavedSysctls {
            path: PathBuf::new(),
            record: Record {
                boot: String::new(),
                values: [(path.to_owned(), original)].into(),
            },
        };
        let differs = "net/ipv4/conf/default/forwarding".to_owned();
        let expected = [
            (path.to_owned(), other.to_owned()),
            (differs, "7".to_owned()),
        ];
        let restored = saved_sysctls.to_restore();
        assert_eq!(
            restored, expected,
            "one device is gone, and one follows by itself"
        );
    }
}
