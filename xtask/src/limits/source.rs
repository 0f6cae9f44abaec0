//! Reads limits from Rust sources laid out by rustfmt: constants, fields with defaults, options.
//!
//! Because of the layout, reading lines is enough: an item begins on its own line below its `///` text and ends where
//! its brackets close.

#[derive(PartialEq, Eq, Debug)]
pub(super) struct ConstantLimit {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) value: String,
    pub(super) description: String,
}

/// A field of a limits structure, with its default.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct FieldLimit {
    pub(super) name: String,
    pub(super) default: String,
    pub(super) description: String,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct FlagLimit {
    pub(super) name: String,
    pub(super) default: String,
    pub(super) range: String,
    pub(super) description: String,
}

/// Structures with limits as fields.
const STRUCTURES: [&str; 19] = [
    "BackoffConfig",
    "CoapClientConfig",
    "HttpLimits",
    "JournalLimits",
    "LogConfig",
    "NatsLimits",
    "PoolLimits",
    "PoolScaling",
    "ProcessLimits",
    "PublisherConfig",
    "QueueLimits",
    "RetryBudgetConfig",
    "ShardConfig",
    "SseLimits",
    "SubjectLimits",
    "SubscriberConfig",
    "SyslogLimits",
    "Timeouts",
    "WebSocketLimits",
];

/// The constants of one file: all of them if the file is for limits, otherwise durations and constants named like a
/// limit. Constants inside functions and tests are skipped.
pub(super) fn constants(text: &str, all: bool) -> Vec<ConstantLimit> {
    let mut parsed = Vec::new();
    let mut description = DocText::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let item = without_visibility(line).strip_prefix("const ").and_then(|rest| rest.split_once(": "));
        if let Some((name, rest)) = item
            && (all || names_a_bound(name) || rest.starts_with("Duration"))
        {
            let mut rest = rest.to_owned();
            while !rest.ends_with(';') {
                let Some(more) = lines.next() else { break };
                rest = format!("{rest} {}", more.trim());
            }
            if let Some((kind, value)) = rest.trim_end_matches(';').split_once(" =") {
                parsed.push(ConstantLimit {
                    name: name.to_owned(),
                    kind: kind.to_owned(),
                    value: value.trim().to_owned(),
                    description: description.take(),
                });
            }
        }
        description.read_line(line);
    }
    parsed
}

/// Name endings of limits.
const BOUNDS: [&str; 9] =
    ["_MAX", "_LIMIT", "_BATCH", "_PER_TURN", "_PER_SHARD", "_SECONDS", "_RESERVED", "_SLOTS", "PIECE_SIZE"];

fn names_a_bound(name: &str) -> bool {
    BOUNDS.iter().any(|end| name.ends_with(end)) || name == "DEFAULT_BACKLOG"
}

fn without_visibility(line: &str) -> &str {
    match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(rest, |(_, rest)| rest),
        Some(rest) => rest.trim_start(),
        None => line,
    }
}

/// The limits structures of one file, each with the fields that have a default.
pub(super) fn structures(text: &str) -> Vec<(String, Vec<FieldLimit>)> {
    let mut parsed = Vec::new();
    for name in STRUCTURES {
        let (Some(body), Some(defaults)) = (
            block(text, &format!("pub struct {name} {{")),
            block(text, &format!("impl Default for {name} {{")),
        ) else {
            continue;
        };
        let mut fields = Vec::new();
        let mut description = DocText::default();
        for line in body.lines() {
            let field = line.trim().strip_prefix("pub ").and_then(|rest| rest.split_once(": "));
            if let Some((field, _)) = field {
                let doc_text = description.take();
                let default = default_of(field, defaults);
                fields.extend(default.map(|default| FieldLimit {
                    name: field.to_owned(),
                    default,
                    description: doc_text,
                }));
            }
            description.read_line(line);
        }
        parsed.push((name.to_owned(), fields));
    }
    parsed
}

/// The text after `head` at the beginning of a line, up to the closing bracket in the same column.
fn block<'a>(text: &'a str, head: &str) -> Option<&'a str> {
    let start = if text.starts_with(head) { 0 } else { text.find(&format!("\n{head}"))? + 1 } + head.len();
    let end = text[start..].find("\n}")?;
    Some(&text[start..start + end])
}

