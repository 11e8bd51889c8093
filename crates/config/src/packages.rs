//! Packages and named groups of them, by what each distribution calls them.

use moltis_sandbox::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::value::text::Package;
use crate::value::{Context, Text};

/// What installs packages in an image, or on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// `apt-get`: Debian, Ubuntu.
    Apt,
    /// `apk`: Alpine.
    Apk,
    /// `dnf`: Fedora, RHEL and their kin.
    Dnf,
}

impl Manager {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Apt, Self::Apk, Self::Dnf];

    /// Where each is, in the order in which they are looked for.
    pub const PLACES: [(&str, Self); 4] = [
        ("/usr/bin/apt-get", Self::Apt),
        ("/sbin/apk", Self::Apk),
        ("/usr/bin/apk", Self::Apk),
        ("/usr/bin/dnf", Self::Dnf),
    ];

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Apk => "apk",
            Self::Dnf => "dnf",
        }
    }
}

/// A group, with what is in it for each manager.
struct Group {
    name: &'static str,
    apt: &'static [&'static str],
    apk: &'static [&'static str],
    dnf: &'static [&'static str],
}

impl Group {
    fn of(&self, manager: Manager) -> &'static [&'static str] {
        match manager {
            Manager::Apt => self.apt,
            Manager::Apk => self.apk,
            Manager::Dnf => self.dnf,
        }
    }
}

/// The groups whose names the configuration knows. Whoever changes one changes the tag of every image, since what is in
/// them is part of it.
const GROUPS: [Group; 7] = [
    Group {
        name: "toolbox",
        apt: &[
            "bash",
            "build-essential",
            "ca-certificates",
            "curl",
            "diffutils",
            "file",
            "findutils",
            "gawk",
            "git",
            "grep",
            "gzip",
            "jq",
            "less",
            "nodejs",
            "openssh-client",
            "patch",
            "procps",
            "python3",
            "ripgrep",
            "sed",
            "tar",
            "tree",
            "unzip",
            "wget",
            "xz-utils",
            "zip",
        ],
        apk: &[
            "bash",
            "build-base",
            "ca-certificates",
            "coreutils",
            "curl",
            "diffutils",
            "file",
            "findutils",
            "gawk",
            "git",
            "grep",
            "gzip",
            "jq",
            "less",
            "nodejs",
            "openssh-client",
            "patch",
            "procps",
            "python3",
            "ripgrep",
            "sed",
            "tar",
            "tree",
            "unzip",
            "wget",
            "xz",
            "zip",
        ],
        dnf: &[
            "bash",
            "ca-certificates",
            "curl",
            "diffutils",
            "file",
            "findutils",
            "gawk",
            "gcc",
            "gcc-c++",
            "git",
            "grep",
            "gzip",
            "jq",
            "less",
            "make",
            "nodejs",
            "openssh-clients",
            "patch",
            "procps-ng",
            "python3",
            "sed",
            "tar",
            "tree",
            "unzip",
            "wget",
            "xz",
            "zip",
        ],
    },
    Group {
        name: "build",
        apt: &[
            "autoconf",
            "automake",
            "build-essential",
            "cmake",
            "gdb",
            "libtool",
            "ninja-build",
            "pkg-config",
            "strace",
        ],
        apk: &[
            "autoconf",
            "automake",
            "build-base",
            "cmake",
            "gdb",
            "libtool",
            "pkgconf",
            "samurai",
            "strace",
        ],
        dnf: &[
            "autoconf",
            "automake",
            "cmake",
            "gcc",
            "gcc-c++",
            "gdb",
            "libtool",
            "make",
            "ninja-build",
            "pkgconf-pkg-config",
            "strace",
        ],
    },
    Group {
        name: "database",
        apt: &["default-mysql-client", "postgresql-client", "redis-tools", "sqlite3"],
        apk: &["mariadb-client", "postgresql-client", "redis", "sqlite"],
        dnf: &["mariadb", "postgresql", "redis", "sqlite"],
    },
    Group {
        name: "java",
        apt: &["default-jdk-headless", "maven"],
        apk: &["maven", "openjdk21-jdk"],
        dnf: &["java-devel", "maven"],
    },
    Group {
        name: "media",
        apt: &[
            "ffmpeg",
            "fonts-dejavu-core",
            "fonts-liberation",
            "imagemagick",
            "libimage-exiftool-perl",
            "poppler-utils",
        ],
        apk: &["exiftool", "ffmpeg", "font-dejavu", "font-liberation", "imagemagick", "poppler-utils"],
        dnf: &[
            "ImageMagick",
            "dejavu-sans-fonts",
            "ffmpeg-free",
            "liberation-fonts",
            "perl-Image-ExifTool",
            "poppler-utils",
        ],
    },
    Group {
        name: "network",
        apt: &["curl", "dnsutils", "iproute2", "iputils-ping", "netcat-openbsd", "openssl", "whois"],
        apk: &["bind-tools", "curl", "iproute2", "iputils", "netcat-openbsd", "openssl", "whois"],
        dnf: &["bind-utils", "curl", "iproute", "iputils", "nmap-ncat", "openssl", "whois"],
    },
    Group {
        name: "python",
        apt: &["python3", "python3-dev", "python3-pip", "python3-venv"],
        apk: &["py3-pip", "python3", "python3-dev"],
        dnf: &["python3", "python3-devel", "python3-pip"],
    },
];

