//! Parsing, framing, and comparison with a second parser.

mod framed;
mod properties;
mod recognised;
