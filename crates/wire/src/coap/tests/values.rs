//! Values of options.

use crate::coap::{
    BlockSize, BlockValue, Code, NoResponse, ObserveSequence, ReservedBlockSize, UintValue, decode_uint,
};

#[test]
fn numbers_have_as_few_bytes_as_possible() {
    for (value, bytes) in [
        (0u32, b"".as_slice()),
        (1, b"\x01"),
        (255, b"\xff"),
        (256, b"\x01\x00"),
        (0x01_0000, b"\x01\x00\x00"),
        (u32::MAX, b"\xff\xff\xff\xff"),
    ] {
        assert_eq!(UintValue::new(value).as_bytes(), bytes);
        assert_eq!(decode_uint(bytes), Some(value));
    }
    assert_eq!(decode_uint(b"\0\0\0\0\0\x07"), Some(7));
    assert_eq!(decode_uint(b"\x01\0\0\0\0"), None);
}

/// Row 1.11. RFC 7959 §2.2.
#[test]
fn blocks_have_numbers_of_20_bits_and_seven_sizes() {
    let block = BlockValue::decode(b"\x3a").expect("a block");
    assert_eq!((block.number(), block.more, block.size.bytes(), block.offset()), (3, true, 64, 192));
    assert_eq!(BlockValue::decode(b"").map(|block| (block.number(), block.size)), Ok((0, BlockSize::MIN)));
    assert_eq!(BlockValue::decode(b"\x07"), Err(ReservedBlockSize));
    let last = BlockValue::decode(b"\xff\xff\xf6").expect("a block");
    assert_eq!((last.number(), last.size, last.offset()), (0xf_ffff, BlockSize::MAX, 0xf_ffff * 1024));
    assert_eq!(BlockValue::new(1 << 20, false, BlockSize::MIN), None);
    assert_eq!(BlockValue::at_offset(100, false, BlockSize::MIN), None);
    let sizes = [0, 16, 31, 32, 64, 1023, 1024, usize::MAX].map(|bytes| BlockSize::at_most(bytes).bytes());
    assert_eq!(sizes, [16, 16, 16, 32, 64, 512, 1024, 1024]);
}

/// RFC 7641 §3.4.
#[test]
fn sequences_wrap() {
    let [first, last] = [0, 0xff_ffff].map(ObserveSequence::new);
    assert_eq!(last.next(), first);
    assert!(first.is_newer_than(last) && !last.is_newer_than(first) && !first.is_newer_than(first));
    assert!(ObserveSequence::new(0x7f_ffff).is_newer_than(first));
    assert!(!ObserveSequence::new(0x80_0000).is_newer_than(first));
    assert_eq!(ObserveSequence::decode(b"\x01"), Some(ObserveSequence::DEREGISTER));
    assert_eq!(ObserveSequence::decode(b"\x01\0\0\0"), None);
}

/// RFC 7967 §2.1.
#[test]
fn no_response_selects_classes() {
    let none = NoResponse::decode(b"\x1a");
    assert!(
        [Code::CONTENT, Code::NOT_FOUND, Code::INTERNAL_SERVER_ERROR]
            .iter()
            .all(|code| none.suppresses(*code))
    );
    let errors = NoResponse::decode(b"\x18");
    assert!(!errors.suppresses(Code::CHANGED) && errors.suppresses(Code::BAD_REQUEST));
    assert!(!NoResponse::decode(b"").suppresses(Code::CONTENT) && !none.suppresses(Code::EMPTY));
}
