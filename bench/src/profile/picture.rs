//! The flamegraph, coloured by component.

use anyhow::{Context, Result};
use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{self, Options, TextTruncateDirection};

use super::Sampling;
use super::components::{self, COMPONENTS, Color, WHITE};
use super::stacks::Stacks;

/// Draws the stacks: threads at the bottom, callees above their callers.
pub fn draw(stacks: &Stacks, sampling: &Sampling) -> Result<Vec<u8>> {
    let mut colors = PaletteMap::default();
    for stack in &stacks.stacks {
        paint(&mut colors, &stack.role, WHITE);
        for frame in &stack.frames {
            let color = components::of(frame).map_or(WHITE, |i| COMPONENTS[i].color);
            paint(&mut colors, frame, color);
        }
    }
    // The box below all threads.
    paint(&mut colors, "", WHITE);
    let mut options = Options::default();
    options.title = format!(
        "cadenced under load: {} samples in {:.0} s, {:.2} cores",
        sampling.samples, sampling.seconds, sampling.daemon_cores
    );
    options.subtitle = Some(legend());
    options.palette_map = Some(&mut colors);
    options.bgcolors = Some(BackgroundColor::Flat((255, 255, 255).into()));
    options.image_width = Some(1600);
    // Of a monospaced font; with less, names run over the edges of their boxes.
    options.font_width = 0.62;
    options.text_truncate_direction = TextTruncateDirection::Right;
    let text = stacks.text();
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, text.lines(), &mut svg).context("drawing")?;
    svg.push(b'\n');
    Ok(svg)
}

fn paint(colors: &mut PaletteMap, frame: &str, color: &Color) {
    colors.insert(frame, color.rgb.into());
}

fn legend() -> String {
    let mut legend: Vec<(&str, Vec<&str>)> = Vec::new();
    for c in &COMPONENTS {
        match legend.iter_mut().find(|(color, _)| *color == c.color.name) {
            Some((_, names)) => names.push(c.name),
            None => legend.push((c.color.name, vec![c.name])),
        }
    }
    let entries: Vec<String> = legend
        .iter()
        .map(|(color, names)| format!("{color}: {}", names.join(", ")))
        .collect();
    entries.join("  |  ")
}
