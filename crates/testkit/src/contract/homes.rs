//! What shows of the host: homes that outlive their sandbox, workspaces, managed files, further mounts; and `/tmp`, which
//! does not outlive it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use moltis_sandbox::{Error, Lifetime, Mount, MountMode, Origin, Promise, SandboxSpec, Setting, judge};

use crate::run::{eventually, shell};
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("homes.outlive-the-sandbox", outlive),
        case!("homes.none", none),
        case!("homes.owned-by-the-caller", owned),
        case!("workspace.read-only", read_only),
        case!("workspace.writable", writable),
        case!("workspace.protected", protected),
        case!("workspace.refused-sources", refused_sources).law(1),
        case!("workspace.missing", missing),
        case!("mounts.managed-files", managed_files),
        case!("mounts.further", further),
        case!("lifetime.temporary-is-temporary", temporary),
        case!("lifetime.same-key-same-sandbox", same_key),
        case!("lifetime.found-again", found_again).law(8),
        case!("lifetime.idle", idle),
        case!("lifetime.removed", removed).law(7),
        case!("lifetime.listed", listed),
    ]
}

async fn outlive(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    if let Some(reason) = not_kept(&ctx.guarantees.home) {
        return Ok(Verdict::Refused(reason));
    }
    let place = ctx.open(&spec).await?;
    place.out("mkdir -p ~/a; echo kept >~/a/f; echo 1 >/tmp/x; ln -s f ~/a/l; chmod 700 ~/a").await?;
    place.close().await?;
    spec.key = ctx.key();
    let place = ctx.open(&spec).await?;
    ensure_eq!(
        place.out("cat ~/a/l; stat -c %a ~/a; ls -A /tmp").await?,
        "kept\n700\n",
        "what the next sandbox sees"
    );
    Ok(Verdict::Pass)
}

fn not_kept(promise: &Promise) -> Option<String> {
    match promise {
        Promise::Held => None,
        Promise::NotEnforced(reason) => Some(reason.clone()),
    }
}

async fn none(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = SandboxSpec::new(ctx.key(), Lifetime::Ephemeral);
    for _ in 0..2 {
        let place = ctx.open(&spec).await?;
        ensure_eq!(place.out("ls -A ~; echo x >~/f; cat ~/f").await?, "x\n", "a home of its own, empty");
        place.close().await?;
        spec.key = ctx.key();
    }
    Ok(Verdict::Pass)
}

async fn owned(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let Some(reason) = not_kept(&ctx.guarantees.home) {
        return Ok(Verdict::Refused(reason));
    }
    let spec = ctx.spec()?;
    let place = ctx.open(&spec).await?;
    let home = spec.home.clone().unwrap_or_default();
    std::fs::write(home.join("from-host"), "h")?;
    std::fs::set_permissions(home.join("from-host"), std::fs::Permissions::from_mode(0o600))?;
    ensure_eq!(
        place.out("cat ~/from-host; echo i >~/from-inside; mkdir ~/d; : >~/d/f").await?,
        "h",
        "the caller's file"
    );
    place.close().await?;
    ensure_eq!(std::fs::read_to_string(home.join("from-inside"))?, "i\n", "the sandbox's file");
    // Whoever owns them, the caller can clear them away: the scratch folder's removal shows it. No set-id bits come out.
    let owner = std::fs::metadata(home.join("from-inside"))?;
    ensure!(owner.mode() & 0o6000 == 0, "mode {:o}", owner.mode());
    std::fs::remove_dir_all(home.join("d"))?;
    Ok(Verdict::Pass)
}

/// A spec with a workspace, or the verdict where the backend has none.
fn with_workspace(ctx: &Ctx, source: &Path, mode: MountMode) -> Result<Result<SandboxSpec, Verdict>, Fail> {
    let spec = ctx.spec_with_workspace(source, mode)?;
    Ok(match ctx.refused(&ctx.guarantees.workspace, &spec, "workspace")? {
        None => Ok(spec),
        Some(reason) => Err(Verdict::Refused(reason)),
    })
}

