//! Configuration of Moltis: moltis.toml, environment, validation.
//!
//! Every key stands once, in [`schema`]: its name, type, default, who may override it and what it is for. Reading,
//! suggestions, environment overrides, `config show`, `config init` and the reference page are all made from there.
//! Every value is a [`moltis_sandbox::Setting`], because what somebody asked for is kept or refused and what nobody
//! asked for may be left off.

pub mod env;
pub mod error;
pub mod init;
pub mod key;
pub mod load;
pub mod packages;
pub mod paths;
pub mod reference;
pub mod schema;
pub mod show;
pub mod suggest;
pub mod unused;
mod validate;
pub mod value;
pub mod words;

pub use error::{Error, InvalidValue, Place, Problem};
pub use key::{Key, Section};
pub use load::{Loaded, Options, load};
pub use schema::Config;
pub use suggest::suggest;
pub use value::flag::{
    WorkspaceFlag, parse_backend, parse_cores, parse_duration, parse_fuel, parse_image, parse_memory,
    parse_network, parse_pids, parse_size, parse_timeout, parse_workspace_flag,
};
pub use words::BackendChoice;
