//! The matrix of cases and backends, as text for the terminal and as a table for the docs.

use std::collections::BTreeMap;
use std::fmt::Write;

use moltis_sandbox::{Guarantees, Promise};

use crate::case::Needs;
use crate::runner::{Report, Standing};
use crate::{Case, Verdict};

/// What backends promise, in words, in the order of the table.
const PROMISES: [(&str, Needs); 23] = [
    ("nothing of the host's files shows but what was mounted", |g| &g.filesystem),
    ("a kernel of its own", |g| &g.kernel),
    ("the caller's environment stays out", |g| &g.environment),
    ("network `blocked`", |g| &g.network_blocked),
    ("network `trusted`", |g| &g.network_trusted),
    ("network `open`", |g| &g.network_open),
    ("`memory_limit` bounds the whole sandbox", |g| &g.memory),
    ("`cpu_quota` bounds the whole sandbox", |g| &g.cpus),
    ("`pids_max` bounds the whole sandbox", |g| &g.pids),
    ("terminals", |g| &g.terminal),
    ("background commands outlive their caller", |g| &g.background),
    ("ports are forwarded both ways", |g| &g.forward),
    ("a workspace shows at `/workspace`, further mounts where they are named", |g| &g.workspace),
    ("the home outlives the sandbox", |g| &g.home),
    ("managed files show at `/home/sandbox/files`", |g| &g.managed_files),
    ("a running sandbox is found again by another process", |g| &g.adopt),
    ("images can be built and chosen", |g| &g.images),
    ("packages are installed", |g| &g.packages),
    ("a root directory can be chosen", |g| &g.rootfs),
    ("`runtime` picks the OCI runtime", |g| &g.runtime),
    ("`gpus` of the host", |g| &g.gpus),
    ("`allow_host_podman`", |g| &g.host_podman),
    ("`allow_nested_podman`", |g| &g.nested_podman),
];

/// Reasons, each told once and referred to by number.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn number(&mut self, why: &str) -> usize {
        let place = self.0.iter().position(|note| note == why).unwrap_or_else(|| {
            self.0.push(why.to_owned());
            self.0.len() - 1
        });
        place + 1
    }

    fn write(&self, text: &mut String) {
        for (place, note) in self.0.iter().enumerate() {
            let _ = write!(text, "\n{}. {}", place + 1, note.replace('|', "\\|"));
        }
        if !self.0.is_empty() {
            text.push('\n');
        }
    }
}

fn heading(first: &str, subjects: &[&str]) -> String {
    let mut text = format!("| {first} |");
    for subject in subjects {
        let _ = write!(text, " {subject} |");
    }
    let _ = write!(text, "\n|{}", "---|".repeat(first.matches('|').count() + 1 + subjects.len()));
    text.push('\n');
    text
}

/// The word for a backend that cannot be used here.
pub const UNUSABLE: &str = "not usable here";

/// A Markdown table of what backends say that they keep, rows promises, columns subjects.
pub fn promises(standings: &[Standing]) -> String {
    let subjects: Vec<&str> = standings.iter().map(|standing| standing.subject.as_str()).collect();
    let mut notes = Notes::default();
    let mut text = heading("promise", &subjects);
    for (words, promise) in PROMISES {
        let _ = write!(text, "| {words} |");
        for standing in standings {
            let _ = match standing.keeps.as_ref().map(|keeps: &Guarantees| promise(keeps)) {
                Ok(Promise::Held) => write!(text, " kept |"),
                Ok(Promise::NotEnforced(why)) => write!(text, " declared ({}) |", notes.number(why)),
                Err(why) => write!(text, " {UNUSABLE} ({}) |", notes.number(&why.0)),
            };
        }
        text.push('\n');
    }
    notes.write(&mut text);
    text
}

/// One word for a cell.
pub fn word(report: &Report) -> &'static str {
    match &report.result {
        Ok(Verdict::Pass) => "pass",
        Ok(Verdict::Declared(_)) => "declared",
        Ok(Verdict::Uncontrolled(_)) => "pass, no control",
        Err(_) => "FAIL",
    }
}