async fn read_only(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::create_dir(source.join("d"))?;
    std::fs::write(source.join("d/f"), "content")?;
    let spec = match with_workspace(ctx, &source, MountMode::Ro)? {
        Ok(spec) => spec,
        Err(verdict) => return Ok(verdict),
    };
    let place = ctx.open(&spec).await?;
    let text = place.out("cat d/f; for c in 'touch x' 'rm -f d/f' 'mv d e' 'chmod 777 d/f' 'sh -c :>d/f'; do $c 2>/dev/null && echo did $c; done; :").await?;
    ensure_eq!(text, "content", "reading works, changing does not");
    let wrote = place
        .files()
        .write(
            &super::files::at("/workspace/x")?,
            moltis_sandbox::files::WriteOptions { mode: None, overwrite: true, parents: false },
            crate::tree::stream("x"),
        )
        .await;
    ensure!(wrote.is_err(), "written through file access");
    ensure_eq!(std::fs::read_to_string(source.join("d/f"))?, "content", "the host's file");
    ensure_eq!(std::fs::read_dir(&source)?.count(), 1, "entries on the host");
    // What the caller changes shows at once.
    std::fs::write(source.join("d/f"), "changed")?;
    ensure_eq!(place.out("cat d/f").await?, "changed", "a change by the caller");
    Ok(Verdict::Pass)
}

async fn writable(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::write(source.join("f"), "before")?;
    let spec = match with_workspace(ctx, &source, MountMode::Rw)? {
        Ok(spec) => spec,
        Err(verdict) => return Ok(verdict),
    };
    let place = ctx.open(&spec).await?;
    place.out("cat f >g; echo after >f; mkdir d; echo deep >d/x; printf '#!/bin/sh\\necho ran\\n' >run; chmod +x run; ./run >ran").await?;
    for (name, content) in [("f", "after\n"), ("g", "before"), ("d/x", "deep\n"), ("ran", "ran\n")] {
        ensure_eq!(std::fs::read_to_string(source.join(name))?, content, "{name} on the host");
    }
    // What is made there is the caller's, so that the caller can go on with it.
    let owner = std::fs::metadata(source.join("g"))?.uid();
    ensure_eq!(owner, rustix::process::geteuid().as_raw(), "owner of a new file");
    Ok(Verdict::Pass)
}

async fn protected(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::create_dir_all(source.join(".git/hooks"))?;
    std::fs::write(source.join(".git/config"), "config")?;
    std::fs::write(source.join(".envrc"), "envrc")?;
    std::fs::write(source.join("plain"), "plain")?;
    let mut spec = match with_workspace(ctx, &source, MountMode::Rw)? {
        Ok(spec) => spec,
        Err(verdict) => return Ok(verdict),
    };
    spec.workspace_protect = [".git/hooks", ".git/config", ".envrc"].map(str::to_owned).to_vec();
    let place = ctx.open(&spec).await?;
    let line = "echo x >.git/hooks/pre-commit; echo x >.git/config; echo x >.envrc; rm -rf .envrc .git/config .git/hooks; \
                mv .git/hooks /tmp/h; mv .envrc e; ln -f plain .envrc; echo ok >plain; echo ok >.git/other";
    place.sh(format!("{{ {line}; }} 2>/dev/null")).await?;
    ensure_eq!(std::fs::read_to_string(source.join(".git/config"))?, "config", ".git/config");
    ensure_eq!(std::fs::read_to_string(source.join(".envrc"))?, "envrc", ".envrc");
    ensure_eq!(std::fs::read_dir(source.join(".git/hooks"))?.count(), 0, "hooks");
    ensure_eq!(std::fs::read_to_string(source.join("plain"))?, "ok\n", "a plain file");
    ensure_eq!(
        std::fs::read_to_string(source.join(".git/other"))?,
        "ok\n",
        "a plain file beside protected ones"
    );
    Ok(Verdict::Pass)
}

