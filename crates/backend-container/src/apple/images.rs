//! Images, by the tool's `image` and `build`.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};

use super::layers::Layers;
use super::shapes::{self, Name};
use super::{Apple, LAYERS_KEPT, oci, tool, words};
use crate::engine::{BuildSpec, Bytes, EngineError, Image, Progress, ProgressSink, Result};

/// Lines of a build's log that are told when it fails.
const LOG: usize = 40;
/// Bytes of a line.
const LINE: u64 = 8 << 10;
/// Images that are asked about at once.
const TOGETHER: usize = 64;

impl Apple {
    /// All names of images.
    pub(super) async fn names(&self) -> Result<Vec<Name>> {
        let list = strings(&["image", "list", "--format", "json"]);
        let answer = self.done("list images", tool::QUESTION, &list).await?;
        Ok(shapes::objects("images", &answer)?.iter().filter_map(shapes::name).collect())
    }

    /// A reference that names this image. Its id names none to the tool.
    pub(super) async fn reference_of(&self, id: &str) -> Result<String> {
        let names = self.names().await?;
        let found = names.into_iter().find(|name| name.digest == id || name.reference == id);
        found.map(|name| name.reference).ok_or_else(|| EngineError::NoSuchImage { reference: id.to_owned() })
    }

    pub(super) async fn inspect_image(&self, reference: &str) -> Result<Option<Image>> {
        if !reference.starts_with("sha256:") {
            return self.named(reference).await;
        }
        let names: Vec<Name> =
            self.names().await?.into_iter().filter(|name| name.digest == reference).collect();
        let Some(first) = names.first() else { return Ok(None) };
        let image = self.named(&first.reference).await?;
        let tags = names.into_iter().map(|name| name.reference).collect();
        Ok(image.map(|image| Image { tags, ..image }))
    }

    async fn named(&self, reference: &str) -> Result<Option<Image>> {
        // It would be an option.
        if reference.is_empty() || reference.starts_with('-') {
            return Ok(None);
        }
        let list = strings(&["image", "inspect", reference]);
        let answer = self.ask("look at an image", tool::QUESTION, &list).await?;
        if !answer.is_ok() && words::not_found(&answer.words) && words::broken(&answer.words, &list).is_none()
        {
            return Ok(None);
        }
        let objects = shapes::objects("an image", &self.sound(answer, &list)?)?;
        objects.first().map(|object| shapes::image(object, std::env::consts::ARCH)).transpose()
    }

    pub(super) async fn list_images(&self, labels: &[(&str, &str)]) -> Result<Vec<Image>> {
        let mut images: Vec<Image> = Vec::new();
        let names = self.names().await?;
        for some in names.chunks(TOGETHER) {
            for found in self.inspect_together(some).await? {
                match images.iter_mut().find(|known| known.id == found.id) {
                    Some(known) => known.tags.extend(found.tags),
                    None => images.push(found),
                }
            }
        }
        images.retain(|image| super::bears(&image.labels, labels));
        Ok(images)
    }

    async fn inspect_together(&self, names: &[Name]) -> Result<Vec<Image>> {
        let mut list = strings(&["image", "inspect"]);
        list.extend(names.iter().map(|name| name.reference.clone()));
        let answer = self.ask("look at images", tool::QUESTION, &list).await?;
        if answer.is_ok() {
            // One that is odd hides none of the others.
            let objects = shapes::objects("images", &answer.stdout)?;
            return Ok(objects
                .iter()
                .filter_map(|o| shapes::image(o, std::env::consts::ARCH).ok())
                .collect());
        }
        if !words::not_found(&answer.words) || words::broken(&answer.words, &list).is_some() {
            return Err(self.failure(&answer, &list));
        }
        // One of them has gone meanwhile.
        let mut images = Vec::new();
        for name in names {
            images.extend(self.named(&name.reference).await.unwrap_or_default());
        }
        Ok(images)
    }

    pub(super) async fn fetch(&self, reference: &str, progress: &dyn ProgressSink) -> Result<()> {
        let cannot = |message: String| EngineError::CannotPull { reference: reference.to_owned(), message };
        if reference.is_empty() || reference.starts_with('-') {
            return Err(cannot("it is no reference".to_owned()));
        }
        progress.progress(Progress::Step { number: 1, total: 1, what: format!("fetching {reference}") });
        let list = strings(&["image", "pull", reference]);
        let answer = self.tool().ask_at_length("fetch an image", &list).await?;
        if answer.is_ok() {
            return Ok(());
        }
        Err(match self.failure(&answer, &list) {
            EngineError::Refused { message, .. } => cannot(message),
            other => other,
        })
    }

