//! What is said when an image cannot be had.

use moltis_sandbox::{Diagnosis, Error};

use super::markers::Markers;
use crate::engine::{EngineError, EngineKind};

/// Packages that are named at most.
const NAMED: usize = 8;

/// Lines of a log that are repeated.
const LINES: usize = 5;

/// Why a build failed. The engine decides that it did; what our recipe printed names what to look at.
pub fn build(error: EngineError, base: &str, markers: &Markers, heard: &[String]) -> Error {
    let (message, log) = match error {
        EngineError::BuildFailed { message, log } => (message, log),
        other => return other.into(),
    };
    let lines = if heard.is_empty() { &log } else { heard };
    let ours = |line: &&String| !line.trim_start().starts_with(super::markers::MARK);
    let mut last: Vec<_> = lines.iter().rev().filter(ours).take(LINES).map(String::as_str).collect();
    last.reverse();
    let cause =
        if last.is_empty() { message } else { format!("{message}; it printed last: {}", last.join("; ")) };
    let failed = |what: &str, fix: String| {
        let message = format!("the image on {base} cannot be built: {what}");
        Error::Unavailable(Diagnosis::new("image-build-failed", message).cause(&cause).fix(fix))
    };
    if markers.full {
        let message = format!("the image on {base} cannot be built: the disk of the engine is full");
        return Error::Unavailable(
            Diagnosis::new("engine-disk-full", message)
                .cause(&cause)
                .fix("moltis sandbox clean, or make room where the engine keeps its images"),
        );
    }
    if markers.lists {
        let fix = "see that containers of the engine reach the network, and that the base's package sources are right";
        return failed("the lists of packages cannot be fetched", fix.to_owned());
    }
    match markers.packages.as_slice() {
        [] => Error::Unavailable(
            Diagnosis::new("image-build-failed", format!("the image on {base} cannot be built"))
                .cause(&cause)
                .fix("`moltis sandbox build` shows the whole log"),
        ),
        [one] => failed(
            &format!("the package {one} cannot be installed"),
            format!("correct `{one}` in `packages`, or leave it out"),
        ),
        several => {
            let mut named = several[..several.len().min(NAMED)].join(", ");
            if several.len() > NAMED {
                named.push_str(&format!(" and {} more", several.len() - NAMED));
            }
            let fix = "correct them in `packages`, or leave them out".to_owned();
            failed(&format!("the packages {named} cannot be installed"), fix)
        }
    }
}

/// The base has nothing that could install packages.
pub fn no_manager(base: &str, distribution: &str, packages: &[String]) -> Error {
    let is = if distribution.is_empty() { String::new() } else { format!(" ({distribution})") };
    Error::Refused(
        Diagnosis::new(
            "image-no-package-manager",
            format!("{base}{is} has no apt-get, apk or dnf, so that nothing can be installed in it"),
        )
        .cause(format!("`packages` asks for {}", packages.join(", ")))
        .fix("set `packages = []` to use the image as it is, or `image` to a Debian, Ubuntu, Alpine or Fedora one"),
    )
}

/// The image is not for this engine.
pub fn wrong_platform(reference: &str, os: &str, arch: &str, engine: EngineKind, engine_arch: &str) -> Error {
    let word = |word: &str| if word.is_empty() { "an unknown one" } else { word }.to_owned();
    let (os, arch) = (word(os), word(arch));
    Error::Refused(
        Diagnosis::new(
            "image-wrong-architecture",
            format!(
                "the image {reference} is for {os} on {arch}, and {engine} here runs linux on {engine_arch}"
            ),
        )
        .fix(format!("name an image for linux on {engine_arch}, or pull that one's variant for it")),
    )
}

/// The image is not there after it was fetched or built.
pub fn vanished(reference: &str) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "image-unavailable",
            format!("the image {reference} is gone again as soon as it was made"),
        )
        .fix("see whether something else removes images from the engine"),
    )
}

/// What is kept of images in the data directory cannot be written.
pub fn folder(error: &std::io::Error) -> Error {
    Error::Unavailable(
        Diagnosis::new("data-dir-unusable", "the folder cache/images in the data directory cannot be used")
            .cause(error)
            .fix("see that it belongs to this user and that there is room"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(markers: Markers) -> Error {
        let log = ["E: Unable to locate package nonsense", "moltis-build: package nonsense"];
        let log = log.map(str::to_owned).to_vec();
        build(EngineError::BuildFailed { message: "code 1".into(), log }, "debian:12", &markers, &[])
    }

    #[test]
    fn the_package_that_failed_is_named() {
        let markers = |packages: &[&str], lists, full| Markers {
            packages: packages.iter().map(|name| (*name).to_owned()).collect(),
            lists,
            full,
        };
        let error = failed(markers(&["nonsense"], false, false));
        assert_eq!((error.kind(), error.code()), ("unavailable", "image-build-failed"));
        let diagnosis = error.diagnosis();
        assert!(diagnosis.message.contains("the package nonsense"), "{diagnosis}");
        let cause = diagnosis.cause.as_deref().unwrap();
        assert!(cause.contains("Unable to locate") && !cause.contains("moltis-build"), "{cause}");
        assert!(failed(markers(&["a", "b"], false, false)).to_string().contains("the packages a, b"));
        assert!(failed(markers(&["a"], true, false)).to_string().contains("the lists"));
        assert_eq!(failed(markers(&["a"], true, true)).code(), "engine-disk-full");
        assert!(
            failed(Markers::default())
                .to_string()
                .starts_with("the image on debian:12 cannot be built: code 1")
        );
    }

    #[test]
    fn the_engines_own_failure_stays_what_it_is() {
        let down =
            EngineError::Unreachable { engine: EngineKind::Docker, endpoint: "x".into(), cause: "y".into() };
        let markers = Markers { full: true, ..Markers::default() };
        assert!(build(down, "a", &markers, &[]).is_engine_failure());
    }
}
