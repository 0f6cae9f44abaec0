//! The first words on a connection: the server's INFO, our CONNECT and PING, its PONG. A state machine without a socket,
//! for the publisher's link and for the blocking line alike.

use std::borrow::Cow;

use stilling_wire::nats::{Connect, Info, PING, PONG, ServerEvent};

use crate::address::Credentials;
use crate::trouble::Trouble;

/// What a server says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Greeting {
    /// Longest message in bytes, headers included; as good as unbounded if the server does not say.
    pub(crate) payload_size_max: usize,
}

/// How a client introduces itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Introduction<'a> {
    pub(crate) credentials: &'a Credentials,
    pub(crate) name: Option<&'a str>,
    /// Without headers there are neither acknowledgements nor streams.
    pub(crate) needs_headers: bool,
}

/// How far the first words have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handshake {
    /// Nothing has come yet.
    Silent,
    /// INFO has come, CONNECT and PING are sent; the PONG will say that we are let in.
    Introduced(Greeting),
}

impl Handshake {
    /// Takes what the server said, appends what is to be answered, and returns the greeting when both sides are ready.
    ///
    /// # Errors
    /// Why this connection will not do.
    pub(crate) fn hear(
        &mut self,
        event: &ServerEvent<'_>,
        introduction: &Introduction<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Greeting>, Trouble> {
        match (*self, event) {
            (_, ServerEvent::Err(text)) => Err(Trouble::said(text)),
            (_, ServerEvent::Ping) => {
                out.extend_from_slice(PONG);
                Ok(None)
            }
            (Handshake::Silent, ServerEvent::Info(json)) => {
                let info = Info::parse(json).map_err(|error| Trouble::Protocol(error.to_string()))?;
                let greeting = accept(&info, introduction)?;
                introduce(introduction, out);
                *self = Handshake::Introduced(greeting);
                Ok(None)
            }
            (Handshake::Silent, _) => Err(Trouble::Protocol("it begins without INFO".to_owned())),
            (Handshake::Introduced(greeting), ServerEvent::Pong) => Ok(Some(greeting)),
            (Handshake::Introduced(_), ServerEvent::Info(_) | ServerEvent::Ok) => Ok(None),
            (Handshake::Introduced(_), _) => Err(Trouble::Protocol("it delivers before PONG".to_owned())),
        }
    }
}

fn accept(info: &Info<'_>, introduction: &Introduction<'_>) -> Result<Greeting, Trouble> {
    if info.tls_required {
        return Err(Trouble::Tls);
    }
    if introduction.needs_headers && !info.headers {
        return Err(Trouble::NoHeaders);
    }
    if info.ldm {
        return Err(Trouble::LameDuck);
    }
    let payload_size_max =
        usize::try_from(info.max_payload).ok().filter(|size| *size > 0).unwrap_or(usize::MAX);
    Ok(Greeting { payload_size_max })
}

fn introduce(introduction: &Introduction<'_>, out: &mut Vec<u8>) {
    let (user, pass, auth_token) = match introduction.credentials {
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
        name: introduction.name.map(Cow::Borrowed),
        protocol: 1,
    }
    .encode(out);
    out.extend_from_slice(PING);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(handshake: &mut Handshake, event: ServerEvent<'_>) -> Result<Option<Greeting>, Trouble> {
        let credentials = Credentials::Token("t".to_owned());
        let introduction = Introduction { credentials: &credentials, name: Some("me"), needs_headers: true };
        handshake.hear(&event, &introduction, &mut Vec::new())
    }

    #[test]
    fn a_server_that_will_not_do_is_told_apart() {
        let check = |event: ServerEvent<'_>, expected: fn(&Trouble) -> bool| {
            let trouble = hear(&mut Handshake::Silent, event).expect_err("it will not do");
            assert!(expected(&trouble), "{trouble}");
        };
        check(ServerEvent::Info(b"{\"headers\":true,\"tls_required\":true}"), |t| *t == Trouble::Tls);
        check(ServerEvent::Info(b"{}"), |t| *t == Trouble::NoHeaders);
        check(ServerEvent::Info(b"{\"headers\":true,\"ldm\":true}"), |t| *t == Trouble::LameDuck);
        check(ServerEvent::Info(b"[]"), |t| matches!(t, Trouble::Protocol(_)));
        check(ServerEvent::Pong, |t| matches!(t, Trouble::Protocol(_)));
        check(ServerEvent::Err(b"Authorization Violation"), |t| matches!(t, Trouble::NotAuthorized(_)));
        check(ServerEvent::Err(b"Slow Consumer"), |t| *t == Trouble::SlowConsumer);
        check(ServerEvent::Err(b"Whatever"), |t| matches!(t, Trouble::Said(_)));
    }

    #[test]
    fn a_greeting_ends_with_the_first_pong() {
        let mut handshake = Handshake::Silent;
        let info = ServerEvent::Info(b"{\"headers\":true,\"max_payload\":1024}");
        assert_eq!(hear(&mut handshake, info), Ok(None));
        assert_eq!(hear(&mut handshake, ServerEvent::Ping), Ok(None));
        assert_eq!(hear(&mut handshake, ServerEvent::Pong), Ok(Some(Greeting { payload_size_max: 1024 })));
    }
}
