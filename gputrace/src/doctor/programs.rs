//! Checks of the eBPF programs: what the kernel said to them.

use super::diagnosis::{Check, State};
use crate::{
    identity::escape_at_most,
    sensors::bpf::{AttachMethod, BpfError, Release, Trial},
};

/// Why the kernel was not asked.
const NOT_TRIED: &str = "not tried without the privileges";

/// What the kernel said to the programs. `None`: it was not asked. The second check is about the
/// probes.
pub fn judge(
    trial: Option<&Result<Trial, BpfError>>,
    release: Option<Release>,
    sys_admin: bool,
) -> [Check; 2] {
    let programs =
        |found: String| Check::ok("programs", found, "The kernel must accept them first").needed();
    match trial {
        None => {
            let advice = "run the doctor as root: sudo gputrace doctor";
            let unknown = |check: Check| check.state(State::Unknown).advice(advice);
            let method = release.map_or_else(
                || "unknown".to_owned(),
                |release| AttachMethod::best(release).label().to_owned(),
            );
            [
                unknown(programs(NOT_TRIED.to_owned())),
                unknown(probes(format!(
                    "{method}, by the kernel's version; {NOT_TRIED}"
                ))),
            ]
        }
        Some(Err(error)) => {
            let refused = programs(short(error))
                .state(State::Missing)
                .advice(advice(error));
            let probes = probes("not tried, since the programs were refused".to_owned());
            [refused, probes.state(State::Unknown)]
        }
        Some(Ok(trial)) => [
            programs("accepted by the kernel; none was attached".to_owned()),
            judge_probes(trial, sys_admin),
        ],
    }
}

fn probes(found: String) -> Check {
    Check::ok("probes", found, "They see the calls into libcuda").needed()
}

fn judge_probes(trial: &Trial, sys_admin: bool) -> Check {
    let method = trial.method.label();
    match (&trial.probes, trial.method) {
        (Err(error), AttachMethod::UprobeMulti) => probes(format!("{method}: {}", short(error)))
            .state(State::Missing)
            .advice("give --attach perf-event; and please report this with 'uname -a'"),
        (Err(error), _) => probes(format!("{method}: {}", short(error)))
            .state(State::Missing)
            .advice(advice(error)),
        (Ok(()), AttachMethod::UprobeMulti) => {
            probes(format!("{method}: one link for all functions of a library"))
        }
        // The kernel asks for it when a uprobe is opened as a perf event (EACCES on 6.18).
        (Ok(()), _) if !sys_admin => probes(format!("{method}, which need CAP_SYS_ADMIN"))
            .state(State::Missing)
            .advice("run as root, or give gputrace CAP_SYS_ADMIN"),
        (Ok(()), _) => probes(format!("{method}: two for each function"))
            .state(State::Warning)
            .advice(
                "Linux 6.6 or later takes all probes out at once; here each takes it 0.1 s when \
                 tracing ends, which gputrace leaves to a process in the background",
            ),
    }
}

fn advice(error: &BpfError) -> &'static str {
    match error {
        BpfError::NotPermitted { .. } => {
            "the capabilities are there, so something else forbids it: a seccomp filter or a \
             security module. In a container: docker run --privileged, or \
             securityContext.privileged in Kubernetes"
        }
        BpfError::Btf(_) => "see btf",
        BpfError::OldKernel { .. } => "see kernel",
        _ => "please report this together with the output of 'uname -a'",
    }
}

/// An error in one line; a verifier's log can have thousands.
fn short(error: &BpfError) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    escape_at_most(words.join(" ").as_bytes(), 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_events_need_more_than_two_capabilities() {
        let trial = |method| Trial {
            method,
            probes: Ok(()),
        };
        let perf = trial(AttachMethod::PerfEvent);
        assert_eq!(judge_probes(&perf, false).state, State::Missing);
        assert_eq!(judge_probes(&perf, true).state, State::Warning);
        let multi = trial(AttachMethod::UprobeMulti);
        assert_eq!(judge_probes(&multi, false).state, State::Ok);
    }

    #[test]
    fn a_refusal_is_explained_in_one_short_line() {
        let refused = Err(BpfError::NotPermitted {
            what: "eBPF maps to be created",
        });
        let [programs, probes] = judge(Some(&refused), Release::parse("6.1"), true);
        assert_eq!(
            (programs.state, probes.state),
            (State::Missing, State::Unknown)
        );
        assert!(programs.advice.unwrap().contains("seccomp"));
        let log = Err(BpfError::Missing("line\n".repeat(10_000)));
        let [programs, _] = judge(Some(&log), None, true);
        assert!(programs.found.len() < 500 && !programs.found.contains('\n'));
    }
}
