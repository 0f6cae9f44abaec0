//! The table of settings: the options of the command line. Each is also a key of the file and a variable of the
//! environment by a naming rule, so none can be missing.
//!
//! ```text
//! --max-queue 100     STILLING_MAX_QUEUE=100     max-queue = 100
//! ```

use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};

use clap::{Arg, ArgAction, Command};

pub(super) const PREFIX: &str = "STILLING_";

/// Options that select the source of settings: no keys of a file.
const NO_KEYS: [&str; 1] = ["config"];

pub(super) struct SettingDefinition<'a> {
    /// Name of the option without dashes, and of the key.
    pub(super) name: &'a str,
    pub(super) variable: String,
    pub(super) kind: ValueCount,
    arg: &'a Arg,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueCount {
    Switch,
    One,
    List,
}

pub(super) fn definitions(command: &Command) -> Vec<SettingDefinition<'_>> {
    command.get_arguments().filter_map(SettingDefinition::of).collect()
}

impl<'a> SettingDefinition<'a> {
    fn of(arg: &'a Arg) -> Option<Self> {
        let kind = match arg.get_action() {
            ArgAction::SetTrue => ValueCount::Switch,
            ArgAction::Set => ValueCount::One,
            ArgAction::Append => ValueCount::List,
            // A request for help is no setting.
            _ => return None,
        };
        let name = arg.get_long()?;
        let variable = format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"));
        Some(SettingDefinition { name, variable, kind, arg })
    }

    pub(super) fn is_key(&self) -> bool {
        !NO_KEYS.contains(&self.name)
    }

    pub(super) fn id(&self) -> &str {
        self.arg.get_id().as_str()
    }

    pub(super) fn short(&self) -> Option<char> {
        self.arg.get_short()
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.arg.is_hide_set()
    }

    pub(super) fn heading(&self) -> &str {
        self.arg.get_help_heading().unwrap_or("Server")
    }

    /// For an option of the elastic workers: returns whether it affects only a growing pool.
    pub(super) fn is_about_growth(&self) -> bool {
        self.name != "accept-workers"
    }

    pub(super) fn value_name(&self) -> String {
        let names = self.arg.get_value_names().unwrap_or_default();
        names.iter().map(clap::builder::Str::as_str).collect::<Vec<_>>().join(" ")
    }

    /// The description and the default.
    pub(super) fn help_text(&self) -> (String, String) {
        let help = self.arg.get_help().map(ToString::to_string).unwrap_or_default();
        match help.split_once(" [default: ") {
            Some((words, default)) => (words.to_owned(), default.trim_end_matches(']').to_owned()),
            None => {
                let defaults = self.arg.get_default_values().iter();
                let defaults: Vec<_> = defaults.map(|value| value.to_string_lossy().into_owned()).collect();
                (help, if self.kind == ValueCount::Switch { "false".to_owned() } else { defaults.join(", ") })
            }
        }
    }

    /// Checks a value with the option's own parser.
    pub(super) fn accepts(&self, value: &str) -> Result<(), String> {
        if self.kind == ValueCount::Switch {
            return switch(value).map(drop);
        }
        let alone = Arg::new("value").long("value").value_parser(self.arg.get_value_parser().clone());
        let outcome = Command::new("trial")
            .no_binary_name(true)
            .arg(alone)
            .try_get_matches_from([format!("--value={value}")]);
        outcome.map(drop).map_err(|error| match error.source() {
            Some(reason) => match reason.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
                Some(IntErrorKind::InvalidDigit | IntErrorKind::Empty) => "not a whole number".to_owned(),
                // The parser prints a range as `1..=10`.
                _ => match reason.to_string().split_once("..=") {
                    Some((least, most)) => {
                        format!("{} to {most}", least.replace("not in", "not in the range"))
                    }
                    None => reason.to_string(),
                },
            },
            None => {
                let possible = self.arg.get_possible_values();
                let words: Vec<_> = possible.iter().map(clap::builder::PossibleValue::get_name).collect();
                if words.is_empty() {
                    "it needs a value".to_owned()
                } else {
                    format!("it is one of {}", words.join(", "))
                }
            }
        })
    }

    /// The value as a command-line argument; `None` for a switch that is off.
    pub(super) fn to_argument(&self, value: &str) -> Option<String> {
        match self.kind {
            ValueCount::Switch => switch(value).unwrap_or(false).then(|| format!("--{}", self.name)),
            ValueCount::One | ValueCount::List => Some(format!("--{}={value}", self.name)),
        }
    }
}

pub(super) fn switch(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("it is true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn serve() -> Command {
        crate::StillingArguments::command().find_subcommand("serve").expect("it is there").clone()
    }

    /// Every option except help has a key and a variable.
    #[test]
    fn every_option_can_be_chosen_in_every_source() {
        let command = serve();
        let definitions = definitions(&command);
        for arg in command.get_arguments() {
            let is_help = matches!(arg.get_action(), ArgAction::HelpShort);
            let name = arg.get_long().expect("every option has a long name");
            let definition = definitions.iter().find(|definition| definition.name == name);
            assert_eq!(definition.is_none(), is_help, "--{name}");
            let Some(definition) = definition else { continue };
            assert_eq!(definition.is_key(), name != "config", "{name}");
            let variable = definition.variable.strip_prefix(PREFIX).expect("its variable");
            assert_eq!(variable.to_lowercase().replace('_', "-"), name);
            assert!(!definition.help_text().0.is_empty(), "--{name} is said to be something");
        }
        assert!(definitions.len() > 50, "{} are all", definitions.len());
    }

    #[test]
    fn a_value_is_checked_by_the_parser_of_its_option() {
        let command = serve();
        let definitions = definitions(&command);
        let definition =
            |name: &str| definitions.iter().find(|definition| definition.name == name).expect(name);
        for (name, value) in
            [("demo", "true"), ("demo", "0"), ("max-queue", "7"), ("driver", "poll"), ("head-timeout", "10s")]
        {
            assert_eq!(definition(name).accepts(value), Ok(()), "{name} = {value}");
        }
        for (name, value, reason) in [
            ("demo", "yes", "it is true or false"),
            ("max-queue", "0", "0 is not in the range 1 to 1000000"),
            ("max-queue", "", "not a whole number"),
            ("driver", "kqueue", "it is one of auto, uring, poll"),
            (
                "listen",
                "localhost:1",
                "it must be an IP address and a port, such as 127.0.0.1:9000 or [::]:9000",
            ),
        ] {
            assert_eq!(definition(name).accepts(value), Err(reason.to_owned()), "{name} = {value}");
        }
        assert_eq!(definition("demo").to_argument("false"), None);
        assert_eq!(definition("demo").to_argument("true").as_deref(), Some("--demo"));
        assert_eq!(definition("max-queue").to_argument("7").as_deref(), Some("--max-queue=7"));
    }
}
