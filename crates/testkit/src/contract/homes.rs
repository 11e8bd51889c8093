//! What shows of the host: homes that outlive their sandbox, workspaces, managed files, further mounts.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{Error, Mount, MountMode, Origin, Setting, judge};

use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("homes.outlive-the-sandbox", outlive).needs(|promised| &promised.home),
        case!("homes.none", none).needs(|promised| &promised.home),
        case!("homes.owned-by-the-caller", owned).needs(|promised| &promised.home),
        case!("workspace.shows", shows),
        case!("workspace.read-only", read_only).needs(|promised| &promised.filesystem),
        case!("workspace.read-only-to-file-access", read_only_files),
        case!("workspace.writable", writable),
        case!("workspace.protected", protected).needs(|promised| &promised.filesystem),
        case!("workspace.refused-sources", refused_sources).law(1),
        case!("workspace.missing", missing),
        case!("mounts.managed-files", managed_files).needs(|promised| &promised.managed_files),
        case!("mounts.managed-files-by-variable", by_variable),
        case!("mounts.further", further),
    ]
}

async fn outlive(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    let place = ctx.open(&spec).await?;
    place.out("mkdir -p ~/a; echo kept >~/a/f; ln -s f ~/a/l; chmod 700 ~/a").await?;
    place.close().await?;
    spec.key = ctx.key();
    let place = ctx.open(&spec).await?;
    ensure_eq!(place.out("cat ~/a/l; stat -c %a ~/a;").await?, "kept\n700\n", "what the next sandbox sees");
    Ok(Verdict::Pass)
}

async fn none(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.bare();
    for _ in 0..2 {
        let place = ctx.open(&spec).await?;
        ensure_eq!(place.out("ls -A ~; echo x >~/f; cat ~/f").await?, "x\n", "a home of its own, empty");
        place.close().await?;
        spec.key = ctx.key();
    }
    Ok(Verdict::Pass)
}

