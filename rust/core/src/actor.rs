//! Chooses actions with a network's newest weights: the compiled twin of
//! `fastrl.networks.distributions.sample_actions`.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::choice::{Group, choose, mask_logits};
use crate::dense::all_finite;
#[cfg(target_arch = "x86_64")]
use crate::lanes::has_fma;
use crate::lanes::{LANES, Lanes, flat};
use crate::mlp::{Architecture, BLOCK, Mlp, Scratch};
use crate::streams::{bits, normal_pair, part_bits, unit};
use crate::team::Team;

/// Number of rows below which waking a thread costs more than it saves.
const MIN_ROWS: usize = 32;

/// Parts of the rows for each thread, so that one that comes late has something left to do.
const PARTS: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The network's outputs are logits of actions.
    Discrete,
    /// An action has several numbers, each from 0 up to one of these. The network's outputs are the logits of the first
    /// number's values, then those of the second, and so on.
    MultiDiscrete(Vec<usize>),
    /// The network's outputs are means of independent normal numbers; logarithms of their standard deviations follow
    /// the weights.
    Gaussian,
}

/// The reason why weights or a call were refused. Nothing has changed then.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    NoWeights,
    NotFinite { place: usize },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWeights => f.write_str("this actor has no weights yet: call load() first"),
            Self::NotFinite { place } => {
                write!(f, "buffer: expected finite weights, got NaN or infinity at index {place}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// The array that receives the actions.
pub enum ActionsOut<'a> {
    /// One a row.
    Discrete(&'a mut [i64]),
    /// As many a row as an action has numbers.
    MultiDiscrete(&'a mut [i64]),
    /// One for each output of the network in a row.
    Gaussian(&'a mut [f32]),
}

impl ActionsOut<'_> {
    /// The same array, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> ActionsOut<'_> {
        match self {
            Self::Discrete(actions) => ActionsOut::Discrete(actions),
            Self::MultiDiscrete(actions) => ActionsOut::MultiDiscrete(actions),
            Self::Gaussian(actions) => ActionsOut::Gaussian(actions),
        }
    }
}

/// The inputs and outputs of rows that choose actions. Lengths fit each other and the network.
pub struct Rows<'a> {
    pub obs: &'a [f32],
    /// The random stream of each row's episode.
    pub streams: &'a [u64],
    /// The step of each row's episode.
    pub steps: &'a [i64],
    /// A flag for each logit, a byte: 1 if it is allowed.
    pub masks: Option<&'a [u8]>,
    /// The network's memory of each row's episode, zeros at its start; nothing if it has none. Read and written.
    pub states: &'a mut [f32],
    pub actions: ActionsOut<'a>,
    pub log_probs: &'a mut [f32],
}

impl<'a> Rows<'a> {
    fn split_at(self, row: usize) -> (Self, Self) {
        let rows = self.streams.len();
        let (obs, obs2) = self.obs.split_at(row * (self.obs.len() / rows));
        let (streams, streams2) = self.streams.split_at(row);
        let (steps, steps2) = self.steps.split_at(row);
        let (masks, masks2) = self.masks.map(|masks| masks.split_at(row * (masks.len() / rows))).unzip();
        let (states, states2) = split_rows(self.states, row, rows);
        let (actions, actions2) = match self.actions {
            ActionsOut::Discrete(actions) => {
                let (a, b) = actions.split_at_mut(row);
                (ActionsOut::Discrete(a), ActionsOut::Discrete(b))
            }
            ActionsOut::MultiDiscrete(actions) => {
                let (a, b) = split_rows(actions, row, rows);
                (ActionsOut::MultiDiscrete(a), ActionsOut::MultiDiscrete(b))
            }
            ActionsOut::Gaussian(actions) => {
                let (a, b) = split_rows(actions, row, rows);
                (ActionsOut::Gaussian(a), ActionsOut::Gaussian(b))
            }
        };
        let (log_probs, log_probs2) = self.log_probs.split_at_mut(row);
        (
            Rows { obs, streams, steps, masks, states, actions, log_probs },
            Rows {
                obs: obs2,
                streams: streams2,
                steps: steps2,
                masks: masks2,
                states: states2,
                actions: actions2,
                log_probs: log_probs2,
            },
        )
    }
}

impl Rows<'_> {
    /// Parts whose numbers of rows differ by one at most.
    fn parts(self, parts: usize) -> Vec<Self> {
        let mut all = Vec::with_capacity(parts);
        let mut rest = self;
        for left in (2..=parts).rev() {
            let row = rest.streams.len() / left;
            let (rows, others) = rest.split_at(row);
            all.push(rows);
            rest = others;
        }
        all.push(rest);
        all
    }
}

