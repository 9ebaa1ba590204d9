//! Something inside dies: everybody is told, and the process ends so that its supervisor can start another.

use crate::common::{Daemon, ask, request};
use crate::{assert_error, assert_error_event, number, paced, with};

/// B061: streams before and after their first token, replies that are not streamed, and what waits.
#[test]
fn when_the_model_panics_every_open_request_gets_an_error_and_the_process_ends() {
    let mut d = paced(
        "2000",
        &[
            ("fake.fault", "panic"),
            ("fake.fault_marker", "PANIC"),
            ("fake.fault_at_token", "50"),
            ("scheduler.max_running", "4"),
        ],
    );
    let mut running = d.chat(&ask("runs", 4000, true));
    running.read_text(2);
    let reply = d.chat(&ask("whole", 4000, false));
    let mut marked = d.chat(&ask("PANIC", 4000, true));
    marked.read_text(1);
    let marked_reply = d.chat(&ask("whole PANIC", 4000, false));
    d.wait_for("all run", || number(&d.stats(), "/running") == 4);
    let queued = d.chat(&ask("queued", 5, true));
    let queued_reply = d.chat(&ask("queued whole", 5, false));
    let whole = request(
        "/v1/chat/completions",
        &ask("half", 5, true).to_string(),
        "",
    );
    let half = d.send(&whole[..whole.len() - 10]);
    d.wait_for("two wait", || number(&d.stats(), "/waiting") == 2);

    for stream in [running, marked] {
        assert_error_event(&stream.rest(), "engine_error");
    }
    assert_error_event(&queued.response(), "engine_error");
    for reply in [reply, marked_reply, queued_reply] {
        assert_error(&reply.response(), 500, "engine_error");
    }
    half.drained();
    assert_eq!(d.wait().code(), Some(70), "{}", d.log());
    let log = d.log();
    assert!(log.contains("the model runner has died"), "{log}");
    assert!(!log.contains("stack backtrace"), "{log}");
}

/// What arrives between the death and the end is refused, and does not hang.
#[test]
fn requests_that_arrive_after_the_death_are_answered_too() {
    let mut d = paced(
        "0",
        &[
            ("fake.fault", "panic"),
            ("fake.fault_marker", "PANIC"),
            ("fake.fault_at_token", "1"),
        ],
    );
    let marked = d.chat(&ask("PANIC", 4, false));
    let addr = d.addr;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|i| {
                scope.spawn(move || {
                    let mut statuses = vec![];
                    // Until nobody listens any more.
                    while let Ok(probe) = std::net::TcpStream::connect(addr) {
                        drop(probe);
                        let Some(mut c) = std::net::TcpStream::connect(addr).ok() else {
                            break;
                        };
                        let body = ask(&format!("late {i}"), 4, i % 2 == 0).to_string();
                        let bytes = request("/v1/chat/completions", &body, "connection: close\r\n");
                        use std::io::{Read as _, Write as _};
                        c.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
                        let _ = c.write_all(bytes.as_bytes());
                        let mut answer = vec![];
                        let read = c.read_to_end(&mut answer);
                        assert!(
                            !read.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock),
                            "a client hung"
                        );
                        statuses.push(
                            String::from_utf8_lossy(&answer)
                                .lines()
                                .next()
                                .unwrap_or("")
                                .to_owned(),
                        );
                    }
                    statuses
                })
            })
            .collect();
        assert_error(&marked.response(), 500, "engine_error");
        assert_eq!(d.wait().code(), Some(70), "{}", d.log());
        let answers: Vec<_> = clients
            .into_iter()
            .flat_map(|c| c.join().unwrap())
            .collect();
        assert!(!answers.is_empty());
    });
}

/// A decode that never returns is as good as dead once it is older than the limit.
#[test]
fn a_step_that_takes_too_long_ends_the_process() {
    let mut d = paced(
        "1000",
        &[
            ("fake.fault", "stall"),
            ("fake.fault_marker", "STALL"),
            ("fake.fault_at_token", "2"),
            ("fake.stall_ms", "600000"),
            ("lifecycle.step_age_limit_s", "1"),
        ],
    );
    let mut stalled = d.chat(&ask("STALL", 100, true));
    stalled.read_text(3);
    let reply = d.chat(&ask("waits", 5, false));
    assert_error_event(&stalled.rest(), "engine_error");
    assert_error(&reply.response(), 500, "engine_error");
    assert_eq!(d.wait().code(), Some(70), "{}", d.log());
    assert!(d.log().contains("the model hangs"), "{}", d.log());
}

/// A model that fails at the first try never was ready.
#[test]
fn a_model_that_fails_while_it_warms_up_is_never_ready() {
    for (fault, why) in [
        ("panic", "has died"),
        ("no_room", "warm-up"),
        ("invalid", "warm-up"),
    ] {
        let settings = with(
            "0",
            &[
                ("fake.fault", fault),
                ("fake.fault_marker", "Hello"),
                ("fake.fault_at_token", "1"),
            ],
        );
        let mut d = Daemon::start(&["serve", "--backend", "fake"], &settings);
        assert_eq!(d.wait().code(), Some(70), "{fault}: {}", d.log());
        let log = d.log();
        assert!(log.contains(why), "{fault}: {log}");
        assert!(
            !log.contains("rung3-continuous"),
            "it said that it was ready: {log}"
        );
    }
}
