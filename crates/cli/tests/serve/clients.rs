//! Common clients: curl, ab, wrk, Python, a browser.

use crate::support::{DriverUnderTest, ServerUnderTest, Tool};

on_both_drivers!(
    curl_is_served_in_all_its_ways,
    curl_reaches_ipv6,
    ab_measures_without_a_failure,
    ab_keeps_a_crowd_waiting_for_one_worker_in_order,
    wrk_pipelines_without_a_failure,
    python_is_served,
    a_browser_shows_the_status_page,
);

fn curl(arguments: &str) -> String {
    Tool::new("curl", &format!("--silent --show-error --max-time 30 {arguments}")).output()
}

/// Row 4.15: the default behavior of curl and its options.
fn curl_is_served_in_all_its_ways(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1");
    let (fast, slow, live) = (server.url("/test/fast"), server.url("/test/slow"), server.url("/livez"));
    let write_out = "--output /dev/null --write-out %{http_code},%{num_connects},%{http_version};";
    // Two requests, the second one on the connection of the first.
    assert_eq!(curl(&format!("{write_out} {fast} {write_out} {slow}")), "200,1,1.1;200,0,1.1;");
    assert_eq!(curl(&format!("{write_out} --http1.0 {fast}")), "200,1,1.1;");
    assert_eq!(curl(&live), "alive\n");
    let head = curl(&format!("--head {live}"));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Content-Length: 6\r\n"), "{head}");
    assert_eq!(
        curl(&format!("{write_out} --data a=b {slow} {write_out} --next {write_out} {fast}"))
            .matches("200")
            .count(),
        2
    );
    let body = "x".repeat(100_000);
    for how in ["Expect: 100-continue", "Transfer-Encoding: chunked", "Content-Type: text/plain"] {
        let tool = Tool::new("curl", "--silent --show-error --max-time 30 --output /dev/null");
        let tool = tool.arg("--write-out").arg("%{http_code}").arg("--header").arg(how);
        assert_eq!(tool.arg("--data-binary").arg(&body).arg(&fast).output(), "200", "{how}");
    }
    assert_eq!(curl(&format!("{write_out} {}", server.url("/nothing"))), "404,1,1.1;");
    let metrics = server.finish();
    assert!(metrics.answers(100) >= 1, "no client got 100 Continue: {metrics:?}");
    assert_eq!(metrics.answers(400), 0);
}

/// Row 4.19: the same over IPv6.
fn curl_reaches_ipv6(driver: DriverUnderTest) {
    let server = ServerUnderTest::listening(driver, "[::1]:0", "");
    assert_eq!(curl(&format!("--globoff {}", server.url("/livez"))), "alive\n");
    server.finish();
}

/// Figures of ab: complete, failed, and non-2xx responses.
pub(crate) fn ab(arguments: &str, url: &str) -> (u64, u64, u64) {
    let report = Tool::new("ab", &format!("-q -s 60 {arguments} {url}")).output();
    let number = |name: &str| {
        let line = report.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |rest| rest.trim().parse().expect("a number"))
    };
    (number("Complete requests:"), number("Failed requests:"), number("Non-2xx responses:"))
}

/// Rows 4.15, 4.20 to 4.24: the first server's own measurements, shortened.
fn ab_measures_without_a_failure(driver: DriverUnderTest) {
    for (options, calls) in [
        (
            "--queue-target off",
            &[("-n 1 -c 1", "fast", 1), ("-n 1 -c 1", "slow", 1), ("-n 5000 -c 1", "fast", 5000)][..],
        ),
        (
            "--queue-target off",
            &[("-n 20 -c 1", "slow", 20), ("-n 5000 -k -c 1", "fast", 5000), ("-n 50 -k -c 5", "slow", 50)],
        ),
        ("-A 10 --queue-target off", &[("-n 5000 -c 10", "fast", 5000), ("-n 100 -c 10", "slow", 100)]),
        (
            "-A 10 --queue-target off",
            &[("-n 10000 -k -c 100", "fast", 10_000), ("-n 5000 -c 100", "fast", 5000)],
        ),
    ] {
        let server = ServerUnderTest::start(driver, options);
        for (arguments, path, requests) in calls {
            let url = server.url(&format!("/test/{path}"));
            assert_eq!(ab(arguments, &url), (*requests, 0, 0), "ab {arguments} {path}, serve {options}");
        }
        server.finish();
    }
}

