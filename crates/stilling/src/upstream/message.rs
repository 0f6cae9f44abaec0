//! What client sessions and the pool tell each other: plain data, whatever protocol the client speaks.

/// What the pool tells the client of a request. [`Response`](Self::Response) and [`Piece`](Self::Piece) with `is_last`,
/// [`Expired`](Self::Expired), [`Failed`](Self::Failed) and [`Broken`](Self::Broken) end the request.
#[derive(Debug)]
pub(crate) enum UpstreamEvent {
    /// The whole response, or its beginning.
    Response(UpstreamResponse),
    /// The next piece of the response's body.
    Piece(ResponsePiece),
    /// The process takes more of the request's body.
    BodyWanted,
    /// No process took the request in time.
    Expired,
    /// There is no response.
    Failed(UpstreamFailure),
    /// The response has begun and cannot be completed.
    Broken,
}

/// What the client of a request tells the process's side.
#[derive(Debug)]
pub(crate) enum ClientMessage {
    /// The client can take the next piece of the response.
    PieceWanted,
    /// The next piece of the request's body.
    Body {
        bytes: Vec<u8>,
        /// Nothing comes behind it.
        is_last: bool,
    },
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No process takes requests, or the shard has no place for a connection: 503 in HTTP.
    Unavailable,
    /// The process died, or does not speak HTTP: 502.
    BadGateway,
    /// The process did not answer in time: 504.
    Timeout,
}

/// How the client learns where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// By its length.
    Length(u64),
    /// By chunks.
    Chunked,
    /// By the end of the connection.
    Close,
    /// There is no body, and no field about one is to be added: the status has none, or the process's fields describe
    /// the body of another response (HEAD, 304).
    Bodiless,
}

/// A response, or its beginning.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(crate) status: u16,
    /// The process's head has a `Date`.
    pub(crate) has_date: bool,
    pub(crate) framing: BodyFraming,
    /// Bytes of the head at the beginning of the piece's buffer: status line and fields, without framing and without the
    /// empty line.
    pub(crate) head_len: usize,
    pub(crate) piece: ResponsePiece,
}

/// A piece of a response's body as it is sent, framed if the framing is chunks.
#[derive(Debug)]
pub(crate) struct ResponsePiece {
    pub(crate) bytes: Vec<u8>,
    /// Where it begins in `bytes`.
    pub(crate) start: usize,
    /// Nothing comes behind it.
    pub(crate) is_last: bool,
}
