//! `moltis sandbox build`, `list`, `remove` and `clean`: the images that sandboxes start from.

use std::cell::Cell;

use moltis_config::BackendChoice;
use moltis_runtime::{BuildRequested, ImageOf, Runtime};
use moltis_sandbox::{BackendName, Diagnosis, Origin, Setting};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::args;
use crate::building::{Show, watched};
use crate::failure::Failure;
use crate::flags::flag;
use crate::signals::Signals;
use crate::{output, render};

/// `moltis sandbox build`.
pub async fn build(runtime: &Runtime, args: &args::Build) -> Result<i32, Failure> {
    let set = |value| Setting::new(value, Origin::Flag);
    let asked = BuildRequested {
        backend: flag("--backend", args.backend.as_deref(), moltis_config::parse_backend)?.map(set),
        base: flag("--image", args.image.as_deref(), moltis_config::parse_image)?
            .map(|image| Setting::new(image, Origin::Flag)),
        fresh: args.fresh,
    };
    // Signals are caught before anything starts, so that none can leave it behind.
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let (leave, is_told) = (Notify::new(), Cell::new(false));
    let show = if args.json { Show::Json } else { Show::All };
    let building = watched(show, leave.notified(), async |sink| runtime.build_image(&asked, sink).await);
    let built = signals.race(building, || {
        leave.notify_one();
        is_told.set(true);
        true
    });
    let built = match built.await {
        Ok(built) => built,
        Err(number) => return Ok(128 + number),
    };
    let outcome = match (built, signals.ended_by) {
        (Err(_), Some(number)) if is_told.get() => {
            if !args.json {
                crate::say!("moltis: given up; nothing is left of it");
            }
            return Ok(128 + number);
        }
        (built, _) => built?,
    };
    if args.json {
        let mut told = json!({ "backend": outcome.backend, "image": outcome.image });
        if !outcome.prepared.is_empty() {
            told["prepared"] = json!(outcome.prepared);
        }
        return output::print_json(&output::present(told));
    }
    for program in &outcome.prepared {
        let is = if program.new { "is ready" } else { "was ready already" };
        output::print(&format!("{} for {} {is}.\n", render::name(&program.name), outcome.backend))?;
    }
    match outcome.image {
        None if !outcome.prepared.is_empty() => Ok(0),
        None => output::print(&format!("There is nothing to build: {} has no images.\n", outcome.backend)),
        Some(image) => {
            let is = if image.new { "is ready" } else { "was there already" };
            let tag = render::name(&image.tag);
            output::print(&format!("The image {tag} for {} {is}.\n", outcome.backend))
        }
    }
}

/// `moltis sandbox list`.
pub async fn list(runtime: &Runtime, args: &args::Images) -> Result<i32, Failure> {
    let listed = runtime.images(named(args.backend.as_deref())?).await?;
    if args.json {
        let told = |of: &ImageOf<moltis_sandbox::ImageInfo>| {
            let image = &of.image;
            json!({
                "backend": of.backend,
                "tag": image.tag,
                "id": image.id,
                "base": image.base,
                "packages": image.packages,
                "sizeBytes": image.size_bytes,
                "createdMillis": image.created_secs.saturating_mul(1000),
                "inUse": image.in_use,
            })
        };
        let images: Vec<_> = listed.images.iter().map(told).collect();
        return output::print_json(&with_warnings(json!({ "images": images }), &listed.unasked));
    }
    listed.unasked.iter().for_each(render::warning);
    if listed.images.is_empty() {
        return output::print("There are no images of ours.\n");
    }
    let heads = ["TAG", "BACKEND", "BASE", "SIZE", "MADE", "USED", "PACKAGES"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(listed.images.iter().map(|of| {
        let image = &of.image;
        vec![
            render::name(&image.tag),
            of.backend.to_string(),
            render::name(&image.base),
            render::size(image.size_bytes),
            render::age(image.created_secs.saturating_mul(1000)),
            if image.in_use { "yes" } else { "no" }.to_owned(),
            image.packages.len().to_string(),
        ]
    }));
    output::print(&render::table(&rows))
}

/// `moltis sandbox remove`.
pub async fn remove(runtime: &Runtime, args: &args::RemoveImages) -> Result<i32, Failure> {
    let of = named(args.backend.as_deref())?;
    let mut removed = Vec::new();
    for tag in &args.tags {
        let backends = runtime.remove_image(of, tag).await?;
        removed.extend(backends.into_iter().map(|backend| ImageOf { backend, image: tag.clone() }));
    }
    if args.json {
        return output::print_json(&json!({ "removed": tags(&removed) }));
    }
    output::print(&lines("removed", &removed))
}

/// `moltis sandbox clean`.
pub async fn clean(runtime: &Runtime, args: &args::Images) -> Result<i32, Failure> {
    let cleaned = runtime.clean_images(named(args.backend.as_deref())?).await?;
    if args.json {
        let told = json!({
            "removed": tags(&cleaned.removed),
            "kept": tags(&cleaned.kept),
            "freedBytes": cleaned.freed_bytes,
        });
        return output::print_json(&with_warnings(told, &cleaned.unasked));
    }
    cleaned.unasked.iter().for_each(render::warning);
    let mut text = lines("removed", &cleaned.removed);
    let (removed, kept) = (cleaned.removed.len(), cleaned.kept.len());
    text.push_str(&format!("{removed} removed, {kept} kept, {} freed\n", render::size(cleaned.freed_bytes)));
    output::print(&text)
}

/// The backend that a flag names.
fn named(backend: Option<&str>) -> Result<Option<BackendName>, Failure> {
    let choice = flag("--backend", backend, moltis_config::parse_backend)?;
    Ok(choice.and_then(|choice| match choice {
        BackendChoice::Named(name) => Some(name),
        BackendChoice::Auto => None,
    }))
}

fn tags(of: &[ImageOf<String>]) -> Vec<Value> {
    of.iter().map(|of| json!({ "backend": of.backend, "tag": of.image })).collect()
}

fn lines(what: &str, of: &[ImageOf<String>]) -> String {
    of.iter().map(|of| format!("{what} {} from {}\n", render::name(&of.image), of.backend)).collect()
}

fn with_warnings(mut told: Value, warnings: &[Diagnosis]) -> Value {
    if let (Value::Object(fields), false) = (&mut told, warnings.is_empty()) {
        fields.insert("warnings".to_owned(), json!(warnings));
    }
    told
}
