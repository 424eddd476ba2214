//! A diagnosis for people: one paragraph for each check, in 80 columns.

use std::{fmt, iter};

use super::diagnosis::{Check, Diagnosis, FoundLibrary, State};
use crate::{
    evidence::Evidence,
    render::table::Style,
    sensors::procaddr::{Answer, ProcAddresses},
    units::counted,
};

/// Columns of the state and of the name, each with the blank behind it.
const STATE: usize = 9;
const NAME: usize = 15;
/// Where text begins.
const INDENT: usize = STATE + NAME;
/// Text narrower than this cannot be read; a narrow terminal then breaks the lines itself.
const NARROWEST: usize = 30;
/// Longer lines are hard to follow.
const WIDEST: usize = 100;

/// A diagnosis, to be shown.
pub struct Shown<'a> {
    /// The diagnosis.
    pub diagnosis: &'a Diagnosis,
    /// How it looks.
    pub style: Style,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.diagnosis.checks {
            self.check(f, check)?;
            if check.name == "libcuda" {
                for library in &self.diagnosis.libraries {
                    self.library(f, library)?;
                }
                for it in &self.diagnosis.not_probed {
                    let processes = match it.processes.len() {
                        0 => String::new(),
                        n => format!(" ({})", counted(n as u64, "process")),
                    };
                    let line = format!("not probed: {}: {}{processes}", it.path, it.reason);
                    self.text(f, [0, 2], "", &line)?;
                }
            }
        }
        self.conclusion(f)
    }
}

/// A terminal's escape sequences.
mod ansi {
    pub const RESET: &str = "\x1b[0m";
    pub const BOLD: &str = "\x1b[1m";
    pub const DIM: &str = "\x1b[2m";
    pub const RED: &str = "\x1b[31m";
    pub const GREEN: &str = "\x1b[32m";
    pub const YELLOW: &str = "\x1b[33m";
    pub const CYAN: &str = "\x1b[36m";
}

