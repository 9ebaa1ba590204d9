//! How the daemon that is measured is started: from a rung's configuration, with what the command line adds.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cadenced::config::{Config, Flags};

use crate::daemon::{self, Daemon};
use crate::effective::{self, Mismatch};
use crate::raw::setting;

/// See the module's text.
#[derive(Clone, Debug, clap::Args)]
pub struct Serving {
    /// The model file.
    #[arg(long, default_value = "models/smollm2-135m-instruct-q4_0.gguf")]
    pub model: PathBuf,
    /// The daemon's binary; by default the one beside this program.
    #[arg(long)]
    pub daemon: Option<PathBuf>,
    /// A setting of the daemon's, as section.key=value, on top of each rung's; what is in force must agree.
    #[arg(long = "set", value_parser = setting)]
    pub settings: Vec<(String, String)>,
}

impl Serving {
    /// Starts the rung that `config` describes, with `more` settings.
    ///
    /// # Errors
    /// When it does not start, or [`Mismatch`] when it is not what was asked for.
    pub fn start(&self, config: &Path, more: &[(String, String)]) -> Result<Daemon> {
        let binary = daemon::binary(self.daemon.as_deref())?;
        let text = |path: &Path| {
            path.to_str()
                .map(str::to_owned)
                .context("a path is not UTF-8")
        };
        let args = ["--config", &text(config)?, "--model", &text(&self.model)?];
        let settings = [&self.settings, more].concat();
        let daemon = Daemon::start(&binary, &args, &settings)?;
        effective::check_asked(&settings, &daemon.effective()?)?;
        let (asked, actual) = (self.config(config, more)?.rung(), daemon.rung()?);
        if asked != actual {
            bail!(Mismatch(format!("asked for {asked}, in force is {actual}")));
        }
        Ok(daemon)
    }

    /// What the daemon's configuration is then.
    ///
    /// # Errors
    /// Names the key or the file at fault.
    pub fn config(&self, file: &Path, more: &[(String, String)]) -> Result<Config> {
        let settings = self.settings.iter().chain(more);
        let variables = settings.map(|(key, value)| (daemon::variable(key), value.clone()));
        let flags = Flags {
            model: Some(self.model.clone()),
            ..Flags::default()
        };
        Config::load(Some(file), variables, &flags)
            .with_context(|| format!("{} and --set", file.display()))
    }

    /// The model's file, if it is what computes.
    pub fn model_file(&self) -> Option<&Path> {
        let is_fake = |(key, value): &(String, String)| key == "model.backend" && value == "fake";
        (!self.settings.iter().any(is_fake)).then_some(&self.model)
    }
}
