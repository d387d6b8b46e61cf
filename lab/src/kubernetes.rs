//! The lab's Kubernetes API: the test API server over the lab's etcd, in etcd's namespace, with a
//! certificate, an administrator and an account for the nodes.
//!
//! The server is a program of its own (`caracal-test-api-server`), built with the tests; it lies
//! beside the `caracal` binary or where `CARACAL_TEST_API_SERVER` says.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::lab::Lab;
use crate::netns;
use crate::plan::kubernetes::plugin_kubeconfig;
use crate::plan::{API_PORT, ETCD_PORT, NODE_ACCOUNT, PLUGIN_ACCOUNT};
use crate::program::{self, ProgramError};
use crate::service::{Service, ServiceError};
use crate::state::StateError;
use crate::topology::NodeKind;
use crate::wait::{Timeout, scaled};

/// The name of the server among the lab's processes.
const PROCESS: &str = "api-server";
const PROGRAM: &str = "caracal-test-api-server";
const START: Duration = Duration::from_secs(60);
const CALL: Duration = Duration::from_secs(30);

/// Why the API server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// The program is not there.
    #[error(
        "{} is not there: a topology with `datastore: kubernetes` needs the test API server: cargo build -p caracal-tests --bin {PROGRAM}",
        path.display()
    )]
    Absent {
        /// Path at which it was looked for.
        path: PathBuf,
    },
    /// It does not start or does not serve.
    #[error(transparent)]
    Start(#[from] ServiceError),
    /// `openssl` or `kubectl` failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The lab's folder cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Tokens of the lab, made anew for each.
struct Tokens {
    admin: String,
    node: String,
    /// For plugins on nodes where no daemon asks for a token.
    plugin: String,
}

impl Lab {
    /// Makes what the server needs: a CA and a certificate, tokens, a kubeconfig for the
    /// administrator, for each node and for who gives orders there, and the first objects.
    pub(crate) fn prepare_api_server(&self, objects: &[Value]) -> Result<(), KubernetesError> {
        let folder = self.folder.kubernetes();
        let tokens = Tokens {
            admin: crate::cni::container_id(),
            node: crate::cni::container_id(),
            plugin: crate::cni::container_id(),
        };
        self.certificates(&folder)?;
        let account = |token: &str, name: &str| {
            let groups = "system:serviceaccounts,system:serviceaccounts:kube-system";
            format!("{token},system:serviceaccount:kube-system:{name},{name},\"{groups}\"\n")
        };
        let lines = format!(
            "{},admin,1,\"system:masters\"\n{}{}",
            tokens.admin,
            account(&tokens.node, NODE_ACCOUNT),
            account(&tokens.plugin, PLUGIN_ACCOUNT),
        );
        self.folder.write(&folder.join("tokens.csv"), &lines)?;
        let text = json!(objects).to_string();
        self.folder.write(&folder.join("objects.json"), &text)?;
        let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), API_PORT);
        let config = kubeconfig(&folder, local, &tokens.admin);
        let path = self.folder.kubeconfig("admin");
        self.folder.write(&path, &config)?;
        for node in &self.layout.nodes {
            let leg = self
                .layout
                .etcd
                .iter()
                .find(|leg| leg.segment == node.uplink.segment);
            let address = leg.map_or_else(|| local.ip(), |leg| leg.address);
            let server = SocketAddr::new(address, API_PORT);
            let name = &node.name;
            let mut whose = vec![
                (name.clone(), &tokens.node),
                (format!("{name}-admin"), &tokens.admin),
            ];
            if node.kind != NodeKind::Caracal {
                whose.push((plugin_kubeconfig(name), &tokens.plugin));
            }
            for (who, token) in whose {
                let config = kubeconfig(&folder, server, token);
                self.folder.write(&self.folder.kubeconfig(&who), &config)?;
            }
        }
        Ok(())
    }

    /// A CA, and a certificate for the addresses of the server.
    fn certificates(&self, folder: &Path) -> Result<(), KubernetesError> {
        let file = |name: &str| folder.join(name).display().to_string();
        let legs = self.layout.etcd.iter().flat_map(|leg| leg.addresses());
        let addresses = legs.map(|(address, _)| address);
        let addresses = std::iter::once(IpAddr::V4(Ipv4Addr::LOCALHOST)).chain(addresses);
        let names: Vec<_> = addresses.map(|a| format!("IP:{a}")).collect();
        let names = format!("subjectAltName={}", names.join(","));
        let request = |arguments: &[&str]| -> Result<(), KubernetesError> {
            let mut command = program::command("openssl").map_err(ProgramError::from)?;
            command
                .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "3650"])
                .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
                .args(arguments);
            program::call(None, &mut command, b"", CALL)?;
            Ok(())
        };
        let (ca, ca_key) = (file("ca.pem"), file("ca.key"));
        request(&["-subj", "/CN=lab-ca", "-out", &ca, "-keyout", &ca_key])?;
        let (certificate, key) = (file("server.pem"), file("server.key"));
        request(&[
            "-subj",
            "/CN=kube-apiserver",
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-addext",
            &names,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-out",
            &certificate,
            "-keyout",
            &key,
        ])
    }

    /// Starts the API server and waits until it serves; after a stop or a kill it goes on with
    /// what etcd has.
    ///
    /// # Errors
    /// [`KubernetesError`].
    pub fn start_api_server(&mut self) -> Result<(), KubernetesError> {
        let folder = self.folder.kubernetes();
        let beside = self.state.binary.with_file_name(PROGRAM);
        let path = std::env::var_os("CARACAL_TEST_API_SERVER").map_or(beside, PathBuf::from);
        if !path.is_file() {
            return Err(KubernetesError::Absent { path });
        }
        let any = if self.layout.etcd.iter().any(|leg| leg.address.is_ipv6()) {
            "[::]"
        } else {
            "0.0.0.0"
        };
        let mut command = self.clean_command(&path);
        command
            .arg(format!("--listen={any}:{API_PORT}"))
            .arg(format!("--etcd=http://127.0.0.1:{ETCD_PORT}"))
            .arg("--calico-definitions")
            .arg("--tls-certificate")
            .arg(folder.join("server.pem"))
            .arg("--tls-key")
            .arg(folder.join("server.key"))
            .arg("--token-auth-file")
            .arg(folder.join("tokens.csv"))
            .arg("--audit-log-path")
            .arg(folder.join("audit.log"))
            .arg("--objects")
            .arg(folder.join("objects.json"));
        // It listens once its first objects are made.
        let service = Service {
            process: PROCESS,
            name: "the API server",
            awaited: "the API server to listen",
            deadline: START,
        };
        self.start_service(&service, &mut command, |netns| {
            let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), API_PORT);
            let patience = scaled(Duration::from_secs(5));
            let connect = || TcpStream::connect_timeout(&address, patience).map(drop);
            match netns::run(netns, connect) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(e)) => Err(e.to_string()),
                Err(e) => Err(e.to_string()),
            }
        })?;
        Ok(())
    }

    /// Ends the API server with SIGKILL; what it has stored stays in etcd.
    ///
    /// # Errors
    /// [`Timeout`] when it does not end.
    pub fn kill9_api_server(&mut self) -> Result<(), Timeout> {
        self.running
            .get_mut(PROCESS)
            .map_or(Ok(()), |r| r.kill9().map(drop))
    }

    /// Calls `kubectl` as the administrator, beside the API server; gives what it printed.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn kubectl(&self, arguments: &[&str], stdin: &[u8]) -> Result<String, ProgramError> {
        let mut command = program::command("kubectl")?;
        command
            .args(arguments)
            .env("HOME", self.folder.kubernetes())
            .env("KUBECONFIG", self.folder.kubeconfig("admin"));
        program::call(Some(&self.layout.etcd_netns()), &mut command, stdin, CALL)
    }
}

fn kubeconfig(folder: &Path, server: SocketAddr, token: &str) -> String {
    let cluster = json!({
        "server": format!("https://{server}"), "certificate-authority": folder.join("ca.pem"),
    });
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "users": [{"name": "lab", "user": {"token": token}}],
    })
    .to_string()
}
