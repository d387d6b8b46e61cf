//! One etcd process.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Certificates;

/// Limit of etcd's start. Far more than it needs, for busy machines.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Tries of a start, because another process took the port that was free a moment
/// ago.
const START_TRIES: u32 = 5;

/// Pause between two looks at a process that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// An etcd process of one member on 127.0.0.1, with its data in memory where possible.
#[derive(Debug)]
pub struct EtcdServer {
    dir: PathBuf,
    certificates: Option<Certificates>,
    client_port: u16,
    peer_port: u16,
    metrics_port: u16,
    child: Option<Child>,
}

/// A copy of an etcd's data directory.
#[derive(Debug)]
pub struct DataCopy {
    dir: PathBuf,
}

impl EtcdServer {
    /// Starts etcd without TLS. `None`, with the reason printed, when it is not installed.
    ///
    /// # Panics
    /// etcd does not start, or is missing while `CARACAL_REQUIRE_ETCD` is set.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_with(false)
    }

    /// Starts etcd with TLS; clients must show a certificate of the CA. `None` as for
    /// [`EtcdServer::start`].
    ///
    /// # Panics
    /// As for [`EtcdServer::start`].
    #[must_use]
    pub fn start_with_tls() -> Option<Self> {
        Self::start_with(true)
    }

    fn start_with(tls: bool) -> Option<Self> {
        if !installed("etcd") || (tls && !installed("openssl")) {
            return None;
        }
        let dir = new_dir();
        let certificates = tls.then(|| Certificates::generate(&dir.join("pki")));
        let mut server = Self {
            dir,
            certificates,
            client_port: 0,
            peer_port: 0,
            metrics_port: 0,
            child: None,
        };
        for _ in 0..START_TRIES {
            server.client_port = free_port();
            server.peer_port = free_port();
            server.metrics_port = free_port();
            match server.try_run() {
                Ok(()) => return Some(server),
                Err(reason) => eprintln!("etcd did not start, trying other ports: {reason}"),
            }
        }
        panic!("etcd did not start after {START_TRIES} tries");
    }

    /// The client URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let scheme = if self.certificates.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    /// The client address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.client_port))
    }

    /// The certificates, when started with TLS.
    #[must_use]
    pub const fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Kills the process. The data stays.
    ///
    /// # Panics
    /// The process cannot be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("etcd can be killed");
            child.wait().expect("etcd ends");
        }
    }

    /// Starts the process again after [`EtcdServer::kill`], with its data and at the same address.
    ///
    /// # Panics
    /// etcd does not start.
    pub fn run(&mut self) {
        if self.child.is_none()
            && let Err(reason) = self.try_run()
        {
            panic!("etcd did not start again: {reason}");
        }
    }

    /// A copy of the data. Kills the process; start it again with [`EtcdServer::run`].
    ///
    /// # Panics
    /// The files cannot be copied.
    #[must_use]
    pub fn copy_data(&mut self) -> DataCopy {
        self.kill();
        let copy = DataCopy { dir: new_dir() };
        copy_dir(&self.dir.join("data"), &copy.dir);
        copy
    }

    /// Puts a copy of the data in place. Kills the process; start it again with
    /// [`EtcdServer::run`].
    ///
    /// # Panics
    /// The files cannot be copied.
    pub fn restore_data(&mut self, copy: &DataCopy) {
        self.kill();
        let data = self.dir.join("data");
        fs::remove_dir_all(&data).expect("etcd's data can be removed");
        copy_dir(&copy.dir, &data);
    }

    fn try_run(&mut self) -> Result<(), String> {
        let log = self.dir.join("etcd.log");
        let output = File::create(&log).map_err(|e| e.to_string())?;
        let errors = output.try_clone().map_err(|e| e.to_string())?;
        let child = self
            .command()
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|e| e.to_string())?;
        let child = self.child.insert(child);
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if is_healthy(self.metrics_port) {
                return Ok(());
            }
            let ended = child.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(&log).unwrap_or_default();
                self.kill();
                return Err(format!("{ended:?}: {said}"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn command(&self) -> Command {
        let scheme = if self.certificates.is_some() {
            "https"
        } else {
            "http"
        };
        let client = format!("{scheme}://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let metrics = format!("http://127.0.0.1:{}", self.metrics_port);
        let mut command = Command::new("etcd");
        command
            .args(["--name", "test", "--logger", "zap", "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.dir.join("data"))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(["--listen-metrics-urls", &metrics]);
        if let Some(certificates) = &self.certificates {
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(&certificates.ca_cert)
                .arg("--cert-file")
                .arg(&certificates.server_cert)
                .arg("--key-file")
                .arg(&certificates.server_key);
        }
        // Settings of the machine's own etcd must not leak into the test's.
        for (name, _) in std::env::vars() {
            if name.starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        command
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself, and a second panic would hide the first.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Drop for DataCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn installed(program: &str) -> bool {
    let found = Command::new(program)
        .arg(if program == "etcd" {
            "--version"
        } else {
            "version"
        })
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        assert!(
            std::env::var_os("CARACAL_REQUIRE_ETCD").is_none(),
            "the program {program} is not installed, but CARACAL_REQUIRE_ETCD is set"
        );
        eprintln!(
            "SKIPPED: the program {program} is not installed (Debian: apt-get install {program})"
        );
    }
    found
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port on 127.0.0.1")
        .port()
}

fn new_dir() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let shared_memory = Path::new("/dev/shm");
    let base = if shared_memory.is_dir() {
        shared_memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("caracal-etcd-{}-{number}", std::process::id()));
        match fs::create_dir(&dir) {
            Ok(()) => return dir,
            // Of a process of another process namespace, or left by one that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!(
                "a directory for the test's etcd: {}: {error}",
                dir.display()
            ),
        }
    }
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the directory can be created");
    for entry in fs::read_dir(from).expect("the directory can be read") {
        let entry = entry.expect("the directory can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("the file can be copied");
        }
    }
}

/// Asks etcd's metrics address, which has no TLS, whether the member serves.
fn is_healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}
