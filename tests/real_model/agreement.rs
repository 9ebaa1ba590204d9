//! How far two ways of computing the same positions agree on the most likely token.

/// A best logit less than this above the second best is a near-tie: twice the noise's average.
pub const NEAR_TIE: f32 = 0.5;
/// So many of the most likely tokens must be the same.
pub const AGREEMENT: f64 = 0.99;
/// So many of all with near-ties, where these are a fifth of all positions.
pub const AGREEMENT_WITH_NEAR_TIES: f64 = 0.95;
/// The same of a few dozen positions, where two near-ties that turn are a tenth. Outside of near-ties none may.
pub const AGREEMENT_OF_FEW: f64 = 0.75;

/// The best token, and how far it is above the second best.
pub fn best(logits: &[f32]) -> (usize, f32) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (id, logit) in logits.iter().enumerate().skip(1) {
        if *logit > logits[best] {
            second = logits[best];
            best = id;
        } else {
            second = second.max(*logit);
        }
    }
    (best, logits[best] - second)
}

/// How far two ways of computing the same positions agree.
#[derive(Default)]
pub struct Tally {
    positions: usize,
    same: usize,
    near_ties: usize,
    /// Positions that are no near-tie, and yet the best tokens differ.
    turned: usize,
    identical: usize,
    max_difference: f32,
}

impl Tally {
    /// Compares the logits of one position.
    pub fn take(&mut self, expected: &[f32], actual: &[f32]) {
        let (token, lead) = best(expected);
        let same = token == best(actual).0;
        let difference = expected
            .iter()
            .zip(actual)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        self.positions += 1;
        self.same += usize::from(same);
        self.near_ties += usize::from(lead < NEAR_TIE);
        self.turned += usize::from(!same && lead >= NEAR_TIE);
        self.identical += usize::from(difference == 0.0);
        self.max_difference = self.max_difference.max(difference);
    }

    /// Asserts the agreement at all positions, and outside of near-ties.
    #[track_caller]
    pub fn check(&self, what: &str, at_all: f64) {
        let rate = self.same as f64 / self.positions as f64;
        println!(
            "{what}: the same token at {} of {} positions ({:.2} %); {} near-ties (lead < {NEAR_TIE}); {} turned \
             elsewhere; logits identical at {}, else at most {:.3} apart",
            self.same,
            self.positions,
            rate * 100.0,
            self.near_ties,
            self.turned,
            self.identical,
            self.max_difference
        );
        assert!(rate >= at_all, "{what}: {rate}");
        let clear = (self.positions - self.near_ties) as f64;
        assert!(
            self.turned as f64 <= (1.0 - AGREEMENT) * clear,
            "{what}: {} of {clear}",
            self.turned
        );
    }
}
