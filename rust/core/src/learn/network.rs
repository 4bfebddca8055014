//! A network that learns, made of perceptrons: one alone, or those of a [`Pointer`].

pub(crate) mod pointer;

use std::ops::Range;

use self::pointer::{Pointer, TablePass, Tables};
use super::perceptron::{Copy, Pass, Perceptron, Piece};
use crate::gemm::Start;
use crate::matrix::Aligned;

/// Rows whose losses are added up together; blocks have a multiple of them.
pub(super) const GROUP: usize = 32;

/// Parameters of a part that lie side by side in PyTorch's order; or so many zeros, which it does not have.
#[derive(Clone)]
pub(crate) enum Segment {
    Place(Range<usize>),
    Zeros(usize),
}

/// A perceptron, and where its parameters are.
pub(crate) struct Part {
    perceptron: Perceptron,
    /// Its parameters, one segment after the other.
    segments: Vec<Segment>,
    /// Its place in the vectors of the network.
    vector: Range<usize>,
    /// Rows that it computes for a row of the network at most.
    rows: usize,
}

/// Parameters, gradients and moments of a network are vectors of [`Network::room`] numbers, those of one part after the
/// other.
pub(crate) struct Network {
    parts: Vec<Part>,
    pointer: Option<Pointer>,
}

/// Memory for the passes of some rows.
pub(crate) struct NetworkPass {
    pub(crate) parts: Vec<Pass>,
    /// Rows that each part computes.
    pub(crate) counts: Vec<usize>,
    pub(crate) tables: Option<TablePass>,
}

/// The place of a part among those of a network, and something of it.
pub(crate) type Of<T> = (usize, T);

impl Network {
    /// A perceptron whose parameters start at place `first`.
    pub(crate) fn perceptron(perceptron: Perceptron, first: usize) -> Self {
        let place = first..first + perceptron.len();
        Self::new(vec![(perceptron, vec![Segment::Place(place)], 1)], None)
    }

    /// `parts`: perceptrons with their segments, and rows that they compute for one of the network.
    pub(crate) fn new(parts: Vec<(Perceptron, Vec<Segment>, usize)>, pointer: Option<Pointer>) -> Self {
        let mut room = 0;
        let parts = parts.into_iter().map(|(perceptron, segments, rows)| {
            let vector = room..room + perceptron.room();
            room = vector.end;
            Part { perceptron, segments, vector, rows }
        });
        Self { parts: parts.collect(), pointer }
    }

    /// The network of tables, if it is one.
    pub(crate) fn pointer(&self) -> Option<&Pointer> {
        self.pointer.as_ref()
    }

    pub(crate) fn room(&self) -> usize {
        self.parts.last().expect("there is one").vector.end
    }

    /// Number of outputs of a network of tables, the policy where there is one.
    pub(crate) fn outputs(&self) -> usize {
        self.pointer.as_ref().expect("it is of tables").outputs()
    }

    /// Numbers that a pass keeps of each row.
    pub(crate) fn kept(&self) -> usize {
        self.parts.iter().map(|part| part.rows * part.perceptron.kept()).sum()
    }

    /// Multiplications in a pass of one row.
    pub(crate) fn work(&self) -> usize {
        self.parts.iter().map(|part| part.rows * part.perceptron.work()).sum()
    }

    /// Reads the network's parameters out of all, which are as PyTorch has them.
    pub(crate) fn read(&self, all: &[f32], vector: &mut [f32]) {
        let mut flat = vec![];
        for part in &self.parts {
            flat.clear();
            for segment in &part.segments {
                match segment {
                    Segment::Place(place) => flat.extend_from_slice(&all[place.clone()]),
                    Segment::Zeros(count) => flat.resize(flat.len() + count, 0.0),
                }
            }
            part.perceptron.read(&flat, &mut vector[part.vector.clone()]);
        }
    }

    /// Writes what [`Network::read`] reads.
    pub(crate) fn write(&self, vector: &[f32], all: &mut [f32]) {
        for part in &self.parts {
            let mut flat = vec![0.0; part.perceptron.len()];
            part.perceptron.write(&vector[part.vector.clone()], &mut flat);
            let mut rest = &flat[..];
            for segment in &part.segments {
                match segment {
                    Segment::Place(place) => {
                        let (numbers, after) = rest.split_at(place.len());
                        all[place.clone()].copy_from_slice(numbers);
                        rest = after;
                    }
                    Segment::Zeros(count) => rest = &rest[*count..],
                }
            }
        }
    }

    /// Memory for passes of up to so many rows; without `learns` for those forward alone.
    pub(crate) fn pass(&self, rows: usize, learns: bool) -> NetworkPass {
        NetworkPass {
            parts: self.parts.iter().map(|part| part.pass(rows, learns)).collect(),
            counts: vec![0; self.parts.len()],
            tables: self.pointer.as_ref().map(|pointer| pointer.pass(rows, learns)),
        }
    }

    /// See [`Perceptron::rounded`]; a network of tables is in f32.
    pub(crate) fn rounded(&self) -> Aligned {
        match &self.parts[..] {
            [part] => part.perceptron.rounded(),
            _ => Aligned::zeros(0),
        }
    }

    /// See [`Perceptron::transposed`].
    pub(crate) fn transposed(&self) -> Vec<Aligned> {
        self.parts.iter().flat_map(|part| part.perceptron.transposed()).collect()
    }

