//! flanneld's flags and environment: each flag is also a variable, `FLANNELD_` and its name.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_datastore::{Datastore, DatastoreConfig, EtcdConfig, EtcdCredentials};
use caracal_flannel::NodeAnnotations;
use caracal_model::{Family, NodeName};
use clap::Args;

/// The name of flannel's script for Docker's options, under which this program may be called.
const DOCKER_OPTS_SCRIPT: &str = "mk-docker-opts.sh";

/// Go's package `flag` takes one dash for two, and the script for Docker's options is a command.
pub(crate) fn flannels_words(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut behind = false;
    let mut all: Vec<OsString> = Vec::new();
    let mut args = args.into_iter();
    let program = args.next();
    let name = program.as_deref().map(Path::new).and_then(Path::file_name);
    let is_script = name.is_some_and(|name| name == DOCKER_OPTS_SCRIPT);
    all.extend(program);
    if is_script {
        all.extend(["flannel".into(), "docker-opts".into()]);
        all.extend(args);
        return all;
    }
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "docker-opts" && all.last().is_some_and(|last| last == "flannel") {
            // Its flags are a shell's: `-ic` is two of them.
            all.push(arg);
            all.extend(args);
            break;
        }
        let is_long = text.len() > 2 && text.starts_with('-') && !text.starts_with("--");
        if behind && is_long && !text.starts_with("-h") {
            all.push(format!("-{text}").into());
            continue;
        }
        behind |= text == "flannel";
        all.push(arg);
    }
    all
}

