//! Checks shared by the property tests and the fuzz target. Each function panics when a check fails.

use super::{
    BlockValue, CoapEncodeError, CoapMessage, MessageContent, MessageType, MessageWriter, NoResponse,
    ObserveSequence, OptionNumber, Reaction, UnrecognisedOption, decode_uint, encode_empty,
};

/// Checks that a datagram is refused with the required reaction, or that its parts lie in it, in its order, and yield
/// the same bytes again. Returns whether it is a message.
pub fn message(datagram: &[u8]) -> bool {
    let shown = datagram.escape_ascii();
    let message = match CoapMessage::parse(datagram) {
        Ok(message) => message,
        Err(error) => {
            assert!(usize::from(error.offset()) <= datagram.len(), "{shown}: {error}");
            let is_confirmable = datagram.len() >= 4 && datagram[0] & 0xf0 == 0x40;
            let expected = match is_confirmable {
                true => Reaction::Reset(u16::from_be_bytes([datagram[2], datagram[3]])),
                false => Reaction::Ignore,
            };
            assert_eq!(error.reaction(), expected, "{shown}: {error}");
            return false;
        }
    };
    let mut number = OptionNumber(0);
    for option in message.options {
        assert!(number <= option.number, "{shown}");
        number = option.number;
        values(option.value);
    }
    let mut buffer = vec![0; datagram.len()];
    assert_eq!(encode(&message, &mut buffer), Ok(datagram), "{shown}");
    for size in 0..datagram.len().min(64) {
        assert_eq!(
            encode(&message, &mut buffer[..size]),
            Err(CoapEncodeError::Full),
            "{shown} in {size} bytes"
        );
    }
    if message.content == MessageContent::Empty {
        assert_eq!(encode_empty(message.kind, message.id), datagram);
        assert_ne!(message.kind, MessageType::NonConfirmable);
    }
    recognised(&message);
    true
}

/// Writes a message again.
pub fn encode<'b>(message: &CoapMessage<'_>, buffer: &'b mut [u8]) -> Result<&'b [u8], CoapEncodeError> {
    let mut writer = MessageWriter::new(buffer, message.kind, message.code, message.id, message.token)?;
    for option in message.options {
        writer.option(option.number, option.value)?;
    }
    writer.payload(message.payload)
}

/// Checks that values decode to what encodes to the same bytes without leading zeros.
fn values(value: &[u8]) {
    let short = &value[value.iter().position(|&byte| byte != 0).unwrap_or(value.len())..];
    assert_eq!(decode_uint(value).is_some(), short.len() <= 4);
    if let Ok(block) = BlockValue::decode(value) {
        assert_eq!(block.encode().as_bytes(), short);
        assert_eq!(BlockValue::at_offset(block.offset(), block.more, block.size), Some(block));
    }
    if let Some(sequence) = ObserveSequence::decode(value) {
        assert_eq!(sequence.encode().as_bytes(), short);
        assert!(sequence.next().is_newer_than(sequence) && !sequence.is_newer_than(sequence.next()));
    }
    let _ = NoResponse::decode(value);
}

/// Checks that every option is recognised, skipped or an error.
fn recognised(message: &CoapMessage<'_>) {
    let all = message.options.count();
    let critical = message.options.filter(|option| option.number.is_critical()).count();
    assert_eq!(message.options.recognised(|_| false).filter(Result::is_err).count(), critical);
    let results: Vec<_> = message.options.recognised(|_| true).collect();
    assert!(results.len() <= all);
    for result in results {
        match result {
            Ok(option) => assert!(option.number.definition().is_some()),
            Err(UnrecognisedOption(number)) => assert!(number.is_critical()),
        }
    }
}
