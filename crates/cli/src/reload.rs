//! Reads the pools of worker processes again, for a reload.

use stilling::upstream::AppConfig;

use crate::CliCommand;
use crate::settings::{self, SettingsError};

/// Reads all settings as at the start: the command line and the environment are the same, the file may have changed.
///
/// # Errors
/// The settings are wrong.
pub(crate) fn read_apps() -> Result<Vec<AppConfig>, String> {
    let variables: Vec<_> = std::env::vars_os().collect();
    let (arguments, sources) =
        settings::load_settings(std::env::args_os().collect(), &variables).map_err(|error| match error {
            SettingsError::Usage(error, notes) => one_line(&format!("{error}{notes}")),
            SettingsError::Settings(diagnostics) => one_line(&diagnostics.to_string()),
        })?;
    let CliCommand::Serve(arguments) = arguments.command else { return Err("not a server".to_owned()) };
    let resolved = arguments.resolve(sources).map_err(|error| one_line(&error.to_string()))?;
    Ok(resolved.config.apps)
}

fn one_line(text: &str) -> String {
    text.lines().map(|line| line.trim_start_matches("stilling: ")).collect::<Vec<_>>().join("; ")
}
