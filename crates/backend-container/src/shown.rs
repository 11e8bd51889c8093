//! What of this machine a container shows: every source judged and opened, every mount point made, in the order in which
//! the engine mounts them.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use moltis_agent::dangerous::{Watched, protect};
use moltis_host::requested::Sources;
use moltis_host::sources::{Judge, Judged};
use moltis_sandbox::{Diagnosis, Error, MountMode, Result, SandboxSpec};

use crate::dind::HostPaths;
use crate::engine::{Bind, Relabel};
use crate::identity::Identity;
use crate::place::{FILES, HOME, WORKSPACE};
use crate::points::{self, Points, give};
use crate::selinux::Labels;

/// What a container shows of this machine.
#[derive(Debug, Default)]
pub struct Shown {
    /// In order.
    pub binds: Vec<Bind>,
    /// Mount points that another sandbox can take away, since it shares the folder that holds them.
    pub guarded: Vec<String>,
    /// What must be found at each target, by device and inode: the engine mounts by path, which may lead elsewhere by
    /// then.
    pub expected: Vec<(String, u64, u64)>,
    /// What a person should know of it.
    pub notes: Vec<String>,
    /// What may be written to, and what it holds.
    pub watched: Vec<Watched>,
}

/// What decides how it is shown.
pub struct View<'a> {
    /// The sandbox's user.
    pub identity: &'a Identity,
    /// User and group of this process.
    pub caller: (u32, u32),
    /// What the engine calls our paths.
    pub paths: &'a HostPaths,
    /// How SELinux is dealt with.
    pub labels: Labels,
}

