//! A speaker with a full table, one peer that announced it and one that heard it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::probe::{self, METRICS_PORT, Metrics};
use crate::dut::{self, Process};
use crate::generator::Generator;
use crate::lab::LINK;
use crate::scenario::Scenario;
use caracal_hot_paths::routes::DUT;
use caracal_hot_paths::routes::DUT_AS;

/// Limit of each phase.
pub const LIMIT: Duration = Duration::from_secs(240);
/// The announcing peer's restart time, and how long its routes are kept as a last resort after
/// that, in seconds.
const RESTART: u8 = 2;
const LONG_LIVED: u8 = 3;
/// Graceful restart and its long-lived form for IPv4, forwarding state kept (RFC 4724 §3, RFC 9494
/// §3).
const KEPT: &[u8] = &[
    64, 6, 0, RESTART, 0, 1, 1, 0x80, 71, 7, 0, 1, 1, 0x80, 0, 0, LONG_LIVED,
];
/// TCP port of the monitoring station.
pub const STATION_PORT: u16 = 1790;
/// Peers: one announces everything, one receives it, one comes later.
pub const SENDER: usize = 0;
pub const RECEIVER: usize = 1;
pub const LATER: usize = 2;
/// We send several paths for a prefix (RFC 7911 §4).
const SEVERAL: &[u8] = &[69, 4, 0, 1, 1, 2];

/// Settings of a case beyond the peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// The peer's routes are kept over its restart.
    pub graceful: bool,
    /// Routes go through an import filter that changes them.
    pub import_filter: bool,
    /// Filters run over routes on their way out.
    pub export_filter: bool,
    /// There is a monitoring station.
    pub station: bool,
    /// The peer that comes later sends several paths for a prefix.
    pub add_paths: bool,
    /// Prefixes of the scenario that are static routes, too.
    pub own_routes: usize,
}

/// The configuration as a file.
fn text(scenario: &Scenario, settings: Settings) -> String {
    let filter = |wanted: bool| if wanted { "filter marked" } else { "all" };
    let graceful = if settings.graceful {
        "graceful restart on; long lived graceful restart on;"
    } else {
        ""
    };
    let several = if settings.add_paths {
        "add paths rx;"
    } else {
        ""
    };
    let mut text = format!(
        "router id {DUT};\n\
         filter marked {{ if true then {{ bgp_community.add((64512, 77)); accept; }} }}\n\
         template bgp neighbour {{\n  local {DUT} as {DUT_AS};\n  passive;\n  hold time {};\n  {graceful}\n  \
         ipv4 {{ import {}; export {}; {several} }};\n}}\n",
        scenario.hold,
        filter(settings.import_filter),
        filter(settings.export_filter),
    );
    for (index, role) in scenario.roles.iter().enumerate() {
        let (address, asn) = (role.address, role.asn);
        text.push_str(&format!(
            "protocol bgp p{index} from neighbour {{ neighbor {address} as {asn}; }}\n"
        ));
    }
    if settings.own_routes > 0 {
        text.push_str("protocol static {\n  ipv4;\n");
        for net in &scenario.universe.nets[..settings.own_routes] {
            let address = Ipv4Addr::from(net.bits);
            text.push_str(&format!("  route {address}/{} blackhole;\n", net.len));
        }
        text.push_str("}\n");
    }
    if settings.station {
        text.push_str(&format!(
            "protocol bmp watch {{ station address ip {LINK} port {STATION_PORT}; monitoring rib in pre_policy; }}\n"
        ));
    }
    text
}

/// The speaker and its peers.
pub struct TestBed<'a> {
    dir: &'a Path,
    /// The speaker under test.
    pub process: Process,
    /// The peers of the speaker.
    pub generator: Generator,
    /// The announcement of the peers.
    pub scenario: Scenario,
    settings: Settings,
}

impl<'a> TestBed<'a> {
    /// Starts a speaker and loads it; returns when everybody holds everything and it has come to
    /// rest.
    pub fn loaded(
        routes: &str,
        settings: Settings,
        namespace: &str,
        dir: &'a Path,
        program: Option<&PathBuf>,
    ) -> Result<Self> {
        let mut scenario = Scenario::new(&format!("A-{routes}"))?;
        // Another receiver, which comes later if at all.
        let mut later = scenario.roles[RECEIVER];
        later.address = later.address.to_bits().saturating_add(1).into();
        later.asn += 1;
        if settings.add_paths {
            later.capabilities = SEVERAL;
        }
        scenario.roles.push(later);
        if settings.graceful {
            scenario.roles[SENDER].capabilities = KEPT;
        }
        let more = ["--http".to_owned(), format!("{DUT}:{METRICS_PORT}")];
        let text = text(&scenario, settings);
        let mut process = dut::start_caracal(&text, &more, namespace, dir, program)?;
        let generator = Generator::connect(
            DUT,
            scenario.roles[..LATER].to_vec(),
            scenario.universe.clone(),
            scenario.hold,
            &scenario,
            || process.check(),
        )?;
        let mut test_bed = Self {
            dir,
            process,
            generator,
            scenario,
            settings,
        };
        let announced = test_bed.scenario.announce();
        test_bed.generator.expect(&test_bed.scenario);
        for (index, octets) in announced {
            test_bed.generator.send(index, octets);
        }
        test_bed.generator.converge(&test_bed.scenario, LIMIT)?;
        test_bed.rest()?;
        let metrics = probe::metrics(DUT)?;
        ensure!(
            metrics.prefixes == test_bed.scenario.universe.nets.len(),
            "{} prefixes are loaded",
            metrics.prefixes
        );
        Ok(test_bed)
    }

    /// Serves the peers until something holds.
    pub fn serve_until(&mut self, what: &str, holds: impl Fn(Metrics) -> bool) -> Result<()> {
        let begin = Instant::now();
        loop {
            self.generator
                .idle(Duration::from_millis(20), &self.scenario)?;
            let metrics = probe::metrics(DUT)?;
            if holds(metrics) {
                return Ok(());
            }
            ensure!(begin.elapsed() < LIMIT, "{what}: {metrics:?}");
        }
    }

    /// Waits until no long work is left.
    fn rest(&mut self) -> Result<()> {
        self.serve_until("rest", |metrics| metrics.work == 0)
    }

    /// Writes another configuration and has the speaker read it.
    pub fn configure(&mut self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        change(&mut self.settings);
        let text = text(&self.scenario, self.settings);
        Ok(std::fs::write(dut::caracal_file(self.dir), text)?)
    }

    /// The receiver that comes later.
    pub fn another_receiver(&mut self) -> Result<Generator> {
        let process = &mut self.process;
        Generator::connect(
            DUT,
            self.scenario.roles[LATER..].to_vec(),
            self.scenario.universe.clone(),
            self.scenario.hold,
            &self.scenario,
            || process.check(),
        )
    }
}
