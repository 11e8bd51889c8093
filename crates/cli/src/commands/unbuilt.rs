//! `moltis gateway` and `moltis mcp` in a program that was built without what serves.

use moltis_sandbox::Diagnosis;

use crate::failure::Failure;

pub mod gateway {
    use crate::args::{Gateway, Global};
    use crate::failure::Failure;

    pub async fn run(_: &Global, _: Gateway) -> Result<i32, Failure> {
        Err(super::unbuilt("gateway"))
    }
}

pub mod mcp {
    use crate::args::{Global, Mcp};
    use crate::failure::Failure;

    pub async fn run(_: &Global, _: Mcp) -> Result<i32, Failure> {
        Err(super::unbuilt("mcp"))
    }
}

fn unbuilt(command: &str) -> Failure {
    Failure::invalid(
        Diagnosis::new("command-not-built", format!("`moltis {command}` is not part of this program"))
            .cause("it was built without the feature `serve`")
            .fix("build it without `--no-default-features`, or with `--features lightweight,serve`"),
    )
}
