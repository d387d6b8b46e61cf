//! What there is to run, read from cargo's messages and from the test programs themselves.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The package whose targets can be named.
pub(crate) const PACKAGE: &str = "caracal-tests";

/// A test program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Package and target.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// The package's directory, where cargo runs it.
    pub(crate) directory: PathBuf,
}

/// What runs as one process and gets one verdict: a whole test program, or one scenario of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) program: Program,
    /// The test function by its whole name; `None`: all of the program.
    pub(crate) test: Option<String>,
}

impl Case {
    /// Package and target of a program; target and function of a scenario (`drain::a_node_leaves`).
    pub(crate) fn name(&self) -> String {
        match &self.test {
            None => self.program.name.clone(),
            Some(test) => format!("{}::{test}", self.program.target()),
        }
    }
}

impl Program {
    fn target(&self) -> &str {
        self.name.rsplit(' ').next().unwrap_or(&self.name)
    }

    /// The names of its tests, in the order of its list, as [`scenarios`] asks for them.
    pub(crate) fn list(&self, which: &[&str]) -> Result<Vec<String>, String> {
        let output = Command::new(&self.executable)
            .args(["--list", "--format", "terse"])
            .args(which)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{}: {e}", self.executable.display()))?;
        match output.status.success() {
            true => Ok(listed(&String::from_utf8_lossy(&output.stdout))),
            false => Err(format!(
                "{} --list: {}",
                self.executable.display(),
                output.status
            )),
        }
    }
}

/// The names in what `--list --format terse` prints.
fn listed(output: &str) -> Vec<String> {
    let lines = output.lines().filter_map(|l| l.strip_suffix(": test"));
    lines.map(str::to_owned).collect()
}

/// The test programs in cargo's messages.
pub(crate) fn programs(messages: &str) -> Vec<Program> {
    let of = |message: Value| -> Option<Program> {
        let executable = message["executable"].as_str()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
        let package = message["package_id"].as_str()?;
        // path+file:///…/tests#caracal-tests@0.1.0, or …/node#caracal@0.1.0
        let package = package.rsplit(['#', '/']).next()?.split('@').next()?;
        Some(Program {
            name: format!("{package} {}", message["target"]["name"].as_str()?),
            executable: executable.into(),
            directory: directory.to_owned(),
        })
    };
    let messages = messages
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok());
    messages.filter_map(of).collect()
}

/// The cases in an order in which neighbours do not start side by side. Scenarios of one target
/// weigh alike, and of the heaviest, with four labs each, three at once keep the kernel from its
/// own work for minutes: then `ip` hangs in all of them.
pub(crate) fn apart(cases: Vec<Case>) -> Vec<Case> {
    let mut first = cases;
    let second = first.split_off(first.len().div_ceil(2));
    let mut second = second.into_iter();
    let mut apart = Vec::new();
    for case in first {
        apart.push(case);
        apart.extend(second.next());
    }
    apart
}

/// The programs to run, in the order in which they start.
pub(crate) fn chosen(
    all: Vec<Program>,
    targets: &[String],
    without: &[String],
    first: &[String],
) -> Result<Vec<Program>, String> {
    let name = |target: &String| format!("{PACKAGE} {target}");
    let find = |target: &String| {
        let found = all.iter().find(|p| p.name == name(target));
        found
            .cloned()
            .ok_or_else(|| format!("{PACKAGE} has no test target {target}, or it was not built"))
    };
    // A name that has been misspelt would leave out nothing.
    let _known: Vec<Program> = without.iter().map(find).collect::<Result<_, _>>()?;
    if !targets.is_empty() {
        return targets
            .iter()
            .filter(|t| !without.contains(t))
            .map(find)
            .collect();
    }
    if let Some(missing) = first.iter().find(|f| all.iter().all(|p| p.name != **f)) {
        return Err(format!(
            "there is no test program {missing}, or it was not built"
        ));
    }
    let without: Vec<String> = without.iter().map(name).collect();
    let mut chosen: Vec<Program> = all
        .into_iter()
        .filter(|p| !without.contains(&p.name))
        .collect();
    let rank = |program: &Program| first.iter().position(|f| *f == program.name);
    chosen.sort_by_key(|program| rank(program).unwrap_or(first.len()));
    Ok(chosen)
}

/// The scenarios of programs: each test function that is not ignored. `list` lists a program's
/// tests, with the arguments that say which.
pub(crate) fn scenarios(
    programs: Vec<Program>,
    list: impl Fn(&Program, &[&str]) -> Result<Vec<String>, String>,
) -> Result<Vec<Case>, String> {
    let mut scenarios = Vec::new();
    for program in programs {
        let ignored = list(&program, &["--ignored"])?;
        let all = list(&program, &[])?;
        let case = |test| Case {
            program: program.clone(),
            test: Some(test),
        };
        scenarios.extend(all.into_iter().filter(|t| !ignored.contains(t)).map(case));
    }
    Ok(scenarios)
}

