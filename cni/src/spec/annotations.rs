//! Addresses that a call asks for: how many families, which pools, which addresses, which MAC.
//! Read from `CNI_ARGS`, `args.cni`, the `ips` and `mac` capabilities, and the pod's annotations,
//! from Kubernetes' API or where the runtime passes them on (capability
//! `io.kubernetes.cri.pod-annotations`). An annotation beats the configuration; pools may be
//! annotations of the pod's namespace, too.

use std::net::IpAddr;

use caracal_datastore::KubernetesPod;
use caracal_model::{Cidr, Family, Mac, parse_mac};
use serde_json::{Map, Value};

use super::{ConfigError, Env, NetConf};

const ANNOTATION: &str = "cni.projectcalico.org/";
const NO_IPAM: &str = "ipAddrsNoIpam";
const FLOATING: &str = "floatingIPs";
/// Annotations that a namespace may have in the place of its pods.
const POOLS: [&str; 2] = ["ipv4pools", "ipv6pools"];
const ANNOTATIONS_CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

/// Limits that Calico's plugin follows, and those of the CNI plugin bandwidth, which a runtime
/// tells that plugin alone.
const QOS: &str = "qos.projectcalico.org/";
const BANDWIDTH: [&str; 2] = [
    "kubernetes.io/ingress-bandwidth",
    "kubernetes.io/egress-bandwidth",
];

/// Addresses that a call asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// Families to assign an address of, when none is named.
    pub families: Vec<Family>,
    /// These addresses and no others.
    pub addresses: Vec<IpAddr>,
    /// IPv4 pools by name or CIDR; empty = any.
    pub ipv4_pools: Vec<String>,
    /// IPv6 pools by name or CIDR; empty = any.
    pub ipv6_pools: Vec<String>,
    /// These addresses without asking IPAM; exclusive of `addresses`.
    pub without_ipam: Vec<IpAddr>,
    /// The MAC of the pod's interface.
    pub mac: Option<Mac>,
    /// Limits that annotations ask for and that are not set: one sentence each.
    pub unmet: Vec<String>,
}

impl Wishes {
    /// Reads the wishes of a call, with those of its pod where Kubernetes was asked.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] names the source and what was seen.
    pub(crate) fn read(
        env: &Env,
        conf: &NetConf,
        pod: Option<&KubernetesPod>,
    ) -> Result<Self, ConfigError> {
        let annotations = annotations(conf, pod);
        let pools =
            |annotation: &'static str, configured: &[String]| match list(&annotations, annotation)?
            {
                Some(names) => Ok(names),
                None => Ok::<_, ConfigError>(configured.to_vec()),
            };
        refuse_floating(&annotations)?;
        let without_ipam = without_ipam(conf, &annotations)?;
        let addresses = addresses(env, conf, &annotations)?;
        if !without_ipam.is_empty() && !addresses.is_empty() {
            return Err(ConfigError::Invalid {
                key: NO_IPAM,
                reason: "other addresses are named as well; name one kind only".into(),
            });
        }
        Ok(Self {
            families: families(conf, &annotations)?,
            addresses,
            without_ipam,
            ipv4_pools: pools(POOLS[0], &conf.ipam.ipv4_pools)?,
            ipv6_pools: pools(POOLS[1], &conf.ipam.ipv6_pools)?,
            mac: mac(env, conf, &annotations)?,
            unmet: unmet(&annotations),
        })
    }

    /// The families of the attachment: those of the named addresses, else the wished ones.
    #[must_use]
    pub(crate) fn wanted_families(&self) -> Vec<Family> {
        let named = || self.addresses.iter().chain(&self.without_ipam);
        if named().next().is_none() {
            return self.families.clone();
        }
        [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter(|family| named().any(|a| Family::of(*a) == *family))
            .collect()
    }
}

/// What annotations ask for and this plugin does not do.
fn unmet(annotations: &Map<String, Value>) -> Vec<String> {
    let said = annotations.iter().filter_map(|(name, value)| {
        let why = match name.as_str() {
            name if name.starts_with(QOS) => {
                "has no effect here: nothing here limits what a pod sends or receives"
            }
            name if BANDWIDTH.contains(&name) => {
                "has an effect only where the CNI plugin bandwidth stands behind caracal in the list of plugins"
            }
            _ => return None,
        };
        Some(format!("annotation {name} {value} {why}"))
    });
    said.collect()
}

/// The pod's annotations as the runtime passes them, and over them as Kubernetes has them now.
fn annotations(conf: &NetConf, pod: Option<&KubernetesPod>) -> Map<String, Value> {
    let passed = conf.runtime_config.get(ANNOTATIONS_CAPABILITY);
    let passed = passed.and_then(Value::as_object).cloned();
    let mut all = passed.unwrap_or_default();
    let Some(pod) = pod else { return all };
    let set = |(key, text): (&String, &String)| {
        (!text.is_empty()).then(|| (key.clone(), text.as_str().into()))
    };
    all.extend(pod.annotations.iter().filter_map(set));
    for pools in POOLS {
        let key = format!("{ANNOTATION}{pools}");
        if let Some((key, text)) = pod.namespace_annotations.get_key_value(&key).and_then(set) {
            all.entry(key).or_insert(text);
        }
    }
    all
}

fn invalid(key: &'static str, value: &dyn std::fmt::Display, rule: &str) -> ConfigError {
    ConfigError::Invalid {
        key,
        reason: format!("{value} is refused; expected {rule}"),
    }
}

/// An annotation that holds a JSON list of texts.
fn list(
    annotations: &Map<String, Value>,
    name: &'static str,
) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(value) = annotations.get(&format!("{ANNOTATION}{name}")) else {
        return Ok(None);
    };
    let rule = "a JSON list of texts";
    let text = value.as_str().ok_or_else(|| invalid(name, value, rule))?;
    serde_json::from_str(text)
        .map(Some)
        .map_err(|_| invalid(name, value, rule))
}

