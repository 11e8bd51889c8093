//! The matrix of cases and backends, as text for the terminal and as a table for the docs.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::runner::Report;
use crate::{Case, Verdict};

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
    let mut notes: Vec<String> = Vec::new();
    let mut text = String::from("| case | law |");
    for subject in &subjects {
        let _ = write!(text, " {subject} |");
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(subjects.len()));
    text.push('\n');
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
                let place = notes.iter().position(|n| n == why).unwrap_or_else(|| {
                    notes.push(why.clone());
                    notes.len() - 1
                });
                let _ = write!(text, " ({})", place + 1);
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    for (place, note) in notes.iter().enumerate() {
        let _ = write!(text, "\n{}. {}", place + 1, note.replace('|', "\\|"));
    }
    if !notes.is_empty() {
        text.push('\n');
    }
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
}
