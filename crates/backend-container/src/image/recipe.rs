//! What an image of ours is made of, and the Dockerfile that says so.

use std::collections::BTreeMap;

use moltis_sandbox::{Diagnosis, Error, Result};
use sha2::{Digest, Sha256};

use super::{Manager, label, packages};
use crate::engine::{BuildSpec, Image};

/// Longest line of a Dockerfile that engines read is 64 KiB; this leaves room for our own words.
const MAX_LINE: usize = 60_000;

/// Installs the packages that are its arguments. When that fails it says why, as far as it can find out, in lines that
/// [`Markers`](super::markers::Markers) reads.
const APT: &str = r#"
export DEBIAN_FRONTEND=noninteractive
get() { apt-get -q -o APT::Cmd::Pattern-Only=true -o Acquire::Retries=3 "$@"; }
lists() { get -o APT::Update::Error-Mode=any update; }
install() { get -y --no-install-recommends install -- "$@"; }
could() { get -y -s --no-install-recommends install -- "$1" >/dev/null 2>&1; }
is_whole() { case "$(dpkg-query -W -f '${db:Status-Status}' -- "$1" 2>/dev/null)" in half-*|unpacked|triggers-*) return 1 ;; esac; }
clean() { rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/log/apt /var/log/dpkg.log; }
"#;