/// Rows 4.25, 4.26: 500 slow requests of 100 clients for one worker, then more and shorter ones.
fn ab_keeps_a_crowd_waiting_for_one_worker_in_order(driver: DriverUnderTest) {
    for (duration, requests, clients) in [(30, 500, 100), (2, 1000, 200)] {
        let server =
            ServerUnderTest::start(driver, &format!("-C 1000 -A 100 -w 1 -D {duration} --queue-target off"));
        let url = server.url("/test/slow");
        assert_eq!(ab(&format!("-n {requests} -c {clients}"), &url), (requests, 0, 0));
        let metrics = server.finish();
        assert_eq!((metrics.jobs("done"), metrics.jobs("expired")), (requests, 0));
        assert!(metrics.value("jobs_queued_max") >= clients / 2, "no crowd: {metrics:?}");
    }
}

/// Row 4.15: kept connections with sixteen requests at once.
fn wrk_pipelines_without_a_failure(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1 --queue-target off");
    let script = std::env::temp_dir().join(format!("stilling-pipeline-{}.lua", server.pid()));
    let text = "init = function(args)\n  local r = {}\n  for i = 1, 16 do r[i] = wrk.format(\"GET\") end\n  \
                request_all = table.concat(r)\nend\nrequest = function() return request_all end\n";
    std::fs::write(&script, text).expect("a file in the temporary folder");
    let pipelined = format!("--script {}", script.display());
    for (more, path) in [("", "fast"), ("", "slow"), (&*pipelined, "fast"), (&*pipelined, "slow")] {
        let arguments = format!("--threads 2 --connections 20 --duration 1s {more}");
        let report = Tool::new("wrk", &arguments).arg(server.url(&format!("/test/{path}"))).output();
        assert!(!report.contains("Non-2xx") && !report.contains("Socket errors"), "{report}");
        assert!(report.contains(" requests in "), "{report}");
    }
    std::fs::remove_file(&script).expect("it is ours");
    let metrics = server.finish();
    assert!(metrics.answers(200) > 100, "{metrics:?}");
    assert_eq!(metrics.answers(200), metrics.value("http_responses_total"));
}

/// Row 4.15: Python's own client keeps its connection and sends bodies in both forms.
fn python_is_served(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1");
    let script = "
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=30)
def ask(method, path, body=None, headers={}, **more):
    connection.request(method, path, body, headers, **more)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
socket = None
for round in range(10):
    assert ask('GET', '/livez') == (200, 'alive\\n')
    socket = socket or connection.sock
    assert ask('GET', '/test/slow') == (200, '')
    assert ask('POST', '/test/fast', b'x' * 5000) == (200, '')
    assert ask('POST', '/test/slow', iter([b'ab', b'c' * 9000]), encode_chunked=True,
               headers={'Transfer-Encoding': 'chunked'}) == (200, '')
    assert ask('HEAD', '/status') == (200, '')
    assert ask('DELETE', '/livez')[0] == 405
assert connection.sock is socket
print('served')
";
    let tool = Tool::new("python3", "-c").arg(script).arg(server.address().to_string());
    assert_eq!(tool.output(), "served\n");
    assert_eq!(server.finish().value("accepted_total"), 1);
}

/// Row 5.3: the page in a browser.
fn a_browser_shows_the_status_page(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "");
    let profile = std::env::temp_dir().join(format!("stilling-browser-{}", server.pid()));
    let arguments =
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --dump-dom";
    let tool = Tool::new("chromium", arguments).arg(format!("--user-data-dir={}", profile.display()));
    let page = tool.arg(server.url("/status")).output();
    for text in [
        "<title>Stilling: ready</title>".to_owned(),
        format!("driver {}", driver.name()),
        format!("listening on http://{}", server.address()),
        "<td>open now</td>".to_owned(),
    ] {
        assert!(page.contains(&text), "{text} is not in {page}");
    }
    // The browser may still use its profile, which is no failure of the server.
    let _ = std::fs::remove_dir_all(&profile);
    server.finish();
}
