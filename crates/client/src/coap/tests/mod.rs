//! The client's protocol with a scripted server, a manual clock and a network that loses, repeats and reorders.

mod blocks;
mod fixture;
mod lossy_network;
mod observing;
mod transmission;
