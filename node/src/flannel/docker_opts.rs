//! `caracal flannel docker-opts`: `subnet.env` as options of Docker's daemon, with the flags and
//! the output of flannel's `mk-docker-opts.sh`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use caracal_agent::read_kernel;
use caracal_datastore::{PUBLIC_MODE, make_folder, put_file, read_text_file};
use caracal_flannel::SubnetEnv;
use caracal_model::Cidr;
use clap::Args;

/// Flags of `mk-docker-opts.sh`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DockerOptsArgs {
    /// The file of the flannel daemon.
    #[arg(
        short = 'f',
        value_name = "FILE",
        default_value = "/run/flannel/subnet.env"
    )]
    subnet_file: PathBuf,
    /// The file to write, for `EnvironmentFile=` of Docker's unit.
    #[arg(
        short = 'd',
        value_name = "FILE",
        default_value = "/run/docker_opts.env"
    )]
    docker_file: PathBuf,
    /// Write each option as a variable of its own; without -i and -c, both.
    #[arg(short = 'i')]
    individual: bool,
    /// Write one variable with all options.
    #[arg(short = 'c')]
    combined: bool,
    /// Leave --ip-masq out.
    #[arg(short = 'm')]
    no_ip_masq: bool,
    /// Name of the variable with all options.
    #[arg(short = 'k', value_name = "NAME", default_value = "DOCKER_OPTS", value_parser = variable)]
    key: String,
}

/// A name that a shell and systemd take.
fn variable(text: &str) -> Result<String, String> {
    let letter = |c: char| c == '_' || c.is_ascii_alphabetic();
    let rest = |c: char| letter(c) || c.is_ascii_digit();
    if text.starts_with(letter) && text.chars().all(rest) {
        return Ok(text.to_owned());
    }
    Err("expected letters, digits and _, such as DOCKER_OPTS".to_owned())
}

/// Writes the options.
pub(super) fn run(args: &DockerOptsArgs) -> anyhow::Result<ExitCode> {
    let path = args.subnet_file.display();
    let text = read_text_file(&args.subnet_file).with_context(|| {
        format!(
            "reading {path}; the log of `caracal flannel` (or flanneld) says why it is not there"
        )
    })?;
    let env = SubnetEnv::parse(&text).map_err(|fault| anyhow::anyhow!("{path} {fault}"))?;
    let bridge = env
        .v4
        .with_context(|| format!("{path} names no subnet of IPv4, which --bip needs"))?;
    refuse_elsewhere(bridge)?;
    if let Some(v6) = env.v6 {
        eprintln!(
            "caracal: warning: the subnet of IPv6 is not among the options; for Docker it is --ipv6 --fixed-cidr-v6={}",
            v6.prefix()
        );
    }
    let options = args.render(&env, bridge);
    let path = &args.docker_file;
    let folder = path.parent().map_or(Ok(()), make_folder);
    folder
        .and_then(|()| put_file(path, options.as_bytes(), PUBLIC_MODE))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a subnet that packets leave this machine for: another one has it.
fn refuse_elsewhere(bridge: Cidr) -> anyhow::Result<()> {
    // One thread: netlink sockets belong to the namespace of the thread that opens them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let kernel = runtime
        .block_on(read_kernel())
        .context("reading the kernel's routes")?;
    let subnet = bridge.prefix();
    let route = kernel
        .route_to(&subnet)
        .filter(|route| route.prefix == subnet);
    let mut hops = route.into_iter().flat_map(|route| route.next_hops());
    match hops.find_map(|hop| hop.gateway) {
        None => Ok(()),
        Some(gateway) => anyhow::bail!(
            "the kernel has a route to {subnet} via {gateway}: another machine has this subnet; is it an old subnet.env?"
        ),
    }
}

impl DockerOptsArgs {
    /// The file's text.
    fn render(&self, env: &SubnetEnv, bridge: Cidr) -> String {
        let mut options = vec![("BIP", format!("--bip={bridge}"))];
        if !self.no_ip_masq {
            // Docker does it where the daemon does not.
            options.push(("IPMASQ", format!("--ip-masq={}", !env.masquerades)));
        }
        options.push(("MTU", format!("--mtu={}", env.mtu)));
        let both = self.individual == self.combined;
        let mut text = String::new();
        if self.individual || both {
            for (name, option) in &options {
                let _ = writeln!(text, "DOCKER_OPT_{name}=\"{option}\"");
            }
        }
        if self.combined || both {
            let all: String = options.iter().map(|(_, o)| format!(" {o}")).collect();
            let _ = writeln!(text, "{}=\"{all}\"", self.key);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DockerOptsArgs,
    }

    fn rendered(line: &str, ipmasq: &str) -> Result<String, String> {
        let words = std::iter::once("docker-opts").chain(line.split_whitespace());
        let args = Line::try_parse_from(words).map_err(|e| e.to_string())?.args;
        let text = format!(
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ={ipmasq}\n"
        );
        let env = SubnetEnv::parse(&text).unwrap();
        Ok(args.render(&env, env.v4.unwrap()))
    }

    #[test]
    fn options_are_those_of_flannels_script() {
        let each = "DOCKER_OPT_BIP=\"--bip=10.5.72.1/24\"\nDOCKER_OPT_IPMASQ=\"--ip-masq=false\"\nDOCKER_OPT_MTU=\"--mtu=1450\"\n";
        let all = "DOCKER_OPTS=\" --bip=10.5.72.1/24 --ip-masq=false --mtu=1450\"\n";
        for (line, expected) in [
            ("", format!("{each}{all}")),
            ("-ic", format!("{each}{all}")),
            ("-i -f /s -d /d", each.to_owned()),
            ("-c", all.to_owned()),
            (
                "-c -k DOCKER_NETWORK_OPTIONS -m",
                "DOCKER_NETWORK_OPTIONS=\" --bip=10.5.72.1/24 --mtu=1450\"\n".to_owned(),
            ),
        ] {
            assert_eq!(rendered(line, "true"), Ok(expected), "{line}");
        }
        let docker_does_it = rendered("-i", "false").unwrap();
        assert!(
            docker_does_it.contains("--ip-masq=true"),
            "{docker_does_it}"
        );
    }

    #[test]
    fn a_key_that_no_shell_takes_is_refused() {
        for key in ["A-B", "1A", "A=", "A B"] {
            let line = ["docker-opts", "-k", key];
            let told = Line::try_parse_from(line).err().map(|e| e.to_string());
            let told = told.unwrap_or_default();
            assert!(
                told.contains("expected letters, digits and _"),
                "{key}: {told}"
            );
        }
    }
}
