//! What hostile commands try. Every case runs the same program twice: where nothing defends, to show that the attack is
//! a real one, and inside the sandbox, where every part of it must be stopped.

pub mod agent;
pub mod egress;
pub mod host;
pub mod kernel;
pub mod resources;

use std::path::Path;
use std::time::Duration;

use crate::case::Control;
use crate::program::{PYTHON, plain};
use crate::run::argv;
use crate::{Case, Ctx, Fail, Place, Verdict, ensure, ensure_eq, fail, need};

/// Those that must fail wherever commands run, and harm nobody where they do not.
const ANYWHERE: [&str; 4] = [
    "attack.leaked-descriptors",
    "attack.agent-impersonated",
    "attack.daemon-after-time-out",
    "attack.output-flood",
];

const PROBES: &str =
    concat!(include_str!("probes.py"), include_str!("egress/probes.py"), include_str!("main.py"));

/// Every attack, in the order of the matrix.
pub fn all() -> Vec<Case> {
    let all = [host::cases(), kernel::cases(), agent::cases(), resources::cases(), egress::cases()].concat();
    // Where nothing is isolated most of them would be attacks on this machine.
    let needs = |case: Case| match ANYWHERE.contains(&case.id) {
        true => case,
        false => case.needs(|promised| &promised.filesystem),
    };
    all.into_iter().map(needs).collect()
}

/// One probe: how it is called inside and how as the control.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// `name` or `name=argument` inside the sandbox.
    pub inside: &'static str,
    /// The same for the control, perhaps in a weaker setting.
    pub control: &'static str,
    /// Whether the kernel may lack what it tries, so that the control cannot work everywhere.
    pub optional: bool,
}

impl Probe {
    /// The same inside and outside.
    pub const fn same(call: &'static str) -> Self {
        Self { inside: call, control: call, optional: false }
    }

    /// Another call for the control.
    pub const fn weaker(inside: &'static str, control: &'static str) -> Self {
        Self { inside, control, optional: false }
    }

    /// Of something that kernels may lack.
    pub const fn optional(call: &'static str) -> Self {
        Self { inside: call, control: call, optional: true }
    }
}

/// What one probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Name of the probe.
    pub name: String,
    /// Whether it got what it wanted.
    pub reached: bool,
    /// What it got, or what stopped it.
    pub detail: String,
}

/// Reads the program's lines. One that is missing or broken is an error: a probe that does not run proves nothing.
fn parse(text: &str, calls: &[&str]) -> Result<Vec<Found>, Fail> {
    let mut all = Vec::new();
    for (line, call) in text.lines().zip(calls) {
        let mut words = line.splitn(3, ' ');
        let (name, word, detail) = (words.next(), words.next(), words.next().unwrap_or_default());
        ensure_eq!(name, call.split('=').next(), "order of the probes in {text:?}");
        let reached = match word {
            Some("REACHED") => true,
            Some("STOPPED") => false,
            _ => fail!("the probe {call} is broken: {line:?}"),
        };
        all.push(Found { name: (*call).to_owned(), reached, detail: detail.to_owned() });
    }
    ensure_eq!(all.len(), calls.len(), "probes that answered in {text:?}");
    Ok(all)
}

/// Runs probes as a plain program of the host.
pub async fn outside(calls: &[&str]) -> Result<Vec<Found>, Fail> {
    if need::program("python3").is_none() || !Path::new(PYTHON).exists() {
        fail!("the probes need {PYTHON}");
    }
    let mut arguments = vec!["-c", PROBES];
    arguments.extend(calls);
    let ran = plain(PYTHON, &arguments, "", Duration::from_secs(60)).await?;
    parse(&ran.stdout, calls).map_err(|e| Fail::new(format!("{e}; stderr {:?}", ran.stderr)))
}

/// Runs probes inside.
pub async fn inside(place: &Place, calls: &[&str]) -> Result<Vec<Found>, Fail> {
    let mut arguments = vec!["python3", "-c", PROBES];
    arguments.extend(calls);
    let mut request = argv(&arguments);
    request.timeout = Some(Duration::from_secs(25));
    let ran = place.run(request).await?;
    parse(&ran.text(), calls).map_err(|e| Fail::new(format!("{e}; stderr {:?}", ran.errors())))
}

/// Fails when one of the probes reached what it wanted.
pub fn all_stopped(found: &[Found]) -> Result<(), Fail> {
    let reached: Vec<String> =
        found.iter().filter(|f| f.reached).map(|f| format!("{}: {}", f.name, f.detail)).collect();
    ensure!(reached.is_empty(), "reached: {}", reached.join("; "));
    Ok(())
}

/// Judges a control: as root everything must have been reached, as another user what is left out is named.
pub fn all_reached(found: &[Found], optional: &[&str]) -> Result<Control, Fail> {
    let missed: Vec<String> = found
        .iter()
        .filter(|f| !f.reached && !optional.contains(&f.name.as_str()))
        .map(|f| format!("{} ({})", f.name, f.detail))
        .collect();
    if missed.is_empty() && found.iter().any(|f| f.reached) {
        return Ok(Control::Works);
    }
    if need::root() {
        fail!("without the defence these are stopped all the same: {}", missed.join(", "));
    }
    Ok(Control::NotHere(format!("cannot be shown without root: {}", missed.join(", "))))
}

/// The case of a plain list of probes.
async fn stopped(ctx: &Ctx, probes: &[Probe]) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let calls: Vec<&str> = probes.iter().map(|p| p.inside).collect();
    all_stopped(&inside(&place, &calls).await?)?;
    ensure_eq!(place.out("echo alive").await?, "alive\n", "afterwards");
    Ok(Verdict::Pass)
}

/// The control of a plain list of probes.
async fn reached(_ctx: &Ctx, probes: &[Probe]) -> Result<Control, Fail> {
    let calls: Vec<&str> = probes.iter().map(|p| p.control).collect();
    let optional: Vec<&str> = probes.iter().filter(|p| p.optional).map(|p| p.control).collect();
    all_reached(&outside(&calls).await?, &optional)
}

/// A case from a constant list of probes.
macro_rules! probes {
    ($id:literal, $probes:path) => {
        $crate::Case::new($id, |ctx| Box::pin($crate::attack::stopped(ctx, $probes)))
            .control(|ctx| Box::pin($crate::attack::reached(ctx, $probes)))
            .limit(40)
    };
}
use probes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_does_not_answer_is_an_error() {
        assert!(parse("a REACHED x\n", &["a", "b"]).is_err());
        assert!(parse("a BROKEN x\n", &["a"]).is_err());
        assert!(parse("b STOPPED x\n", &["a"]).is_err());
        let found = parse("a STOPPED EPERM (no)\n", &["a=1"]).unwrap();
        assert_eq!(found, [Found { name: "a=1".into(), reached: false, detail: "EPERM (no)".into() }]);
    }
}
