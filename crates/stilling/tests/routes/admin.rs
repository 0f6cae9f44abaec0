//! Tests of the admin pages, answered only where the configuration puts them.

use std::net::SocketAddr;

use stilling::http::{Method, Routes};
use stilling::{Admin, DriverChoice, ServeConfig, Server};

use crate::support::{HttpTestServer, TestPeer, get};

on_both_drivers!(
    admin_pages_with_their_own_listener_are_nowhere_else,
    disabled_admin_pages_are_not_found,
    admin_pages_move_also_without_routes,
);

const PAGES: [&str; 4] = ["/status", "/metrics", "/livez", "/readyz"];

fn routes() -> Routes {
    Routes::new().inline(Method::Get, "/good", |_| "good").inline(Method::Get, "/livez", |_| "a route\n")
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn check(peer: &mut TestPeer, path: &str, status: u16) {
    assert_eq!(peer.ask(get(path)).status, status, "{path}");
}

/// With a separate listener, public listeners do not answer the admin pages.
fn admin_pages_with_their_own_listener_are_nowhere_else(driver: DriverChoice) {
    let server = HttpTestServer::with(driver, routes(), |config| config.admin = Admin::At(any_port()));
    let (mut peer, mut admin) = (server.connect(), server.connect_admin());
    check(&mut peer, "/good", 200);
    for path in ["/", "/status", "/metrics", "/readyz"] {
        check(&mut peer, path, 404);
    }
    assert_eq!(peer.ask(get("/livez")).text(), "a route\n", "the path is free for a route");
    for path in PAGES.into_iter().chain(["/"]) {
        check(&mut admin, path, 200);
    }
    assert_eq!(admin.ask(get("/livez")).text(), "alive\n");
    for path in ["/good", "/test/fast"] {
        check(&mut admin, path, 404);
    }
    drop((peer, admin));
    server.finish();
}

fn disabled_admin_pages_are_not_found(driver: DriverChoice) {
    let server = HttpTestServer::with(driver, routes(), |config| config.admin = Admin::Off);
    let mut peer = server.connect();
    check(&mut peer, "/good", 200);
    for path in ["/", "/status", "/metrics", "/readyz"] {
        check(&mut peer, path, 404);
    }
    drop(peer);
    server.finish();
}

/// `/test/*` stays on loopback listeners, and the banner shows both addresses.
fn admin_pages_move_also_without_routes(driver: DriverChoice) {
    let config = ServeConfig {
        listen: vec![any_port()],
        admin: Admin::At(any_port()),
        shards: 2,
        driver,
        ..ServeConfig::default()
    };
    let server = Server::bind(config, Routes::new()).expect("two free ports and the driver");
    let (address, admin) = (server.addresses()[0], server.admin_address().expect("an address of its own"));
    assert_eq!(server.addresses().len(), 1);
    assert_eq!(
        server.banner()[..2],
        [format!("listening http://{address}"), format!("admin http://{admin}")]
    );
    let running = server.start().expect("a thread");
    // Every shard answers at both.
    for _ in 0..10 {
        check(&mut TestPeer::connect(address), "/test/fast", 200);
        check(&mut TestPeer::connect(address), "/metrics", 404);
        check(&mut TestPeer::connect(admin), "/test/fast", 404);
        check(&mut TestPeer::connect(admin), "/metrics", 200);
    }
    running.end().expect("no shard has failed");
}
