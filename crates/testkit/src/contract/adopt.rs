//! Finding what runs: by spec, by id, as another process sees it; never another one, and never by starting or ending
//! something. And how much it is in use.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use moltis_sandbox::exec::TerminalSize;
use moltis_sandbox::{Activity, Backend, Ending, MountMode, SandboxId, SandboxSpec, Status};

use super::background::{background, look};
use super::lifetime::{LONG, found_with_commands, runs};
use crate::run::{eventually, shell};
use crate::{Case, Ctx, Fail, Place, Verdict, case, ensure, ensure_eq, fail, patience, tree};

pub(super) fn cases() -> Vec<Case> {
    let of_sessions = [
        case!("adopt.same-spec", same_spec).law(8),
        case!("adopt.other-spec", other_spec).law(8),
        case!("adopt.nothing-there", nothing_there),
        case!("adopt.temporary", temporary),
        case!("adopt.waits-for-nobody", waits_for_nobody),
        case!("adopt.garbage", garbage).limit(60),
        case!("find.nothing-there", nothing_to_find),
        case!("find.not-another-backends", not_another_backends).law(7),
    ];
    let mut all: Vec<Case> =
        of_sessions.into_iter().map(|case| case.needs(|promised| &promised.adopt)).collect();
    all.push(case!("find.whatever-spec", whatever_spec).law(8).needs(found_with_commands));
    all.push(case!("activity.counts-what-runs", counts));
    all.push(case!("activity.idle-grows", idle_grows));
    all
}

async fn same_spec(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.session(LONG)?;
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    place.out(format!("echo 1 >{}", place.path("x"))).await?;
    drop(place.start(background(marker.sleep())).await?);
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    // From here and, at the same moment, from other processes.
    let others = [ctx.backend.clone(), ctx.backend_again(), ctx.backend_again()];
    let adopting = others.iter().map(|backend| backend.adopt(&spec));
    for adopted in futures_util::future::join_all(adopting).await {
        let Some(adopted) = adopted? else { fail!("not adopted") };
        ensure_eq!((adopted.id(), adopted.is_new()), (&spec.id(), false), "id, and whether it is new");
        let again = ctx.keep(adopted).await?;
        ensure_eq!(again.out(format!("cat {}", again.path("x"))).await?, "1\n", "its files");
        ensure_eq!(again.processes().await?.len(), 1, "its background commands");
    }
    ensure_eq!(marker.count(&place).await?, 1, "its processes");
    place.close().await?;
    ensure!(ctx.backend_again().adopt(&spec).await?.is_none(), "adopted after its end");
    Ok(Verdict::Pass)
}

async fn other_spec(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.session(LONG)?;
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    drop(place.start(background(marker.sleep())).await?);
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    let mut other = spec.clone();
    other.workspace = ctx.spec_with_workspace(&ctx.folder("work")?, MountMode::Ro)?.workspace;
    ensure!(other.fingerprint() != spec.fingerprint(), "the case's own specs are the same");
    for backend in [ctx.backend.clone(), ctx.backend_again()] {
        ensure!(backend.adopt(&other).await?.is_none(), "one of another spec was adopted");
    }
    // It was not ended for that, and is still what its own spec finds.
    ensure_eq!(marker.count(&place).await?, 1, "its processes");
    ensure!(ctx.backend_again().adopt(&spec).await?.is_some(), "not adopted by its own spec any more");
    place.close().await?;
    Ok(Verdict::Pass)
}

/// Every name below a folder.
fn names(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            all.push(entry.path());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    all.sort();
    all
}

async fn nothing_there(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.session(LONG)?;
    let (before, mine) = (names(&ctx.folders.data), crate::process::descent(std::process::id()));
    for backend in [ctx.backend.clone(), ctx.backend_again()] {
        ensure!(backend.adopt(&spec).await?.is_none(), "adopted though nothing was ever there");
    }
    ensure_eq!(names(&ctx.folders.data), before, "the data directory");
    ensure_eq!(crate::process::descent(std::process::id()), mine, "processes");
    // Neither after one that was closed.
    ctx.open(&spec).await?.close().await?;
    for backend in [ctx.backend.clone(), ctx.backend_again()] {
        ensure!(backend.adopt(&spec).await?.is_none(), "one that was closed was adopted");
    }
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes listed");
    Ok(Verdict::Pass)
}

async fn temporary(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.spec()?;
    let sandbox = ctx.backend.open(&spec).await?;
    // Whoever else gets hold of it does not make it live longer or shorter: that is its opener's.
    let other = ctx.backend_again();
    drop(other.adopt(&spec).await?);
    drop(other.find(&spec.id()).await?);
    let place = ctx.keep(Arc::clone(&sandbox)).await?;
    ensure_eq!(place.out("echo alive").await?, "alive\n", "after another one let go of it");
    let held = other.find(&spec.id()).await?;
    place.close().await?;
    drop((place, sandbox));
    let gone =
        eventually(Duration::from_secs(5), async || Ok(!runs(other.as_ref(), &spec.id()).await?)).await?;
    ensure!(gone, "it outlives its opener");
    ensure!(other.adopt(&spec).await?.is_none(), "adopted after its end");
    drop(held);
    Ok(Verdict::Pass)
}