/// Splits an array of `rows` rows before row `row`.
fn split_rows<T>(array: &mut [T], row: usize, rows: usize) -> (&mut [T], &mut [T]) {
    array.split_at_mut(row * (array.len() / rows))
}

/// States of `size` numbers, the last of them perhaps fewer; empty ones if that is 0.
fn each_state(states: &mut [f32], size: usize) -> impl Iterator<Item = &mut [f32]> {
    let mut rest = states;
    std::iter::repeat_with(move || {
        let all = std::mem::take(&mut rest);
        let (state, others) = all.split_at_mut(size.min(all.len()));
        rest = others;
        state
    })
}

/// One version of the weights. Reading it needs no lock.
pub struct Policy {
    mlp: Mlp,
    /// Numbers of values of each number of an action, with [`Kind::MultiDiscrete`].
    values: Vec<usize>,
    /// Logarithm of the standard deviation of each output, with [`Kind::Gaussian`].
    log_std: Vec<f32>,
}

pub struct Actor {
    kind: Kind,
    architecture: Architecture,
    newest: Mutex<Option<Arc<Policy>>>,
    /// Has no threads but the caller's before it is needed.
    team: Mutex<Team>,
    threads: usize,
}

impl Actor {
    /// An actor without weights. With `threads` 1 the calling thread computes the rows.
    pub fn new(kind: Kind, architecture: Architecture, threads: usize) -> Self {
        Self { kind, architecture, newest: Mutex::new(None), team: Mutex::new(Team::new(1)), threads }
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    pub fn num_weights(&self) -> usize {
        self.architecture.num_weights() + if self.kind == Kind::Gaussian { self.architecture.outputs } else { 0 }
    }

    /// Takes new weights, [`Actor::num_weights`] of them, for the calls that begin from now on.
    pub fn load(&self, weights: &[f32]) -> Result<(), Error> {
        if !all_finite(weights) {
            let place = weights.iter().position(|w| !w.is_finite()).expect("one is not");
            return Err(Error::NotFinite { place });
        }
        let (weights, log_std) = weights.split_at(self.architecture.num_weights());
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        // In place, unless a call still uses the weights before: memory of a large network is not taken anew.
        if let Some(policy) = newest.as_mut().and_then(Arc::get_mut) {
            policy.mlp.load(weights, f32::NEG_INFINITY);
            policy.log_std.copy_from_slice(log_std);
            return Ok(());
        }
        let mlp = Mlp::new(&self.architecture, weights, f32::NEG_INFINITY);
        let values = if let Kind::MultiDiscrete(values) = &self.kind { values.clone() } else { Vec::new() };
        *newest = Some(Arc::new(Policy { mlp, values, log_std: log_std.to_vec() }));
        Ok(())
    }

    pub fn policy(&self) -> Result<Arc<Policy>, Error> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Error::NoWeights)
    }

    /// Chooses an action in each row: draws it, or takes the most probable one if `greedy`.
    pub fn act(&self, rows: Rows<'_>, greedy: bool) -> Result<(), Error> {
        let policy = self.policy()?;
        let tasks = (rows.streams.len() / MIN_ROWS).min(PARTS * self.threads);
        match self.team.try_lock() {
            Ok(mut team) if tasks > 1 && self.threads > 1 => {
                team.resize(self.threads);
                team.each(&mut rows.parts(tasks), |rows| policy.act(rows, greedy));
            }
            // Another thread has the team.
            _ => policy.act(&mut { rows }, greedy),
        }
        Ok(())
    }
}

