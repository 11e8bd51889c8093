//! `container image …` and `container build`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::flags::Line;
use super::json;
use super::say::{Failed, Result, error, program, usage};
use super::state::State;
use super::store::{no_image, normal};

/// Runs one of them.
pub fn run(state: &State, command: &str, line: &Line) -> Result {
    match command {
        "image list" => list(state, line),
        "image inspect" => inspect(state, line),
        "image pull" => pull(state, line),
        "image save" => save(state, line),
        "image load" => load(state, line),
        "image delete" => delete(state, line),
        "build" => build(state, line),
        _ => Err(usage(command, "Unexpected argument")),
    }
}

fn list(state: &State, line: &Line) -> Result {
    let names = state.names();
    if line.value("--format") == Some("json") {
        let each = names.iter().map(|(name, descriptor)| {
            Ok(json::listed(state.version(), name, descriptor, &state.variants(descriptor)?))
        });
        println!("{}", Value::Array(each.collect::<Result<Vec<_>>>()?));
        return Ok(0);
    }
    println!("NAME");
    names.keys().for_each(|name| println!("{name}"));
    Ok(0)
}

fn inspect(state: &State, line: &Line) -> Result {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in &line.arguments {
        match state.image(name) {
            Some((name, descriptor)) => {
                found.push(json::inspected(
                    state.version(),
                    &name,
                    &descriptor,
                    &state.variants(&descriptor)?,
                ));
            }
            None => missing.push(name),
        }
    }
    if let Some(name) = missing.first() {
        eprintln!("image inspect failed: [\"name\": {name}, \"error\": Image not found]");
        return Err(error(format!(
            "InspectError(succeeded: [], failed: [(\"{name}\", notFound: \"Image not found\")])"
        )));
    }
    println!("{}", Value::Array(found));
    Ok(0)
}

/// The registry is a folder of layouts, each named as its image with `_` for `/` and `:`.
fn pull(state: &State, line: &Line) -> Result {
    let [name] = &line.arguments[..] else {
        return Err(usage("image pull", "Missing expected argument '<reference>'"));
    };
    let name = normal(name);
    let place = state.path("registry").join(name.replace(['/', ':'], "_"));
    if !place.is_file() {
        return Err(error(format!(
            "notFound: \"failed to fetch {name}: HTTP request failed with status 404\""
        )));
    }
    let _held = state.lock()?;
    state.load(&place)?;
    println!("{name}");
    Ok(0)
}

fn save(state: &State, line: &Line) -> Result {
    let output = line
        .value("--output")
        .ok_or_else(|| usage("image save", "Missing expected argument '--output <output>'"))?;
    if line.arguments.is_empty() {
        return Err(usage("image save", "Missing expected argument '<references> ...'"));
    }
    state.save(&line.arguments, Path::new(output))?;
    Ok(0)
}

fn load(state: &State, line: &Line) -> Result {
    let input = line
        .value("--input")
        .ok_or_else(|| usage("image load", "Missing expected argument '--input <input>'"))?;
    if !Path::new(input).is_file() {
        println!("File does not exist {input}");
        return Err(Failed { code: 1, words: String::new() });
    }
    let _held = state.lock()?;
    for name in state.load(Path::new(input))? {
        println!("{name}");
    }
    Ok(0)
}

fn delete(state: &State, line: &Line) -> Result {
    let _held = state.lock()?;
    let mut names = state.names();
    for name in &line.arguments {
        let (name, _) = state.image(name).ok_or_else(|| no_image(name))?;
        if state.containers().iter().any(|kept| kept.image.0 == name && state.process(&kept.id).is_some()) {
            return Err(error(format!("invalidState: \"image {name} is in use by a running container\"")));
        }
        names.remove(&name);
    }
    state.keep_names(&names)?;
    Ok(0)
}

/// Builds by a few instructions; what `RUN` does is done in the image's files.
fn build(state: &State, line: &Line) -> Result {
    let tags = line.all("--tag");
    let [context] = &line.arguments[..] else {
        return Err(usage("build", "Missing expected argument '<context-dir>'"));
    };
    if !Path::new(context).is_dir() {
        return Err(error(format!("invalidArgument: \"no such directory {context}\"")));
    }
    if line.value("--progress").is_some_and(|kind| !matches!(kind, "auto" | "plain" | "tty")) {
        return Err(usage("build", "The value is invalid for '--progress <type>'"));
    }
    let file = line.value("--file").map_or_else(|| format!("{context}/Dockerfile"), str::to_owned);
    let text = std::fs::read_to_string(&file).map_err(|_| error(format!("notFound: \"{file}\"")))?;
    let steps: Vec<&str> =
        text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    let work = tempfile::tempdir_in(state.path("."))?;
    let root = work.path().join("root");
    let mut about = json!({"Env": [], "Labels": {}});
    for (at, step) in steps.iter().enumerate() {
        eprintln!("#{} [{}/{}] {step}", at + 5, at + 1, steps.len());
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        match word {
            "FROM" => {
                let (_, base) = state.image(rest).ok_or_else(|| no_image(rest))?;
                state.unpack(&base, &root)?;
                about = state.about(&base)?;
            }
            "RUN" => {
                let done = Command::new(program("chroot")?)
                    .arg(&root)
                    .args(["/bin/sh", "-c", rest])
                    .env_clear()
                    .env("PATH", "/bin:/usr/bin")
                    .stdin(Stdio::null())
                    .output()?;
                for text in [&done.stdout, &done.stderr] {
                    String::from_utf8_lossy(text)
                        .lines()
                        .for_each(|text| eprintln!("#{} 0.1 {text}", at + 5));
                }
                if !done.status.success() {
                    let code = done.status.code().unwrap_or(-1);
                    return Err(error(format!(
                        "unknown: \"failed to solve: process \"/bin/sh -c {rest}\" did not complete successfully: exit code: {code}\""
                    )));
                }
                eprintln!("#{} DONE 0.1s", at + 5);
            }
            "ENV" => about["Env"].as_array_mut().map_or((), |env| env.push(json!(rest))),
            "WORKDIR" => about["WorkingDir"] = json!(rest),
            "USER" => about["User"] = json!(rest),
            "LABEL" => {
                let (name, value) = rest.split_once('=').unwrap_or((rest, ""));
                about["Labels"][name] = json!(value.trim_matches('"'));
            }
            "SHELL" | "HEALTHCHECK" | "ARG" => {}
            _ => return Err(error(format!("unknown: \"failed to solve: unknown instruction: {word}\""))),
        }
    }
    for label in line.all("--label") {
        let (name, value) = label.split_once('=').unwrap_or((label, ""));
        about["Labels"][name] = json!(value);
    }
    let mut layer = tar::Builder::new(Vec::new());
    layer.follow_symlinks(false);
    layer.append_dir_all(".", &root)?;
    let layer = layer.into_inner()?;
    let _held = state.lock()?;
    for tag in tags {
        state.make_image(tag, std::slice::from_ref(&layer), &about)?;
        println!("{}", normal(tag));
    }
    Ok(0)
}
