//! Token sampling: from one row of logits to one token id.
//!
//! Operations and cost, for a vocabulary of `n` tokens:
//! - greedy: one vectorised pass for the maximum, then the position inside one block;
//! - full-vocabulary draw (temperature, min-p): one more pass, of exponentials;
//! - top-k: `O(n)` compares, then a selection among little more than `k` candidates;
//! - top-p: one pass of exponentials for the normaliser, then a weighted selection among the
//!   candidates that can matter. Nothing ever sorts the vocabulary.
//!
//! **Order of the chain.** top-k → top-p → min-p → temperature, the default of llama.cpp. The
//! truncations look at the model's own probabilities, so the temperature changes how a token is
//! drawn from the plausible ones and never which ones are plausible: a hot temperature does not
//! let the tail back in.
//!
//! **A truncation is a cut, not a list.** Under the total order (logit descending, id ascending)
//! each of the three keeps a prefix, so their composition keeps the shortest of the prefixes, and
//! the last token kept says it all. The draw then walks the vocabulary in id order, skipping the
//! blocks whose maximum is below the cut.
//!
//! **The draw is counter-based** (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*,
//! SC 2011): the uniform of a token is a pure hash of (seed, index in the reply). There is no
//! generator state to save, so a preempted sequence resumes exactly where it was, and a token
//! does not depend on what else is in the batch. The hash is the finaliser of SplitMix64 (Steele,
//! Lea & Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014).

use crate::ids::TokenId;
use crate::logic::rng::mix;

/// How the next token of a reply is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy; so is anything that is not a positive number.
    pub temperature: f32,
    /// Keeps the smallest set of best tokens with this much mass; 1 = off, 0 = the best one.
    pub top_p: f32,
    /// Keeps this many best tokens; 0 = off.
    pub top_k: u32,
    /// Keeps the tokens at least this probable relative to the best one; 0 = off, 1 = the best one.
    pub min_p: f32,
    pub seed: u64,
}

impl SamplingParams {
    /// Always the most likely token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        seed: 0,
    };

    /// Whether the seed has no say: these parameters always choose the most likely token.
    pub fn is_greedy(&self) -> bool {
        let cold = self.temperature <= 0.0 || self.temperature.is_nan();
        cold || self.top_k == 1 || self.top_p <= 0.0 || self.min_p >= 1.0
    }
}

/// Logits per block: small enough that a cut skips most blocks, large enough to vectorise.
const BLOCK: usize = 128;
/// Independent accumulators in the inner loops: enough to hide the latency of a compare.
const LANES: usize = 32;
/// Below this natural logarithm a weight relative to the best token is no normal `f32`: zero.
const NEGLIGIBLE: f32 = -87.0;
/// How far below the best logit top-p first looks for its mass: down to 1/400 of the best weight.
const FIRST_REACH: f32 = 6.0;

#[derive(Clone, Copy)]
struct Candidate {
    logit: f32,
    id: u32,
}

impl Candidate {
    /// Best first; among equals the lowest id first. NaNs are filtered out before.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        other
            .logit
            .partial_cmp(&self.logit)
            .unwrap_or(std::cmp::Ordering::Equal)
            .then(self.id.cmp(&other.id))
    }
}

/// The last token kept: a token is kept if it does not come after this one.
#[derive(Clone, Copy)]
struct Cut {
    logit: f32,
    id: u32,
}

impl Cut {
    const KEEP_ALL: Self = Self::at(f32::NEG_INFINITY);

    /// Keeps all that reach `floor`.
    const fn at(floor: f32) -> Self {
        Self {
            logit: floor,
            id: u32::MAX,
        }
    }

    /// The smallest logit with which a token is kept. Of the tokens equal to the last one kept
    /// those with a higher id are not.
    fn floor(self, id: usize) -> f32 {
        if id <= self.id as usize {
            self.logit
        } else {
            self.logit.next_up()
        }
    }
}

/// Chooses tokens. Holds only scratch space, reused from call to call: any sampler gives the same
/// answer, and one per thread is enough.
#[derive(Default)]
pub struct Sampler {
    maxima: Vec<f32>,
    ranked: Vec<f32>,
    sums: Vec<f64>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    pub fn new() -> Self {
        Self::default()
    }

    /// The token that follows, `index` being its number within its reply. Always an id within
    /// `logits`, whatever these hold (0 if they hold nothing at all).
    pub fn sample(&mut self, logits: &[f32], params: &SamplingParams, index: u32) -> TokenId {
        if params.is_greedy() {
            return TokenId(argmax(logits) as i32);
        }
        self.maxima.clear();
        self.maxima.extend(logits.chunks(BLOCK).map(maximum));
        let max = maximum(&self.maxima);
        if !max.is_finite() {
            // No usable logit, or an infinitely certain one.
            return TokenId(argmax(logits) as i32);
        }
        let cut = self.cut(logits, max, params);
        // Capped: a denormal temperature must not turn `0 * inf` into a NaN.
        let scale = params.temperature.recip().min(f32::MAX);
        let drawn = self.draw(logits, max, cut, scale, uniform(params.seed, index));
        TokenId(drawn as i32)
    }

