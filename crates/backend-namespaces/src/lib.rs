//! The built-in Linux sandbox of Moltis.
