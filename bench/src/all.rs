//! `all`: every measurement with its defaults, one after the other, as bench/README.md shows them.

use anyhow::Result;
use clap::{Args, FromArgMatches};

use crate::{decision, host_work, knobs, memory, micro, occupancy, quality, raw, reuse};

/// What a subcommand does when it is given nothing.
fn defaults<A: Args + FromArgMatches>(name: &'static str) -> Result<A> {
    given(name, &[])
}

/// What a subcommand does when it is given `args`.
pub fn given<A: Args + FromArgMatches>(name: &'static str, args: &[&str]) -> Result<A> {
    let command = A::augment_args(clap::Command::new(name).no_binary_name(true));
    Ok(A::from_arg_matches(&command.try_get_matches_from(args)?)?)
}

/// About an hour on two cores, which should do nothing else.
pub fn run() -> Result<()> {
    raw::run(&defaults("raw")?)?;
    host_work::run(&defaults("host-work")?)?;
    decision::run(&defaults("decision")?)?;
    memory::run(&defaults("memory")?)?;
    quality::run(&defaults("quality")?)?;
    reuse::run(&defaults("reuse")?)?;
    micro::run(&defaults("micro")?)?;
    occupancy::run(&defaults("occupancy")?)?;
    knobs::run(&defaults("knobs")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_has_defaults() {
        assert!(defaults::<raw::RawArgs>("raw").is_ok());
        assert!(defaults::<host_work::HostWorkArgs>("host-work").is_ok());
        assert!(defaults::<decision::DecisionArgs>("decision").is_ok());
        assert!(defaults::<micro::MicroArgs>("micro").is_ok());
        assert!(defaults::<memory::MemoryArgs>("memory").is_ok());
        assert!(defaults::<reuse::ReuseArgs>("reuse").is_ok());
        assert!(defaults::<quality::QualityArgs>("quality").is_ok());
        assert!(defaults::<occupancy::OccupancyArgs>("occupancy").is_ok());
        assert!(defaults::<knobs::KnobsArgs>("knobs").is_ok());
    }
}
