//! Tests of the line reader on sources laid out by rustfmt.

use super::*;

const SOURCE: &str = "\
//! Bounds.

/// Buffers per shard. All lent out:
/// receives wait.
pub const BUFFERS: u16 = 512;

/// Bytes held.
#[doc(alias = \"x\")]
pub(super) const HELD_MAX: usize =
    64 * 1024;

const OFF_LIMIT: u32 = 1;

/// What bounds a pool.
pub struct PoolLimits {
    /// Threads.
    pub threads: usize,
    /// Jobs that may wait;
    /// more are refused.
    pub queue_max: usize,
    /// Their age.
    pub age_max: Duration,
}

impl Default for PoolLimits {
    fn default() -> PoolLimits {
        let threads = cores();
        PoolLimits { threads, queue_max: 4096, age_max: Duration::from_secs(30) }
    }
}

fn inside() {
    const DEEP_MAX: u8 = 1;
}
";

#[test]
fn constants_come_with_their_descriptions_and_values() {
    let names = |all| constants(SOURCE, all).into_iter().map(|constant| constant.name).collect::<Vec<_>>();
    assert_eq!(names(true), ["BUFFERS", "HELD_MAX", "OFF_LIMIT"]);
    assert_eq!(names(false), ["HELD_MAX", "OFF_LIMIT"]);
    let parsed = constants(SOURCE, true);
    assert_eq!(parsed[0].description, "Buffers per shard. All lent out: receives wait.");
    let (kind, value, description) = ("usize".to_owned(), "64 * 1024".to_owned(), "Bytes held.".to_owned());
    assert_eq!(parsed[1], ConstantLimit { name: "HELD_MAX".to_owned(), kind, value, description });
    assert_eq!(parsed[2].description, "");
}

#[test]
fn fields_come_with_their_defaults() {
    let field = |name: &str, default: &str, description: &str| FieldLimit {
        name: name.to_owned(),
        default: default.to_owned(),
        description: description.to_owned(),
    };
    let parsed = structures(SOURCE);
    assert_eq!(parsed.len(), 1);
    assert_eq!(parsed[0].0, "PoolLimits");
    assert_eq!(
        parsed[0].1,
        [
            field("queue_max", "4096", "Jobs that may wait; more are refused."),
            field("age_max", "Duration::from_secs(30)", "Their age."),
        ]
    );
}

#[test]
fn options_come_with_their_defaults_and_ranges() {
    let source = "\
struct Arguments {
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    /// Listen here
    #[arg(short, long, default_value_t = 9000, conflicts_with = \"listen\",
          value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Threads [default: number of cores]
    #[arg(short = 'A', long, value_name = \"N\", value_parser = at_least_one())]
    accept_threads: Option<u32>,
    /// Jobs that may wait
    #[arg(long, default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    max_queue: u32,
    /// Which
    #[arg(long, value_enum, default_value_t = Driver::Auto)]
    driver: Driver,
    /// Patience
    #[arg(long, default_value_t = 10.0, value_parser = seconds())]
    patience: f64,
    /// Wait
    #[arg(long, default_value = \"auto\", value_parser = seconds())]
    target: Target,
    /// Place
    #[arg(long, default_value = \"here\")]
    place: String,
    /// Free
    #[arg(long)]
    free: Option<String>,
}

fn at_least_one() -> Parser {
    clap::value_parser!(u32).range(1..=16_000_000)
}

fn seconds() -> Parser {
    text().try_map(|text| (0.001..=9.0).contains(&text))
}
";
    let rows: Vec<_> = flags(source)
        .into_iter()
        .map(|flag| [flag.name, flag.default, flag.range, flag.description])
        .collect();
    assert_eq!(
        rows,
        [
            ["port", "9000", "1 and more", "Listen here"],
            ["accept-threads", "number of cores", "1 to 16000000", "Threads"],
            ["max-queue", "4096", "1 to 1000", "Jobs that may wait"],
            ["driver", "auto", "", "Which"],
            ["patience", "10.0", "0.001 to 9.0", "Patience"],
            ["target", "auto", "0.001 to 9.0", "Wait"],
        ]
    );
}

#[test]
fn products_are_computed_and_nothing_else() {
    assert_eq!(product("64 * 1_024"), Some(65_536));
    assert_eq!(product("512"), Some(512));
    assert_eq!(product("SIZES[0]"), None);
    assert_eq!(product("1 << 30"), None);
    assert_eq!(product("18_446_744_073_709_551_615 * 2"), None);
}
