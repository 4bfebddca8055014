//! A ferry that crosses a river to a dock, carried along by currents that differ from column to column.
//!
//! ```text
//! row 0        . . > . . . . .        The ferry starts in column 0, in a row drawn at random. In each step its engine moves it
//!              . . . . . . . .        one column ahead, or two rows along the river; then the current of the column in which
//! start row    F . . . . . . .        it was moves it by -1, 0 or 1 rows. Beyond the last column it has landed.
//!              . . . . . . . .
//! ROWS - 1     . . . . . . . .  dock
//! ```
//!
//! A step costs [`FUEL`]. Landing terminates the episode and pays 1, less the share of the river's length that is left to
//! the dock. After `limit` steps the episode is truncated.

use fastrl_core::env::Phase;
use fastrl_core::rng::Rng;
use fastrl_core::single_agent::{SingleAgentEnv, Step};
use serde::{Deserialize, Serialize};

const COLUMNS: usize = 8;
const ROWS: i32 = 9;
const FUEL: f64 = 0.01;

/// Rows by which the engine moves the ferry with each action; with the first it moves a column ahead.
const STEERING: [i32; 3] = [0, -2, 2];

/// All that changes while an episode runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    rng: Rng,
    time: u32,
    column: usize,
    row: i32,
    dock: i32,
    currents: [i32; COLUMNS],
}

pub struct Ferry {
    limit: u32,
    state: State,
}

impl Ferry {
    /// A ferry whose episodes have `limit` steps at most (`limit > 0`).
    pub fn new(limit: u32) -> Self {
        let state = State { rng: Rng::new(0), time: 0, column: 0, row: 0, dock: 0, currents: [0; COLUMNS] };
        Self { limit, state }
    }

    fn has_ended(&self, state: &State) -> bool {
        state.column == COLUMNS || state.time == self.limit
    }
}

impl SingleAgentEnv for Ferry {
    type State = State;

    fn obs_len(&self) -> usize {
        5
    }

    fn accepts(&self, action: i64) -> bool {
        (0..STEERING.len() as i64).contains(&action)
    }

    fn expected_action(&self) -> String {
        "0 (ahead), 1 (towards row 0) or 2 (away from it)".into()
    }

    fn seed(&mut self, seed: u64) {
        self.state.rng = Rng::new(seed);
    }

    fn reset(&mut self, obs: &mut [f32]) {
        let State { rng, time, column, row, dock, currents } = &mut self.state;
        (*time, *column) = (0, 0);
        *row = rng.below(ROWS as u32) as i32;
        *dock = rng.below(ROWS as u32) as i32;
        *currents = std::array::from_fn(|_| rng.below(3) as i32 - 1);
        self.observe(obs);
    }

    fn observe(&self, obs: &mut [f32]) {
        let State { column, row, dock, currents, .. } = &self.state;
        let current = |column: usize| currents.get(column).map_or(0.0, |&rows| rows as f32);
        let along = |row: i32| row as f32 / (ROWS - 1) as f32;
        let share = *column as f32 / COLUMNS as f32;
        obs.copy_from_slice(&[share, along(*row), along(*dock), current(*column), current(column + 1)]);
    }

    fn step(&mut self, action: i64, obs: &mut [f32]) -> Step {
        let State { time, column, row, dock, currents, .. } = &mut self.state;
        *row = (*row + STEERING[action as usize] + currents[*column]).clamp(0, ROWS - 1);
        *column += usize::from(action == 0);
        *time += 1;
        let terminated = *column == COLUMNS;
        let landing = if terminated { 1.0 - f64::from((*row - *dock).abs()) / f64::from(ROWS - 1) } else { 0.0 };
        let truncated = !terminated && *time == self.limit;
        self.observe(obs);
        Step { reward: landing - FUEL, terminated, truncated }
    }

    fn fingerprint(&self) -> String {
        format!("ferry, limit {}", self.limit)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let inside = |row: i32| (0..ROWS).contains(&row);
        let sound = state.rng.is_sound()
            && state.time <= self.limit
            && state.column <= COLUMNS
            && inside(state.row)
            && inside(state.dock)
            && state.currents.iter().all(|rows| (-1..=1).contains(rows));
        if sound && self.has_ended(state) == (phase == Phase::Ended) {
            Ok(())
        } else {
            Err("no ferry can be there".into())
        }
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        0
    }
}
