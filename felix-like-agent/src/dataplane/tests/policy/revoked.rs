//! POL-5 with packets: flows that a change does not allow any more end, TCP and UDP; all others
//! lose nothing.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, TcpListener};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::*;

/// Set in a process that serves, and in one that talks: to whom.
const TALKS: &str = "CARAGENT_TALKS";
const SERVES: &str = "serves";
const TCP: u16 = 80;
const UDP: u16 = 53;
/// How long an echo may take.
const ECHO: Duration = Duration::from_secs(1);
/// Flows end so soon after a change; here is room for a machine that is busy.
const SOON: Duration = Duration::from_secs(5);

/// Sends back all that comes, or sends a word on each of two flows for each line that it is given,
/// and prints which of them have answered.
#[test]
#[ignore = "other tests start it, in the namespace of a pod"]
fn talks() {
    match std::env::var(TALKS).unwrap().as_str() {
        SERVES => serve(),
        to => talk(to.parse().unwrap()),
    }
}

fn serve() {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, TCP)).unwrap();
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, UDP)).unwrap();
    std::thread::spawn(move || {
        let mut word = [0; 8];
        while let Ok((length, from)) = socket.recv_from(&mut word) {
            // A sender that is refused meanwhile is no end of serving.
            let _ = socket.send_to(&word[..length], from);
        }
    });
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut word = [0; 1];
                while stream.read_exact(&mut word).is_ok() && stream.write_all(&word).is_ok() {}
            });
        }
    });
    println!("\nready");
    // Until the test ends.
    let _ = std::io::stdin().read(&mut [0; 1]);
}

