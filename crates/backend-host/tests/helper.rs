//! Another process: this test binary once more, as another caller or another user.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use moltis_sandbox::{Lifetime, SandboxSpec, SessionKey};

use crate::common::{self, Marker, open, run, shell};

const TASK: &str = "MOLTIS_HOST_TEST_TASK";
const BASE: &str = "MOLTIS_HOST_TEST_BASE";
const KEY: &str = "MOLTIS_HOST_TEST_KEY";
const MARK: &str = "MOLTIS_HOST_TEST_MARK";

/// What the other process is to do.
pub struct Helper<'a> {
    pub task: &'a str,
    pub base: &'a Path,
    pub key: &'a str,
    pub mark: &'a str,
    pub user: Option<u32>,
}

impl Helper<'_> {
    pub fn command(&self) -> Command {
        let own = std::env::current_exe().unwrap();
        let mut command = match self.user {
            None => Command::new(own),
            Some(user) => {
                // Wherever this was built, the other user can reach it there.
                let copy = self.base.join("helper");
                std::fs::copy(own, &copy).unwrap();
                let mut command = Command::new(copy);
                command.uid(user).gid(user).current_dir("/");
                command
            }
        };
        command.args(["--exact", "helper::task", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(TASK, self.task).env(BASE, self.base).env(KEY, self.key).env(MARK, self.mark);
        command
    }

    pub fn spawn(&self) -> Child {
        self.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

#[tokio::test]
#[ignore = "started by other tests, as another process"]
async fn task() {
    let Ok(task) = std::env::var(TASK) else { return };
    let base = std::path::PathBuf::from(variable(BASE));
    let backend = moltis_backend_host::RestrictedHostBackend::new(common::config(&base));
    let marker = Marker::named(&variable(MARK));
    let mut spec = SandboxSpec::new(SessionKey::new(variable(KEY)).unwrap(), Lifetime::Ephemeral);
    if task != "ephemeral" {
        spec.lifetime = Lifetime::Idle(std::time::Duration::from_secs(60));
    }
    match task.as_str() {
        // Runs a command that would go on for ever, and is killed meanwhile.
        "ephemeral" | "lasting" => {
            let sandbox = open(&backend, &spec).await;
            let sleep = marker.sleep();
            run(&*sandbox, shell(format!("setsid sh -c 'trap \"\" TERM HUP; {sleep}; :' & {sleep}"))).await;
        }
        "background" => {
            let sandbox = open(&backend, &spec).await;
            let mut request = shell(format!("echo before; {}", marker.sleep()));
            (request.background, request.timeout) = (true, None);
            drop(sandbox.exec(request).await.unwrap());
            crate::common::said(&*sandbox, "echo kept >file").await;
            std::future::pending::<()>().await;
        }
        "ordinary" => crate::ordinary::as_ordinary(&base).await,
        "none" => crate::none::with_secrets(&base).await,
        other => panic!("no such task: {other}"),
    }
}
