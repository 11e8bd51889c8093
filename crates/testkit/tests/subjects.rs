//! The backends on trial, and their broken doubles.

use moltis_backend_host::RestrictedHostBackend;
use moltis_backend_namespaces::NamespacesBackend;
use moltis_testkit::Subject;
use moltis_testkit::broken::{Fault, broken};

/// The column of the built-in sandbox.
pub const NAMESPACES: &str = "namespaces";

/// The column of the restricted host.
pub const RESTRICTED_HOST: &str = "restricted-host";

/// Every backend of this program, in the order of the matrix.
pub fn backends() -> Vec<Subject> {
    vec![
        Subject::new(NAMESPACES, |folders| {
            std::sync::Arc::new(NamespacesBackend::new(moltis_backend_namespaces::Config {
                data_dir: folders.data.clone(),
                config_dir: Some(folders.config.clone()),
            }))
        }),
        Subject::new(RESTRICTED_HOST, |folders| {
            std::sync::Arc::new(RestrictedHostBackend::new(moltis_backend_host::Config {
                data_dir: folders.data.clone(),
                config_dir: Some(folders.config.clone()),
            }))
        }),
    ]
}

/// Name of the double that has this fault.
pub fn double(fault: Fault) -> String {
    format!("broken {}", fault.name())
}

/// Backends and broken doubles.
pub fn all() -> Vec<Subject> {
    let mut all = backends();
    let sound = all[0].clone();
    all.extend(
        Fault::ALL.into_iter().map(|fault| sound.wrapped(double(fault), move |inner| broken(inner, fault))),
    );
    all
}
