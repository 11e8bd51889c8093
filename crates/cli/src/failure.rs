//! Errors as the terminal shows them: what happened, why, what to do, and a stable code.

use std::io::Write;

use moltis_sandbox::{Diagnosis, Error};
use serde_json::{Map, Value, json};

use crate::render;

/// Exit statuses of a command of the program that failed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statuses {
    /// The command line cannot be right.
    pub usage: i32,
    /// Anything else that is Moltis's or the caller's fault.
    pub fault: i32,
}

/// Which exit status a failure has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fault,
    Usage,
    /// One of its own: 126 and 127 as a shell.
    Own(i32),
}

/// Why a command of the program failed: one or more problems, and whether JSON was asked for.
pub struct Failure {
    problems: Vec<(&'static str, Diagnosis)>,
    json: bool,
    kind: Kind,
    /// What else JSON tells beside the error.
    context: Map<String, Value>,
}

impl Failure {
    fn new(problems: Vec<(&'static str, Diagnosis)>) -> Self {
        Self { problems, json: false, kind: Kind::Fault, context: Map::new() }
    }

    /// What the caller asks for cannot be done as things are.
    pub fn invalid(diagnosis: Diagnosis) -> Self {
        Self::new(vec![("invalid", diagnosis)])
    }

    /// The command line cannot be right, whatever there is.
    pub fn usage(diagnosis: Diagnosis) -> Self {
        Self { kind: Kind::Usage, ..Self::invalid(diagnosis) }
    }

    /// Several problems of the caller's input at once, as a configuration file has them.
    pub fn all_invalid(problems: impl IntoIterator<Item = Diagnosis>) -> Self {
        Self::new(problems.into_iter().map(|d| ("invalid", d)).collect())
    }

    /// The program itself could not start.
    pub fn runtime(error: std::io::Error) -> Self {
        let diagnosis = Diagnosis::new("start-failed", "moltis could not start")
            .cause(error)
            .fix("see that this user may open more files and start more threads (`ulimit -n`, `ulimit -u`)");
        Self::new(vec![("unavailable", diagnosis)])
    }

    /// Our own output cannot be written.
    pub fn output(error: std::io::Error) -> Self {
        let diagnosis = Diagnosis::new("output-failed", "moltis could not write its output")
            .cause(error)
            .fix("see that the place it is written to has room");
        Self::new(vec![("unavailable", diagnosis)])
    }

    /// Makes it one of the command line.
    #[must_use]
    pub fn of_usage(self) -> Self {
        Self { kind: Kind::Usage, ..self }
    }

    /// Tells these things beside the error where it is told as JSON.
    #[must_use]
    pub fn with(mut self, context: Map<String, Value>) -> Self {
        self.context.extend(context);
        self
    }

    /// Reports as JSON on standard output instead of text on standard error.
    #[must_use]
    pub fn in_json(mut self, json: bool) -> Self {
        self.json = json;
        self
    }

    /// Prints the problems and gives the exit status.
    pub fn report(self, statuses: Statuses) -> i32 {
        if self.json {
            let list: Vec<_> = self
                .problems
                .iter()
                .map(|(kind, diagnosis)| json!({ "kind": kind, "error": diagnosis }))
                .collect();
            let mut value = match <[_; 1]>::try_from(list) {
                Ok([one]) => one,
                Err(many) => json!({ "errors": many }),
            };
            if let Value::Object(fields) = &mut value {
                fields.extend(self.context);
            }
            // A reader that is gone cannot be told.
            let _ = writeln!(std::io::stdout(), "{value}");
        } else {
            let mut text = String::new();
            for (_, diagnosis) in &self.problems {
                render::diagnosis(&mut text, diagnosis, render::colours(&std::io::stderr()));
            }
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        match self.kind {
            Kind::Fault => statuses.fault,
            Kind::Usage => statuses.usage,
            Kind::Own(status) => status,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error.code() {
            "program-missing" => Kind::Own(127),
            "program-not-executable" => Kind::Own(126),
            _ => Kind::Fault,
        };
        Self { kind, ..Self::new(vec![(error.kind(), error.diagnosis().clone())]) }
    }
}
