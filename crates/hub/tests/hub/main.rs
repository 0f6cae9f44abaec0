//! What the hub promises, step by step on a simulated disk.
#![cfg(not(stilling_planted))]

mod asking;
mod clients;
mod consumers;
mod durable;
mod fan_out;
mod life;
mod losses;
mod plain;
#[path = "../rig/mod.rs"]
mod rig;
mod streams;