fn talk(to: IpAddr) {
    let mut tcp = TcpStream::connect_timeout(&(to, TCP).into(), PATIENCE).unwrap();
    tcp.set_nodelay(true).unwrap();
    tcp.set_read_timeout(Some(ECHO)).unwrap();
    let any: IpAddr = match to {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let udp = UdpSocket::bind((any, 0)).unwrap();
    udp.set_read_timeout(Some(ECHO)).unwrap();
    udp.connect((to, UDP)).unwrap();
    println!("\nready");
    for (number, line) in std::io::stdin().lines().enumerate() {
        line.unwrap();
        let word = [u8::try_from(number % 256).unwrap()];
        let mut answer = [0; 1];
        let by_tcp = tcp
            .write_all(&word)
            .and_then(|()| tcp.read_exact(&mut answer));
        let by_tcp = by_tcp.is_ok() && answer == word;
        let mut heard = |word: [u8; 1]| {
            // Not one that came late.
            while udp.recv(&mut answer).is_ok() {
                if answer == word {
                    return true;
                }
            }
            false
        };
        let by_udp = udp.send(&word).is_ok() && heard(word);
        println!("{by_tcp} {by_udp}");
    }
}

struct Process {
    /// Ends with this.
    _child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// In the namespace of a pod, or of the node itself.
    async fn start(n: Option<u8>, talks: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = match n {
            Some(n) => {
                let mut command = tokio::process::Command::new("ip");
                command.args(["netns", "exec", &pod(n)]).arg(program);
                command
            }
            None => tokio::process::Command::new(program),
        };
        let mut child = command
            .args(["--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .arg("dataplane::tests::policy::revoked::talks")
            .env(TALKS, talks)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self {
            _child: child,
            orders,
            said,
        };
        while process.line().await != "ready" {}
        process
    }

    async fn line(&mut self) -> String {
        let line = self.said.next_line().await.unwrap();
        line.expect("it has ended").trim().to_owned()
    }

    /// Which of its flows, TCP and UDP, are answered.
    async fn hears(&mut self) -> [bool; 2] {
        self.orders.write_all(b"\n").await.unwrap();
        let line = self.line().await;
        let words: Vec<bool> = line.split(' ').map(|word| word == "true").collect();
        words.try_into().unwrap()
    }
}

/// Passes, and then the flows of one are so, while others lose nothing.
async fn changed(
    writer: &mut PolicyWriter,
    data: &PolicyData,
    one: &mut Process,
    wanted: [bool; 2],
    others: &mut [&mut Process],
) {
    writer.pass(data, 1).await.unwrap();
    let started = Instant::now();
    loop {
        for (n, other) in others.iter_mut().enumerate() {
            assert_eq!(other.hears().await, [true; 2], "flow {n} is allowed");
        }
        let found = one.hears().await;
        if found == wanted {
            break;
        }
        assert!(started.elapsed() < SOON, "{found:?}, not {wanted:?}");
    }
    let ended = writer.status().ended_flows();
    println!("after {:?}, {ended} ended", started.elapsed());
}

fn ingress(from: &str) -> random::Step {
    random::policy(
        "networkpolicies/a/p",
        json!({"selector": "app == 'x'", "types": ["Ingress"],
            "ingress": [{"action": "Allow", "source": {"selector": from}}]}),
    )
}

#[test]
fn flows_that_are_not_allowed_any_more_end() {
    let name = "policy::revoked::flows_that_are_not_allowed_any_more_end";
    in_namespace(name, || async {
        let _pods = node_with_pods();
        let _server = Process::start(Some(1), SERVES).await;
        let [v4, v6] = ["10.0.0.1", "fd00::1"];
        // Before there is a table all are let in.
        let mut of4 = Process::start(Some(2), v4).await;
        let mut of6 = Process::start(Some(2), v6).await;
        let mut kept4 = Process::start(Some(3), v4).await;
        let mut kept6 = Process::start(Some(3), v6).await;
        let mut stranger = Process::start(Some(4), v4).await;
        let mut node = Process::start(None, v4).await;
        for flow in [&mut of4, &mut of6, &mut stranger, &mut node] {
            assert_eq!(flow.hears().await, [true; 2], "without a table");
        }
        let mut writer = PolicyWriter::new("me".into());
        let mut data = PolicyData::default();
        let pod2 = |app| random::pod(2, "a", "me", &[("app", app)]);
        for step in [
            random::profile("a"),
            random::pod(1, "a", "me", &[("app", "x")]),
            pod2("y"),
            random::pod(3, "a", "me", &[("app", "z")]),
            random::pod(4, "a", "me", &[("app", "w")]),
            ingress("app in {'y', 'z'}"),
        ] {
            apply(&mut data, &step);
        }
        // Flows of a time without policies.
        let mut others = [&mut of4, &mut of6, &mut kept4, &mut kept6, &mut node];
        changed(&mut writer, &data, &mut stranger, [false; 2], &mut others).await;

        // A label goes: an element of a set.
        apply(&mut data, &pod2("v"));
        let mut others = [&mut kept4, &mut kept6, &mut node];
        changed(&mut writer, &data, &mut of4, [false; 2], &mut others).await;
        changed(&mut writer, &data, &mut of6, [false; 2], &mut others).await;

        // It comes again: UDP goes on, and TCP was reset.
        apply(&mut data, &pod2("y"));
        changed(&mut writer, &data, &mut of4, [false, true], &mut others).await;
        changed(&mut writer, &data, &mut of6, [false, true], &mut others).await;

        let ended = writer.pass(&data, 2).await.unwrap().ended_flows();
        // Flows of a time without a table are not in conntrack, and begin anew with each packet.
        assert_eq!(ended, 4, "TCP and UDP of one pod, in two families");

        // A policy changes; and one for the way out of the other end.
        apply(&mut data, &ingress("app == 'z'"));
        changed(&mut writer, &data, &mut of4, [false; 2], &mut others).await;
        let out = random::policy(
            "networkpolicies/a/out",
            json!({"selector": "app == 'z'", "types": ["Egress"], "egress": [
                {"action": "Allow", "ipVersion": 6}]}),
        );
        apply(&mut data, &out);
        let mut others = [&mut kept6, &mut node];
        changed(&mut writer, &data, &mut kept4, [false; 2], &mut others).await;
    });
}
