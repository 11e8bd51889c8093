//! `moltis files`: managed files, or those of a session's sandbox.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

use futures_util::StreamExt;
use moltis_runtime::answer::text_or_base64;
use moltis_runtime::{FileRules, ManagedFiles, RuledFiles, Runtime, SessionRequest, time};
use moltis_sandbox::{Diagnosis, Entry, EntryKind, Error, Files, GuestPath};
use serde_json::{Value, json};

use super::cp::report;
use crate::args::{self, FilesFlags, Global};
use crate::copy::{self, Local, Manner};
use crate::failure::Failure;
use crate::output::{self, BROKEN_PIPE};
use crate::place::{Here, Opening, Place};
use crate::signals::Signals;
use crate::transfer::{self, Breaker, Done, to_standard_output};
use crate::{flags, render};

/// Bytes of names that are held to be sorted, and of content that is shown as JSON.
const MAX_HELD: usize = 16 * 1024 * 1024;

/// Home of most sandboxes.
const HOME: &str = "/home/sandbox";

/// Runs one of them; gives the exit status.
pub async fn run(global: &Global, command: args::Files) -> Result<i32, Failure> {
    let json = flags_of(&command).json;
    dispatch(global, command).await.map_err(|failure| failure.in_json(json))
}

fn flags_of(command: &args::Files) -> &FilesFlags {
    match command {
        args::Files::List(args) => &args.flags,
        args::Files::Show(args) => &args.flags,
        args::Files::Get(args) => &args.flags,
        args::Files::Put(args) => &args.flags,
        args::Files::Mkdir(args) => &args.flags,
        args::Files::Move(args) => &args.flags,
        args::Files::Remove(args) => &args.flags,
    }
}

async fn dispatch(global: &Global, command: args::Files) -> Result<i32, Failure> {
    let flags = flags_of(&command);
    let json = flags.json;
    let key = flags.session.as_deref().map(flags::session_key).transpose()?;
    let paths = Paths { is_managed: key.is_none() };
    // What cannot be right is said before anything is opened.
    let plan = Plan::new(&command, &paths)?;
    let runtime = super::runtime(global)?;
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let request = key.map(|key| SessionRequest { must_exist: true, ..SessionRequest::new(key) });
    let target = match Target::open(&runtime, request, plan.overwrites(), &mut signals).await? {
        Done::Done(target) => target,
        Done::Told(number) => return Ok(128 + number),
    };
    let rules = FileRules::new(runtime.config());
    let default = target.directory()?;
    let done = transfer::run(&mut signals, async |breaker| {
        let files = RuledFiles::new(target.files(), rules);
        plan.carry_out(&files, default, paths.is_managed, json, &breaker).await
    });
    match done.await? {
        Done::Done(status) => Ok(status),
        Done::Told(number) => Ok(128 + number),
    }
}

/// Whose files they are.
enum Target {
    Managed(ManagedFiles),
    Session(Here),
}

impl Target {
    async fn open(
        runtime: &Runtime,
        request: Option<SessionRequest>,
        overwrites: bool,
        signals: &mut Signals,
    ) -> Result<Done<Self>, Failure> {
        let Some(request) = request else {
            return Ok(Done::Done(Self::Managed(runtime.managed_files().await?.replacing(overwrites))));
        };
        match Place::open_here(runtime, request, signals).await? {
            Opening::Open(place) => {
                // No command runs: what binds commands is not worth a word here.
                place.tell_news();
                place.note_use().await;
                Ok(Done::Done(Self::Session(place)))
            }
            Opening::Told(number) => Ok(Done::Told(number)),
        }
    }

    fn files(&self) -> &dyn Files {
        match self {
            Self::Managed(files) => files,
            Self::Session(place) => place.sandbox().files(),
        }
    }

    /// Where things are whose path is not given: all managed files, or where the session's commands run.
    fn directory(&self) -> Result<GuestPath, Failure> {
        match self {
            Self::Managed(_) => copy::remote_path(OsStr::new("/"), None),
            Self::Session(place) => {
                place.sandbox().directory().map_or_else(|| copy::remote_path(OsStr::new(HOME), None), Ok)
            }
        }
    }
}

/// How paths are written.
struct Paths {
    is_managed: bool,
}

