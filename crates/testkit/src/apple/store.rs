//! Images: blobs by digest, and names. Only layers that are not packed are held.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::json::arch;
use super::say::{Failed, Result, error};
use super::state::State;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Names of images, and descriptors of what they name.
pub type Names = BTreeMap<String, Value>;

impl State {
    /// All names.
    pub fn names(&self) -> Names {
        std::fs::read(self.path("images.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }

    /// Writes all names.
    pub fn keep_names(&self, names: &Names) -> Result<()> {
        let text = serde_json::to_vec(names).map_err(error)?;
        std::fs::write(self.path("images.new"), text)?;
        Ok(std::fs::rename(self.path("images.new"), self.path("images.json"))?)
    }

    fn blob_path(&self, digest: &str) -> PathBuf {
        self.path("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }

    /// A blob.
    pub fn blob(&self, digest: &str) -> Result<Vec<u8>> {
        std::fs::read(self.blob_path(digest))
            .map_err(|_| error(format!("notFound: \"blob {digest} not found\"")))
    }

    fn document(&self, digest: &str) -> Result<Value> {
        serde_json::from_slice(&self.blob(digest)?).map_err(error)
    }

    /// Keeps a blob, and answers with its descriptor.
    pub fn keep_blob(&self, kind: &str, bytes: &[u8]) -> Result<Value> {
        let digest = hash(bytes);
        std::fs::create_dir_all(self.path("blobs/sha256"))?;
        std::fs::write(self.blob_path(&digest), bytes)?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
    }

    /// Makes an image of layers, and gives it a name. `about` is the inner `config` of an OCI image.
    pub fn make_image(&self, name: &str, layers: &[Vec<u8>], about: &Value) -> Result<()> {
        let descriptors: Vec<Value> =
            layers.iter().map(|layer| self.keep_blob(LAYER, layer)).collect::<Result<_>>()?;
        let ids: Vec<&Value> = descriptors.iter().map(|descriptor| &descriptor["digest"]).collect();
        let config = json!({
            "architecture": arch(), "os": "linux", "created": "2026-01-02T03:04:05Z", "config": about,
            "rootfs": {"type": "layers", "diff_ids": ids},
        });
        let config = self.keep_blob(CONFIG, config.to_string().as_bytes())?;
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": descriptors});
        let mut manifest = self.keep_blob(MANIFEST, manifest.to_string().as_bytes())?;
        manifest["platform"] = json!({"architecture": arch(), "os": "linux"});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
        let index = self.keep_blob(INDEX, index.to_string().as_bytes())?;
        let mut names = self.names();
        names.insert(normal(name), index);
        self.keep_names(&names)
    }

    /// What a name names.
    pub fn image(&self, name: &str) -> Option<(String, Value)> {
        let name = normal(name);
        let descriptor = self.names().get(&name)?.clone();
        Some((name, descriptor))
    }

    /// The manifests that a descriptor leads to, each with its platform.
    fn manifests(&self, descriptor: &Value) -> Result<Vec<(Value, Value)>> {
        let document = self.document(descriptor["digest"].as_str().unwrap_or_default())?;
        let Some(manifests) = document["manifests"].as_array() else {
            let config = self.document(document["config"]["digest"].as_str().unwrap_or_default())?;
            let platform = json!({"architecture": config["architecture"], "os": config["os"]});
            return Ok(vec![(platform, document)]);
        };
        let each = manifests.iter().map(|manifest| {
            let document = self.document(manifest["digest"].as_str().unwrap_or_default())?;
            Ok((manifest["platform"].clone(), document))
        });
        each.collect()
    }

    /// The variants of an image, as they are printed.
    pub fn variants(&self, descriptor: &Value) -> Result<Value> {
        let each = self.manifests(descriptor)?.into_iter().map(|(platform, manifest)| {
            let config = self.document(manifest["config"]["digest"].as_str().unwrap_or_default())?;
            let layers = manifest["layers"].as_array().cloned().unwrap_or_default();
            let size: u64 = layers.iter().filter_map(|layer| layer["size"].as_u64()).sum();
            Ok(json!({"platform": platform, "size": size, "config": config}))
        });
        Ok(Value::Array(each.collect::<Result<Vec<_>>>()?))
    }

    /// The inner `config` of an image for this machine.
    pub fn about(&self, descriptor: &Value) -> Result<Value> {
        let variants = self.variants(descriptor)?;
        let list = variants.as_array().cloned().unwrap_or_default();
        let found = list.iter().find(|variant| variant["platform"]["architecture"] == arch());
        found
            .map(|variant| variant["config"]["config"].clone())
            .ok_or_else(|| error("unsupported: \"platform\""))
    }

    /// The layers of an image for this machine.
    pub fn layers(&self, descriptor: &Value) -> Result<Vec<Vec<u8>>> {
        let manifests = self.manifests(descriptor)?;
        let found = manifests.iter().find(|(platform, _)| platform["architecture"] == arch());
        let (_, manifest) = found.ok_or_else(|| error("unsupported: \"platform\""))?;
        let layers = manifest["layers"].as_array().cloned().unwrap_or_default();
        layers.iter().map(|layer| self.blob(layer["digest"].as_str().unwrap_or_default())).collect()
    }

    /// Lays the files of an image down in a folder.
    pub fn unpack(&self, descriptor: &Value, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        for layer in self.layers(descriptor)? {
            let mut archive = tar::Archive::new(&layer[..]);
            archive.set_preserve_permissions(true);
            archive.set_overwrite(true);
            archive.unpack(folder)?;
        }
        Ok(())
    }

    /// Writes images as a layout.
    pub fn save(&self, names: &[String], place: &Path) -> Result<()> {
        let mut archive = tar::Builder::new(File::create(place)?);
        let mut written = std::collections::BTreeSet::new();
        let mut roots = Vec::new();
        for name in names {
            let (name, descriptor) = self.image(name).ok_or_else(|| no_image(name))?;
            let mut left = vec![descriptor["digest"].clone()];
            while let Some(digest) = left.pop() {
                let digest = digest.as_str().unwrap_or_default().to_owned();
                let bytes = self.blob(&digest)?;
                if !written.insert(digest.clone()) {
                    continue;
                }
                if let Ok(document) = serde_json::from_slice::<Value>(&bytes) {
                    let lists = [&document["manifests"], &document["layers"]];
                    left.extend(
                        lists
                            .iter()
                            .filter_map(|list| list.as_array())
                            .flatten()
                            .map(|d| d["digest"].clone()),
                    );
                    left.extend(document["config"].get("digest").cloned());
                }
                append(&mut archive, &format!("blobs/sha256/{}", &digest["sha256:".len()..]), &bytes)?;
            }
            let mut root = descriptor.clone();
            root["annotations"] = json!({"org.opencontainers.image.ref.name": name});
            roots.push(root);
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": roots});
        append(&mut archive, "index.json", index.to_string().as_bytes())?;
        append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        archive.finish()?;
        Ok(())
    }

    /// Takes images from a layout, and answers with their names.
    pub fn load(&self, place: &Path) -> Result<Vec<String>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(File::open(place)?).entries()? {
            let mut entry = entry?;
            let name = entry.path()?.display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            files.insert(name, bytes);
        }
        let file =
            |name: &str| files.get(name).ok_or_else(|| error(format!("notFound: \"/var/folders/{name}\"")));
        file("oci-layout")?;
        let index: Value = serde_json::from_slice(file("index.json")?).map_err(error)?;
        if index["mediaType"] != INDEX {
            return Err(error("invalidArgument: \"index without a media type\""));
        }
        for (name, bytes) in &files {
            let Some(digest) = name.strip_prefix("blobs/sha256/") else { continue };
            if hash(bytes) != digest {
                return Err(error(format!("invalidArgument: \"digest mismatch of {digest}\"")));
            }
            self.keep_blob("", bytes)?;
        }
        let mut names = self.names();
        let mut loaded = Vec::new();
        for root in index["manifests"].as_array().into_iter().flatten() {
            let keys = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
            let name = keys.iter().find_map(|key| root["annotations"][key].as_str());
            let Some(name) = name.map(normal) else { continue };
            let mut descriptor = root.clone();
            descriptor.as_object_mut().map(|descriptor| descriptor.remove("annotations"));
            // All of it must be there.
            self.layers(&descriptor)?;
            names.insert(name.clone(), descriptor);
            loaded.push(name);
        }
        self.keep_names(&names)?;
        Ok(loaded)
    }
}

/// An image that is not there.
pub fn no_image(name: &str) -> Failed {
    error(format!("notFound: \"Image not found: {name}\""))
}

/// A name with its registry and tag.
pub fn normal(name: &str) -> String {
    let (first, rest) = name.split_once('/').unwrap_or(("", name));
    let has_registry = first.contains('.') || first.contains(':') || first == "localhost";
    let full = match (has_registry, first) {
        (true, _) => name.to_owned(),
        (false, "") => format!("docker.io/library/{rest}"),
        (false, _) => format!("docker.io/{name}"),
    };
    let last = full.rsplit('/').next().unwrap_or_default();
    if last.contains(':') || last.contains('@') { full } else { format!("{full}:latest") }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn append(archive: &mut tar::Builder<File>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    Ok(archive.append_data(&mut header, name, bytes)?)
}
