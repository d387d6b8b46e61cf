//! A real RPKI cache, a speaker and a BIRD that read the same filter, and a BIRD whose routes both
//! are sent: they agree, also after the cache has said something else, while it is away, and after
//! it has come back with another set.

use std::collections::BTreeSet;
use std::net::TcpListener;

use caracal_lab::{program_command, wait_until};
use caracal_model::Family;
use caracal_tests::{SECOND, possible_without_root};
use serde_json::{Value, json};

use super::{A, B, Site, US, address};

const PROGRAMS: [&str; 3] = ["bird", "birdc", "stayrtr"];

/// Prefixes of A, and the AS that each comes from.
const ROUTES: [(&str, u32); 5] = [
    ("10.93.1.0/24", 65010),
    ("10.93.2.0/24", 65010),
    ("10.93.3.0/24", 65020),
    ("10.93.4.0/24", 65020),
    ("192.0.2.0/24", 65030),
];

/// A prefix, and its LOCAL_PREF.
type Routes = BTreeSet<(String, u64)>;

impl Site {
    /// What the cache has: prefix, longest length, AS.
    fn write_entries(&self, entries: &[(&str, u8, u32)]) {
        let roas = entries.iter().map(|(prefix, max, asn)| {
            let asn = format!("AS{asn}");
            json!({"prefix": prefix, "maxLength": max, "asn": asn, "ta": "test"})
        });
        let roas: Vec<Value> = roas.collect();
        let text = json!({"metadata": {"counts": roas.len()}, "roas": roas}).to_string();
        // In one step: the cache reads it at any time.
        let new = self.folder().join("roas.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.folder().join("roas.json")).unwrap();
    }

    fn start_cache(&mut self, port: u16) {
        let mut command = program_command("stayrtr").unwrap();
        command
            .arg(format!("-bind={}:{port}", address(self.family, US)))
            .arg("-metrics.addr=")
            .arg("-cache")
            .arg(self.folder().join("roas.json"))
            .args(["-checktime=false", "-refresh=1", "-protocol=1"])
            .args(["-rtr.refresh=3600", "-rtr.retry=1", "-rtr.expire=7200"]);
        self.start("cache", &mut command);
    }

    /// A file that BIRD and we read alike, apart from the addresses. BIRD 2.0.12 runs an import
    /// filter again only with `import table`.
    fn judge(&self, n: u8, cache: u16) -> String {
        let port = self.port;
        let (own, a, us) = (
            address(self.family, n),
            address(self.family, A),
            address(self.family, US),
        );
        format!(
            "router id 127.93.0.{n};
             roa4 table r4;
             protocol rpki validator {{
               roa4 {{ table r4; }};
               remote {us} port {cache};
               retry keep 1; expire keep 7200; refresh keep 3600;
             }}
             filter judged {{
               if roa_check(r4, net, bgp_path.last) = ROA_INVALID then reject;
               if roa_check(r4) = ROA_VALID then bgp_local_pref = 200; else bgp_local_pref = 50;
               accept;
             }}
             protocol bgp a {{
               local {own} port {port} as 64512;
               neighbor {a} port {port} as 65001;
               multihop; strict bind;
               connect delay time 1; connect retry time 1; error wait time 1, 2;
               ipv4 {{ import table on; import filter judged; export none; }};
             }}"
        )
    }

    fn start_judge(&mut self, name: &'static str, text: &str) {
        let file = self.folder().join(format!("{name}.conf"));
        std::fs::write(&file, format!("log stderr all;\n{text}")).unwrap();
        let mut command = program_command("bird").unwrap();
        command.current_dir(self.folder()).args(["-f", "-c"]);
        command.arg(file);
        command.args(["-s", &format!("{name}.ctl"), "-P", &format!("{name}.pid")]);
        self.start(name, &mut command);
    }

    fn birds(&self) -> Routes {
        let shown = self.birdc("judge", &["show", "route", "all", "protocol", "a"]);
        let mut routes = Routes::new();
        let mut prefix = "";
        for line in shown.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [first, "unicast" | "unreachable", ..] => prefix = first,
                ["BGP.local_pref:", value] => {
                    routes.insert((prefix.to_owned(), value.parse().unwrap()));
                }
                _ => {}
            }
        }
        routes
    }

    fn ours(&self) -> Result<Routes, String> {
        let routes = self.json(&["bgp", "routes"])?;
        let routes = routes.as_array().unwrap().iter();
        let routes = routes.filter(|route| route["status"] == "best");
        let one = |route: &Value| {
            let prefix = route["prefix"].as_str()?.to_owned();
            Some((prefix, route["localPref"].as_u64()?))
        };
        Ok(routes.filter_map(one).collect())
    }

    /// Waits until both have these routes.
    fn both_have(&self, what: &str, wanted: &[(usize, u64)]) {
        let wanted: Routes = wanted
            .iter()
            .map(|(n, preference)| (ROUTES[*n].0.to_owned(), *preference))
            .collect();
        let found = wait_until(60 * SECOND, what, || {
            let (ours, birds) = (self.ours()?, self.birds());
            match ours == wanted && birds == wanted {
                true => Ok(()),
                false => Err(format!("ours {ours:?}, BIRD's {birds:?}\n{}", self.log())),
            }
        });
        found.unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until the status of the cache is so.
    fn await_cache(&self, what: &str, holds: impl Fn(&Value, &str) -> bool) {
        let found = wait_until(60 * SECOND, what, || {
            let status = self.status()?;
            let problems = status["problems"].to_string();
            match holds(&status["caches"][0], &problems) {
                true => Ok(()),
                false => Err(format!("{status:#}")),
            }
        });
        found.unwrap_or_else(|e| panic!("{e}"));
    }

    /// Also of a speaker with problems, which ends with another code.
    fn status(&self) -> Result<Value, String> {
        let output = self.ask(&["status", "-o", "json"]);
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{e}: {output:?}"))
    }
}

