//! Runtimes for tests that need one to themselves: a few of them, so that as many such tests can run at the same time. They wait for API
//! servers and controllers most of the time, and take little of the machine.

use std::thread;

use anyhow::{Context, Result, anyhow};
use tokio::sync::{Mutex, MutexGuard, OnceCell, Semaphore, SemaphorePermit, oneshot};

use crate::{ControlPlane, env, spare};

/// So many at the same time.
const COUNT: usize = 4;
const NAMES: [&str; COUNT] = ["berth1", "berth2", "berth3", "berth4"];

static FREE: Semaphore = Semaphore::const_new(COUNT);
static BERTHS: [Berth; COUNT] = [const { Berth::new() }; COUNT];

struct Berth {
    taken: Mutex<()>,
    /// Started by the first test that gets it.
    runtime: OnceCell<Result<ControlPlane, String>>,
}

impl Berth {
    const fn new() -> Self {
        Self { taken: Mutex::const_new(()), runtime: OnceCell::const_new() }
    }

    async fn runtime(&'static self, name: &'static str) -> Result<&'static ControlPlane> {
        let started =
            self.runtime.get_or_init(|| async { start(name).await.map_err(|error| format!("{error:#}")) });
        started.await.as_ref().map_err(|error| anyhow!("{error}"))
    }
}

/// A runtime that is nobody else's as long as this lives.
pub struct Alone {
    /// The runtime. What other tests have left in it is still there.
    pub cluster: &'static ControlPlane,
    // In this order: who has a permit finds one that is not taken.
    _taken: MutexGuard<'static, ()>,
    _permit: SemaphorePermit<'static>,
}

/// Waits for a runtime that is free.
pub async fn alone() -> Result<Alone> {
    let permit = FREE.acquire().await?;
    let free =
        BERTHS.iter().zip(NAMES).find_map(|(berth, name)| Some((berth, name, berth.taken.try_lock().ok()?)));
    let (berth, name, taken) = free.context("a permit, and no runtime is free")?;
    Ok(Alone { cluster: berth.runtime(name).await?, _taken: taken, _permit: permit })
}

/// On a thread with a runtime of its own: the first test's runtime ends with that test.
async fn start(name: &'static str) -> Result<ControlPlane> {
    let env = env::shared().await?;
    let (send, receive) = oneshot::channel();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let started = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot make a tokio runtime")
                .and_then(|runtime| runtime.block_on(spare::start(env, name)));
            // Nobody waits any more when the test was cancelled: then it is dropped.
            let _unwanted = send.send(started);
        })
        .context("cannot start a thread")?;
    receive.await.context("the thread that starts a runtime panicked")?
}
