//! The scene of a cooperative environment.

use super::Coop;
use super::config::SPEED_LIMIT;
use crate::env::Env;
use crate::traffic::scene::{Camera, Scene, Scenic};

impl Scenic for Coop {
    fn scene(&self) -> Scene {
        let state = self.state();
        let time = f64::from(state.steps) / f64::from(self.config().policy_frequency);
        let scene = state.traffic.scene(time, Camera::Agents, [0.0, SPEED_LIMIT], |i| {
            let number = state.numbers[i];
            // A wreck is still known by the agent that drove it.
            (number, (number < state.account.agents).then_some(number))
        });
        match (&state.links, &self.config().comms) {
            (Some(state), Some(comms)) => {
                Scene { links: state.drawn(comms, self.config().period(), |station| station as u32), ..scene }
            }
            _ => scene,
        }
    }
}
