//! The environment of `caracal node`, read once and resolved: Calico's variable names, Calico's
//! defaults.
//!
//! Nothing is ignored silently: a value that does not parse is an error that names the variable,
//! and a variable of ours, Calico's or Felix's that nothing reads is named in a warning.

pub(crate) mod console;
pub(crate) mod group;
mod policy;
pub(crate) mod ports;
pub(crate) mod services;
pub(crate) mod variables;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use caracal_agent::ServiceSettings;
use caracal_bgp::{Asn, OpenRanges, OpenRangesError, OriginMode, OriginModeError};
use caracal_datastore::Accept;
use caracal_model::{AsNumber, Cidr, EncapMode, Family, InsertEach, NodeName, Prefix};
use caracal_topologies::{MaxPrefixes, RouterIdChoice};

use self::console::ConsoleFiles;
use self::group::AdminGroup;
use self::policy::enforces_policy;
use self::ports::PortsEnv;
use self::services::{ServicesMode, proxy_health, service_settings};
use crate::detect::Method;

/// Namespace of Calico's own objects.
const NAMESPACE: &str = "kube-system";

/// The CNI plugin's account in Kubernetes, and where its kubeconfig is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginAccount {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

impl PluginAccount {
    /// Calico's variables; `None` when no account is named.
    pub(crate) fn from_env(env: &Env<'_>) -> Option<Self> {
        let folder = env.text("CNI_CONF_DIR").unwrap_or("/host/etc/cni/net.d");
        Some(Self {
            name: env.text("CALICO_CNI_SERVICE_ACCOUNT")?.to_owned(),
            file: PathBuf::from(folder).join(Self::file_name(env)),
        })
    }

    /// The name of the kubeconfig beside the CNI configuration.
    pub(crate) fn file_name<'a>(env: &Env<'a>) -> &'a str {
        env.text("KUBECONFIG_FILE_NAME")
            .unwrap_or("caracal-kubeconfig")
    }
}

/// Everything `caracal node` was told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) node: NodeName,
    /// Directory of `nodename`, `mtu` and pending releases.
    pub(crate) lib_dir: PathBuf,
    /// Directory of the admin socket.
    pub(crate) run_dir: PathBuf,
    /// `CARACAL_ADMIN_GROUP`: who may use it beside root.
    pub(crate) admin_group: Option<AdminGroup>,
    /// Passwords of sessions: NAME/KEY, as Kubernetes mounts Secrets.
    pub(crate) secrets_dir: Option<PathBuf>,
    /// Namespace of the Secrets that hold passwords, where no directory is named.
    pub(crate) namespace: String,
    /// The CNI plugin's account in Kubernetes.
    pub(crate) plugin_account: Option<PluginAccount>,
    /// Source of the routes between nodes.
    pub(crate) backend: Backend,
    /// IPv4 address.
    pub(crate) ip: AddressChoice,
    /// IPv6 address.
    pub(crate) ip6: AddressChoice,
    /// AS number of this node; `None` = the cluster's.
    pub(crate) asn: Option<Asn>,
    /// `CARACAL_DATASTORE_ACCEPT`: what may be followed although it looks like a fault of the
    /// datastore.
    pub(crate) accept: Accept,
    /// `CARACAL_EBGP_REQUIRES_POLICY`: towards another AS nothing passes without a BGPFilter (RFC
    /// 8212).
    pub(crate) ebgp_requires_policy: bool,
    /// `CARACAL_MAX_PREFIXES`: how many prefixes a peer may announce in each family.
    pub(crate) max_prefixes: MaxPrefixes,
    /// `CARACAL_ALLOW_MARTIANS`: ranges that are routed although they are refused by default.
    pub(crate) allow_martians: OpenRanges,
    /// `CARACAL_ORIGIN_CHECK`: what follows when a route does not come from the owner of its
    /// prefix.
    pub(crate) origin_check: OriginMode,
    /// `CALICO_ROUTER_ID`: empty, `hash` or a dotted quad.
    pub(crate) router_id: RouterIdSetting,
    /// Name of the node in Kubernetes.
    pub(crate) orch_ref: Option<String>,
    /// Poll the datastore until it answers instead of failing.
    pub(crate) wait_for_datastore: bool,
    /// Do not look for other nodes with our address.
    pub(crate) skip_address_check: bool,
    /// The default pools; `None` = not wanted.
    pub(crate) pool_v4: Option<PoolDefaults>,
    /// The same for IPv6.
    pub(crate) pool_v6: Option<PoolDefaults>,
    pub(crate) cluster_type: Option<String>,
    /// `CARACAL_NEXTHOP_OBJECTS`: where the kernel has them, unless it is `off`.
    pub(crate) next_hop_objects: bool,
    /// `FELIX_*` by the FelixConfiguration key in lower case; wins over the datastore.
    pub(crate) felix: BTreeMap<String, String>,
    /// Things to tell the operator once.
    pub(crate) warnings: Vec<String>,
    /// How long an address must look dead before it is collected; `None` = never.
    pub(crate) ipam_grace: Option<Duration>,
    /// Whether network policy is enforced on this node.
    pub(crate) enforces_policy: bool,
    /// Whether addresses of Services are translated on this node.
    pub(crate) services: ServicesMode,
    /// How they are.
    pub(crate) service_settings: ServiceSettings,
    /// Where load balancers ask whether it translates; `None` = nowhere.
    pub(crate) proxy_health: Option<SocketAddr>,
    /// The paths to other nodes are measured.
    pub(crate) path_mtu: bool,
    /// `CARACAL_CONSOLE`: where the console is served; `None` = nowhere.
    pub(crate) console: Option<SocketAddr>,
    /// Who may ask it, and who we are when we ask others.
    pub(crate) console_files: ConsoleFiles,
    /// Settings of the environment for the health and metrics endpoints.
    pub(crate) ports: PortsEnv,
}

