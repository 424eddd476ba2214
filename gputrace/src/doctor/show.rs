//! A diagnosis for people: one paragraph for each check, in 80 columns.

use std::fmt;

use super::diagnosis::{Check, Diagnosis, FoundLibrary, State};
use crate::render::table::Style;

/// Columns of the state and of the name, each with the blank behind it.
const STATE: usize = 9;
const NAME: usize = 15;
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
                    self.text(f, 0, "", &format!("not probed: {}: {}", it.path, it.reason))?;
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
        let state = self.painted(
            colour(check.state),
            &format!("{:STATE$}", check.state.label()),
        );
        let name = check.name.replace('_', " ");
        write!(f, "{state}{name:NAME$}")?;
        // The first line goes on behind the name.
        let mut lines = wrap(&sentence(&check.found), self.width());
        writeln!(f, "{}", lines.next().unwrap_or_default())?;
        for line in lines {
            writeln!(f, "{:indent$}{line}", "", indent = STATE + NAME)?;
        }
        self.text(f, 0, ansi::DIM, &sentence(&check.why))?;
        match &check.advice {
            Some(advice) => self.text(f, 3, ansi::BOLD, &format!("-> {advice}")),
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
        self.text(f, 0, "", &library.path)?;
        self.text(
            f,
            2,
            "",
            &format!("  inode {}, mapped {mapped}", library.inode),
        )?;
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
            self.text(f, 4, "", &format!("  {place}: {}", functions.join(", ")))?;
        }
        Ok(())
    }

    fn conclusion(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let obstacles: Vec<String> = self
            .diagnosis
            .checks
            .iter()
            .filter(|check| check.prevents_tracing())
            .map(|check| check.name.replace('_', " "))
            .collect();
        let (colour, text) = if self.diagnosis.can_trace {
            (ansi::GREEN, "This machine can be traced.".to_owned())
        } else {
            let obstacles = obstacles.join(", ");
            let text = format!("This machine cannot be traced like this, because of: {obstacles}.");
            (ansi::RED, text)
        };
        writeln!(f)?;
        for line in wrap(&text, STATE + NAME + self.width()) {
            writeln!(f, "{}", self.painted(colour, &line))?;
        }
        Ok(())
    }

    /// Columns for text.
    fn width(&self) -> usize {
        usize::from(self.style.width)
            .min(WIDEST)
            .saturating_sub(STATE + NAME)
            .max(NARROWEST)
    }

    /// A paragraph below the name; all lines but the first are indented by `hanging` more.
    fn text(
        &self,
        f: &mut fmt::Formatter<'_>,
        hanging: usize,
        paint: &str,
        text: &str,
    ) -> fmt::Result {
        let blanks = text.len() - text.trim_start().len();
        let mut indent = STATE + NAME + blanks;
        for line in wrap(text, self.width() - hanging.max(blanks)) {
            writeln!(f, "{:indent$}{}", "", self.painted(paint, &line))?;
            indent = STATE + NAME + hanging;
        }
        Ok(())
    }

    fn painted(&self, paint: &str, text: &str) -> String {
        if self.style.color && !paint.is_empty() {
            format!("{paint}{text}{}", ansi::RESET)
        } else {
            text.to_owned()
        }
    }
}

const fn colour(state: State) -> &'static str {
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

/// Lines of whole words, at most `width` columns wide where no word is wider. A wide word (a path)
/// stays whole, so that it can be copied.
fn wrap(text: &str, width: usize) -> impl Iterator<Item = String> + use<> {
    let mut lines: Vec<String> = Vec::new();
    let mut columns = 0;
    for word in text.split_whitespace() {
        let wide = word.chars().count();
        match lines.last_mut() {
            Some(line) if columns + 1 + wide <= width => {
                line.push(' ');
                line.push_str(word);
                columns += 1 + wide;
            }
            _ => {
                lines.push(word.to_owned());
                columns = wide;
            }
        }
    }
    lines.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_wide_ones_stay_whole() {
        let lines = |text, width| wrap(text, width).collect::<Vec<_>>();
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
        for (width, widest) in [(80, 80), (60, 60), (200, WIDEST), (10, 9 + 15 + NARROWEST)] {
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
            assert!(text.ends_with("because of: privileges.\n"));
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
