//! Packet captures (`tcpdump` on the underlay) and the kernel's routes: the product seen from
//! outside.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use caracal_model::Family;
use rustix::process::{Pid, Signal, kill_process};

use crate::ip::{self, Route};
use crate::lab::{Lab, UnknownTarget};
use crate::netns::{self, NetnsError};
use crate::probe::{Probe, ProbeError, Stream};
use crate::program::{self, Missing, ProgramError};
use crate::wait::{Timeout, wait_until};

/// IP in IP, as `tunl0` sends.
pub const IPIP_FILTER: &str = "ip proto 4";
/// VXLAN on Calico's port.
pub const VXLAN_FILTER: &str = "udp port 4789";

/// Why packets cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// There is no such place.
    #[error(transparent)]
    Target(#[from] UnknownTarget),
    /// The lab has no such segment.
    #[error("the lab has no segment {0:?}")]
    Segment(String),
    /// The pod has no address.
    #[error("pod {0} has no address")]
    NoAddress(String),
    /// A program is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The namespace or the program.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A socket of a probe cannot be used.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// `tcpdump` ended before it listened.
    #[error("tcpdump does not listen: {0}")]
    Deaf(String),
}

/// A `tcpdump` that runs.
pub struct Capture {
    child: Child,
    count: Arc<AtomicUsize>,
    packets: Option<JoinHandle<Vec<String>>>,
    rest: Option<JoinHandle<String>>,
}

/// Packets of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPackets {
    /// One line per packet, as `tcpdump -n -q` prints it.
    pub packets: Vec<String>,
    /// Packets `tcpdump` could not keep up with.
    pub dropped: u64,
}

impl Capture {
    /// Starts to capture on a device and waits until `tcpdump` listens.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn start(netns: &str, device: &str, filter: &str) -> Result<Self, CaptureError> {
        let mut command = program::command("tcpdump")?;
        // Root stays root: in a user namespace there is no other user to become.
        command.args([
            "-n",
            "-l",
            "-q",
            "--immediate-mode",
            "-Z",
            "root",
            "-i",
            device,
            filter,
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = netns::spawn(netns, &mut command)?;
        let deaf = || CaptureError::Deaf("no streams".to_owned());
        let out = child.stdout.take().ok_or_else(deaf)?;
        let mut err = BufReader::new(child.stderr.take().ok_or_else(deaf)?);
        let mut said = String::new();
        loop {
            let before = said.len();
            let read = err.read_line(&mut said).unwrap_or(0);
            if read == 0 {
                let _ = child.wait();
                return Err(CaptureError::Deaf(said.trim().to_owned()));
            }
            if said[before..].contains("listening on") {
                break;
            }
        }
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let packets = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            // When interrupted, tcpdump ends its half-written line.
            let lines = lines.filter(|line| !line.is_empty());
            lines
                .inspect(|_| {
                    counter.fetch_add(1, Ordering::Relaxed);
                })
                .collect()
        });
        let rest = std::thread::spawn(move || {
            let mut text = String::new();
            // After a read error, the text read so far is all there is.
            let _ = err.read_to_string(&mut text);
            text
        });
        Ok(Self {
            child,
            count,
            packets: Some(packets),
            rest: Some(rest),
        })
    }

    /// Packets seen so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until some packets were seen.
    ///
    /// # Errors
    /// [`Timeout`].
    pub fn wait_for(&self, packets: usize, deadline: Duration) -> Result<(), Timeout> {
        wait_until(deadline, &format!("{packets} packets"), || {
            match self.count() {
                n if n >= packets => Ok(()),
                n => Err(n),
            }
        })
    }

    /// Ends `tcpdump` and gives what it saw.
    #[must_use]
    pub fn stop(mut self) -> CapturedPackets {
        self.end();
        let packets = self
            .packets
            .take()
            .and_then(|t| t.join().ok())
            .unwrap_or_default();
        let rest = self
            .rest
            .take()
            .and_then(|t| t.join().ok())
            .unwrap_or_default();
        CapturedPackets {
            packets,
            dropped: dropped(&rest),
        }
    }

    fn end(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Not reaped yet, so the pid is still its own.
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid) {
            let _ = kill_process(pid, Signal::INT);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}

/// `0 packets dropped by kernel`.
fn dropped(text: &str) -> u64 {
    let line = text.lines().find(|l| l.contains("dropped by kernel"));
    line.and_then(|l| l.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

impl Lab {
    /// Captures on a device of a node, pod, router, or of `etcd` or `switch`.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn capture(
        &self,
        target: &str,
        device: &str,
        filter: &str,
    ) -> Result<Capture, CaptureError> {
        Capture::start(&self.netns(target)?, device, filter)
    }

    /// Captures everything that crosses a segment, at its bridge.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn capture_segment(&self, segment: &str, filter: &str) -> Result<Capture, CaptureError> {
        let bridge = self.layout.bridges.iter().find(|b| b.segment == segment);
        let bridge = bridge.ok_or_else(|| CaptureError::Segment(segment.to_owned()))?;
        Capture::start(&self.layout.switch_netns(), &bridge.device, filter)
    }

    /// The routes of a node, pod or router, in all families of the lab.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn routes(&self, target: &str) -> Result<Vec<Route>, CaptureError> {
        let netns = self.netns(target)?;
        let mut routes = Vec::new();
        for family in self.topology.families() {
            routes.extend(ip::routes(&netns, family)?);
        }
        Ok(routes)
    }

    /// Starts to count losses from one pod (`NODE/POD`) to the first address of another, at `rate`
    /// datagrams per second.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn probe(&self, from: &str, to: &str, rate: u32) -> Result<Probe, CaptureError> {
        let pod = self.state.pods.iter().find(|p| p.label() == to);
        self.probe_address(from, to, pod.and_then(|p| p.address), rate)
    }

    /// The same to the address of a family.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn probe_of(
        &self,
        from: &str,
        to: &str,
        family: Family,
        rate: u32,
    ) -> Result<Probe, CaptureError> {
        let pod = self.state.pods.iter().find(|p| p.label() == to);
        self.probe_address(from, to, pod.and_then(|p| p.address_of(family)), rate)
    }

    fn probe_address(
        &self,
        from: &str,
        to: &str,
        address: Option<IpAddr>,
        rate: u32,
    ) -> Result<Probe, CaptureError> {
        let stream = Stream {
            from: self.netns(from)?,
            to: self.netns(to)?,
            address: address.ok_or_else(|| CaptureError::NoAddress(to.to_owned()))?,
            rate,
            size: 64,
        };
        Ok(Probe::start(stream)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcpdump_drops_are_read() {
        let text =
            "3 packets captured\n3 packets received by filter\n2 packets dropped by kernel\n";
        assert_eq!(dropped(text), 2);
        assert_eq!(dropped(""), 0);
    }
}
