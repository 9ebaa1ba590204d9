//! Tables in Markdown.

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
