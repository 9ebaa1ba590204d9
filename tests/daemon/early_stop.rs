//! What becomes of a promise that is not going to be kept: nothing, unless its client or the operator wants it so.

use serde_json::{Value, json};

use crate::common::calibrated::{Calibrated, Said};
use crate::common::{Daemon, Response, ask};
use crate::{ask_with, assert_error, e2e_ms, number};

/// Bounds that are far too short.
const RASH: Said = Said {
    own: 0.05,
    others: 0.0,
    spread: 0.0,
};

fn receipt(response: &Response) -> Value {
    let chunks = response.chunks();
    let receipt = chunks.iter().find_map(|c| c.pointer("/cadenced/receipt"));
    receipt.unwrap_or_else(|| panic!("{response:?}")).clone()
}

#[test]
fn a_reply_ends_at_its_deadline_if_its_client_wants_that() {
    let d = Calibrated::new(RASH, &[("admission.review_every", "1")]).start();
    let slo = |on_miss: &str| json!({ "slo": { "e2e_ms": 300, "on_miss": on_miss } });
    let mut client = d.chat(&ask_with("stops", 1000, true, slo("stop")));
    assert_eq!(client.head().header("x-cadenced-verdict"), Some("promised"));
    client.more_text(40);
    d.wait_for_stats("the miss is foreseen", |s| {
        s["admission"]["predicted_misses"] == 1 || s["running"] == 0
    });
    let reply = client.rest();
    assert!(reply.is_done(), "{reply:?}");
    assert_eq!(reply.finish_reason().as_deref(), Some("slo"), "{reply:?}");
    let told = receipt(&reply);
    assert_eq!(told["kept"], false, "{told}");
    assert_eq!(told["slo_met"], false, "{told}");
    // It is a promise that was missed, not one that its client did not wait for.
    let stats = d.wait_for_stats("it is counted", |s| s["admission"]["bounds"]["missed"] == 1);
    assert_eq!(number(&stats, "/requests/slo"), 1, "{stats}");

    let goes_on = d
        .chat(&ask_with("goes on", 300, true, slo("continue")))
        .response();
    assert_eq!(goes_on.finish_reason().as_deref(), Some("length"));
    let stats = d.wait_for_stats("it too", |s| s["admission"]["bounds"]["missed"] == 2);
    assert_eq!(stats["admission"]["coverage"], 0.0, "{stats}");
    d.idle();
}

/// Behind a request that takes longer than the other's bound leaves time for: whatever is quick about the machine
/// makes that shorter by nothing, since a step takes its time.
fn taken_too_late(unfit: &str) -> (Daemon, Response) {
    let honest = Said { own: 10.0, ..RASH };
    let d = Calibrated::new(
        honest,
        &[
            ("admission.recheck", "true"),
            ("admission.unfit", unfit),
            ("scheduler.max_running", "1"),
            // Time for the answer before the first token.
            ("scheduler.prefill_budget", "1"),
        ],
    )
    .start();
    let mut holder = d.chat(&ask("holds the seat", 900, true));
    holder.read_text(1);
    // 50 steps of 2 ms, of which the bound says ten times as much: what is left when the other has ended is less.
    let promised = d.chat(&ask_with("promised", 50, true, e2e_ms(2000)));
    assert!(holder.rest().is_done());
    let reply = promised.response();
    assert_eq!(
        reply.header("x-cadenced-verdict"),
        Some("promised"),
        "{reply:?}"
    );
    (d, reply)
}

#[test]
fn a_promise_that_looks_lost_when_it_is_taken_runs_in_the_lane() {
    let (d, reply) = taken_too_late("best_effort");
    assert!(reply.is_done(), "{reply:?}");
    let told = receipt(&reply);
    assert_eq!(told["verdict"], "promised", "{told}");
    assert_eq!(told["demoted"], true, "{told}");
    assert!(told["kept"].is_boolean(), "{told}");
    let stats = d.wait_for_stats("it is counted", |s| s["admission"]["demoted"] == 1);
    let bounds = &stats["admission"]["bounds"];
    let judged = number(bounds, "/kept") + number(bounds, "/missed");
    assert_eq!(judged, 1, "{stats}");
    d.idle();
}

#[test]
fn or_ends_before_its_first_byte_and_counts_as_missed() {
    let (d, reply) = taken_too_late("refuse");
    crate::assert_error_event(&reply, "slo_revoked");
    let stats = d.wait_for_stats("it is counted", |s| s["admission"]["revoked"] == 1);
    assert_eq!(stats["admission"]["bounds"]["missed"], 1, "{stats}");
    assert_eq!(number(&stats, "/requests/refused"), 1, "{stats}");
    d.idle();
    // Whole, it is a 503.
    let impossible = ask_with("never", 5000, false, e2e_ms(10));
    assert_error(&d.chat(&impossible).response(), 422, "slo_infeasible");
}