/// Sees that each of these is the name of a package or of a group.
///
/// # Errors
/// `package-invalid`, naming it, with the nearest group where there is one.
pub fn see(written: &[String]) -> Result<()> {
    for name in written {
        if let Err(error) = Package::parse(name, &Context::default()) {
            let mut diagnosis = error.diagnosis(format!("`packages`, {name:?}"));
            diagnosis.code = "package-invalid".into();
            let usual = "write names of packages, and groups such as @python, in `packages`";
            diagnosis.fix.get_or_insert_with(|| usual.to_owned());
            return Err(Error::Invalid(diagnosis));
        }
    }
    Ok(())
}

/// The packages that these names and groups stand for, each once, in this order.
///
/// # Errors
/// As [`see`].
pub fn spelled_out(written: &[String], manager: Manager) -> Result<Vec<String>> {
    see(written)?;
    let mut packages: Vec<String> = Vec::new();
    for name in written {
        let group = name.strip_prefix('@').and_then(|name| GROUPS.iter().find(|group| group.name == name));
        let names = group.map_or(vec![name.as_str()], |group| group.of(manager).to_vec());
        for name in names {
            if !packages.iter().any(|known| known == name) {
                packages.push(name.to_owned());
            }
        }
    }
    Ok(packages)
}

/// Everything that groups stand for, as text, for a hash.
pub fn groups_text() -> String {
    let mut text = String::new();
    for group in &GROUPS {
        for manager in Manager::ALL {
            text.push_str(&format!("{} {manager:?} {:?}\n", group.name, group.of(manager)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::value::text::PACKAGE_GROUPS;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn every_group_of_the_configuration_is_known_to_every_manager() {
        for (name, _) in PACKAGE_GROUPS {
            for manager in Manager::ALL {
                let packages = spelled_out(&[format!("@{name}")], manager).unwrap();
                assert!(packages.len() > 1 && packages.iter().all(|name| !name.starts_with('@')), "{name}");
                see(&packages).unwrap();
            }
        }
        assert_eq!(GROUPS.len(), PACKAGE_GROUPS.len());
    }

    #[test]
    fn groups_are_spelled_out_and_nothing_comes_twice() {
        let written = names(&["ffmpeg", "@python", "python3", "@python"]);
        let expected = names(&["ffmpeg", "py3-pip", "python3", "python3-dev"]);
        assert_eq!(spelled_out(&written, Manager::Apk).unwrap(), expected);
    }

    #[test]
    fn an_unknown_group_is_refused_with_the_nearest_one() {
        let error = see(&names(&["@pyhton"])).unwrap_err();
        assert_eq!((error.kind(), error.code()), ("invalid", "package-invalid"));
        let fix = error.diagnosis().fix.as_deref().unwrap();
        assert!(fix.starts_with("did you mean `python`"), "{fix}");
        for bad in ["-y", "--", "a b", "a;b", "$(a)", "../a", "a/b", "a=1", "", "a-", "@", "a:i386", "a\n"] {
            assert_eq!(see(&names(&["git", bad])).unwrap_err().code(), "package-invalid", "{bad}");
        }
        for good in ["g++", "libstdc++6", "python3.11", "0ad", "gcc-c++", "ImageMagick"] {
            see(&names(&[good])).unwrap();
        }
    }
}
