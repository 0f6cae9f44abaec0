//! Subject templates for syslog messages.
//!
//! The contents of a message are not trusted. Each value becomes one token: any byte but letters, digits, `-` and `_`
//! turns into `_`, so that no sender can choose another subject or a wildcard. A missing value is `-`.

use std::fmt;
use std::str::FromStr;

use stilling_wire::nats::{Subject, SubjectLimits};

use super::limits::{SUBJECT_TOKEN_SIZE_MAX, TEMPLATE_SIZE_MAX};

/// The default template: below `events.`, hence in the default stream.
pub const SYSLOG_SUBJECT: &str = "events.syslog.{facility}.{severity}";

/// Facilities of RFC 5424 section 6.2.1, by number, with the names of syslog.conf(5).
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
    "ntp", "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// Severities of RFC 5424 section 6.2.1, by number.
const SEVERITIES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// A valid subject template.
#[derive(Clone, PartialEq, Eq)]
pub struct SubjectTemplate {
    text: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Placeholder(TemplateField),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TemplateField {
    Facility,
    Severity,
    Host,
    App,
}

/// The placeholders of a template.
const TEMPLATE_FIELDS: [(&str, TemplateField); 4] = [
    ("facility", TemplateField::Facility),
    ("severity", TemplateField::Severity),
    ("host", TemplateField::Host),
    ("app", TemplateField::App),
];

/// Values from a message for a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateValues<'a> {
    /// Facility, 0 to 23.
    pub facility: u8,
    /// Severity, 0 to 7.
    pub severity: u8,
    /// Host name, as in the message.
    pub host: Option<&'a [u8]>,
    /// Application name, as in the message.
    pub app: Option<&'a [u8]>,
}

impl SubjectTemplate {
    /// Appends the subject of a message, which is always valid for publishing.
    pub fn write(&self, values: &TemplateValues<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Placeholder(TemplateField::Facility) => {
                    out.extend_from_slice(name_of(&FACILITIES, values.facility));
                }
                TemplatePart::Placeholder(TemplateField::Severity) => {
                    out.extend_from_slice(name_of(&SEVERITIES, values.severity));
                }
                TemplatePart::Placeholder(TemplateField::Host) => token(values.host, out),
                TemplatePart::Placeholder(TemplateField::App) => token(values.app, out),
            }
        }
    }

    /// A filter that matches every subject of the template.
    pub(super) fn filter(&self) -> String {
        let wide = |token: &str| if token.contains('{') { "*".to_owned() } else { token.to_owned() };
        self.text.split('.').map(wide).collect::<Vec<_>>().join(".")
    }

    /// The longest subject of the template.
    fn longest(&self) -> Vec<u8> {
        let mut longest = Vec::new();
        let value = [b'x'; SUBJECT_TOKEN_SIZE_MAX];
        // `authpriv` and `warning` are the longest names.
        self.write(
            &TemplateValues { facility: 10, severity: 4, host: Some(&value), app: Some(&value) },
            &mut longest,
        );
        longest
    }
}

