//! Guarantees of a stream on disk: durability through power failures, damaged bytes and disk errors, with exact
//! reports.
#![cfg(not(stilling_planted))]

mod blocks;
mod crash;
mod damage;
mod files;
mod frozen;
mod missing_files;
mod retention;
mod round_trip;
mod snapshots;
mod support;
mod thread;
mod unreadable;
