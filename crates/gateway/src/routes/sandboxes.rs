//! Backends, sandboxes, images, and the room that all of it takes.

use axum::http::Method;
use moltis_config::{parse_backend, parse_image};
use moltis_runtime::{BuildOutcome, BuildRequested, ImageOf};
use moltis_sandbox::{BackendName, BuildSink, Diagnosis, Error, Origin, SandboxId, Setting};
use serde::Deserialize;
use serde_json::{Value, json};

use super::exec::{error_event, progressed};
use crate::ask::word;
use crate::call::{Call, nothing, ok};
use crate::live::{self, EVENTS, Event, LINES};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Param, Route, Rule, needed, query};
use crate::schema::{flag, has, list as list_of, may, named, object, text, text_of, word as word_of};

const FORMS: [&str; 3] = ["application/json", EVENTS, LINES];

fn backend_param() -> Param {
    query("backend", "Of this backend alone", word_of(&BackendName::ALL.map(BackendName::as_str)))
}

/// The routes.
pub fn routes() -> Vec<Route> {
    let read = Rule::read(Bound::Never);
    let write = Rule::write(Bound::Never);
    let one = |route: Route| {
        route.part("sandbox", "The sandbox's id, 40 hexadecimal digits", text_of(40, 40)).runs()
    };
    vec![
        Route::new(Method::GET, "/api/v1/backends", "listBackends", Rule::read(Bound::Filtered), backends)
            .about("Backends", "Each backend: whether it is usable now, what it keeps, and what would mend it")
            .runs()
            .answers(
                200,
                "All of them, in the order of `auto`",
                object("", [
                    has("backends", "", list_of(named("Backend"))),
                    has("warnings", "", list_of(named("Diagnosis"))),
                    may("upstream", "The proxy in front of the network `trusted`", text()),
                ]),
            ),
        Route::new(Method::GET, "/api/v1/sandboxes", "listSandboxes", Rule::read(Bound::Filtered), list)
            .about("Sandboxes", "Sandboxes of all backends, those that are written down but gone too")
            .runs()
            .answers(200, "All of them", object("", [has("sandboxes", "", list_of(named("Sandbox")))])),
        one(Route::new(Method::DELETE, "/api/v1/sandboxes/{sandbox}", "removeSandbox", write, remove))
            .about("Sandboxes", "End a sandbox, and remove what is left of it but its home")
            .answers_nothing(204, "It is gone"),
        one(Route::new(Method::POST, "/api/v1/sandboxes/{sandbox}/stop", "stopSandbox", write, stop))
            .about("Sandboxes", "End a sandbox that is there, with all that runs in it")
            .answers(200, "It is ended", object("", [has("ended", "Whether it ran", flag())])),
        Route::new(Method::POST, "/api/v1/sandboxes/prune", "pruneSandboxes", write, prune)
            .about("Sandboxes", "Remove what is left of sandboxes that are dead or belong to nobody")
            .json(object("", [may("idle", "Also those in which nothing runs", flag())]))
            .or_nothing()
            .runs()
            .answers(200, "What was removed", named("Pruned")),
        Route::new(Method::GET, "/api/v1/disk", "getDiskUse", read, disk)
            .about("Sandboxes", "What the data directory takes, and what is free")
            .runs()
            .answers(200, "Part by part", named("Disk")),
        Route::new(Method::GET, "/api/v1/images", "listImages", read, images)
            .about("Images", "The images that Moltis has built")
            .with([backend_param()])
            .runs()
            .answers(
                200,
                "All of them, by backend",
                object("", [
                    has("images", "", list_of(named("Image"))),
                    has("warnings", "Why other backends could not be asked", list_of(named("Diagnosis"))),
                ]),
            ),
        Route::new(Method::POST, "/api/v1/images/build", "buildImage", write, build)
            .about("Images", "Make the configuration's image ready")
            .more(
                "With `Accept: text/event-stream` or `application/x-ndjson` the events are `progress`, and at the end \
                 `built` or `error`. Once the caller goes away it is given up.",
            )
            .json(named("BuildRequest"))
            .or_nothing()
            .runs()
            .fails(&[406])
            .answers_in(200, "It is ready", vec![(FORMS[0], named("Built")), (EVENTS, text()), (LINES, text())]),
        Route::new(Method::DELETE, "/api/v1/images", "removeImage", write, remove_image)
            .about("Images", "Remove an image that Moltis has built")
            .with([needed("tag", "Its tag", text_of(1, 512)), backend_param()])
            .runs()
            .answers(200, "It is gone from these", object("", [has("removed", "", list_of(named("ImageTag")))])),
        Route::new(Method::POST, "/api/v1/images/clean", "cleanImages", write, clean)
            .about("Images", "Remove the images that neither a session nor a container uses")
            .with([backend_param()])
            .runs()
            .answers(200, "What was removed", named("CleanedImages")),
    ]
}

async fn backends(call: Call) -> Answered {
    let runtime = call.runtime();
    let backends = runtime.backends().await;
    let mut warnings: Vec<Diagnosis> = Vec::new();
    if call.who.sessions().is_none() {
        match runtime.shared_home_warning().await {
            Ok(warning) => warnings.extend(warning),
            Err(error) => warnings.push(error.diagnosis().clone()),
        }
    }
    let mut answer = json!({ "backends": backends });
    match runtime.upstream() {
        Ok(Some(upstream)) => answer["upstream"] = upstream.into(),
        Ok(None) => {}
        Err(error) => warnings.push(error.diagnosis().clone()),
    }
    answer["warnings"] = json!(warnings);
    ok(&answer)
}