async fn waits_for_nobody(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.session(LONG)?;
    let place = ctx.open(&spec).await?;
    // Many at once are as quick as a few.
    let backends: Vec<_> = (0..16).map(|_| ctx.backend_again()).collect();
    let began = Instant::now();
    for adopted in futures_util::future::join_all(backends.iter().map(|backend| backend.adopt(&spec))).await {
        ensure!(adopted?.is_some(), "not adopted, as one of sixteen");
    }
    ensure!(
        began.elapsed() < patience(Duration::from_secs(3)),
        "adopting sixteen times took {:?}",
        began.elapsed()
    );
    // One that is being closed, which takes its time where commands do not want to end, is there or not; that is said
    // at once.
    let marker = ctx.marker();
    let _live = place.start(shell(format!("trap '' TERM HUP; {0} & {0}", marker.sleep()))).await?;
    marker.wait_for(&place, 2, Duration::from_secs(5)).await?;
    let looking = async {
        let (mut slowest, other) = (Duration::ZERO, ctx.backend_again());
        for _ in 0..10 {
            let began = Instant::now();
            let _ = other.adopt(&spec).await;
            let _ = other.find(&spec.id()).await;
            slowest = slowest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        slowest
    };
    let (closed, slowest) = tokio::join!(place.close(), looking);
    closed?;
    ensure!(slowest < Duration::from_secs(2), "looking for one that is being closed took {slowest:?}");
    ensure!(ctx.backend_again().adopt(&spec).await?.is_none(), "adopted after its end");
    Ok(Verdict::Pass)
}

/// What may stand in the place of a file or folder that was written by somebody else, or by half.
#[derive(Clone, Copy, Debug)]
enum Junk {
    Nothing,
    Empty,
    Noise,
    Object,
    Long,
    Folder,
    FullFolder,
    DanglingLink,
    LinkElsewhere,
    Pipe,
}

impl Junk {
    const ALL: [Self; 10] = [
        Self::Nothing,
        Self::Empty,
        Self::Noise,
        Self::Object,
        Self::Long,
        Self::Folder,
        Self::FullFolder,
        Self::DanglingLink,
        Self::LinkElsewhere,
        Self::Pipe,
    ];

    fn put(self, path: &Path) -> std::io::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Empty => std::fs::write(path, ""),
            Self::Noise => std::fs::write(path, [0xff, 0, 0x80, b'{', 7].repeat(100)),
            Self::Object => std::fs::write(path, "{}"),
            Self::Long => std::fs::write(path, "[".repeat(4 << 20)),
            Self::Folder => std::fs::create_dir(path),
            Self::FullFolder => {
                std::fs::create_dir(path)?;
                ["host.json", "sandbox.json", "record", "host.sock", "agent.sock"]
                    .into_iter()
                    .try_for_each(|name| std::fs::write(path.join(name), "junk"))
            }
            Self::DanglingLink => symlink("/no/such/file", path),
            Self::LinkElsewhere => symlink("/etc", path),
            Self::Pipe => rustix::fs::mknodat(
                rustix::fs::CWD,
                path,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RWXU,
                0,
            )
            .map_err(Into::into),
        }
    }

    fn take_away(path: &Path) {
        let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
    }
}

/// Looks for a sandbox whose folder is not what it was: it is not there, or cannot be looked for. In time, either way.
async fn look_for(backend: Arc<dyn Backend>, spec: &SandboxSpec, what: &str) -> Result<(), Fail> {
    let adopting = tokio::time::timeout(patience(Duration::from_secs(5)), backend.adopt(spec));
    if adopting
        .await
        .map_err(|_| Fail::new(format!("adopting with {what} hangs")))?
        .is_ok_and(|s| s.is_some())
    {
        fail!("adopted with {what}");
    }
    let id = spec.id();
    let finding = tokio::time::timeout(patience(Duration::from_secs(5)), backend.find(&id));
    if finding.await.map_err(|_| Fail::new(format!("finding with {what} hangs")))?.is_ok_and(|s| s.is_some())
    {
        fail!("found with {what}");
    }
    Ok(())
}

