//! The images that tests start containers from, made on this machine: there may be no registry.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::ENGINES;
use crate::command::{Scratch, kept, shown};

/// What they are called.
const REPOSITORY: &str = "localhost/sandbox-base";

/// Label that says how an image was made; one that says otherwise is made anew.
const LABEL: &str = "org.moltis.test.recipe";

/// Recipe of the small one: a static busybox and nothing else.
const BUSYBOX: &str = "busybox-2";
/// Recipe of the large one: the smallest Debian with what the cases run.
const DEBIAN: &str = "debian-1";
/// What is added to the smallest Debian.
const DEBIAN_PACKAGES: &str = "ca-certificates,curl,procps,python3";

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image: its tag, its recipe and its shell.
struct Made {
    tag: &'static str,
    recipe: &'static str,
    shell: &'static str,
}

const IMAGES: [Made; 2] = [
    Made { tag: "busybox", recipe: BUSYBOX, shell: "/bin/sh" },
    Made { tag: "debian", recipe: DEBIAN, shell: "/bin/bash" },
];

/// Sees that there are archives, kept in `cache`, and that each engine has each image.
pub fn make(cache: &Path) -> Result<(), String> {
    for image in &IMAGES {
        image.archived(cache)?;
        for engine in ENGINES {
            image.put(cache, &|| Command::new(engine))?;
        }
    }
    Ok(())
}

/// Puts the images of the kept archives into one engine; says whether there are any.
pub fn fill(engine: &dyn Fn() -> Command) -> Result<bool, String> {
    let cache = super::cache("images")?;
    let there: Vec<&Made> = IMAGES.iter().filter(|image| image.archive(&cache).exists()).collect();
    there.iter().try_for_each(|image| image.put(&cache, engine))?;
    Ok(!there.is_empty())
}

impl Made {
    fn archive(&self, cache: &Path) -> PathBuf {
        cache.join(format!("{}.tar", self.recipe))
    }

    /// Makes the archive unless it is there.
    fn archived(&self, cache: &Path) -> Result<(), String> {
        let archive = self.archive(cache);
        if archive.exists() {
            return Ok(());
        }
        println!("making {}", archive.display());
        // Whole or not at all: a run may be broken off.
        let new = cache.join(format!("{}-{}.tar", self.recipe, std::process::id()));
        let made = if self.tag == "busybox" { busybox(&new) } else { debian(&new) };
        let kept = made.and_then(|()| fs::rename(&new, &archive).map_err(|e| e.to_string()));
        kept.map_err(|why| {
            let _ = fs::remove_file(&new);
            format!("{REPOSITORY}:{}: {why}", self.tag)
        })
    }

    /// Puts it into an engine that does not have it, through its input: the archive may lie where only root can read.
    fn put(&self, cache: &Path, engine: &dyn Fn() -> Command) -> Result<(), String> {
        let name = format!("{REPOSITORY}:{}", self.tag);
        let known = inspected(engine(), &name)?;
        if known.as_ref().is_some_and(|(_, label)| label == self.recipe) {
            return Ok(());
        }
        let archive = self.archive(cache);
        let file = File::open(&archive).map_err(|e| format!("{}: {e}", archive.display()))?;
        let mut command = engine();
        command.arg("import");
        let changes = [
            format!("CMD [\"{}\"]", self.shell),
            format!("ENV {PATH}"),
            format!("LABEL {LABEL}={}", self.recipe),
        ];
        for change in changes {
            command.args(["--change", &change]);
        }
        let ended = kept(command.args(["-", &name]), Some(file.into()), Duration::from_secs(900))?;
        if !ended.good() {
            return Err(format!("{name}: {}", ended.all()));
        }
        if let Some((id, _)) = known {
            // While a container is made of the old one it stays.
            let _ = kept(engine().args(["rmi", &id]), None, Duration::from_secs(60));
        }
        Ok(())
    }
}

/// Id and recipe of an image that an engine has.
fn inspected(mut command: Command, name: &str) -> Result<Option<(String, String)>, String> {
    let format = format!("{{{{.Id}}}} {{{{index .Config.Labels \"{LABEL}\"}}}}");
    command.args(["image", "inspect", "--format", &format, name]);
    let ended = kept(&mut command, None, Duration::from_secs(60))?;
    let text = ended.text();
    let mut words = text.split_whitespace();
    let known = words.next().map(|id| (id.to_owned(), words.next().unwrap_or_default().to_owned()));
    Ok(known.filter(|_| ended.good()))
}

/// A root of one static program under all its names.
fn busybox(archive: &Path) -> Result<(), String> {
    let say = |e: std::io::Error| e.to_string();
    let scratch = Scratch::new("busybox")?;
    let root = scratch.0.join("root");
    for folder in
        ["bin", "usr/bin", "etc", "tmp", "var/tmp", "root", "home", "workspace", "proc", "sys", "dev", "run"]
    {
        fs::create_dir_all(root.join(folder)).map_err(say)?;
    }
    for folder in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o1777)).map_err(say)?;
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).map_err(say)?;
    let names = kept(Command::new("/bin/busybox").arg("--list"), None, Duration::from_secs(10))?;
    for name in names.text().lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(name)).map_err(say)?;
    }
    symlink("../../bin/busybox", root.join("usr/bin/env")).map_err(say)?;
    let passwd = "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
    fs::write(root.join("etc/passwd"), passwd).map_err(say)?;
    fs::write(root.join("etc/group"), "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n").map_err(say)?;
    run(Command::new("tar")
        .arg("--owner=0")
        .arg("--group=0")
        .arg("-C")
        .arg(&root)
        .arg("-cf")
        .arg(archive)
        .arg("."))
}

/// The smallest Debian of the machine's own release, from the machine's own sources.
fn debian(archive: &Path) -> Result<(), String> {
    let release = fs::read_to_string("/etc/os-release").map_err(|e| format!("/etc/os-release: {e}"))?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.ok_or("/etc/os-release names no release")?.trim_matches('"').to_owned();
    let sources = sources()?;
    let mirror = sources.ok_or("no Debian mirror in the package sources")?;
    let include = format!("--include={DEBIAN_PACKAGES}");
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=minbase", &include, &suite]).arg(archive).arg(mirror);
    run(&mut command)
}

/// The machine's Debian mirror.
pub fn sources() -> Result<Option<String>, String> {
    let mut files = vec!["/etc/apt/sources.list".into()];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    Ok(files.iter().filter_map(|file| fs::read_to_string(file).ok()).find_map(|text| mirror(&text)))
}

/// The first address in a file of package sources, of either form, that is of Debian's main archive.
fn mirror(text: &str) -> Option<String> {
    let lines = text.lines().filter(|line| line.starts_with("URIs:") || line.starts_with("deb "));
    lines
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches('/'))
        .find(|word| word.contains("://") && word.ends_with("/debian"))
        .map(str::to_owned)
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match shown(command, Duration::from_secs(900))? {
        0 => Ok(()),
        code => Err(format!("{program} ended with {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::mirror;

    #[test]
    fn the_mirror_is_found_in_both_forms() {
        let new = "Types: deb\n# http://old.example/debian\nURIs: http://mirror.example/debian/\nSuites: x\n";
        assert_eq!(mirror(new).as_deref(), Some("http://mirror.example/debian"));
        let old = "deb [signed-by=/k] http://a.example/debian-security x main\ndeb http://b.example/debian x main\n";
        assert_eq!(mirror(old).as_deref(), Some("http://b.example/debian"));
        assert_eq!(mirror("# nothing\n"), None);
    }
}
