//! The variables that commands start with.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where commands of `restricted-host` find programs.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Names that carry Moltis's own configuration and credentials begin with one of these.
const OURS: [&[u8]; 3] = [b"MOLTIS_", b"VERCEL_", b"DAYTONA_"];

const FILES: &str = "MOLTIS_FILES_DIR";

type Variables = Vec<(OsString, OsString)>;

/// A cleared environment. `files` is the folder of managed files, if commands are told of one.
pub fn restricted(files: Option<&Path>) -> Variables {
    let mut variables: Variables = [("PATH", PATH), ("HOME", "/tmp"), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
    variables.extend(std::env::var_os("TZ").map(|zone| ("TZ".into(), zone)));
    variables.extend(files.map(|folder| (FILES.into(), folder.into())));
    variables
}

/// The caller's environment without what is Moltis's own.
pub fn inherited(all: impl Iterator<Item = (OsString, OsString)>, files: Option<&Path>) -> Variables {
    let mut variables: Variables =
        all.filter(|(name, _)| !OURS.iter().any(|prefix| name.as_bytes().starts_with(prefix))).collect();
    variables.extend(files.map(|folder| (FILES.into(), folder.into())));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restricted_command_knows_four_things_at_most() {
        let names: Vec<_> = restricted(Some(Path::new("/f"))).into_iter().map(|(name, _)| name).collect();
        assert!(
            names.iter().all(|name| ["PATH", "HOME", "LANG", "TZ", FILES].contains(&name.to_str().unwrap()))
        );
        assert_eq!(names.last().unwrap(), FILES);
        assert!(restricted(None).iter().all(|(name, _)| name != FILES));
    }

    #[test]
    fn no_credential_of_ours_is_passed_on() {
        let all = ["A", "MOLTIS_TOKEN", "VERCEL_TOKEN", "DAYTONA_API_KEY", "MOLTIS_FILES_DIR", "XMOLTIS_"]
            .map(|name| (OsString::from(name), OsString::from("v")));
        let kept =
            |files| inherited(all.iter().cloned(), files).into_iter().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(kept(None), ["A", "XMOLTIS_"]);
        assert_eq!(kept(Some(Path::new("/f"))), ["A", "XMOLTIS_", FILES]);
    }
}
