//! A kernel, its modules and a root file system, made of Debian's packages by `mmdebstrap` and `mke2fs`: no loop device, no
//! mount, and no root where ids can be given away in a user namespace.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_sandbox::{BuildProgress, BuildSink, Diagnosis, Prepared};

use crate::disk::Store;
use crate::error::{Error, Result, long};
use crate::{Config, initrd, program};

const SCRIPT: &str = include_str!("rootfs.sh");

/// Debian's release where this machine has none of its own.
const RELEASE: &str = "bookworm";

/// Size of the root file system: what is not used takes no room.
const SIZE: &str = "4G";

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// What is installed besides the kernel.
const PACKAGES: &str = "apt,bash,build-essential,ca-certificates,curl,e2fsprogs,file,git,iproute2,jq,kmod,less,lz4,netbase,\
                        nodejs,openssh-client,procps,python3,python3-pip,python3-venv,ripgrep,unzip,xz-utils";

/// Makes what is missing of what the configuration names. A file that is there is never replaced.
///
/// # Errors
/// [`Error::Missing`] without the programs that it takes, [`Error::Program`] with what they said, [`Error::Folder`].
pub async fn make(config: &Config, progress: &BuildSink) -> Result<Vec<Prepared>> {
    let wanted = [("kernel", config.kernel.clone()), ("rootfs", config.rootfs.clone())];
    let prepared = |new: &[bool; 2]| {
        let each = wanted
            .iter()
            .zip(new)
            .map(|((_, path), new)| Prepared { name: path.display().to_string(), new: *new });
        each.collect()
    };
    let absent = [&wanted[0], &wanted[1]].map(|(_, path)| !path.exists());
    if absent == [false, false] {
        return Ok(prepared(&absent));
    }
    let mmdebstrap = needs("mmdebstrap", "mmdebstrap")?;
    let store = {
        let folder = config.cache_dir.clone();
        long(move || Store::make(&folder)).await?
    };
    // Files of other ids, which an ordinary user makes in a namespace, are removed by the script itself.
    let scratch = store.draft_folder("build")?;
    let archive = scratch.0.join("tree.tar");
    progress.tell(BuildProgress::Step("installing Debian's packages (mmdebstrap)".to_owned())).await;
    let (release, sources) = sources();
    let mut arguments: Vec<OsString> = ["--quiet", "--variant=minbase"].map(OsString::from).into();
    arguments.push(format!("--include={PACKAGES},{}", kernel_package()).into());
    arguments.push(release.into());
    arguments.push(archive.clone().into());
    arguments.extend(sources.into_iter().map(PathBuf::into_os_string));
    ran("mmdebstrap", &mmdebstrap, arguments, progress).await?;
    progress.tell(BuildProgress::Step("making the root file system (mke2fs)".to_owned())).await;
    let root = rustix::process::geteuid().is_root();
    let (shell, mut arguments): (PathBuf, Vec<OsString>) = if root {
        (needs("sh", "dash")?, Vec::new())
    } else {
        let words = ["--user", "--map-root-user", "--map-auto", "sh"];
        (needs("unshare", "util-linux")?, words.map(OsString::from).into())
    };
    arguments.extend(["-euc".into(), SCRIPT.into(), "sh".into(), archive.into()]);
    arguments.extend([scratch.0.clone().into(), SIZE.into()]);
    ran("mke2fs", &shell, arguments, progress).await?;
    let (folder, config) = (scratch.0.clone(), config.clone());
    long(move || {
        if absent[0] {
            let mut modules = OsString::from(&config.kernel);
            modules.push(".modules");
            // Before the kernel, which says that both are there.
            let packed = folder.join("modules.cpio");
            pack(&folder.join("modules"), &packed).map_err(Error::folder(&packed))?;
            place(&packed, Path::new(&modules))?;
            place(&folder.join("kernel"), &config.kernel)?;
        }
        if absent[1] {
            place(&folder.join("rootfs"), &config.rootfs)?;
        }
        Ok(())
    })
    .await?;
    drop(scratch);
    Ok(prepared(&absent))
}

