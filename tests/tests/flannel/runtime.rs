//! A container runtime on a site's node: it calls the plugins of a list one after the other, as
//! libcni does, with the real `bridge`, `host-local` and `portmap` of the CNI project.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use caracal_lab::{netns_path, program_output};
use caracal_tests::{SECOND, binary};
use serde_json::{Map, Value, json};

use super::site::Site;

/// Where Debian has the plugins of the CNI project.
const PLUGINS: &str = "/usr/lib/cni";
/// Programs of the CNI project that a scenario with pods needs.
pub(crate) const NEEDED: [&str; 3] = [
    "/usr/lib/cni/bridge",
    "/usr/lib/cni/host-local",
    "/usr/lib/cni/portmap",
];

/// The runtime of one node.
pub(crate) struct Runtime {
    node: u8,
    netns: String,
    folder: PathBuf,
    /// The list of plugins; scenarios change what they need.
    pub(crate) list: Value,
    /// Folders that plugins are told by variables.
    pub(crate) environment: Vec<(String, PathBuf)>,
}

/// A container: a namespace of the site, with an identifier.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    netns: String,
    pub(crate) id: String,
    /// The pod of Kubernetes, in the namespace `default`.
    pub(crate) pod: Option<&'static str>,
    /// The last result; a runtime remembers it for CHECK and DEL.
    pub(crate) result: Option<Value>,
}

impl Runtime {
    /// The runtime of a node, with flannel's own list, but for the places of files. `kind` is what
    /// the list calls our plugin.
    pub(crate) fn new(site: &Site, node: u8, kind: &str) -> Self {
        let folder = site.folder().join(format!("cni{node}"));
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        let link = folder.join("bin").join(kind);
        if !link.exists() {
            symlink(binary(), &link).unwrap();
        }
        let plugin = json!({
            "type": kind,
            "delegate": {"hairpinMode": true, "isDefaultGateway": true},
            "subnetFile": site.subnet_file(node),
            "dataDir": folder.join("flannel"),
            "ipam": {"dataDir": folder.join("networks")},
        });
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        Self {
            node,
            netns: site.netns(&format!("n{node}")),
            folder,
            list: json!({"name": "cbr0", "cniVersion": "0.3.1", "plugins": [plugin, portmap]}),
            environment: Vec::new(),
        }
    }

    /// Our plugin's part of the list.
    pub(crate) fn ours(&mut self) -> &mut Value {
        &mut self.list["plugins"][0]
    }

    /// A container in the namespace `pPOD` of the site.
    pub(crate) fn container(&self, site: &Site, pod: u8) -> Container {
        Container {
            netns: site.netns(&format!("p{pod}")),
            id: caracal_lab::container_id(),
            pod: None,
            result: None,
        }
    }

    /// One call of one plugin; what it printed, and whether it served.
    pub(crate) fn call(
        &self,
        command: &str,
        conf: &Value,
        container: Option<&Container>,
    ) -> Result<Value, Value> {
        let kind = conf["type"].as_str().unwrap();
        let bin = self.folder.join("bin");
        let places = [bin, PLUGINS.into()].map(|folder| folder.join(kind));
        let program = places.iter().find(|path| path.exists()).unwrap();
        let mut call = Command::new(program);
        call.env("CNI_COMMAND", command).env(
            "CNI_PATH",
            format!("{}:{PLUGINS}", self.folder.join("bin").display()),
        );
        for (name, folder) in &self.environment {
            call.env(name, folder);
        }
        if let Some(container) = container {
            call.env("CNI_CONTAINERID", &container.id)
                .env("CNI_NETNS", netns_path(&container.netns))
                .env("CNI_IFNAME", "eth0");
            if let Some(pod) = container.pod {
                let names = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}");
                call.env("CNI_ARGS", names);
            }
        }
        let conf = conf.to_string();
        let output = program_output(Some(&self.netns), &mut call, conf.as_bytes(), 30 * SECOND);
        let output = output.unwrap();
        let said = &output.stdout;
        let printed = match said.trim() {
            "" => Value::Null,
            text => serde_json::from_str(text)
                .unwrap_or_else(|e| panic!("{kind} {command}: {e}: {text}: {}", output.stderr)),
        };
        match output.status.success() {
            true => Ok(printed),
            false => {
                println!("n{} {kind} {command}: {printed}", self.node);
                Err(printed)
            }
        }
    }

    /// The configurations of the plugins, in the list's order.
    pub(crate) fn configurations(&self, previous: Option<&Value>) -> Vec<Value> {
        let plugins = self.list["plugins"].as_array().unwrap();
        let each = |plugin: &Value| {
            let mut conf: Map<String, Value> = plugin.as_object().unwrap().clone();
            for key in ["name", "cniVersion"] {
                conf.insert(key.to_owned(), self.list[key].clone());
            }
            if conf.contains_key("capabilities") {
                conf.insert("runtimeConfig".to_owned(), json!({"portMappings": []}));
            }
            if let Some(previous) = previous {
                conf.insert("prevResult".to_owned(), previous.clone());
            }
            Value::Object(conf)
        };
        plugins.iter().map(each).collect()
    }

    /// ADD of the whole list; the address of the container.
    pub(crate) fn add(&self, container: &mut Container) -> Result<String, Value> {
        let mut previous = None;
        for (place, _) in self.configurations(None).iter().enumerate() {
            let conf = &self.configurations(previous.as_ref())[place];
            previous = Some(self.call("ADD", conf, Some(container))?);
        }
        container.result = previous;
        let result = container.result.as_ref().unwrap();
        let address = result["ips"][0]["address"].as_str().unwrap();
        Ok(address.split('/').next().unwrap().to_owned())
    }

    /// DEL of the whole list, the last plugin first.
    pub(crate) fn del(&self, container: &Container) -> Result<(), Value> {
        let all = self.configurations(container.result.as_ref());
        for conf in all.iter().rev() {
            self.call("DEL", conf, Some(container))?;
        }
        Ok(())
    }

    /// CHECK of the whole list.
    pub(crate) fn check(&self, container: &Container) -> Result<(), Value> {
        for conf in self.configurations(container.result.as_ref()) {
            self.call("CHECK", &conf, Some(container))?;
        }
        Ok(())
    }

    /// Names of the files in one of the runtime's folders, sorted.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.join(folder));
        let entries = entries.into_iter().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// What our plugin has saved.
    pub(crate) fn saved(&self) -> Vec<String> {
        self.names("flannel")
    }

    pub(crate) fn saved_file(&self, name: &str) -> PathBuf {
        self.folder.join("flannel").join(name)
    }

    /// Addresses that host-local holds for this network.
    pub(crate) fn held(&self) -> Vec<String> {
        let mut names = self.names("networks/cbr0");
        names.retain(|name| name.starts_with("10."));
        names
    }

    /// Names of the node's veth interfaces, which are containers' other ends.
    pub(crate) fn cables(&self, site: &Site) -> Vec<String> {
        let links = site.show(&format!("n{}", self.node), &["link"]);
        let name = |line: &String| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned());
        let names = links.iter().filter_map(name);
        names.filter(|name| name.starts_with("veth")).collect()
    }

    /// Nothing of any container is left on the node.
    pub(crate) fn assert_clean(&self, site: &Site, what: &str) {
        assert_eq!(self.saved(), [""; 0], "{what}: files of ours");
        assert_eq!(self.held(), [""; 0], "{what}: addresses");
        assert_eq!(self.cables(site), [""; 0], "{what}: interfaces");
    }
}
