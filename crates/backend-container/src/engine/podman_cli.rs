//! Podman by its program, where it has no socket: argument lists, JSON and exit codes.

mod arguments;
mod build;
mod exec;
mod ids;
mod run;
mod terminal;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::exec::Programs;
use self::run::{Input, Program, Said};
use super::api::info::Podman;
use super::api::shapes::{Inspected, InspectedImage, Listed, ListedImage, carries};
use super::endpoint::Environment;
use super::words::{Lines, is_full, message};
use super::{
    BuildSpec, Bytes, Committed, Container, ContainerSpec, ContainerState, Engine, EngineError, EngineInfo,
    EngineKind, ExecSpec, Execution, Image, Place, Progress, ProgressSink, Result,
};

/// How long a question may take, in seconds: Podman takes its locks even for those.
const QUESTION: u64 = 30;

/// How long a change may take, in seconds.
const CHANGE: u64 = 60;
/// How long it has to keep what was written to a container.
const COMMIT: u64 = 600;

/// How often it is looked again whether something is over that cannot be waited for.
const LOOK: Duration = Duration::from_millis(100);

const ENGINE: EngineKind = EngineKind::Podman;

/// Podman behind its program.
pub(super) struct PodmanCli {
    program: Program,
    programs: Programs,
    place: Place,
    environment: Environment,
}

impl PodmanCli {
    /// `arguments` choose a connection; `remote` is what is behind it, for people.
    pub(super) fn new(
        environment: &Environment,
        program: PathBuf,
        arguments: Vec<String>,
        remote: Option<String>,
        place: Place,
    ) -> Self {
        Self {
            program: Program::new(environment, program, arguments, remote),
            programs: Programs::default(),
            place,
            environment: environment.clone(),
        }
    }

    /// What it said, if it succeeded.
    async fn ask(&self, seconds: u64, what: &str, arguments: &[&str]) -> Result<Said> {
        self.program.run(seconds, what, arguments, Input::Nothing).await
    }

    /// Whether there is a container. Podman tells that by its exit code.
    async fn exists(&self, id: &str) -> Result<bool> {
        let said = self.ask(QUESTION, "find a container", &["container", "exists", "--", id]).await?;
        match said.code {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(self.program.failure(&said)),
        }
    }

    async fn inspected(&self, id: &str) -> Result<Option<Inspected>> {
        let said = self.ask(QUESTION, "describe a container", &["container", "inspect", "--", id]).await?;
        if said.code != 0 {
            return if self.exists(id).await? { Err(self.program.failure(&said)) } else { Ok(None) };
        }
        Ok(objects(&said.stdout)?.into_iter().next())
    }

    async fn images_inspected(&self, ids: &[&str]) -> Result<Vec<Image>> {
        let mut arguments = vec!["image", "inspect", "--"];
        arguments.extend(ids);
        let said = self.ask(QUESTION, "describe an image", &arguments).await?;
        // One of several that went away meanwhile makes it fail; the others are told all the same.
        if said.code != 0 && said.stdout.trim_ascii() == b"[]" {
            return Ok(Vec::new());
        }
        let images: Vec<InspectedImage> = objects(&said.stdout)?;
        Ok(images.into_iter().map(InspectedImage::into_image).collect())
    }
}

/// JSON objects, as one list or one after the other.
fn objects<T: DeserializeOwned>(text: &[u8]) -> Result<Vec<T>> {
    let wrong = |error: serde_json::Error| EngineError::Answer {
        engine: ENGINE,
        message: message(&error.to_string()),
    };
    let mut found = Vec::new();
    for value in serde_json::Deserializer::from_slice(text).into_iter::<Value>() {
        match value.map_err(wrong)? {
            Value::Null => {}
            Value::Array(all) => {
                for one in all {
                    found.push(serde_json::from_value(one).map_err(wrong)?);
                }
            }
            one => found.push(serde_json::from_value(one).map_err(wrong)?),
        }
    }
    Ok(found)
}

