//! Tests of a directory as responses: served files, refusals, conditions, ranges.

mod conditions;
mod contents;
mod refusals;

use std::path::Path;

use stilling::DriverChoice;
use stilling::http::Routes;
use tempfile::TempDir;

use crate::support::{HttpTestServer, pattern};

/// A server of a directory, below `/files`.
struct Site {
    folder: TempDir,
    server: HttpTestServer,
}

impl Site {
    /// `public/` is served; its siblings must not be reachable.
    fn new(driver: DriverChoice) -> Site {
        let folder = tempfile::tempdir().expect("a folder");
        let public = folder.path().join("public");
        let write = |path: &str, bytes: &[u8]| {
            let path = public.join(path);
            std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
            std::fs::write(path, bytes).expect("a file");
        };
        write("index.html", b"<p>front</p>");
        write("page.html", b"<p>page</p>");
        write("sub/index.html", b"<p>sub</p>");
        write("sub/a b+ä.txt", b"blank");
        write("bare/file", b"bare");
        write("empty.txt", b"");
        write("ten", b"0123456789");
        write("big.bin", &pattern(300_000));
        std::fs::write(folder.path().join("secret"), "secret").expect("a file");
        let server = HttpTestServer::start(driver, Routes::new().files("/files", &public));
        Site { folder, server }
    }

    fn public(&self) -> std::path::PathBuf {
        self.folder.path().join("public")
    }

    fn outside(&self) -> &Path {
        self.folder.path()
    }
}
