//! `cargo xtask lab`: Debian with systemd and cgroup v2 in QEMU, for what the machine that tests run on may lack.
//!
//! The machine is built once, started once for a run, and ended with it. What is tried is the program and the files that
//! people install, by the commands that the documentation tells them.

mod guest;
mod image;
mod machine;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::real::Trouble;
use crate::tally::{Tally, indented};
use crate::{Outcome, cargo, firecracker, mcp};
use image::Image;
use machine::{Login, Machine};

/// What the parts share.
const LIBRARY: &str = include_str!("lab/parts/lab.py");

/// The parts' texts, by their files.
const TEXTS: [(&str, &str); 6] = [
    ("system.py", include_str!("lab/parts/system.py")),
    ("units.py", include_str!("lab/parts/units.py")),
    ("limits.py", include_str!("lab/parts/limits.py")),
    ("firecracker.py", include_str!("lab/parts/firecracker.py")),
    ("machines.py", include_str!("lab/parts/machines.py")),
    ("contract.py", include_str!("lab/parts/contract.py")),
];

/// One part.
struct Part {
    /// What it is called.
    name: &'static str,
    /// Who runs it.
    login: Login,
    /// Its file and what that is told.
    command: &'static str,
    /// Whether the short form has it.
    short: bool,
}

const PARTS: &[Part] = &[
    Part { name: "system", login: Login::Root, command: "system.py", short: true },
    Part { name: "limits", login: Login::Person, command: "limits.py namespaces", short: true },
    Part { name: "limits-root", login: Login::Root, command: "limits.py namespaces", short: true },
    Part { name: "podman", login: Login::Person, command: "limits.py podman", short: true },
    Part { name: "units", login: Login::Root, command: "units.py", short: true },
    Part { name: "firecracker-raw", login: Login::Root, command: "firecracker.py", short: false },
    Part { name: "firecracker", login: Login::Root, command: "machines.py", short: false },
    Part { name: "firecracker-contract", login: Login::Root, command: "contract.py", short: false },
];

/// The parts in which machines of Firecracker's run, which need a kernel and a root file system.
const WITH_MACHINES: [&str; 2] = ["firecracker", "firecracker-contract"];

/// How long one part may take.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// Where the second disk is unpacked.
const UNPACK: &str = "mkdir -p /lab && tar -C /lab -xf /dev/vdb && chmod -R go+rX /lab";

/// How it is run.
#[derive(Default)]
struct Form {
    /// Only these parts.
    only: Vec<String>,
    /// The parts that a run of all tests has.
    short: bool,
    /// No parts but those asked for, and then a shell.
    shell: bool,
    /// The machine stays until the input ends.
    keep: bool,
}

