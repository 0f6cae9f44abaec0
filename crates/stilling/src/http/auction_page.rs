//! `/auction`: a page for bidders, on streams with the gate `auction`. It is one response; its script uses
//! `/subscribe/*` and `/publish/*`. The rules of access are those of `/subscribe/*`, so that a browser asks for
//! credentials once and sends them with both.

use std::borrow::Cow;
use std::fmt::Write;

use stilling_engine::{CloseReason, Io};
use stilling_wire::http1::{BodyLength, RequestHead, Status};

use super::pages::uncached;
use super::publish_admission::{PublishRejection, admit_reader};
use super::response::Response;
use super::session::HttpSession;
use super::shard::HttpContext;
use crate::hub::HubHandle;
use crate::settings::StreamConfig;

pub(super) const AUCTION_PATH: &[u8] = b"/auction";

/// Name of the gate whose streams have the page.
const GATE: &str = "auction";

const PAGE: &str = include_str!("auction_page/page.html");

const STYLE: &str = include_str!("auction_page/page.css");

const SCRIPT: &str = include_str!("auction_page/page.js");

/// The page runs its own script and style, by their SHA-256, and connects to its own server only. Text of bidders that
/// became markup would run nothing.
const SECURITY_POLICY: &str = "default-src 'none'; \
     style-src 'sha256-PBsY+6/EGS7F+FiNs/ulKbPNjoIHnxk/j2G4RD6tk0s='; \
     script-src 'sha256-l/l6mgT/30DndDELRBc9yDSkfjZ7WoX6dM+Dqmv5NwM='; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The subject filters of all streams with auctions, in the order of the configuration.
pub(crate) fn auction_filters(streams: &[StreamConfig]) -> Vec<String> {
    let auctions = streams.iter().filter(|stream| stream.gate.as_deref() == Some(GATE));
    auctions.flat_map(|stream| stream.subjects.iter().cloned()).collect()
}

impl HttpSession {
    pub(super) fn send_auction_page(
        &mut self,
        head: &RequestHead<'_>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        let filters = &cx.http.config.auction_filters;
        let page = match cx.hub.as_deref() {
            Some(hub) => auction_page(head, hub, self.endpoint.subscribes, filters),
            None => Err(PublishRejection::new(
                Status::ServiceUnavailable,
                "the server hands its streams over: try again",
            )),
        };
        if head.body != BodyLength::None {
            // The body is not read.
            self.terms.persistent = false;
            io.finish_lingering(CloseReason::Done);
        }
        self.respond(page.unwrap_or_else(Response::from), io, cx);
    }
}

/// The page for the filter of the query, else for the first one. `is_open`: the listener serves subscriptions.
fn auction_page(
    head: &RequestHead<'_>,
    hub: &HubHandle,
    is_open: bool,
    filters: &[String],
) -> Result<Response, PublishRejection> {
    let access = admit_reader(head, hub, is_open)?;
    let query = form_urlencoded::parse(head.target.query.unwrap_or_default());
    let wanted = query.into_iter().find_map(|(name, value)| (name == "filter").then_some(value));
    let chosen = match &wanted {
        Some(wanted) => filters.iter().find(|filter| **filter == **wanted),
        None => filters.first(),
    };
    let Some(chosen) = chosen else {
        return Err(PublishRejection::new(Status::NotFound, "no stream has auctions with this filter"));
    };
    if !hub.users.may_subscribe(access, chosen.as_bytes()) {
        let reason = "this user may not subscribe to these auctions";
        return Err(PublishRejection::new(Status::Forbidden, reason));
    }
    Ok(uncached("text/html; charset=utf-8", render(chosen, filters))
        .with_header("Content-Security-Policy", SECURITY_POLICY)
        .with_header("Referrer-Policy", "no-referrer")
        .with_header("X-Content-Type-Options", "nosniff"))
}

fn render(chosen: &str, filters: &[String]) -> String {
    // The script and the style contain no placeholder, and what is escaped cannot become one.
    PAGE.replace("{{FILTER}}", &escape(chosen))
        .replace("{{CHOICES}}", &choices(chosen, filters))
        .replace("{{STYLE}}", STYLE)
        .replace("{{SCRIPT}}", SCRIPT)
}

/// Links to the other auctions; nothing if there are none.
fn choices(chosen: &str, filters: &[String]) -> String {
    let mut links = String::new();
    if filters.len() > 1 {
        links.push_str("<nav class=\"choices\" aria-label=\"Auctions\">");
        for filter in filters {
            let current = if filter == chosen { " aria-current=\"page\"" } else { "" };
            let value: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
            // Writing to a string does not fail.
            let _ = write!(links, "<a href=\"?filter={value}\"{current}>{}</a>", escape(filter));
        }
        links.push_str("</nav>");
    }
    links
}

/// Escapes text for content and for quoted attributes. A brace cannot begin a placeholder.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '{']) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    Cow::Owned(text.replace('"', "&quot;").replace('{', "&#123;"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// The hash of a text in a security policy.
    fn source_hash(text: &str) -> String {
        let mut child = (Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()))
            .spawn()
            .expect("coreutils are installed");
        child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends").stdout;
        let digits = |pair: &[u8]| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hexadecimal digits")
        };
        let hash: Vec<u8> = output[..64].chunks(2).map(digits).collect();
        format!("'sha256-{}'", STANDARD.encode(hash))
    }

    /// The page runs under a policy without `unsafe-inline`.
    #[test]
    fn the_policy_names_the_hashes_of_style_and_script() {
        for (directive, text) in [("style-src", STYLE), ("script-src", SCRIPT)] {
            let expected = format!("{directive} {};", source_hash(text));
            assert!(
                SECURITY_POLICY.contains(&expected),
                "the file has changed: `SECURITY_POLICY` needs {expected}"
            );
        }
    }

    /// One small response without parts from elsewhere.
    #[test]
    fn the_page_is_small_and_complete() {
        let page = render("auction.>", &["auction.>".to_owned()]);
        assert!(page.len() < 40_000, "{} bytes", page.len());
        assert!(!page.contains("{{") && page.contains("data-filter=\"auction.&gt;\""), "{page}");
        for part in ["<script>", "<style>"] {
            assert_eq!(page.matches(part).count(), 1, "{part}");
        }
        for outside in ["src=\"", "@import", "url(", "<link rel=\"stylesheet", "https://"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for end in ["</script", "</style", "<!--"] {
            assert!(!SCRIPT.contains(end) && !STYLE.contains(end), "{end}");
        }
    }

    #[test]
    fn a_filter_is_escaped_and_several_are_linked() {
        let filters = ["a\"<&{{STYLE}}.>".to_owned(), "b.>".to_owned()];
        let page = render(&filters[0], &filters);
        assert!(page.contains("data-filter=\"a&quot;&lt;&amp;&#123;&#123;STYLE}}.&gt;\""), "{page}");
        assert!(page.contains("<a href=\"?filter=b.%3E\">b.&gt;</a>"), "{page}");
        assert_eq!(page.matches("aria-current=\"page\"").count(), 1);
        assert_eq!(page.matches(STYLE).count(), 1);
    }

    #[test]
    fn filters_come_from_streams_with_the_gate() {
        let [mut lots, mut boats] = [("lots", "lots.>"), ("boats", "boats.>")]
            .map(|(name, subject)| StreamConfig::new(name, [subject]));
        (lots.gate, boats.gate) = (Some("auction".to_owned()), Some("accept-all".to_owned()));
        let plain = StreamConfig::new("plain", ["plain.>"]);
        assert_eq!(auction_filters(&[boats, plain, lots]), ["lots.>"]);
    }
}