/// Those of a name; without one, those of a target; without one, those with it in their name.
pub(crate) fn only(all: &[Case], name: &str) -> Result<Vec<Case>, String> {
    let exact = |case: &Case| case.name() == name || case.test.as_deref() == Some(name);
    let target = |case: &Case| case.program.target() == name;
    let part = |case: &Case| case.name().contains(name);
    let rules: [&dyn Fn(&Case) -> bool; 3] = [&exact, &target, &part];
    let found = rules
        .iter()
        .map(|rule| all.iter().filter(|c| rule(c)).cloned().collect());
    found
        .into_iter()
        .find(|found: &Vec<Case>| !found.is_empty())
        .ok_or_else(|| format!("none of {} tests is called {name}", all.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///x/tests#caracal-tests@0.1.0","manifest_path":"/x/tests/Cargo.toml","target":{"name":"ipam"},"profile":{"test":true},"executable":"/x/t/ipam-1"}
{"reason":"compiler-artifact","package_id":"path+file:///x/cni#caracal-cni@0.1.0","manifest_path":"/x/cni/Cargo.toml","target":{"name":"ipam"},"profile":{"test":true},"executable":"/x/t/ipam-2"}
{"reason":"compiler-artifact","package_id":"path+file:///x/model#0.1.0","manifest_path":"/x/model/Cargo.toml","target":{"name":"m"},"profile":{"test":true},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///x/node#caracal@0.1.0","manifest_path":"/x/node/Cargo.toml","target":{"name":"caracal"},"profile":{"test":false},"executable":"/x/t/caracal"}
{"reason":"build-finished","success":true}"#;

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn names(targets: &[&str], without: &[&str]) -> Result<Vec<String>, String> {
        let chosen = chosen(programs(BUILT), &owned(targets), &owned(without), &[])?;
        Ok(chosen.into_iter().map(|p| p.name).collect())
    }

    #[test]
    fn a_long_program_starts_first() {
        let chosen = |first: &[&str]| chosen(programs(BUILT), &[], &[], &owned(first));
        let order = chosen(&["caracal-cni ipam"]).unwrap();
        let order: Vec<&str> = order.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(order, ["caracal-cni ipam", "caracal-tests ipam"]);
        let error = chosen(&["caracal-cni ipma"]).unwrap_err();
        assert!(
            error.contains("no test program caracal-cni ipma"),
            "{error}"
        );
    }

    #[test]
    fn targets_of_one_name_in_two_packages_are_two() {
        let both = owned(&["caracal-tests ipam", "caracal-cni ipam"]);
        assert_eq!(names(&[], &[]), Ok(both));
        assert_eq!(names(&[], &["ipam"]), Ok(owned(&["caracal-cni ipam"])));
        assert_eq!(names(&["ipam"], &[]), Ok(owned(&["caracal-tests ipam"])));
        for (targets, without) in [(vec!["ipma"], vec![]), (vec![], vec!["ipma"])] {
            let error = names(&targets, &without).expect_err("misspelt");
            assert!(error.contains("no test target ipma"), "{error}");
        }
    }

    #[test]
    fn a_scenario_is_found_by_its_name_its_target_or_a_part() {
        let program = Program {
            name: format!("{PACKAGE} drain"),
            executable: "/x/drain-1".into(),
            directory: "/x".into(),
        };
        let list = |_: &Program, which: &[&str]| {
            let output = match which {
                ["--ignored"] => "b: test\n",
                _ => "a: test\nb: test\nm::ab: test\n\n3 tests, 0 benchmarks\n",
            };
            Ok(listed(output))
        };
        let all = scenarios(vec![program], list).unwrap();
        let found = |name: &str| -> Result<Vec<String>, String> {
            Ok(only(&all, name)?.iter().map(Case::name).collect())
        };
        let both = owned(&["drain::a", "drain::m::ab"]);
        assert_eq!(found("drain"), Ok(both));
        let apart: Vec<_> = apart([&all[..], &all[..1]].concat());
        let apart: Vec<String> = apart.iter().map(Case::name).collect();
        assert_eq!(apart, ["drain::a", "drain::a", "drain::m::ab"]);
        assert_eq!(found("a"), Ok(owned(&["drain::a"])));
        assert_eq!(found("drain::a"), Ok(owned(&["drain::a"])));
        assert_eq!(found("m::"), Ok(owned(&["drain::m::ab"])));
        let error = found("dran").unwrap_err();
        assert_eq!(error, "none of 2 tests is called dran");
    }
}