async fn list(call: Call) -> Answered {
    let mut all = call.runtime().sandboxes().await?;
    if call.who.sessions().is_some() {
        all.retain(|info| info.session.as_ref().is_some_and(|key| call.who.sees(key)));
    }
    ok(&json!({ "sandboxes": all }))
}

fn id(call: &Call) -> Result<SandboxId, Problem> {
    let text = call.part("sandbox");
    SandboxId::parse(text).ok_or_else(|| missing(text))
}

fn missing(text: &str) -> Problem {
    Problem::missing("sandbox-missing", format!("there is no sandbox {text:?}"))
        .fix("GET /api/v1/sandboxes lists those that there are")
}

async fn remove(call: Call) -> Answered {
    let id = id(&call)?;
    call.runtime().remove_sandbox(&id).await?;
    nothing()
}

async fn stop(call: Call) -> Answered {
    let (id, runtime) = (id(&call)?, call.runtime());
    let all = runtime.sandboxes().await?;
    let found = all.into_iter().find(|info| info.id == id).ok_or_else(|| missing(id.as_str()))?;
    let ended = match &found.session {
        Some(key) => runtime.stop_sandbox(key).await? == moltis_runtime::Stopped::Ended,
        None => {
            runtime.remove_sandbox(&id).await?;
            found.running
        }
    };
    ok(&json!({ "ended": ended }))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Prune {
    idle: bool,
}

async fn prune(mut call: Call) -> Answered {
    let Prune { idle } = call.json().await?;
    ok(&call.runtime().prune(idle).await?)
}

async fn disk(call: Call) -> Answered {
    ok(&call.runtime().disk().await?)
}

fn backend(call: &Call) -> Option<BackendName> {
    call.query("backend").and_then(|word| word.parse().ok())
}

async fn images(call: Call) -> Answered {
    let listed = call.runtime().images(backend(&call)).await?;
    let images: Vec<_> = listed
        .images
        .iter()
        .map(|of| {
            let image = &of.image;
            json!({
                "backend": of.backend, "tag": image.tag, "id": image.id, "base": image.base,
                "packages": image.packages, "sizeBytes": image.size_bytes,
                "createdMillis": image.created_secs.saturating_mul(1000), "inUse": image.in_use,
            })
        })
        .collect();
    ok(&json!({ "images": images, "warnings": listed.unasked }))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Build {
    backend: Option<String>,
    base: Option<String>,
    fresh: bool,
}

fn built(outcome: &BuildOutcome) -> Value {
    let mut told = json!({ "backend": outcome.backend, "prepared": outcome.prepared });
    if let Some(image) = &outcome.image {
        told["image"] = json!(image);
    }
    told
}

async fn build(mut call: Call) -> Answered {
    let kind = call.wants(&FORMS)?;
    let Build { backend, base, fresh } = call.json().await?;
    let base = word("base", base.as_deref(), parse_image)?;
    if let Some(image) = &base {
        let asked = crate::grants::Asked { image: Some(image), ..Default::default() };
        crate::grants::see(&call.runtime(), &call.who, asked).await?;
    }
    let asked = BuildRequested {
        backend: word("backend", backend.as_deref(), parse_backend)?
            .map(|word| Setting::new(word, Origin::Api)),
        base: base.map(|image| Setting::new(image, Origin::Api)),
        fresh,
    };
    let runtime = call.runtime();
    let (sink, mut progress) = BuildSink::channel();
    let building = {
        let sink = sink.clone();
        async move { runtime.build_image(&asked, &sink).await }
    };
    drop(sink);
    let mut building: Building = Box::pin(building);
    if kind == FORMS[0] {
        let outcome = loop {
            tokio::select! {
                done = &mut building => break done?,
                // Nobody looks on, and nobody is to wait for that.
                Some(_) = progress.recv() => {}
            }
        };
        return ok(&built(&outcome));
    }
    let first = tokio::select! {
        biased;
        done = &mut building => return match done {
            Ok(outcome) => {
                let event = Event::new("built", built(&outcome));
                Ok(live::answer(kind, futures_util::stream::iter([event])))
            }
            Err(error) => Err(error.into()),
        },
        Some(told) = progress.recv() => told,
    };
    let events = futures_util::stream::unfold(Some((building, progress, Some(first))), |state| async move {
        let (mut building, mut progress, first) = state?;
        if let Some(told) = first {
            return Some((progressed(told), Some((building, progress, None))));
        }
        tokio::select! {
            biased;
            Some(told) = progress.recv() => Some((progressed(told), Some((building, progress, None)))),
            done = &mut building => Some((
                match done {
                    Ok(outcome) => Event::new("built", built(&outcome)),
                    Err(error) => error_event(error),
                },
                None,
            )),
        }
    });
    Ok(live::answer(kind, events))
}

type Building = futures_util::future::BoxFuture<'static, Result<BuildOutcome, Error>>;

fn tags(of: &[ImageOf<String>]) -> Vec<Value> {
    of.iter().map(|of| json!({ "backend": of.backend, "tag": of.image })).collect()
}

async fn remove_image(call: Call) -> Answered {
    let tag = call.query("tag").unwrap_or_default().to_owned();
    let removed = call.runtime().remove_image(backend(&call), &tag).await?;
    let removed: Vec<_> =
        removed.into_iter().map(|backend| ImageOf { backend, image: tag.clone() }).collect();
    ok(&json!({ "removed": tags(&removed) }))
}

async fn clean(call: Call) -> Answered {
    let cleaned = call.runtime().clean_images(backend(&call)).await?;
    ok(&json!({
        "removed": tags(&cleaned.removed), "kept": tags(&cleaned.kept), "freedBytes": cleaned.freed_bytes,
        "warnings": cleaned.unasked,
    }))
}
