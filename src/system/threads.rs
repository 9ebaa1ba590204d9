//! The threads that the actors run on, and the signs of what lives there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::dev::channel::{AddressReceiver, channel};
use actix::{Actor, Addr, Arbiter, ArbiterHandle, Context};

/// Whether something still lives.
pub type Sign = Box<dyn Fn() -> bool + Send + Sync>;

/// Where each actor runs.
pub struct Threads {
    pub control: ArbiterHandle,
    pub engine: ArbiterHandle,
    pub runner: ArbiterHandle,
    /// Whether they are one, the caller's, which is then nobody's to stop.
    pub shared: bool,
    pub signs: Vec<(&'static str, Sign)>,
}

impl Threads {
    /// Three of their own, as a daemon has them.
    #[must_use]
    pub fn own() -> Self {
        let (control, control_lives) = arbiter();
        let (engine, engine_lives) = arbiter();
        let (runner, runner_lives) = arbiter();
        Self {
            control,
            engine,
            runner,
            shared: false,
            signs: vec![
                ("control arbiter", control_lives),
                ("engine arbiter", engine_lives),
                ("runner arbiter", runner_lives),
            ],
        }
    }

    /// The caller's own arbiter for all of them: the same actors in an order that does not depend on a machine.
    /// For models that compute nothing, since a decode holds up everybody else.
    ///
    /// # Panics
    /// Outside an actix system.
    #[must_use]
    pub fn current() -> Self {
        let here = Arbiter::current();
        Self {
            control: here.clone(),
            engine: here.clone(),
            runner: here,
            shared: true,
            signs: Vec::new(),
        }
    }
}

/// An arbiter whose thread's end is noticed.
fn arbiter() -> (ArbiterHandle, Sign) {
    struct Gone(Arc<AtomicBool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let handle = Arbiter::new().handle();
    let gone = Arc::new(AtomicBool::new(false));
    let guard = Gone(Arc::clone(&gone));
    // The future never ends; it is dropped with the thread's executor.
    handle.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    (handle, Box::new(move || !gone.load(Ordering::Relaxed)))
}

/// An actor's address before it runs.
pub struct Mailbox<A: Actor> {
    pub addr: Addr<A>,
    pub receiver: AddressReceiver<A>,
}

impl<A: Actor<Context = Context<A>>> Mailbox<A> {
    pub fn new(capacity: usize) -> Self {
        let (sender, receiver) = channel(capacity);
        Self {
            addr: Addr::new(sender),
            receiver,
        }
    }

    /// Runs the actor that `make` makes, on the arbiter's thread. Gives the sign of its life.
    pub fn run(self, on: &ArbiterHandle, make: impl FnOnce() -> A + Send + 'static) -> Sign {
        let addr = self.addr;
        let receiver = self.receiver;
        on.spawn_fn(move || {
            let actor = make();
            Context::with_receiver(receiver).run(actor);
        });
        Box::new(move || addr.connected())
    }
}