async fn refused_sources(ctx: &Ctx) -> Result<Verdict, Fail> {
    let ok = ctx.folder("work")?;
    if let Err(verdict) = with_workspace(ctx, &ok, MountMode::Ro)? {
        return Ok(verdict);
    }
    let link = ctx.scratch().join("to-data");
    std::os::unix::fs::symlink(&ctx.folders.data, &link)?;
    let mut sources = vec![
        "/".into(),
        ctx.folders.data.clone(),
        ctx.folders.data.join("sandbox"),
        ctx.scratch().to_owned(),
        link,
        ctx.folders.config.clone(),
        "/proc".into(),
        "/proc/self".into(),
        "/sys".into(),
        "/dev".into(),
        "/run".into(),
        ok.join("../data-dots/../data"),
    ];
    sources[11] = ctx.scratch().join("work-x/../data");
    std::fs::create_dir(ctx.scratch().join("work-x"))?;
    if let Some(home) = std::env::var_os("HOME").filter(|h| Path::new(h).is_dir()) {
        sources.push(home.into());
    }
    std::fs::create_dir_all(ctx.folders.data.join("sandbox"))?;
    for source in sources {
        let spec = ctx.spec_with_workspace(&source, MountMode::Ro)?;
        match ctx.backend.open(&spec).await {
            Err(Error::Refused(d)) => {
                ensure!(d.message.contains('/'), "the refusal of {} names no folder: {d}", source.display());
            }
            Err(e) => fail!("{}: {} instead of refused: {e}", source.display(), e.kind()),
            Ok(sandbox) => {
                sandbox.close().await?;
                fail!("{} was mounted", source.display());
            }
        }
    }
    Ok(Verdict::Pass)
}

async fn missing(ctx: &Ctx) -> Result<Verdict, Fail> {
    let ok = ctx.folder("work")?;
    if let Err(verdict) = with_workspace(ctx, &ok, MountMode::Ro)? {
        return Ok(verdict);
    }
    std::fs::write(ok.join("file"), "")?;
    for source in [ok.join("none"), ok.join("file"), "relative/path".into()] {
        let spec = ctx.spec_with_workspace(&source, MountMode::Ro)?;
        match ctx.backend.open(&spec).await {
            Err(Error::Invalid(d)) => {
                ensure!(d.message.contains(&*source.to_string_lossy()), "the path is not named: {d}");
            }
            Err(e) => fail!("{}: {} instead of invalid: {e}", source.display(), e.kind()),
            Ok(sandbox) => {
                sandbox.close().await?;
                fail!("{} was mounted", source.display());
            }
        }
    }
    Ok(Verdict::Pass)
}

async fn managed_files(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let Some(reason) = not_kept(&ctx.guarantees.managed_files) {
        let mut spec = ctx.spec()?;
        spec.managed_files = Some(Mount {
            source: ctx.folder("files")?,
            target: "/home/sandbox/files".into(),
            mode: MountMode::Ro,
        });
        let left_off = judge(&spec, ctx.backend.name(), &ctx.guarantees, &[])?;
        ensure!(left_off.iter().any(|n| n.key == "managed_files_mount"), "not listed: {left_off:?}");
        return Ok(Verdict::Refused(reason));
    }
    for mode in [MountMode::Ro, MountMode::Rw] {
        let files = ctx.folders.data.join(format!("files-{mode:?}"));
        std::fs::create_dir(&files)?;
        std::fs::write(files.join("f"), "managed")?;
        let mut spec = ctx.spec()?;
        // What a former session may have planted in its home must not lead the mount astray.
        let outside = ctx.folder("outside")?;
        std::os::unix::fs::symlink(&outside, spec.home.clone().unwrap_or_default().join("files"))?;
        spec.managed_files =
            Some(Mount { source: files.clone(), target: "/home/sandbox/files".into(), mode });
        let place = match ctx.open(&spec).await {
            Ok(place) => place,
            Err(_) => {
                // Refusing a planted link is as good as replacing it.
                ensure_eq!(std::fs::read_dir(&outside)?.count(), 0, "entries behind the planted link");
                spec.home = Some(ctx.home()?);
                ctx.open(&spec).await?
            }
        };
        let wrote = place.sh("cat ~/files/f; echo w >~/files/w").await?;
        ensure_eq!(wrote.text(), "managed", "what shows");
        ensure_eq!(files.join("w").exists(), mode == MountMode::Rw, "written with {mode:?}");
        ensure_eq!(std::fs::read_dir(&outside)?.count(), 0, "entries behind the planted link");
        if mode == MountMode::Ro {
            place.sh("mv ~/files ~/other; rm -rf ~/files; umount ~/files").await?;
            ensure_eq!(std::fs::read_to_string(files.join("f"))?, "managed", "the host's file");
        }
    }
    Ok(Verdict::Pass)
}

