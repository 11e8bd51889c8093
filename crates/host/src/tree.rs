//! Trees of files on the host, used beneath a directory handle: by managed files, and by copies into and out of
//! sandboxes. Every step goes by one name from an opened directory and follows no link, so that no name leads out.
//! What is opened is judged by its handle. Everything here blocks.

pub mod archive;
pub mod failure;
pub mod left_out;
pub mod object;
pub mod pack;
pub mod part;
pub mod place;
pub mod remove;
pub mod rename;
pub mod unpack;
mod walk;