async fn garbage(ctx: &Ctx) -> Result<Verdict, Fail> {
    let panics = Arc::new(AtomicUsize::new(0));
    let (seen, former) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        seen.fetch_add(1, Ordering::Relaxed);
        former(info);
    }));
    let spec = ctx.session(LONG)?;
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    drop(place.start(background(marker.sleep())).await?);
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    let folders: Vec<PathBuf> =
        names(&ctx.folders.data).into_iter().filter(|path| path.ends_with(spec.id().as_str())).collect();
    let mut tried = Vec::new();
    for folder in &folders {
        let mut paths = vec![folder.clone()];
        paths.extend(names(folder));
        for path in paths {
            let (aside, mut seen_through) = (ctx.scratch().join("aside"), 0);
            for junk in Junk::ALL {
                std::fs::rename(&path, &aside)?;
                junk.put(&path)?;
                let what = format!("{junk:?} in the place of {}", path.display());
                // Not everything that lies there is needed to find it; what is, is needed whole.
                let looked = look_for(ctx.backend_again(), &spec, &what).await;
                Junk::take_away(&path);
                std::fs::rename(&aside, &path)?;
                match looked {
                    Ok(()) => {}
                    Err(fail) if fail.0.contains("hangs") => return Err(fail),
                    Err(_) => seen_through += 1,
                }
            }
            tried.push((path, seen_through));
        }
    }
    // A file matters or it does not, whatever stands in its place.
    for (path, seen_through) in &tried {
        ensure!(
            [0, Junk::ALL.len()].contains(seen_through),
            "{} is believed with {seen_through} of {} kinds of junk in its place",
            path.display(),
            Junk::ALL.len()
        );
    }
    ensure!(
        folders.is_empty() || tried.iter().any(|(_, seen_through)| *seen_through == 0),
        "nothing that lies there matters: {tried:?}"
    );
    ensure_eq!(panics.load(Ordering::Relaxed), 0, "panics");
    // Nothing was ended for it.
    ensure_eq!(marker.count(&place).await?, 1, "processes of the sandbox");
    ensure!(ctx.backend_again().adopt(&spec).await?.is_some(), "not adopted with all in its place again");
    place.close().await?;
    Ok(Verdict::Pass)
}

async fn whatever_spec(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    let mut spec = ctx.session(LONG)?;
    spec.workspace = ctx.spec_with_workspace(&source, MountMode::Rw)?.workspace;
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    let process = place.start(background(format!("echo begun; {}", marker.sleep()))).await?.process;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    place.out("echo work >f").await?;
    let path = super::files::at(format!("{}/f", place.cwd))?;
    drop(place);
    let Some(found) = ctx.backend_again().find(&spec.id()).await? else { fail!("not found") };
    ensure_eq!((found.id(), found.is_new()), (&spec.id(), false), "id, and whether it is new");
    let found = ctx.keep(found).await?;
    let listed: Vec<_> = found.processes().await?.into_iter().map(|p| (p.id, p.outcome.is_some())).collect();
    ensure_eq!(listed, [(process, false)], "background commands");
    let begun = eventually(Duration::from_secs(5), async || {
        Ok(look(&found, process, 0, 0).await?.stdout == b"begun\n")
    })
    .await?;
    ensure!(begun, "its output is not seen");
    let content = found.files().read(&path, 0, None).await?.content;
    ensure_eq!(tree::collect(content).await?, b"work\n", "its files");
    ensure_eq!(found.stop(process).await?.ending, Ending::Cancelled, "ending of the stopped one");
    ensure_eq!(marker.count(&found).await?, 0, "processes after stopping");
    ensure_eq!(found.sh("exit 3").await?.outcome.status, Status::Code(3), "a command through it");
    found.close().await?;
    ensure!(ctx.backend.find(&spec.id()).await?.is_none(), "found after it was closed");
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes listed");
    Ok(Verdict::Pass)
}

async fn nothing_to_find(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (before, mine) = (names(&ctx.folders.data), crate::process::descent(std::process::id()));
    for backend in [ctx.backend.clone(), ctx.backend_again()] {
        let id = SandboxId::of(&ctx.key());
        ensure!(backend.find(&id).await?.is_none(), "found though nothing was ever there");
    }
    ensure_eq!(names(&ctx.folders.data), before, "the data directory");
    ensure_eq!(crate::process::descent(std::process::id()), mine, "processes");
    let spec = ctx.session(LONG)?;
    ctx.open(&spec).await?.close().await?;
    for backend in [ctx.backend.clone(), ctx.backend_again()] {
        ensure!(backend.find(&spec.id()).await?.is_none(), "one that was closed was found");
    }
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes listed");
    Ok(Verdict::Pass)
}