/// The value of one field in the body of `Default`, on its own line or in a line with others.
fn default_of(field: &str, defaults: &str) -> Option<String> {
    let label = format!("{field}: ");
    let at = defaults.match_indices(&label).map(|(at, _)| at).find(|at| {
        let before = defaults[..*at].chars().next_back();
        before.is_some_and(char::is_whitespace)
    })?;
    let value = &defaults[at + label.len()..];
    let mut depth = 0_i32;
    let end = value.find(|letter| {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && letter == ',')
    })?;
    Some(value[..end].trim().to_owned())
}

/// The options of one file that have a default or a range.
pub(super) fn flags(text: &str) -> Vec<FlagLimit> {
    let mut parsed = Vec::new();
    let mut description = DocText::default();
    let mut attribute = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("#[arg(") || is_open(&attribute) {
            attribute += trimmed;
            continue;
        }
        if !attribute.is_empty()
            && let Some((field, kind)) = trimmed.split_once(": ")
        {
            let doc_text = description.take();
            let (doc_text, default_text) = match doc_text.split_once(" [default: ") {
                Some((doc_text, default_text)) => {
                    (doc_text.to_owned(), default_text.trim_end_matches(']').to_owned())
                }
                None => (doc_text, String::new()),
            };
            let default =
                argument(&attribute, "default_value_t = ").map_or(default_text, |value| plain(&value));
            let range = argument(&attribute, "value_parser = ").and_then(|parser| range_of(&parser, text));
            // A keyword such as `auto` counts only beside a numeric range.
            let word = argument(&attribute, "default_value = ").filter(|_| range.is_some());
            let default = word.map_or(default, |word| word.trim_matches('"').to_owned());
            let is_flag = kind.trim_end_matches(',') == "bool";
            let is_hidden = attribute.contains("hide = ");
            if !is_flag && !is_hidden && (!default.is_empty() || range.is_some()) {
                let name =
                    field.trim_start_matches("pub(crate) ").trim_start_matches("pub ").replace('_', "-");
                parsed.push(FlagLimit {
                    name,
                    default,
                    range: range.unwrap_or_default(),
                    description: doc_text,
                });
            }
        }
        attribute.clear();
        description.read_line(line);
    }
    parsed
}

fn is_open(attribute: &str) -> bool {
    attribute.matches(['(', '[']).count() > attribute.matches([')', ']']).count()
}

/// The value of `name = value` in an attribute, up to the comma or bracket that ends it.
fn argument(attribute: &str, name: &str) -> Option<String> {
    let defaults = format!(" {}", &attribute[attribute.find(name)?..]);
    default_of_assignment(&defaults, name)
}

fn default_of_assignment(text: &str, name: &str) -> Option<String> {
    let as_field = text.replacen(name, "value: ", 1);
    default_of("value", &as_field)
}

/// A default as a user types it: no digit separators, no path before a variant.
fn plain(value: &str) -> String {
    match value.rsplit_once("::") {
        Some((_, variant)) => variant.to_lowercase(),
        None => value.replace('_', ""),
    }
}

/// The range that a parser accepts: its own, or that of the function in this file that builds it.
fn range_of(parser: &str, text: &str) -> Option<String> {
    let maker = parser.strip_suffix("()").and_then(|name| block(text, &format!("fn {name}() ")));
    let body = maker.unwrap_or(parser);
    let dots = body.find("..")?;
    let start = body[..dots].rfind('(')? + 1;
    let end = dots + body[dots..].find(')')?;
    Some(body[start..end].replace('_', "").replace("..=", " to ").replace("..", " and more"))
}

/// The value of a product of whole numbers; `None` for anything else.
pub(super) fn product(value: &str) -> Option<u64> {
    value
        .split('*')
        .try_fold(1_u64, |product, factor| product.checked_mul(factor.trim().replace('_', "").parse().ok()?))
}

/// The `///` lines above an item, joined; attributes between them and the item are skipped.
#[derive(Default)]
struct DocText(String);

impl DocText {
    fn read_line(&mut self, line: &str) {
        let line = line.trim();
        if let Some(description) = line.strip_prefix("///") {
            if !self.0.is_empty() {
                self.0.push(' ');
            }
            self.0 += description.trim();
        } else if !line.starts_with("#[") {
            self.0.clear();
        }
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests;
