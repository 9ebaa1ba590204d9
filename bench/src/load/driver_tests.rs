//! The driver against the stub, over sockets.

use super::*;
use crate::load::arrivals::{Extent, Process, Schedule};
use crate::load::mix::{Mix, Workload};
use crate::load::record::Outcome;
use crate::load::stub::{self, StubArgs};
use crate::load::{metrics, soundness};

fn target(args: StubArgs) -> Target {
    let addr = stub::spawn(args).unwrap();
    Target::parse(&format!("http://{addr}"), None).unwrap()
}

fn plan(process: Process, rate: f64, extent: Extent) -> Vec<Due> {
    let schedule = Schedule {
        process,
        rate,
        extent,
        seed: 1,
        burst: None,
    };
    let asks = Workload::new(Mix::Uniform, 1, &[]);
    let due = |(at_us, ask)| Due {
        at_us,
        ask,
        measured: true,
    };
    schedule
        .offsets_us()
        .into_iter()
        .zip(asks)
        .map(due)
        .collect()
}

fn driven(mode: Loop) -> Drive {
    Drive {
        mode,
        timeout: Duration::from_secs(60),
        slo_ms: Some(1000),
        style: Style::default(),
        closed_until: None,
    }
}

#[test]
fn every_frame_of_every_answer_is_recorded() {
    let server = target(StubArgs {
        sleep_ms: 5.0,
        token_ms: 2.0,
        tokens: 20,
        ..StubArgs::default()
    });
    let plan = plan(Process::Burst, 1.0, Extent::Requests(8));
    let records = drive(&server, &plan, &driven(Loop::Open)).unwrap();
    for r in &records {
        assert_eq!(
            (r.outcome(), r.frames(), r.completion_tokens),
            (Outcome::Completed, 20, Some(20))
        );
        assert_eq!(r.finish_reason.as_deref(), Some("length"));
        assert!(r.sent_us >= r.dispatched_us && r.first_byte_us > r.sent_us);
        assert!(r.ttft_s().unwrap() >= 0.005 && r.e2e_s() >= 0.005 + 19.0 * 0.002);
        assert_eq!(r.last_frame_us, r.frame_times_us().last());
    }
}

#[test]
fn a_refusal_a_timeout_and_a_server_that_is_not_there_are_records_like_others() {
    let full = target(StubArgs {
        capacity: 1,
        sleep_ms: 200.0,
        queue: Some(1),
        ..StubArgs::default()
    });
    let burst = plan(Process::Burst, 1.0, Extent::Requests(6));
    let patient = driven(Loop::Open);
    let records = drive(&full, &burst, &patient).unwrap();
    let summary = metrics::summarize(&records, metrics::window(0.0, 0.0, 0.0), Some(1.0));
    assert_eq!((summary.completed, summary.shed), (2, 4));
    assert_eq!(summary.shed_by_reason["queue_full"], 4);

    let slow = target(StubArgs {
        sleep_ms: 30_000.0,
        ..StubArgs::default()
    });
    let hasty = Drive {
        timeout: Duration::from_millis(50),
        ..driven(Loop::Open)
    };
    let records = drive(&slow, &burst[..2], &hasty).unwrap();
    for r in &records {
        assert_eq!((r.outcome(), r.status), (Outcome::Censored, None));
        assert!((0.05..1.0).contains(&r.e2e_s()));
    }

    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let nobody = Target::parse(&format!("http://{nobody}"), None).unwrap();
    let records = drive(&nobody, &burst[..2], &patient).unwrap();
    assert!(
        records
            .iter()
            .all(|r| r.outcome() == Outcome::Failed && r.status.is_none())
    );
    assert!(
        records[0]
            .error
            .as_deref()
            .unwrap()
            .starts_with("connecting")
    );
}

#[test]
fn connections_are_used_again_and_one_that_the_server_closed_is_replaced() {
    let server = target(StubArgs::default());
    let plan = plan(Process::Fixed, 10.0, Extent::Requests(4));
    let records = drive(&server, &plan, &driven(Loop::Open)).unwrap();
    let reused: Vec<bool> = records.iter().map(|r| r.reused).collect();
    assert_eq!((reused[0], reused[1..].contains(&true)), (false, true));

    // Answers each request and closes, though it had promised not to.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = vec![0; 64 << 10];
            let mut n = 0;
            while !request[..n].ends_with(b"}}") {
                n += stream.read(&mut request[n..]).unwrap();
            }
            let _ = stream.write_all(b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let closing = Target::parse(&format!("http://{addr}"), None).unwrap();
    let records = drive(&closing, &plan, &driven(Loop::Open)).unwrap();
    assert!(
        records.iter().all(|r| r.outcome() == Outcome::Shed),
        "{records:?}"
    );
}

#[test]
fn a_generator_that_was_held_up_says_so() {
    let server = target(StubArgs::default());
    let plan = plan(Process::Fixed, 100.0, Extent::Requests(120));
    let mut records = drive(&server, &plan, &driven(Loop::Open)).unwrap();
    let check = |records: &[Record]| {
        let s = metrics::summarize(records, metrics::window(1.2, 0.0, 0.0), None);
        let refused = soundness::complaints(
            &s,
            &soundness::Limits {
                in_flight_min: 0.0,
                ..Default::default()
            },
        );
        (soundness::self_check(&s.send_lag).0, refused.is_empty())
    };
    // As after a pause of 400 ms in the middle: what was due then left at its end.
    for r in &mut records[50..90] {
        r.dispatched_us = Some(r.dispatched_us.unwrap().max(910_000));
    }
    assert_eq!(check(&records), (false, false));
}
