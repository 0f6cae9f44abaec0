//! What is recognised in messages, where messages end on a connection, and what a second parser says.

mod framed;
mod properties;
mod recognised;
