//! Exponentially weighted moving averages of the engine's pace.

/// An average that forgets: each observation weighs `alpha`, all earlier ones together `1 - alpha`.
#[derive(Clone, Copy, Debug)]
pub struct Ewma {
    alpha: f64,
    value: Option<f64>,
}

impl Ewma {
    /// An empty average; `alpha` in (0, 1].
    #[must_use]
    pub const fn new(alpha: f64) -> Self {
        Self { alpha, value: None }
    }

    /// Takes one observation in; the first one is taken whole, so that the average never drags a zero along.
    pub fn observe(&mut self, x: f64) {
        self.value = Some(match self.value {
            None => x,
            Some(v) => v + self.alpha * (x - v),
        });
    }

    /// The average, or `None` before the first observation.
    #[must_use]
    pub fn get(&self) -> Option<f64> {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_observation_is_the_average_and_later_ones_move_it_by_alpha() {
        let mut e = Ewma::new(0.25);
        assert_eq!(e.get(), None);
        e.observe(8.0);
        assert_eq!(e.get(), Some(8.0));
        e.observe(16.0);
        assert_eq!(e.get(), Some(10.0));
    }
}
