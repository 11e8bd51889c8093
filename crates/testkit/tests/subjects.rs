//! The backends on trial, and their broken doubles.

use std::sync::Arc;

use moltis_backend_host::{NoneBackend, RestrictedHostBackend};
use moltis_backend_namespaces::NamespacesBackend;
use moltis_testkit::Subject;
use moltis_testkit::broken::{Fault, broken};
use moltis_testkit::subject::Folders;

/// The column of the built-in sandbox.
pub const NAMESPACES: &str = "namespaces";

/// The column of the restricted host.
pub const RESTRICTED_HOST: &str = "restricted-host";

/// The column of no sandbox at all.
pub const NONE: &str = "none";

fn on_host(folders: &Folders) -> moltis_backend_host::Config {
    let (data_dir, config_dir) = (folders.data.clone(), Some(folders.config.clone()));
    moltis_backend_host::Config { data_dir, config_dir }
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
    vec![
        namespaces.clone().beside(&restricted).beside(&none),
        restricted.clone().beside(&none).beside(&namespaces),
        none.beside(&restricted).beside(&namespaces),
    ]
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
        let sound = &all[usize::from(fault == Fault::NeverPurges)];
        sound.wrapped(double(fault), move |inner| broken(inner, fault))
    });
    all.extend(doubles);
    all
}
