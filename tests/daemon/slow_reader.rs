//! A client that does not read what it asked for.

use crate::common::{Connection, ask, request};
use crate::{number, paced, whole};

/// Every chunk names the model, so a long name fills the kernel's buffers with few tokens; what counts
/// against the reader is the text alone.
const NAME: &str = "model.name";

#[test]
fn a_reader_that_stops_is_cut_off_and_its_neighbour_is_not() {
    let name = "m".repeat(16_000);
    let d = paced(
        "300",
        &[
            (NAME, &name),
            ("limits.unread_bytes", "2000"),
            ("limits.max_output_tokens", "12000"),
        ],
    );
    let alone = whole(&d, "neighbour", 200, true).text();
    let mut slow = Connection::open_with_small_buffer(d.addr, 4096);
    slow.send(request(
        "/v1/chat/completions",
        &ask("slow", 12_000, true).to_string(),
        "",
    ));
    slow.read_text(1);
    let neighbour = d.chat(&ask("neighbour", 200, true));
    let beside = neighbour.response();
    assert!(beside.is_done());
    assert_eq!(beside.text(), alone);
    let stats = d.wait_for_stats("cut off", |s| number(s, "/requests/slow_reader") == 1);
    assert_eq!(number(&stats, "/requests/cancelled"), 0, "{stats}");
    d.wait_for_stats("its memory is back", |s| {
        s["running"] == 0 && s["kv"]["blocks_free"] == s["kv"]["blocks_total"]
    });
    assert_eq!(whole(&d, "neighbour", 200, true).text(), alone);
    // One who reads on after all is told; it gets no end that looks like one.
    let mut last = String::new();
    while let Some(event) = slow.event() {
        last = event;
    }
    assert!(
        last.contains("slow_reader"),
        "{}",
        &last[..last.len().min(300)]
    );
    drop(slow);
    let stats = d.idle();
    assert_eq!(
        number(&stats, "/requests/slow_reader"),
        1,
        "counted once: {stats}"
    );
    assert_eq!(number(&stats, "/requests/cancelled"), 0, "{stats}");
}

/// Reading slowly is no fault as long as one reads.
#[test]
fn a_reader_that_pauses_within_its_allowance_gets_everything() {
    let d = paced("0", &[]);
    let alone = whole(&d, "pauses", 500, true).text();
    let mut reader = d.chat(&ask("pauses", 500, true));
    let mut text = reader.read_text(1);
    d.wait_for("its reply is computed", || {
        number(&d.stats(), "/requests/length") == 2
    });
    let rest = reader.rest();
    assert!(rest.is_done());
    text.push_str(&rest.text());
    assert_eq!(text, alone);
    d.idle();
}

/// A whole reply is put together before it is sent: nobody can be too slow for it.
#[test]
fn a_reply_that_is_not_streamed_has_no_slow_reader() {
    let d = paced("0", &[("limits.unread_bytes", "2000")]);
    let reply = d.chat(&ask("whole", 3000, false));
    d.wait_for("its reply is computed", || {
        number(&d.stats(), "/requests/length") == 1
    });
    assert!(reply.response().complete);
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/slow_reader"), 0, "{stats}");
}
