//! The command line of `caracal flannel`: the daemon's flags, or one of the commands beside it.

use clap::{Args, Subcommand};

use super::args::FlannelArgs;
use super::docker_opts::DockerOptsArgs;
use super::migrate::MigrateCommand;
use crate::args::OutputArgs;

/// Commands beside the daemon.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum FlannelCommand {
    /// Write options of Docker's daemon from `subnet.env`, with the flags of flannel's
    /// `mk-docker-opts.sh`. A link of that name to this program is the same.
    DockerOpts(DockerOptsArgs),
    /// Show the network's configuration, the leases of all nodes, and what this node's kernel has
    /// of them. Flags and variables are the daemon's. Exit code 4 if something is wrong.
    Show(ShowArgs),
    /// Make this node one of a Calico network, or go back. Containers keep their addresses.
    Migrate {
        #[command(subcommand)]
        command: MigrateCommand,
    },
}

/// `caracal flannel`: flanneld's flags. `--x` and `-x` are the same; booleans take `=false`; each
/// flag is also a variable, `FLANNELD_` and its name in capitals with `_` for `-`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct FlannelLine {
    /// Another command than the daemon.
    #[command(subcommand)]
    pub(crate) command: Option<FlannelCommand>,
    #[command(flatten)]
    pub(crate) args: FlannelArgs,
}

/// `caracal flannel show`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) args: Box<FlannelArgs>,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::super::args::flannels_words;
    use super::*;
    use crate::args::Output;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        line: FlannelLine,
    }

    #[test]
    fn commands_have_their_own_flags_and_the_daemons() {
        let parse = |line: &str| {
            let words = ["caracal", "flannel"].into_iter();
            let words = words.chain(line.split_whitespace());
            let mut words = flannels_words(words.map(Into::into));
            words.remove(1);
            Line::try_parse_from(words).map(|line| line.line.command)
        };
        let command = parse("docker-opts -ic").unwrap();
        assert!(matches!(command, Some(FlannelCommand::DockerOpts(_))));
        // A daemon's command line with one more word.
        let line = "show -etcd-prefix=/n -kube-subnet-mgr=false -o json";
        let Some(FlannelCommand::Show(show)) = parse(line).unwrap() else {
            panic!("another command than show");
        };
        assert_eq!(
            (&*show.args.etcd_prefix, show.output.output),
            ("/n", Output::Json)
        );
        assert!(parse("--ip-masq").unwrap().is_none());
        let both = parse("--iface=eth0 docker-opts");
        assert!(both.is_err(), "flags of the daemon before a command");
    }
}