/// `CALICO_NETWORKING_BACKEND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// BGP, and tunnels where pools ask for them.
    Bird,
    /// No BGP.
    Vxlan,
    /// No BGP and no address of our own.
    None,
}

/// How an address of the node is found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AddressChoice {
    /// By a method; `only_if_unset` keeps a value that the Node already has.
    Autodetect {
        method: Method,
        /// True when the variable was empty rather than `autodetect`.
        only_if_unset: bool,
    },
    /// Given. Without a prefix length, it is taken from the interface that has the address.
    Literal {
        address: IpAddr,
        /// The prefix length, when given.
        len: Option<u8>,
    },
    /// The Node's value is left alone.
    Keep,
}

/// `CALICO_ROUTER_ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouterIdSetting {
    /// The node's IPv4 address.
    NodeAddress,
    /// From the node's name.
    Hash,
    /// Given.
    Literal(std::net::Ipv4Addr),
}

/// A default pool to create when there is none of its family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PoolDefaults {
    /// Range; `None` = Calico's choice.
    pub(crate) cidr: Option<Prefix>,
    pub(crate) ipip: EncapMode,
    pub(crate) vxlan: EncapMode,
    /// Prefix length of blocks.
    pub(crate) block_size: u8,
    /// Masquerade.
    pub(crate) nat_outgoing: bool,
    pub(crate) node_selector: String,
    /// Do not announce.
    pub(crate) disable_bgp_export: bool,
}

/// A variable with a value that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?}: {reason}")]
pub(crate) struct ConfigError {
    variable: String,
    value: String,
    reason: String,
}

/// `FELIX_*` variables that are read elsewhere than as FelixConfiguration keys.
const OTHER_FELIX: &[&str] = &[
    "FELIX_ETCDENDPOINTS",
    "FELIX_ETCDCAFILE",
    "FELIX_ETCDCERTFILE",
    "FELIX_ETCDKEYFILE",
];

fn is_known_felix(name: &str) -> bool {
    let key = name.strip_prefix("FELIX_");
    OTHER_FELIX.contains(&name) || key.and_then(caracal_agent::setting_effect).is_some()
}

/// The variables of this process whose names and values are text.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).insert_each()
}

/// The environment as a map, with typed access.
pub(crate) struct Env<'a>(&'a BTreeMap<String, String>);

impl<'a> Env<'a> {
    /// Over these variables.
    pub(crate) const fn new(vars: &'a BTreeMap<String, String>) -> Self {
        Self(vars)
    }

