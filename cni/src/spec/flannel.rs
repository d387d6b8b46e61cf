//! The configuration of flannel's plugin, and the one that follows from it for the plugin that does
//! the work. Pure: `subnet.env` and the configuration in, a configuration out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use caracal_flannel::SubnetEnv;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ConfigError;
use super::config::{ValidAttachment, check_name, decode, null_default};
use super::version::{CniVersion, VersionError};

/// Where flanneld and `caracal flannel` write.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
/// Flannel's directory of what was rendered for each attachment.
const DATA_DIR: &str = "/var/lib/cni/flannel";
/// The main plugin, unless the configuration names one.
const BRIDGE: &str = "bridge";
/// The IPAM plugin, likewise.
const HOST_LOCAL: &str = "host-local";
/// Plugins that cannot do the work: this one, and the one that attaches to Calico's network.
const NO_DELEGATES: [&str; 4] = ["flannel", "caracal-flannel", "caracal-cni", "calico"];
/// Keys that are the runtime's.
const RUNTIMES: [&str; 3] = ["type", "capabilities", "disableCheck"];

/// The configuration of flannel's plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FlannelConf {
    /// Version of the specification.
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    /// Name of the network, unique on the node.
    pub name: String,
    /// File of the daemon; empty = flannel's place.
    #[serde(rename = "subnetFile", deserialize_with = "null_default")]
    subnet_file: String,
    /// Directory of what was rendered; empty = flannel's place.
    #[serde(rename = "dataDir", deserialize_with = "null_default")]
    data_dir: String,
    /// Configuration of the plugin that does the work, without what is rendered.
    #[serde(deserialize_with = "null_default")]
    delegate: Map<String, Value>,
    /// Configuration of its IPAM plugin, likewise.
    #[serde(deserialize_with = "null_default")]
    ipam: Map<String, Value>,
    /// Values of the runtime for the `capabilities`.
    #[serde(rename = "runtimeConfig", deserialize_with = "null_default")]
    runtime_config: Map<String, Value>,
    /// Result of the ADD, of the whole chain.
    #[serde(rename = "prevResult")]
    pub prev_result: Option<Value>,
    /// `GC`: the attachments that are alive.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<ValidAttachment>>,
    /// All other keys.
    #[serde(flatten)]
    extra: BTreeMap<String, Value>,
}

fn invalid(key: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        key,
        reason: reason.into(),
    }
}

