//! How long an ADD and a DEL take, beside Debian's `bridge` with `host-local`, interleaved. Prints; judges
//! nothing. `cargo build --release -p caracal-cni --example plugin`, then with `CARACAL_TEST_PLUGIN` set to
//! `target/release/examples/plugin`: `cargo test -p caracal-cni --test speed -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)]

mod world;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use world::{Pod, World, in_node, run};

const ROUNDS: usize = 100;
const PARALLEL: usize = 20;

fn timed(world: &World, verb: &str, program: &str, pod: &Pod, conf: &Value) -> Duration {
    let command = world.command(verb, program, Some(pod));
    let start = Instant::now();
    let answer = run(command, conf);
    let elapsed = start.elapsed();
    assert!(answer.ok, "{program} {verb}: {answer:#?}");
    elapsed
}

fn print(name: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{name:28} p50 {:>9.2?}  p90 {:>9.2?}  max {:>9.2?}",
        at(50),
        at(90),
        at(100)
    );
}

fn all_at_once(world: &World, verb: &str, program: &str, pods: &[Pod], conf: &Value) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for pod in pods {
            let command = world.command(verb, program, Some(pod));
            scope.spawn(move || assert!(run(command, conf).ok, "{program} {verb}"));
        }
    });
    start.elapsed()
}

#[test]
#[ignore = "a measurement, not a test"]
fn speed() {
    in_node(|mut world| {
        world.conf["log_level"] = json!("error");
        world.conf["cniVersion"] = json!("1.0.0");
        let mut rivals = vec![("caracal-cni", world.conf.clone())];
        let dir =
            std::env::var_os("CARACAL_TEST_CNI_PLUGINS").unwrap_or_else(|| "/usr/lib/cni".into());
        let copied = ["bridge", "host-local"]
            .iter()
            .all(|name| fs::copy(PathBuf::from(&dir).join(name), world.plugins.join(name)).is_ok());
        if copied {
            let conf = json!({"cniVersion": "1.0.0", "name": "b", "type": "bridge", "bridge": "br0",
                "ipam": {"type": "host-local", "subnet": "10.93.0.0/16", "dataDir": world.dir.join("hl")}});
            rivals.push(("bridge", conf));
        }
        let mut times = vec![(Vec::new(), Vec::new()); rivals.len()];
        for round in 0..ROUNDS {
            for (index, (program, conf)) in rivals.iter().enumerate() {
                let pod = Pod::new(&format!("p{round}"));
                times[index]
                    .0
                    .push(timed(&world, "ADD", program, &pod, conf));
                times[index]
                    .1
                    .push(timed(&world, "DEL", program, &pod, conf));
            }
        }
        let mut version = Vec::new();
        for _ in 0..ROUNDS {
            let command = world.command("VERSION", "caracal-cni", None);
            let start = Instant::now();
            assert!(world.run(command).ok);
            version.push(start.elapsed());
        }
        print("caracal-cni VERSION", &mut version);
        for ((program, _), (add, del)) in rivals.iter().zip(&mut times) {
            print(&format!("{program} ADD"), add);
            print(&format!("{program} DEL"), del);
        }
        for (program, conf) in &rivals {
            let pods: Vec<_> = (0..PARALLEL).map(|n| Pod::new(&format!("q{n}"))).collect();
            let add = all_at_once(&world, "ADD", program, &pods, conf);
            let del = all_at_once(&world, "DEL", program, &pods, conf);
            println!("{program:28} {PARALLEL} at once: ADD {add:.2?}  DEL {del:.2?}");
        }
    });
}