    pub(super) async fn make(&self, spec: &BuildSpec, progress: &dyn ProgressSink) -> Result<String> {
        let failed = |message: String, log| EngineError::BuildFailed { message, log };
        let dockerfile = spec.dockerfile.clone();
        let context = self
            .blocking(move || {
                let context = tempfile::tempdir()?;
                std::fs::write(context.path().join("Dockerfile"), dockerfile)?;
                // The builder sees another path for a link.
                let path = context.path().canonicalize()?;
                Ok((context, path))
            })
            .await?;
        let (context, path) = context;
        let mut list = strings(&["build", "--progress", "plain", "--tag", &spec.tag]);
        for (name, value) in &spec.labels {
            list.extend(["--label".to_owned(), format!("{name}={value}")]);
        }
        let path =
            path.to_str().ok_or_else(|| tool::answer("the folder for builds is not UTF-8".to_owned()))?;
        list.extend(["--file".to_owned(), format!("{path}/Dockerfile"), path.to_owned()]);
        let mut child = self.tool().spawn(&mut self.tool().command(&list))?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(tool::answer("it has no standard streams".to_owned()));
        };
        let log = Log { lines: std::sync::Mutex::default(), progress };
        let (out, err) = tokio::join!(log.follow(stdout), log.follow(stderr));
        out.and(err).map_err(|cause| tool::answer(format!("reading its output: {cause}")))?;
        let status = child.wait().await.map_err(|cause| tool::answer(format!("waiting for it: {cause}")))?;
        drop(context);
        if !status.success() {
            // What a step printed is among it, so the service is asked instead.
            self.serves().await?;
            let code =
                status.code().map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
            return Err(failed(code, log.last()));
        }
        let image = self.named(&spec.tag).await?;
        image.map(|image| image.id).ok_or_else(|| failed("it left no image".to_owned(), log.last()))
    }

    pub(super) async fn drop_image(&self, reference: &str) -> Result<()> {
        let reference = if reference.starts_with("sha256:") {
            match self.reference_of(reference).await {
                Ok(reference) => reference,
                Err(EngineError::NoSuchImage { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        } else {
            reference.to_owned()
        };
        if self.named(&reference).await?.is_none() {
            return Ok(());
        }
        let list = strings(&["image", "delete", &reference]);
        let answer = self.ask("remove an image", tool::CHANGE, &list).await?;
        if answer.is_ok() || (words::not_found(&answer.words) && self.named(&reference).await?.is_none()) {
            return Ok(());
        }
        Err(match self.failure(&answer, &list) {
            EngineError::Refused { message, .. }
                if message.contains(" use") || message.contains("referenced") =>
            {
                EngineError::Conflict { message }
            }
            other => other,
        })
    }

    pub(super) async fn take(&self, mut archive: Bytes) -> Result<()> {
        let file = self.blocking(tempfile::tempfile).await?;
        let mut spool = tokio::fs::File::from_std(file);
        tokio::io::copy(&mut archive, &mut spool).await.map_err(|cause| self.disk(&cause))?;
        spool.flush().await.map_err(|cause| self.disk(&cause))?;
        let file = spool.into_std().await;
        let named = self
            .blocking(move || {
                let mut layout = oci::layout(file).map_err(std::io::Error::other)?;
                let mut named = tempfile::Builder::new().suffix(".tar").tempfile()?;
                std::io::copy(&mut layout, named.as_file_mut())?;
                Ok(named)
            })
            .await?;
        let path = named.path().display().to_string();
        let list = strings(&["image", "load", "--input", &path]);
        let mut answer = self.tool().ask_at_length("load an image", &list).await?;
        if answer.is_ok() {
            return Ok(());
        }
        // Some versions complain of the file on standard output.
        if answer.words.trim().is_empty() {
            answer.words = String::from_utf8_lossy(&answer.stdout).into_owned();
        }
        Err(self.failure(&answer, &list))
    }

    pub(super) async fn give(&self, reference: &str) -> Result<File> {
        let reference = match reference.starts_with("sha256:") {
            true => self.reference_of(reference).await?,
            false => reference.to_owned(),
        };
        if self.named(&reference).await?.is_none() {
            return Err(EngineError::NoSuchImage { reference });
        }
        let folder = self.blocking(tempfile::tempdir).await?;
        let path = folder.path().join("image.tar");
        let list = strings(&["image", "save", "--output", &path.display().to_string(), &reference]);
        let answer = self.tool().ask_at_length("save an image", &list).await?;
        if !answer.is_ok() {
            return Err(self.failure(&answer, &list));
        }
        // The folder goes, and what is open of it stays until it is read.
        self.blocking(move || {
            let file = File::open(path)?;
            drop(folder);
            Ok(file)
        })
        .await
    }

    /// The files of an image, which are kept a while: whoever looks at one looks at many.
    pub(super) async fn layers(&self, image: &str) -> Result<Arc<Layers>> {
        let mut kept = self.kept_layers().lock().await;
        kept.take_if(|(_, _, since)| since.elapsed() > LAYERS_KEPT);
        if let Some((known, layers, _)) = kept.as_ref()
            && known == image
        {
            return Ok(Arc::clone(layers));
        }
        let archive = self.give(image).await?;
        let read = self
            .blocking(move || Layers::read(archive, std::env::consts::ARCH).map_err(std::io::Error::other))
            .await?;
        let layers = Arc::new(read);
        *kept = Some((image.to_owned(), Arc::clone(&layers), Instant::now()));
        // A file of the whole image is not kept for nobody.
        let weak = self.downgrade();
        tokio::spawn(async move {
            tokio::time::sleep(LAYERS_KEPT).await;
            if let Some(apple) = weak.upgrade() {
                apple.layers.lock().await.take_if(|(_, _, since)| since.elapsed() >= LAYERS_KEPT);
            }
        });
        Ok(layers)
    }
}

/// The log of a build.
struct Log<'a> {
    lines: std::sync::Mutex<VecDeque<String>>,
    progress: &'a dyn ProgressSink,
}

impl Log<'_> {
    async fn follow(&self, stream: impl AsyncRead + Unpin) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            let count = (&mut stream).take(LINE).read_until(b'\n', &mut line).await?;
            if count == 0 {
                return Ok(());
            }
            self.line(&String::from_utf8_lossy(&line));
        }
    }

    fn line(&self, line: &str) {
        let line = line.trim_end();
        let plain: String = line.chars().filter(|c| *c == '\t' || !c.is_control()).collect();
        if plain.trim().is_empty() {
            return;
        }
        let told = match step(&plain) {
            Some((number, total, what)) => Progress::Step { number, total, what: what.to_owned() },
            None => Progress::Log(output(&plain).to_owned()),
        };
        self.progress.progress(told);
        let mut lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if lines.len() == LOG {
            lines.pop_front();
        }
        lines.push_back(output(&plain).to_owned());
    }

    fn last(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lines.iter().cloned().collect()
    }
}

