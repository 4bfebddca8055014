//! The policy and the value function of `fastrl.networks.pointer_policy.PointerPolicy`, for tables whose rows are things.
//!
//! A layer of a perceptron is linear in features of a row, or of the context of a table, so that rows that occur in
//! several tables go through it once. The parts are:
//!
//! 0. from rows to their features, and on to what the pointer adds up for a row;
//! 1. from the maxima and means of features over a table to its context, and on to what the pointer adds up for the table,
//!    and to logits of actions on nothing in particular, or to the value;
//! 2. from the pointer, a row beside its table's context, to logits of actions on the row.

pub(crate) mod pooled;

use super::{GROUP, Network, NetworkPass, Segment};
use crate::dense::Activation;
use crate::dense::activate;
use crate::learn::perceptron::{Pass, Perceptron};
use crate::matrix::{Aligned, stride};
use crate::widest::widest;

/// Features of a row.
const FEATURES: usize = 64;

/// Rows of the tables of a block, unless the tables are so large that [`GROUP`] have more: many, as the more tables there
/// are the fewer of their rows are new.
const BLOCK_ROWS: usize = 1 << 13;

/// The same where all rows go through the network: few enough for the cache.
const POOLED_ROWS: usize = 1 << 10;

/// Tables of a block at most.
const BLOCK: usize = 1 << 9;

const ROWS: usize = 0;
const CONTEXT: usize = 1;
const ON_ROW: usize = 2;
/// Layer of the features among those of rows.
const LAST: usize = 1;

/// Tables [G, rows, width], of which rows that occur several times are there once.
pub(crate) struct Tables {
    /// [G, rows], which of the distinct rows each one is.
    ids: Vec<u32>,
    /// [distinct rows, width].
    distinct: Vec<f32>,
    /// False for rows of zeros, which are empty.
    is_there: Vec<bool>,
    /// Distinct rows by their hash, open addressing; their numbers plus 1, or 0.
    slots: Vec<u32>,
    width: usize,
}

impl Tables {
    /// No tables yet, whose rows have so many numbers.
    fn new(width: usize) -> Self {
        Self { ids: vec![], distinct: vec![], is_there: vec![], slots: vec![], width }
    }

    /// Takes other tables, side by side.
    pub(crate) fn set(&mut self, obs: &[f32]) {
        let count = obs.len() / self.width;
        self.ids.clear();
        self.distinct.clear();
        self.is_there.clear();
        self.slots.clear();
        self.slots.resize((2 * count).next_power_of_two(), 0);
        for row in obs.chunks_exact(self.width) {
            let id = self.find(row);
            self.ids.push(id);
        }
    }

