//! One run: a speaker, a scenario, a stopwatch.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::dut::{Process, faults_of, memory_of};
use crate::generator::{Counters, Generator};
use crate::scenario::{Kind, Scenario};
use crate::speakers::Speaker;
use caracal_hot_paths::routes::DUT;

/// Limit of a phase.
const LIMIT: Duration = Duration::from_secs(240);
/// Changes that the latency scenario makes one by one.
const CHANGES: usize = 300;
/// Pause between two of those changes.
const PAUSE: Duration = Duration::from_millis(5);
/// Duration of the idle scenario.
const IDLE: Duration = Duration::from_secs(60);
/// Time from the last withdrawn route to the reading of the memory that is left.
const FORGET: Duration = Duration::from_secs(10);

/// Cost of a phase.
#[derive(Clone, Copy, Debug)]
pub struct PhaseCost {
    /// Until the last receiver held what it must.
    pub wall: Duration,
    /// CPU time of the speaker, until it had come to rest.
    pub cpu: Duration,
    /// Minor page faults in the same time.
    pub faults: u64,
}

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// Phases in order; repeated ones are averaged.
    pub phases: Vec<(&'static str, PhaseCost)>,
    /// Peak resident memory in KiB.
    pub peak_kib: u64,
    /// Resident memory at the end.
    pub left_kib: u64,
    /// Counters of the receivers.
    pub counters: Counters,
}

struct Run<'a> {
    process: Process,
    generator: Generator,
    scenario: &'a mut Scenario,
}

/// Runs a scenario against a speaker.
pub fn run(
    speaker: Speaker,
    scenario: &mut Scenario,
    namespace: &str,
    dir: &Path,
    program: Option<&PathBuf>,
) -> Result<RunOutcome> {
    scenario.reset();
    let mut process = speaker.start(scenario, namespace, dir, program)?;
    let generator = Generator::connect(
        DUT,
        scenario.roles.clone(),
        scenario.universe.clone(),
        scenario.hold,
        scenario,
        || process.check(),
    )?;
    let mut run = Run {
        process,
        generator,
        scenario,
    };
    run.generator.expect(run.scenario);
    let process = &mut run.process;
    run.generator
        .warm_up(DUT, speaker.warm_up(), run.scenario, || process.check())?;
    run.generator.expect(run.scenario);
    run.rest()?;
    let phases = run.phases()?;
    let counters = run.generator.counters;
    ensure!(
        counters.bad == 0,
        "{} of {} UPDATEs are wrong: {}",
        counters.bad,
        counters.checked,
        run.generator.first_bad().unwrap_or_default()
    );
    run.process.check()?;
    Ok(RunOutcome {
        phases,
        peak_kib: memory_of(run.process.id())?.peak_kib,
        left_kib: memory_of(run.process.id())?.resident_kib,
        counters,
    })
}

