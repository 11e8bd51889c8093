//! The rlimits of a command on `restricted-host`, as arguments of the agent, which sets them in every command before
//! it executes. All of them bound one process (or one user), never the whole sandbox.

use std::ffi::OsString;

use moltis_sandbox::{Limits, Setting};

/// Open files of a process.
const NOFILE: u64 = 1024;

/// Seconds of processor time of a process where no `cpu_quota` is set.
const CPU_SECONDS: u64 = 300;

/// Private writable memory of a process in bytes where no `memory_limit` is demanded.
const DATA_BYTES: u64 = 512 * 1024 * 1024;

/// Processes and threads above what the user has already, where no `pids_max` is set.
const PIDS: u64 = 256;

/// The agent's arguments for these limits.
///
/// A demanded `memory_limit` bounds the address space (`RLIMIT_AS`), which also counts what is only reserved; as that
/// breaks programs which reserve much (Node, Java, Go), memory that nobody demanded is bounded by `RLIMIT_DATA`.
pub fn arguments(limits: &Limits) -> Vec<OsString> {
    let (memory, bytes) = match limits.memory {
        Some(memory) if memory.is_demand() => ("as", memory.value),
        Some(Setting { value, .. }) => ("data", value),
        None => ("data", DATA_BYTES),
    };
    let mut arguments = vec![
        ("--rlimit", "core=0".to_owned()),
        ("--rlimit", format!("nofile={NOFILE}")),
        ("--rlimit", format!("{memory}={bytes}")),
        ("--pids", limits.pids.map_or(PIDS, |pids| pids.value).to_string()),
    ];
    arguments.push(match limits.cpus {
        Some(cpus) => ("--cpu-quota", cpus.value.to_string()),
        None => ("--rlimit", format!("cpu={CPU_SECONDS}")),
    });
    arguments.into_iter().flat_map(|(name, value)| [OsString::from(name), OsString::from(value)]).collect()
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::Origin;

    use super::*;

    fn words(limits: &Limits) -> String {
        arguments(limits).iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn without_limits_the_built_in_ones_hold() {
        assert_eq!(
            words(&Limits::default()),
            "--rlimit core=0 --rlimit nofile=1024 --rlimit data=536870912 --pids 256 --rlimit cpu=300"
        );
    }

    #[test]
    fn demanded_memory_bounds_the_address_space() {
        let mut limits = Limits {
            memory: Some(Setting::new(1 << 30, Origin::Flag)),
            cpus: Some(Setting::new(1.5, Origin::File)),
            pids: Some(Setting::built_in(7)),
        };
        assert_eq!(
            words(&limits),
            "--rlimit core=0 --rlimit nofile=1024 --rlimit as=1073741824 --pids 7 --cpu-quota 1.5"
        );
        limits.memory = Some(Setting::built_in(1 << 30));
        assert!(words(&limits).contains("--rlimit data=1073741824"));
    }
}