    /// See [`Perceptron::copies`].
    pub(crate) fn copies<'a>(&self, mut rounded: &'a mut [f32], transposed: &'a mut [Aligned]) -> Vec<Of<Copy<'a>>> {
        let (mut copies, mut rest) = (vec![], transposed);
        for (index, part) in self.parts.iter().enumerate() {
            let (own, others) = rest.split_at_mut(part.perceptron.num_transposed());
            let of_part = part.perceptron.copies(std::mem::take(&mut rounded), own);
            copies.extend(of_part.into_iter().map(|copy| (index, copy)));
            rest = others;
        }
        copies
    }

    /// Brings a part of [`Network::copies`] up to date.
    pub(crate) fn copy(&self, parameters: &[f32], (index, copy): &mut Of<Copy<'_>>) {
        let part = &self.parts[*index];
        part.perceptron.copy(&parameters[part.vector.clone()], copy);
    }

    /// See [`Perceptron::pieces`].
    pub(crate) fn pieces(&self) -> Vec<Of<Piece>> {
        let each = self.parts.iter().enumerate();
        each.flat_map(|(index, part)| part.perceptron.pieces().into_iter().map(move |piece| (index, piece))).collect()
    }

    /// Copies observations of these numbers into the first rows of a pass of a network of tables.
    ///
    /// `tables`: [`Pointer::tables_of`] `obs`.
    pub(crate) fn gather(
        &self,
        obs: &[f32],
        tables: Option<&Tables>,
        rows: impl Iterator<Item = usize>,
        pass: &mut NetworkPass,
    ) {
        let pointer = self.pointer.as_ref().expect("it is of tables");
        match tables {
            Some(tables) => pointer.gather(tables, rows, pass),
            None => pointer.gather_rows(obs, rows, pass),
        }
    }

    /// The outputs of the first rows of a pass.
    pub(crate) fn forward(&self, parameters: &[f32], rows: usize, pass: &mut NetworkPass) {
        if let Some(pointer) = &self.pointer {
            return pointer.forward(self, parameters, rows, pass);
        }
        pass.counts[0] = rows;
        self.forward_part(0, parameters, pass);
    }

    /// Takes the rows of a part through it.
    pub(super) fn forward_part(&self, index: usize, parameters: &[f32], pass: &mut NetworkPass) {
        let part = &self.parts[index];
        part.perceptron.forward(&parameters[part.vector.clone()], pass.counts[index], &mut pass.parts[index]);
    }

    /// See [`Pass::ends`].
    pub(crate) fn ends<'a>(&self, pass: &'a mut NetworkPass) -> (&'a [f32], &'a mut [f32], usize) {
        match &mut pass.tables {
            Some(tables) if self.has_outputs_of_rows() => tables.ends(),
            Some(_) => self.ends_of(1, &mut pass.parts),
            None => self.ends_of(0, &mut pass.parts),
        }
    }

    fn ends_of<'a>(&self, index: usize, passes: &'a mut [Pass]) -> (&'a [f32], &'a mut [f32], usize) {
        passes[index].ends(&self.parts[index].perceptron)
    }

    /// True of a policy of tables, whose outputs are not those of a part.
    fn has_outputs_of_rows(&self) -> bool {
        self.parts.len() > 2
    }

    /// Computes the gradients of the outputs of all layers, after [`Network::forward`]; see [`Perceptron::backward`].
    pub(crate) fn backward(&self, pass: &mut NetworkPass, transposed: &[Aligned]) {
        match &self.pointer {
            Some(pointer) => pointer.backward(self, pass, transposed),
            None => self.parts[0].perceptron.backward(pass.counts[0], &mut pass.parts[0], transposed, true),
        }
    }

    /// [`Perceptron::pass_back`] of layers of a part, the last one first.
    pub(super) fn back_part(&self, index: usize, layers: Range<usize>, pass: &mut NetworkPass, transposed: &[Aligned]) {
        let first: usize = self.parts[..index].iter().map(|part| part.perceptron.num_transposed()).sum();
        let (perceptron, rows) = (&self.parts[index].perceptron, pass.counts[index]);
        for l in layers.rev() {
            perceptron.pass_back(l, rows, &mut pass.parts[index], &transposed[first..]);
        }
    }

    /// See [`Perceptron::add_gradient`].
    pub(crate) fn add_gradient(&self, (index, piece): &Of<Piece>, pass: &NetworkPass, gradient: &mut [f32]) {
        let perceptron = &self.parts[*index].perceptron;
        perceptron.add_gradient(piece, pass.counts[*index], &pass.parts[*index], gradient, Start::Present);
        if let Some(Segment::Zeros(count)) = self.parts[*index].zeros()
            && perceptron.is_last_bias(piece)
        {
            // They stay zeros.
            gradient[..*count].fill(0.0);
        }
    }
}

impl Part {
    fn pass(&self, rows: usize, learns: bool) -> Pass {
        let rows = rows * self.rows;
        if learns { self.perceptron.pass(rows) } else { self.perceptron.pass_forward(rows) }
    }

    /// The segment of zeros, with which the biases of the last layer begin.
    fn zeros(&self) -> Option<&Segment> {
        self.segments.iter().find(|segment| matches!(segment, Segment::Zeros(_)))
    }
}
