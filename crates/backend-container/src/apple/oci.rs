//! An archive as `docker save` and `podman save` write it, made into the OCI image layout, which is all that the tool
//! loads. One that holds a layout already (newer Dockers write both) is left as it is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Bytes of a description, at most.
const MAX_TEXT: u64 = 4 << 20;
/// Images and layers of an archive, at most.
const MANY: usize = 1024;

/// Why an archive cannot be made into a layout.
#[derive(Debug, thiserror::Error)]
pub enum Odd {
    /// The file system's or the archive's trouble.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A description in it is none.
    #[error("its {0} cannot be read: {1}")]
    Text(String, serde_json::Error),
    /// It is no such archive.
    #[error("it is no image archive: {0}")]
    Archive(String),
}

/// An image in `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The archive as a layout: itself, or another file without a name. Blocks.
///
/// # Errors
/// When it is neither.
pub fn layout(mut archive: File) -> Result<File, Odd> {
    let places = places(&mut archive)?;
    if places.contains_key("oci-layout") && places.contains_key("index.json") {
        archive.seek(SeekFrom::Start(0))?;
        return Ok(archive);
    }
    let saved = text(&mut archive, &places, "manifest.json")?;
    let saved: Vec<Saved> =
        serde_json::from_slice(&saved).map_err(|error| Odd::Text("manifest.json".to_owned(), error))?;
    if saved.len() > MANY || saved.iter().any(|image| image.layers.len() > MANY) {
        return Err(Odd::Archive(format!("more than {MANY} images or layers")));
    }
    let mut out = Layout::new()?;
    let mut manifests = Vec::new();
    for image in &saved {
        let config = text(&mut archive, &places, &image.config)?;
        let described: Value =
            serde_json::from_slice(&config).map_err(|error| Odd::Text(image.config.clone(), error))?;
        let config = out.blob("application/vnd.oci.image.config.v1+json", &config)?;
        let mut layers = Vec::new();
        for layer in &image.layers {
            layers.push(out.copy(&mut archive, place(&places, layer)?)?);
        }
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        let mut descriptor = out.blob(MANIFEST, manifest.to_string().as_bytes())?;
        descriptor["platform"] = json!({
            "architecture": described.get("architecture").cloned().unwrap_or_default(),
            "os": described.get("os").cloned().unwrap_or_default(),
        });
        for tag in image.repo_tags.iter().flatten() {
            let mut named = descriptor.clone();
            named["annotations"] =
                json!({"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag});
            manifests.push(named);
        }
        if image.repo_tags.as_ref().is_none_or(Vec::is_empty) {
            manifests.push(descriptor);
        }
    }
    // Without its media type some versions reject it.
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    out.file("index.json", index.to_string().as_bytes())?;
    out.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    out.finish()
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Where the files of an archive lie in it: offset and size.
pub type Places = BTreeMap<String, (u64, u64)>;

/// Looks where everything is.
///
/// # Errors
/// When it is no archive.
pub fn places(archive: &mut File) -> Result<Places, Odd> {
    archive.seek(SeekFrom::Start(0))?;
    let mut found = Places::new();
    let mut links = Vec::new();
    for entry in tar::Archive::new(&mut *archive).entries_with_seek()? {
        let entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        let kind = entry.header().entry_type();
        if kind.is_file() {
            found.insert(name, (entry.raw_file_position(), entry.size()));
        } else if kind.is_symlink() || kind.is_hard_link() {
            // Layers that are alike are links to one another.
            let target = entry.link_name_bytes().unwrap_or_default();
            links.push((name, String::from_utf8_lossy(&target).into_owned(), kind.is_symlink()));
        }
        if found.len() + links.len() > 100 * MANY {
            return Err(Odd::Archive("too many files".to_owned()));
        }
    }
    for (name, target, symbolic) in links {
        let parent = if symbolic { name.rsplit_once('/').map_or("", |(parent, _)| parent) } else { "" };
        let mut parts: Vec<&str> = parent.split('/').filter(|part| !part.is_empty()).collect();
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        if let Some(place) = found.get(&parts.join("/")).copied() {
            found.insert(name, place);
        }
    }
    Ok(found)
}

fn place(places: &Places, name: &str) -> Result<(u64, u64), Odd> {
    places.get(name).copied().ok_or_else(|| Odd::Archive(format!("there is no {name:?} in it")))
}

/// A small file of an archive.
///
/// # Errors
/// When it is not there or not small.
pub fn text(archive: &mut File, places: &Places, name: &str) -> Result<Vec<u8>, Odd> {
    let (offset, size) = place(places, name)?;
    if size > MAX_TEXT {
        return Err(Odd::Archive(format!("{name:?} is too large")));
    }
    archive.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    archive.take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A layout that is being written.
struct Layout {
    archive: tar::Builder<File>,
    written: std::collections::BTreeSet<String>,
}

impl Layout {
    fn new() -> Result<Self, Odd> {
        Ok(Self { archive: tar::Builder::new(tempfile::tempfile()?), written: Default::default() })
    }

    fn append(&mut self, name: &str, size: u64, bytes: impl Read) -> Result<(), Odd> {
        if !self.written.insert(name.to_owned()) {
            return Ok(());
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        Ok(self.archive.append_data(&mut header, name, bytes)?)
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), Odd> {
        self.append(name, bytes.len() as u64, bytes)
    }

    /// Writes a blob, and answers with its descriptor.
    fn blob(&mut self, kind: &str, bytes: &[u8]) -> Result<Value, Odd> {
        let digest = crate::apple::hex(&Sha256::digest(bytes));
        self.file(&format!("blobs/sha256/{digest}"), bytes)?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
    }

    /// Copies a layer, packed or not.
    fn copy(&mut self, from: &mut File, (offset, size): (u64, u64)) -> Result<Value, Odd> {
        from.seek(SeekFrom::Start(offset))?;
        let mut hash = Sha256::new();
        let mut beginning = Vec::new();
        let mut left = from.take(size);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = left.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            if beginning.is_empty() {
                beginning = buffer[..count.min(4)].to_vec();
            }
            hash.update(&buffer[..count]);
        }
        let digest = crate::apple::hex(&hash.finalize());
        from.seek(SeekFrom::Start(offset))?;
        self.append(&format!("blobs/sha256/{digest}"), size, from.take(size))?;
        let kind = match &beginning[..] {
            [0x1f, 0x8b, ..] => "application/vnd.oci.image.layer.v1.tar+gzip",
            [0x28, 0xb5, 0x2f, 0xfd] => "application/vnd.oci.image.layer.v1.tar+zstd",
            _ => "application/vnd.oci.image.layer.v1.tar",
        };
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size}))
    }

    fn finish(self) -> Result<File, Odd> {
        let mut file = self.archive.into_inner()?;
        file.flush()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &[u8])]) -> File {
        let mut builder = tar::Builder::new(tempfile::tempfile().unwrap());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_docker_archive_becomes_a_layout_in_which_every_digest_is_right() {
        let config = br#"{"architecture":"amd64","os":"linux"}"#;
        let manifest =
            br#"[{"Config":"c.json","RepoTags":["a:1","b:2"],"Layers":["x/layer.tar","y/layer.tar"]}]"#;
        let mut out = layout(archive(&[
            ("c.json", config),
            ("x/layer.tar", b"first"),
            ("y/layer.tar", &[0x1f, 0x8b, 8]),
            ("manifest.json", manifest),
        ]))
        .unwrap();
        let places = places(&mut out).unwrap();
        let index: Value = serde_json::from_slice(&text(&mut out, &places, "index.json").unwrap()).unwrap();
        let manifests = index["manifests"].as_array().unwrap();
        let names: Vec<_> = manifests
            .iter()
            .map(|m| m["annotations"]["io.containerd.image.name"].as_str().unwrap())
            .collect();
        assert_eq!((names, index["mediaType"].as_str()), (vec!["a:1", "b:2"], Some(INDEX)));
        assert_eq!(manifests[0]["platform"], json!({"architecture": "amd64", "os": "linux"}));
        let mut read = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let bytes = text(&mut out, &places, &format!("blobs/sha256/{digest}")).unwrap();
            assert_eq!(crate::apple::hex(&Sha256::digest(&bytes)), digest);
            assert_eq!(descriptor["size"], bytes.len());
            bytes
        };
        let manifest: Value = serde_json::from_slice(&read(&manifests[0])).unwrap();
        assert_eq!(read(&manifest["config"]), config);
        assert_eq!(read(&manifest["layers"][0]), b"first");
        let packed = "application/vnd.oci.image.layer.v1.tar+gzip";
        assert_eq!(manifest["layers"][1]["mediaType"], packed);
        assert_eq!(read(&manifest["layers"][1]), [0x1f, 0x8b, 8]);
    }

    #[test]
    fn a_layout_stays_as_it_is_and_anything_else_is_refused() {
        let files: &[(&str, &[u8])] =
            &[("oci-layout", b"{}"), ("index.json", b"{}"), ("manifest.json", b"[]")];
        let mut same = layout(archive(files)).unwrap();
        assert_eq!(places(&mut same).unwrap().len(), 3);
        for bad in [
            archive(&[("x", b"y")]),
            archive(&[("manifest.json", b"nonsense")]),
            archive(&[("manifest.json", br#"[{"Config":"../c","Layers":[]}]"#)]),
            archive(&[("manifest.json", br#"[{"Config":"manifest.json","Layers":["gone"]}]"#)]),
        ] {
            assert!(layout(bad).is_err());
        }
        let mut garbage = tempfile::tempfile().unwrap();
        garbage.write_all(&[7; 4096]).unwrap();
        assert!(layout(garbage).is_err());
    }
}
