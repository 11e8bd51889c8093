//! What a session that goes to another backend finds of its home there, in words.

use std::path::PathBuf;

use moltis_config::words::HomePersistence;
use moltis_sandbox::{BackendName, NotEnforced, Result};

use super::Known;
use crate::router::Route;
use crate::runtime::{Runtime, host_memory};
use crate::store::Session;

/// Where a session's home lies on a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Home {
    /// In a folder that outlives the sandbox.
    Kept(PathBuf),
    /// In the sandbox, with which it ends.
    Sandbox,
    /// There is none: commands have the host's `/tmp` for one.
    Host,
}

/// Where it lies, given the folder that the configuration names for it there.
fn home(backend: BackendName, folder: Option<PathBuf>, not_enforced: &[NotEnforced]) -> Home {
    match backend {
        BackendName::RestrictedHost | BackendName::None => Home::Host,
        BackendName::Vercel | BackendName::Daytona | BackendName::Firecracker => Home::Sandbox,
        _ if not_enforced.iter().any(|listed| listed.key == "home_persistence") => Home::Sandbox,
        _ => folder.map_or(Home::Sandbox, Home::Kept),
    }
}

/// What is said when a session that was on one backend is on another one now; nothing if it has its home with it.
fn note((was, before): (BackendName, &Home), (now, after): (BackendName, &Home)) -> Option<String> {
    let what = format!("home: what commands left in it on {was}");
    match (before, after) {
        (Home::Kept(_) | Home::Host, _) if before == after => None,
        (Home::Kept(_), Home::Kept(_)) => Some(format!(
            "{what} is not here, since {now} has a folder of its own for it; it is kept, and there again when the session is \
             back on {was}"
        )),
        (Home::Kept(_), _) => Some(format!(
            "{what} is not here, since {now} keeps no homes; it is kept, and there again when the session is back on {was}"
        )),
        (Home::Sandbox, _) => {
            Some(format!("{what} was not carried to {now}: it ended with the sandbox there"))
        }
        (Home::Host, _) => {
            Some(format!("{what}, which is this machine's /tmp, was not carried to {now}: it is there still"))
        }
    }
}

impl Runtime {
    /// Where the session was before it is opened anew, and what was not kept there.
    pub(super) async fn was_on(&self, session: &Session) -> Result<Option<(BackendName, Vec<NotEnforced>)>> {
        if let Some(row) = &session.sandbox {
            return Ok(Some((row.backend, row.judged.not_enforced.clone())));
        }
        let number = session.number;
        let last = self.store().run(move |db| db.last_backend(number)).await?;
        Ok(last.map(|last| (last, Vec::new())))
    }

    /// What is to be said of the home of a session that was there and is opened on this route.
    pub(super) fn home_note(
        &self,
        known: &Known,
        was: Option<&(BackendName, Vec<NotEnforced>)>,
        route: &Route,
    ) -> Option<String> {
        let lasts = self.config().tools.exec.sandbox.home_persistence.value != HomePersistence::Off;
        let now = route.backend.name();
        let (was, unkept) = was.filter(|(was, _)| lasts && *was != now)?;
        let before = home(*was, known.settings.on(*was, host_memory()).home, unkept);
        let after = home(now, route.spec.home.clone(), &route.not_enforced);
        note((*was, &before), (now, &after))
    }
}

#[cfg(test)]
mod tests {
    use moltis_config::BackendChoice;
    use moltis_sandbox::BackendName::{
        Daytona, Docker, Namespaces, None as OnHost, RestrictedHost, Vercel, Wasm,
    };
    use moltis_sandbox::SessionKey;

    use super::*;
    use crate::fakes::{Fake, Machine, open, ran};
    use crate::store::{Caller, Patch, SessionPatch};