/// A step's beginning as BuildKit writes it: `#7 [2/4] RUN make`, or `#7 [stage 2/4] RUN make`.
fn step(line: &str) -> Option<(u32, u32, &str)> {
    let (numbers, what) = line.strip_prefix('#')?.split_once(" [")?.1.split_once("] ")?;
    let (number, total) = numbers.rsplit(' ').next()?.split_once('/')?;
    Some((number.parse().ok()?, total.parse().ok()?, what.trim()))
}

/// What a step printed: the line without `#7 0.123 `.
fn output(line: &str) -> &str {
    let rest = line.strip_prefix('#').and_then(|rest| rest.split_once(' ')).filter(|(step, rest)| {
        step.bytes().all(|b| b.is_ascii_digit()) && rest.starts_with(|c: char| c.is_ascii_digit())
    });
    let Some((_, rest)) = rest else { return line };
    match rest.split_once(' ') {
        Some((time, text)) if time.parse::<f64>().is_ok() => text,
        _ => line,
    }
}

/// A list of arguments.
pub(super) fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_from_what_they_print() {
        assert_eq!(step("#7 [2/4] RUN make"), Some((2, 4, "RUN make")));
        assert_eq!(step("#7 [base 2/14] FROM x"), Some((2, 14, "FROM x")));
        for none in ["#1 [internal] load build definition", "#7 0.123 hello", "#7 DONE 0.1s", "[2/4] x", ""] {
            assert_eq!(step(none), None, "{none}");
        }
        assert_eq!(output("#7 0.123 E: Unable to locate package x"), "E: Unable to locate package x");
        assert_eq!(output("#7 DONE 0.1s"), "#7 DONE 0.1s");
        assert_eq!(output("plain"), "plain");
    }
}