/// `cargo xtask lab`.
pub fn run(arguments: &[&str]) -> Outcome {
    let (mut form, mut moltis) = (Form::default(), None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--shell" => form.shell = true,
            "--keep" => form.keep = true,
            "--short" => form.short = true,
            "--only" => {
                let name = arguments.next().ok_or("--only: which part?")?;
                if !PARTS.iter().any(|part| part.name == *name) {
                    let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
                    return Err(format!("no part {name:?}: there are {}", names.join(", ")));
                }
                form.only.push((*name).to_owned());
            }
            "--program" => {
                let path = arguments.next().ok_or("--program: where is it?")?;
                moltis = Some(std::path::absolute(path).map_err(|e| format!("{path}: {e}"))?);
            }
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let moltis = moltis.map_or_else(|| cargo::moltis(false), Ok)?;
    let mut counted = Tally::default();
    let opened = all(&mut counted, &moltis, &form);
    mcp::count(&mut counted, "lab", opened);
    Ok(counted.close(false))
}

/// Runs the short form and counts it.
pub fn tally(tally: &mut Tally, moltis: &Path) -> Result<(), String> {
    let opened = all(tally, moltis, &Form { short: true, ..Form::default() });
    mcp::count(tally, "lab", opened);
    Ok(())
}

fn all(tally: &mut Tally, moltis: &Path, form: &Form) -> Result<(), Trouble> {
    let begun = Instant::now();
    let since = |begun: Instant| format!("{:.1} s", begun.elapsed().as_secs_f64());
    let image = Image::new()?;
    println!("      lab: the machine is at hand ({})", since(begun));
    let wanted = |part: &&Part| {
        if form.only.is_empty() {
            !form.shell && (part.short || !form.short)
        } else {
            form.only.iter().any(|name| name == part.name)
        }
    };
    let (engine, moltis) = (firecracker::programs()?, moltis.to_owned());
    let machines = match PARTS.iter().filter(wanted).any(|part| WITH_MACHINES.contains(&part.name)) {
        true => Some(Machines::of(&moltis, &engine)?),
        false => None,
    };
    let begun = Instant::now();
    let mut machine =
        Machine::start(image, &move |folder| bring(folder, &moltis, &engine, machines.as_ref()))?;
    println!("      lab: it has started ({})", since(begun));
    machine.log_in(Login::Root)?;
    let ended = machine.run(Login::Root, UNPACK, LIMIT)?;
    if !ended.good() {
        return Err(Trouble::Failed(ended.all()));
    }
    println!("      lab: it has what it tries ({})", since(begun));
    let mut person = false;
    for part in PARTS.iter().filter(wanted) {
        if part.login == Login::Person && !person {
            machine.log_in(Login::Person)?;
            person = true;
        }
        one(tally, &machine, part, form.short)?;
    }
    if form.shell {
        let words = machine.words(Login::Root);
        let mut shell = Command::new(&words[0]);
        // How a person's last command ended is their own affair.
        let _ = shell.args(&words[1..]).arg("-t").arg(machine.address(Login::Root)).status()?;
    }
    if form.keep {
        let words = machine.words(Login::Root).join(" ");
        println!("\nthe lab runs until the input ends (Ctrl-D):\n  {words} {}", machine.address(Login::Root));
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    Ok(())
}

fn one(tally: &mut Tally, machine: &Machine, part: &Part, short: bool) -> Result<(), Trouble> {
    let name = format!("lab {}", part.name);
    let form = if short { " --short" } else { "" };
    let ended = machine.run(part.login, &format!("python3 /lab/parts/{}{form}", part.command), LIMIT)?;
    let text = ended.text();
    let seen = tally.harness(&name, &text);
    println!("{}", indented(&text));
    println!("{:<5} {name} ({:.1} s)", if ended.good() { "pass" } else { "FAIL" }, ended.took.as_secs_f64());
    if !seen || (!ended.good() && !text.contains(" ... FAILED")) {
        tally.check(&name, Err(format!("{}\n{}", ended.all(), machine.console())));
    }
    Ok(())
}

/// What parts with machines need beside it.
struct Machines {
    /// Where the kernel and the root file system lie.
    guest: PathBuf,
    /// The program that runs the contract on them.
    contract: PathBuf,
}

impl Machines {
    fn of(moltis: &Path, engine: &Path) -> Result<Self, Trouble> {
        let arguments = ["-p", "moltis-backend-firecracker", "--example", "machines-contract"];
        Ok(Self {
            guest: guest::files(moltis, engine)?,
            contract: cargo::build(&arguments, "machines-contract")?,
        })
    }
}

/// What the lab is given: the program where cargo would put it in a checkout, what is installed beside it, the parts.
fn bring(folder: &Path, moltis: &Path, engine: &Path, machines: Option<&Machines>) -> Result<(), Trouble> {
    let put = |from: &Path, to: &str| -> Result<(), Trouble> {
        let to = folder.join(to);
        if let Some(above) = to.parent() {
            fs::create_dir_all(above)?;
        }
        // Links, which are followed when it is packed: nothing large is written twice.
        symlink(from, &to).map_err(|e| Trouble::Failed(format!("{}: {e}", to.display())))
    };
    let root: PathBuf = cargo::root();
    put(moltis, "checkout/target/release/moltis")?;
    put(&root.join("deploy"), "checkout/deploy")?;
    put(&root.join("docs"), "checkout/docs")?;
    fs::create_dir(folder.join("parts"))?;
    fs::write(folder.join("parts/lab.py"), LIBRARY)?;
    for (file, text) in TEXTS {
        fs::write(folder.join("parts").join(file), text)?;
    }
    if let Some(Machines { guest, contract }) = machines {
        put(contract, "bin/contract")?;
        guest::FILES.into_iter().try_for_each(|file| put(&guest.join(file), &format!("guest/{file}")))?;
    }
    ["firecracker", "jailer"]
        .into_iter()
        .try_for_each(|program| put(&engine.join(program), &format!("bin/{program}")))
}