async fn not_another_backends(ctx: &Ctx) -> Result<Verdict, Fail> {
    let neighbours = ctx.neighbours().await;
    ensure!(!neighbours.is_empty(), "no other backend is usable here over the same data directory");
    let own = ctx.session(LONG)?;
    let place = ctx.open(&own).await?;
    for neighbour in neighbours {
        let theirs = ctx.session(LONG)?;
        let sandbox = neighbour.open(&theirs).await?;
        let checked = async {
            ensure!(ctx.backend.find(&theirs.id()).await?.is_none(), "{}'s was found", neighbour.name());
            ensure!(ctx.backend.adopt(&theirs).await?.is_none(), "{}'s was adopted", neighbour.name());
            ensure!(neighbour.find(&own.id()).await?.is_none(), "{} found ours", neighbour.name());
            ensure!(neighbour.adopt(&own).await?.is_none(), "{} adopted ours", neighbour.name());
            let listed: Vec<_> = ctx.backend.list().await?.into_iter().map(|record| record.id).collect();
            ensure_eq!(listed, [own.id()], "sandboxes listed beside {}'s", neighbour.name());
            ctx.backend.remove(&theirs.id()).await?;
            let activity = sandbox.activity().await;
            ensure!(activity.is_ok(), "{}'s was ended: {activity:?}", neighbour.name());
            Ok(())
        };
        let checked = checked.await;
        sandbox.close().await?;
        neighbour.purge(&theirs.id()).await?;
        checked?;
    }
    ensure_eq!(place.out("echo alive").await?, "alive\n", "ours");
    place.close().await?;
    Ok(Verdict::Pass)
}

/// Waits until so many operations run.
async fn operations(place: &Place, wanted: u32, what: &str) -> Result<Activity, Fail> {
    let mut last = None;
    let reached = eventually(Duration::from_secs(5), async || {
        let activity = place.activity().await?;
        last = Some(activity);
        Ok(activity.operations == wanted)
    })
    .await?;
    match last {
        Some(activity) if reached => Ok(activity),
        last => fail!("{wanted} operations should run {what}: {last:?}"),
    }
}

async fn counts(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    place.out(format!("head -c 32M /dev/zero >{}", place.path("big"))).await?;
    let before = operations(&place, 0, "where nothing was started").await?;
    let (mut running, mut commands) = (1, 1);
    let command = place.start(shell("sleep 60")).await?;
    let during = operations(&place, running, "beside a command").await?;
    ensure_eq!(during.idle, Duration::ZERO, "idle time while a command runs");
    let mut process = None;
    if ctx.guarantees.background.is_held() {
        process = Some(place.start(background("sleep 60")).await?.process);
        (running, commands) = (running + 1, commands + 1);
        operations(&place, running, "with a background command").await?;
    }
    let mut terminal = None;
    if ctx.guarantees.terminal.is_held() {
        let mut request = shell("sleep 60");
        request.terminal = Some(TerminalSize { rows: 24, columns: 80 });
        terminal = Some(place.start(request).await?);
        (running, commands) = (running + 1, commands + 1);
        operations(&place, running, "with a terminal").await?;
    }
    let mut reading = place.files().read(&super::files::at(place.path("big"))?, 0, None).await?;
    ensure!(reading.content.next().await.is_some(), "nothing comes");
    running += 1;
    operations(&place, running, "with a file that is read").await?;
    let mut forwarded = None;
    if ctx.guarantees.forward.is_held() {
        let mut listener = place.listen(0).await?;
        let connection = super::forward::from_inside(&place, &mut listener).await?;
        forwarded = Some((listener, connection));
        (running, commands) = (running + 1, commands + 1);
        operations(&place, running, "with a forwarded connection").await?;
    }
    if let Some((listener, connection)) = forwarded {
        drop(connection);
        // What only waits for a connection is no use.
        running -= 1;
        operations(&place, running, "with a listener").await?;
        drop(listener);
    }
    drop((command, terminal, reading));
    operations(&place, u32::from(process.is_some()), "but what was started to stay").await?;
    if let Some(process) = process {
        place.stop(process).await?;
    }
    let after = operations(&place, 0, "in the end").await?;
    ensure_eq!(after.commands, before.commands + commands, "commands since its start");
    ensure!(after.uptime > before.uptime, "uptime {:?} after {:?}", after.uptime, before.uptime);
    Ok(Verdict::Pass)
}

async fn idle_grows(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let began = Instant::now();
    place.out("sleep 0.2").await?;
    let first = operations(&place, 0, "in the end").await?;
    // Asked all the while, and by others too: that is no use.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        place.activity().await?;
        ctx.backend_again().find(place.id()).await?;
    }
    let last = place.activity().await?;
    ensure!(
        last.idle >= first.idle + Duration::from_millis(500),
        "idle {:?}, then {:?}",
        first.idle,
        last.idle
    );
    ensure!(last.idle <= began.elapsed(), "idle for {:?} of {:?}", last.idle, began.elapsed());
    place.out(":").await?;
    let again = operations(&place, 0, "in the end").await?;
    ensure!(again.idle < last.idle, "idle {:?} after another command", again.idle);
    Ok(Verdict::Pass)
}