    /// Where top-k, top-p and min-p together end the list of best tokens.
    fn cut(&mut self, logits: &[f32], max: f32, params: &SamplingParams) -> Cut {
        let floor = if params.min_p > 0.0 {
            max + params.min_p.ln()
        } else {
            f32::NEG_INFINITY
        };
        let top_k = (params.top_k > 0)
            .then_some(params.top_k as usize)
            .filter(|&k| k < logits.len());
        let top_p = Some(params.top_p).filter(|&p| p < 1.0);
        match (top_k, top_p) {
            (None, None) => Cut::at(floor),
            (Some(k), top_p) => {
                self.gather_top(logits, k);
                if let Some(p) = top_p {
                    let mass: f64 = self
                        .candidates
                        .iter()
                        .map(|c| weight(c.logit - max))
                        .map(f64::from)
                        .sum();
                    let kept = nucleus(&mut self.candidates, max, mass * f64::from(p));
                    self.candidates.truncate(kept);
                }
                self.last_candidate(floor)
            }
            (None, Some(p)) => {
                let mass = self.weigh(logits, max, Cut::KEEP_ALL, 1.0);
                let target = mass * f64::from(p);
                let mut reach = FIRST_REACH;
                loop {
                    // min-p cuts below anyway, so what lies under its floor need not be looked at.
                    let lowest = floor.max(max - reach);
                    self.gather(logits, lowest);
                    let found: f64 = self
                        .candidates
                        .iter()
                        .map(|c| f64::from(weight(c.logit - max)))
                        .sum();
                    if found >= target {
                        let kept = nucleus(&mut self.candidates, max, target);
                        self.candidates.truncate(kept);
                        return self.last_candidate(floor);
                    }
                    if lowest == floor || -reach < NEGLIGIBLE {
                        return Cut::at(lowest);
                    }
                    reach *= 2.0;
                }
            }
        }
    }

    /// Gathers the tokens whose logit is at least `lowest`, in id order.
    fn gather(&mut self, logits: &[f32], lowest: f32) {
        self.candidates.clear();
        for (block, (chunk, &max)) in logits.chunks(BLOCK).zip(&self.maxima).enumerate() {
            if max < lowest {
                continue;
            }
            for (at, &logit) in chunk.iter().enumerate() {
                // The second test drops what can never be drawn; a NaN passes neither.
                if logit >= lowest && logit > f32::NEG_INFINITY {
                    self.candidates.push(Candidate {
                        logit,
                        id: (block * BLOCK + at) as u32,
                    });
                }
            }
        }
    }

    /// Gathers the `k` best tokens. Each block's maximum is one logit, so the k-th best maximum is
    /// no better than the k-th best logit: whatever is below it is out.
    fn gather_top(&mut self, logits: &[f32], k: usize) {
        let mut lowest = f32::NEG_INFINITY;
        if k <= self.maxima.len() {
            self.ranked.clear();
            self.ranked.extend_from_slice(&self.maxima);
            let (_, kth, _) = self
                .ranked
                .select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            lowest = *kth;
        }
        self.gather(logits, lowest);
        if self.candidates.len() > k {
            self.candidates
                .select_nth_unstable_by(k - 1, Candidate::order);
            self.candidates.truncate(k);
        }
    }

    /// The cut that keeps just the candidates, and of these just what is at or above `floor`.
    fn last_candidate(&self, floor: f32) -> Cut {
        match self.candidates.iter().max_by(|a, b| a.order(b)) {
            Some(last) if last.logit >= floor => Cut {
                logit: last.logit,
                id: last.id,
            },
            _ => Cut::at(floor),
        }
    }

    /// The total weight of the tokens kept; leaves the running sum after each block in `sums`.
    fn weigh(&mut self, logits: &[f32], max: f32, cut: Cut, scale: f32) -> f64 {
        self.sums.clear();
        let mut total = 0.0;
        for ((block, chunk), &block_max) in logits.chunks(BLOCK).enumerate().zip(&self.maxima) {
            if block_max >= cut.logit {
                let first = block * BLOCK;
                let ties = (cut.id as usize)
                    .saturating_add(1)
                    .saturating_sub(first)
                    .min(chunk.len());
                let (before, after) = chunk.split_at(ties);
                total += total_weight(before, cut.logit, max, scale);
                total += total_weight(after, cut.floor(first + ties), max, scale);
            }
            self.sums.push(total);
        }
        total
    }