    /// A variable's value; empty counts as absent, as in Calico.
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    /// A variable through its parser; `None` when it is absent or empty.
    pub(crate) fn parse<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        parse(text).map(Some).map_err(|reason| ConfigError {
            variable: name.to_owned(),
            value: text.to_owned(),
            reason,
        })
    }

    /// A variable that is true or false.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        let value = self.parse(name, |text| match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err("expected true or false".to_owned()),
        })?;
        Ok(value.unwrap_or(default))
    }

    fn encap(&self, name: &str) -> Result<EncapMode, ConfigError> {
        let mode = self.parse(name, |text| {
            EncapMode::from_text(text).ok_or_else(|| "expected Always, CrossSubnet or Never".into())
        })?;
        Ok(mode.unwrap_or_default())
    }
}

/// `CALICO_ROUTER_ID`, for the node and for whoever renders its configuration.
pub(crate) fn router_id(env: &Env<'_>) -> Result<RouterIdSetting, ConfigError> {
    let choice = env.parse("CALICO_ROUTER_ID", |text| match text {
        "hash" => Ok(RouterIdSetting::Hash),
        text => text
            .parse()
            .map(RouterIdSetting::Literal)
            .map_err(|_| "expected hash or a dotted quad".to_owned()),
    })?;
    Ok(choice.unwrap_or(RouterIdSetting::NodeAddress))
}

fn backend(env: &Env<'_>) -> Result<Option<Backend>, ConfigError> {
    env.parse("CALICO_NETWORKING_BACKEND", |text| match text {
        "bird" | "caracal" => Ok(Backend::Bird),
        "vxlan" => Ok(Backend::Vxlan),
        "none" => Ok(Backend::None),
        _ => Err("expected bird, vxlan or none".to_owned()),
    })
}

fn asn(env: &Env<'_>) -> Result<Option<Asn>, ConfigError> {
    env.parse("AS", |text| match AsNumber::from_text(text) {
        Some(AsNumber(0)) => Err("AS 0 is reserved (RFC 7607)".to_owned()),
        Some(AsNumber(number)) => Ok(Asn(number)),
        None => Err("expected an AS number, 1 to 4294967295 or HIGH.LOW".to_owned()),
    })
}

fn next_hop_objects(env: &Env<'_>) -> Result<Option<bool>, ConfigError> {
    env.parse("CARACAL_NEXTHOP_OBJECTS", |text| match text {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected auto or off".to_owned()),
    })
}

/// `CARACAL_MAX_PREFIXES`, likewise; `None` where it is not set.
pub(crate) fn max_prefixes(env: &Env<'_>) -> Result<Option<MaxPrefixes>, ConfigError> {
    env.parse("CARACAL_MAX_PREFIXES", |text| {
        MaxPrefixes::parse(text).ok_or_else(|| "expected a number above 0, or off".to_owned())
    })
}

impl RouterIdSetting {
    /// As the plan takes it.
    pub(crate) const fn choice(self) -> RouterIdChoice {
        match self {
            Self::NodeAddress => RouterIdChoice::NodeAddress,
            Self::Hash => RouterIdChoice::Hash,
            Self::Literal(id) => RouterIdChoice::Literal(id),
        }
    }
}

/// The library directory where `CARACAL_LIB_DIR` names none.
pub(crate) const LIB_DIR: &str = "/var/lib/calico";

/// The directory of the admin socket where `CARACAL_RUN_DIR` names none.
const RUN_DIR: &str = "/var/run/caracal";

/// The directory of the admin socket of this process's environment.
pub(crate) fn run_dir() -> PathBuf {
    std::env::var_os("CARACAL_RUN_DIR").map_or_else(|| RUN_DIR.into(), PathBuf::from)
}

/// The library directory of this process's environment.
pub(crate) fn lib_dir() -> PathBuf {
    std::env::var_os("CARACAL_LIB_DIR").map_or_else(|| LIB_DIR.into(), PathBuf::from)
}

