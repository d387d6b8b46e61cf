//! Two network namespaces joined by a veth pair: the generator lives in one, the speaker under test
//! in the other.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use caracal_hot_paths::routes::DUT;

/// The generator's end of the link.
pub const LINK: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 2);
/// Addresses of reflector clients begin here; they are behind the link's other end.
pub const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 64, 16, 0);

/// The namespaces; deleted when dropped.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
}

fn ip(args: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .context("cannot run ip (package iproute2)")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("ip {args}: {}", text.trim());
    }
    Ok(())
}

/// Prefix of every name; the process id follows.
const PREFIX: &str = "cbench";

/// Deletes the namespaces of runs that were killed.
fn sweep() -> Result<()> {
    let Ok(folder) = std::fs::read_dir("/run/netns") else {
        return Ok(());
    };
    for entry in folder {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let id = name.strip_prefix(PREFIX).and_then(|n| n.split('-').next());
        if let Some(id) = id.and_then(|id| id.parse::<u32>().ok())
            && !Path::new(&format!("/proc/{id}")).exists()
        {
            ip(&format!("netns del {name}"))?;
        }
    }
    Ok(())
}

impl Lab {
    pub fn new() -> Result<Self> {
        sweep()?;
        let lab = Self {
            prefix: format!("{PREFIX}{}", std::process::id()),
        };
        let (dut, generator) = (lab.dut(), lab.generator());
        ip(&format!("netns add {dut}"))?;
        ip(&format!("netns add {generator}"))?;
        ip(&format!(
            "-n {generator} link add gen type veth peer name dut netns {dut}"
        ))?;
        for (namespace, device, address) in [(&dut, "dut", DUT), (&generator, "gen", LINK)] {
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {namespace} link set {device} up"))?;
            ip(&format!(
                "-n {namespace} addr add {address}/20 dev {device}"
            ))?;
        }
        // Whole ranges are local to the generator: an address for each peer without configuring
        // each.
        ip(&format!(
            "-n {generator} route add local 10.64.1.0/24 dev lo"
        ))?;
        ip(&format!(
            "-n {generator} route add local {CLIENTS}/20 dev lo"
        ))?;
        ip(&format!("-n {dut} route add {CLIENTS}/20 via {LINK}"))?;
        Ok(lab)
    }

    /// The namespace of the speaker under test.
    pub fn dut(&self) -> String {
        format!("{}-dut", self.prefix)
    }

    /// The namespace of the generator.
    pub fn generator(&self) -> String {
        format!("{}-gen", self.prefix)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for namespace in [self.dut(), self.generator()] {
            if let Err(error) = ip(&format!("netns del {namespace}")) {
                eprintln!("{error:#}");
            }
        }
    }
}