#[test]
fn an_rpki_cache_fills_the_table_that_filters_ask() {
    if !possible_without_root("an_rpki_cache_fills_the_table_that_filters_ask", &PROGRAMS) {
        return;
    }
    let mut site = Site::new("rpki", Family::Ipv4);
    let free = TcpListener::bind((address(site.family, US), 0)).unwrap();
    let cache = free.local_addr().unwrap().port();
    drop(free);
    site.write_entries(&[
        ("10.93.1.0/24", 24, 65010),
        ("10.93.2.0/24", 24, 65099),
        ("10.93.0.0/16", 16, 65020),
    ]);
    site.start_cache(cache);
    let ours = site.judge(US, cache);
    let port = site.port;
    let us = address(site.family, US);
    let ours = format!("#: listen {us} port {port}\n{ours}");
    // Words of BIRD's for timers that are not ours to choose are understood.
    site.write(&ours);
    let checked = site.ask(&["speaker", "--check", &site.config().display().to_string()]);
    assert!(checked.status.success(), "{checked:?}");
    site.start_speaker();
    let birds = site.judge(B, cache);
    site.start_judge("judge", &birds);
    let others = announcer(&site);
    site.start_judge("a", &others);

    let first = [(0, 200), (4, 50)];
    site.both_have("one valid, one unknown, three invalid", &first);
    let is_current = |cache: &Value, problems: &str| {
        cache["state"] == "Current" && cache["entries"] == 3 && !problems.contains("rpki")
    };
    site.await_cache("the cache", is_current);

    // It says something else, and tells it by itself.
    site.write_entries(&[
        ("10.93.2.0/24", 24, 65010),
        ("10.93.3.0/24", 24, 65020),
        ("192.0.2.0/24", 24, 0),
    ]);
    let second = [(0, 50), (1, 200), (2, 200), (3, 50)];
    site.both_have("other entries", &second);

    // It goes. What it has sent stays, also over a reload of the file.
    site.processes.end("cache", "-KILL");
    site.await_cache("the cache is gone", |cache, problems| {
        cache["state"] == "Down"
            && cache["entries"] == 3
            && problems.contains("bgp.rpki_cache")
            && problems.contains("the entries that it sent last are in use")
    });
    site.write(&ours.replace("bgp_local_pref = 50", "bgp_local_pref = 60"));
    let reloaded = site.ask(&["speaker", "reload"]);
    let said = String::from_utf8_lossy(&reloaded.stdout).into_owned();
    assert!(said.contains("go through the filters again"), "{said}");
    assert!(!said.contains("RPKI caches"), "{said}");
    let with_60 = [(0, 60), (1, 200), (2, 200), (3, 60)];
    let wanted: Routes = with_60
        .iter()
        .map(|(n, preference)| (ROUTES[*n].0.to_owned(), *preference))
        .collect();
    assert_eq!(site.ours().unwrap(), wanted);
    site.write(&ours);
    assert!(site.ask(&["speaker", "reload"]).status.success());
    site.both_have("as before the reload", &second);

    // It comes back as another session, with another set.
    site.write_entries(&[("10.93.4.0/24", 24, 65020)]);
    site.start_cache(cache);
    let third = [(0, 50), (1, 50), (2, 50), (3, 200), (4, 50)];
    site.both_have("the set of another session", &third);

    // Nothing is asked any more when the protocol is gone.
    let without: String = without_protocol(&ours);
    site.write(&without);
    let reloaded = site.ask(&["speaker", "reload"]);
    let said = String::from_utf8_lossy(&reloaded.stdout).into_owned();
    assert!(said.contains("RPKI caches: changed"), "{said}");
    let all: Routes = ROUTES.iter().map(|(p, _)| ((*p).to_owned(), 50)).collect();
    let found = wait_until(60 * SECOND, "nothing is known", || match site.ours()? {
        ours if ours == all => Ok(()),
        ours => Err(format!("{ours:?}")),
    });
    found.unwrap_or_else(|e| panic!("{e}"));
    let status = site.status().unwrap();
    assert!(status["caches"].is_null(), "{status:#}");
    site.end_speaker("-INT");
}

fn without_protocol(text: &str) -> String {
    let begins = text.find("protocol rpki").unwrap();
    let ends = begins + text[begins..].find("filter judged").unwrap();
    format!("{}{}", &text[..begins], &text[ends..])
}

/// The file of A, which announces each route with its origin behind its own AS.
fn announcer(site: &Site) -> String {
    let (port, a) = (site.port, address(site.family, A));
    let peers = [US, B].map(|n| {
        let peer = address(site.family, n);
        format!(
            "protocol bgp p{n} {{
               local {a} port {port} as 65001;
               neighbor {peer} port {port} as 64512;
               multihop; strict bind;
               connect delay time 1; connect retry time 1; error wait time 1, 2;
               ipv4 {{ import none; export filter with_origin; }};
             }}\n"
        )
    });
    let statics = ROUTES.map(|(prefix, _)| format!("route {prefix} blackhole;\n"));
    let origins =
        ROUTES.map(|(prefix, asn)| format!("if net = {prefix} then bgp_path.prepend({asn});\n"));
    format!(
        "router id 127.93.0.2;
         protocol device {{ }}
         protocol static own {{ ipv4; {} }}
         filter with_origin {{ {} accept; }}
         {}",
        statics.concat(),
        origins.concat(),
        peers.concat()
    )
}
