//! Random sources of replays: recorded decisions, and NumPy's generator that notes its own.

use super::blueprint::Blueprint;
use super::numpy_source::NumpySource;
use super::scenario::Slot;
use super::source::{Chance, Purpose, RandomSource};

/// The recorded decisions of one step. It notes the first draw that does not fit them.
#[derive(Default)]
pub(super) struct RecordedSource<'a> {
    purposes: &'a [u8],
    values: &'a [u8],
    next: usize,
    complaint: Option<String>,
}

impl<'a> RecordedSource<'a> {
    /// The two slices are of the same length.
    pub(super) fn new(purposes: &'a [u8], values: &'a [u8]) -> Self {
        Self { purposes, values, next: 0, complaint: None }
    }

    /// The first thing that did not fit.
    pub(super) fn complaint(&self) -> Option<String> {
        let left = self.purposes.get(self.next).filter(|_| self.complaint.is_none());
        let unused = left.map(|&purpose| format!("the recorded {} was never asked for", Purpose::name(purpose)));
        self.complaint.clone().or(unused)
    }

    fn complain(&mut self, what: String) {
        self.complaint.get_or_insert(what);
    }

    /// The next decision, which is in `first..=last`; `first` if there is none that fits.
    fn take(&mut self, purpose: Purpose, first: usize, last: usize) -> usize {
        let Some((&recorded, &value)) = self.purposes.get(self.next).zip(self.values.get(self.next)) else {
            self.complain(format!("{} is asked for, nothing is recorded", Purpose::name(purpose as u8)));
            return first;
        };
        self.next += 1;
        let value = usize::from(value);
        if recorded != purpose as u8 {
            let [asked, recorded] = [purpose as u8, recorded].map(Purpose::name);
            self.complain(format!("{asked} is asked for, {recorded} is recorded"));
        } else if !(first..=last).contains(&value) {
            let name = Purpose::name(recorded);
            self.complain(format!("{name}: recorded is {value}, possible are {first} to {last}"));
        } else {
            return value;
        }
        first
    }
}

impl RandomSource for RecordedSource<'_> {
    fn network(&mut self) -> Blueprint {
        Blueprint::empty()
    }

    fn pick(&mut self, purpose: Purpose, _of: usize, n: usize) -> usize {
        if n == 1 { 0 } else { self.take(purpose, 0, n - 1) }
    }

    fn chance(&mut self, purpose: Purpose, _of: usize, _chance: Chance) -> bool {
        self.take(purpose, 0, 1) == 1
    }

    fn share(&mut self, purpose: Purpose, _of: usize, shares: &[f64]) -> usize {
        self.take(purpose, 0, shares.len() - 1)
    }

    fn reliable(&mut self, _host: Slot, _health: u8) -> bool {
        self.take(Purpose::GreenReliable, 0, 1) == 1
    }

    fn pid(&mut self, _host: Slot, _top: u16) -> u16 {
        self.take(Purpose::Pid, 1, 9) as u16
    }

    fn deception(&mut self, _agent: usize, _decoys: impl Iterator<Item = bool>) -> bool {
        self.take(Purpose::DeceptionFound, 0, 1) == 1
    }
}

/// NumPy's generator with the decisions of one step.
pub(super) struct NotingSource {
    pub(super) numpy: NumpySource,
    purposes: Vec<u8>,
    values: Vec<u8>,
}

impl NotingSource {
    pub(super) fn new(seed: u64) -> Self {
        Self { numpy: NumpySource::new(seed), purposes: Vec::new(), values: Vec::new() }
    }

    /// Forgets the decisions.
    pub(super) fn clear(&mut self) {
        self.purposes.clear();
        self.values.clear();
    }

    /// The first thing in which the decisions differ from recorded ones.
    pub(super) fn difference(&self, purposes: &[u8], values: &[u8]) -> Option<String> {
        let (expected, got) = (purposes.iter().zip(values), self.purposes.iter().zip(&self.values));
        let count = (values.len() != self.values.len())
            .then(|| format!("decisions: expected {}, got {}", values.len(), self.values.len()));
        let different = expected.zip(got).position(|(expected, got)| expected != got);
        different.map(|i| format!("decision {i}, {}: another one", Purpose::name(purposes[i]))).or(count)
    }

    fn note<T: Copy>(&mut self, purpose: Purpose, value: T, number: impl Fn(T) -> usize) -> T {
        self.purposes.push(purpose as u8);
        self.values.push(number(value) as u8);
        value
    }
}

impl RandomSource for NotingSource {
    fn network(&mut self) -> Blueprint {
        self.numpy.network()
    }

    fn pick(&mut self, purpose: Purpose, of: usize, n: usize) -> usize {
        let picked = self.numpy.pick(purpose, of, n);
        if n > 1 { self.note(purpose, picked, |i| i) } else { picked }
    }

    fn chance(&mut self, purpose: Purpose, of: usize, chance: Chance) -> bool {
        let happens = self.numpy.chance(purpose, of, chance);
        self.note(purpose, happens, usize::from)
    }

    fn share(&mut self, purpose: Purpose, of: usize, shares: &[f64]) -> usize {
        let index = self.numpy.share(purpose, of, shares);
        self.note(purpose, index, |i| i)
    }

    fn reliable(&mut self, host: Slot, health: u8) -> bool {
        let reliable = self.numpy.reliable(host, health);
        self.note(Purpose::GreenReliable, reliable, usize::from)
    }

    fn pid(&mut self, host: Slot, top: u16) -> u16 {
        let distance = self.numpy.pid(host, top);
        self.note(Purpose::Pid, distance, usize::from)
    }

    fn deception(&mut self, agent: usize, decoys: impl Iterator<Item = bool>) -> bool {
        let found = self.numpy.deception(agent, decoys);
        self.note(Purpose::DeceptionFound, found, usize::from)
    }

    fn foresee(&mut self, draws: impl FnOnce(&mut Self)) {
        let (rng, noted) = (self.numpy.start_foreseeing(), self.values.len());
        draws(self);
        self.numpy.end_foreseeing(rng);
        self.purposes.truncate(noted);
        self.values.truncate(noted);
    }

    fn port(&mut self, host: Slot) {
        self.numpy.port(host);
    }

    fn forget_ports(&mut self, host: Slot) {
        self.numpy.forget_ports(host);
    }

    fn unused(&mut self) {
        self.numpy.unused();
    }

    fn shuffle(&mut self, n: usize) {
        self.numpy.shuffle(n);
    }
}
