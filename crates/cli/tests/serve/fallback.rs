//! Systems without io_uring, such as most containers.

use crate::support::{DriverUnderTest, ServerUnderTest, Tool, binary};

/// The binary with a kernel that answers io_uring's first call with `error`.
fn refused(error: &str, driver: &str) -> std::process::Command {
    let arguments = "-D -f -qq -o /dev/null -e trace=io_uring_setup -e inject=io_uring_setup:error=";
    let tool = Tool::new("strace", &format!("{arguments}{error}")).arg(binary().get_program());
    let mut command = tool.into_command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver]);
    command
}

/// Row 5.2: without io_uring the server uses epoll and reports the reason.
#[test]
fn without_io_uring_the_server_falls_back_and_reports_it() {
    for (error, text) in [("EPERM", "Operation not permitted"), ("ENOSYS", "Function not implemented")] {
        let server = ServerUnderTest::spawn(refused(error, "auto"));
        let driver = server.banner_line("driver ");
        assert!(driver.starts_with(&format!("poll (io_uring is not available: {text}")), "{driver}");
        let metrics = server.watch().fetch();
        let label = metrics.driver();
        assert!(label.starts_with("driver{driver=\"poll\",fallback=\"io_uring is not available"), "{label}");
        let mut peer = server.connect();
        for path in ["fast", "slow"] {
            assert_eq!(peer.ask(format!("GET /test/{path} HTTP/1.1\r\nHost: a\r\n\r\n")).status, 200);
        }
        drop(peer);
        server.finish();
    }
}

/// Row 5.2: a required but missing io_uring is an error with a remedy.
#[test]
fn a_demanded_driver_that_is_missing_is_an_error() {
    for error in ["EPERM", "ENOSYS"] {
        let outcome = refused(error, "uring").output();
        let outcome = outcome.expect("strace runs; install it (`cargo xtask test` does)");
        assert_eq!(outcome.status.code(), Some(1), "{error}");
        let stderr_text = String::from_utf8_lossy(&outcome.stderr);
        assert!(stderr_text.starts_with("stilling: io_uring is not available here ("), "{stderr_text}");
        assert!(stderr_text.ends_with("use --driver poll, or auto\n"), "{stderr_text}");
    }
}

/// Row 5.2: where io_uring is available, `auto` uses it without a message.
#[test]
fn auto_uses_io_uring_where_it_is_allowed() {
    let mut command = binary();
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    let server = ServerUnderTest::spawn(command);
    assert_eq!(server.banner_line("driver "), DriverUnderTest::Uring.name());
    assert_eq!(server.watch().fetch().driver(), "driver{driver=\"uring\",fallback=\"\"}");
    server.finish();
}
