//! One step as data: what the model shall do, and what came of it.

use super::cost::Load;
use super::lane::Loads;
use crate::ids::{RequestId, SeqId, StepId, TokenId};
use crate::logic::conformal::pace::PaceMeter;

/// A frozen plan. The engine executes it as a whole, the operations on memory first and in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepPlan {
    pub id: StepId,
    pub ops: Vec<MemoryOp>,
    /// At most one row for each sequence.
    pub rows: Vec<RowPlan>,
    /// The first so many rows are not of the best-effort lane ...
    pub promised_rows: usize,
    /// ... and alone would take about this share of the step's time.
    pub promised_share: f64,
    /// So many steps of the same rows may follow without another plan, see [`Self::follow`].
    pub ahead: u32,
}

impl StepPlan {
    /// Whether there is nothing to do, not even with memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.rows.is_empty()
    }

    /// Makes `next` the step after this one, in which each row decodes what it has sampled in this one. False
    /// if the plan does not provide for that, or `results` don't: somebody has to plan then.
    #[must_use]
    pub fn follow(&self, results: &[RowResult], next: &mut Self) -> bool {
        let Some(ahead) = self.ahead.checked_sub(1) else {
            return false;
        };
        next.id = self.id.next();
        next.ops.clear();
        next.rows.clear();
        next.promised_rows = self.promised_rows;
        next.promised_share = self.promised_share;
        next.ahead = ahead;
        for (row, result) in self.rows.iter().zip(results) {
            let (Some(index), RowResult::Sampled(token)) = (row.work.samples(), *result) else {
                return false;
            };
            let work = Work::Decode {
                position: row.work.position() + row.work.tokens(),
                token,
                index: index + 1,
            };
            next.rows.push(RowPlan { work, ..*row });
        }
        true
    }

    /// Sequences without a cell once the operations are done.
    pub fn emptied(&self) -> impl Iterator<Item = SeqId> {
        self.ops.iter().filter_map(|op| match op {
            MemoryOp::Remove { seq, from: 0 } => Some(*seq),
            _ => None,
        })
    }

    /// What is computed, by lane.
    #[must_use]
    pub fn loads(&self) -> Loads {
        let of = |rows: &[RowPlan]| {
            rows.iter()
                .fold(Load::default(), |load, row| match row.work {
                    Work::Decode { .. } => Load {
                        decodes: load.decodes + 1,
                        ..load
                    },
                    Work::Prefill { len, .. } => Load {
                        prompt_tokens: load.prompt_tokens + len,
                        ..load
                    },
                })
        };
        let (promised, best_effort) = self.rows.split_at(self.promised_rows);
        Loads {
            promised: of(promised),
            best_effort: of(best_effort),
        }
    }

    /// Takes the step into the pace that there would be without the best-effort lane.
    pub fn observe_promised(&self, results: &[RowResult], seconds: f64, pace: &mut PaceMeter) {
        if self.promised_rows > 0 {
            let sampled = |r: &&RowResult| matches!(r, RowResult::Sampled(_));
            let promised = results.iter().take(self.promised_rows);
            let sampled = promised.filter(sampled).count();
            pace.observe(self.promised_share * seconds, sampled as u32);
        }
    }

    /// Tokens that go through the model.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.rows.iter().map(|r| r.work.tokens()).sum()
    }
}

/// What is done to the model's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryOp {
    /// `to`, which is empty, gets the first `tokens` tokens of `from`.
    Copy { from: SeqId, to: SeqId, tokens: u32 },
    /// `seq` loses its cells from position `from` on.
    Remove { seq: SeqId, from: u32 },
}

/// What one sequence does in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowPlan {
    /// Place in the running set as it was planned.
    pub index: usize,
    pub request: RequestId,
    pub seq: SeqId,
    pub work: Work,
}

/// A chunk of the prompt, or one token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Prompt tokens `start .. start + len`; the last chunk samples a token of the reply, which is its first
    /// unless it was preempted.
    Prefill {
        start: u32,
        len: u32,
        samples: Option<u32>,
    },
    /// Feeds the token sampled last at `position` and samples the reply's token number `index`.
    Decode {
        position: u32,
        token: TokenId,
        index: u32,
    },
}

impl Work {
    /// Tokens that it puts into the batch.
    #[must_use]
    pub fn tokens(self) -> u32 {
        match self {
            Self::Prefill { len, .. } => len,
            Self::Decode { .. } => 1,
        }
    }

    /// The position of its first token, from which on its cells are cleared if it fails.
    #[must_use]
    pub fn position(self) -> u32 {
        match self {
            Self::Prefill { start, .. } => start,
            Self::Decode { position, .. } => position,
        }
    }

    /// Which token of the reply it samples, if any.
    #[must_use]
    pub fn samples(self) -> Option<u32> {
        match self {
            Self::Prefill { samples, .. } => samples,
            Self::Decode { index, .. } => Some(index),
        }
    }
}

/// What came of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowResult {
    /// The chunk is computed; more of the prompt follows.
    Advanced,
    Sampled(TokenId),
    /// The model refused this row with llama.cpp's code; its cells from the row's position on are gone.
    Failed(i32),
}
