//! The slowest single operations.

pub mod server;
