//! How many requests a controller lets in at once that has yet to learn what they take.
//!
//! All that come, as long as they are no flood: of one that is let in whole it would learn what a queue takes that it will
//! never have again, and nothing of the calm that promises make. So once more have come than twice the seats, the limit
//! goes through the powers of two, up and again, and each load is seen at which a promise may be made later.

/// Completions at each limit.
const LESSON: usize = 16;

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lessons {
    most: u32,
    flooded: bool,
}

impl Lessons {
    /// With at most so many at once.
    pub fn new(most: u32) -> Self {
        Self {
            most: most.max(1),
            flooded: false,
        }
    }

    /// Takes note of a request that finds so many others.
    pub fn note(&mut self, load: u32) {
        self.flooded |= load >= self.most;
    }

    /// Whether one that finds so many others is let in, after so many have completed.
    pub fn lets_in(&self, load: u32, completed: usize) -> bool {
        let limits = self.most.ilog2() + 1;
        let limit = match self.flooded {
            false => self.most,
            true => 1 << ((completed / LESSON) as u32 % limits),
        };
        load < limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_let_in_until_there_are_too_many_and_then_every_load_has_its_turn() {
        let mut lessons = Lessons::new(9);
        lessons.note(8);
        assert!((0..200).all(|completed| lessons.lets_in(8, completed)));
        assert!(!lessons.lets_in(9, 0));
        lessons.note(9);
        let limit = |completed| (0..).find(|load| !lessons.lets_in(*load, completed));
        let limits: Vec<u32> = (0..5 * LESSON).step_by(LESSON).filter_map(limit).collect();
        assert_eq!(limits, [1, 2, 4, 8, 1]);
        assert_eq!(limit(LESSON - 1), Some(1));
        assert!(Lessons::new(0).lets_in(0, 0));
    }
}