impl FlannelConf {
    /// Reads a configuration. What only an ADD needs is checked by [`FlannelConf::render`]: a
    /// configuration that somebody has broken since must not keep containers from ending.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn parse(stdin: &[u8]) -> Result<Self, ConfigError> {
        decode(stdin)
    }

    /// The version of the specification.
    ///
    /// # Errors
    /// [`VersionError`] with what was seen.
    pub(crate) fn version(&self) -> Result<CniVersion, VersionError> {
        self.cni_version.parse()
    }

    /// The daemon's file.
    #[must_use]
    pub(crate) fn subnet_file(&self) -> PathBuf {
        match self.subnet_file.as_str() {
            "" => SUBNET_FILE.into(),
            path => path.into(),
        }
    }

    /// Directory of what was rendered.
    #[must_use]
    pub(crate) fn data_dir(&self) -> PathBuf {
        match self.data_dir.as_str() {
            "" => DATA_DIR.into(),
            path => path.into(),
        }
    }

    /// What in the configuration changes nothing: one sentence each.
    #[must_use]
    pub(crate) fn notes(&self) -> Vec<String> {
        let known =
            |key: &&String| !RUNTIMES.contains(&key.as_str()) && !key.starts_with("cni.dev/");
        let unknown: Vec<&str> = self
            .extra
            .keys()
            .filter(known)
            .map(String::as_str)
            .collect();
        let mut notes = Vec::new();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            notes.push(format!(
                "unknown keys in the network configuration: {unknown}"
            ));
        }
        if self.ipam.contains_key("ranges") {
            notes.push("ipam.ranges has no effect: the ranges are those of subnet.env".to_owned());
        }
        notes
    }

    /// The configuration of the plugin that does the work: what is set stays, and the node's subnet
    /// does the rest.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn render(&self, env: &SubnetEnv) -> Result<Map<String, Value>, ConfigError> {
        self.version()?;
        check_name(&self.name)?;
        for (key, place) in [("name", "beside"), ("ipam", "as \"ipam\" beside")] {
            if self.delegate.contains_key(key) {
                let reason = format!("{key:?} must not be in it; it stands {place} \"delegate\"");
                return Err(invalid("delegate", reason));
            }
        }
        let kind = text("delegate.type", self.delegate.get("type"), BRIDGE)?;
        if NO_DELEGATES.contains(&kind) {
            let reason = format!("{kind:?} cannot do the work of another plugin; use \"bridge\"");
            return Err(invalid("delegate.type", reason));
        }
        let mut all = Map::new();
        all.insert("name".into(), self.name.as_str().into());
        all.insert("cniVersion".into(), self.cni_version.as_str().into());
        all.insert("type".into(), kind.into());
        for (key, value) in &self.delegate {
            all.entry(key).or_insert_with(|| value.clone());
        }
        let mut set = |key: &str, value: Value| {
            all.entry(key).or_insert(value);
        };
        // Somebody has to, and only one.
        set("ipMasq", (!env.masquerades).into());
        set("mtu", env.mtu.into());
        if kind == BRIDGE {
            set("isGateway", true.into());
        }
        all.insert("ipam".into(), self.render_ipam(env)?.into());
        if !self.runtime_config.is_empty() {
            all.insert("runtimeConfig".into(), self.runtime_config.clone().into());
        }
        Ok(all)
    }

    fn render_ipam(&self, env: &SubnetEnv) -> Result<Map<String, Value>, ConfigError> {
        let mut ipam = self.ipam.clone();
        let kind = text("ipam.type", ipam.get("type"), HOST_LOCAL)?;
        ipam.insert("type".into(), kind.into());
        let ranges = env.subnets().map(|subnet| json!([{ "subnet": subnet }]));
        ipam.insert("ranges".into(), ranges.collect());
        let mut routes = match ipam.remove("routes") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(routes)) => routes,
            Some(other) => return Err(invalid("ipam.routes", format!("{other} is no list"))),
        };
        for network in &env.networks {
            let route = json!({ "dst": network });
            if !routes.iter().any(|given| given["dst"] == route["dst"]) {
                routes.push(route);
            }
        }
        ipam.insert("routes".into(), routes.into());
        Ok(ipam)
    }
}

