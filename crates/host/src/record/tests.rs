//! Folders, records and their processes.

use moltis_sandbox::SessionKey;

use super::*;
use crate::process::{Process, boot, pid_realm};

const SOCKET: &str = "agent.sock";

static LAYOUT: Layout =
    Layout { run: "run", record: "sandbox.json", socket: Some(SOCKET), files: &[], folders: &[] };

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    pid: u32,
    started: u64,
    realm: String,
    fingerprint: String,
}

impl Record for Written {
    fn process(&self) -> Option<ProcessId<'_>> {
        let realm = self.realm.as_str().into();
        Some(ProcessId { pid: self.pid, started: self.started, realm })
    }
}

fn make(data_dir: &Path) -> Result<RunDir<Written>> {
    RunDir::make(data_dir, &LAYOUT)
}

fn record() -> Written {
    let pid = std::process::id();
    let process = Process::child(pid as i32, rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap());
    Written {
        pid,
        started: process.started().unwrap(),
        realm: pid_realm().to_owned(),
        fingerprint: "f".into(),
    }
}

#[test]
fn a_record_finds_its_process_and_no_other() {
    let temp = tempfile::tempdir().unwrap();
    let folder = File::open(temp.path()).unwrap();
    let found = |record: Written| match whereabouts(&record, &folder, &LAYOUT) {
        Whereabouts::Here(process) => Some(process.pid()),
        Whereabouts::Over => None,
        Whereabouts::Elsewhere => panic!("{record:?}"),
    };
    assert_eq!(found(record()), Some(std::process::id()));
    assert_eq!(found(Written { started: record().started + 1, ..record() }), None);
    assert_eq!(found(Written { realm: "another boot".into(), ..record() }), None);
}

#[test]
fn a_process_of_another_pid_namespace_is_over_only_if_its_socket_says_so() {
    let temp = tempfile::tempdir().unwrap();
    let run = make(temp.path()).unwrap();
    let id = SandboxId::of(&SessionKey::new("s").unwrap());
    let mut folder = run.try_lock(&id).unwrap().unwrap();
    let elsewhere = Written { realm: format!("{} pid:[1]", boot()), ..record() };
    let is_elsewhere = |folder: &Folder<Written>| match whereabouts(&elsewhere, folder.handle(), &LAYOUT) {
        Whereabouts::Elsewhere => true,
        Whereabouts::Over => false,
        Whereabouts::Here(process) => panic!("{process:?}"),
    };
    assert!(is_elsewhere(&folder), "there is no socket to ask");
    fs::write(run.path_of(&id).join(SOCKET), "").unwrap();
    assert!(is_elsewhere(&folder), "nor is a file one");
    folder.clear().unwrap();
    let socket = folder.bind_socket(SOCKET).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    for _ in 0..4 {
        assert!(is_elsewhere(&folder), "somebody listens, whether or not he accepts");
    }
    drop(socket);
    assert!(!is_elsewhere(&folder), "nobody listens any more");
}

#[tokio::test]
async fn a_folder_holds_record_and_socket_and_vanishes_unless_kept() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("d".repeat(150));
    let run = make(&data).unwrap();
    assert_eq!(fs::metadata(&data).unwrap().mode() & 0o777, 0o700);
    let id = SandboxId::of(&SessionKey::new("s").unwrap());
    let mut folder = run.lock(&id).await.unwrap();
    folder.bind_socket(SOCKET).unwrap();
    folder.write(&record()).unwrap();
    folder.keep(true);
    drop(folder);
    assert_eq!(run.record(&id), Some(record()));
    let mut folder = run.lock(&id).await.unwrap();
    folder.clear().unwrap();
    folder.bind_socket(SOCKET).unwrap();
    drop(folder);
    assert!(run.record(&id).is_none() && run.ids().is_empty());
}

#[test]
fn a_data_directory_of_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let run = data.join("run");
    make(&data).unwrap();
    for exposed in [&data, &run] {
        for (mode, allowed) in [(0o777, false), (0o770, false), (0o702, false), (0o755, true), (0o700, true)]
        {
            fs::set_permissions(exposed, fs::Permissions::from_mode(mode)).unwrap();
            match make(&data) {
                Ok(_) => assert!(allowed, "{mode:o}"),
                Err(error) => {
                    assert!(!allowed, "{mode:o}");
                    let error = moltis_sandbox::Error::from(error);
                    assert_eq!(error.code(), "data-dir-exposed");
                    let fix = format!("chmod 700 {}", exposed.display());
                    assert_eq!(error.diagnosis().fix.as_deref(), Some(fix.as_str()));
                }
            }
        }
    }
    assert!(judge_owner(&data, 1, 1).is_ok());
    assert!(matches!(judge_owner(&data, 1, 2), Err(Error::DataDirOwner { owner: 1, user: 2, .. })));
    if rustix::process::geteuid().is_root() {
        for theirs in [&run, &data] {
            std::os::unix::fs::chown(theirs, Some(12_345), None).unwrap();
            let error = moltis_sandbox::Error::from(make(&data).unwrap_err());
            assert_eq!(error.code(), "data-dir-exposed");
            assert!(error.to_string().contains("12345"), "{error}");
        }
    }
}

