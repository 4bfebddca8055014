//! The layout of a queue's memory: the offset of each word and record.
#![deny(missing_docs)]

use super::cursor::Cursor;
use super::gate::Gate;
use super::mpsc_ring::MpscRing;
use super::spsc_ring::SpscRing;
use super::{Options, Order, Policy};
use crate::shm::Error;
use crate::shm::memory::Word;
use crate::shm::segment::{Header, Kind, Users, header_length};

/// Distance between words, bytes: no two share a cache line, nor a pair of lines that are prefetched together.
const LINE: usize = 128;
/// Words reserved for each producer, and as many for the queue itself.
const WORDS_PER_PRODUCER: usize = 16;
const PAGE: usize = 4096;
/// More producers than any machine has use for.
const MAX_PRODUCERS: usize = 4096;

/// The sizes of a queue and the offsets that follow from them. All offsets are functions of the options, so processes
/// that agree on the header agree on the layout.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Bytes of a record, at least 1.
    pub(super) record_size: usize,
    /// Slots of each ring, a power of two of at least 2.
    pub(super) capacity: usize,
    /// Producers at a time, 1 to [`MAX_PRODUCERS`].
    pub(super) max_producers: usize,
    /// The behaviour of producers when there is no room.
    pub(super) policy: Policy,
    /// [`Order::PerProducer`]: one [`SpscRing`] for each producer. [`Order::Total`]: one [`MpscRing`].
    pub(super) order: Order,
    /// Offset of the first word.
    words: usize,
    /// Offset of the sequence numbers of the [`MpscRing`], behind all words.
    sequence: usize,
    /// Offset of the first record, a multiple of the page size, behind all words and sequence numbers.
    pub(super) records: usize,
    /// Bytes in all, a multiple of the page size.
    pub(super) length: usize,
}

/// Words of the whole queue, each [`LINE`] bytes after the one before.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum QueueWord {
    /// The role of the consumer. First, as `Owner` is of a producer's words: all users lie at one distance ([`Users`]).
    Consumer,
    /// The state of the gate.
    State,
    /// The event that the consumer sleeps on.
    ConsumerEvent,
    /// Records taken, counted by the consumer.
    Got,
    /// Time that the consumer has waited, nanoseconds.
    ConsumerWaitNs,
    /// Records that producers announced and never published, because they died.
    Abandoned,
    /// The largest depth of a ring that the consumer has seen.
    HighWater,
    /// `tail` of the [`MpscRing`].
    RingTail,
    /// `head` of its cursor.
    RingHead,
    /// `claim` of its cursor.
    RingClaim,
}

/// Words of one producer, each [`LINE`] bytes after the one before.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum ProducerWord {
    /// The role of the producer.
    Owner,
    /// `tail` of its [`SpscRing`].
    Tail,
    /// `head` of the ring's cursor.
    Head,
    /// `claim` of the ring's cursor.
    Claim,
    /// `void` of its [`SpscRing`].
    Void,
    /// The event that the producer sleeps on.
    Event,
    /// Its intent in the [`MpscRing`].
    Intent,
    /// Its word of the gate: records that it is about to publish.
    Busy,
    /// Records published.
    Put,
    /// New records dropped for want of room.
    DroppedNewest,
    /// Waiting records dropped to make room.
    DroppedOldest,
    /// Number of times that there was no room.
    FullWaits,
    /// Time spent waiting for room, nanoseconds.
    WaitNs,
}

