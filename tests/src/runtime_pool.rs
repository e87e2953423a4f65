//! A pool of exclusive runtimes, so that tests which need one can run in parallel.

use std::thread;

use anyhow::{Context, Result, anyhow};
use tokio::sync::{Mutex, MutexGuard, OnceCell, Semaphore, SemaphorePermit, oneshot};

use crate::{ControlPlane, env, spare};

/// Pool size. Such tests mostly wait, so they need little CPU.
const COUNT: usize = 4;
const NAMES: [&str; COUNT] = ["berth1", "berth2", "berth3", "berth4"];

static FREE: Semaphore = Semaphore::const_new(COUNT);
static BERTHS: [Berth; COUNT] = [const { Berth::new() }; COUNT];

struct Berth {
    taken: Mutex<()>,
    /// Started by its first test.
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

/// Exclusive use of a runtime until it is dropped.
pub struct Alone {
    /// The runtime. Objects of earlier tests are still there.
    pub cluster: &'static ControlPlane,
    // Field order matters: a test with a permit must find a free runtime.
    _taken: MutexGuard<'static, ()>,
    _permit: SemaphorePermit<'static>,
}

/// Waits for a free runtime.
pub async fn alone() -> Result<Alone> {
    let permit = FREE.acquire().await?;
    let free =
        BERTHS.iter().zip(NAMES).find_map(|(berth, name)| Some((berth, name, berth.taken.try_lock().ok()?)));
    let (berth, name, taken) = free.context("a permit, and no runtime is free")?;
    Ok(Alone { cluster: berth.runtime(name).await?, _taken: taken, _permit: permit })
}

/// Runs on its own thread and tokio runtime, which outlive the first test.
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
            // The send fails if the test was cancelled; then the control plane is dropped.
            let _unwanted = send.send(started);
        })
        .context("cannot start a thread")?;
    receive.await.context("the thread that starts a runtime panicked")?
}