async fn further(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("mount")?;
    std::fs::write(source.join("f"), "mounted")?;
    let mut spec = ctx.spec()?;
    for (target, mode) in [("/mnt/ro", MountMode::Ro), ("/mnt/deep/rw", MountMode::Rw)] {
        spec.mounts
            .push(Setting::new(Mount { source: source.clone(), target: target.into(), mode }, Origin::File));
    }
    if let Some(reason) = ctx.refused(&ctx.guarantees.workspace, &spec, "mounts")? {
        return Ok(Verdict::Refused(reason));
    }
    let place = ctx.open(&spec).await?;
    let text = place
        .out("cat /mnt/ro/f; echo w >/mnt/deep/rw/g; cat /mnt/ro/g; echo x 2>/dev/null >/mnt/ro/h; :")
        .await?;
    ensure_eq!(text, "mountedw\n", "what shows");
    ensure_eq!((source.join("g").exists(), source.join("h").exists()), (true, false), "files on the host");
    // A single file, as a mount.
    let mut spec = ctx.spec()?;
    let mount = Mount { source: source.join("f"), target: "/mnt/one".into(), mode: MountMode::Ro };
    spec.mounts.push(Setting::new(mount, Origin::File));
    ensure_eq!(ctx.open(&spec).await?.out("cat /mnt/one").await?, "mounted", "a file as a mount");
    Ok(Verdict::Pass)
}

async fn temporary(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.spec()?;
    let place = ctx.open(&spec).await?;
    place.out("echo 1 >/tmp/x; test -x /tmp -a -k /tmp").await?;
    ensure_eq!(place.out("cat /tmp/x").await?, "1\n", "/tmp between two commands");
    place.close().await?;
    let place = ctx.open(&spec).await?;
    ensure!(place.is_new(), "a closed sandbox was found again");
    ensure_eq!(place.out("ls -A /tmp").await?, "", "/tmp of the next one");
    Ok(Verdict::Pass)
}

async fn same_key(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let Some(reason) = not_kept(&ctx.guarantees.adopt) {
        return Ok(Verdict::Refused(reason));
    }
    let mut spec = ctx.spec()?;
    spec.lifetime = Lifetime::Idle(Duration::from_secs(60));
    let first = ctx.open(&spec).await?;
    first.out("echo 1 >/tmp/x").await?;
    let second = ctx.open(&spec).await?;
    ensure_eq!((first.id(), second.id()), (second.id(), &spec.id()), "ids");
    ensure!(first.is_new() && !second.is_new(), "new {} and {}", first.is_new(), second.is_new());
    ensure_eq!(second.out("cat /tmp/x").await?, "1\n", "the same sandbox");
    // A changed spec is another sandbox.
    spec.workspace = ctx.spec_with_workspace(&ctx.folder("work")?, MountMode::Ro)?.workspace;
    let third = ctx.open(&spec).await?;
    ensure!(third.is_new(), "a changed spec found the old sandbox");
    ensure_eq!(third.out("ls -A /tmp").await?, "", "the new one's /tmp");
    third.close().await?;
    Ok(Verdict::Pass)
}

