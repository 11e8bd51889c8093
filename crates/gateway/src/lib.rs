//! The gateway: what Moltis does, over HTTP.
//!
//! [`start`] reads the configuration, takes the data directory, listens, and takes over what runs. All routes stand in one
//! table ([`routes::table`]), from which the router, the rule of who may use each, and the OpenAPI document are made.
//! Others are served behind the same door by a [`Mount`].

pub mod ask;
pub mod assets;
pub mod auth;
pub mod call;
pub mod carry;
pub mod error;
pub mod grants;
pub mod identity;
pub mod limits;
pub mod live;
pub mod log;
pub mod mcp;
pub mod metrics;
pub mod mount;
pub mod notify;
pub mod once;
pub mod openapi;
pub mod options;
pub mod problem;
pub mod reload;
pub mod route;
pub mod router;
pub mod routes;
pub mod schema;
pub mod schemas;
pub mod secrets;
pub mod server;
pub mod settings;
pub mod state;
pub mod tls;

pub use error::GatewayError;
pub use identity::Identity;
pub use mount::{Mount, Visitor};
pub use options::Options;
pub use server::{Banner, Running, Token, start};
