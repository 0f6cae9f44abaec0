//! The connection handshake: the server's INFO, the client's CONNECT and PING, the server's PONG. A state machine
//! without I/O, for `PublisherLink` and `BlockingConnection`.

use std::borrow::Cow;

use stilling_wire::nats::{Connect, Info, PING, PONG, ServerEvent};

use crate::address::Credentials;
use crate::connection_error::ConnectionError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerLimits {
    /// Longest message in bytes, headers included; `usize::MAX` if the server announces none.
    pub(crate) payload_size_max: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectOptions<'a> {
    pub(crate) credentials: &'a Credentials,
    pub(crate) name: Option<&'a str>,
    /// Whether the server must support headers: acknowledgements and streams need them.
    pub(crate) needs_headers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handshake {
    AwaitingInfo,
    /// INFO was received, CONNECT and PING are sent; the PONG confirms that the server accepts the client.
    AwaitingPong(ServerLimits),
}

impl Handshake {
    /// Handles an event, appends replies to `out`, and returns the server's limits when the handshake is complete.
    ///
    /// # Errors
    /// The reason why the connection is unusable.
    pub(crate) fn handle_event(
        &mut self,
        event: &ServerEvent<'_>,
        connect_options: &ConnectOptions<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<ServerLimits>, ConnectionError> {
        match (*self, event) {
            (_, ServerEvent::Err(text)) => Err(ConnectionError::from_server_text(text)),
            (_, ServerEvent::Ping) => {
                out.extend_from_slice(PONG);
                Ok(None)
            }
            (Handshake::AwaitingInfo, ServerEvent::Info(json)) => {
                let info = Info::parse(json).map_err(|error| ConnectionError::Protocol(error.to_string()))?;
                let server_limits = check_info(&info, connect_options)?;
                encode_connect(connect_options, out);
                *self = Handshake::AwaitingPong(server_limits);
                Ok(None)
            }
            (Handshake::AwaitingInfo, _) => Err(ConnectionError::Protocol("no INFO at the start".to_owned())),
            (Handshake::AwaitingPong(server_limits), ServerEvent::Pong) => Ok(Some(server_limits)),
            (Handshake::AwaitingPong(_), ServerEvent::Info(_) | ServerEvent::Ok) => Ok(None),
            (Handshake::AwaitingPong(_), _) => {
                Err(ConnectionError::Protocol("a message before PONG".to_owned()))
            }
        }
    }
}

fn check_info(
    info: &Info<'_>,
    connect_options: &ConnectOptions<'_>,
) -> Result<ServerLimits, ConnectionError> {
    if info.tls_required {
        return Err(ConnectionError::Tls);
    }
    if connect_options.needs_headers && !info.headers {
        return Err(ConnectionError::NoHeaders);
    }
    if info.ldm {
        return Err(ConnectionError::LameDuck);
    }
    let payload_size_max =
        usize::try_from(info.max_payload).ok().filter(|size| *size > 0).unwrap_or(usize::MAX);
    Ok(ServerLimits { payload_size_max })
}

fn encode_connect(connect_options: &ConnectOptions<'_>, out: &mut Vec<u8>) {
    let (user, pass, auth_token) = match connect_options.credentials {
        Credentials::Anonymous => (None, None, None),
        Credentials::User { name, password } => (Some(name), Some(password), None),
        Credentials::Token(token) => (None, None, Some(token)),
    };
    let text = |text: &String| Cow::Owned(text.clone());
    Connect {
        verbose: false,
        pedantic: false,
        echo: true,
        headers: true,
        no_responders: true,
        user: user.map(text),
        pass: pass.map(text),
        auth_token: auth_token.map(text),
        lang: Some(Cow::Borrowed("rust")),
        version: Some(Cow::Borrowed(env!("CARGO_PKG_VERSION"))),
        name: connect_options.name.map(Cow::Borrowed),
        protocol: 1,
    }
    .encode(out);
    out.extend_from_slice(PING);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle_event(
        handshake: &mut Handshake,
        event: ServerEvent<'_>,
    ) -> Result<Option<ServerLimits>, ConnectionError> {
        let credentials = Credentials::Token("t".to_owned());
        let connect_options =
            ConnectOptions { credentials: &credentials, name: Some("me"), needs_headers: true };
        handshake.handle_event(&event, &connect_options, &mut Vec::new())
    }

    #[test]
    fn unsuitable_servers_have_distinct_errors() {
        let check = |event: ServerEvent<'_>, expected: fn(&ConnectionError) -> bool| {
            let connection_error =
                handle_event(&mut Handshake::AwaitingInfo, event).expect_err("it will not do");
            assert!(expected(&connection_error), "{connection_error}");
        };
        check(ServerEvent::Info(b"{\"headers\":true,\"tls_required\":true}"), |t| *t == ConnectionError::Tls);
        check(ServerEvent::Info(b"{}"), |t| *t == ConnectionError::NoHeaders);
        check(ServerEvent::Info(b"{\"headers\":true,\"ldm\":true}"), |t| *t == ConnectionError::LameDuck);
        check(ServerEvent::Info(b"[]"), |t| matches!(t, ConnectionError::Protocol(_)));
        check(ServerEvent::Pong, |t| matches!(t, ConnectionError::Protocol(_)));
        check(ServerEvent::Err(b"Authorization Violation"), |t| {
            matches!(t, ConnectionError::NotAuthorized(_))
        });
        check(ServerEvent::Err(b"Slow Consumer"), |t| *t == ConnectionError::SlowConsumer);
        check(ServerEvent::Err(b"Whatever"), |t| matches!(t, ConnectionError::ServerMessage(_)));
    }

    #[test]
    fn a_greeting_ends_with_the_first_pong() {
        let mut handshake = Handshake::AwaitingInfo;
        let info = ServerEvent::Info(b"{\"headers\":true,\"max_payload\":1024}");
        assert_eq!(handle_event(&mut handshake, info), Ok(None));
        assert_eq!(handle_event(&mut handshake, ServerEvent::Ping), Ok(None));
        assert_eq!(
            handle_event(&mut handshake, ServerEvent::Pong),
            Ok(Some(ServerLimits { payload_size_max: 1024 }))
        );
    }
}