async fn found_again(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let Some(reason) = not_kept(&ctx.guarantees.adopt) {
        return Ok(Verdict::Refused(reason));
    }
    let mut spec = ctx.spec()?;
    spec.lifetime = Lifetime::Idle(Duration::from_secs(60));
    let first = ctx.backend.open(&spec).await?;
    let place = ctx.keep(first).await?;
    let marker = ctx.marker();
    place.out("echo 1 >/tmp/x").await?;
    let mut request = shell(marker.sleep());
    request.background = true;
    request.timeout = None;
    drop(place.start(request).await?);
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    drop(place);
    let again = ctx.backend_again().open(&spec).await?;
    ensure!(!again.is_new(), "not found again");
    let again = ctx.keep(again).await?;
    ensure_eq!(again.out("cat /tmp/x").await?, "1\n", "/tmp");
    ensure_eq!(again.processes().await?.len(), 1, "background commands");
    ensure_eq!(marker.count(&again).await?, 1, "its processes");
    again.close().await?;
    Ok(Verdict::Pass)
}

async fn idle(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let Some(reason) = not_kept(&ctx.guarantees.adopt) {
        return Ok(Verdict::Refused(reason));
    }
    let mut spec = ctx.spec()?;
    spec.lifetime = Lifetime::Idle(Duration::from_millis(1500));
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    // A running command is use; what it leaves is not.
    place.sh(format!("setsid {} >/dev/null 2>&1 & sleep 2.5", marker.sleep())).await?.good()?;
    ensure_eq!(marker.count(&place).await?, 1, "alive after a command longer than the idle time");
    let gone = if ctx.shared_kernel() {
        eventually(Duration::from_secs(8), async || Ok(marker.on_host().is_empty())).await?
    } else {
        tokio::time::sleep(Duration::from_secs(4)).await;
        true
    };
    ensure!(gone, "an idle sandbox does not end");
    let place = ctx.open(&spec).await?;
    ensure!(place.is_new(), "the sandbox that ended was found again");
    place.close().await?;
    Ok(Verdict::Pass)
}

async fn removed(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let Some(reason) = not_kept(&ctx.guarantees.adopt) {
        return Ok(Verdict::Refused(reason));
    }
    let mut spec = ctx.spec()?;
    spec.lifetime = Lifetime::Idle(Duration::from_secs(60));
    let (kept, gone) = (ctx.open(&spec).await?, {
        let mut other = ctx.spec()?;
        other.lifetime = spec.lifetime;
        ctx.open(&other).await?
    });
    let marker = ctx.marker();
    let live = gone.start(shell(marker.sleep())).await?;
    marker.wait_for(&gone, 1, Duration::from_secs(5)).await?;
    ctx.backend_again().remove(gone.id()).await?;
    if ctx.shared_kernel() {
        ensure_eq!(marker.on_host(), Vec::<u32>::new(), "processes left");
    }
    drop(live);
    ensure_eq!(kept.out("echo alive").await?, "alive\n", "the other one");
    let ids: Vec<_> = ctx.backend.list().await?.into_iter().map(|r| r.id).collect();
    ensure_eq!(ids, [kept.id().clone()], "sandboxes listed");
    kept.close().await?;
    Ok(Verdict::Pass)
}

async fn listed(ctx: &Ctx) -> Result<Verdict, Fail> {
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes of a new data directory");
    let mut specs = vec![ctx.spec()?, ctx.spec()?];
    if ctx.guarantees.adopt.is_held() {
        specs[1].lifetime = Lifetime::Idle(Duration::from_secs(60));
    }
    let mut places = Vec::new();
    for spec in &specs {
        places.push(ctx.open(spec).await?);
    }
    if ctx.guarantees.adopt.is_held() {
        let listed = ctx.backend.list().await?;
        let found = listed.iter().find(|r| r.id == specs[1].id());
        let Some(found) = found else { fail!("the session's sandbox is not listed: {listed:?}") };
        ensure_eq!((found.running, &found.fingerprint), (true, &specs[1].fingerprint()), "its record");
    }
    for place in places {
        place.close().await?;
    }
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes after closing all");
    Ok(Verdict::Pass)
}
