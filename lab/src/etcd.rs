//! The lab's etcd: one member in a namespace with a leg in every segment, and its proxies there.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, SystemTime};

use caracal_model::{Family, Timestamp};
use serde_json::json;

use crate::http;
use crate::lab::Lab;
use crate::plan::{Document, ETCD_PORT, proxy_port};
use crate::program::{self, ProgramError};
use crate::service::{Service, ServiceError};
use crate::wait::Timeout;

/// The name of etcd among the lab's processes.
pub(crate) const PROCESS: &str = "etcd";

/// The name of one of its proxies among the lab's processes.
fn proxy(number: u8) -> String {
    format!("etcd-proxy{number}")
}

/// True for the name of etcd, or of one of its proxies.
pub(crate) fn is_of_etcd(process: &str) -> bool {
    process == PROCESS || (1..=u8::MAX).any(|number| process == proxy(number))
}

/// etcd allows 128 operations in one transaction.
const MAX_OPERATIONS: usize = 100;
const CALL: Duration = Duration::from_secs(30);
const START: Duration = Duration::from_secs(120);

/// Why etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// It does not start or does not serve.
    #[error(transparent)]
    Start(#[from] ServiceError),
    /// `etcd` or `etcdctl` failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl Lab {
    /// Starts etcd and waits until it serves. After [`Lab::stop_etcd`] or [`Lab::kill9_etcd`] it
    /// goes on with the data it had.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn start_etcd(&mut self) -> Result<(), EtcdError> {
        self.start_etcd_with(&[])
    }

    /// The same with more arguments.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn start_etcd_with(&mut self, more: &[&str]) -> Result<(), EtcdError> {
        let legs = self.layout.etcd.iter();
        let advertised: Vec<_> = legs
            .map(|leg| format!("http://{}", SocketAddr::new(leg.address, ETCD_PORT)))
            .collect();
        // The IPv6 wildcard accepts both families.
        let has_ipv6 = self.topology.families().contains(&Family::Ipv6);
        let any = if has_ipv6 { "[::]" } else { "0.0.0.0" };
        program::require(&["etcd"]).map_err(ProgramError::from)?;
        let etcd = program::find("etcd").unwrap_or_else(|| "etcd".into());
        let mut command = self.clean_command(&etcd);
        command
            .arg("--name=lab")
            .arg("--data-dir")
            .arg(self.folder.etcd())
            .arg(format!("--listen-client-urls=http://{any}:{ETCD_PORT}"))
            .arg(format!("--advertise-client-urls={}", advertised.join(",")))
            .arg("--listen-peer-urls=http://127.0.0.1:2380")
            .arg("--initial-advertise-peer-urls=http://127.0.0.1:2380")
            .arg("--initial-cluster=lab=http://127.0.0.1:2380")
            // A single member elects itself after one election timeout: no reason to wait a second.
            .args([
                "--heartbeat-interval=20",
                "--election-timeout=200",
                "--logger=zap",
            ])
            .args(more);
        self.await_health(PROCESS, &mut command, ETCD_PORT)
    }

    /// Starts one of etcd's proxies, by its number from 1 on, and waits until it serves.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn start_etcd_proxy(&mut self, number: u8) -> Result<(), EtcdError> {
        let has_ipv6 = self.topology.families().contains(&Family::Ipv6);
        let any = if has_ipv6 { "[::]" } else { "0.0.0.0" };
        let port = proxy_port(number);
        program::require(&["etcd"]).map_err(ProgramError::from)?;
        let etcd = program::find("etcd").unwrap_or_else(|| "etcd".into());
        let mut command = self.clean_command(&etcd);
        command
            .args(["grpc-proxy", "start"])
            .arg(format!("--endpoints=127.0.0.1:{ETCD_PORT}"))
            .arg(format!("--listen-addr={any}:{port}"))
            .arg(format!("--advertise-client-url=127.0.0.1:{port}"))
            .arg("--data-dir")
            .arg(self.folder.etcd().join(proxy(number)));
        self.await_health(&proxy(number), &mut command, port)
    }

    /// Ends one of etcd's proxies with SIGKILL.
    ///
    /// # Errors
    /// [`Timeout`] when it does not end.
    pub fn kill9_etcd_proxy(&mut self, number: u8) -> Result<(), Timeout> {
        self.running
            .get_mut(&proxy(number))
            .map_or(Ok(()), |r| r.kill9().map(drop))
    }

    /// Starts a process in etcd's namespace and waits until it says that it is healthy.
    fn await_health(
        &mut self,
        process: &str,
        command: &mut Command,
        port: u16,
    ) -> Result<(), EtcdError> {
        let service = Service {
            process,
            name: process,
            awaited: &format!("{process} to be healthy"),
            deadline: START,
        };
        self.start_service(&service, command, |netns| {
            match healthy(netns, port, Duration::from_secs(5)) {
                Ok(true) => Ok(()),
                Ok(false) => Err("not healthy".to_owned()),
                Err(e) => Err(e.to_string()),
            }
        })?;
        Ok(())
    }

    /// Ends etcd with SIGTERM.
    ///
    /// # Errors
    /// [`Timeout`] when it does not end.
    pub fn stop_etcd(&mut self) -> Result<(), Timeout> {
        self.running
            .get_mut(PROCESS)
            .map_or(Ok(()), |r| r.stop(CALL).map(drop))
    }

    /// Ends etcd with SIGKILL.
    ///
    /// # Errors
    /// [`Timeout`] when it does not end.
    pub fn kill9_etcd(&mut self) -> Result<(), Timeout> {
        self.running
            .get_mut(PROCESS)
            .map_or(Ok(()), |r| r.kill9().map(drop))
    }

    /// True when etcd answers.
    #[must_use]
    pub fn etcd_healthy(&self) -> bool {
        healthy(&self.layout.etcd_netns(), ETCD_PORT, Duration::from_secs(5)).unwrap_or(false)
    }

    /// Calls `etcdctl` against the lab's etcd; gives what it printed.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn etcdctl(&self, arguments: &[&str], stdin: &[u8]) -> Result<String, ProgramError> {
        let mut command = program::command("etcdctl")?;
        command
            .args(arguments)
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", format!("http://127.0.0.1:{ETCD_PORT}"));
        program::call(Some(&self.layout.etcd_netns()), &mut command, stdin, CALL)
    }

    /// Puts resources into etcd, with `uid` and `creationTimestamp` as a create through Calico's
    /// client would give them.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn put(&self, documents: &[Document]) -> Result<(), EtcdError> {
        let now = Timestamp::from(SystemTime::now()).rfc3339();
        for chunk in documents.chunks(MAX_OPERATIONS) {
            let mut transaction = String::from("\n");
            for document in chunk {
                let mut value = document.value.clone();
                value["metadata"]["uid"] = json!(random_uuid());
                value["metadata"]["creationTimestamp"] = json!(now);
                let quoted = json!(value.to_string());
                transaction.push_str(&format!("put {} {quoted}\n", json!(document.key)));
            }
            transaction.push_str("\n\n");
            self.etcdctl(&["txn"], transaction.as_bytes())?;
        }
        Ok(())
    }
}

/// A random UUID of the kernel's.
pub(crate) fn random_uuid() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    text.trim().to_owned()
}

/// One `GET /health` over loopback.
fn healthy(netns: &str, port: u16, patience: Duration) -> io::Result<bool> {
    let answer = http::get(netns, port, "/health", patience)?;
    Ok(answer.contains(r#""health":"true""#))
}