fn name_of(names: &[&'static str], number: u8) -> &'static [u8] {
    names.get(usize::from(number)).map_or(b"-", |name| name.as_bytes())
}

fn token(value: Option<&[u8]>, out: &mut Vec<u8>) {
    let value = value.filter(|value| !value.is_empty()).unwrap_or(b"-");
    let value = &value[..value.len().min(SUBJECT_TOKEN_SIZE_MAX)];
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    out.extend(value.iter().map(|byte| if is_allowed(byte) { *byte } else { b'_' }));
}

impl Default for SubjectTemplate {
    fn default() -> Self {
        SYSLOG_SUBJECT.parse().expect("the default is a template")
    }
}

impl FromStr for SubjectTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > TEMPLATE_SIZE_MAX {
            return Err(format!("the template has {} bytes; it may have {TEMPLATE_SIZE_MAX}", text.len()));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, from)) = rest.split_once('{') {
            let (name, after) =
                from.split_once('}').ok_or_else(|| format!("`{text}` has a {{ without its }}"))?;
            let (_, field) = TEMPLATE_FIELDS.iter().find(|(known, _)| *known == name).ok_or_else(|| {
                format!("`{{{name}}}` is not a placeholder; there are {{facility}}, {{severity}}, {{host}} and {{app}}")
            })?;
            parts.push(TemplatePart::Text(before.to_owned()));
            parts.push(TemplatePart::Placeholder(*field));
            rest = after;
        }
        parts.push(TemplatePart::Text(rest.to_owned()));
        parts.retain(|part| !matches!(part, TemplatePart::Text(text) if text.is_empty()));
        let template = SubjectTemplate { text: text.to_owned(), parts };
        match Subject::parse(&template.longest(), &SubjectLimits::default()) {
            Ok(_) => Ok(template),
            Err(error) => Err(format!("`{text}` is not a valid template: {error}")),
        }
    }
}

impl fmt::Display for SubjectTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SubjectTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subject(template: &SubjectTemplate, values: &TemplateValues<'_>) -> String {
        let mut out = Vec::new();
        template.write(values, &mut out);
        String::from_utf8(out).expect("a subject of letters")
    }

    #[test]
    fn a_template_fills_in_the_values_of_a_message() {
        let values = TemplateValues { facility: 4, severity: 2, host: Some(b"web.1"), app: Some(b"su >") };
        for (template, expected) in [
            (SYSLOG_SUBJECT, "events.syslog.auth.crit"),
            ("logs.{host}.{app}", "logs.web_1.su__"),
            ("{severity}", "crit"),
            ("logs-{facility}-{severity}.all", "logs-auth-crit.all"),
            ("logs", "logs"),
        ] {
            assert_eq!(subject(&template.parse().expect(template), &values), expected);
        }
        let nothing = TemplateValues { facility: 99, severity: 99, host: None, app: Some(b"") };
        let all = "{facility}.{severity}.{host}.{app}".parse().expect("a template");
        assert_eq!(subject(&all, &nothing), "-.-.-.-");
        assert_eq!(SubjectTemplate::default().to_string(), SYSLOG_SUBJECT);
    }

    #[test]
    fn an_invalid_template_is_refused_with_the_reason() {
        for (text, expected) in [
            ("", "`` is not a valid template: empty token"),
            (
                "logs.{hots}",
                "`{hots}` is not a placeholder; there are {facility}, {severity}, {host} and {app}",
            ),
            ("logs.{host", "has a { without its }"),
            ("logs..{host}", "empty token at byte 5"),
            ("logs.*", "wildcard at byte"),
            ("logs. x", "blank, control byte or invalid UTF-8"),
        ] {
            let refused = text.parse::<SubjectTemplate>().expect_err(text);
            assert!(refused.contains(expected), "{refused}");
        }
        assert!("x".repeat(TEMPLATE_SIZE_MAX).parse::<SubjectTemplate>().is_ok());
        assert!("x".repeat(TEMPLATE_SIZE_MAX + 1).parse::<SubjectTemplate>().is_err());
        assert!(
            "{host}".repeat(9).parse::<SubjectTemplate>().is_err(),
            "nine long values make too long a subject"
        );
    }

    proptest! {
        #[test]
        fn no_sender_can_choose_another_subject(
            facility: u8, severity: u8,
            host in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
            app in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
        ) {
            let template: SubjectTemplate = "a.{host}.{app}.{facility}.{severity}".parse().expect("a template");
            let values = TemplateValues { facility, severity, host: host.as_deref(), app: app.as_deref() };
            let mut out = Vec::new();
            template.write(&values, &mut out);
            let subject = Subject::parse(&out, &SubjectLimits::default());
            let tokens = subject.map(|subject| subject.tokens().count());
            prop_assert_eq!(tokens, Ok(5));
        }
    }
}
