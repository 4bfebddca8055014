//! Actions of agents, and the commands to vehicles that they become.
//!
//! Source: `highway_env/envs/common/action.py` (`DiscreteMetaAction`, `ContinuousAction`, `DiscreteAction`).

use serde::{Deserialize, Serialize};

use super::Traffic;
use super::controller::Meta;
use super::map::RoadMap;
use super::vehicles::Driver;
use crate::env::{ActionKind, Actions, Refused};

const ALL: [Meta; 5] = [Meta::LaneLeft, Meta::Idle, Meta::LaneRight, Meta::Faster, Meta::Slower];
const LONGITUDINAL: [Meta; 3] = [Meta::Slower, Meta::Idle, Meta::Faster];
const LATERAL: [Meta; 3] = [Meta::LaneLeft, Meta::Idle, Meta::LaneRight];

/// The values that -1 and 1 stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub low: f64,
    pub high: f64,
    /// True if a number in single precision is scaled in double precision. NumPy does so where a limit is a `float64`
    /// of its own; where both are Python's numbers it keeps to the precision of the action (NEP 50).
    pub double: bool,
}

impl Span {
    /// `utils.lmap` of a number from -1 to 1.
    fn at(self, number: f64) -> f64 {
        self.low + (number + 1.0) * (self.high - self.low) / 2.0
    }

    /// The value at a number in single precision, rounded as NumPy does.
    fn at_single(self, number: f32) -> f64 {
        let (above, width) = (number + 1.0, self.high - self.low);
        if self.double {
            self.low + f64::from(above) * width / 2.0
        } else {
            f64::from(self.low as f32 + above * width as f32 / 2.0)
        }
    }
}

/// The numbers of a `ContinuousAction`: throttle and steering, or one of them, each in [-1, 1].
#[derive(Clone, Debug, PartialEq)]
pub struct Continuous {
    pub longitudinal: bool,
    pub lateral: bool,
    /// m/s².
    pub acceleration: Span,
    /// Radians.
    pub steering: Span,
    /// True if numbers beyond [-1, 1] are clipped. They are refused otherwise.
    pub clip: bool,
    /// Speeds beyond which the vehicle brakes, m/s, if they are not the usual ones.
    pub speed: Option<[f64; 2]>,
    /// True if the vehicle's tyres slip.
    pub dynamical: bool,
}

/// An action as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LastAction {
    Discrete(i64),
    Box(Vec<f32>),
    Double(Vec<f64>),
}

impl LastAction {
    /// Replaces it by the checked action of one agent.
    pub(super) fn set(&mut self, actions: Actions<'_>) {
        match (self, actions) {
            (Self::Discrete(last), Actions::Discrete(&[action])) => *last = action,
            (Self::Box(last), Actions::Box(numbers)) => last.copy_from_slice(numbers),
            (Self::Double(last), Actions::Double(numbers)) => last.copy_from_slice(numbers),
            (last @ Self::Double(_), Actions::Box(numbers)) => *last = Self::Box(numbers.to_vec()),
            (last @ Self::Box(_), Actions::Double(numbers)) => *last = Self::Double(numbers.to_vec()),
            _ => unreachable!("actions are checked before a step"),
        }
    }

    /// Writes the numbers of an action, rounded to single precision; an index has none.
    pub fn write(&self, out: &mut [f32]) {
        match self {
            Self::Discrete(_) => {}
            Self::Box(numbers) => out.copy_from_slice(numbers),
            Self::Double(numbers) => out.iter_mut().zip(numbers).for_each(|(out, &number)| *out = number as f32),
        }
    }

    /// The actions of several agents, which are of one kind, as the numbers of one; indices become numbers.
    pub(super) fn joined(actions: &[Self]) -> Self {
        let single = actions.iter().flat_map(|action| if let Self::Box(numbers) = action { &numbers[..] } else { &[] });
        let single: Vec<f32> = single.copied().collect();
        if !single.is_empty() {
            return Self::Box(single);
        }
        let mut double = Vec::new();
        for action in actions {
            match action {
                Self::Discrete(index) => double.push(*index as f64),
                Self::Double(numbers) => double.extend(numbers),
                Self::Box(_) => {}
            }
        }
        Self::Double(double)
    }
}

/// The actions that an agent has.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionType {
    /// Lane changes, target speeds, or both.
    Meta {
        longitudinal: bool,
        lateral: bool,
    },
    Continuous(Continuous),
    /// A choice among pairs of acceleration (m/s²) and steering (radians).
    Table {
        commands: Vec<[f64; 2]>,
        /// True if the vehicle's tyres slip.
        dynamical: bool,
    },
}