impl Shown<'_> {
    fn check(&self, f: &mut fmt::Formatter<'_>, check: &Check) -> fmt::Result {
        let state = format!("{:STATE$}", check.state.label());
        let name = check.name.replace('_', " ");
        write!(
            f,
            "{}{name:NAME$}",
            self.painted(paint(check.state), &state)
        )?;
        let (found, why) = (sentence(&check.found), sentence(&check.why));
        let lines = wrap(&[("", &found), (ansi::DIM, &why)], self.width());
        // The first one goes on behind the name.
        for (line, indent) in lines.iter().zip(iter::once(0).chain(iter::repeat(INDENT))) {
            self.line(f, indent, line)?;
        }
        match &check.advice {
            Some(advice) => self.text(f, [0, 3], ansi::BOLD, &format!("-> {advice}")),
            None => Ok(()),
        }
    }

    /// A copy of libcuda, with its functions grouped by where they are probed.
    fn library(&self, f: &mut fmt::Formatter<'_>, it: &FoundLibrary) -> fmt::Result {
        let library = &it.library;
        let mapped = match it.mapped_by.len() {
            0 => "by no process".to_owned(),
            1 => "by 1 process".to_owned(),
            n => format!("by {n} processes"),
        };
        self.text(f, [0, 2], "", &library.path)?;
        let line = format!("inode {}, mapped {mapped}", library.inode);
        self.text(f, [2, 4], "", &line)?;
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        let mut add = |place: String, function| match groups.iter_mut().find(|it| it.0 == place) {
            Some(group) => group.1.push(function),
            None => groups.push((place, vec![function])),
        };
        for probed in &library.functions {
            let how = if probed.emulated {
                format!("emulated ({})", probed.placement)
            } else {
                format!("single-stepped, since {}", probed.placement)
            };
            add(
                format!("at +{}, {how}", probed.offset),
                probed.function.symbol(),
            );
        }
        for missing in &library.missing {
            add(format!("missing, {}", missing.reason), &missing.function);
        }
        for (place, functions) in groups {
            let line = format!("{place}: {}", functions.join(", "));
            self.text(f, [2, 4], "", &line)?;
        }
        match &it.proc_addresses {
            Some(answers) => self.proc_addresses(f, answers),
            None => Ok(()),
        }
    }

    /// What a copy answers to `cuGetProcAddress`.
    fn proc_addresses(
        &self,
        f: &mut fmt::Formatter<'_>,
        answers: &Evidence<ProcAddresses>,
    ) -> fmt::Result {
        let name = "cuGetProcAddress";
        let answers = match answers {
            Evidence::Value(answers) => answers,
            Evidence::NotAvailable(reason) => {
                return self.text(f, [2, 4], "", &format!("{name}: {reason}"));
            }
        };
        let given = format!("{name} gives {} probed functions", answers.given.len());
        self.text(f, [2, 4], "", &given)?;
        let list = |answers: &[Answer]| {
            let each = answers.iter().map(|it| {
                let stream = if it.per_thread { ", per thread" } else { "" };
                let (major, minor) = (it.since / 1000, it.since % 1000 / 10);
                format!("{} ({major}.{minor}{stream}): {}", it.name, it.address)
            });
            each.collect::<Vec<_>>().join("; ")
        };
        if !answers.hidden.is_empty() {
            let line = format!("not exported, so not seen: {}", list(&answers.hidden));
            self.text(f, [2, 4], ansi::YELLOW, &line)?;
        }
        if !answers.not_probed.is_empty() {
            let line = format!("exported, but not probed: {}", list(&answers.not_probed));
            self.text(f, [2, 4], "", &line)?;
        }
        if !answers.not_given.is_empty() {
            let line = format!("only by symbol: {}", answers.not_given.join(", "));
            self.text(f, [2, 4], "", &line)?;
        }
        Ok(())
    }

    fn conclusion(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |state| {
            let checks = self.diagnosis.checks.iter();
            let names: Vec<String> = checks
                .filter(|check| check.prevents_tracing() && check.state == state)
                .map(|check| check.name.replace('_', " "))
                .collect();
            names.join(", ")
        };
        let (paint, text) = if self.diagnosis.can_trace {
            (ansi::GREEN, "This machine can be traced.".to_owned())
        } else {
            let why = match (names(State::Missing), names(State::Unknown)) {
                (missing, unknown) if unknown.is_empty() => format!("because of: {missing}"),
                (missing, unknown) if missing.is_empty() => format!("not known: {unknown}"),
                (missing, unknown) => format!("because of: {missing}; not known yet: {unknown}"),
            };
            let text = format!("This machine cannot be traced like this, {why}.");
            (ansi::RED, text)
        };
        writeln!(f)?;
        for line in wrap(&[(paint, &text)], INDENT + self.width()) {
            self.line(f, 0, &line)?;
        }
        Ok(())
    }

    /// Columns for text.
    fn width(&self) -> usize {
        usize::from(self.style.width)
            .min(WIDEST)
            .saturating_sub(INDENT)
            .max(NARROWEST)
    }

    /// A paragraph below the name, with the indents of its first and of its other lines.
    fn text(
        &self,
        f: &mut fmt::Formatter<'_>,
        [first, others]: [usize; 2],
        paint: &'static str,
        text: &str,
    ) -> fmt::Result {
        let lines = wrap(&[(paint, text)], self.width() - first.max(others));
        for (line, indent) in lines
            .iter()
            .zip(iter::once(first).chain(iter::repeat(others)))
        {
            self.line(f, INDENT + indent, line)?;
        }
        Ok(())
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, indent: usize, line: &Line) -> fmt::Result {
        write!(f, "{:indent$}", "")?;
        for (index, (paint, text)) in line.iter().enumerate() {
            let blank = if index == 0 { "" } else { " " };
            write!(f, "{blank}{}", self.painted(paint, text))?;
        }
        writeln!(f)
    }

    fn painted(&self, paint: &str, text: &str) -> String {
        if self.style.color && !paint.is_empty() {
            format!("{paint}{text}{}", ansi::RESET)
        } else {
            text.to_owned()
        }
    }
}

