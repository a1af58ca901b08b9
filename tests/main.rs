//! The promises of the module, on real servers. One file per concern; `cargo test hit::` runs one.

mod common;

mod algorithms;
mod arguments;
mod cases;
mod cluster;
mod concurrency;
mod docs;
mod effects;
mod equivalence;
mod failures;
mod figures;
mod flaws;
mod front_door;
mod hit;
mod hostile;
mod instructions;
mod introspection;
mod keys;
mod leaks;
mod lifecycle;
mod mhit;
mod oom;
mod panics;
mod peek;
mod permissions;
mod persistence;
mod refund;
mod replication;
mod settings;
mod sweeper;
mod throttle;
mod traffic;
mod upgrades;
