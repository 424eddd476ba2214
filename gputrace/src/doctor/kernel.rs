//! Checks of the kernel: its version, its types, and what it allows.

use std::{io, path::Path};

use super::{
    diagnosis::{Check, State},
    machine::Machine,
};
use crate::{
    identity::escape_at_most,
    sensors::{
        bpf::{AttachMethod, Release, needed_members},
        btf::{Btf, BtfError, KERNEL_BTF},
    },
};

/// The kernel's version; `None` if it says nothing that can be read.
pub fn release(machine: &Machine) -> (Option<Release>, Check) {
    let text = machine.read("proc/sys/kernel/osrelease");
    let release = text.as_deref().ok().and_then(Release::parse);
    let why = "At least 5.8 is needed (ring buffer); 6.6 is best (uprobe.multi)";
    let check = |found: String| Check::ok("kernel", found, why).needed();
    let found = match &text {
        Ok(text) => format!("Linux {}", escape_at_most(text.as_bytes(), 100)),
        Err(error) => format!("the version cannot be read: {error}"),
    };
    let check = match release {
        Some(release) if release.has_ring_buffer() => check(found),
        Some(_) => check(found)
            .state(State::Missing)
            .advice("boot Linux 5.8 or later; 6.6 or later is best"),
        None => check(found)
            .state(State::Unknown)
            .advice("mount /proc, and run on Linux 5.8 or later"),
    };
    (release, check)
}

/// The kernel's own type information, with every member that the programs need.
pub fn btf(machine: &Machine) -> Check {
    let path = machine.path(KERNEL_BTF.trim_start_matches('/'));
    let members =
        Btf::read(&path).and_then(|btf| needed_members(&btf, &machine.path("proc/cgroups")));
    judge_btf(members, &path)
}

fn judge_btf(members: Result<usize, BtfError>, path: &Path) -> Check {
    let why = "It tells where the kernel keeps what identifies a process";
    let check = |found: String| Check::ok("btf", found, why).needed();
    match members {
        Ok(members) => check(format!(
            "{} has all {members} members that are needed",
            path.display()
        )),
        Err(error) => {
            let advice = match &error {
                BtfError::Unreadable { source, .. }
                    if source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    "run as root"
                }
                BtfError::Unreadable { .. } => {
                    "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (the distributions' own \
                     are, since about 2021); in a container, mount /sys"
                }
                _ => {
                    "please report this together with the output of 'uname -a': this version of \
                     gputrace does not know this kernel's structures"
                }
            };
            check(error.to_string())
                .state(State::Missing)
                .advice(advice)
        }
    }
}

/// Kernel lockdown. `accepted`: the kernel took the programs, which it does not when locked down.
pub fn lockdown(machine: &Machine, accepted: bool) -> Check {
    let text = machine.read("sys/kernel/security/lockdown").ok();
    judge_lockdown(text.as_deref(), accepted)
}

fn judge_lockdown(text: Option<&str>, accepted: bool) -> Check {
    let why = "The mode 'confidentiality' forbids tracing";
    let check = |found: &str| Check::ok("lockdown", found, why).needed();
    match text.and_then(chosen) {
        Some("confidentiality") => check("mode 'confidentiality'")
            .state(State::Missing)
            .advice(
                "boot without lockdown=confidentiality on the kernel's command line; the mode \
             'integrity' is no obstacle",
            ),
        Some("integrity") => check("mode 'integrity', which is no obstacle"),
        Some("none") => check("none"),
        // What the kernel did says more than what it says.
        _ if accepted => check("none, or not in the way: the programs were accepted"),
        _ => check("the kernel does not say (its securityfs is not mounted or not readable)")
            .state(State::Unknown)
            .advice("run as root; the kernel then shows whether it takes the programs"),
    }
}

/// The value in brackets or parentheses, as the kernel marks the chosen one of several.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| {
        word.strip_prefix('[')
            .and_then(|word| word.strip_suffix(']'))
            .or_else(|| word.strip_prefix('(')?.strip_suffix(')'))
    })
}