impl ActionType {
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Continuous(c) => ActionKind::Box(usize::from(c.longitudinal) + usize::from(c.lateral)),
            _ => ActionKind::Discrete,
        }
    }

    /// The driver of a vehicle that takes such actions.
    pub fn driver(&self) -> Driver {
        match self {
            Self::Meta { .. } => Driver::Meta,
            Self::Continuous(Continuous { dynamical: true, .. }) | Self::Table { dynamical: true, .. } => {
                Driver::Dynamic
            }
            _ => Driver::Manual,
        }
    }

    /// The meta-actions in their order; empty for the other kinds.
    pub fn metas(&self) -> &'static [Meta] {
        match self {
            Self::Meta { longitudinal: true, lateral: true } => &ALL,
            Self::Meta { longitudinal: true, .. } => &LONGITUDINAL,
            Self::Meta { .. } => &LATERAL,
            _ => &[],
        }
    }

    /// Number of discrete actions; 0 for numbers.
    pub fn count(&self) -> usize {
        match self {
            Self::Meta { .. } => self.metas().len(),
            Self::Continuous(_) => 0,
            Self::Table { commands, .. } => commands.len(),
        }
    }

    /// The action that leaves everything as it is: "idle", the middle of a table, or zeros.
    pub fn neutral(&self) -> i64 {
        let idle = self.metas().iter().position(|&meta| meta == Meta::Idle);
        idle.unwrap_or(self.count() / 2) as i64
    }

    /// The same, as it is kept.
    pub fn neutral_action(&self) -> LastAction {
        match self.kind() {
            ActionKind::Discrete => LastAction::Discrete(self.neutral()),
            ActionKind::Box(len) => LastAction::Box(vec![0.0; len]),
        }
    }

    /// Returns whether that may have been an agent's last action.
    pub(super) fn takes(&self, action: &LastAction) -> bool {
        match (action, self.kind()) {
            (LastAction::Discrete(last), ActionKind::Discrete) => (0..self.count() as i64).contains(last),
            (LastAction::Box(last), ActionKind::Box(len)) => last.len() == len,
            (LastAction::Double(last), ActionKind::Box(len)) => last.len() == len,
            _ => false,
        }
    }

    /// Returns whether one agent may send this.
    pub fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        let refuse = |expected: String| Err(Refused { agent: 0, expected });
        match (self, actions) {
            (Self::Continuous(c), Actions::Box(numbers)) => {
                let fits = numbers.iter().all(|&a| c.takes(a.into()));
                if fits { Ok(()) } else { refuse(format!("{}, got {numbers:?}", c.expected())) }
            }
            (Self::Continuous(c), Actions::Double(numbers)) => {
                let fits = numbers.iter().all(|&a| c.takes(a));
                if fits { Ok(()) } else { refuse(format!("{}, got {numbers:?}", c.expected())) }
            }
            (_, Actions::Discrete(&[action])) => {
                if (0..self.count() as i64).contains(&action) {
                    return Ok(());
                }
                refuse(format!("an integer from 0 to {}, got {action}", self.count() - 1))
            }
            _ => refuse("actions of the kind that the environment's action space has".into()),
        }
    }

    /// Applies a checked action to vehicle `i`, from the next frame on.
    pub fn apply<M: RoadMap>(&self, traffic: &mut Traffic<M>, i: usize, actions: Actions<'_>) {
        match (self, actions) {
            (Self::Meta { .. }, Actions::Discrete(&[action])) => traffic.command(i, self.metas()[action as usize]),
            (Self::Table { commands, .. }, Actions::Discrete(&[action])) => {
                let [acceleration, steering] = commands[action as usize];
                traffic.drive(i, acceleration, steering);
            }
            (Self::Continuous(c), Actions::Box(_) | Actions::Double(_)) => {
                let [acceleration, steering] = c.command(actions);
                if let Some([low, high]) = c.speed {
                    traffic.vehicles.min_speed[i] = low;
                    traffic.vehicles.max_speed[i] = high;
                }
                traffic.drive(i, acceleration, steering);
            }
            _ => unreachable!("actions are checked before a step"),
        }
    }

    /// Writes which meta-actions can have an effect on vehicle `i` now (`get_available_actions`); a byte, 0 or 1, each.
    pub fn mask<M: RoadMap>(&self, traffic: &Traffic<M>, i: usize, out: &mut [u8]) {
        let vehicles = &traffic.vehicles;
        let lane = vehicles.lane[i];
        let section = traffic.road.section(lane);
        let open = |side: usize| traffic.road.lane(side).reachable_from(vehicles.x[i], vehicles.y[i]);
        let index = vehicles.speed_index[i];
        for (meta, out) in self.metas().iter().zip(out) {
            *out = u8::from(match meta {
                Meta::Idle => true,
                Meta::LaneLeft => lane > section.start && open(lane - 1),
                Meta::LaneRight => lane + 1 < section.end && open(lane + 1),
                Meta::Faster => index + 1 < traffic.target_speeds().len(),
                Meta::Slower => index > 0,
            });
        }
    }
}

