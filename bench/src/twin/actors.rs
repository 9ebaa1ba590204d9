//! The other way to run a cell: the daemon's real actors with the fake model, all on one thread of a runtime whose
//! clock is paused and jumps to whatever is due next. What they decide they decide by messages, as in the daemon;
//! only HTTP is left out, and the handlers' part of it is played here: a seat before anything else, the submission,
//! the frames, and the cancel of a client that leaves.
//!
//! The clock's grain is a microsecond, up to which a step is rounded. Nothing in it depends on the machine or on
//! what else runs there. A watchdog looks for dead actors, as the daemon's does; that of a step's age is left out,
//! since no step hangs here.

mod client;
mod house;

use std::rc::Rc;
use std::time::Duration;

use actix::System;

use super::engine::{Fate, Request, Trial};
use client::client;
use house::House;

/// How often the watchdog looks.
const WATCH: Duration = Duration::from_secs(1);
/// When the last client is served, the engine is at rest within so many looks.
const LOOKS: usize = 1000;

/// One fate for each of `requests`, in their order.
///
/// # Panics
/// If an actor died, or one of them kept something of a request, which no run may survive.
pub fn run(trial: &Trial, requests: &[Request]) -> Vec<Fate> {
    // A thread of its own: a system leaves traces on its thread.
    let whole = std::thread::scope(|scope| scope.spawn(|| in_virtual_time(trial, requests)).join());
    whole.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn in_virtual_time(trial: &Trial, requests: &[Request]) -> Vec<Fate> {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets")
    };
    System::with_tokio_rt(runtime).block_on(async {
        let house = Rc::new(House::open(trial, requests).await);
        let watched = Rc::clone(&house);
        tokio::select! {
            biased;
            fates = serve(house) => fates,
            dead = watch(watched) => panic!("{dead} is dead"),
        }
    })
}

async fn watch(house: Rc<House>) -> &'static str {
    loop {
        house.shared.clock.sleep(WATCH).await;
        if let Some(dead) = house.engine.dead() {
            return dead;
        }
    }
}

/// Lets the clients come when they do.
async fn serve(house: Rc<House>) -> Vec<Fate> {
    let mut clients = Vec::new();
    for (index, request) in house.requests.iter().enumerate() {
        house.sleep_until(request.at_us).await;
        clients.push(actix::spawn(client(Rc::clone(&house), index)));
    }
    let mut fates = Vec::new();
    for client in clients {
        fates.push(client.await.expect("no client panics"));
    }
    for _ in 0..LOOKS {
        if house.is_at_rest() {
            return fates;
        }
        house.shared.clock.sleep(WATCH).await;
    }
    panic!("the daemon kept something");
}

#[cfg(test)]
#[path = "actors_tests.rs"]
mod tests;
