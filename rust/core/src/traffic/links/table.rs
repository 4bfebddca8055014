//! The states that receivers know of senders.

use serde::{Deserialize, Serialize};

use crate::traffic::vehicles::Vehicles;

/// The content of a message: the state of its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Metres.
    pub x: f64,
    pub y: f64,
    /// m/s.
    pub vx: f64,
    pub vy: f64,
    /// Cosine and sine of the heading.
    pub cos: f64,
    pub sin: f64,
}

impl Message {
    /// The state of a vehicle as it is.
    pub fn of(vehicles: &Vehicles, i: usize) -> Self {
        let [vx, vy] = vehicles.velocity(i);
        Self { x: vehicles.x[i], y: vehicles.y[i], vx, vy, cos: vehicles.cos[i], sin: vehicles.sin[i] }
    }
}

/// The last message of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub message: Message,
    /// Age of information at the end of the period, in periods: 1 if the last message has arrived. Before the first
    /// arrival, the number of messages so far and 1.
    pub age: u32,
    /// False before the first arrival, and when the message has been forgotten.
    pub known: bool,
}

/// The knowledge of each receiver about each sender, receiver after receiver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub(super) entries: Vec<Entry>,
    pub(super) senders: usize,
}

impl Table {
    pub(super) fn clear(&mut self, receivers: usize, senders: usize) {
        self.entries.clear();
        self.entries.resize(receivers * senders, Entry { age: 1, ..Entry::default() });
        self.senders = senders;
    }

    /// The entries of a receiver, one for each sender.
    pub fn of(&self, receiver: usize) -> &[Entry] {
        &self.entries[receiver * self.senders..(receiver + 1) * self.senders]
    }

    /// Forgets the messages of a sender.
    pub(super) fn forget(&mut self, sender: usize) {
        let own = self.entries.iter_mut().skip(sender).step_by(self.senders.max(1));
        own.for_each(|entry| *entry = Entry { age: 1, ..Entry::default() });
    }

    /// Lets what a receiver knows grow older by a period; what is older than `most` periods is forgotten.
    pub(super) fn grow_older(&mut self, receiver: usize, most: u32) {
        for entry in &mut self.entries[receiver * self.senders..(receiver + 1) * self.senders] {
            entry.age = entry.age.saturating_add(1);
            entry.known &= entry.age <= most;
        }
    }

    #[inline]
    pub(super) fn receive(&mut self, receiver: usize, sender: usize, message: Message) {
        self.entries[receiver * self.senders + sender] = Entry { message, age: 1, known: true };
    }
}
