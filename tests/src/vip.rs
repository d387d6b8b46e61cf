//! Servers and clients of a service in a lab: who is behind an address, and connections that are
//! counted.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caracal_lab::{PodState, run_in_netns, wait_for};
use caracal_model::Family;

use crate::SECOND;

/// An endpoint as a slice says it.
#[derive(Clone, Copy, Debug)]
pub struct PodEndpoint<'a> {
    /// Where it runs.
    pub pod: &'a PodState,
    /// Its port.
    pub port: u16,
    /// Not ready any more, but it still serves.
    pub terminates: bool,
}

impl PodEndpoint<'_> {
    /// Its address in a family, with its port.
    ///
    /// # Panics
    /// When the pod has none.
    #[must_use]
    pub fn target(&self, family: Family) -> SocketAddr {
        let address = self.pod.address_of(family).expect("ADD has answered");
        (address, self.port).into()
    }
}

/// EndpointSlices of a Service in namespace `shop`, one for each family and each of these ports.
#[must_use]
pub fn endpoint_slices(
    service: &str,
    families: &[Family],
    ports: &[u16],
    endpoints: &[PodEndpoint<'_>],
) -> String {
    let mut text = String::new();
    for (family, port) in families
        .iter()
        .flat_map(|f| ports.iter().map(move |p| (f, p)))
    {
        write!(
            text,
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-{}-{port}, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: {family}
ports: [{{name: '', protocol: TCP, port: {port}}}]
endpoints:",
            family.as_str()
        )
        .expect("a String takes everything");
        let those: Vec<&PodEndpoint<'_>> = endpoints.iter().filter(|e| e.port == *port).collect();
        text += if those.is_empty() { " []\n" } else { "\n" };
        for endpoint in those {
            let ready = !endpoint.terminates;
            writeln!(
                text,
                "  - {{addresses: ['{}'], nodeName: {}, conditions: {{ready: {ready}, serving: true, terminating: {}}}}}",
                endpoint.target(*family).ip(),
                endpoint.pod.node,
                endpoint.terminates
            )
            .expect("a String takes everything");
        }
    }
    text
}

/// A server in a pod: says who it is and whom it talks to, and then sends back what it gets.
#[derive(Debug)]
pub struct EchoServer {
    netns: String,
    to: SocketAddr,
    stops: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

impl EchoServer {
    /// Starts one.
    ///
    /// # Panics
    /// When the port is taken.
    #[must_use]
    pub fn start(pod: &PodState, families: &[Family], port: u16) -> Self {
        let [any, own] = match families {
            [Family::Ipv4] => ["0.0.0.0", "127.0.0.1"],
            _ => ["::", "::1"],
        };
        let any: IpAddr = any.parse().expect("an address");
        let listen = || TcpListener::bind((any, port));
        let listener = run_in_netns(&pod.netns, listen).expect("the pod's namespace");
        let listener = listener.expect("a free port");
        let (name, stops) = (pod.label(), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&stops);
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let name = name.clone();
                std::thread::spawn(move || converse(stream, &name));
            }
        });
        Self {
            netns: pod.netns.clone(),
            to: (own.parse::<IpAddr>().expect("an address"), port).into(),
            stops,
            accepting,
        }
    }

    /// Takes no connection any more; those that it has go on.
    ///
    /// # Panics
    /// When it has ended by itself.
    pub fn stop(self) {
        self.stops.store(true, Ordering::Release);
        // Wakes it, behind everything that is in its queue.
        let last = run_in_netns(&self.netns, || TcpStream::connect_timeout(&self.to, SECOND));
        drop(last.expect("the pod's namespace"));
        self.accepting.join().expect("a server that serves");
    }
}

fn converse(mut stream: TcpStream, name: &str) {
    let Ok(client) = stream.peer_addr() else {
        return;
    };
    let client = client.ip().to_canonical();
    let mut octets = [0; 64];
    let mut sent = stream.write_all(format!("{name} {client}\n").as_bytes());
    while sent.is_ok() {
        sent = match stream.read(&mut octets) {
            Ok(0) | Err(_) => return,
            Ok(read) => stream.write_all(&octets[..read]),
        };
    }
}

/// A connection, and who is behind it.
#[derive(Debug)]
pub struct VipConnection {
    stream: TcpStream,
    /// Label of the pod that answers.
    pub server: String,
    /// The client as the server sees it.
    pub client: IpAddr,
}

impl VipConnection {
    /// Opens one from a namespace.
    ///
    /// # Errors
    /// Of the connection.
    ///
    /// # Panics
    /// When the namespace cannot be entered.
    pub fn open(netns: &str, to: SocketAddr) -> Result<Self, ErrorKind> {
        run_in_netns(netns, || Self::open_here(to)).expect("a namespace of the lab")
    }