impl Policy {
    /// [`Actor::act`] in the calling thread.
    pub fn act(&self, rows: &mut Rows<'_>, greedy: bool) {
        self.act_with(rows, greedy, &mut self.memory(rows.streams.len()));
    }

    /// Memory for up to so many rows, or a block if they are more.
    pub(crate) fn memory(&self, rows: usize) -> Memory<'_> {
        let sums = vec![Lanes([0.0; LANES]); self.mlp.lanes()];
        let group = Group::new(self.mlp.architecture().outputs, rows);
        Memory { scratch: self.mlp.scratch(rows), sums, heads: Heads::new(&self.values), group }
    }

    /// Does as [`Policy::act`].
    pub(crate) fn act_with(&self, rows: &mut Rows<'_>, greedy: bool, memory: &mut Memory<'_>) {
        on_wide(
            #[inline(always)]
            || self.act_here(rows, greedy, memory),
        );
    }

    /// Length of a row's state.
    pub(crate) fn state_size(&self) -> usize {
        self.mlp.architecture().state_size()
    }

    /// The network's outputs of each row of `obs`, before any mask. `states` are those of [`Rows`].
    pub fn outputs(&self, obs: &[f32], states: &mut [f32], out: &mut [f32]) {
        let Architecture { inputs, outputs, .. } = *self.mlp.architecture();
        on_wide(
            #[inline(always)]
            || {
                let (lanes, size) = (self.mlp.lanes(), self.mlp.architecture().state_size());
                let mut scratch = self.mlp.scratch(obs.len() / inputs);
                let rows = obs.chunks(BLOCK * inputs).zip(each_state(states, BLOCK * size));
                for ((block, states), out) in rows.zip(out.chunks_mut(BLOCK * outputs)) {
                    self.mlp.forward(block, states, &mut scratch);
                    for (out, lanes) in out.chunks_exact_mut(outputs).zip(scratch.outputs(lanes)) {
                        out.copy_from_slice(&flat(lanes)[..outputs]);
                    }
                }
            },
        );
    }

    #[inline(always)]
    fn act_here(&self, rows: &mut Rows<'_>, greedy: bool, memory: &mut Memory<'_>) {
        let Architecture { inputs, outputs, .. } = *self.mlp.architecture();
        let Rows { obs, streams, steps, masks, states, actions, log_probs } = rows;
        let (lanes, size) = (self.mlp.lanes(), self.state_size());
        let Memory { scratch, sums, heads, group } = memory;
        let blocks = obs.chunks(BLOCK * inputs).zip(each_state(states, BLOCK * size));
        for (block, (obs, states)) in blocks.enumerate() {
            self.mlp.forward(obs, states, scratch);
            let first = block * BLOCK;
            let rows = first..streams.len().min(first + BLOCK);
            if let Some(masks) = masks {
                let masks = masks[rows.start * outputs..].chunks_exact(outputs);
                scratch.outputs(lanes).zip(masks).for_each(|(logits, mask)| mask_logits(&mut logits[..lanes], mask));
            }
            let mut at = 0;
            if let (ActionsOut::Discrete(actions), false) = (&mut *actions, greedy) {
                while rows.len() - at >= Group::LEAST {
                    let of_group = rows.start + at..rows.end.min(rows.start + at + LANES);
                    let (logits, apart) = scratch.outputs_from(at, lanes);
                    let uniforms = streams[of_group.clone()].iter().zip(&steps[of_group.clone()]);
                    let uniforms = uniforms.map(|(&stream, &step)| unit(bits(stream, step)));
                    let chosen = (&mut actions[of_group.clone()], &mut log_probs[of_group.clone()]);
                    group.choose(logits, apart, outputs, uniforms, chosen);
                    at += of_group.len();
                }
            }
            for (row, logits) in rows.zip(scratch.outputs(lanes)).skip(at) {
                let (logits, bits) = (&mut logits[..lanes], (!greedy).then(|| bits(streams[row], steps[row])));
                log_probs[row] = match actions {
                    ActionsOut::Discrete(actions) => {
                        let (action, log_prob) = choose(logits, sums, outputs, bits.map(unit));
                        actions[row] = action as i64;
                        log_prob
                    }
                    ActionsOut::MultiDiscrete(actions) => {
                        let width = self.values.len();
                        heads.choose(logits, bits, &mut actions[row * width..][..width])
                    }
                    ActionsOut::Gaussian(actions) => self.draw(logits, bits, &mut actions[row * outputs..][..outputs]),
                };
            }
        }
    }

    /// Writes a normal draw, or the mean without `bits`; returns its log-density.
    #[inline(always)]
    fn draw(&self, means: &[Lanes], bits: Option<u64>, action: &mut [f32]) -> f32 {
        let half_log_2pi = 0.5 * std::f32::consts::TAU.ln();
        let mut log_prob = 0.0;
        for (pair, (action, log_std)) in action.chunks_mut(2).zip(self.log_std.chunks(2)).enumerate() {
            let (first, second) = bits.map_or((0.0, 0.0), |bits| normal_pair(bits, pair));
            for (i, ((action, log_std), z)) in action.iter_mut().zip(log_std).zip([first, second]).enumerate() {
                let place = 2 * pair + i;
                *action = means[place / LANES].0[place % LANES] + log_std.exp() * z;
                log_prob -= 0.5 * z * z + log_std + half_log_2pi;
            }
        }
        log_prob
    }
}