/// flanneld's flags.
#[derive(Clone, Debug, Args)]
pub(crate) struct FlannelArgs {
    /// etcd's servers, with commas between.
    #[arg(
        long,
        env = "FLANNELD_ETCD_ENDPOINTS",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:4001,http://127.0.0.1:2379"
    )]
    pub(crate) etcd_endpoints: Vec<String>,
    /// Where the network's configuration and leases are in etcd.
    #[arg(
        long,
        env = "FLANNELD_ETCD_PREFIX",
        default_value = "/coreos.com/network"
    )]
    pub(crate) etcd_prefix: String,
    /// Key of the certificate for etcd.
    #[arg(long, env = "FLANNELD_ETCD_KEYFILE", value_name = "FILE")]
    etcd_keyfile: Option<PathBuf>,
    /// Certificate for etcd.
    #[arg(long, env = "FLANNELD_ETCD_CERTFILE", value_name = "FILE")]
    etcd_certfile: Option<PathBuf>,
    /// CA that etcd's certificate is checked with.
    #[arg(long, env = "FLANNELD_ETCD_CAFILE", value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// User of etcd.
    #[arg(long, env = "FLANNELD_ETCD_USERNAME")]
    etcd_username: Option<String>,
    /// That user's password.
    #[arg(long, env = "FLANNELD_ETCD_PASSWORD", hide_env_values = true)]
    etcd_password: Option<String>,
    /// Interface to other nodes, by name or address. May be repeated; the first that is there is
    /// taken. Without any of these flags: the default route's.
    #[arg(long, env = "FLANNELD_IFACE", value_name = "NAME|ADDRESS")]
    pub(crate) iface: Vec<String>,
    /// The same by a regular expression on addresses, then on names. May be repeated.
    #[arg(long, env = "FLANNELD_IFACE_REGEX", value_name = "REGEX")]
    pub(crate) iface_regex: Vec<String>,
    /// The same by the address that packets to this one have as their source.
    #[arg(long, env = "FLANNELD_IFACE_CAN_REACH", value_name = "ADDRESS")]
    pub(crate) iface_can_reach: Option<IpAddr>,
    /// File for the container runtime.
    #[arg(
        long,
        env = "FLANNELD_SUBNET_FILE",
        value_name = "FILE",
        default_value = "/run/flannel/subnet.env"
    )]
    pub(crate) subnet_file: PathBuf,
    /// Address by which other nodes reach this one; the interface's without it.
    #[arg(long, env = "FLANNELD_PUBLIC_IP")]
    pub(crate) public_ip: Option<Ipv4Addr>,
    /// The same of IPv6.
    #[arg(long, env = "FLANNELD_PUBLIC_IPV6")]
    pub(crate) public_ipv6: Option<Ipv6Addr>,
    /// Minutes before its end at which the lease is renewed, 1 to 1439.
    #[arg(
        long,
        env = "FLANNELD_SUBNET_LEASE_RENEW_MARGIN",
        value_name = "MINUTES",
        default_value_t = 60
    )]
    subnet_lease_renew_margin: u64,
    /// Seconds that the lease lasts unless it is renewed. flanneld has no such flag.
    #[arg(
        long,
        env = "FLANNELD_SUBNET_LEASE_TTL",
        value_name = "SECONDS",
        default_value_t = 86_400
    )]
    subnet_lease_ttl: u64,
    /// Seconds for which etcd must have been followed before routes of nodes without a lease are
    /// deleted. flanneld has no such flag.
    #[arg(
        long,
        env = "FLANNELD_SETTLE_TIME",
        value_name = "SECONDS",
        default_value_t = 60
    )]
    settle_time: u64,
    /// Masquerade what leaves the network, by nftables; where `nft` cannot be used, by iptables.
    #[arg(long, env = "FLANNELD_IP_MASQ", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = go_bool)]
    pub(crate) ip_masq: bool,
    /// Masquerade without random source ports.
    #[arg(long, env = "FLANNELD_IP_MASQ_FULLY_RANDOM_DISABLE", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = go_bool)]
    pub(crate) ip_masq_fully_random_disable: bool,
    /// Subnets are those that Kubernetes gave its Nodes (`podCIDRs`), and annotations of the Nodes
    /// stand for leases.
    #[arg(long, env = "FLANNELD_KUBE_SUBNET_MGR", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = go_bool)]
    pub(crate) kube_subnet_mgr: bool,
    /// URL of Kubernetes' API, in the place of the kubeconfig's.
    #[arg(
        long,
        env = "FLANNELD_KUBE_API_URL",
        value_name = "URL",
        default_value = ""
    )]
    kube_api_url: String,
    /// Kubeconfig. Without it and without a URL: the service account of the pod.
    #[arg(
        long,
        env = "FLANNELD_KUBECONFIG_FILE",
        value_name = "FILE",
        default_value = ""
    )]
    kubeconfig_file: String,
    /// What the names of annotations begin with.
    #[arg(
        long,
        env = "FLANNELD_KUBE_ANNOTATION_PREFIX",
        value_name = "PREFIX",
        default_value = "flannel.alpha.coreos.com"
    )]
    kube_annotation_prefix: String,
    /// The network's configuration with --kube-subnet-mgr.
    #[arg(
        long,
        env = "FLANNELD_NET_CONFIG_PATH",
        value_name = "FILE",
        default_value = "/etc/kube-flannel/net-conf.json"
    )]
    pub(crate) net_config_path: PathBuf,
    /// Set the Node's condition `NetworkUnavailable` to False.
    #[arg(long, env = "FLANNELD_SET_NODE_NETWORK_UNAVAILABLE", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_parser = go_bool)]
    pub(crate) set_node_network_unavailable: bool,
    /// Seconds between looks at rules of iptables; those of nftables are looked at when somebody
    /// changes them.
    #[arg(
        long,
        env = "FLANNELD_IPTABLES_RESYNC",
        value_name = "SECONDS",
        default_value_t = 5
    )]
    iptables_resync: u64,
    /// Rules that let packets of the network pass where iptables' FORWARD drops by policy.
    #[arg(long, env = "FLANNELD_IPTABLES_FORWARD_RULES", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_parser = go_bool)]
    pub(crate) iptables_forward_rules: bool,
    /// A blackhole behind the routes to containers of the own subnets, so that what is sent to
    /// nobody leaves by no other route.
    #[arg(long, env = "FLANNELD_IP_BLACKHOLE_ROUTE", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = go_bool)]
    pub(crate) ip_blackhole_route: bool,
    /// Added to the metric of the routes to other nodes: with more than 0 they lie behind those of
    /// `caracal node`, while nodes move from this network to it. flanneld has no such flag.
    #[arg(
        long,
        env = "FLANNELD_ROUTE_METRIC",
        value_name = "NUMBER",
        default_value_t = 0
    )]
    pub(crate) route_metric: u16,
    /// Checksums of packets inside of VXLAN: true = left to the interface below, false = made by
    /// the kernel, for interfaces that make wrong ones. Without the flag a device keeps what it
    /// has. flanneld has no such flag.
    #[arg(long, env = "FLANNELD_VXLAN_TX_CHECKSUM", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub(crate) vxlan_tx_checksum: Option<bool>,
    /// Address of the probes' port.
    #[arg(long, env = "FLANNELD_HEALTHZ_IP", default_value = "0.0.0.0")]
    pub(crate) healthz_ip: IpAddr,
    /// Port of `/healthz`, `/readyz` and `/metrics`; 0 = none.
    #[arg(long, env = "FLANNELD_HEALTHZ_PORT", default_value_t = 0)]
    pub(crate) healthz_port: u16,
    /// Prints the version on standard error.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = go_bool)]
    pub(crate) version: bool,
    /// Verbosity of flanneld's log; here CARACAL_LOG says what is shown.
    #[arg(long = "v", short = 'v', hide = true)]
    verbosity: Option<String>,
}

