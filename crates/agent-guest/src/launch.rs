//! Mode `launch`: makes a sandbox by a plan and becomes its agent.

/// Runs the helper; the exit code of the process.
pub fn run() -> i32 {
    70
}
