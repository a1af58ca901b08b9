//! The promises of the module, on real servers. One file per concern; `cargo test hit::` runs one.

mod common;

mod arguments;
mod hit;
mod keys;