const APK: &str = r#"
lists() { apk update; }
install() { apk add -- "$@"; }
could() { apk add --simulate -- "$1" >/dev/null 2>&1; }
is_whole() { true; }
clean() { rm -rf /var/cache/apk/* /etc/apk/cache/*; }
"#;

// Its fifth version did not know `--` at first; no name that it is given begins with a hyphen.
const DNF: &str = r#"
end=--
dnf -q repoquery --installed -- bash >/dev/null 2>&1 || end=
lists() { dnf -y makecache; }
install() { dnf -y --setopt=install_weak_deps=False --setopt=tsflags=nodocs --allowerasing install $end "$@"; }
could() { test -n "$(dnf -q repoquery --whatprovides "$1" 2>/dev/null; dnf -q repoquery $end "$1" 2>/dev/null)"; }
is_whole() { true; }
clean() { dnf clean all; rm -rf /var/cache/dnf /var/cache/libdnf5 /var/log/dnf*; }
"#;

/// What all of them do.
const MAIN: &str = r#"
say() { printf 'moltis-build: %s\n' "$*"; }
see_room() {
  df -Pk / 2>/dev/null | while read -r _ _ _ free _; do
    case "$free" in ''|*[!0-9]*) ;; *) if [ "$free" -lt 32768 ]; then say full; fi ;; esac
  done
}
see_each() {
  for package in "$@"; do
    if ! could "$package"; then say package "$package"
    elif ! is_whole "$package"; then say package "$package"; fi
  done
}
cd /
if ! lists; then see_room; say lists; exit 1; fi
if ! install "$@"; then see_room; see_each "$@"; exit 1; fi
clean >/dev/null 2>&1
exit 0
"#;

fn script(manager: Manager) -> String {
    let own = match manager {
        Manager::Apt => APT,
        Manager::Apk => APK,
        Manager::Dnf => DNF,
    };
    format!("{}{}", own.trim_start(), MAIN.trim_end())
}

/// What decides what an image of ours has in it: the base by its id, what is to be installed as it was written, and how
/// that is done.
#[derive(Clone, Debug)]
pub struct Recipe<'a> {
    /// The base as it was named.
    pub base: &'a str,
    /// The base as the engine has it.
    pub image: &'a Image,
    /// Packages and groups, as they were written.
    pub packages: &'a [String],
    /// First part of the tag's name.
    pub prefix: &'a str,
}

impl Recipe<'_> {
    /// SHA-256 over all of it, in hexadecimal. Scripts and groups count as a whole, so that nothing need be known of
    /// what is in the base.
    pub fn hash(&self) -> String {
        self.hash_over(&self.image.id)
    }

    /// The same, where the base is not known by its id: then by its name.
    pub fn hash_by_name(&self) -> String {
        self.hash_over(self.base)
    }

    fn hash_over(&self, base: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("{base}\n{}\n{:?}\n", self.image.arch, self.packages));
        for manager in Manager::ALL {
            hash.update(script(manager));
        }
        hash.update(packages::groups_text());
        hex(&hash.finalize())
    }

    /// The tag.
    pub fn tag(&self) -> String {
        format!("{}:{}", repository(self.prefix), &self.hash()[..32])
    }

    /// What to build, for the manager that was found in the base. `from` is what the engine knows the base by; `nonce` is
    /// empty, or something new where no step may come from the engine's cache.
    ///
    /// # Errors
    /// `package-invalid`; `packages-too-many`.
    pub fn build(&self, manager: Manager, instance: &str, from: &str, nonce: &str) -> Result<Build> {
        let packages = packages::spelled_out(self.packages, manager)?;
        let script = script(manager);
        let name = format!("moltis{nonce}");
        // A list of arguments: no shell reads the names.
        let argv: Vec<&str> = ["/bin/sh", "-c", &script, &name]
            .into_iter()
            .chain(packages.iter().map(String::as_str))
            .collect();
        let argv = serde_json::to_string(&argv).unwrap_or_default();
        if argv.len() > MAX_LINE {
            let message = format!("{} packages are more than fit into one build", packages.len());
            return Err(Error::Invalid(
                Diagnosis::new("packages-too-many", message).fix("leave some of them out of `packages`"),
            ));
        }
        let mut dockerfile = format!("FROM {from}\n");
        if !matches!(self.image.user.as_str(), "" | "0" | "root" | "0:0" | "root:root") {
            dockerfile.push_str("USER 0:0\n");
        }
        dockerfile.push_str(&format!("RUN {argv}\nHEALTHCHECK NONE\n"));
        let labels: BTreeMap<_, _> = [
            (label::IMAGE, "1".to_owned()),
            (label::INSTANCE, instance.to_owned()),
            (label::BASE, self.base.to_owned()),
            (label::BASE_ID, self.image.id.clone()),
            (label::PACKAGES, self.packages.join(" ")),
            (label::INSTALLED, packages.join(" ")),
            (label::RECIPE, self.hash_by_name()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        Ok(Build { spec: BuildSpec { dockerfile, tag: self.tag(), labels }, packages })
    }
}

/// What to build, and what is installed by it.
#[derive(Clone, Debug)]
pub struct Build {
    /// For the engine.
    pub spec: BuildSpec,
    /// The packages, groups spelled out.
    pub packages: Vec<String>,
}

/// The name under which all our images lie.
pub fn repository(prefix: &str) -> String {
    format!("localhost/{prefix}-sandbox")
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image { id: "sha256:1".into(), arch: "x86_64".into(), ..Image::default() }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_tag_follows_what_decides_what_is_in_it() {
        let packages = names(&["git"]);
        let image = image();
        let recipe = Recipe { base: "a", image: &image, packages: &packages, prefix: "moltis" };
        let tag = recipe.tag();
        assert!(tag.starts_with("localhost/moltis-sandbox:") && tag.len() == 57, "{tag}");
        assert_eq!(Recipe { base: "b", ..recipe.clone() }.tag(), tag, "what it is called does not count");
        let others = [
            Recipe { packages: &[], ..recipe.clone() }.tag(),
            Recipe { packages: &names(&["git", "jq"]), ..recipe.clone() }.tag(),
            Recipe { image: &Image { id: "sha256:2".into(), ..image.clone() }, ..recipe.clone() }.tag(),
            Recipe { image: &Image { arch: "aarch64".into(), ..image.clone() }, ..recipe.clone() }.tag(),
        ];
        assert!(others.iter().all(|other| *other != tag));
    }

    #[test]
    fn no_name_is_pasted_into_a_command() {
        let packages = names(&["@python", "jq"]);
        let image = Image { user: "app".into(), ..image() };
        let recipe = Recipe { base: "a", image: &image, packages: &packages, prefix: "moltis" };
        let build = recipe.build(Manager::Apt, "i", &image.id, "").unwrap();
        let lines: Vec<_> = build.spec.dockerfile.lines().collect();
        assert_eq!(
            (lines[0], lines[1], lines[3], lines.len()),
            ("FROM sha256:1", "USER 0:0", "HEALTHCHECK NONE", 4)
        );
        let argv: Vec<String> = serde_json::from_str(lines[2].strip_prefix("RUN ").unwrap()).unwrap();
        assert_eq!(argv[4..], build.packages);
        assert!(!argv[2].contains("jq"));
        assert_eq!(build.spec.labels[label::PACKAGES], "@python jq");
        assert_eq!(build.spec.labels[label::INSTALLED], "python3 python3-dev python3-pip python3-venv jq");
        let bad = names(&["a; rm"]);
        let error =
            Recipe { packages: &bad, ..recipe.clone() }.build(Manager::Apt, "i", "x", "").unwrap_err();
        assert_eq!(error.code(), "package-invalid");
        let many: Vec<_> = (0..600).map(|number| format!("{}{number}", "p".repeat(120))).collect();
        let error = Recipe { packages: &many, ..recipe }.build(Manager::Apt, "i", "x", "").unwrap_err();
        assert_eq!(error.code(), "packages-too-many");
    }

    #[test]
    fn the_scripts_are_right_for_a_shell() {
        for manager in Manager::ALL {
            let checked = std::process::Command::new("/bin/sh").args(["-n", "-c", &script(manager)]).output();
            let checked = checked.unwrap();
            assert!(checked.status.success(), "{manager:?}: {}", String::from_utf8_lossy(&checked.stderr));
        }
    }
}
