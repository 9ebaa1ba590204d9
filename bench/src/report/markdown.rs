//! Tables in Markdown, and what stands in their cells.

use std::collections::BTreeMap;

/// A table that grows by rows.
pub struct Table {
    pub text: String,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        let mut t = Self {
            text: String::new(),
        };
        t.row(head.iter().map(|h| (*h).to_owned()));
        t.row(head.iter().map(|_| "---".to_owned()));
        t
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        self.text += &format!("| {} |\n", cells.join(" | "));
    }
}

/// `3 × reason, 1 × other` of several counts together; a dash for none.
pub fn counts<'a>(all: impl IntoIterator<Item = &'a BTreeMap<String, usize>>) -> String {
    let mut sums = BTreeMap::new();
    for (reason, n) in all.into_iter().flatten() {
        *sums.entry(reason).or_insert(0) += n;
    }
    let sums: Vec<String> = sums
        .iter()
        .map(|(reason, n)| format!("{n} × {reason}"))
        .collect();
    if sums.is_empty() {
        "–".into()
    } else {
        sums.join(", ")
    }
}
