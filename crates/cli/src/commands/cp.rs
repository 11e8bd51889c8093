//! `moltis cp`: files and whole trees into and out of a session's sandbox.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use moltis_runtime::{FileRules, RuledFiles, SessionRequest};
use moltis_sandbox::{Diagnosis, GuestPath, SessionKey};

use crate::args::{Cp, Global};
use crate::copy::{self, Copied, Local, Manner};
use crate::failure::Failure;
use crate::flags;
use crate::output::BROKEN_PIPE;
use crate::place::{Opening, Place};
use crate::signals::Signals;
use crate::transfer::{self, Done};

/// Runs it; gives the exit status.
pub async fn run(global: &Global, args: Cp) -> Result<i32, Failure> {
    let session = args.session.as_deref().map(flags::session_key).transpose()?;
    let ends = (End::parse(&args.from, session.as_ref())?, End::parse(&args.to, session.as_ref())?);
    let (key, local, remote, is_fetch) = match ends {
        (End::Remote(key, remote), End::Local(local)) => (key, local, remote, true),
        (End::Local(local), End::Remote(key, remote)) => (key, local, remote, false),
        (End::Local(_), End::Local(_)) => {
            return Err(usage("neither end of the copy is in a session", "write one of them as KEY:/PATH"));
        }
        (End::Remote(..), End::Remote(..)) => {
            return Err(usage("both ends of the copy are in sessions", "copy to a folder here first"));
        }
    };
    let runtime = super::runtime(global)?;
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let request = SessionRequest { must_exist: true, ..SessionRequest::new(key) };
    let place = match Place::open_here(&runtime, request, &mut signals).await? {
        Opening::Open(place) => place,
        Opening::Told(number) => return Ok(128 + number),
    };
    // No command runs: what binds commands is not worth a word here.
    place.tell_news();
    place.note_use().await;
    let rules = FileRules::new(runtime.config());
    let manner = Manner {
        overwrite: args.overwrite,
        follow: args.follow,
        links: true,
        missing: "name a file or folder that is here; what is in a session is named KEY:/PATH",
    };
    let copied = transfer::run(&mut signals, async |breaker| {
        let files = RuledFiles::new(place.sandbox().files(), rules);
        if is_fetch {
            copy::fetch(&files, &remote, &local, manner, &breaker).await
        } else {
            copy::send(&files, &local, &remote, manner, &breaker).await.map(Some)
        }
    });
    report(copied.await?, args.json, is_fetch && local == Local::Standard)
}

/// Says what came of a copy; gives the exit status. `is_taken`: the copy itself went to standard output.
pub fn report(done: Done<Option<Copied>>, json: bool, is_taken: bool) -> Result<i32, Failure> {
    match done {
        Done::Done(Some(copied)) => copied.report(json && !is_taken),
        Done::Done(None) => Ok(BROKEN_PIPE),
        Done::Told(number) => Ok(128 + number),
    }
}

fn usage(message: &'static str, fix: &'static str) -> Failure {
    Failure::usage(Diagnosis::new("usage", message).fix(fix))
}

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Local(Local),
    Remote(SessionKey, GuestPath),
}

impl End {
    fn parse(argument: &OsStr, session: Option<&SessionKey>) -> Result<Self, Failure> {
        let bytes = argument.as_bytes();
        let is_ours = ["/", "./", "../"].iter().any(|start| bytes.starts_with(start.as_bytes()));
        let at = bytes.windows(2).position(|two| two == b":/").filter(|_| !is_ours);
        match (at, session) {
            (Some(0), Some(key)) => {
                Ok(Self::Remote(key.clone(), copy::remote_path(OsStr::from_bytes(&bytes[1..]), None)?))
            }
            (Some(0), None) => Err(usage(
                "`:/PATH` says nothing of its session",
                "name the session by --session, or write KEY:/PATH",
            )),
            (Some(at), None) => {
                let key = flags::session_key(OsStr::from_bytes(&bytes[..at]))?;
                Ok(Self::Remote(key, copy::remote_path(OsStr::from_bytes(&bytes[at + 1..]), None)?))
            }
            // With --session every other argument is ours.
            (Some(_), Some(_)) | (None, _) => Ok(Self::Local(Local::of(argument))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_at_their_first_colon_and_slash() {
        let key = |text: &str| SessionKey::new(text).unwrap();
        let remote = |k: &str, p: &str| Some(End::Remote(key(k), GuestPath::new(p).unwrap()));
        let local = |text: &str| Some(End::Local(Local::Path(text.into())));
        for (text, expected) in [
            ("s:/a/b", remote("s", "/a/b")),
            ("a:b:/c:/d", remote("a:b", "/c:/d")),
            ("a/b:/c", remote("a/b", "/c")),
            ("./s:/a", local("./s:/a")),
            ("/s:/a", local("/s:/a")),
            ("../s:/a", local("../s:/a")),
            ("s:a", local("s:a")),
            ("a", local("a")),
            (":/a", None),
            ("-", Some(End::Local(Local::Standard))),
        ] {
            assert_eq!(End::parse(OsStr::new(text), None).ok(), expected, "{text}");
        }
        let given = key("x:/y");
        for (text, expected) in [(":/a", remote("x:/y", "/a")), ("x:/y:/a", local("x:/y:/a"))] {
            assert_eq!(End::parse(OsStr::new(text), Some(&given)).ok(), expected, "{text}");
        }
    }
}
