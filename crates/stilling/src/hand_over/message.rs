//! Messages of a hand-over: one line of text each, and its meaning. No I/O.
//!
//! ```text
//!  successor                              predecessor
//!  hand-over 2                     ──►
//!                                  ◄──    listeners http 2   (+ 2 descriptors), repeated
//!                                  ◄──    end 2
//!  ready                           ──►                       the successor accepts on all of them
//!                                  ◄──    yours              the path may be taken
//!  taken                           ──►                       the predecessor drains
//!                                  ◄──    exchanges 2048     (+ 1 descriptor) with CoAP only: requests that are not to be
//!                                                            executed again
//!                                  ◄──    released           the streams and datagram sockets may be opened
//!
//!  refused REASON: from either side, at any time; the last message
//! ```
//!
//! The first and the last of these lines are the same in every version, so that servers with different versions can
//! report the mismatch.

use std::fmt;

use crate::coap::limits::HANDED_EXCHANGES_SIZE_MAX;

use super::limits::{DESCRIPTORS_PER_MESSAGE, LISTENERS_HANDED_OVER_MAX, REASON_SIZE_MAX};

/// Version of this protocol.
pub const VERSION: u32 = 2;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandoverMessage {
    /// The successor requests the listeners.
    Hello {
        /// Protocol version of the successor.
        version: u32,
    },
    /// This message carries listening descriptors.
    Listeners {
        /// How many.
        count: usize,
    },
    /// All listeners have been sent.
    End {
        /// Their total number.
        total: usize,
    },
    /// The successor accepts on all of them.
    Ready,
    /// The successor may take the path (`yours`).
    PathGranted,
    /// The successor has taken the path (`taken`): the predecessor drains.
    PathTaken,
    /// This message carries the memory with the exchanges of requests over CoAP. A successor that does not know it takes
    /// it for the end of the predecessor.
    Exchanges {
        /// Their bytes.
        size: usize,
    },
    /// The predecessor has closed its streams and no longer reads datagram sockets.
    Released,
    /// The sender ends the hand-over, for this reason.
    Refused(String),
}

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedMessage;

impl fmt::Display for HandoverMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandoverMessage::Hello { version } => write!(f, "hand-over {version}"),
            HandoverMessage::Listeners { count } => write!(f, "listeners http {count}"),
            HandoverMessage::End { total } => write!(f, "end {total}"),
            HandoverMessage::Ready => f.write_str("ready"),
            HandoverMessage::PathGranted => f.write_str("yours"),
            HandoverMessage::PathTaken => f.write_str("taken"),
            HandoverMessage::Exchanges { size } => write!(f, "exchanges {size}"),
            HandoverMessage::Released => f.write_str("released"),
            HandoverMessage::Refused(reason) => write!(f, "refused {}", plain(reason)),
        }
    }
}

/// Reason of the refusal by a server that has just been replaced: the new server is at the path.
pub const REPLACED_REASON: &str = "another server has just taken over; it is at the path now";

impl HandoverMessage {
    /// The message as sent: its line and a line feed.
    pub fn to_line(&self) -> String {
        format!("{self}\n")
    }

    /// Parses exactly one message, as [`to_line`](Self::to_line) writes it.
    ///
    /// # Errors
    /// [`MalformedMessage`] for anything else.
    pub fn parse(bytes: &[u8]) -> Result<HandoverMessage, MalformedMessage> {
        let text = std::str::from_utf8(bytes).map_err(|_| MalformedMessage)?;
        let line = text.strip_suffix('\n').ok_or(MalformedMessage)?;
        if !line.bytes().all(is_plain) {
            return Err(MalformedMessage);
        }
        if let Some(reason) = line.strip_prefix("refused ") {
            return match reason.len() {
                1..=REASON_SIZE_MAX => Ok(HandoverMessage::Refused(reason.to_owned())),
                _ => Err(MalformedMessage),
            };
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["hand-over", version] => Ok(HandoverMessage::Hello { version: number(version)? }),
            ["listeners", "http", count] => match number(count)? as usize {
                count @ 1..=DESCRIPTORS_PER_MESSAGE => Ok(HandoverMessage::Listeners { count }),
                _ => Err(MalformedMessage),
            },
            ["end", total] => match number(total)? as usize {
                total @ 0..=LISTENERS_HANDED_OVER_MAX => Ok(HandoverMessage::End { total }),
                _ => Err(MalformedMessage),
            },
            ["ready"] => Ok(HandoverMessage::Ready),
            ["yours"] => Ok(HandoverMessage::PathGranted),
            ["taken"] => Ok(HandoverMessage::PathTaken),
            ["exchanges", size] => match number(size)? as usize {
                size @ 1..=HANDED_EXCHANGES_SIZE_MAX => Ok(HandoverMessage::Exchanges { size }),
                _ => Err(MalformedMessage),
            },
            ["released"] => Ok(HandoverMessage::Released),
            _ => Err(MalformedMessage),
        }
    }
}