async fn owned(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.spec()?;
    let place = ctx.open(&spec).await?;
    let home = spec.home.clone().unwrap_or_default();
    std::fs::write(home.join("from-host"), "h")?;
    std::fs::set_permissions(home.join("from-host"), std::fs::Permissions::from_mode(0o600))?;
    // Where no ids can be mapped, the home is the sandbox's user's, and what root puts into it has to be given along.
    ctx.give(&home.join("from-host"))?;
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

async fn shows(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::write(source.join("f"), "content")?;
    let spec = ctx.spec_with_workspace(&source, MountMode::Ro)?;
    if let Some(reason) = ctx.refused(&ctx.guarantees.workspace, &spec, "workspace")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    ensure_eq!(place.out("cat /workspace/f").await?, "content", "what shows at /workspace");
    Ok(Verdict::Pass)
}

async fn read_only(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::create_dir(source.join("d"))?;
    std::fs::write(source.join("d/f"), "content")?;
    let spec = ctx.spec_with_workspace(&source, MountMode::Ro)?;
    let place = ctx.open(&spec).await?;
    let text = place.out("cat d/f; for c in 'touch x' 'rm -f d/f' 'mv d e' 'chmod 777 d/f' 'sh -c :>d/f'; do $c 2>/dev/null && echo did $c; done; :").await?;
    ensure_eq!(text, "content", "reading works, changing does not");
    ensure_eq!(std::fs::read_to_string(source.join("d/f"))?, "content", "the host's file");
    ensure_eq!(std::fs::read_dir(&source)?.count(), 1, "entries on the host");
    // What the caller changes shows at once.
    std::fs::write(source.join("d/f"), "changed")?;
    ensure_eq!(place.out("cat d/f").await?, "changed", "a change by the caller");
    Ok(Verdict::Pass)
}

async fn read_only_files(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::write(source.join("f"), "content")?;
    // Where commands cannot be held to it, file access still is.
    let place = ctx.open(&ctx.spec_with_workspace(&source, MountMode::Ro)?).await?;
    let at = |name: &str| super::files::at(format!("{}/{name}", place.cwd));
    let content = place.files().read(&at("f")?, 0, None).await?.content;
    ensure_eq!(crate::tree::collect(content).await?, b"content", "what is read");
    for name in ["x", "f"] {
        let wrote = place.files().write(&at(name)?, REPLACING, crate::tree::stream("x")).await;
        ensure!(wrote.is_err(), "{name} was written");
    }
    ensure!(place.files().mkdir(&at("d")?, false).await.is_err(), "a folder was made");
    ensure!(place.files().remove(&at("f")?, false).await.is_err(), "a file was removed");
    ensure!(place.files().rename(&at("f")?, &at("g")?, false).await.is_err(), "a file was moved");
    let archive = crate::tree::archive([(b"a".as_slice(), &crate::tree::Node::Directory(0o755))]);
    ensure!(
        place.files().upload(&at("")?, crate::tree::stream(archive)).await.is_err(),
        "a tree was unpacked"
    );
    ensure_eq!(std::fs::read_to_string(source.join("f"))?, "content", "the host's file");
    ensure_eq!(std::fs::read_dir(&source)?.count(), 1, "entries on the host");
    Ok(Verdict::Pass)
}

const REPLACING: WriteOptions = WriteOptions { mode: None, overwrite: true, parents: false };

async fn writable(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::write(source.join("f"), "before")?;
    ctx.give(&source.join("f"))?;
    let spec = ctx.spec_with_workspace(&source, MountMode::Rw)?;
    let place = ctx.open(&spec).await?;
    place.out("cat f >g; echo after >f; mkdir d; echo deep >d/x; printf '#!/bin/sh\\necho ran\\n' >run; chmod +x run; ./run >ran").await?;
    for (name, content) in [("f", "after\n"), ("g", "before"), ("d/x", "deep\n"), ("ran", "ran\n")] {
        ensure_eq!(std::fs::read_to_string(source.join(name))?, content, "{name} on the host");
    }
    // What is made there is the caller's, so that the caller can go on with it.
    let owner = std::fs::metadata(source.join("g"))?.uid();
    ensure_eq!(owner, ctx.writer(), "owner of a new file");
    Ok(Verdict::Pass)
}

async fn protected(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    std::fs::create_dir_all(source.join(".git/hooks"))?;
    std::fs::write(source.join(".git/config"), "config")?;
    std::fs::write(source.join(".envrc"), "envrc")?;
    std::fs::write(source.join("plain"), "plain")?;
    // All of it is theirs, so that nothing but the protection keeps them from it.
    for name in [".git", ".git/hooks", ".git/config", ".envrc", "plain"] {
        ctx.give(&source.join(name))?;
    }
    let mut spec = ctx.spec_with_workspace(&source, MountMode::Rw)?;
    spec.workspace_protect = [".git/hooks", ".git/config", ".envrc"].map(str::to_owned).to_vec();
    let place = ctx.open(&spec).await?;
    let line = "echo x >.git/hooks/pre-commit; echo x >.git/config; echo x >.envrc; rm -rf .envrc .git/config .git/hooks; \
                mv .git/hooks ~/h; mv .envrc e; ln -f plain .envrc; echo ok >plain; echo ok >.git/other";
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
        // Without opening anything, too.
        match ctx.backend.check(&spec).await {
            Err(Error::Refused(_)) => {}
            other => fail!("checking {}: {other:?} instead of refused", source.display()),
        }
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
    ctx.backend.check(&ctx.spec_with_workspace(&ok, MountMode::Ro)?).await?;
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes after checking");
    std::fs::write(ok.join("file"), "")?;
    for source in [ok.join("none"), ok.join("file"), "relative/path".into()] {
        let spec = ctx.spec_with_workspace(&source, MountMode::Ro)?;
        match ctx.backend.check(&spec).await {
            Err(Error::Invalid(_)) => {}
            other => fail!("checking {}: {other:?} instead of invalid", source.display()),
        }
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
    for mode in [MountMode::Ro, MountMode::Rw] {
        let files = ctx.folders.data.join(format!("files-{mode:?}"));
        std::fs::create_dir(&files)?;
        std::fs::write(files.join("f"), "managed")?;
        ctx.give(&files)?;
        ctx.give(&files.join("f"))?;
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

async fn by_variable(ctx: &Ctx) -> Result<Verdict, Fail> {
    ensure_eq!(
        ctx.place().await?.out("echo ${MOLTIS_FILES_DIR-unset}").await?,
        "unset\n",
        "the variable where there are no managed files"
    );
    for mode in [MountMode::Ro, MountMode::Rw] {
        let files = ctx.folders.data.join(format!("files-{mode:?}"));
        std::fs::create_dir(&files)?;
        std::fs::write(files.join("f"), "managed")?;
        ctx.give(&files)?;
        ctx.give(&files.join("f"))?;
        let mut spec = ctx.spec()?;
        spec.managed_files =
            Some(Mount { source: files.clone(), target: "/home/sandbox/files".into(), mode });
        // Where they cannot be kept as asked, that is listed, for nobody demanded them.
        let listed = judge(&spec, ctx.backend.name(), &ctx.guarantees, &[])?;
        ensure_eq!(
            listed.iter().any(|left| left.key == "managed_files_mount"),
            !ctx.guarantees.managed_files.is_held(),
            "whether they are listed as not kept"
        );
        let place = ctx.open(&spec).await?;
        let folder = place.out("printf %s \"$MOLTIS_FILES_DIR\"").await?;
        ensure_eq!(place.out("cat \"$MOLTIS_FILES_DIR/f\"").await?, "managed", "what a command sees");
        let at = |name: &str| super::files::at(format!("{folder}/{name}"));
        let content = place.files().read(&at("f")?, 0, None).await?.content;
        ensure_eq!(crate::tree::collect(content).await?, b"managed", "what file access sees");
        let wrote = place.files().write(&at("w")?, REPLACING, crate::tree::stream("w")).await;
        ensure_eq!(wrote.is_ok(), mode == MountMode::Rw, "written by file access with {mode:?}");
        ensure_eq!(files.join("w").exists(), mode == MountMode::Rw, "there on the host with {mode:?}");
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
        return Ok(Verdict::Declared(reason));
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
