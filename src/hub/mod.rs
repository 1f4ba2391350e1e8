//! The Memory Hub.

pub mod store;