    #[test]
    fn what_is_carried_is_not_told_and_what_is_not_is() {
        let (shared, engine) = (Home::Kept("/h".into()), Home::Kept("/h-1000".into()));
        fn told(one: (BackendName, &Home), other: (BackendName, &Home)) -> Option<String> {
            Some(note(one, other)?.replace("home: what commands left in it on ", ""))
        }
        assert_eq!(told((Namespaces, &shared), (Docker, &shared)), None);
        assert_eq!(told((RestrictedHost, &Home::Host), (OnHost, &Home::Host)), None);
        assert_eq!(
            told((Namespaces, &shared), (Docker, &engine)).unwrap(),
            "namespaces is not here, since docker has a folder of its own for it; it is kept, and there again when the \
             session is back on namespaces"
        );
        for (now, home) in [(RestrictedHost, Home::Host), (Vercel, Home::Sandbox)] {
            assert_eq!(
                told((Docker, &shared), (now, &home)).unwrap(),
                format!(
                    "docker is not here, since {now} keeps no homes; it is kept, and there again when the session is back \
                     on docker"
                )
            );
        }
        for (now, home) in [(Daytona, &Home::Sandbox), (Docker, &shared), (RestrictedHost, &Home::Host)] {
            assert_eq!(
                told((Vercel, &Home::Sandbox), (now, home)).unwrap(),
                format!("vercel was not carried to {now}: it ended with the sandbox there")
            );
        }
        assert_eq!(
            told((RestrictedHost, &Home::Host), (Docker, &shared)).unwrap(),
            "restricted-host, which is this machine's /tmp, was not carried to docker: it is there still"
        );
    }

    async fn moved(persistence: HomePersistence, from: BackendName, to: BackendName) -> Vec<String> {
        let mut machine = Machine::of(vec![Fake::new(from), Fake::new(to)], BackendChoice::Named(from));
        let home = &mut machine.config.tools.exec.sandbox.home_persistence;
        home.value = persistence;
        ran(&machine.start().await, "s", "true").await.unwrap();
        machine.config.tools.exec.sandbox.backend.value = BackendChoice::Named(to);
        let runtime = machine.start().await;
        let first = open(&runtime, "s").await.unwrap().notes;
        // It is said once.
        let again = open(&runtime, "s").await.unwrap().notes;
        assert!(again.iter().all(|note| !note.starts_with("home: ")), "{again:?}");
        first.into_iter().filter(|note| note.starts_with("home: ")).collect()
    }

    #[tokio::test]
    async fn the_first_answer_after_a_move_says_what_of_the_home_is_not_there() {
        use HomePersistence::{Off, Session, Shared};
        for persistence in [Session, Shared] {
            for (from, to, word) in [
                (Namespaces, Wasm, "folder of its own"),
                (Wasm, Docker, "folder of its own"),
                (Namespaces, RestrictedHost, "keeps no homes"),
                (Namespaces, Daytona, "keeps no homes"),
                (Daytona, Vercel, "ended with the sandbox"),
                (Daytona, Namespaces, "ended with the sandbox"),
                (RestrictedHost, Namespaces, "/tmp"),
            ] {
                let notes = moved(persistence, from, to).await;
                assert!(notes.len() == 1 && notes[0].contains(word), "{from} {to}: {notes:?}");
            }
            let notes = moved(persistence, Docker, BackendName::Podman).await;
            assert_eq!(notes, Vec::<String>::new());
            // A rootful engine's user is another one than root.
            let root = rustix::process::geteuid().is_root();
            assert_eq!(moved(persistence, Docker, Namespaces).await.len(), usize::from(root));
        }
        assert_eq!(moved(Off, Namespaces, Daytona).await, Vec::<String>::new(), "nobody keeps any");
    }

    #[tokio::test]
    async fn a_session_that_is_sent_elsewhere_is_told_also_after_its_sandbox_ended() {
        let machine = Machine::new(&[Namespaces, Daytona], BackendChoice::Named(Namespaces));
        let runtime = machine.start().await;
        let key = SessionKey::new("s").unwrap();
        for stop in [false, true] {
            for (to, notes) in [(Daytona, 1), (Namespaces, 1), (Namespaces, 0)] {
                ran(&runtime, "s", "true").await.unwrap();
                if stop {
                    runtime.stop_sandbox(&key).await.unwrap();
                }
                let patch = SessionPatch {
                    sandbox_backend: Patch::Set(BackendChoice::Named(to)),
                    ..SessionPatch::default()
                };
                runtime.set_session(&key, patch, &Caller::this_user()).await.unwrap();
                let opened = open(&runtime, "s").await.unwrap();
                let told = opened.notes.iter().filter(|note| note.starts_with("home: ")).count();
                assert_eq!((opened.backend, told), (to, notes), "{:?}", opened.notes);
            }
        }
    }
}