impl Layout {
    /// The layout of a queue with these options. [`Error::Invalid`]: a size is out of range.
    pub(super) fn new(options: &Options) -> Result<Layout, Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if options.record_size == 0 {
            return invalid("records must have at least one byte".into());
        }
        if options.capacity == 0 {
            return invalid("capacity must be at least 1 record, got 0".into());
        }
        if options.max_producers == 0 || options.max_producers > MAX_PRODUCERS {
            return invalid(format!("max_producers must be from 1 to {MAX_PRODUCERS}, got {}", options.max_producers));
        }
        if options.schema.len() > 1 << 20 {
            return invalid("the description of the records is longer than 1 MB".into());
        }
        // A reservation is at most half of the capacity, so it needs two slots.
        let capacity = options.capacity.max(2).checked_next_power_of_two();
        let sizes = capacity.and_then(|capacity| {
            let words = header_length(&options.schema);
            let sequence = words + LINE * WORDS_PER_PRODUCER * (1 + options.max_producers);
            let (marks, rings) = match options.order {
                Order::PerProducer => (0, options.max_producers),
                Order::Total => (capacity, 1),
            };
            let records = sequence.checked_add(marks.checked_mul(8)?)?.checked_next_multiple_of(PAGE)?;
            let bytes = rings.checked_mul(capacity)?.checked_mul(options.record_size)?;
            let length = records.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
            (length <= isize::MAX as usize).then_some((capacity, words, sequence, records, length))
        });
        let Some((capacity, words, sequence, records, length)) = sizes else {
            return invalid(format!(
                "{} records of {} bytes for {} producers take more memory than there are addresses: choose a smaller capacity",
                options.capacity, options.record_size, options.max_producers
            ));
        };
        let Options { record_size, max_producers, policy, order, .. } = *options;
        Ok(Layout { record_size, capacity, max_producers, policy, order, words, sequence, records, length })
    }

    /// The header of a segment with this layout.
    pub(super) fn header(&self, schema: &str) -> Header {
        let parameters = [
            self.record_size as u64,
            self.capacity as u64,
            self.max_producers as u64,
            self.policy as u64,
            self.order as u64,
            0,
        ];
        let users = Users {
            first: self.word(QueueWord::Consumer).0 as u64,
            stride: (LINE * WORDS_PER_PRODUCER) as u64,
            count: self.max_producers as u64 + 1,
        };
        Header { kind: Kind::Queue, length: self.length as u64, parameters, users, schema: schema.into() }
    }

    /// The layout that a header describes; None if no queue has such a header.
    pub(super) fn from_header(header: &Header) -> Option<Layout> {
        let [record_size, capacity, max_producers, policy, order, _] = header.parameters;
        let options = Options {
            record_size: record_size.try_into().ok()?,
            schema: header.schema.clone(),
            capacity: capacity.try_into().ok()?,
            max_producers: max_producers.try_into().ok()?,
            policy: Policy::ALL.into_iter().find(|&known| known as u64 == policy)?,
            order: Order::ALL.into_iter().find(|&known| known as u64 == order)?,
            shared: crate::shm::segment::Shared::No,
        };
        let layout = Layout::new(&options).ok()?;
        (layout.length as u64 == header.length && layout.header(&header.schema) == *header).then_some(layout)
    }

    /// A word of the whole queue.
    pub(super) fn word(&self, of: QueueWord) -> Word {
        Word(self.words + LINE * of as usize)
    }

    /// A word of one producer.
    pub(super) fn producer_word(&self, producer: usize, of: ProducerWord) -> Word {
        Word(self.words + LINE * (WORDS_PER_PRODUCER * (1 + producer) + of as usize))
    }

    /// The ring of one producer, with [`Order::PerProducer`].
    pub(super) fn spsc_ring(&self, producer: usize) -> SpscRing {
        SpscRing {
            tail: self.producer_word(producer, ProducerWord::Tail),
            void: self.producer_word(producer, ProducerWord::Void),
            cursor: Cursor {
                head: self.producer_word(producer, ProducerWord::Head),
                claim: self.producer_word(producer, ProducerWord::Claim),
                evicts: self.policy == Policy::DropOldest,
            },
            first_slot: producer * self.capacity,
            capacity: self.capacity as u64,
        }
    }

    /// The ring of all producers, with [`Order::Total`].
    pub(super) fn mpsc_ring(&self) -> MpscRing {
        MpscRing {
            tail: self.word(QueueWord::RingTail),
            cursor: Cursor {
                head: self.word(QueueWord::RingHead),
                claim: self.word(QueueWord::RingClaim),
                evicts: self.policy == Policy::DropOldest,
            },
            sequence: Word(self.sequence),
            capacity: self.capacity as u64,
            intents: (0..self.max_producers)
                .map(|producer| self.producer_word(producer, ProducerWord::Intent))
                .collect(),
        }
    }

    /// The gate of the queue.
    pub(super) fn gate(&self) -> Gate {
        Gate {
            state: self.word(QueueWord::State),
            busy: (0..self.max_producers).map(|producer| self.producer_word(producer, ProducerWord::Busy)).collect(),
        }
    }
}
