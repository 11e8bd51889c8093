//! The backends on trial, and their broken doubles.

use std::sync::Arc;

use moltis_backend_container::ContainerBackend;
use moltis_backend_container::engine::{EngineKind, Environment};
use moltis_backend_host::{NoneBackend, RestrictedHostBackend};
use moltis_backend_namespaces::NamespacesBackend;
use moltis_backend_wasm::WasmBackend;
use moltis_sandbox::{ImageChoice, Setting};
use moltis_testkit::Subject;
use moltis_testkit::broken::{Fault, broken};
use moltis_testkit::subject::Folders;

/// The column of the built-in sandbox.
pub const NAMESPACES: &str = "namespaces";

/// The column of the restricted host.
pub const RESTRICTED_HOST: &str = "restricted-host";

/// The column of containers in Docker.
pub const DOCKER: &str = "docker";

/// The column of containers in Podman.
pub const PODMAN: &str = "podman";

/// What containers start from here: a base that is in the engines already, with nothing baked on it.
pub const IMAGE: &str = "localhost/sandbox-base:debian";

/// The column of no sandbox at all.
pub const NONE: &str = "none";

/// The column of the in-process shell.
pub const WASM: &str = "wasm";

fn on_host(folders: &Folders) -> moltis_backend_host::Config {
    let (data_dir, config_dir) = (folders.data.clone(), Some(folders.config.clone()));
    moltis_backend_host::Config { data_dir, config_dir }
}

fn container(name: &str, kind: EngineKind) -> Subject {
    let image = ImageChoice::Base {
        reference: Setting::built_in(IMAGE.to_owned()),
        packages: Setting::built_in(Vec::new()),
    };
    let subject = Subject::new(name, move |folders| {
        Arc::new(ContainerBackend::new(moltis_backend_container::Config {
            kind,
            data_dir: folders.data.clone(),
            config_dir: Some(folders.config.clone()),
            host_data_dir: None,
            prefix: "moltis-testkit".to_owned(),
            environment: Environment::of_process(),
        }))
    });
    subject.of_image(image)
}

/// Every backend of this program, in the order of the matrix.
pub fn backends() -> Vec<Subject> {
    let namespaces = Subject::new(NAMESPACES, |folders| {
        let (data_dir, config_dir) = (folders.data.clone(), Some(folders.config.clone()));
        Arc::new(NamespacesBackend::new(moltis_backend_namespaces::Config { data_dir, config_dir }))
    });
    let restricted =
        Subject::new(RESTRICTED_HOST, |folders| Arc::new(RestrictedHostBackend::new(on_host(folders))));
    let none = Subject::new(NONE, |folders| Arc::new(NoneBackend::new(on_host(folders))));
    let wasm = Subject::new(WASM, |folders| {
        Arc::new(WasmBackend::new(moltis_backend_wasm::Config {
            data_dir: folders.data.clone(),
            config_dir: Some(folders.config.clone()),
            commands: std::collections::BTreeMap::new(),
            epoch_interval: std::time::Duration::from_millis(100),
            fuel: 1_000_000_000,
        }))
    });
    let docker = container(DOCKER, EngineKind::Docker);
    let podman = container(PODMAN, EngineKind::Podman);
    vec![
        podman.clone().beside(&docker).beside(&namespaces),
        docker.beside(&podman).beside(&namespaces),
        namespaces.clone().beside(&restricted).beside(&none),
        restricted.clone().beside(&none).beside(&namespaces),
        none.beside(&restricted).beside(&namespaces),
        wasm.beside(&restricted).beside(&namespaces).without_processes(crate::wasm::APART),
    ]
}

/// Those that start containers.
pub fn containers() -> Vec<Subject> {
    backends().into_iter().filter(|subject| subject.image.is_some()).collect()
}

/// Name of the double that has this fault.
pub fn double(fault: Fault) -> String {
    format!("broken {}", fault.name())
}

/// Backends and broken doubles.
pub fn all() -> Vec<Subject> {
    let mut all = backends();
    let doubles = Fault::ALL.map(|fault| {
        // Only where something is kept of a session can it be left there.
        let sound = if fault == Fault::NeverPurges { RESTRICTED_HOST } else { NAMESPACES };
        let sound = all.iter().find(|subject| subject.name == sound).expect("it is one of them");
        sound.wrapped(double(fault), move |inner| broken(inner, fault))
    });
    all.extend(doubles);
    all
}