fn families(conf: &NetConf, annotations: &Map<String, Value>) -> Result<Vec<Family>, ConfigError> {
    if let Some(names) = list(annotations, "ipFamilies")? {
        return names
            .iter()
            .map(|name| match name.as_str() {
                "IPv4" => Ok(Family::Ipv4),
                "IPv6" => Ok(Family::Ipv6),
                _ => Err(invalid("ipFamilies", name, "IPv4 or IPv6")),
            })
            .collect();
    }
    let mut families = Vec::new();
    if conf.ipam.assign_ipv4.unwrap_or(true) {
        families.push(Family::Ipv4);
    }
    if conf.ipam.assign_ipv6.unwrap_or(false) {
        families.push(Family::Ipv6);
    }
    if families.is_empty() && conf.ipam.is_ours() {
        return Err(ConfigError::Invalid {
            key: "ipam",
            reason: "assign_ipv4 and assign_ipv6 are both false; the pod would have no address"
                .into(),
        });
    }
    Ok(families)
}

fn address(key: &'static str, text: &str) -> Result<IpAddr, ConfigError> {
    let parsed = text.parse().ok().or_else(|| {
        let cidr: Option<Cidr> = text.parse().ok();
        cidr.map(|cidr| cidr.address)
    });
    parsed.ok_or_else(|| invalid(key, &format!("{text:?}"), "an IP address"))
}

/// The first source that names addresses wins: the pod's annotation, `CNI_ARGS`, the capability,
/// `args`.
fn addresses(
    env: &Env,
    conf: &NetConf,
    annotations: &Map<String, Value>,
) -> Result<Vec<IpAddr>, ConfigError> {
    if let Some(texts) = list(annotations, "ipAddrs")? {
        return texts.iter().map(|t| address("ipAddrs", t)).collect();
    }
    if let Some(texts) = env.arg("IP") {
        return texts
            .split(',')
            .map(|t| address("CNI_ARGS IP", t.trim()))
            .collect();
    }
    let of = |value: Option<&Value>, key: &'static str| -> Result<Vec<IpAddr>, ConfigError> {
        let Some(value) = value.filter(|value| !value.is_null()) else {
            return Ok(Vec::new());
        };
        let rule = "a list of addresses";
        let texts = value.as_array().ok_or_else(|| invalid(key, value, rule))?;
        texts
            .iter()
            .map(|t| address(key, t.as_str().ok_or_else(|| invalid(key, t, rule))?))
            .collect()
    };
    let capability = of(conf.runtime_config.get("ips"), "runtimeConfig.ips")?;
    if !capability.is_empty() {
        return Ok(capability);
    }
    of(
        conf.args.get("cni").and_then(|cni| cni.get("ips")),
        "args.cni.ips",
    )
}

/// Addresses that no pool knows need the administrator's leave, as with Calico's plugin.
fn without_ipam(
    conf: &NetConf,
    annotations: &Map<String, Value>,
) -> Result<Vec<IpAddr>, ConfigError> {
    let Some(texts) = list(annotations, NO_IPAM)? else {
        return Ok(Vec::new());
    };
    if !conf.feature_control.ip_addrs_no_ipam {
        return Err(ConfigError::Invalid {
            key: NO_IPAM,
            reason:
                "the pod brings its own addresses, and feature_control.ip_addrs_no_ipam is not \
                     true"
                    .into(),
        });
    }
    texts.iter().map(|t| address(NO_IPAM, t)).collect()
}

/// A pod that asks for a floating address and starts without it would look as if it had one.
fn refuse_floating(annotations: &Map<String, Value>) -> Result<(), ConfigError> {
    match list(annotations, FLOATING)? {
        Some(addresses) if !addresses.is_empty() => Err(ConfigError::Unsupported {
            key: FLOATING,
            value: addresses.join(", "),
            hint: "this node's agent translates no floating addresses; remove the annotation",
        }),
        _ => Ok(()),
    }
}

fn mac(
    env: &Env,
    conf: &NetConf,
    annotations: &Map<String, Value>,
) -> Result<Option<Mac>, ConfigError> {
    let text = annotations
        .get(&format!("{ANNOTATION}hwAddr"))
        .and_then(Value::as_str)
        .or_else(|| env.arg("MAC"))
        .or_else(|| conf.runtime_config.get("mac").and_then(Value::as_str));
    let Some(text) = text else { return Ok(None) };
    let mac = parse_mac(text).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
    mac.map(Some).ok_or_else(|| {
        invalid(
            "MAC",
            &format!("{text:?}"),
            "a unicast MAC such as 02:00:00:00:00:01",
        )
    })
}