    /// Inverts the cumulative distribution, in id order, at `uniform`.
    fn draw(&mut self, logits: &[f32], max: f32, cut: Cut, scale: f32, uniform: f64) -> usize {
        let total = self.weigh(logits, max, cut, scale);
        // At least the best token has weight, so `total` is positive and some block is past this.
        let target = (total * uniform).min(total.next_down());
        let block = self.sums.partition_point(|&sum| sum <= target);
        let start = block * BLOCK;
        let mut sum = if block == 0 {
            0.0
        } else {
            self.sums[block - 1]
        };
        let mut drawn = start;
        for (id, &logit) in logits.iter().enumerate().skip(start).take(BLOCK) {
            let weight = kept_weight(logit, cut.floor(id), max, scale);
            if weight > 0.0 {
                // Kept even past the end, should rounding leave the sum a hair below the target.
                drawn = id;
                sum += f64::from(weight);
                if sum > target {
                    break;
                }
            }
        }
        drawn
    }
}

/// The position of the largest logit, the first one among equals. NaN never wins.
fn argmax(logits: &[f32]) -> usize {
    let mut best = f32::NEG_INFINITY;
    let mut start = 0;
    for (block, chunk) in logits.chunks(BLOCK).enumerate() {
        let max = maximum(chunk);
        if max > best {
            best = max;
            start = block * BLOCK;
        }
    }
    logits[start..]
        .iter()
        .position(|&logit| logit == best)
        .map_or(0, |at| start + at)
}

/// The largest value, -inf if there is none. Plain selects over independent lanes, which compile
/// to packed `max`: a select on `>` never takes a NaN, and needs no special case.
fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let rest = chunks.remainder();
    lanes.iter().chain(rest).fold(
        f32::NEG_INFINITY,
        |max, &value| if value > max { value } else { max },
    )
}

/// `e^x` for `x <= 0`, and 0 where that would be denormal or `x` is NaN. Branch-free, so that a
/// loop over it vectorises, which a call into the C library does not: `e^x = 2^n e^r`, 2^n by the
/// exponent bits and e^r by its Taylor polynomial, `|r| <= ln(2) / 2` reduced in two steps (Cody
/// & Waite, 1980). Relative error below 3e-7, and exact at 0.
#[inline(always)]
fn weight(x: f32) -> f32 {
    /// Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln(2) in two parts; `n` times the first is exact.
    const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    let bounded = if x > NEGLIGIBLE { x } else { NEGLIGIBLE };
    let rounded = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = bounded - n * LN_2.0 - n * LN_2.1;
    let p = 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x > NEGLIGIBLE { p * power } else { 0.0 }
}

/// The weight of a token at a temperature of `1 / scale`, 0 if its logit is below `floor`.
#[inline(always)]
fn kept_weight(logit: f32, floor: f32, max: f32, scale: f32) -> f32 {
    let weight = weight((logit - max) * scale);
    if logit >= floor { weight } else { 0.0 }
}

/// The total weight of a run of logits.
fn total_weight(logits: &[f32], floor: f32, max: f32, scale: f32) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let mut chunks = logits.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane += kept_weight(logit, floor, max, scale);
        }
    }
    let rest = chunks
        .remainder()
        .iter()
        .map(|&logit| kept_weight(logit, floor, max, scale));
    lanes.into_iter().chain(rest).map(f64::from).sum()
}

/// Moves the smallest set of best candidates whose weight reaches `target` to the front, and
/// returns its size, at least one. Quickselect by weight instead of by rank: each round halves
/// the range, so the cost is linear in the number of candidates.
fn nucleus(candidates: &mut [Candidate], max: f32, target: f64) -> usize {
    let (mut low, mut high) = (0, candidates.len());
    let mut below = 0.0; // the weight of candidates[..low]
    // Invariant: the set's size is in low+1..=high.
    while low + 1 < high {
        let half = (high - low) / 2;
        let range = &mut candidates[low..high];
        range.select_nth_unstable_by(half - 1, Candidate::order);
        let better: f64 = range[..half]
            .iter()
            .map(|c| f64::from(weight(c.logit - max)))
            .sum();
        if below + better >= target {
            high = low + half;
        } else {
            below += better;
            low += half;
        }
    }
    high
}

/// A uniform in [0, 1), a pure function of its arguments.
fn uniform(seed: u64, index: u32) -> f64 {
    /// SplitMix64's increment, the golden ratio: consecutive indices land far apart.
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    // The seed is mixed first: else seeds that differ by GAMMA would share a shifted stream.
    let bits = mix(mix(seed).wrapping_add(GAMMA.wrapping_mul(u64::from(index) + 1)));
    // 53 bits: all that an f64 in [0, 1) can hold evenly spaced.
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
