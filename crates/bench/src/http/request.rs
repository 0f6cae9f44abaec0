//! The request of a run, encoded once.

use std::io::Write;

use stilling_wire::http1::AnsweredMethod;

use super::url::Url;

const FILLER: u8 = b'x';

pub(crate) struct LoadRequest<'a> {
    pub(crate) url: &'a Url,
    pub(crate) method: &'a str,
    pub(crate) body_size: u32,
    pub(crate) keep_alive: bool,
}

pub(crate) fn encode(request: &LoadRequest<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + request.body_size as usize);
    let after = request.url.after_authority();
    // RFC 9112 §3.2.1: an empty path is sent as "/".
    let slash = if after.starts_with('/') { "" } else { "/" };
    // Writing to memory does not fail.
    let _ =
        write!(out, "{} {slash}{after} HTTP/1.1\r\nHost: {}\r\n", request.method, request.url.authority());
    if !request.keep_alive {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    // RFC 9110 §8.6: methods that are expected to have content declare its absence.
    if request.body_size > 0 || matches!(request.method, "POST" | "PUT" | "PATCH") {
        let _ = write!(out, "Content-Length: {}\r\n", request.body_size);
    }
    out.extend_from_slice(b"\r\n");
    out.resize(out.len() + request.body_size as usize, FILLER);
    out
}

/// The part of the request that the response decoder needs.
pub(crate) fn expected_reply(request: &LoadRequest<'_>) -> AnsweredMethod {
    if request.method == "HEAD" { AnsweredMethod::Head } else { AnsweredMethod::Other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpPlan;

    #[test]
    fn a_request_follows_the_plan() {
        let check = |url: &str, change: fn(&mut HttpPlan), expected: &str| {
            let mut plan = HttpPlan::new(Url::parse(url).unwrap());
            change(&mut plan);
            assert_eq!(String::from_utf8(encode(&plan.request())).unwrap(), expected);
        };
        check("http://127.0.0.1:9/a?b", |_| {}, "GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n");
        check(
            "http://127.0.0.1?b",
            |plan| plan.keep_alive = false,
            "GET /?b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        );
        check(
            "http://127.0.0.1",
            |plan| (plan.method, plan.body_size) = ("PUT".to_owned(), 3),
            "PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\nxxx",
        );
        check(
            "http://127.0.0.1/",
            |plan| plan.method = "POST".to_owned(),
            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n",
        );
    }
}