/// Parses digits without a leading zero.
fn number(word: &str) -> Result<u32, MalformedMessage> {
    let number: u32 = word.parse().map_err(|_| MalformedMessage)?;
    if number.to_string() == word { Ok(number) } else { Err(MalformedMessage) }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Makes a reason printable, not empty and at most `REASON_SIZE_MAX` long. Errors may quote anything.
fn plain(reason: &str) -> String {
    let letters =
        reason.chars().map(|letter| if u8::try_from(letter).is_ok_and(is_plain) { letter } else { '?' });
    let plain: String = letters.take(REASON_SIZE_MAX).collect();
    if plain.is_empty() { "no reason given".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::super::limits::MESSAGE_SIZE_MAX;
    use super::*;

    /// Row 4.37: every message is parsed as it was written.
    #[test]
    fn every_message_is_read_as_it_was_written() {
        for (message, line) in [
            (HandoverMessage::Hello { version: 2 }, "hand-over 2\n"),
            (HandoverMessage::Hello { version: u32::MAX }, "hand-over 4294967295\n"),
            (HandoverMessage::Listeners { count: 1 }, "listeners http 1\n"),
            (HandoverMessage::Listeners { count: DESCRIPTORS_PER_MESSAGE }, "listeners http 64\n"),
            (HandoverMessage::End { total: 0 }, "end 0\n"),
            (HandoverMessage::End { total: LISTENERS_HANDED_OVER_MAX }, "end 4096\n"),
            (HandoverMessage::Ready, "ready\n"),
            (HandoverMessage::PathGranted, "yours\n"),
            (HandoverMessage::PathTaken, "taken\n"),
            (HandoverMessage::Exchanges { size: HANDED_EXCHANGES_SIZE_MAX }, "exchanges 16777216\n"),
            (HandoverMessage::Released, "released\n"),
            (HandoverMessage::Refused("it is late".to_owned()), "refused it is late\n"),
        ] {
            assert_eq!(message.to_line(), line);
            assert_eq!(HandoverMessage::parse(line.as_bytes()), Ok(message));
        }
    }

    /// Row 4.37: similar lines are not messages.
    #[test]
    fn other_bytes_are_no_message() {
        for bytes in [
            "",
            "\n",
            " \n",
            "ready",
            "ready\r\n",
            "ready \n",
            " ready\n",
            "ready\nready\n",
            "READY\n",
            "ready 1\n",
            "hand-over\n",
            "hand-over \n",
            "hand-over 01\n",
            "hand-over +1\n",
            "hand-over -1\n",
            "hand-over 4294967296\n",
            "hand-over  1\n",
            "hand-over 1 2\n",
            "listeners http 0\n",
            "listeners http 65\n",
            "listeners 1\n",
            "listeners nats 1\n",
            "end\n",
            "end 4097\n",
            "exchanges 0\n",
            "exchanges 16777217\n",
            "refused\n",
            "refused \n",
            "refused a\tb\n",
            "yours\0\n",
        ] {
            assert_eq!(HandoverMessage::parse(bytes.as_bytes()), Err(MalformedMessage), "{bytes:?}");
        }
        assert_eq!(HandoverMessage::parse(b"refused \xff\n"), Err(MalformedMessage));
        let long = format!("refused {}\n", "x".repeat(REASON_SIZE_MAX + 1));
        assert_eq!(HandoverMessage::parse(long.as_bytes()), Err(MalformedMessage));
    }

    /// Row 4.37: a reason with any content is one line that fits.
    #[test]
    fn any_reason_is_sent_as_one_printable_line() {
        for reason in ["", "a\nb\0c", "größer", &"x".repeat(2000), "\u{1F600}".repeat(500).as_str()] {
            let line = HandoverMessage::Refused(reason.to_owned()).to_line();
            assert!(line.len() <= MESSAGE_SIZE_MAX, "{line}");
            assert!(
                matches!(HandoverMessage::parse(line.as_bytes()), Ok(HandoverMessage::Refused(_))),
                "{line}"
            );
        }
        assert_eq!(HandoverMessage::Refused("a\nb".to_owned()).to_line(), "refused a?b\n");
    }
}