fn kernel_package() -> &'static str {
    if std::env::consts::ARCH == "aarch64" { "linux-image-cloud-arm64" } else { "linux-image-cloud-amd64" }
}

/// This machine's release and where it gets packages from, if it is Debian.
fn sources() -> (String, Vec<PathBuf>) {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let release = field("VERSION_CODENAME").filter(|_| field("ID").as_deref() == Some("debian"));
    let Some(release) = release else { return (RELEASE.to_owned(), Vec::new()) };
    let files = ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"].map(PathBuf::from);
    let used = |file: &PathBuf| fs::metadata(file).is_ok_and(|found| found.len() > 0);
    (release, files.into_iter().filter(used).collect())
}

fn needs(name: &'static str, package: &str) -> Result<PathBuf> {
    program::find(name).ok_or_else(|| {
        let what =
            Diagnosis::new("firecracker-build-needs", format!("there is no `{name}`, which the build takes"));
        Error::Missing(what.fix(format!("install it: `sudo apt-get install {package}`")))
    })
}

async fn ran(
    name: &'static str,
    program: &Path,
    arguments: Vec<OsString>,
    progress: &BuildSink,
) -> Result<()> {
    let said = tokio::select! {
        said = program::run(program, arguments, b"", LIMIT) => said,
        () = progress.closed() => Err(io::Error::other("nobody waits for it any more")),
    };
    let said = said.map_err(|cause| Error::Program { program: name, said: cause.to_string() })?;
    if said.good { Ok(()) } else { Err(Error::Program { program: name, said: said.words() }) }
}

/// Moves a file to where it is wanted, whole or not at all; never over another one. Blocks.
fn place(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(Error::folder(folder))?;
    }
    let mut draft = OsString::from(to);
    draft.push(format!(".new-{}", std::process::id()));
    let draft = PathBuf::from(draft);
    let placed = fs::rename(from, &draft).or_else(|_| {
        let mut file = File::create_new(&draft)?;
        crate::disk::copy_of(&mut File::open(from)?, &mut file)
    });
    let placed = placed
        .and_then(|()| fs::set_permissions(&draft, Permissions::from_mode(0o644)))
        .and_then(|()| fs::hard_link(&draft, to));
    let _ = fs::remove_file(&draft);
    placed.map_err(Error::folder(to))
}

fn pack(folder: &Path, to: &Path) -> io::Result<()> {
    let mut names: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    let mut archive = initrd::Archive::new(File::create_new(to)?);
    for name in names {
        let content = fs::read(folder.join(&name))?;
        archive.file(&format!("modules/{}", name.to_string_lossy()), &content)?;
    }
    archive.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_there_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let mut config = Config::new(temp.path().join("data"));
        config.kernel = temp.path().join("kernel");
        config.rootfs = temp.path().join("rootfs");
        for file in [&config.kernel, &config.rootfs] {
            fs::write(file, "theirs").unwrap();
        }
        let made = make(&config, &BuildSink::ignore()).await.unwrap();
        assert_eq!(made.iter().map(|one| one.new).collect::<Vec<_>>(), [false, false]);
        assert!(!config.data_dir.exists());
        fs::write(temp.path().join("new"), "ours").unwrap();
        assert!(place(&temp.path().join("new"), &config.rootfs).is_err());
        assert_eq!(fs::read_to_string(&config.rootfs).unwrap(), "theirs");
    }

    #[test]
    fn modules_are_packed_in_the_order_of_their_names() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("m")).unwrap();
        for name in ["102-b.ko", "101-a.ko"] {
            fs::write(temp.path().join("m").join(name), name).unwrap();
        }
        let to = temp.path().join("cpio");
        pack(&temp.path().join("m"), &to).unwrap();
        let text = String::from_utf8(fs::read(&to).unwrap()).unwrap();
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("modules/101-a.ko") < at("modules/102-b.ko"));
        assert!(at("modules/102-b.ko") < at("TRAILER!!!"));
    }
}
