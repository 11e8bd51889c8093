//! One case: its name, the law it stands for, how long it may take, and what it does.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use moltis_sandbox::{Guarantees, Promise};
use serde::{Deserialize, Serialize};

use crate::Ctx;

/// What a case does.
pub type Run = for<'a> fn(&'a Ctx) -> Pin<Box<dyn Future<Output = Result<Verdict, Fail>> + 'a>>;

/// The same attack where nothing defends: run by the host as a plain child process, or in a weaker setting.
pub type ControlRun = for<'a> fn(&'a Ctx) -> Pin<Box<dyn Future<Output = Result<Control, Fail>> + 'a>>;

/// A promise that a case needs from the backend.
pub type Needs = fn(&Guarantees) -> &Promise;

/// One promise and how it is judged.
#[derive(Clone)]
pub struct Case {
    /// Stable name, `chapter.what`.
    pub id: &'static str,
    /// The law of the specification that it proves, if one.
    pub law: Option<u8>,
    /// Time after which it has failed.
    pub limit: Duration,
    /// Whether it needs the machine for itself, because it measures or uses it up.
    pub alone: bool,
    /// The promise without which there is nothing to judge: where a backend declares that it does not keep it, the case
    /// does not run and is said to be declared, never passed.
    pub needs: Option<Needs>,
    /// For an attack: shows that it works where nothing defends.
    pub control: Option<ControlRun>,
    /// The case itself.
    pub run: Run,
}

impl Case {
    /// A case with the usual limit of half a minute.
    pub const fn new(id: &'static str, run: Run) -> Self {
        Self { id, law: None, limit: Duration::from_secs(30), alone: false, needs: None, control: None, run }
    }

    /// Names the law that it proves.
    #[must_use]
    pub const fn law(mut self, law: u8) -> Self {
        self.law = Some(law);
        self
    }

    /// Gives it another limit, in seconds.
    #[must_use]
    pub const fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Keeps other cases from running beside it.
    #[must_use]
    pub const fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Names the promise that it needs.
    #[must_use]
    pub const fn needs(mut self, promise: Needs) -> Self {
        self.needs = Some(promise);
        self
    }

    /// Adds the positive control of an attack.
    #[must_use]
    pub const fn control(mut self, control: ControlRun) -> Self {
        self.control = Some(control);
        self
    }

    /// The chapter: what stands before the first dot.
    pub fn chapter(&self) -> &'static str {
        self.id.split('.').next().unwrap_or(self.id)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

/// How a case ended well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "note")]
pub enum Verdict {
    /// The promise holds.
    Pass,
    /// The backend declares that it does not keep this, for this reason. Where it can be asked for, it refuses or lists it.
    Declared(String),
    /// The defence held, but this machine or user cannot show the attack working without it.
    Uncontrolled(String),
}

/// What a positive control found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The attack works without the defence.
    Works,
    /// This machine or user cannot show that, for this reason.
    NotHere(String),
}

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fail(pub String);

impl Fail {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<moltis_sandbox::Error> for Fail {
    #[track_caller]
    fn from(error: moltis_sandbox::Error) -> Self {
        let d = error.diagnosis();
        let place = std::panic::Location::caller();
        Self(format!("{place}: {} [{}] {d}", error.kind(), d.code))
    }
}

impl From<std::io::Error> for Fail {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self(format!("{}: {error}", std::panic::Location::caller()))
    }
}

/// Fails the case unless the condition holds; the rest is the text.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        // Bound first, so that comparisons of any kind may be written out.
        {
            let holds: bool = $condition;
            if !holds {
                return Err($crate::Fail::new(format!("{}:{}: {}", file!(), line!(), format!($($text)+))));
            }
        }
    };
}

/// Fails the case unless both values are the same.
#[macro_export]
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($text:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                if found != expected {
                    return Err($crate::Fail::new(format!(
                        "{}:{}: {}: found {}, expected {}",
                        file!(), line!(), format!($($text)+),
                        $crate::case::shortened(&found), $crate::case::shortened(&expected),
                    )));
                }
            }
        }
    };
}

/// Fails the case.
#[macro_export]
macro_rules! fail {
    ($($text:tt)+) => {
        return Err($crate::Fail::new(format!("{}:{}: {}", file!(), line!(), format!($($text)+))))
    };
}

/// A case from an async function of the same shape.
#[macro_export]
macro_rules! case {
    ($id:literal, $function:path) => {
        $crate::Case::new($id, |ctx| Box::pin($function(ctx)))
    };
}

/// A value's debug text, cut to a readable length.
pub fn shortened(value: &dyn fmt::Debug) -> String {
    let text = format!("{value:?}");
    if text.len() <= 600 {
        return text;
    }
    let head: String = text.chars().take(400).collect();
    format!("{head}… ({} characters)", text.chars().count())
}
