//! Memory of ops that failed, or that succeed and have to be done again and again, so that neither
//! is tried in a tight loop and both are told.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use caracal_model::{Problem, ProblemCode};
use tokio::time::Instant;

use crate::op::Op;
use crate::problem::problem;

/// Wait after the first failure; doubled with each further one.
const FIRST: Duration = Duration::from_millis(250);
/// Longest wait.
const LONGEST: Duration = Duration::from_secs(30);
/// An op that succeeded this often within [`MEMORY`] is being undone by somebody.
const REPEATS: u32 = 6;
/// Time for which a success is remembered.
const MEMORY: Duration = Duration::from_secs(20);
/// Passes with more ops are not looked at for repetition: they are a start, not a quarrel.
const COUNTED: usize = 1000;
/// Most problems of one kind of failure that are spelled out.
const NAMED: usize = 3;

#[derive(Debug)]
struct Failed {
    count: u32,
    retry_at: Instant,
    reason: String,
}

#[derive(Debug)]
struct Done {
    count: u32,
    last: Instant,
}

/// The memory, by op.
#[derive(Debug, Default)]
pub(in crate::dataplane) struct Retries {
    failed: HashMap<Op, Failed>,
    done: HashMap<Op, Done>,
}

impl Retries {
    /// Of the ops of a pass, those to do now. Forgets failures that are no longer wanted.
    pub(in crate::dataplane) fn due(&mut self, ops: Vec<Op>, now: Instant) -> Vec<Op> {
        self.done.retain(|_, done| now < done.last + MEMORY);
        if self.failed.is_empty() && self.done.is_empty() {
            return ops;
        }
        if !self.failed.is_empty() {
            #[allow(
                clippy::mutable_key_type,
                reason = "what rules remember of themselves is no part of them"
            )]
            let wanted: HashSet<&Op> = ops.iter().collect();
            self.failed.retain(|op, _| wanted.contains(op));
        }
        let waits = |op: &Op| {
            let failed = self.failed.get(op).is_some_and(|f| now < f.retry_at);
            let undone = self
                .done
                .get(op)
                .is_some_and(|d| d.count >= REPEATS && now < d.last + backoff(d.count - REPEATS));
            failed || undone
        };
        ops.into_iter().filter(|op| !waits(op)).collect()
    }

    pub(in crate::dataplane) fn failed(&mut self, op: &Op, reason: String, now: Instant) {
        let failed = self.failed.entry(op.clone()).or_insert(Failed {
            count: 0,
            retry_at: now,
            reason: String::new(),
        });
        failed.retry_at = now + backoff(failed.count);
        failed.count = failed.count.saturating_add(1);
        failed.reason = reason;
    }

    pub(in crate::dataplane) fn succeeded(&mut self, op: &Op, of: usize, now: Instant) {
        if self.failed.is_empty() && of > COUNTED {
            return;
        }
        self.failed.remove(op);
        let done = self.done.entry(op.clone()).or_insert(Done {
            count: 0,
            last: now,
        });
        done.count = done.count.saturating_add(1);
        done.last = now;
    }

    /// When the next op is due again.
    pub(in crate::dataplane) fn next_due(&self) -> Option<Instant> {
        let failed = self.failed.values().map(|f| f.retry_at);
        let undone = self
            .done
            .values()
            .filter(|d| d.count >= REPEATS)
            .map(|d| d.last + backoff(d.count - REPEATS));
        failed.chain(undone).min()
    }

    /// Problems to report. Failures with the same reason are told together.
    pub(in crate::dataplane) fn problems(&self) -> Vec<Problem> {
        let mut by_reason: HashMap<(ProblemCode, &str), Vec<String>> = HashMap::new();
        for (op, failed) in &self.failed {
            let ops = by_reason.entry((code(op), &failed.reason)).or_default();
            ops.push(op.to_string());
        }
        let mut problems = Vec::new();
        for ((code, reason), mut keys) in by_reason {
            keys.sort_unstable();
            for key in keys.iter().take(NAMED) {
                let reason = format!("the kernel refuses this: {reason}; it is tried again");
                problems.push(problem(code, key, reason));
            }
            if let Some(more) = keys.len().checked_sub(NAMED).filter(|n| *n > 0) {
                let reason = format!("the kernel refuses {more} more such changes: {reason}");
                problems.push(problem(code, &keys[NAMED], reason));
            }
        }
        for (op, done) in self.done.iter().filter(|(_, d)| d.count >= REPEATS) {
            let reason = format!(
                "done {} times within {} s and undone by somebody each time; is another agent running on this node?",
                done.count,
                MEMORY.as_secs()
            );
            problems.push(problem(ProblemCode::AgentUndone, &op.to_string(), reason));
        }
        problems.sort_unstable();
        problems
    }
}

/// The code of the problem that an op is refused: without rules nothing guards this node.
const fn code(op: &Op) -> ProblemCode {
    match op {
        Op::PutNat(_) | Op::DeleteNat => ProblemCode::AgentRulesUnwritten,
        _ => ProblemCode::AgentKernelRefused,
    }
}

/// Wait after so many failures before.
pub(in crate::dataplane) fn backoff(failures: u32) -> Duration {
    FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(n: u8) -> Op {
        Op::WriteSysctl(format!("net/x{n}"), "1".into())
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_twice_as_long_each_time() {
        let mut retries = Retries::default();
        let start = Instant::now();
        retries.failed(&op(1), "no".into(), start);
        assert_eq!(retries.due(vec![op(1), op(2)], start), [op(2)]);
        assert_eq!(retries.next_due(), Some(start + FIRST));
        let later = start + FIRST;
        assert_eq!(retries.due(vec![op(1)], later), [op(1)]);
        retries.failed(&op(1), "no".into(), later);
        assert_eq!(retries.next_due(), Some(later + FIRST * 2));
        assert_eq!(retries.problems().len(), 1);
        retries.succeeded(&op(1), 1, later);
        assert_eq!(retries.problems(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_is_no_longer_wanted_is_forgotten() {
        let mut retries = Retries::default();
        let start = Instant::now();
        retries.failed(&op(1), "no".into(), start);
        assert_eq!(retries.due(vec![], start), []);
        assert_eq!(retries.next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quarrel_is_slowed_down_and_told() {
        let mut retries = Retries::default();
        let start = Instant::now();
        for _ in 0..REPEATS {
            assert_eq!(retries.due(vec![op(1)], start), [op(1)], "at once at first");
            retries.succeeded(&op(1), 1, start);
        }
        assert_eq!(retries.due(vec![op(1)], start), []);
        assert_eq!(retries.problems()[0].code, "agent.undone");
        assert_eq!(retries.due(vec![op(1)], start + FIRST), [op(1)]);
        retries.due(vec![], start + MEMORY);
        assert_eq!(retries.problems(), []);
    }

    #[test]
    fn rules_that_are_refused_have_a_code_of_their_own() {
        let mut retries = Retries::default();
        let now = Instant::now();
        retries.failed(&op(1), "no".into(), now);
        retries.failed(&Op::PutNat(std::sync::Arc::default()), "no".into(), now);
        let codes: Vec<_> = retries.problems().iter().map(|p| p.code).collect();
        assert_eq!(
            codes,
            [
                ProblemCode::AgentKernelRefused,
                ProblemCode::AgentRulesUnwritten
            ]
        );
    }

    #[test]
    fn many_failures_of_one_reason_are_few_problems() {
        let mut retries = Retries::default();
        let now = Instant::now();
        for n in 0..50 {
            retries.failed(&op(n), "no route to host".into(), now);
        }
        assert_eq!(retries.problems().len(), NAMED + 1);
    }
}
