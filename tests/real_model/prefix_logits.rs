//! The logits of a sequence that was shared, or computed again, against those of one that was alone.

use cadenced::config::{KvLayout, KvType};
use cadenced::ids::SeqId;
use cadenced::model::ModelBackend as _;

use crate::agreement::{AGREEMENT, AGREEMENT_OF_FEW, AGREEMENT_WITH_NEAR_TIES, Tally};
use crate::batching::{alone, feed};
use crate::prefix::{REPLY, base, conversations, encode, sharing};
use crate::support::{smollm2, turn};

/// A sequence that begins with another's cells has the logits of one that computed them itself.
#[test]
fn a_shared_beginning_is_the_same_beginning() {
    let _turn = turn();
    let model = smollm2();
    for layout in [KvLayout::Unified, KvLayout::Streams] {
        for (kv_type, agreement) in [(KvType::F16, AGREEMENT_OF_FEW), (KvType::Q8_0, AGREEMENT)] {
            let mut backend = model.backend_in(layout, 1024, 2, kv_type);
            let mut tally = Tally::default();
            let donor = encode(&base());
            for (n, messages) in [15, 16, 17]
                .map(|n| (n, sharing(n)))
                .into_iter()
                .chain([(donor.len() - 1, base())])
            {
                let expected = alone(&mut backend, encode(&messages), 8);
                feed(&mut backend, SeqId(0), 0, &donor, 512);
                backend.copy(SeqId(0), SeqId(1), n as u32);
                // The donor goes on meanwhile.
                feed(&mut backend, SeqId(0), donor.len(), &expected.reply[..1], 1);
                feed(&mut backend, SeqId(1), n, &expected.prompt[n..], 512);
                for (i, logits) in expected.logits.iter().enumerate() {
                    tally.take(logits, backend.logits(0));
                    let at = expected.prompt.len() + i;
                    feed(&mut backend, SeqId(1), at, &expected.reply[i..=i], 1);
                }
                for seq in [0, 1] {
                    backend.remove(SeqId(seq), 0);
                }
            }
            let what = format!("smollm2, {kv_type:?}, {layout:?}, a shared beginning");
            tally.check(&what, agreement);
        }
    }
}

/// A preempted reply is computed again as one prompt: the same logits in a pool that is empty, and the same but
/// for near-ties where the cells that come free meanwhile are before those that it has.
#[test]
fn a_reply_that_is_computed_again_is_the_same_reply() {
    let _turn = turn();
    let model = smollm2();
    let mut backend = model.backend(512, 2, KvType::Q8_0);
    let (own, other) = (SeqId(0), SeqId(1));
    for out_of_order in [false, true] {
        let mut tally = Tally::default();
        for messages in &conversations()[..5] {
            let expected = alone(&mut backend, encode(messages), REPLY as usize);
            // Preempted after eight tokens.
            let again = [&expected.prompt[..], &expected.reply[..8]].concat();
            let (early, late) = again.split_at(20);
            if out_of_order {
                feed(&mut backend, other, 0, &[expected.prompt[0]; 128], 512);
            }
            feed(&mut backend, own, 0, early, 512);
            backend.remove(other, 0);
            feed(&mut backend, own, early.len(), late, 512);
            for i in 8..expected.reply.len() {
                tally.take(&expected.logits[i], backend.logits(0));
                let at = expected.prompt.len() + i;
                feed(&mut backend, own, at, &expected.reply[i..=i], 1);
            }
            backend.remove(own, 0);
        }
        let (agreement, place) = match out_of_order {
            true => (AGREEMENT_WITH_NEAR_TIES, "in cells out of order"),
            false => (AGREEMENT, "in an empty pool"),
        };
        tally.check(&format!("smollm2, q8_0, computed again {place}"), agreement);
    }
}
