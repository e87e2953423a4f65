//! Runs without chance in what happens: for mistakes that few seeds show, and for what a seed has shown once.

use std::{sync::Arc, time::Duration};

use crate::{
    episode::{Failure, Report, change, rest, simulate},
    mistake::Mistake,
    oracle::targets,
    step::{Kind, Point},
    world::{Process, RECEIVERS, World},
};

/// What a script does, in the first runtime. Objects from 6 on are another manager's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// An object is created, or changed if it is there.
    Put(usize),
    /// An object is deleted.
    Delete(usize),
    /// Whether watches leave out what happens from now on.
    Swallow(bool),
    /// Whether reconciles fail from now on.
    Fail(bool),
    /// What belongs to an object is reconciled for a cause that no agent tells of.
    Reconcile(usize),
    /// The control plane is backed up.
    BackUp,
    /// The control plane is restored from its backup, and its receivers end with it.
    Restore,
    /// The agent is killed. It is there again within 8 s, and with the next rest.
    KillAgent,
    /// The receivers are killed, and are there again like the agent.
    KillReceivers,
    /// So many seconds pass.
    Wait(u64),
    /// All must come to rest.
    Rest,
}

/// Plays a script, up to the first rule that is broken.
pub fn follow(script: &[Do], mistake: Option<Mistake>) -> anyhow::Result<Result<Report, Failure>> {
    simulate(1, mistake, async |world| {
        for step in script {
            act(world, *step).await;
            if world.lock().violation.is_some() {
                return;
            }
        }
    })
}

async fn act(world: &Arc<World>, step: Do) {
    match step {
        // Updates and ends have the numbers that `change` knows.
        Do::Put(object) => change(world, 0, object, 0),
        Do::Delete(object) => change(world, 0, object, 5),
        Do::Swallow(swallows) => world.lock().directed.swallows = swallows,
        Do::Fail(fails) => world.lock().directed.fails = fails,
        Do::Reconcile(object) => {
            let receiver = {
                let state = world.lock();
                state.receivers[state.active].clone()
            };
            let Some(receiver) = receiver else { return };
            for key in targets((0, object)) {
                receiver.reconcile(key);
            }
        }
        Do::BackUp => world.back_up_control_plane(),
        Do::Restore => {
            world.step(Kind::ControlRestored, 9, 0);
            world.restore_control_plane(true);
        }
        Do::KillAgent => world.crash(Point::AgentAnywhere, Process::Agent(0)),
        Do::KillReceivers => {
            (0..RECEIVERS).for_each(|n| world.crash(Point::ReceiverAnywhere, Process::Receiver(n)));
        }
        Do::Wait(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        Do::Rest => rest(world).await,
    }
}