/// One line for the terminal.
pub fn line(report: &Report) -> String {
    let mut line =
        format!("{:<16} {:<44} {:>6} ms  {}", word(report), report.id, report.millis, report.subject);
    match &report.result {
        Ok(Verdict::Pass) => {}
        Ok(Verdict::Declared(why) | Verdict::Uncontrolled(why)) => {
            let _ = write!(line, "\n    {why}");
        }
        Err(fail) => {
            let _ = write!(line, "\n    {fail}");
        }
    }
    line
}

/// A Markdown table, rows cases, columns subjects, with a note for each cell that is not a plain pass.
pub fn markdown(cases: &[Case], reports: &[Report]) -> String {
    let mut subjects: Vec<&str> = Vec::new();
    for report in reports {
        if !subjects.contains(&report.subject.as_str()) {
            subjects.push(&report.subject);
        }
    }
    let cells: BTreeMap<(&str, &str), &Report> =
        reports.iter().map(|r| ((r.id.as_str(), r.subject.as_str()), r)).collect();
    let mut notes = Notes::default();
    let mut text = heading("case | law", &subjects);
    for case in cases {
        let law = case.law.map(|l| l.to_string()).unwrap_or_default();
        let _ = write!(text, "| `{}` | {law} |", case.id);
        for subject in &subjects {
            let Some(report) = cells.get(&(case.id, *subject)) else {
                text.push_str(" |");
                continue;
            };
            let _ = write!(text, " {}", word(report));
            // What a failure says names files of one machine; it belongs to the terminal, not into the docs.
            if let Ok(Verdict::Declared(why) | Verdict::Uncontrolled(why)) = &report.result {
                let _ = write!(text, " ({})", notes.number(why));
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    notes.write(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fail;

    #[test]
    fn rows_are_cases_and_columns_are_subjects() {
        let cases = crate::contract();
        let cases = &cases[..2];
        let report = |case: usize, subject: &str, result| Report {
            id: cases[case].id.to_owned(),
            subject: subject.to_owned(),
            result,
            millis: 1,
        };
        let reports = [
            report(0, "a", Ok(Verdict::Pass)),
            report(1, "a", Err(Fail::new("x"))),
            report(0, "b", Ok(Verdict::Declared("no cgroup".into()))),
        ];
        let law = |n: usize| cases[n].law.map(|l| l.to_string()).unwrap_or_default();
        let expected = format!(
            "| case | law | a | b |\n|---|---|---|---|\n| `{}` | {} | pass | declared (1) |\n| `{}` | {} | FAIL | |\n\
             \n1. no cgroup\n",
            cases[0].id,
            law(0),
            cases[1].id,
            law(1)
        );
        assert_eq!(markdown(cases, &reports), expected);
    }

    #[test]
    fn every_promise_has_its_row() {
        let not = Promise::not_enforced;
        let keeps = Guarantees {
            filesystem: not("a"),
            kernel: not("b"),
            environment: not("c"),
            network_blocked: not("d"),
            network_trusted: not("e"),
            network_open: not("f"),
            memory: not("g"),
            cpus: not("h"),
            pids: not("i"),
            terminal: not("j"),
            background: not("k"),
            forward: not("l"),
            workspace: not("m"),
            home: not("n"),
            managed_files: not("o"),
            adopt: not("p"),
            images: Promise::Held,
            packages: Promise::Held,
            rootfs: not("q"),
            runtime: not("q"),
            gpus: not("r"),
            host_podman: not("s"),
            nested_podman: not("t"),
        };
        let standings = [
            Standing { subject: "x".into(), keeps: Ok(keeps) },
            Standing { subject: "y".into(), keeps: Err(Fail::new("no kernel")) },
        ];
        let text = promises(&standings);
        assert!(text.starts_with("| promise | x | y |\n|---|---|---|\n"), "{text}");
        assert!(text.contains("| kept | not usable here (2) |"), "{text}");
        // Each for its own reason: a field that no row shows would be missing here.
        assert!(text.ends_with("\n21. t\n"), "{text}");
    }
}
