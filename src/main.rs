//! The `cadenced` command.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use cadenced::calibrate::CalibrateArgs;
use cadenced::config::{Backend, Config, ConfigError, Flags};
use clap::{Args, Parser, Subcommand};

/// An SLO-aware LLM serving daemon.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// End when standard input does: whoever started this is gone.
    #[arg(long, hide = true, global = true)]
    while_stdin_is_open: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model.
    Serve(ConfigArgs),
    /// Measure this machine under load and write the file that promises are made from.
    Calibrate {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        how: CalibrateArgs,
    },
    /// Fetch a model, or list those that are known by name.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Read and check a configuration and the files that it names, print what would be in force, and exit.
    CheckConfig(ConfigArgs),
}

#[derive(Subcommand)]
enum ModelCommand {
    /// Fetch a model by name, or `org/repo/file.gguf` from the Hugging Face Hub; prints its path.
    Pull {
        name: String,
        /// The folder that it goes to.
        #[arg(long, default_value = "models")]
        dir: PathBuf,
    },
    /// The models that are known by name.
    List,
}

#[derive(Args)]
struct ConfigArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Overrides server.listen.
    #[arg(long, value_parser = cadenced::config::socket_address)]
    listen: Option<SocketAddr>,
}

#[derive(Args)]
struct SourceArgs {
    /// A TOML file; it need name only what differs from config/default.toml.
    #[arg(long, short)]
    config: Option<PathBuf>,
    /// Overrides model.backend.
    #[arg(long)]
    backend: Option<Backend>,
    /// Overrides model.path.
    #[arg(long)]
    model: Option<PathBuf>,
}

impl ConfigArgs {
    fn load(self) -> Result<Config, ConfigError> {
        self.source.load(self.listen)
    }
}

impl SourceArgs {
    fn load(self, listen: Option<SocketAddr>) -> Result<Config, ConfigError> {
        let flags = Flags {
            listen,
            backend: self.backend,
            model: self.model,
        };
        // A variable that is not UTF-8 is none of ours.
        let env = std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        let config = Config::load(self.config.as_deref(), env, &flags)?;
        cadenced::telemetry::logging::start(&config.log)?;
        Ok(config)
    }
}

/// sysexits.h's EX_USAGE: what cannot start because of how it was told to.
const USAGE: u8 = 64;

fn complain(e: &dyn std::fmt::Display, code: i32) -> i32 {
    // Where nobody reads standard error there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "cadenced: {e}");
    code
}

fn say(text: &str) -> i32 {
    match cadenced::stdout::say(text) {
        Ok(()) => 0,
        Err(e) => complain(
            &format_args!("standard output: {e}"),
            cadenced::serve::Exit::Internal.code(),
        ),
    }
}

/// Prints what would be in force, and tells what `serve` would not start with.
fn check_config(config: &Config) -> Result<i32, ConfigError> {
    let mut text = config.to_toml()? + "\n";
    for line in cadenced::promises::describe(config) {
        text += &format!("# admission.artifact: {line}\n");
    }
    let said = say(&text);
    let unavailable = cadenced::serve::Exit::Unavailable.code();
    let obstacles = cadenced::check::obstacles(config);
    Ok(obstacles
        .iter()
        .fold(said, |_, why| complain(why, unavailable)))
}

fn end_with_stdin() {
    // Nothing is ever written to it.
    let _ = std::io::stdin().read(&mut [0]);
    signal_hook::low_level::exit(cadenced::serve::Exit::Interrupted.code());
}

fn main() -> ExitCode {
    cadenced::wait_policy::bound_spinning();
    let cli = Cli::try_parse().unwrap_or_else(|e| {
        let code = if e.use_stderr() { i32::from(USAGE) } else { 0 };
        let _ = e.print();
        std::process::exit(code)
    });
    if cli.while_stdin_is_open {
        std::thread::spawn(end_with_stdin);
    }
    let loaded = match cli.command {
        Command::Serve(config) => config
            .load()
            .map(|config| cadenced::serve::run(config).code()),
        Command::Calibrate { source, how } => source.load(None).map(|config| {
            let done = cadenced::calibrate::run(&config, &how);
            done.map_or_else(|e| complain(&e, e.code()), |()| 0)
        }),
        Command::Model(ModelCommand::List) => Ok(say(&cadenced::hub::list())),
        Command::Model(ModelCommand::Pull { name, dir }) => match cadenced::pull::pull(&dir, &name)
        {
            Ok(path) => Ok(say(&format!("{}\n", path.display()))),
            Err(e) => {
                let code = cadenced::serve::Exit::Unavailable.code();
                Ok(complain(&format_args!("{e:#}"), code))
            }
        },
        Command::CheckConfig(args) => args.load().and_then(|config| check_config(&config)),
    };
    match loaded {
        // Neither a return, which would wait for an arbiter inside a long decode, nor `process::exit`, whose
        // C++ destructors would pull the model from under it.
        Ok(code) => signal_hook::low_level::exit(code),
        Err(e) => {
            complain(&e, USAGE.into());
            ExitCode::from(USAGE)
        }
    }
}
