//! Tests of refused paths: outside the directory, hidden, or not a file.

use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::{FileType, Mode, mknodat};
use stilling::DriverChoice;
use stilling::http::Routes;

use super::Site;
use crate::support::{HttpTestServer, get};

on_both_drivers!(
    no_path_leads_outside,
    links_are_confined_to_the_folder,
    hidden_files_are_not_found,
    special_files_are_not_found,
    unreadable_files_are_403,
);

#[track_caller]
fn assert_refused(site: &Site, path: &str, status: u16) {
    let answer = site.server.connect().ask(get(path));
    assert_eq!(answer.status, status, "{path}: {}", answer.text());
    assert!(!answer.text().contains("secret"), "{path} leads outside");
}

/// Row 5.5: in any spelling of a path to the outside.
fn no_path_leads_outside(driver: DriverChoice) {
    let site = Site::new(driver);
    let absolute = site.outside().join("secret");
    let absolute = absolute.to_str().expect("a path of text");
    for path in [
        "/files/../secret",
        "/files/%2e%2e/secret",
        "/files/%2E./secret",
        "/files/..%2fsecret",
        "/files/%2e%2e%2fsecret",
        "/files/sub/../../secret",
        "/files/sub/%2e%2e/%2e%2e/secret",
        "/files/sub/..%2f..%2fsecret",
        "/files/..\\secret",
        "/files/..%5csecret",
        "/files/%252e%252e/secret",
        "/files/./ten",
        "/files//ten",
        "/files/sub//index.html",
        "/files/ten%00",
        "/files/ten%00.html",
        "/files/%00",
        "/files/%ff",
        &format!("/files/{absolute}"),
        &format!("/files/%2f{absolute}"),
        &format!("/files/{}", absolute.replace('/', "%2f")),
        &format!("/files/{}", "x".repeat(300)),
        &format!("/files/{}", "x/".repeat(3000)),
    ] {
        assert_refused(&site, path, 404);
    }
    // An encoded slash is a slash: both lead to the same file.
    assert_eq!(site.server.connect().ask(get("/files/sub%2findex.html")).text(), "<p>sub</p>");
    site.server.finish();
}

fn links_are_confined_to_the_folder(driver: DriverChoice) {
    let site = Site::new(driver);
    let public = site.public();
    let link = |target: &str, name: &str| symlink(target, public.join(name)).expect("a link");
    link("ten", "inside");
    link("sub", "inside-folder");
    link("../secret", "relative");
    link("..", "parent");
    link(site.outside().join("secret").to_str().expect("text"), "absolute");
    link(public.join("ten").to_str().expect("text"), "absolute-inside");
    link("/proc/self/exe", "magic");
    link("circle", "circle");
    link("nowhere", "dangling");
    assert_eq!(site.server.connect().ask(get("/files/inside")).text(), "0123456789");
    assert_eq!(site.server.connect().ask(get("/files/inside-folder/")).text(), "<p>sub</p>");
    for name in ["relative", "parent/secret", "absolute", "absolute-inside", "magic", "circle", "dangling"] {
        assert_refused(&site, &format!("/files/{name}"), 404);
    }
    site.server.finish();
}

fn hidden_files_are_not_found(driver: DriverChoice) {
    let site = Site::new(driver);
    let public = site.public();
    std::fs::create_dir_all(public.join(".git")).expect("a folder");
    std::fs::create_dir_all(public.join(".well-known")).expect("a folder");
    std::fs::write(public.join(".git/config"), "secret").expect("a file");
    std::fs::write(public.join("sub/.htaccess"), "secret").expect("a file");
    std::fs::write(public.join(".well-known/security.txt"), "contact").expect("a file");
    for path in ["/files/.git/config", "/files/%2egit/config", "/files/sub/.htaccess", "/files/.git/"] {
        assert_refused(&site, path, 404);
    }
    // RFC 8615: this path is public.
    assert_eq!(site.server.connect().ask(get("/files/.well-known/security.txt")).text(), "contact");
    site.server.finish();
}

fn special_files_are_not_found(driver: DriverChoice) {
    let site = Site::new(driver);
    let public = std::fs::File::open(site.public()).expect("a folder");
    mknodat(&public, "pipe", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(site.public().join("socket")).expect("a socket");
    // Repeated, because a worker that blocked on the pipe would not answer the next request.
    for _ in 0..5 {
        assert_refused(&site, "/files/pipe", 404);

        assert_refused(&site, "/files/ten/", 404);
        assert_refused(&site, "/files/ten/more", 404);
        assert_refused(&site, "/files/socket", 404);
    }
    site.server.finish();
}

/// A refusal by the system is 403; root can read every file.
fn unreadable_files_are_403(driver: DriverChoice) {
    let site = Site::new(driver);
    let closed = site.public().join("closed");
    std::fs::write(&closed, "closed").expect("a file");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).expect("a file of ours");
    let expected = if std::fs::File::open(&closed).is_ok() { 200 } else { 403 };
    assert_eq!(site.server.connect().ask(get("/files/closed")).status, expected);
    site.server.finish();
    let without_folder =
        HttpTestServer::start(driver, Routes::new().files("/files", site.folder.path().join("none")));
    assert_eq!(without_folder.connect().ask(get("/files/ten")).status, 404);
    without_folder.finish();
}