    /// The number of a row among the distinct ones, which it joins.
    fn find(&mut self, row: &[f32]) -> u32 {
        let mix =
            |hash: u64, x: &f32| (hash.rotate_left(5) ^ u64::from(x.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = row.iter().fold(0, mix);
        let mut slot = (hash >> 32) as usize & (self.slots.len() - 1);
        // Half of the slots are free at least.
        while let Some(id) = self.slots[slot].checked_sub(1) {
            let other = &self.distinct[id as usize * self.width..][..self.width];
            if other.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits()) {
                return id;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        let id = self.is_there.len() as u32;
        self.slots[slot] = id + 1;
        self.distinct.extend_from_slice(row);
        self.is_there.push(row.iter().any(|&x| x != 0.0));
        id
    }
}

/// The shape of a policy or a value function of tables.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pointer {
    rows: usize,
    width: usize,
    /// Tables of a row of the network.
    tables: usize,
    /// Numbers of a table's first row that stand before its pooled features, and beside each other row; 0: none do, the first
    /// row is like the others.
    beside: usize,
    /// Inputs of the context.
    context: usize,
    /// Actions on each row, and those on nothing in particular, which come first.
    on_each: usize,
    on_none: usize,
    activation: Activation,
    is_policy: bool,
    /// Layers of the context, that to the outputs included.
    depth: usize,
}

/// Rows of a table that follow each other and are the same.
#[derive(Clone, Copy)]
struct Run {
    /// Place among the block's rows.
    row: u32,
    count: u32,
    is_there: bool,
}

/// Memory for the tables of a block.
pub(crate) struct TablePass {
    /// Number of the block in which each distinct row was last seen, and its place there.
    seen: Vec<(u32, u32)>,
    block: u32,
    runs: Vec<Run>,
    /// First run of each table, and the end of all.
    starts: Vec<usize>,
    /// [tables, features], the row of the block that has the maximum.
    greatest: Vec<u32>,
    /// Gradients of pooled features [rows of the block, features], before the derivative of their activation.
    pooled: Vec<f32>,
    /// [tables, stride of the actions], of a policy.
    outputs: Aligned,
    slopes: Aligned,
    row: usize,
}

impl TablePass {
    /// See [`Pass::ends`].
    pub(super) fn ends(&mut self) -> (&[f32], &mut [f32], usize) {
        (&self.outputs, &mut self.slopes, self.row)
    }

    /// The runs of a table.
    fn of(&self, table: usize) -> &[Run] {
        &self.runs[self.starts[table]..self.starts[table + 1]]
    }
}

/// Numbers of parameters of linear layers of these widths.
fn linear(sizes: &[usize]) -> usize {
    sizes.windows(2).map(|ends| (ends[0] + 1) * ends[1]).sum()
}

/// A policy and a value function for tables of so many rows of so many numbers, and the number of their parameters.
/// Without `with_value` the policy alone.
pub(crate) fn pointer_networks(
    (rows, width): (usize, usize),
    actions: usize,
    hidden: &[usize],
    activation: Activation,
    with_value: bool,
) -> (Network, Option<Network>, usize) {
    let (on_each, on_none) = (actions / rows, actions % rows);
    let mut all = 0;
    let mut take = |count: usize, is_there: bool| {
        let first = all;
        all += if is_there { count } else { 0 };
        Segment::Place(first..all)
    };
    let of_rows = [width, FEATURES, FEATURES];
    let of_context: Vec<usize> = std::iter::once(2 * FEATURES).chain(hidden.iter().copied()).collect();
    let context = *of_context.last().expect("there is one");
    // The order of PyTorch.
    let [actor_rows, critic_rows] = [true, with_value].map(|is_there| take(linear(&of_rows), is_there));
    let [actor_context, critic_context] = [true, with_value].map(|is_there| take(linear(&of_context), is_there));
    let of_row = take(linear(&[FEATURES, FEATURES]), true);
    let weights_of_context = take(context * FEATURES, true);
    let on_row = take(linear(&[FEATURES, on_each]), true);
    let [weights_on_nothing, bias_on_nothing] = [context * on_none, on_none].map(|count| take(count, true));
    let critic = take(linear(&[context, 1]), with_value);
    let shape = |is_policy| Pointer {
        rows,
        width,
        tables: 1,
        beside: 0,
        context: 2 * FEATURES,
        on_each,
        on_none,
        activation,
        is_policy,
        depth: of_context.len(),
    };
    let part = |sizes: &[usize], last: usize, has_head: bool, has_slopes: bool| {
        let sizes: Vec<usize> = sizes.iter().copied().chain((last > 0).then_some(last)).collect();
        Perceptron::part(&sizes, activation, has_head, has_slopes)
    };
    let policy = vec![
        (part(&of_rows, FEATURES, true, false), vec![actor_rows, of_row], rows),
        (
            part(&of_context, FEATURES + on_none, true, true),
            vec![actor_context, weights_of_context, weights_on_nothing, Segment::Zeros(FEATURES), bias_on_nothing],
            1,
        ),
        (part(&[FEATURES], on_each, true, true), vec![on_row], rows),
    ];
    let value = vec![
        (part(&of_rows, 0, false, false), vec![critic_rows], rows),
        (part(&of_context, 1, true, true), vec![critic_context, critic], 1),
    ];
    let value = with_value.then(|| Network::new(value, Some(shape(false))));
    (Network::new(policy, Some(shape(true))), value, all)
}

impl Pointer {
    /// Number of the actions.
    pub(super) fn outputs(&self) -> usize {
        self.on_none + self.rows * self.on_each
    }

    /// Tables of a block of a minibatch of up to so many: blocks are of one size.
    pub(crate) fn block(&self, tables: usize) -> usize {
        let rows = if self.beside > 0 { POOLED_ROWS } else { BLOCK_ROWS };
        let most = (rows / (self.tables * self.rows)).clamp(GROUP, BLOCK);
        tables.div_ceil(tables.div_ceil(most)).next_multiple_of(GROUP)
    }

    /// No tables yet, whose rows are of its width; none where rows are not alike in several tables.
    pub(crate) fn tables(&self) -> Option<Tables> {
        (self.beside == 0).then(|| Tables::new(self.width))
    }

    /// [`Pointer::tables`] that are side by side in `obs`.
    pub(crate) fn tables_of(&self, obs: &[f32]) -> Option<Tables> {
        let mut tables = self.tables()?;
        tables.set(obs);
        Some(tables)
    }

    /// Place of a table's pooled features among the inputs of the context.
    fn place(&self, table: usize) -> usize {
        let (row, table) = (table / self.tables, table % self.tables);
        row * stride(self.context) + table * (self.beside + 2 * FEATURES) + self.beside
    }

    pub(super) fn pass(&self, tables: usize, learns: bool) -> TablePass {
        let row = stride(self.outputs());
        let outputs = |is_there: bool| Aligned::zeros(if is_there { tables * row } else { 0 });
        TablePass {
            seen: vec![],
            block: 0,
            runs: vec![],
            starts: vec![],
            greatest: vec![0; tables * self.tables * FEATURES],
            pooled: vec![0.0; if learns { tables * self.tables * self.rows * FEATURES } else { 0 }],
            outputs: outputs(self.is_policy),
            slopes: outputs(self.is_policy && learns),
            row,
        }
    }

    /// See [`Network::gather`].
    pub(super) fn gather(&self, tables: &Tables, rows: impl Iterator<Item = usize>, pass: &mut NetworkPass) {
        let NetworkPass { parts, counts, tables: memory } = pass;
        let TablePass { seen, block, runs, starts, .. } = memory.as_mut().expect("it is of tables");
        seen.resize(tables.is_there.len().max(seen.len()), (0, 0));
        *block += 1;
        runs.clear();
        starts.clear();
        let (mut places, apart) = (0, stride(self.width));
        for table in rows {
            starts.push(runs.len());
            let mut before = None;
            for &id in &tables.ids[table * self.rows..][..self.rows] {
                if before == Some(id) {
                    runs.last_mut().expect("it follows one").count += 1;
                    continue;
                }
                before = Some(id);
                let seen = &mut seen[id as usize];
                if seen.0 != *block {
                    *seen = (*block, places as u32);
                    let row = &tables.distinct[id as usize * self.width..][..self.width];
                    parts[ROWS].inputs[places * apart..][..self.width].copy_from_slice(row);
                    places += 1;
                }
                runs.push(Run { row: seen.1, count: 1, is_there: tables.is_there[id as usize] });
            }
        }
        counts[ROWS] = places;
        counts[CONTEXT] = starts.len();
        if self.is_policy {
            counts[ON_ROW] = runs.len();
        }
        starts.push(runs.len());
    }

    /// See [`Network::forward`].
    pub(super) fn forward(&self, network: &Network, parameters: &[f32], count: usize, pass: &mut NetworkPass) {
        network.forward_part(ROWS, parameters, pass);
        {
            let NetworkPass { parts, tables, .. } = &mut *pass;
            let tables = tables.as_mut().expect("it is of tables");
            let [of_rows, of_context, ..] = &mut parts[..] else { unreachable!("it has these parts") };
            let (features, _) = of_rows.layer(LAST);
            for table in 0..count * self.tables {
                let runs = &tables.runs[tables.starts[table]..tables.starts[table + 1]];
                let to = &mut of_context.inputs[self.place(table)..][..2 * FEATURES];
                pool(features, runs, to, &mut tables.greatest[table * FEATURES..][..FEATURES]);
            }
        }
        network.forward_part(CONTEXT, parameters, pass);
        if !self.is_policy {
            return;
        }
        {
            let NetworkPass { parts, tables, .. } = &mut *pass;
            let tables = tables.as_ref().expect("it is of tables");
            let (of_rows, of_context, on_row) = self.parts(parts);
            let ((rows, _), (context, _)) = (of_rows.layer(LAST + 1), of_context.layer(self.depth - 1));
            for table in 0..count {
                let context = &context[table * self.context_row()..];
                let to = &mut on_row.inputs[tables.starts[table] * FEATURES..];
                point(rows, context, tables.of(table), to);
            }
            activate(self.activation == Activation::Tanh, &mut on_row.inputs[..tables.runs.len() * FEATURES]);
        }
        network.forward_part(ON_ROW, parameters, pass);
        let NetworkPass { parts, tables, .. } = pass;
        let tables = tables.as_mut().expect("it is of tables");
        let (_, of_context, on_row) = self.parts(parts);
        let ((context, _), (logits, _)) = (of_context.layer(self.depth - 1), on_row.layer(0));
        let apart = stride(self.on_each);
        for (table, to) in tables.outputs.chunks_exact_mut(tables.row).take(count).enumerate() {
            let (to, mut rest) = to.split_at_mut(self.on_none);
            to.copy_from_slice(&context[table * self.context_row() + FEATURES..][..self.on_none]);
            for run in tables.starts[table]..tables.starts[table + 1] {
                for _ in 0..tables.runs[run].count {
                    let (to, others) = rest.split_at_mut(self.on_each);
                    to.copy_from_slice(&logits[run * apart..][..self.on_each]);
                    rest = others;
                }
            }
        }
    }

    /// See [`Network::backward`].
    pub(super) fn backward(&self, network: &Network, pass: &mut NetworkPass, transposed: &[Aligned]) {
        if self.is_policy {
            self.back_from_outputs(network, pass, transposed);
        }
        network.back_part(CONTEXT, 0..self.depth, pass, transposed);
        if self.is_policy {
            network.back_part(ROWS, LAST + 1..LAST + 2, pass, transposed);
        }
        let NetworkPass { parts, counts, tables } = &mut *pass;
        let TablePass { runs, starts, greatest, pooled, .. } = tables.as_mut().expect("it is of tables");
        let pooled = &mut pooled[..counts[ROWS] * FEATURES];
        pooled.fill(0.0);
        for table in 0..counts[CONTEXT] * self.tables {
            let slopes = &parts[CONTEXT].input_slopes[self.place(table)..][..2 * FEATURES];
            let runs = &runs[starts[table]..starts[table + 1]];
            pool_back(slopes, runs, &greatest[table * FEATURES..][..FEATURES], pooled);
        }
        let (features, slopes) = parts[ROWS].layer(LAST);
        if !self.is_policy {
            slopes[..pooled.len()].fill(0.0);
        }
        add_derived(self.activation == Activation::Tanh, pooled, features, slopes);
        network.back_part(ROWS, 1..LAST + 1, pass, transposed);
    }

    /// The gradients of what the pointer adds up, and of logits of actions on nothing, from those of all logits.
    fn back_from_outputs(&self, network: &Network, pass: &mut NetworkPass, transposed: &[Aligned]) {
        {
            let NetworkPass { parts, counts, tables } = &mut *pass;
            let tables = tables.as_ref().expect("it is of tables");
            let (_, slopes) = parts[ON_ROW].layer(0);
            let apart = stride(self.on_each);
            for (table, from) in tables.slopes.chunks_exact(tables.row).take(counts[CONTEXT]).enumerate() {
                let mut of_rows = from[self.on_none..].chunks_exact(self.on_each);
                for run in tables.starts[table]..tables.starts[table + 1] {
                    let to = &mut slopes[run * apart..][..self.on_each];
                    to.fill(0.0);
                    for from in of_rows.by_ref().take(tables.runs[run].count as usize) {
                        to.iter_mut().zip(from).for_each(|(to, x)| *to += x);
                    }
                }
            }
        }
        network.back_part(ON_ROW, 0..1, pass, transposed);
        let NetworkPass { parts, counts, tables } = pass;
        let tables = tables.as_ref().expect("it is of tables");
        let (of_rows, of_context, on_row) = self.parts(parts);
        let slopes = &mut on_row.input_slopes[..counts[ON_ROW] * FEATURES];
        derive_from(self.activation == Activation::Tanh, &on_row.inputs, slopes);
        let ((_, rows), (_, context)) = (of_rows.layer(LAST + 1), of_context.layer(self.depth - 1));
        rows[..counts[ROWS] * FEATURES].fill(0.0);
        let each = context.chunks_exact_mut(self.context_row()).zip(tables.slopes.chunks_exact(tables.row));
        for (table, (context, outputs)) in each.take(counts[CONTEXT]).enumerate() {
            context[FEATURES..][..self.on_none].copy_from_slice(&outputs[..self.on_none]);
            point_back(&slopes[tables.starts[table] * FEATURES..], tables.of(table), rows, context);
        }
    }

    /// Distance between rows of what comes of the context of a policy.
    fn context_row(&self) -> usize {
        stride(FEATURES + self.on_none)
    }

    /// The passes of a policy's parts.
    fn parts<'a>(&self, parts: &'a mut [Pass]) -> (&'a mut Pass, &'a mut Pass, &'a mut Pass) {
        let [of_rows, of_context, on_row] = parts else { unreachable!("a policy has three") };
        (of_rows, of_context, on_row)
    }
}

/// The numbers of row number `row` of rows of features.
#[inline(always)]
fn features_of(rows: &[f32], row: usize) -> &[f32; FEATURES] {
    rows[row * FEATURES..].first_chunk().expect("a row")
}

/// [`features_of`] to change.
#[inline(always)]
fn features_mut(rows: &mut [f32], row: usize) -> &mut [f32; FEATURES] {
    rows[row * FEATURES..].first_chunk_mut().expect("a row")
}

widest! {
    /// Adds up what rows of a table and its context, the first features of it, give to the pointer.
    fn point(rows: &[f32], context: &[f32], runs: &[Run], to: &mut [f32]) {
        let context = features_of(context, 0);
        for (i, run) in runs.iter().enumerate() {
            let (row, to) = (features_of(rows, run.row as usize), features_mut(to, i));
            (0..FEATURES).for_each(|k| to[k] = row[k] + context[k]);
        }
    }
}

widest! {
    /// Adds the gradients of sums of [`point`] to those of rows, and writes that of the context.
    fn point_back(slopes: &[f32], runs: &[Run], rows: &mut [f32], context: &mut [f32]) {
        let mut sums = [0.0; FEATURES];
        for (i, run) in runs.iter().enumerate() {
            let (slopes, row) = (features_of(slopes, i), features_mut(rows, run.row as usize));
            for k in 0..FEATURES {
                row[k] += slopes[k];
                sums[k] += slopes[k];
            }
        }
        *features_mut(context, 0) = sums;
    }
}

widest! {
    /// Writes the maximum and the mean of features over the rows of a table that are not empty, zeros if all are, and the
    /// rows that have the maximum.
    fn pool(features: &[f32], runs: &[Run], to: &mut [f32], greatest: &mut [u32]) {
        let (mut most, mut sums, mut places, mut total) = ([f32::NEG_INFINITY; FEATURES], [0.0_f32; FEATURES], [0_u32; FEATURES], 0);
        for run in runs.iter().filter(|run| run.is_there) {
            let row = features_of(features, run.row as usize);
            let count = run.count as f32;
            for k in 0..FEATURES {
                let is_more = row[k] > most[k];
                most[k] = if is_more { row[k] } else { most[k] };
                places[k] = if is_more { run.row } else { places[k] };
                sums[k] = row[k].mul_add(count, sums[k]);
            }
            total += run.count;
        }
        let share = if total == 0 { 0.0 } else { 1.0 / total as f32 };
        for k in 0..FEATURES {
            to[k] = if total == 0 { 0.0 } else { most[k] };
            to[FEATURES + k] = sums[k] * share;
            greatest[k] = places[k];
        }
    }
}

widest! {
    /// Adds the gradient of the pooled features of a table to those of its rows' features.
    fn pool_back(slopes: &[f32], runs: &[Run], greatest: &[u32], pooled: &mut [f32]) {
        let total: u32 = runs.iter().filter(|run| run.is_there).map(|run| run.count).sum();
        if total == 0 {
            return;
        }
        let (of_most, of_mean) = slopes.split_at(FEATURES);
        for run in runs.iter().filter(|run| run.is_there) {
            let share = run.count as f32 / total as f32;
            let row = features_mut(pooled, run.row as usize);
            row.iter_mut().zip(of_mean).for_each(|(row, x)| *row = x.mul_add(share, *row));
        }
        for (k, (&row, x)) in greatest.iter().zip(of_most).enumerate() {
            pooled[row as usize * FEATURES + k] += x;
        }
    }
}

widest! {
    /// Adds gradients of outputs of tanh or ReLU to those of their inputs.
    fn add_derived(with_tanh: bool, from: &[f32], outputs: &[f32], slopes: &mut [f32]) {
        for ((slope, x), &y) in slopes.iter_mut().zip(from).zip(outputs) {
            *slope += x * derivative(with_tanh, y);
        }
    }
}

widest! {
    /// Turns gradients of outputs of tanh or ReLU into those of their inputs.
    fn derive_from(with_tanh: bool, outputs: &[f32], slopes: &mut [f32]) {
        slopes.iter_mut().zip(outputs).for_each(|(slope, &y)| *slope *= derivative(with_tanh, y));
    }
}

/// The derivative of tanh or ReLU where it is y.
#[inline(always)]
fn derivative(with_tanh: bool, y: f32) -> f32 {
    match with_tanh {
        true => (-y).mul_add(y, 1.0),
        false if y > 0.0 => 1.0,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn distinct_rows_make_the_tables(
            width in 1_usize..4,
            numbers in prop::collection::vec(prop_oneof![Just(0.0_f32), Just(-0.0), Just(1.0), Just(f32::NAN)], 0..200),
        ) {
            let obs = &numbers[..numbers.len() / width * width];
            let mut tables = Tables::new(width);
            for _ in 0..2 {
                tables.set(obs);
                let row = |id: u32| &tables.distinct[id as usize * width..][..width];
                let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&tables.ids.iter().flat_map(|&id| row(id).to_vec()).collect::<Vec<_>>()), bits(obs));
                let distinct: std::collections::HashSet<_> = obs.chunks(width).map(bits).collect();
                prop_assert_eq!(distinct.len(), tables.is_there.len());
                for (id, &is_there) in tables.is_there.iter().enumerate() {
                    prop_assert_eq!(is_there, row(id as u32).iter().any(|&x| x != 0.0));
                }
            }
        }
    }

    #[test]
    fn blocks_are_of_one_size() {
        let shape = |rows| Pointer {
            rows,
            width: 1,
            tables: 1,
            beside: 0,
            context: 2 * FEATURES,
            on_each: 1,
            on_none: 0,
            activation: Activation::Relu,
            is_policy: true,
            depth: 1,
        };
        assert_eq!([1, 32, 512, 513, 1600].map(|tables| shape(16).block(tables)), [32, 32, 512, 288, 416]);
        assert_eq!((shape(1024).block(1600), shape(64).block(1600)), (32, 128));
    }
}