impl Paths {
    fn read(&self, text: &OsStr) -> Result<GuestPath, Failure> {
        copy::remote_path(text, self.is_managed.then_some("/"))
    }
}

/// What is to be done. Where no path was given it is for the target to say.
enum Plan {
    List(Option<GuestPath>),
    Show(GuestPath),
    Get { from: GuestPath, to: Local, overwrite: bool },
    Put { from: Local, to: Option<GuestPath>, overwrite: bool },
    Mkdir { path: GuestPath, parents: bool },
    Move { from: GuestPath, to: GuestPath, overwrite: bool },
    Remove { paths: Vec<GuestPath>, recursive: bool },
}

impl Plan {
    fn new(command: &args::Files, paths: &Paths) -> Result<Self, Failure> {
        Ok(match command {
            args::Files::List(args) => {
                Self::List(args.path.as_deref().map(|path| paths.read(path)).transpose()?)
            }
            args::Files::Show(args) => Self::Show(paths.read(&args.path)?),
            args::Files::Get(args) => Self::Get {
                from: paths.read(&args.path)?,
                to: Local::of(args.local.as_deref().unwrap_or(OsStr::new("."))),
                overwrite: args.overwrite,
            },
            args::Files::Put(args) => Self::Put {
                from: Local::of(&args.local),
                to: args.path.as_deref().map(|path| paths.read(path)).transpose()?,
                overwrite: args.overwrite,
            },
            args::Files::Mkdir(args) => Self::Mkdir { path: paths.read(&args.path)?, parents: args.parents },
            args::Files::Move(args) => Self::Move {
                from: paths.read(&args.from)?,
                to: paths.read(&args.to)?,
                overwrite: args.overwrite,
            },
            args::Files::Remove(args) => Self::Remove {
                paths: args.paths.iter().map(|path| paths.read(path)).collect::<Result<_, _>>()?,
                recursive: args.recursive,
            },
        })
    }

    fn overwrites(&self) -> bool {
        match self {
            Self::Put { overwrite, .. } => *overwrite,
            _ => false,
        }
    }

    async fn carry_out(
        self,
        files: &dyn Files,
        default: GuestPath,
        is_managed: bool,
        json: bool,
        breaker: &Breaker,
    ) -> Result<i32, Failure> {
        // A link that is named is followed, as by any program that is given a file.
        let manner = |overwrite| Manner {
            overwrite,
            follow: true,
            links: !is_managed,
            missing: "name a file or folder that is here",
        };
        let answer = |value: Value| if json { output::print_json(&value) } else { Ok(0) };
        match self {
            Self::List(path) => list(files, &path.unwrap_or(default), json).await,
            Self::Show(path) => show(files, &path, json, breaker).await,
            Self::Get { from, to, overwrite } => {
                let copied = copy::fetch(files, &from, &to, manner(overwrite), breaker).await?;
                report(Done::Done(copied), json, to == Local::Standard)
            }
            Self::Put { from, to, overwrite } => {
                let to = to.unwrap_or(default);
                copy::send(files, &from, &to, manner(overwrite), breaker).await?.report(json)
            }
            Self::Mkdir { path, parents } => {
                let fix = "name another one; with -p one that is there is no error";
                let made = files.mkdir(&path, parents).await;
                made.map_err(|error| copy::hinted(error, "file-exists", fix))?;
                answer(json!({ "made": path.to_string() }))
            }
            Self::Move { from, to, overwrite } => {
                let to = copy::receiving(files, &from, to).await?;
                let moved = files.rename(&from, &to, overwrite).await;
                moved.map_err(|error| copy::hinted(error, "file-exists", copy::REPLACE))?;
                answer(json!({ "from": from.to_string(), "to": to.to_string() }))
            }
            Self::Remove { paths, recursive } => {
                for path in &paths {
                    files.remove(path, recursive).await.map_err(|error| with_hint(error, recursive))?;
                }
                let paths: Vec<_> = paths.iter().map(ToString::to_string).collect();
                answer(json!({ "removed": paths }))
            }
        }
    }
}

/// Says how a folder is removed.
fn with_hint(error: Error, recursive: bool) -> Error {
    match error {
        Error::Invalid(diagnosis) if diagnosis.code == "file-wrong-kind" && !recursive => {
            Error::Invalid(diagnosis.fix("give -r to remove a folder with all that is in it"))
        }
        other => other,
    }
}