impl Config {
    /// Resolves the environment. `nodename_file` and `hostname` are the fall-backs for the name.
    pub(crate) fn from_env(
        vars: &BTreeMap<String, String>,
        nodename_file: Option<&str>,
        hostname: &str,
    ) -> Result<Self, ConfigError> {
        let env = Env::new(vars);
        let lib_dir = PathBuf::from(env.text("CARACAL_LIB_DIR").unwrap_or(LIB_DIR));
        let secrets_dir = env.text("CARACAL_SECRETS_DIR").map(PathBuf::from);
        let run_dir = PathBuf::from(env.text("CARACAL_RUN_DIR").unwrap_or(RUN_DIR));
        let max_prefixes = max_prefixes(&env)?;
        let router_id = router_id(&env)?;
        let v6_pools = env.flag("FELIX_IPV6SUPPORT", true)?;
        let no_pools = env.flag("NO_DEFAULT_POOLS", false)?;
        let ip6 = address_choice(&env, Family::Ipv6)?;
        let wants_v6 = v6_pools && ip6 != AddressChoice::Keep;
        Ok(Self {
            node: node_name(&env, nodename_file, hostname)?,
            lib_dir,
            run_dir,
            admin_group: env.parse("CARACAL_ADMIN_GROUP", AdminGroup::named)?,
            secrets_dir,
            namespace: env.text("NAMESPACE").unwrap_or(NAMESPACE).to_owned(),
            plugin_account: PluginAccount::from_env(&env),
            backend: backend(&env)?.unwrap_or(Backend::Bird),
            ip: address_choice(&env, Family::Ipv4)?,
            asn: asn(&env)?,
            accept: env
                .parse("CARACAL_DATASTORE_ACCEPT", accept)?
                .unwrap_or_default(),
            max_prefixes: max_prefixes.unwrap_or_default(),
            ebgp_requires_policy: env.flag("CARACAL_EBGP_REQUIRES_POLICY", false)?,
            allow_martians: env
                .parse("CARACAL_ALLOW_MARTIANS", |text| {
                    text.parse().map_err(|e: OpenRangesError| e.to_string())
                })?
                .unwrap_or_default(),
            origin_check: env
                .parse("CARACAL_ORIGIN_CHECK", |text| {
                    text.parse().map_err(|e: OriginModeError| e.to_string())
                })?
                .unwrap_or(OriginMode::Enforce),
            router_id,
            orch_ref: env.text("CALICO_K8S_NODE_REF").map(str::to_owned),
            wait_for_datastore: env.flag("WAIT_FOR_DATASTORE", false)?,
            skip_address_check: env.flag("DISABLE_NODE_IP_CHECK", false)?,
            pool_v4: if no_pools {
                None
            } else {
                pool_defaults(&env, Family::Ipv4)?
            },
            pool_v6: if no_pools || !wants_v6 {
                None
            } else {
                pool_defaults(&env, Family::Ipv6)?
            },
            cluster_type: env.text("CLUSTER_TYPE").map(str::to_owned),
            felix: felix(vars),
            next_hop_objects: next_hop_objects(&env)?.unwrap_or(true),
            warnings: variables::warnings(vars),
            ipam_grace: ipam_grace(&env)?,
            enforces_policy: enforces_policy(&env)?,
            services: ServicesMode::from_env(&env)?,
            service_settings: service_settings(&env)?,
            proxy_health: proxy_health(&env)?,
            path_mtu: env.flag("CARACAL_PATH_MTU_DISCOVERY", true)?,
            console: console::address(&env)?,
            console_files: ConsoleFiles::from_env(&env),
            ports: PortsEnv::from_env(&env)?,
            ip6,
        })
    }
}

fn accept(text: &str) -> Result<Accept, String> {
    let is_guid =
        |text: &str| text.len() >= 8 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    match text {
        "never" => Ok(Accept::Never),
        "always" => Ok(Accept::Always),
        guid if is_guid(guid) => Ok(Accept::Cluster(guid.to_owned())),
        _ => Err("expected never, always, or the clusterGUID of the cluster to follow".to_owned()),
    }
}

/// `CARACAL_IPAM_GC_GRACE_SECONDS`: 15 minutes, as Calico's controllers; 0 turns the collector off.
fn ipam_grace(env: &Env<'_>) -> Result<Option<Duration>, ConfigError> {
    let seconds = env.parse("CARACAL_IPAM_GC_GRACE_SECONDS", |text| {
        let number = text.parse::<u64>().ok().filter(|n| *n <= 86_400);
        number.ok_or_else(|| "expected seconds, 0 to 86400; 0 turns the collector off".to_owned())
    })?;
    Ok(match seconds.unwrap_or(900) {
        0 => None,
        seconds => Some(Duration::from_secs(seconds)),
    })
}

