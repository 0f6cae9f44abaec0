//! Every bound of the CoAP codec, with its unit and the effect of reaching it.

/// Bytes of a header: version, type, token length, code and message id (RFC 7252 §3). Fewer: the datagram is ignored.
pub const HEADER_SIZE: usize = 4;
/// Longest token in bytes (RFC 7252 §3). Longer: a message format error.
pub const TOKEN_SIZE_MAX: usize = 8;
/// Greatest value of an extended option delta or length (RFC 7252 §3.1). Greater: the writer refuses the option.
pub const EXTENDED_MAX: usize = 269 + 65_535;
/// Greatest number of a block, 20 bits (RFC 7959 §2.2). Greater: the value cannot be created.
pub const BLOCK_NUMBER_MAX: u32 = (1 << 20) - 1;
/// Largest block in bytes (RFC 7959 §2.2).
pub const BLOCK_SIZE_MAX: usize = 1024;