/// Labels as filters of the program. Some versions cut these at commas, so that one with a comma is left to be checked
/// on the answer.
fn filters(labels: &[(&str, &str)]) -> Vec<String> {
    labels
        .iter()
        .map(|(name, value)| {
            if value.is_empty() || value.contains([',', '"']) {
                format!("label={name}")
            } else {
                format!("label={name}={value}")
            }
        })
        .collect()
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Told {
    host: ToldHost,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ToldHost {
    service_is_remote: bool,
    id_mappings: ids::Mapped,
}

#[async_trait]
impl Engine for PodmanCli {
    fn kind(&self) -> EngineKind {
        ENGINE
    }

    fn endpoint(&self) -> String {
        self.program.name()
    }

    async fn info(&self) -> Result<EngineInfo> {
        let local = self.place == Place::Here && !self.program.is_remote();
        if local {
            let status = tokio::fs::read_to_string("/proc/self/status").await.unwrap_or_default();
            ids::allowed(&status)?;
        }
        let said = self.ask(QUESTION, "describe itself", &["info", "--format", "json"]).await?;
        if said.code != 0 {
            // One that cannot even say what it is cannot be used at all, whatever it says of why.
            return Err(self.program.unreachable(&said.message()));
        }
        let wrong = |error: serde_json::Error| EngineError::Answer {
            engine: ENGINE,
            message: message(&error.to_string()),
        };
        let told: Podman = serde_json::from_slice(&said.stdout).map_err(wrong)?;
        let beside: Told = serde_json::from_slice(&said.stdout).unwrap_or_default();
        let remote = beside.host.service_is_remote;
        if local && !remote && told.is_rootless() {
            beside.host.id_mappings.enough()?;
        }
        let place = if remote && self.place == Place::Here { Place::Remote } else { self.place };
        told.read(place, None, Default::default())
            .settle(ENGINE, &self.environment, place == Place::Here)
            .await
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        if spec.runtime.is_some() && self.program.is_remote() {
            return Err(EngineError::Refused {
                engine: ENGINE,
                message: "another machine's runtime can be asked for over its socket only".to_owned(),
            });
        }
        let arguments = arguments::create(spec)?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = self.ask(CHANGE, "create a container", &arguments).await?;
        if said.code != 0 {
            let image = self.ask(QUESTION, "find an image", &["image", "exists", "--", &spec.image]).await?;
            if image.code == 1 {
                return Err(EngineError::NoSuchImage { reference: spec.image.clone() });
            }
            if self.exists(&spec.name).await? {
                return Err(EngineError::Conflict { message: said.message() });
            }
            return Err(self.program.failure(&said));
        }
        let text = String::from_utf8_lossy(&said.stdout);
        match text.split_whitespace().next_back() {
            Some(id) if id.bytes().all(|b| b.is_ascii_hexdigit()) => Ok(id.to_owned()),
            _ => Err(EngineError::Answer {
                engine: ENGINE,
                message: "it names no container that it made".to_owned(),
            }),
        }
    }

    async fn start(&self, id: &str) -> Result<()> {
        let said = self.ask(CHANGE, "start a container", &["start", "--", id]).await?;
        if said.code == 0 {
            return Ok(());
        }
        // One that could not be started may be removed at once, so that its absence says nothing; Podman's words do.
        let text = said.message();
        if text.contains("no such container") && !self.exists(id).await? {
            return Err(EngineError::NoSuchContainer { id: id.to_owned() });
        }
        match self.program.failure(&said) {
            EngineError::Refused { message, .. } => Err(EngineError::CannotStart { message }),
            other => Err(other),
        }
    }

    async fn inspect(&self, id: &str) -> Result<Option<Container>> {
        Ok(self.inspected(id).await?.map(Inspected::into_container))
    }

    async fn containers(&self, labels: &[(&str, &str)]) -> Result<Vec<Container>> {
        let filters = filters(labels);
        let mut arguments = vec!["ps", "--all", "--no-trunc", "--format", "json"];
        for filter in &filters {
            arguments.extend(["--filter", filter]);
        }
        let said = self.ask(QUESTION, "list containers", &arguments).await?;
        if said.code != 0 {
            return Err(self.program.failure(&said));
        }
        let listed: Vec<Listed> = objects(&said.stdout)?;
        let containers = listed.into_iter().map(Listed::into_container);
        Ok(containers.filter(|container| carries(&container.labels, labels)).collect())
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let work = async {
            let mut attempt: u32 = 0;
            loop {
                // After a fork bomb a polite end takes longer than the bomb does to grow again.
                let arguments = ["rm", "--force", "--volumes", "--time", "0", "--", id];
                let said = self.ask(CHANGE, "remove a container", &arguments).await?;
                if said.code == 0 || !self.exists(id).await? {
                    return Ok(());
                }
                attempt += 1;
                let failure = self.program.failure(&said);
                if attempt >= 20
                    || !matches!(failure, EngineError::Refused { .. } | EngineError::Conflict { .. })
                {
                    return Err(failure);
                }
                tokio::time::sleep(LOOK * attempt.min(10)).await;
            }
        };
        let late =
            EngineError::TimedOut { engine: ENGINE, what: "remove a container".to_owned(), seconds: CHANGE };
        tokio::time::timeout(Duration::from_secs(CHANGE), work).await.unwrap_or(Err(late))
    }

    async fn wait(&self, id: &str) -> Result<()> {
        loop {
            match self.inspect(id).await? {
                Some(container)
                    if matches!(container.state, ContainerState::Running | ContainerState::Paused) => {}
                _ => return Ok(()),
            }
            let said = self.program.run_long(&["wait", "--", id]).await?;
            if said.code != 0 {
                if self.exists(id).await? {
                    return Err(self.program.failure(&said));
                }
                return Ok(());
            }
        }
    }

    async fn logs(&self, id: &str, limit: usize) -> Result<Vec<u8>> {
        let Some(inspected) = self.inspected(id).await? else {
            return Err(EngineError::NoSuchContainer { id: id.to_owned() });
        };
        if inspected.keeps_no_logs() {
            return Ok(Vec::new());
        }
        self.program.last_output(CHANGE, "read a container's log", &["logs", "--", id], limit).await
    }

    async fn exec(&self, id: &str, spec: &ExecSpec) -> Result<Execution> {
        // What Podman says of a container that is not there could not be told from what a program prints.
        match self.inspect(id).await? {
            None => return Err(EngineError::NoSuchContainer { id: id.to_owned() }),
            Some(container) if container.state != ContainerState::Running => {
                return Err(EngineError::Conflict { message: format!("container {id} does not run") });
            }
            Some(_) => {}
        }
        self.programs.start(&self.program, &arguments::exec(id, spec), spec.terminal).await
    }

    async fn exec_result(&self, exec: &str) -> Result<Option<i32>> {
        self.programs.result(exec)
    }

    async fn exec_resize(&self, exec: &str, rows: u16, columns: u16) -> Result<()> {
        self.programs.resize(exec, rows, columns)
    }

    async fn put_archive(&self, id: &str, directory: &str, tar: Vec<u8>) -> Result<()> {
        let target = format!("{id}:{directory}");
        let arguments = ["cp", "-", &target];
        let said = self.program.run(CHANGE, "unpack an archive", &arguments, Input::Whole(tar)).await?;
        if said.code == 0 {
            return Ok(());
        }
        self.of_path(id, directory, &said).await
    }

    async fn get_archive(&self, id: &str, path: &str) -> Result<Bytes> {
        let source = format!("{id}:{path}");
        match self.program.stream(CHANGE, "pack an archive", &["cp", &source, "-"]).await? {
            Ok(bytes) => Ok(bytes),
            Err(said) => self.of_path(id, path, &said).await,
        }
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        let found = self.ask(QUESTION, "find an image", &["image", "exists", "--", reference]).await?;
        match found.code {
            0 => Ok(self.images_inspected(&[reference]).await?.into_iter().next()),
            1 => Ok(None),
            _ => Err(self.program.failure(&found)),
        }
    }

    async fn images(&self, labels: &[(&str, &str)]) -> Result<Vec<Image>> {
        let filters = filters(labels);
        let mut arguments = vec!["images", "--no-trunc", "--format", "json"];
        for filter in &filters {
            arguments.extend(["--filter", filter]);
        }
        let said = self.ask(QUESTION, "list images", &arguments).await?;
        if said.code != 0 {
            return Err(self.program.failure(&said));
        }
        let listed: Vec<ListedImage> = objects(&said.stdout)?;
        let mut ids: Vec<&str> =
            listed.iter().map(|image| image.id.as_str()).filter(|id| !id.is_empty()).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let images = self.images_inspected(&ids).await?;
        Ok(images.into_iter().filter(|image| carries(&image.labels, labels)).collect())
    }

    async fn pull(&self, reference: &str, progress: &dyn ProgressSink) -> Result<()> {
        let mut lines = Lines::default();
        let mut each = |line| progress.progress(Progress::Log(line));
        let said =
            self.program.follow(&["pull", "--", reference], |piece| lines.push(piece, &mut each)).await?;
        if said.code == 0 {
            return Ok(());
        }
        let message = said.last_message();
        if is_full(&message) {
            return Err(EngineError::Full { engine: ENGINE, message });
        }
        Err(EngineError::CannotPull { reference: reference.to_owned(), message })
    }

    async fn build(&self, spec: &BuildSpec, progress: &dyn ProgressSink) -> Result<String> {
        let id = build::build(&self.program, spec, progress).await?;
        match self.image(&id).await? {
            Some(image) => Ok(image.id),
            None => Err(EngineError::BuildFailed {
                message: "Podman does not name the image that it built".to_owned(),
                log: Vec::new(),
            }),
        }
    }

    async fn commit(&self, id: &str, image: &Committed<'_>) -> Result<()> {
        let (change, name) = (image.change(), format!("{}:{}", image.repository, image.tag));
        let pause = format!("--pause={}", image.pause);
        let arguments = ["commit", "--quiet", &pause, "--change", &change, "--", id, &name];
        let said = self.ask(COMMIT, "keep a container as an image", &arguments).await?;
        if said.code == 0 {
            return Ok(());
        }
        if !self.exists(id).await? {
            return Err(EngineError::NoSuchContainer { id: id.to_owned() });
        }
        Err(self.program.failure(&said))
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        let said = self.ask(CHANGE, "remove an image", &["image", "rm", "--", reference]).await?;
        match said.code {
            0 | 1 => Ok(()),
            2 => Err(EngineError::Conflict { message: said.message() }),
            _ => Err(self.program.failure(&said)),
        }
    }

    async fn load(&self, archive: Bytes) -> Result<()> {
        let said = self.program.run_with(&["load", "--quiet"], archive).await?;
        if said.code == 0 { Ok(()) } else { Err(self.program.failure(&said)) }
    }

    async fn save(&self, reference: &str) -> Result<Bytes> {
        let arguments = ["save", "--quiet", "--format", "docker-archive", "--", reference];
        match self.program.stream(CHANGE, "pack an image", &arguments).await? {
            Ok(bytes) => Ok(bytes),
            Err(said) => match self.image(reference).await? {
                None => Err(EngineError::NoSuchImage { reference: reference.to_owned() }),
                Some(_) => Err(self.program.failure(&said)),
            },
        }
    }
}

impl PodmanCli {
    /// Why a command that names a container and a path failed.
    async fn of_path<T>(&self, id: &str, path: &str, said: &Said) -> Result<T> {
        if !self.exists(id).await? {
            return Err(EngineError::NoSuchContainer { id: id.to_owned() });
        }
        if said.code == 0 {
            let message = "it tells nothing of a path, and no failure".to_owned();
            return Err(EngineError::Answer { engine: ENGINE, message });
        }
        // Podman has one exit code for all of this. Files of its own that it misses are no answer.
        let text = said.message();
        if text.contains("could not be found on container") || text.contains("must be a directory") {
            return Err(EngineError::NoSuchPath { path: path.to_owned() });
        }
        Err(self.program.failure(said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_lines_of_objects_are_read_alike() {
        for text in
            [r#"[{"Id":"a"},{"Id":"b"}]"#, "{\"Id\":\"a\"}\n{\"Id\":\"b\"}\n", r#"[{"ID":"a"}] [{"id":"b"}]"#]
        {
            let found: Vec<ListedImage> = objects(text.as_bytes()).unwrap();
            let ids: Vec<&str> = found.iter().map(|image| image.id.as_str()).collect();
            assert_eq!(ids, ["a", "b"], "{text}");
        }
        assert!(objects::<ListedImage>(b"null").unwrap().is_empty());
        assert!(objects::<ListedImage>(b"").unwrap().is_empty());
        assert!(matches!(objects::<ListedImage>(b"Error"), Err(EngineError::Answer { .. })));
    }
}