impl Continuous {
    fn takes(&self, number: f64) -> bool {
        number.is_finite() && (self.clip || number.abs() <= 1.0)
    }

    fn expected(&self) -> &'static str {
        if self.clip { "finite numbers" } else { "numbers from -1 to 1 (clip is False)" }
    }

    /// Acceleration (m/s²) and steering (radians) of an action, computed in its precision.
    fn command(&self, actions: Actions<'_>) -> [f64; 2] {
        let scaled = |i: usize, span: Span| match actions {
            Actions::Box(numbers) => span.at_single(numbers[i].clamp(-1.0, 1.0)),
            Actions::Double(numbers) => span.at(numbers[i].clamp(-1.0, 1.0)),
            Actions::Discrete(_) => unreachable!("actions are checked before a step"),
        };
        let acceleration = if self.longitudinal { scaled(0, self.acceleration) } else { 0.0 };
        let steering = if self.lateral { scaled(usize::from(self.longitudinal), self.steering) } else { 0.0 };
        [acceleration, steering]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continuous(longitudinal: bool, lateral: bool, clip: bool) -> Continuous {
        let span = |low: f64, high: f64| Span { low, high, double: false };
        let (acceleration, steering) = (span(-5.0, 5.0), span(-0.5, 0.25));
        Continuous { longitudinal, lateral, acceleration, steering, clip, speed: None, dynamical: false }
    }

    #[test]
    fn numbers_are_scaled_to_their_ranges() {
        assert_eq!(continuous(true, true, true).command(Actions::Box(&[1.0, -1.0])), [5.0, -0.5]);
        assert_eq!(continuous(true, true, true).command(Actions::Double(&[-3.0, 7.0])), [-5.0, 0.25]);
        assert_eq!(continuous(true, false, true).command(Actions::Box(&[0.5])), [2.5, 0.0]);
        assert_eq!(continuous(false, true, true).command(Actions::Box(&[0.0])), [0.0, -0.125]);
    }

    #[test]
    fn numbers_are_scaled_in_their_precision() {
        // lmap(numpy.float32(0.3), [-1, 1], (-numpy.pi / 4, numpy.pi / 4)) of NumPy 2.4, with float64 limits, and of
        // 0.3.
        let quarter = std::f64::consts::FRAC_PI_4;
        let span = |double: bool| Span { low: -quarter, high: quarter, double };
        assert_eq!(span(false).at_single(0.3), f64::from(0.235_619_37_f32));
        assert_eq!(span(true).at_single(0.3), 0.235_619_411_568_531_72);
        assert_eq!(span(false).at(0.3), 0.235_619_449_019_234_48);
    }

    #[test]
    fn impossible_actions_are_refused() {
        let meta = ActionType::Meta { longitudinal: true, lateral: false };
        assert!(meta.check(Actions::Discrete(&[2])).is_ok());
        assert_eq!(meta.check(Actions::Discrete(&[3])).unwrap_err().expected, "an integer from 0 to 2, got 3");
        assert!(meta.check(Actions::Discrete(&[-1])).is_err());
        assert!(meta.check(Actions::Box(&[0.0])).is_err());
        let clipped = ActionType::Continuous(continuous(true, true, true));
        assert!(clipped.check(Actions::Box(&[9.0, 0.0])).is_ok());
        assert!(clipped.check(Actions::Box(&[f32::NAN, 0.0])).is_err());
        let bounded = ActionType::Continuous(continuous(true, true, false));
        assert!(bounded.check(Actions::Box(&[1.0, -1.0])).is_ok());
        assert!(bounded.check(Actions::Box(&[1.1, 0.0])).is_err());
    }

    #[test]
    fn the_neutral_action_is_idle() {
        assert_eq!(ActionType::Meta { longitudinal: true, lateral: true }.neutral(), 1);
        assert_eq!(ActionType::Table { commands: vec![[0.0; 2]; 9], dynamical: false }.neutral(), 4);
    }
}
