//! The rows of the requirements for the Tcl driver, each by a script in a real tclsh, on every driver.

mod bad_input;
mod bounds;
mod connections;
mod datagrams;
mod descriptors;
mod ends;
mod examples;
mod fair_turns;
mod fcopy;
mod fcopy_resources;
mod fcopy_scripts;
mod floods;
mod harness;
mod leaks;
mod listeners;
mod lookups;
mod manual;
mod moves;
mod options;
mod order;
mod ownership;
mod peer;
mod resets;
mod stages;
mod trace;
mod transforms;