/// What unprivileged processes may do; says why root is needed.
pub fn sysctls(machine: &Machine, privileged: bool) -> Check {
    let value = |name: &str| {
        machine
            .read(&format!("proc/sys/kernel/{name}"))
            .map_or_else(
                |_| "not there".to_owned(),
                |text| escape_at_most(text.as_bytes(), 20),
            )
    };
    let found = format!(
        "perf_event_paranoid {}, unprivileged_bpf_disabled {}",
        value("perf_event_paranoid"),
        value("unprivileged_bpf_disabled"),
    );
    let why = if privileged {
        "They bind only processes without privileges, which this one is not"
    } else {
        "They bind processes without privileges; no value lets such a one trace others"
    };
    Check::ok("sysctls", found, why).state(State::Note)
}

/// The perf events that probes are made of where the kernel has no uprobe.multi.
pub fn uprobe_events(machine: &Machine, method: Option<AttachMethod>) -> Check {
    let path = "sys/bus/event_source/devices/uprobe";
    let there = machine.has(path);
    let found = if there {
        "there".to_owned()
    } else {
        format!("/{path} is not there")
    };
    match method {
        Some(AttachMethod::UprobeMulti) => Check::ok(
            "uprobe_events",
            found,
            "Not used on this kernel: uprobe.multi is better",
        )
        .state(if there { State::Ok } else { State::Note }),
        _ => {
            let why = "Before 6.6 each probe is such an event";
            let check = Check::ok("uprobe_events", found, why).needed();
            if there {
                check
            } else {
                check.state(State::Missing).advice(
                    "boot a kernel built with CONFIG_UPROBE_EVENTS=y; in a container, mount /sys",
                )
            }
        }
    }
}

/// Probes on functions of the kernel.
pub fn kprobes(machine: &Machine) -> Check {
    let there = machine.has("sys/bus/event_source/devices/kprobe");
    Check::ok(
        "kprobes",
        if there { "there" } else { "not there" },
        "Not needed yet, and neither is fentry",
    )
    .state(if there { State::Ok } else { State::Note })
}

/// Whether user stacks can be walked without danger.
pub fn user_stacks(release: Option<Release>) -> Check {
    let why = "They show how a call site was reached";
    match release {
        None => Check::ok("user_stacks", "not known without the kernel's version", why)
            .state(State::Unknown)
            .advice("see kernel"),
        Some(release) => match release.refuses_user_stacks() {
            None => Check::ok("user_stacks", "no trouble is known on this kernel", why),
            Some(reason) => Check::ok("user_stacks", reason, why)
                .state(State::Warning)
                .advice("boot another kernel than 6.6, or do without; nothing needs to be given"),
        },
    }
}

/// The preemption model: a panic was reported where it meets private stacks.
pub fn preemption(machine: &Machine, release: Option<Release>) -> Check {
    let read = |path| machine.read(path).unwrap_or_default();
    let model = preemption_model(
        &read("proc/version"),
        &read("sys/kernel/debug/sched/preempt"),
        &read("proc/cmdline"),
        &read(&format!(
            "boot/config-{}",
            read("proc/sys/kernel/osrelease")
        )),
    );
    judge_preemption(model, release)
}

/// How the kernel preempts itself; `None`: it does not say.
fn preemption_model(version: &str, debugfs: &str, cmdline: &str, config: &str) -> Option<String> {
    let has = |word| version.split_whitespace().any(|it| it == word);
    if has("PREEMPT_RT") {
        return Some("rt".to_owned());
    }
    if let Some(model) = chosen(debugfs) {
        return Some(escape_at_most(model.as_bytes(), 20));
    }
    if has("PREEMPT_DYNAMIC") {
        return cmdline
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("preempt="))
            .next_back()
            .map(|model| escape_at_most(model.as_bytes(), 20))
            .or_else(|| configured(config).map(str::to_owned));
    }
    if version.is_empty() {
        return None;
    }
    Some(
        if has("PREEMPT") {
            "full"
        } else {
            "none or voluntary"
        }
        .to_owned(),
    )
}

/// What the kernel was built to choose.
fn configured(config: &str) -> Option<&'static str> {
    let has = |option: &str| config.lines().any(|line| line == option);
    [
        ("CONFIG_PREEMPT_NONE=y", "none"),
        ("CONFIG_PREEMPT_VOLUNTARY=y", "voluntary"),
        ("CONFIG_PREEMPT_LAZY=y", "lazy"),
        ("CONFIG_PREEMPT=y", "full"),
    ]
    .into_iter()
    .find_map(|(option, model)| has(option).then_some(model))
}