fn node_name(
    env: &Env<'_>,
    nodename_file: Option<&str>,
    hostname: &str,
) -> Result<NodeName, ConfigError> {
    let name = env
        .text("NODENAME")
        .map(str::to_owned)
        .or_else(|| {
            nodename_file
                .map(|text| text.trim().to_owned())
                .filter(|t| !t.is_empty())
        })
        .or_else(|| env.text("HOSTNAME").map(str::to_lowercase))
        .unwrap_or_else(|| hostname.trim().to_lowercase());
    let fault = if name.is_empty() {
        "no node name: set NODENAME"
    } else if name.contains('/') || name.chars().any(char::is_whitespace) {
        "a node name holds no blanks and no slashes: it is part of names in the datastore"
    } else {
        return Ok(NodeName::from(name));
    };
    Err(ConfigError {
        variable: "NODENAME".to_owned(),
        value: name,
        reason: fault.to_owned(),
    })
}

fn address_choice(env: &Env<'_>, family: Family) -> Result<AddressChoice, ConfigError> {
    let (variable, method) = match family {
        Family::Ipv4 => ("IP", "IP_AUTODETECTION_METHOD"),
        Family::Ipv6 => ("IP6", "IP6_AUTODETECTION_METHOD"),
    };
    let method = env
        .parse(method, Method::parse)?
        .unwrap_or(Method::FirstFound);
    let choice = env.parse(variable, |text| match text {
        "autodetect" => Ok(AddressChoice::Autodetect {
            method: method.clone(),
            only_if_unset: false,
        }),
        "none" => Ok(AddressChoice::Keep),
        text => {
            let cidr: Cidr = text.parse().map_err(|e| format!("{e}"))?;
            if Family::of(cidr.address) != family {
                return Err(format!("expected an {family} address, autodetect or none"));
            }
            let len = text.contains('/').then_some(cidr.len);
            Ok(AddressChoice::Literal {
                address: cidr.address,
                len,
            })
        }
    })?;
    Ok(choice.unwrap_or(match family {
        Family::Ipv4 => AddressChoice::Autodetect {
            method,
            only_if_unset: true,
        },
        // Only an explicit word turns IPv6 on.
        Family::Ipv6 => AddressChoice::Keep,
    }))
}

fn pool_defaults(env: &Env<'_>, family: Family) -> Result<Option<PoolDefaults>, ConfigError> {
    let (v, block_size, nat) = match family {
        Family::Ipv4 => ("CALICO_IPV4POOL", 26, true),
        Family::Ipv6 => ("CALICO_IPV6POOL", 122, false),
    };
    if env.text(&format!("{v}_CIDR")) == Some("none") {
        return Ok(None);
    }
    let number = |text: &str| {
        text.parse::<u8>()
            .map_err(|_| "expected a prefix length".to_owned())
    };
    Ok(Some(PoolDefaults {
        cidr: env.parse(&format!("{v}_CIDR"), |text| {
            let cidr = Prefix::parse_strict(text).map_err(|e| e.to_string())?;
            if cidr.family() == family {
                Ok(cidr)
            } else {
                Err(format!("expected {family}"))
            }
        })?,
        ipip: match family {
            Family::Ipv4 => env.encap(&format!("{v}_IPIP"))?,
            Family::Ipv6 => EncapMode::Never,
        },
        vxlan: env.encap(&format!("{v}_VXLAN"))?,
        block_size: env
            .parse(&format!("{v}_BLOCK_SIZE"), number)?
            .unwrap_or(block_size),
        nat_outgoing: env.flag(&format!("{v}_NAT_OUTGOING"), nat)?,
        node_selector: env
            .text(&format!("{v}_NODE_SELECTOR"))
            .unwrap_or("all()")
            .to_owned(),
        disable_bgp_export: env.flag(&format!("{v}_DISABLE_BGP_EXPORT"), false)?,
    }))
}

/// `FELIX_*` variables by FelixConfiguration key, lower case.
fn felix(vars: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let pairs = vars.iter().filter(|(_, value)| !value.trim().is_empty());
    pairs
        .filter_map(|(name, value)| {
            Some((
                name.strip_prefix("FELIX_")?.to_ascii_lowercase(),
                value.trim().to_owned(),
            ))
        })
        .insert_each()
}

#[cfg(test)]
mod tests;