async fn list(files: &dyn Files, path: &GuestPath, json: bool) -> Result<i32, Failure> {
    let mut entries = files.list(path).await?;
    let mut held = Vec::new();
    let mut bytes = 0;
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        bytes += entry.name.len() + entry.metadata.target.as_ref().map_or(0, |target| target.len()) + 128;
        held.push(entry);
        if bytes > MAX_HELD {
            if json {
                return Err(Failure::invalid(
                    Diagnosis::new(
                        "listing-too-long",
                        format!("{path} holds too many entries for one answer"),
                    )
                    .fix("list it without --json"),
                ));
            }
            // What comes later is sorted for itself.
            match print_entries(&mut held)? {
                0 => bytes = 0,
                status => return Ok(status),
            }
        }
    }
    if json {
        held.sort_by(|a, b| a.name.cmp(&b.name));
        let entries: Vec<_> = held.iter().map(entry_json).collect();
        return output::print_json(&json!({ "path": path.to_string(), "entries": entries }));
    }
    print_entries(&mut held)
}

fn print_entries(entries: &mut Vec<Entry>) -> Result<i32, Failure> {
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let rows: Vec<_> = entries
        .drain(..)
        .map(|Entry { name, metadata }| {
            let end = match metadata.kind {
                EntryKind::Directory => "/".to_owned(),
                EntryKind::Symlink => {
                    let target = metadata.target.as_deref().unwrap_or_default();
                    format!(" -> {}", target.to_string_lossy())
                }
                EntryKind::File | EntryKind::Other => String::new(),
            };
            let name = render::one_line(&format!("{}{end}", name.to_string_lossy()));
            let modified = time::short(metadata.modified_nanos.div_euclid(1_000_000_000));
            vec![permissions(metadata.kind, metadata.mode), metadata.size.to_string(), modified, name]
        })
        .collect();
    output::print(&render::table(&rows))
}

/// Kind and permission bits as `ls -l` shows them.
fn permissions(kind: EntryKind, mode: u32) -> String {
    let letter = match kind {
        EntryKind::File => '-',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::Other => '?',
    };
    let bits = (0..9).map(|at| if mode & (0o400 >> at) == 0 { '-' } else { ['r', 'w', 'x'][at % 3] });
    std::iter::once(letter).chain(bits).collect()
}

fn entry_json(entry: &Entry) -> Value {
    let Entry { name, metadata } = entry;
    let (name, encoding) = text_or_base64(name.as_bytes());
    let mut value = json!({
        "name": name,
        "kind": metadata.kind,
        "size": metadata.size,
        "mode": format!("{:04o}", metadata.mode),
        "modifiedMillis": metadata.modified_nanos.div_euclid(1_000_000),
    });
    if let Some(encoding) = encoding {
        value["nameEncoding"] = encoding.into();
    }
    if let Some(target) = &metadata.target {
        let (target, encoding) = text_or_base64(target.as_bytes());
        value["target"] = target.into();
        if let Some(encoding) = encoding {
            value["targetEncoding"] = encoding.into();
        }
    }
    value
}

async fn show(files: &dyn Files, path: &GuestPath, json: bool, breaker: &Breaker) -> Result<i32, Failure> {
    let opened = files.read(path, 0, None).await?;
    let mut content = breaker.guard(opened.content);
    if !json {
        let escaped = std::io::stdout().is_terminal();
        return Ok(to_standard_output(content, escaped).await?.map_or(BROKEN_PIPE, |_| 0));
    }
    let mut whole = Vec::new();
    while let Some(piece) = content.next().await {
        whole.extend_from_slice(&piece?);
        if whole.len() > MAX_HELD {
            let message = format!("{path} is larger than the {} MiB of one answer", MAX_HELD >> 20);
            let diagnosis = Diagnosis::new("file-too-large", message);
            return Err(Error::Refused(diagnosis.fix("show it without --json, or get it")).into());
        }
    }
    let (text, encoding) = text_or_base64(&whole);
    let mut value = json!({ "path": path.to_string(), "size": whole.len(), "content": text });
    if let Some(encoding) = encoding {
        value["contentEncoding"] = encoding.into();
    }
    output::print_json(&value)
}