impl View<'_> {
    /// Judges all that the spec names and makes what is missing of ours. Blocks on the file system.
    ///
    /// # Errors
    /// Those of judging; `mount-point-unusable`; `workspace-not-visible` where the engine cannot see a folder.
    pub fn show(&self, spec: &SandboxSpec, judge: &Judge) -> Result<Shown> {
        let sources = Sources::judge(spec, judge)?;
        let mut shown = Shown::default();
        let mut folders: Vec<(Vec<u8>, Judged, bool)> = Vec::new();
        // A home that stays may be another sandbox's too, which can move what is mounted in it.
        let shared = sources.home.is_some();
        if let Some(home) = sources.home {
            if self.identity.outside != self.caller {
                give(home.handle.as_fd(), self.identity.outside)
                    .map_err(|errno| unusable(&home.path, HOME, errno))?;
            }
            self.bind(&mut shown, &home, HOME, false, self.labels.ours(Relabel::Shared))?;
            folders.push((HOME.into(), home, true));
        }
        if let Some((files, mode)) = sources.files {
            self.point(&folders, FILES.as_bytes(), true, true)?;
            let read_only = mode == MountMode::Ro;
            if read_only {
                match self.readable(&files) {
                    // Nobody asked for them by name.
                    Err(error) if !spec.managed_files_origin.is_demand() => {
                        shown.notes.push(error.to_string())
                    }
                    readable => readable?,
                }
            } else {
                self.writable(&files)?;
            }
            self.bind(&mut shown, &files, FILES, read_only, self.labels.ours(Relabel::Shared))?;
            if shared {
                shown.guarded.push(FILES.to_owned());
            }
            folders.push((FILES.into(), files, !read_only));
        }
        if let Some((workspace, mode)) = sources.workspace {
            self.folder(&mut shown, &workspace, WORKSPACE, mode, spec)?;
            folders.push((WORKSPACE.into(), workspace, mode == MountMode::Rw));
        }
        for mount in sources.mounts {
            let target = text(&mount.target, "target")?;
            self.point(&folders, &mount.target, mount.source.directory, false)?;
            self.folder(&mut shown, &mount.source, target, mount.mode, spec)?;
            if shared && target.starts_with(HOME) {
                shown.guarded.push(target.to_owned());
            }
            folders.push((mount.target.clone(), mount.source, mount.mode == MountMode::Rw));
        }
        Ok(shown)
    }

    /// A folder or file of the user's, with what in it runs code on the host later kept as it is.
    fn folder(
        &self,
        shown: &mut Shown,
        source: &Judged,
        target: &str,
        mode: MountMode,
        spec: &SandboxSpec,
    ) -> Result<()> {
        let relabel = self.labels.users(&source.path, source.handle.as_fd(), spec.selinux_relabel)?;
        let globs = &spec.workspace_protect;
        if mode == MountMode::Ro {
            return self.bind(shown, source, target, true, relabel);
        }
        self.writable(source)?;
        self.bind(shown, source, target, false, relabel)?;
        if !source.directory || globs.is_empty() {
            return Ok(());
        }
        let watched = Watched::begin(&source.path, source.handle.as_fd(), target.as_bytes(), globs)
            .map_err(|error| unreadable(&source.path, &error))?;
        let found = watched.survey().found();
        let protected = protect::matches(source.handle.as_fd(), &source.path, globs, found)?;
        shown.watched.push(watched);
        for (paths, read_only) in [(&protected.above, false), (&protected.matches, true)] {
            for path in paths {
                let inside = format!("{target}/{}", text(path, "protected path")?);
                let host = source.path.join(std::ffi::OsStr::from_bytes(path));
                // Another sandbox may write to the folder, and put a link in its place before the engine looks.
                let found = points::look(source.handle.as_fd(), path)
                    .map_err(|errno| unreadable(&host, &errno.into()))?;
                shown.binds.push(self.bound(&host, &inside, read_only, Relabel::Not)?);
                shown.expected.push((inside, found.st_dev, found.st_ino));
            }
        }
        Ok(())
    }

    /// Sees that the sandbox's user can write to a folder at all.
    fn writable(&self, source: &Judged) -> Result<()> {
        if self.identity.outside != self.caller && source.uid == self.caller.0 && self.caller.0 == 0 {
            let path = source.path.display();
            let (uid, gid) = self.identity.outside;
            return Err(Error::Refused(
                Diagnosis::new(
                    "mount-owned-by-root",
                    format!(
                        "the {} {path} is to be writable and belongs to root, who is nobody inside",
                        source.role
                    ),
                )
                .cause(format!("the sandbox's user is {uid}:{gid} outside"))
                .fix(format!("chown -R {uid}:{gid} {path}, show it read-only, or use --backend namespaces")),
            ));
        }
        Ok(())
    }

    /// Sees that the sandbox's user can look into the managed files, which would look empty else.
    fn readable(&self, source: &Judged) -> Result<()> {
        if self.identity.outside == self.caller {
            return Ok(());
        }
        let path = source.path.display();
        let found =
            rustix::fs::fstat(&source.handle).map_err(|errno| unusable(&source.path, FILES, errno))?;
        let (uid, gid) = self.identity.outside;
        let wanted = match (found.st_uid == uid, found.st_gid == gid) {
            (true, _) => 0o500,
            (false, true) => 0o050,
            (false, false) => 0o005,
        };
        if found.st_mode & wanted == wanted {
            return Ok(());
        }
        Err(Error::Refused(
            Diagnosis::new(
                "managed-files-closed",
                format!("the managed files folder {path} is closed to the sandbox's user ({uid}:{gid})"),
            )
            .cause("it can be opened by itself only where the data directory is closed to everybody else")
            .fix(format!("chmod 755 {path}, or set `managed_files_mount = \"none\"`")),
        ))
    }

    fn bind(
        &self,
        shown: &mut Shown,
        source: &Judged,
        target: &str,
        read_only: bool,
        relabel: Relabel,
    ) -> Result<()> {
        shown.binds.push(self.bound(&source.path, target, read_only, relabel)?);
        shown.expected.push((target.to_owned(), source.device, source.inode));
        Ok(())
    }

    /// A path of ours in the engine's words.
    ///
    /// # Errors
    /// `workspace-not-visible`, `path-not-utf8`.
    pub fn bound(&self, source: &Path, target: &str, read_only: bool, relabel: Relabel) -> Result<Bind> {
        let seen = self.paths.of(source).ok_or_else(|| invisible(source))?;
        text(seen.as_os_str().as_bytes(), "path")?;
        Ok(Bind { source: seen, target: target.to_owned(), read_only, relabel })
    }

    /// Makes a mount point that lies in a folder which is shown before.
    fn point(
        &self,
        folders: &[(Vec<u8>, Judged, bool)],
        target: &[u8],
        directory: bool,
        displace: bool,
    ) -> Result<()> {
        let within = |place: &[u8]| {
            target.strip_prefix(place).and_then(|rest| rest.strip_prefix(b"/")).map(<[u8]>::to_vec)
        };
        let holder = folders
            .iter()
            .filter_map(|(place, judged, rw)| within(place).map(|rest| (place.len(), judged, rest, *rw)))
            .max_by_key(|(length, ..)| *length);
        let Some((_, judged, rest, writable)) = holder else { return Ok(()) };
        let owner = (self.identity.outside != self.caller).then_some(self.identity.outside);
        let points = Points { owner, displace: displace && writable };
        points.ensure(judged.handle.as_fd(), &rest, directory).map_err(|errno| {
            unusable(
                &judged.path.join(std::ffi::OsStr::from_bytes(&rest)),
                &String::from_utf8_lossy(target),
                errno,
            )
        })
    }
}

fn text<'t>(bytes: &'t [u8], what: &str) -> Result<&'t str> {
    std::str::from_utf8(bytes).map_err(|_| {
        let shown = String::from_utf8_lossy(bytes).escape_debug().to_string();
        Error::Refused(
            Diagnosis::new(
                "path-not-utf8",
                format!("the {what} {shown} is not UTF-8, which container engines need"),
            )
            .fix("rename it, or use --backend namespaces"),
        )
    })
}

fn invisible(path: &Path) -> Error {
    let path = path.display();
    Error::Refused(
        Diagnosis::new("mount-not-visible", format!("the container engine cannot see {path}"))
            .cause("Moltis runs in a container, and no mount of that container holds it")
            .fix(format!(
                "mount it into Moltis's container, under the same path (docker run -v {path}:{path} …)"
            )),
    )
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "workspace-unreadable",
            format!("{} cannot be searched for what is to be protected", path.display()),
        )
        .cause(error),
    )
}

fn unusable(path: &Path, target: &str, errno: rustix::io::Errno) -> Error {
    Error::Unavailable(
        Diagnosis::new("mount-point-unusable", format!("nothing can be mounted at {target}"))
            .cause(format!("{}: {errno}", path.display()))
            .fix("remove what stands in its place, or make it a directory"),
    )
}
