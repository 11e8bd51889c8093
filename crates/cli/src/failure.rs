//! Errors as the terminal shows them: what happened, why, what to do, and a stable code.

use std::io::Write;

use moltis_sandbox::{Diagnosis, Error};

use crate::render;

/// Why a command of the program failed: one or more problems, and whether JSON was asked for.
pub struct Failure {
    problems: Vec<(&'static str, Diagnosis)>,
    json: bool,
    status: Option<i32>,
}

impl Failure {
    /// The caller's input cannot be right.
    pub fn invalid(diagnosis: Diagnosis) -> Self {
        Self { problems: vec![("invalid", diagnosis)], json: false, status: None }
    }

    /// The command line cannot be right.
    pub fn usage(diagnosis: Diagnosis) -> Self {
        Self { status: Some(2), ..Self::invalid(diagnosis) }
    }

    /// Several problems of the caller's input at once, as a configuration file has them.
    pub fn all_invalid(problems: impl IntoIterator<Item = Diagnosis>) -> Self {
        Self { problems: problems.into_iter().map(|d| ("invalid", d)).collect(), json: false, status: None }
    }

    /// The program itself could not start.
    pub fn runtime(error: std::io::Error) -> Self {
        let diagnosis = Diagnosis::new("start-failed", "moltis could not start").cause(error);
        Self { problems: vec![("unavailable", diagnosis)], json: false, status: None }
    }

    /// Our own output cannot be written.
    pub fn output(error: std::io::Error) -> Self {
        let diagnosis = Diagnosis::new("output-failed", "moltis could not write its output")
            .cause(error)
            .fix("see that the place it is written to has room");
        Self { problems: vec![("unavailable", diagnosis)], json: false, status: None }
    }

    /// Reports as JSON on standard output instead of text on standard error.
    #[must_use]
    pub fn in_json(mut self, json: bool) -> Self {
        self.json = json;
        self
    }

    /// Prints the problems and gives the exit status: `default`, unless the error stands for one of its own (126 and
    /// 127 as a shell).
    pub fn report(self, default: i32) -> i32 {
        if self.json {
            let list: Vec<_> = self
                .problems
                .iter()
                .map(|(kind, diagnosis)| serde_json::json!({ "kind": kind, "error": diagnosis }))
                .collect();
            let value = match <[_; 1]>::try_from(list) {
                Ok([one]) => one,
                Err(many) => serde_json::json!({ "errors": many }),
            };
            // A reader that is gone cannot be told.
            let _ = writeln!(std::io::stdout(), "{value}");
        } else {
            let mut text = String::new();
            for (_, diagnosis) in &self.problems {
                render::diagnosis(&mut text, diagnosis, render::colours(&std::io::stderr()));
            }
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        self.status.unwrap_or(default)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.code() {
            "program-missing" => Some(127),
            "program-not-executable" => Some(126),
            _ => None,
        };
        Self { problems: vec![(error.kind(), error.diagnosis().clone())], json: false, status }
    }
}
