//! Numbers that nobody can guess.

use moltis_sandbox::{Diagnosis, Error, Result};

/// This many random bytes.
///
/// # Errors
/// When the kernel has none.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(|errno| {
        Error::Unavailable(Diagnosis::new("system-error", "no random number").cause(errno))
    })?;
    Ok(bytes)
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
