//! Scripted runs, for rare bugs and regressions.

use std::{sync::Arc, time::Duration};

use crate::{
    episode::{Failure, Report, change, rest, simulate},
    mistake::Mistake,
    oracle::{Object, targets},
    step::{Kind, Point},
    world::{Process, RECEIVERS, World},
};

/// A step in the first runtime. Objects from 6 on are another manager's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// Creates or updates an object.
    Put(usize),
    /// Deletes an object.
    Delete(usize),
    /// Whether watches drop events.
    Swallow(bool),
    /// Whether reconciles fail.
    Fail(bool),
    /// Reconciles an object's owners without an event.
    Reconcile(usize),
    /// Backs up the control plane.
    BackUp,
    /// Restores the control plane and kills its receivers.
    Restore,
    /// Kills the agent for up to 8 s.
    KillAgent,
    /// Kills the receivers, likewise.
    KillReceivers,
    /// Waits, in seconds.
    Wait(u64),
    /// Requires all work to finish.
    Rest,
}

/// Plays a script up to the first violation.
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
            for key in targets(Object { runtime: 0, number: object }) {
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