fn judge_preemption(model: Option<String>, release: Option<Release>) -> Check {
    let preemptible = model
        .as_deref()
        .is_none_or(|model| matches!(model, "full" | "lazy" | "rt"));
    let found = model.map_or_else(
        || "chosen at boot; the kernel does not tell which".to_owned(),
        |model| format!("'{model}'"),
    );
    // Programs at probes have private stacks since 6.13.
    let affected = release.is_none_or(|release| release.at_least(6, 13)) && preemptible;
    if affected {
        Check::ok(
            "preemption",
            found,
            "On preemptible kernels since 6.13 a panic of hosts with probes under load was reported \
             (opentelemetry-ebpf-instrumentation#3056, cause suspected). gputrace's programs are \
             few and use little stack",
        )
        .state(State::Note)
    } else {
        let why = "No trouble with probes is known for this model and version";
        Check::ok("preemption", found, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(text: &str) -> Option<Release> {
        Release::parse(text)
    }

    #[test]
    fn lockdown_modes() {
        let state = |text, accepted| judge_lockdown(text, accepted).state;
        assert_eq!(
            state(Some("[none] integrity confidentiality"), false),
            State::Ok
        );
        assert_eq!(
            state(Some("none [integrity] confidentiality"), false),
            State::Ok
        );
        assert_eq!(
            state(Some("none integrity [confidentiality]"), true),
            State::Missing
        );
        for text in [None, Some(""), Some("garbage"), Some("[new]")] {
            assert_eq!(state(text, false), State::Unknown, "{text:?}");
            assert_eq!(state(text, true), State::Ok, "{text:?}");
        }
    }

    #[test]
    fn preemption_models() {
        let dynamic = "Linux version 6.12.0 (x@y) #1 SMP PREEMPT_DYNAMIC";
        let model = |version, debugfs, cmdline| {
            preemption_model(version, debugfs, cmdline, "CONFIG_PREEMPT_LAZY=n")
        };
        assert_eq!(
            model(dynamic, "none voluntary (full) lazy", "").as_deref(),
            Some("full")
        );
        assert_eq!(
            model(dynamic, "", "quiet preempt=none preempt=lazy").as_deref(),
            Some("lazy")
        );
        assert_eq!(model(dynamic, "", "quiet"), None);
        let built =
            "CONFIG_PREEMPT_DYNAMIC=y\nCONFIG_PREEMPT_VOLUNTARY=y\n# CONFIG_PREEMPT is not set";
        assert_eq!(
            preemption_model(dynamic, "", "", built).as_deref(),
            Some("voluntary")
        );
        assert_eq!(
            model("Linux version 6.1 #1 SMP PREEMPT_RT Debian", "", "").as_deref(),
            Some("rt")
        );
        assert_eq!(
            model("Linux version 6.1 #1 SMP PREEMPT Debian", "", "").as_deref(),
            Some("full")
        );
        assert_eq!(
            model("Linux version 5.10 #1 SMP Debian", "", "").as_deref(),
            Some("none or voluntary")
        );
        assert_eq!(model("", "", ""), None);
    }

    #[test]
    fn preemption_is_noted_from_6_13_on_unless_the_kernel_is_not_preemptible() {
        let state = |model: Option<&str>, version| {
            judge_preemption(model.map(str::to_owned), version).state
        };
        for model in [Some("full"), Some("lazy"), Some("rt"), None] {
            assert_eq!(state(model, release("6.13")), State::Note);
            assert_eq!(state(model, None), State::Note);
            assert_eq!(state(model, release("6.12")), State::Ok);
        }
        assert_eq!(state(Some("none"), release("6.18")), State::Ok);
    }

    #[test]
    fn the_6_6_kernels_are_warned_of() {
        assert_eq!(user_stacks(release("6.6.58")).state, State::Warning);
        assert_eq!(user_stacks(release("6.8")).state, State::Ok);
        assert_eq!(user_stacks(None).state, State::Unknown);
    }
}