/// The name of a plugin.
fn text<'a>(
    key: &'static str,
    value: Option<&'a Value>,
    absent: &'a str,
) -> Result<&'a str, ConfigError> {
    match value {
        None => Ok(absent),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(invalid(key, format!("{other} is no text"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DUAL: &str = "FLANNEL_NETWORK=10.5.0.0/16,10.6.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:48::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    const V4: &str = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

    fn rendered(conf: &Value, env: &str) -> Result<Value, String> {
        let mut all = json!({"cniVersion": "0.3.1", "name": "cbr0", "type": "flannel"});
        let (Value::Object(all), Value::Object(conf)) = (&mut all, conf) else {
            panic!("objects");
        };
        all.extend(conf.clone());
        let all = Value::Object(all.clone()).to_string();
        let conf = FlannelConf::parse(all.as_bytes()).map_err(|e| e.to_string())?;
        let env = SubnetEnv::parse(env).unwrap();
        conf.render(&env)
            .map(Value::Object)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_set_stays_and_the_node_does_the_rest() {
        let v4 = json!({"type": "host-local", "ranges": [[{"subnet": "10.5.72.0/24"}]],
            "routes": [{"dst": "10.5.0.0/16"}]});
        for (conf, env, expected) in [
            (
                json!({}),
                V4,
                json!({"name": "cbr0", "cniVersion": "0.3.1", "type": "bridge",
                    "ipMasq": true, "mtu": 1450, "isGateway": true, "ipam": v4}),
            ),
            // The one of flannel's manifest.
            (
                json!({"delegate": {"hairpinMode": true, "isDefaultGateway": true}}),
                V4,
                json!({"name": "cbr0", "cniVersion": "0.3.1", "type": "bridge",
                    "hairpinMode": true, "isDefaultGateway": true,
                    "ipMasq": true, "mtu": 1450, "isGateway": true, "ipam": v4}),
            ),
            (
                json!({"delegate": {"bridge": "b0", "ipMasq": true, "mtu": 1400, "isGateway": false, "cniVersion": "0.1.0"},
                    "ipam": {"dataDir": "/d", "ranges": [], "routes": [{"dst": "10.6.0.0/16", "gw": "10.5.72.9"}]},
                    "runtimeConfig": {"mac": "02:00:00:00:00:09"}}),
                DUAL,
                json!({"name": "cbr0", "cniVersion": "0.3.1", "type": "bridge",
                    "bridge": "b0", "ipMasq": true, "mtu": 1400, "isGateway": false,
                    "ipam": {"dataDir": "/d", "type": "host-local",
                        "ranges": [[{"subnet": "10.5.72.0/24"}], [{"subnet": "fd00:5:0:48::/64"}]],
                        "routes": [{"dst": "10.6.0.0/16", "gw": "10.5.72.9"}, {"dst": "10.5.0.0/16"}, {"dst": "fd00:5::/48"}]},
                    "runtimeConfig": {"mac": "02:00:00:00:00:09"}}),
            ),
            (
                json!({"delegate": {"type": "ptp"}, "ipam": {"type": "other"}}),
                DUAL,
                json!({"name": "cbr0", "cniVersion": "0.3.1", "type": "ptp",
                    "ipMasq": false, "mtu": 1450,
                    "ipam": {"type": "other",
                        "ranges": [[{"subnet": "10.5.72.0/24"}], [{"subnet": "fd00:5:0:48::/64"}]],
                        "routes": [{"dst": "10.5.0.0/16"}, {"dst": "10.6.0.0/16"}, {"dst": "fd00:5::/48"}]}}),
            ),
        ] {
            assert_eq!(rendered(&conf, env), Ok(expected), "{conf}");
        }
    }

    #[test]
    fn what_cannot_be_rendered_is_named() {
        for (conf, says) in [
            (
                json!({"delegate": {"name": "x"}}),
                "delegate: \"name\" must not be in it; it stands beside",
            ),
            (
                json!({"delegate": {"ipam": {}}}),
                "delegate: \"ipam\" must not be in it",
            ),
            (
                json!({"delegate": {"type": 7}}),
                "delegate.type: 7 is no text",
            ),
            (
                json!({"delegate": {"type": "flannel"}}),
                "cannot do the work of another plugin",
            ),
            (
                json!({"delegate": []}),
                "delegate has a value of the wrong type",
            ),
            (
                json!({"ipam": {"type": null}}),
                "ipam.type: null is no text",
            ),
            (
                json!({"ipam": {"routes": {}}}),
                "ipam.routes: {} is no list",
            ),
            (json!({"name": "a/b"}), "\"a/b\" is no network name"),
            (
                json!({"cniVersion": "0.2.0"}),
                "cniVersion \"0.2.0\" is not supported",
            ),
        ] {
            let told = rendered(&conf, V4).unwrap_err();
            assert!(told.contains(says), "{conf}: {told}");
        }
    }

    #[test]
    fn places_are_flannels_and_what_has_no_effect_is_named() {
        let parse = |conf: Value| FlannelConf::parse(conf.to_string().as_bytes()).unwrap();
        let conf = parse(json!({"type": "flannel", "subnetFile": null, "capabilities": {}}));
        assert_eq!(conf.subnet_file(), PathBuf::from("/run/flannel/subnet.env"));
        assert_eq!(conf.data_dir(), PathBuf::from("/var/lib/cni/flannel"));
        assert_eq!(conf.notes(), [""; 0]);
        let conf = parse(
            json!({"subnetFile": "/s", "dataDir": "/d", "bridge": "b0", "ipam": {"ranges": []}}),
        );
        assert_eq!(conf.subnet_file(), PathBuf::from("/s"));
        assert_eq!(conf.data_dir(), PathBuf::from("/d"));
        assert_eq!(
            conf.notes(),
            [
                "unknown keys in the network configuration: bridge",
                "ipam.ranges has no effect: the ranges are those of subnet.env",
            ]
        );
    }
}