impl Run<'_> {
    fn phases(&mut self) -> Result<Vec<(&'static str, PhaseCost)>> {
        match self.scenario.kind {
            Kind::Load | Kind::Filter | Kind::Choose => Ok(vec![("load", self.load()?)]),
            Kind::Flap => {
                let load = self.load()?;
                let zero = PhaseCost {
                    wall: Duration::ZERO,
                    cpu: Duration::ZERO,
                    faults: 0,
                };
                let (mut down, mut up) = (zero, zero);
                for _ in 0..5 {
                    let withdrawn = self.scenario.withdraw();
                    let cost = self.send(withdrawn)?;
                    down.wall += cost.wall / 5;
                    down.cpu += cost.cpu / 5;
                    down.faults += cost.faults / 5;
                    let cost = self.load()?;
                    up.wall += cost.wall / 5;
                    up.cpu += cost.cpu / 5;
                    up.faults += cost.faults / 5;
                }
                Ok(vec![("load", load), ("withdraw", down), ("announce", up)])
            }
            Kind::Forget => {
                let load = self.load()?;
                let withdrawn = self.scenario.withdraw();
                let withdraw = self.send(withdrawn)?;
                self.generator.idle(FORGET, self.scenario)?;
                Ok(vec![("load", load), ("withdraw", withdraw)])
            }
            Kind::Reflect => {
                let announced = self.scenario.clients_announce();
                let announce = self.send(announced)?;
                let moved = self.scenario.clients_move();
                let churn = self.send(moved)?;
                let kill = self.kill()?;
                Ok(vec![
                    ("announce", announce),
                    ("churn", churn),
                    ("kill-half", kill),
                ])
            }
            Kind::Latency => {
                let announced = self.scenario.clients_announce();
                self.send(announced)?;
                self.single_changes()
            }
            Kind::Idle => {
                let (start, cpu) = (Instant::now(), self.process.cpu()?);
                let faults = faults_of(self.process.id())?;
                self.generator.idle(IDLE, self.scenario)?;
                let cost = PhaseCost {
                    wall: start.elapsed(),
                    cpu: self.process.cpu()?.saturating_sub(cpu),
                    faults: faults_of(self.process.id())? - faults,
                };
                Ok(vec![("idle", cost)])
            }
        }
    }

    /// One change after the other: median, and the one that 99 of 100 do not exceed.
    fn single_changes(&mut self) -> Result<Vec<(&'static str, PhaseCost)>> {
        let (cpu, faults) = (self.process.cpu()?, faults_of(self.process.id())?);
        let mut walls = Vec::with_capacity(CHANGES);
        for number in 0..CHANGES {
            let (client, octets) = self
                .scenario
                .client_moves(number % self.scenario.roles.len());
            self.generator.expect(self.scenario);
            self.generator.idle(PAUSE, self.scenario)?;
            let start = Instant::now();
            self.generator.send(client, octets);
            self.generator.converge(self.scenario, LIMIT)?;
            walls.push(start.elapsed());
        }
        self.rest()?;
        let cpu = self.process.cpu()?.saturating_sub(cpu) / CHANGES as u32;
        let faults = (faults_of(self.process.id())? - faults) / CHANGES as u64;
        walls.sort_unstable();
        let at = |part: usize| PhaseCost {
            wall: walls[(CHANGES - 1) * part / 100],
            cpu,
            faults,
        };
        Ok(vec![("change p50", at(50)), ("change p99", at(99))])
    }

    fn load(&mut self) -> Result<PhaseCost> {
        let announced = self.scenario.announce();
        self.send(announced)
    }

    fn send(&mut self, what: Vec<(usize, Vec<u8>)>) -> Result<PhaseCost> {
        self.generator.expect(self.scenario);
        self.measure(|generator| {
            for (index, octets) in what {
                generator.send(index, octets);
            }
        })
    }

    fn kill(&mut self) -> Result<PhaseCost> {
        let leaving = self.scenario.clients_leave();
        self.measure_after(|run| {
            for index in leaving {
                run.generator.cut(index);
            }
            run.generator.expect(run.scenario);
        })
    }

    fn measure(&mut self, act: impl FnOnce(&mut Generator)) -> Result<PhaseCost> {
        self.measure_after(|run| act(&mut run.generator))
    }

    fn measure_after(&mut self, act: impl FnOnce(&mut Self)) -> Result<PhaseCost> {
        let (cpu, faults) = (self.process.cpu()?, faults_of(self.process.id())?);
        let start = Instant::now();
        act(self);
        self.generator.converge(self.scenario, LIMIT)?;
        let wall = start.elapsed();
        self.rest()?;
        Ok(PhaseCost {
            wall,
            cpu: self.process.cpu()?.saturating_sub(cpu),
            faults: faults_of(self.process.id())? - faults,
        })
    }

    /// Waits until the speaker uses next to no CPU time.
    fn rest(&mut self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(20);
        let mut quiet = 0;
        let mut before = self.process.cpu()?;
        while quiet < 3 && Instant::now() < until {
            self.generator
                .idle(Duration::from_millis(50), self.scenario)?;
            let now = self.process.cpu()?;
            let busy = now.saturating_sub(before) > Duration::from_micros(500);
            quiet = if busy { 0 } else { quiet + 1 };
            before = now;
        }
        Ok(())
    }
}