/// Go's words.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

impl FlannelArgs {
    /// The address of a family that the line gives, behind the flag's name.
    pub(super) fn public_address(&self, family: Family) -> (&'static str, Option<IpAddr>) {
        match family {
            Family::Ipv4 => ("--public-ip", self.public_ip.map(IpAddr::V4)),
            Family::Ipv6 => ("--public-ipv6", self.public_ipv6.map(IpAddr::V6)),
        }
    }

    /// What is not there: notes for what goes on without, an error for what cannot.
    pub(crate) fn check(&self) -> Result<Vec<&'static str>, String> {
        if !(1..=1439).contains(&self.subnet_lease_renew_margin) {
            return Err(format!(
                "--subnet-lease-renew-margin={}: it has to be between 1 and 1439 minutes",
                self.subnet_lease_renew_margin
            ));
        }
        if self.subnet_lease_ttl < 2 {
            return Err("--subnet-lease-ttl: it has to be 2 seconds or more".to_owned());
        }
        let mut notes = Vec::new();
        let names_api = !self.kube_api_url.is_empty() || !self.kubeconfig_file.is_empty();
        if names_api && !self.kube_subnet_mgr {
            notes.push("flags for --kube-subnet-mgr have no effect without it");
        }
        if self.verbosity.is_some() {
            notes.push("-v has no effect: CARACAL_LOG says what is shown");
        }
        Ok(notes)
    }

    /// The way to etcd. As flanneld does, the CA counts only together with certificate and key.
    pub(crate) fn etcd(&self) -> EtcdConfig {
        let secure = self.etcd_keyfile.is_some() && self.etcd_certfile.is_some();
        let credentials = self.etcd_username.clone().zip(self.etcd_password.clone());
        EtcdConfig {
            ca_cert_file: self.etcd_cafile.clone().filter(|_| secure),
            cert_file: self.etcd_certfile.clone().filter(|_| secure),
            key_file: self.etcd_keyfile.clone().filter(|_| secure),
            credentials: credentials
                .map(|(username, password)| EtcdCredentials { username, password }),
            ..EtcdConfig::new(self.etcd_endpoints.iter().cloned())
        }
    }

    /// The way to Kubernetes' API, for the Node of this name; of everything that is there Nodes
    /// with their `podCIDRs` are read.
    pub(crate) fn kubernetes(&self, node: &NodeName) -> anyhow::Result<Datastore> {
        let config = DatastoreConfig::from_lookup(|name| {
            let value = match name {
                "DATASTORE_TYPE" => "kubernetes",
                "KUBECONFIG" => &self.kubeconfig_file,
                "K8S_API_ENDPOINT" => &self.kube_api_url,
                "CALICO_API_GROUP" => "crd.projectcalico.org/v1",
                "USE_POD_CIDR" => "true",
                _ => return None,
            };
            Some(value.to_owned())
        });
        Ok(config?.for_node(node, false, false).open()?)
    }

    /// Names of the annotations.
    pub(crate) fn annotations(&self) -> anyhow::Result<NodeAnnotations> {
        let prefix = &self.kube_annotation_prefix;
        NodeAnnotations::new(prefix)
            .map_err(|reason| anyhow::anyhow!("--kube-annotation-prefix={prefix}: {reason}"))
    }

    /// How long the lease lasts.
    pub(crate) const fn ttl(&self) -> Duration {
        Duration::from_secs(self.subnet_lease_ttl)
    }

    /// When it is renewed: the margin before its end, but not in its first half.
    pub(crate) fn renew_after(&self) -> Duration {
        let margin = Duration::from_secs(self.subnet_lease_renew_margin * 60);
        self.ttl().saturating_sub(margin).max(self.ttl() / 2)
    }

    /// Pause between looks at rules of iptables.
    pub(crate) fn iptables_resync(&self) -> Duration {
        Duration::from_secs(self.iptables_resync.max(1))
    }

    /// How long etcd must have been followed before anything is deleted.
    pub(crate) const fn settle(&self) -> Duration {
        Duration::from_secs(self.settle_time)
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
        args: FlannelArgs,
    }

    fn parse(line: &str) -> FlannelArgs {
        let words = ["caracal", "flannel"]
            .into_iter()
            .chain(line.split_whitespace());
        let mut words = flannels_words(words.map(OsString::from));
        words.remove(1);
        Line::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{e}"))
            .args
    }

    #[test]
    fn flags_are_flannelds() {
        let args = parse(
            "-etcd-endpoints=http://a:1,http://b:2 --etcd-prefix /net -iface eth1 -iface 10.0.0.1 --ip-masq -iptables-forward-rules=false -v=4",
        );
        assert_eq!(args.etcd().endpoints, ["http://a:1", "http://b:2"]);
        assert_eq!(
            (&*args.etcd_prefix, &args.iface[..]),
            ("/net", &["eth1".to_owned(), "10.0.0.1".to_owned()][..])
        );
        assert!(args.ip_masq && !args.iptables_forward_rules && !args.version);
        assert_eq!(args.check().unwrap().len(), 1);
        assert_eq!(parse("").check(), Ok(Vec::new()));
        assert_eq!(parse("").renew_after(), Duration::from_secs(23 * 3600));
        assert_eq!(
            parse("--subnet-lease-ttl 10").renew_after(),
            Duration::from_secs(5)
        );
        assert!(parse("-version").version);
    }

    #[test]
    fn dashes_of_the_command_for_docker_stay_as_they_are() {
        let words = |line: &str| {
            let words = flannels_words(line.split_whitespace().map(OsString::from));
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        for (line, expected) in [
            (
                "/opt/mk-docker-opts.sh -ic -f/s",
                "/opt/mk-docker-opts.sh flannel docker-opts -ic -f/s",
            ),
            (
                "caracal flannel docker-opts -ic -k flannel",
                "caracal flannel docker-opts -ic -k flannel",
            ),
            (
                "caracal flannel -iface docker-opts -v=1",
                "caracal flannel --iface docker-opts --v=1",
            ),
            ("caracal get -oyaml", "caracal get -oyaml"),
        ] {
            assert_eq!(words(line), expected);
        }
    }

    #[test]
    fn what_cannot_be_done_has_a_reason() {
        for (line, says) in [
            ("--subnet-lease-renew-margin=0", "between 1 and 1439"),
            ("--subnet-lease-ttl=1", "2 seconds"),
        ] {
            let reason = parse(line).check().unwrap_err();
            assert!(reason.contains(says), "{line}: {reason}");
        }
    }

    #[test]
    fn kubernetes_flags_have_flannelds_defaults() {
        let args = parse("-kube-subnet-mgr -kube-api-url=http://10.0.0.1:8080");
        assert!(args.kube_subnet_mgr && args.set_node_network_unavailable);
        assert_eq!(
            args.net_config_path,
            PathBuf::from("/etc/kube-flannel/net-conf.json")
        );
        assert!(args.annotations().is_ok());
        assert!(args.kubernetes(&"node-a".into()).is_ok());
        let wrong = parse("-kube-annotation-prefix=a/b/c")
            .annotations()
            .unwrap_err();
        assert!(
            wrong
                .to_string()
                .starts_with("--kube-annotation-prefix=a/b/c: ")
        );
        assert_eq!(parse("--kubeconfig-file=/k").check().unwrap().len(), 1);
    }

    #[test]
    fn the_ca_alone_is_ignored() {
        assert_eq!(parse("-etcd-cafile=/ca").etcd().ca_cert_file, None);
        let all = parse("-etcd-cafile=/ca -etcd-certfile=/c -etcd-keyfile=/k").etcd();
        assert_eq!(all.ca_cert_file, Some("/ca".into()));
        assert_eq!(all.key_file, Some("/k".into()));
    }
}
