//! What a stream on disk promises: kept whatever happens to the power, the bytes and the disk, and told as it is.
#![cfg(not(stilling_planted))]

mod blocks;
mod crash;
mod damage;
mod files;
mod frozen;
mod missing_files;
mod retention;
mod round_trip;
mod support;
mod thread;
mod unreadable;