/// Memory for choosing actions.
pub(crate) struct Memory<'a> {
    scratch: Scratch,
    sums: Vec<Lanes>,
    heads: Heads<'a>,
    group: Group,
}

/// Memory for choosing the numbers of actions with [`Kind::MultiDiscrete`], one after the other.
struct Heads<'a> {
    values: &'a [usize],
    logits: Vec<Lanes>,
    sums: Vec<Lanes>,
}

impl<'a> Heads<'a> {
    fn new(values: &'a [usize]) -> Self {
        let lanes = values.iter().map(|values| values.div_ceil(LANES)).max().unwrap_or(0);
        let memory = || vec![Lanes([f32::NEG_INFINITY; LANES]); lanes];
        Self { values, logits: memory(), sums: memory() }
    }

    /// Draws each number of an action with a random number of its own, derived from the step's `bits`; without these it
    /// takes the most probable ones. Returns the action's log-probability.
    #[inline(always)]
    fn choose(&mut self, all: &[Lanes], bits: Option<u64>, action: &mut [i64]) -> f32 {
        let (mut first, mut log_prob) = (0, 0.0);
        for (head, (&values, number)) in self.values.iter().zip(action).enumerate() {
            let lanes = values.div_ceil(LANES);
            let (logits, sums) = (&mut self.logits[..lanes], &mut self.sums[..lanes]);
            logits[lanes - 1] = Lanes([f32::NEG_INFINITY; LANES]);
            for k in 0..values {
                let place = first + k;
                logits[k / LANES].0[k % LANES] = all[place / LANES].0[place % LANES];
            }
            let uniform = bits.map(|bits| unit(part_bits(bits, head)));
            let chosen = choose(logits, sums, values, uniform);
            (*number, log_prob) = (chosen.0 as i64, log_prob + chosen.1);
            first += values;
        }
        log_prob
    }
}

/// Runs `work`, compiled for registers of 256 bits where the processor has them: those of 512 take longer for the few
/// numbers of a row. The numbers are the same.
#[inline(always)]
fn on_wide(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        /// # Safety
        /// The processor has AVX2 and FMA.
        #[target_feature(enable = "avx2,fma")]
        unsafe fn wide(work: impl FnOnce()) {
            work();
        }
        if has_fma() {
            // SAFETY: `has_fma` has found AVX2 and FMA.
            return unsafe { wide(work) };
        }
    }
    work();
}
