//! Links the released program at a fixed address.
//!
//! `remote-collab hook` is started at every tool call of every session and lives for about a millisecond. As a
//! position-independent executable it spends a fifth of that on some 18,000 relocations, and on copies of the pages that
//! hold them, before its first instruction. The price of a fixed address is that the program's own code is not moved at
//! random; stack, heap and libraries still are.

#![allow(clippy::print_stdout)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    let gnu_linux = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if gnu_linux && is("PROFILE", "release") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
