//! Perceptrons whose parameters are in vectors of PyTorch, and their gradients by a team of threads.
//!
//! Rows go through networks in blocks. Then each piece of the parameters gets its gradient of all rows, in their order. So
//! sums depend neither on the number of threads nor on the size of blocks.

use std::mem::take;
use std::ops::Range;
use std::slice::from_mut;

use super::adam::Descent;
use super::perceptron::{CHUNK, Pass, Perceptron, Piece};
use crate::gemm::Start;
use crate::matrix::{Aligned, stride};
use crate::team::Team;

/// Multiplications in the passes of a minibatch for each thread: below that another one does not pay.
const WORK: usize = 1 << 22;

/// Rows of a block are a multiple of it, unless there are fewer.
const GROUP: usize = 32;

/// The rows of a minibatch in blocks, and the team that computes them.
pub(super) struct Blocks {
    pub(super) team: Team,
    /// Rows of a minibatch, and of a block at most.
    pub(super) size: usize,
    pub(super) block: usize,
    /// Blocks that fit into the caches together.
    pub(super) together: usize,
}

impl Blocks {
    /// For minibatches of so many rows.
    ///
    /// # Arguments
    /// - `work`: multiplications of a row.
    /// - `threads`: at most.
    pub(super) fn new(size: usize, work: usize, threads: usize) -> Self {
        let threads = threads.clamp(1, (work * size / WORK).max(1));
        let share = size.div_ceil(threads).next_multiple_of(GROUP);
        let block = if threads == 1 { CHUNK } else { share.clamp(GROUP, CHUNK / 2) }.min(size.max(1));
        let all = threads.min(8) * CHUNK;
        Self { team: Team::new(threads), size, block, together: size.min(all).div_ceil(block) }
    }

    /// Blocks that are computed together, one round of them after the other.
    pub(super) fn rounds(&self) -> Vec<Vec<Range<usize>>> {
        let blocks: Vec<_> =
            (0..self.size).step_by(self.block).map(|first| first..self.size.min(first + self.block)).collect();
        blocks.chunks(self.together.max(1)).map(<[_]>::to_vec).collect()
    }
}

/// Parameters of a perceptron of an ensemble, and their gradient.
pub(super) struct Member {
    vector: Aligned,
    gradient: Aligned,
    transposed: Vec<Aligned>,
    /// The last inputs whose gradient may be asked for, and the weights of these, transposed.
    inputs: usize,
    of_inputs: Aligned,
}

impl Member {
    /// `inputs`: the last ones, whose gradient may be asked for.
    pub(super) fn new(network: &Perceptron, inputs: usize) -> Self {
        let zeros = || Aligned::zeros(network.room());
        let (transposed, of_inputs) = (network.transposed(), network.transposed_inputs(inputs));
        Self { vector: zeros(), gradient: zeros(), transposed, inputs, of_inputs }
    }

    /// Reads parameters; with `learns` also what gradients need.
    pub(super) fn read(&mut self, network: &Perceptron, flat: &[f32], index: usize, count: usize, learns: bool) {
        let transposed: &mut [Aligned] = if learns { &mut self.transposed } else { &mut [] };
        network.read_member(flat, index, count, &mut self.vector, transposed);
        if learns {
            network.transpose_inputs(flat, index, count, self.inputs, &mut self.of_inputs);
        }
    }

    /// [`Member::read`] of a perceptron of linear layers of PyTorch.
    pub(super) fn read_linear(&mut self, network: &Perceptron, flat: &[f32], learns: bool) {
        let transposed: &mut [Aligned] = if learns { &mut self.transposed } else { &mut [] };
        network.read_linear(flat, &mut self.vector, transposed);
    }

    /// The outputs [rows, row] for some rows of observations, of `width` numbers.
    pub(super) fn forward(&self, network: &Perceptron, pass: &mut Pass, obs: &[f32], width: usize) {
        fill(from_mut(pass), obs, width, None);
        self.forward_filled(network, pass, obs.len() / width);
    }

    /// [`Member::forward`] of rows that [`fill`] has written.
    pub(super) fn forward_filled(&self, network: &Perceptron, pass: &mut Pass, rows: usize) {
        network.forward(&self.vector, rows, pass);
    }

    /// The gradients of the outputs of all layers, from those of the last ones, which are in their place; with `learns` what
    /// [`add_gradients`] needs, too.
    pub(super) fn backward(&self, network: &Perceptron, rows: usize, pass: &mut Pass, learns: bool) {
        network.backward(rows, pass, &self.transposed, learns);
    }

    /// Writes the gradient of the last inputs to rows of `gradient`, after the way back.
    pub(super) fn input_gradient(&self, network: &Perceptron, rows: usize, pass: &Pass, gradient: &mut [f32]) {
        network.input_gradient(rows, pass, &self.of_inputs, self.inputs, gradient);
    }

    /// Writes the gradient as [`Member::read_linear`] reads parameters.
    pub(super) fn write_linear_gradient(&self, network: &Perceptron, flat: &mut [f32]) {
        network.write(&self.gradient, flat);
    }
}

/// Writes the inputs of passes, which are the same: rows of observations, of `width` numbers, and perhaps of actions beside
/// them, of so many numbers.
pub(super) fn fill(passes: &mut [Pass], obs: &[f32], width: usize, actions: Option<(&[f32], usize)>) {
    let numbers = actions.map_or(0, |(_, numbers)| numbers);
    let (row, rows) = (stride(width + numbers), obs.len() / width);
    let Some((first, others)) = passes.split_first_mut() else { return };
    for (i, to) in first.inputs.chunks_exact_mut(row).take(rows).enumerate() {
        to[..width].copy_from_slice(&obs[i * width..][..width]);
        if let Some((values, numbers)) = actions {
            to[width..][..numbers].copy_from_slice(&values[i * numbers..][..numbers]);
        }
    }
    others.iter_mut().for_each(|pass| pass.inputs[..rows * row].copy_from_slice(&first.inputs[..rows * row]));
}

/// Computes the gradients of members, piece by piece, from blocks of rows.
///
/// # Arguments
/// - `rows`: blocks of a round; `start`: of the first round zeros, then what is there.
/// - `pass`: of a member by its number, after its way back, for a block by its number.
/// - `descent`: of the members' ensemble, along the gradient once it is complete.
#[expect(clippy::too_many_arguments, reason = "networks, and a step of theirs")]
pub(super) fn add_gradients<'a>(
    network: &Perceptron,
    pieces: &[Piece],
    members: &mut [Member],
    rows: &[Range<usize>],
    start: Start<'_>,
    pass: impl Fn(usize, usize) -> &'a Pass + Sync,
    mut descent: Option<Descent<'_>>,
    team: &mut Team,
) {
    let mut gradients: Vec<&mut [f32]> = members.iter_mut().map(|member| &mut *member.gradient).collect();
    let mut tasks = vec![];
    for pieces in pieces.chunk_by(Piece::is_before) {
        for (index, rest) in gradients.iter_mut().enumerate() {
            for piece in pieces {
                let (gradient, others) = take(rest).split_at_mut(piece.len());
                *rest = others;
                let descent = descent.as_mut().map(|descent| descent.split_first(network.numbers(piece)));
                tasks.push((index, piece, gradient, descent));
            }
        }
    }
    team.each(&mut tasks, |(index, piece, gradient, descent)| {
        for (block, rows) in rows.iter().enumerate() {
            let start = if block == 0 { start } else { Start::Present };
            network.add_gradient(piece, rows.len(), pass(*index, block), gradient, start);
        }
        if let Some(descent) = descent {
            descent.step(network.pack(piece, gradient));
        }
    });
}
