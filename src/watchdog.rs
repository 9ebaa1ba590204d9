//! The watchdog: notices within a fraction of a second that an actor or its thread is dead, or that a step
//! takes too long, and tells systemd as long as all is well.
//!
//! It asks nobody: a runner inside a long decode could not answer, and is well. An actor that has panicked is
//! seen by its closed mailbox, a thread that has ended by a guard that it dropped.

use std::time::Duration;

use actix_web::web::Data;

use crate::http::state::AppState;
use crate::system::Engine;

const PERIOD: Duration = Duration::from_millis(100);

/// Returns what died.
pub async fn until_dead(state: &Data<AppState>, engine: &Engine) -> String {
    let age_limit = Duration::from_secs(state.config.lifecycle.step_age_limit_s);
    // systemd wants to hear from us within its period; twice in it is its manual's advice.
    let notify_every = sd_notify::watchdog_enabled().map(|period| period / 2);
    let mut since_notified = Duration::ZERO;
    loop {
        if let Some(name) = engine.dead() {
            return format!("the {name} has died");
        }
        let now = state.shared.clock.now();
        if let Some(age) = state
            .shared
            .published
            .step_since()
            .map(|since| now.since(since))
            && age > age_limit
        {
            return format!("a step has taken {} s: the model hangs", age.as_secs());
        }
        if notify_every.is_some_and(|every| since_notified + PERIOD >= every) {
            let _ = crate::notify::notify(sd_notify::NotifyState::Watchdog);
            since_notified = Duration::ZERO;
        }
        tokio::time::sleep(PERIOD).await;
        since_notified += PERIOD;
    }
}
