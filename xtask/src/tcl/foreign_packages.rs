//! Packages of other Debian releases, fetched with an apt configuration of their own: own list of sources, own index
//! files, own cache. The system's configuration and its installed packages are not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::XtaskResult;
use crate::steps::run;

/// Releases with the wanted sources: Debian 12, and later ones for Tcl 9.0.
const SOURCE_RELEASES: [&str; 3] = ["bookworm", "trixie", "forky"];

/// Release with the wanted binary packages.
const BINARY_RELEASE: &str = "trixie";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// File that names the version and the folder of an unpacked package, written last.
const UNPACKED_MARKER: &str = ".unpacked";

/// Packages below one folder.
pub(super) struct ForeignPackages {
    folder: PathBuf,
}

impl ForeignPackages {
    /// Packages in `folder`, which must be an absolute path.
    pub(super) fn in_folder(folder: PathBuf) -> ForeignPackages {
        ForeignPackages { folder }
    }

    /// The folder of the unpacked sources, with Debian's patches applied; `None` as version takes the newest. Sources
    /// that are there are used again.
    ///
    /// # Errors
    /// If the mirror does not have the package.
    pub(super) fn source(&self, package: &str, version: Option<&str>) -> XtaskResult<PathBuf> {
        let folder = self.folder.join("sources").join(package);
        let marker = folder.join(UNPACKED_MARKER);
        if let Some(unpacked) = unpacked(&marker, version) {
            return Ok(folder.join(unpacked));
        }
        recreate(&folder)?;
        self.update()?;
        let source = version.map_or_else(|| package.to_owned(), |version| format!("{package}={version}"));
        let mut command = self.apt_get("source");
        run(command.arg(source).current_dir(&folder))?;
        let name = only_folder(&folder)?;
        fs::write(marker, format!("{}\n{name}\n", version.unwrap_or_default()))?;
        Ok(folder.join(name))
    }

    /// The folder with the files of a binary package, as if it were the root. Files that are there are used again.
    ///
    /// # Errors
    /// If the mirror does not have the package for this architecture.
    pub(super) fn binary(&self, package: &str) -> XtaskResult<PathBuf> {
        let folder = self.folder.join("binaries").join(package);
        let marker = folder.join(UNPACKED_MARKER);
        let root = folder.join("root");
        if marker.is_file() {
            return Ok(root);
        }
        recreate(&folder)?;
        self.update()?;
        let mut command = self.apt_get("download");
        run(command.arg(package).current_dir(&folder))?;
        let archive = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
        let archive = archive.into_iter().find(|path| path.extension().is_some_and(|end| end == "deb"));
        let archive = archive.ok_or_else(|| format!("apt-get downloaded no archive of {package}"))?;
        run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(&root))?;
        fs::write(marker, "")?;
        Ok(root)
    }

    /// Downloads the index files.
    fn update(&self) -> XtaskResult {
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(self.folder.join(folder))?;
        }
        fs::write(self.folder.join("sources.list"), source_list(&mirror()?))?;
        run(&mut self.apt_get("update"))
    }

    fn apt_get(&self, action: &str) -> Command {
        let setting = |name: &str, path: &str| format!("{name}={}", self.folder.join(path).display());
        let mut command = Command::new("apt-get");
        command.args(["-q", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Acquire::Retries=3"]);
        command.args(["-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"]);
        // apt's user cannot write to a developer's folder.
        command.args(["-o", "APT::Sandbox::User=root"]);
        for (name, path) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg("-o").arg(setting(name, path));
        }
        command.arg(action);
        command
    }
}

fn source_list(mirror: &str) -> String {
    let line = |kind: &str, release: &str| format!("{kind} [signed-by={KEYRING}] {mirror} {release} main\n");
    let sources = SOURCE_RELEASES.map(|release| line("deb-src", release));
    sources.concat() + &line("deb", BINARY_RELEASE)
}

/// The mirror that the system's apt uses for Debian's main archive.
fn mirror() -> XtaskResult<String> {
    let mut command = Command::new("apt-get");
    let output = command.args(["indextargets", "--format", "$(LABEL) $(SITE)"]).output()?;
    let targets = String::from_utf8_lossy(&output.stdout);
    let mirror = targets.lines().find_map(|target| target.strip_prefix("Debian "));
    Ok(mirror.ok_or("apt has no mirror of Debian's main archive")?.to_owned())
}

/// An empty folder in place of an earlier one.
fn recreate(folder: &Path) -> XtaskResult {
    if folder.is_dir() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

/// Name of the folder of a package that was unpacked in this version.
fn unpacked(marker: &Path, version: Option<&str>) -> Option<String> {
    let text = fs::read_to_string(marker).ok()?;
    let (unpacked_version, name) = text.split_once('\n')?;
    (unpacked_version == version.unwrap_or_default()).then(|| name.trim().to_owned())
}

/// The name of the only folder in a folder, which may have files, too.
fn only_folder(folder: &Path) -> XtaskResult<String> {
    let entries: Vec<_> = fs::read_dir(folder)?.flatten().filter(|entry| entry.path().is_dir()).collect();
    match &entries[..] {
        [entry] => Ok(entry.file_name().to_string_lossy().into_owned()),
        _ => Err(format!("{} folders in {} instead of one", entries.len(), folder.display()).into()),
    }
}

/// Version of an installed Debian package.
///
/// # Errors
/// If it is not installed.
pub(super) fn installed_version(package: &str) -> XtaskResult<String> {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !version.is_empty() {
        Ok(version)
    } else {
        Err(format!("the Debian package {package} is not installed").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_sources_are_used_again_only_in_the_wanted_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let marker = folder.path().join(UNPACKED_MARKER);
        assert_eq!(unpacked(&marker, None), None);
        fs::write(&marker, "1.2-3\na-1.2\n").expect("a file");
        assert_eq!(unpacked(&marker, Some("1.2-3")).as_deref(), Some("a-1.2"));
        assert_eq!(unpacked(&marker, Some("1.2-4")), None);
        assert_eq!(unpacked(&marker, None), None);
    }

    #[test]
    fn apt_uses_only_the_given_folder() {
        let sources = ForeignPackages::in_folder("/a".into());
        let command = crate::steps::command_text(&sources.apt_get("update"));
        for setting in [
            "Dir::Etc::sourcelist=/a/sources.list",
            "Dir::Etc::sourceparts=/dev/null",
            "Dir::State::lists=/a/lists",
            "Dir::Cache=/a/cache",
        ] {
            assert!(command.contains(setting), "{command}");
        }
    }

    #[test]
    fn every_source_is_signed() {
        let list = source_list("http://mirror.invalid/debian");
        assert!(list.lines().all(|line| line.contains(" [signed-by=")), "{list}");
        assert!(list.contains("] http://mirror.invalid/debian bookworm main\n"), "{list}");
        assert_eq!(list.lines().filter(|line| line.starts_with("deb ")).count(), 1);
    }

    #[test]
    fn exactly_one_folder_is_expected() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(only_folder(folder.path()).is_err());
        fs::write(folder.path().join("file"), "").expect("a file");
        fs::create_dir(folder.path().join("a-1")).expect("a folder");
        assert_eq!(only_folder(folder.path()).expect("one folder"), "a-1");
        fs::create_dir(folder.path().join("b-1")).expect("a folder");
        assert!(only_folder(folder.path()).is_err());
    }
}
