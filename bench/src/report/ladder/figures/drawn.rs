//! Figures under the names of their files, and whether what is there is what they say.

use std::path::Path;

use anyhow::{Context, Result};

use super::canvas::{self, Figure};

/// What is needed of a figure to keep it.
trait Draw {
    fn caption(&self) -> String;
    fn svg(&self) -> Result<String>;
    fn png(&self, path: &Path) -> Result<()>;
}

impl<F: Figure> Draw for F {
    fn caption(&self) -> String {
        self.title()
    }

    fn svg(&self) -> Result<String> {
        canvas::svg(self)
    }

    fn png(&self, path: &Path) -> Result<()> {
        canvas::png(self, path)
    }
}

/// See the module's text.
pub struct Drawn {
    /// Without an ending.
    pub name: &'static str,
    figure: Box<dyn Draw>,
}

impl Drawn {
    pub fn new(name: &'static str, figure: impl Figure + 'static) -> Self {
        Self {
            name,
            figure: Box::new(figure),
        }
    }
}

/// Draws them into `folder`, each as SVG and as PNG.
///
/// # Errors
/// When a file can't be written.
pub fn write(all: &[Drawn], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for Drawn { name, figure } in all {
        figure.png(&folder.join(name).with_extension("png"))?;
        let path = folder.join(name).with_extension("svg");
        std::fs::write(&path, figure.svg()?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Names of those in `folder` that are not what they should be, by their SVG.
///
/// # Errors
/// When one can't be drawn.
pub fn stale(all: &[Drawn], folder: &Path) -> Result<Vec<&'static str>> {
    let mut stale = Vec::new();
    for Drawn { name, figure } in all {
        let there = std::fs::read_to_string(folder.join(name).with_extension("svg")).ok();
        if there != Some(figure.svg()?) {
            stale.push(*name);
        }
    }
    Ok(stale)
}

/// Draws those of the results called `name` if some are stale, or only says which are: files below `results`.
///
/// # Errors
/// As [`write()`].
pub fn update(all: &[Drawn], results: &Path, name: &str, check: bool) -> Result<Vec<String>> {
    let folder = results.join(name).join("figures");
    let stale = stale(all, &folder)?;
    if !check && !stale.is_empty() {
        write(all, &folder)?;
    }
    let file = |f: &&str| format!("{name}/figures/{f}.svg");
    Ok(stale.iter().map(file).collect())
}

/// Links to those of the results called `name`, from bench/README.md.
pub fn links(name: &str, all: &[Drawn]) -> String {
    let link = |d: &Drawn| {
        let caption = d.figure.caption();
        format!("![{caption}](results/{name}/figures/{}.svg)\n", d.name)
    };
    all.iter().map(link).collect::<Vec<_>>().join("\n")
}
