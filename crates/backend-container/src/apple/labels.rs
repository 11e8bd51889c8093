//! Labels that this driver gives what it makes, for what the tool does not tell again in a documented way.

/// User and group of the container's first process, as `1000:1000`: programs that are run beside it are run as them.
pub const USER: &str = "org.moltis.apple.user";

/// When it was made, in seconds since 1970.
pub const CREATED: &str = "org.moltis.apple.created";