    fn open_here(to: SocketAddr) -> Result<Self, ErrorKind> {
        let stream = TcpStream::connect_timeout(&to, 5 * SECOND);
        let mut stream = stream.map_err(|e| e.kind())?;
        let set = stream.set_read_timeout(Some(10 * SECOND));
        set.map_err(|e| e.kind())?;
        let (mut greeting, mut octet) = (String::new(), [0]);
        while !greeting.ends_with('\n') {
            stream.read_exact(&mut octet).map_err(|e| e.kind())?;
            greeting.push(char::from(octet[0]));
        }
        let (server, client) = greeting.trim().split_once(' ').ok_or(ErrorKind::Other)?;
        Ok(Self {
            server: server.to_owned(),
            client: client.parse().map_err(|_| ErrorKind::InvalidData)?,
            stream,
        })
    }

    /// True when something that is sent comes back.
    pub fn works(&mut self) -> bool {
        self.exchange().is_ok()
    }

    /// Sends something and waits for it to come back.
    ///
    /// # Errors
    /// Of the connection.
    pub fn exchange(&mut self) -> Result<(), ErrorKind> {
        let mut back = [0; 4];
        self.stream.write_all(b"ping").map_err(|e| e.kind())?;
        self.stream.read_exact(&mut back).map_err(|e| e.kind())?;
        match &back == b"ping" {
            true => Ok(()),
            false => Err(ErrorKind::InvalidData),
        }
    }
}

/// Clients that open one connection after the other, send something, wait until it comes back, and
/// close.
#[derive(Debug)]
pub struct ConnectionLoad {
    clients: Vec<(SyncSender<()>, JoinHandle<()>)>,
    tally: Arc<Tally>,
    started: Instant,
}

/// Connections of all clients.
#[derive(Debug, Default)]
struct Tally {
    worked: AtomicU64,
    failed: Mutex<Vec<String>>,
}

impl ConnectionLoad {
    /// One client in each of these namespaces, by name; each opens so many connections a second to
    /// each of the addresses, at most.
    #[must_use]
    pub fn start(clients: &[(String, String)], to: &[SocketAddr], rate: u32) -> Self {
        let tally = Arc::new(Tally::default());
        let start = |(name, netns): &(String, String)| {
            let (stop, stopped) = sync_channel(1);
            let (name, netns) = (name.clone(), netns.clone());
            let (to, tally) = (to.to_vec(), Arc::clone(&tally));
            let work = move || {
                let paced = || stopped.recv_timeout(SECOND / rate);
                while paced() == Err(RecvTimeoutError::Timeout) {
                    for to in &to {
                        tally.connect(&name, *to);
                    }
                }
            };
            let run = move || run_in_netns(&netns, work).expect("a namespace of the lab");
            (stop, std::thread::spawn(run))
        };
        Self {
            clients: clients.iter().map(start).collect(),
            tally,
            started: Instant::now(),
        }
    }

    /// Waits until so many more connections have worked.
    ///
    /// # Panics
    /// When they do not.
    pub fn after(&self, connections: u64) {
        let worked = || self.tally.worked.load(Ordering::Relaxed);
        let target = worked() + connections;
        wait_for(120 * SECOND, "connections", worked, |n| *n >= target)
            .unwrap_or_else(|e| panic!("{e}: {:?}", self.tally.failures()));
    }

    /// Ends it and prints the counts.
    ///
    /// # Panics
    /// When a single connection was refused, reset or left without an answer.
    pub fn assert_none_lost(self, what: &str) {
        for (stop, client) in self.clients {
            drop(stop);
            client.join().expect("a client");
        }
        let (worked, failed) = (
            self.tally.worked.load(Ordering::Relaxed),
            self.tally.failures(),
        );
        let rate = worked as f64
            / self
                .started
                .elapsed()
                .max(Duration::from_millis(1))
                .as_secs_f64();
        println!(
            "{what}: {worked} connections, {rate:.0} a second, {} lost",
            failed.len()
        );
        assert!(failed.is_empty(), "{what}: {failed:#?}");
    }
}

impl Tally {
    fn connect(&self, client: &str, to: SocketAddr) {
        let opened = VipConnection::open_here(to).map_err(|e| format!("open: {e}"));
        let worked = opened.and_then(|mut connection| {
            let sent = connection.exchange();
            sent.map_err(|e| format!("to {}: {e}", connection.server))
        });
        match worked {
            Ok(()) => _ = self.worked.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push(format!("{client} to {to}: {error}"));
            }
        }
    }

    fn failures(&self) -> Vec<String> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.clone()
    }
}