const fn paint(state: State) -> &'static str {
    match state {
        State::Ok => ansi::GREEN,
        State::Note => ansi::CYAN,
        State::Warning | State::Unknown => ansi::YELLOW,
        State::Missing => ansi::RED,
    }
}

fn sentence(text: &str) -> String {
    if text.ends_with(['.', '!', '?']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

/// A line in pieces of one paint each, with a blank between two of them.
type Line = Vec<(&'static str, String)>;

/// Lines of whole words, at most `width` columns wide where no word is wider. A wide word (a path)
/// stays whole, so that it can be copied.
fn wrap(pieces: &[(&'static str, &str)], width: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut columns = 0;
    let words = pieces
        .iter()
        .flat_map(|&(paint, text)| text.split_whitespace().map(move |word| (paint, word)));
    for (paint, word) in words {
        let wide = word.chars().count();
        match lines.last_mut() {
            Some(line) if columns + 1 + wide <= width => {
                columns += 1 + wide;
                match line.last_mut() {
                    Some((of, text)) if *of == paint => {
                        text.push(' ');
                        text.push_str(word);
                    }
                    _ => line.push((paint, word.to_owned())),
                }
            }
            _ => {
                columns = wide;
                lines.push(vec![(paint, word.to_owned())]);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_wide_ones_stay_whole() {
        let lines = |text, width| -> Vec<String> {
            let lines = wrap(&[("", text)], width);
            lines.into_iter().flatten().map(|(_, text)| text).collect()
        };
        assert_eq!(lines("a bb ccc dddd", 4), ["a bb", "ccc", "dddd"]);
        assert_eq!(
            lines("a /very/long/path b", 6),
            ["a", "/very/long/path", "b"]
        );
        assert_eq!(lines("  ", 6), Vec::<String>::new());
    }

    fn diagnosis() -> Diagnosis {
        let long = "word ".repeat(60);
        let check = |name: &str, state| {
            Check::ok(name, long.clone(), "Because it is so")
                .state(state)
                .advice("do this and then that ".repeat(5))
        };
        Diagnosis::new(
            vec![
                Check::ok("kernel", "Linux 6.18", "It matters"),
                check("pid_namespace", State::Warning),
                check("privileges", State::Missing).needed(),
            ],
            vec![],
            vec![],
        )
    }

    #[test]
    fn fits_into_the_terminal() {
        let diagnosis = diagnosis();
        for (width, widest) in [(80, 80), (60, 60), (200, WIDEST), (10, INDENT + NARROWEST)] {
            let style = Style {
                color: false,
                width,
            };
            let text = Shown {
                diagnosis: &diagnosis,
                style,
            }
            .to_string();
            for line in text.lines() {
                assert!(line.len() <= widest, "{width}: {line}");
                assert_eq!(line.trim_end(), line);
            }
            assert!(text.contains("warning  pid namespace  word"), "{text}");
            assert!(text.ends_with("privileges.\n"), "{text}");
        }
    }

    #[test]
    fn colour_changes_nothing_but_colour() {
        let diagnosis = diagnosis();
        let shown = |color| {
            let style = Style { color, width: 80 };
            Shown {
                diagnosis: &diagnosis,
                style,
            }
            .to_string()
        };
        let mut plain = shown(true);
        assert_ne!(plain, shown(false));
        for code in [
            ansi::RESET,
            ansi::BOLD,
            ansi::DIM,
            ansi::RED,
            ansi::GREEN,
            ansi::YELLOW,
            ansi::CYAN,
        ] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, shown(false));
    }
}
