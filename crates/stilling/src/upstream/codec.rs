//! The protocols of worker processes.

use stilling_wire::frames::FrameDecoder;
use stilling_wire::http1::{AnsweredMethod, HttpLimits, ResponseDecoder, ResponseStep};

use super::limits::{APP_HEAD_SIZE_MAX, APP_HEADERS_MAX};
use super::pending_request::UpstreamError;

/// Limits of a response's head. Its body may have any length in HTTP; frames have their own limit.
const LIMITS: HttpLimits =
    HttpLimits { head_size_max: APP_HEAD_SIZE_MAX, headers_max: APP_HEADERS_MAX, body_size_max: u64::MAX };

/// The protocol of a pool's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP/1.1 on a Unix socket.
    #[default]
    Http,
    /// Frames on standard input and output ([`stilling_wire::frames`]), one request at a time.
    Frames,
}

/// Decodes the responses of a process.
#[derive(Debug)]
pub(super) enum ResponseCodec {
    Http(ResponseDecoder),
    Frames(FrameDecoder),
}

impl ResponseCodec {
    /// A codec for the response to a request. `number`: that of its frame, if it is one.
    pub(super) fn new(number: Option<u32>) -> ResponseCodec {
        match number {
            None => ResponseCodec::Http(ResponseDecoder::default()),
            Some(number) => ResponseCodec::Frames(FrameDecoder::new(number)),
        }
    }

    pub(super) fn protocol(&self) -> AppProtocol {
        match self {
            ResponseCodec::Http(_) => AppProtocol::Http,
            ResponseCodec::Frames(_) => AppProtocol::Frames,
        }
    }

    pub(super) fn decode<'a>(
        &mut self,
        answered: AnsweredMethod,
        input: &'a [u8],
    ) -> Result<ResponseStep<'a>, UpstreamError> {
        match self {
            ResponseCodec::Http(decoder) => Ok(decoder.decode(&LIMITS, answered, input)?),
            ResponseCodec::Frames(decoder) => Ok(decoder.decode(&LIMITS, answered, input)?),
        }
    }

    pub(super) fn in_body(&self) -> bool {
        match self {
            ResponseCodec::Http(decoder) => decoder.in_body(),
            ResponseCodec::Frames(decoder) => decoder.in_body(),
        }
    }

    /// Handles the end of the connection.
    pub(super) fn finish(&mut self) -> Result<(), UpstreamError> {
        match self {
            ResponseCodec::Http(decoder) => decoder.finish().map(drop)?,
            ResponseCodec::Frames(decoder) => decoder.finish()?,
        }
        Ok(())
    }
}
