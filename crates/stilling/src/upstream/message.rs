//! Messages between client sessions and the pool: plain data, independent of the client's protocol.

/// An event that the pool sends to the client of a request. These end the request: [`Response`](Self::Response) and
/// [`Piece`](Self::Piece) with `is_last`, [`Expired`](Self::Expired), [`Refused`](Self::Refused),
/// [`Failed`](Self::Failed), [`Aborted`](Self::Aborted).
#[derive(Debug)]
pub(crate) enum UpstreamEvent {
    Response(UpstreamResponse),
    Piece(ResponsePiece),
    BodyWanted,
    Expired,
    /// With affinity: no process is free for this client, or the client is beyond its share of the queue.
    Refused,
    Failed(UpstreamFailure),
    /// The response has begun and cannot be completed.
    Aborted,
}

/// A message from the client's session to the connection to the process.
#[derive(Debug)]
pub(crate) enum ClientMessage {
    /// The client can take the next piece of the response.
    PieceWanted,
    /// The next piece of the request's body.
    Body { bytes: Vec<u8>, is_last: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No process takes requests, or the shard has no slot for a connection: 503 in HTTP.
    Unavailable,
    /// The process died, or does not speak HTTP: 502.
    BadGateway,
    /// The process did not answer in time: 504.
    Timeout,
}

/// How the client finds the end of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    Length(u64),
    Chunked,
    Close,
    /// There is no body, and no framing field is added: the status forbids a body, or the process's fields describe the
    /// body of another response (HEAD, 304).
    Bodiless,
}

#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(crate) status: u16,
    pub(crate) has_date: bool,
    pub(crate) framing: BodyFraming,
    /// Bytes of the head at the beginning of the piece's buffer: status line and fields, without framing and without
    /// the empty line.
    pub(crate) head_len: usize,
    pub(crate) piece: ResponsePiece,
}

/// A piece of a response's body as it is sent, framed if the framing is chunks.
#[derive(Debug)]
pub(crate) struct ResponsePiece {
    pub(crate) bytes: Vec<u8>,
    /// The offset of the piece in `bytes`.
    pub(crate) start: usize,
    pub(crate) is_last: bool,
}
