//! What the host and the guest agent say to each other.
//!
//! One connection carries one operation. The host sends a [`hello`] of fixed form and one [`Request`]; the agent
//! answers with its own hello and then with frames until the operation is over. Flow control is the kernel's: a side
//! that does not read holds the other one back.
//!
//! ```text
//! host  → agent   hello │ Control(Request) │ Data* Eof │ Control(Order)*
//! agent → host    hello │ Control(Reply) │ Stdout* Stderr* Data* Eof │ Control(Reply)
//! ```
//!
//! Both sides treat every byte of the other as hostile: a frame's length is checked before its payload is read, an
//! unknown kind or a message that does not decode ends the connection.

pub mod frame;
pub mod hello;
pub mod launch;
pub mod machine;
pub mod message;
pub mod relay;
pub mod tar;

pub use frame::{Frame, FrameError, Header, Kind};
pub use hello::{HELLO_BYTES, HelloError, VERSION};
pub use message::{Order, Reply, Request};