#[tokio::test]
async fn what_is_not_ours_stays() {
    let temp = tempfile::tempdir().unwrap();
    let run = make(temp.path()).unwrap();
    let id = SandboxId::of(&SessionKey::new("s").unwrap());
    assert!(!run.is_foreign(&id));
    let folder = run.lock(&id).await.unwrap();
    folder.bind_socket(SOCKET).unwrap();
    folder.write(&record()).unwrap();
    fs::write(run.path_of(&id).join(LOCK), "").unwrap();
    assert!(!run.is_foreign(&id));
    let foreign = run.path_of(&id).join("host.json");
    fs::write(&foreign, "theirs").unwrap();
    assert!(run.is_foreign(&id));
    folder.remove().unwrap();
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "theirs");
    assert_eq!(fs::read_dir(run.path_of(&id)).unwrap().count(), 1);
    fs::remove_file(foreign).unwrap();
    run.lock(&id).await.unwrap().remove().unwrap();
    assert_eq!(run.ids(), []);
}

#[tokio::test]
async fn a_folder_is_held_by_one_at_a_time() {
    let temp = tempfile::tempdir().unwrap();
    let run = make(temp.path()).unwrap();
    let id = SandboxId::of(&SessionKey::new("s").unwrap());
    assert!(run.lock_existing(&id).await.unwrap().is_none());
    let folder = run.lock(&id).await.unwrap();
    assert!(run.try_lock_existing(&id).unwrap().is_none());
    let waiting = {
        let (run, id) = (run.clone(), id.clone());
        tokio::spawn(async move { run.lock(&id).await.map(|_| ()) })
    };
    // It gives the thread back while it waits.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    folder.remove().unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(run.ids(), []);
}

#[tokio::test]
async fn whoever_takes_the_folder_of_a_sandbox_and_gives_up_leaves_it() {
    let temp = tempfile::tempdir().unwrap();
    let run = make(temp.path()).unwrap();
    let id = SandboxId::of(&SessionKey::new("s").unwrap());
    drop(run.lock(&id).await.unwrap());
    assert_eq!(run.ids(), [], "there was none");
    let mut folder = run.lock(&id).await.unwrap();
    folder.write(&record()).unwrap();
    folder.keep(true);
    drop(folder);
    drop(run.lock(&id).await.unwrap());
    drop(run.lock_existing(&id).await.unwrap());
    assert_eq!(run.record(&id), Some(record()));
}

#[tokio::test]
async fn what_belongs_to_a_backend_goes_with_the_sandbox() {
    fn remove(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        match fs::remove_dir_all(format!("/proc/self/fd/{}/{name}", parent.as_raw_fd())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
    static BELOW: Layout = Layout {
        run: "run/other",
        record: "sandbox.json",
        socket: None,
        files: &["hosts"],
        folders: &[("agent", remove)],
    };
    let temp = tempfile::tempdir().unwrap();
    let run: RunDir<Written> = RunDir::make(temp.path(), &BELOW).unwrap();
    for made in [temp.path().join("run"), temp.path().join("run/other")] {
        assert_eq!(fs::metadata(made).unwrap().mode() & 0o777, 0o700);
    }
    // The backend that keeps its sandboxes in the folder above takes it for none of its own.
    assert_eq!(make(temp.path()).unwrap().ids(), []);
    let id = SandboxId::of(&SessionKey::new("s").unwrap());
    let mut folder = run.lock(&id).await.unwrap();
    for _ in 0..2 {
        folder.create("hosts", 0o644, b"h").unwrap();
        let agent = folder.make_folder("agent", 0o1777).unwrap();
        assert_eq!(rustix::fs::fstat(&agent).unwrap().st_mode & 0o7777, 0o1777);
        fs::create_dir_all(run.path_of(&id).join("agent/a/b")).unwrap();
        folder.write_watched(b"w").unwrap();
        folder.write(&record()).unwrap();
        assert!(!run.is_foreign(&id));
        assert_eq!(run.watched(&id).as_deref(), Some(&b"w"[..]));
        folder.clear().unwrap();
        assert_eq!(fs::read_dir(run.path_of(&id)).unwrap().count(), 0);
    }
    folder.make_folder("agent", 0o700).unwrap();
    drop(folder);
    assert_eq!(run.ids(), []);
}

#[test]
fn who_may_write_to_a_folder_between_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    static BELOW: Layout =
        Layout { run: "run/other", record: "sandbox.json", socket: None, files: &[], folders: &[] };
    let temp = tempfile::tempdir().unwrap();
    RunDir::<Written>::make(temp.path(), &BELOW).unwrap();
    fs::set_permissions(temp.path().join("run"), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = RunDir::<Written>::make(temp.path(), &BELOW);
    assert!(matches!(refused, Err(Error::DataDirExposed(path)) if path == temp.path().join("run")));
}
