//! Where each word and record of a queue lies.

use super::cursor::Cursor;
use super::gate::Gate;
use super::lane::Lane;
use super::ring::Ring;
use super::{Options, Order, Policy};
use crate::shm::Error;
use crate::shm::memory::Word;
use crate::shm::segment::{Header, Kind, Users, header_length};

/// Words lie this far apart, so that no two share a cache line or a pair of lines that are fetched together.
const LINE: usize = 128;
/// Of each lane, and as many of the queue.
const WORDS_OF_LANE: usize = 16;
const PAGE: usize = 4096;
/// More lanes than any machine has use for.
const MOST_LANES: usize = 4096;

/// Words and records of a queue, by their offsets. `lane(i)` words belong to the i-th producer, in both orders.
#[derive(Clone, Debug)]
pub struct Layout {
    pub record_size: usize,
    pub capacity: usize,
    pub lanes: usize,
    pub policy: Policy,
    pub order: Order,
    words: usize,
    sequence: usize,
    pub records: usize,
    pub length: usize,
}

/// Words of the whole queue.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Of {
    /// First, as a lane's owner is: who sweeps finds all users at one distance.
    Consumer,
    State,
    ConsumerBell,
    Got,
    ConsumerWaitNs,
    Abandoned,
    HighWater,
    RingTail,
    RingHead,
    RingClaim,
}

/// Words of a lane.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum OfLane {
    Owner,
    Tail,
    Head,
    Claim,
    Void,
    Bell,
    Intent,
    /// Records that the producer is about to publish.
    Busy,
    Put,
    DroppedNewest,
    DroppedOldest,
    FullWaits,
    WaitNs,
}

impl Layout {
    /// Raises [`Error::Invalid`] for sizes that make no sense.
    pub fn new(options: &Options) -> Result<Layout, Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if options.record_size == 0 {
            return invalid("records must have at least one byte".into());
        }
        if options.capacity == 0 {
            return invalid("capacity must be at least 1 record, got 0".into());
        }
        if options.lanes == 0 || options.lanes > MOST_LANES {
            return invalid(format!("lanes must be from 1 to {MOST_LANES}, got {}", options.lanes));
        }
        if options.schema.len() > 1 << 20 {
            return invalid("the description of the records is longer than 1 MB".into());
        }
        // Room for a reservation side by side needs two slots.
        let capacity = options.capacity.max(2).checked_next_power_of_two();
        let sizes = capacity.and_then(|capacity| {
            let words = header_length(&options.schema);
            let sequence = words + LINE * WORDS_OF_LANE * (1 + options.lanes);
            let (marks, rings) = match options.order {
                Order::Lanes => (0, options.lanes),
                Order::Total => (capacity, 1),
            };
            let records = sequence.checked_add(marks.checked_mul(8)?)?.checked_next_multiple_of(PAGE)?;
            let bytes = rings.checked_mul(capacity)?.checked_mul(options.record_size)?;
            let length = records.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
            (length <= isize::MAX as usize).then_some((capacity, words, sequence, records, length))
        });
        let Some((capacity, words, sequence, records, length)) = sizes else {
            return invalid(format!(
                "{} records of {} bytes in {} lanes are more than memory has addresses for: choose a smaller capacity",
                options.capacity, options.record_size, options.lanes
            ));
        };
        let Options { record_size, lanes, policy, order, .. } = *options;
        Ok(Layout { record_size, capacity, lanes, policy, order, words, sequence, records, length })
    }

    pub fn header(&self, schema: &str) -> Header {
        let parameters = [
            self.record_size as u64,
            self.capacity as u64,
            self.lanes as u64,
            self.policy as u64,
            self.order as u64,
            0,
        ];
        let users = Users {
            first: self.word(Of::Consumer).0 as u64,
            stride: (LINE * WORDS_OF_LANE) as u64,
            count: self.lanes as u64 + 1,
        };
        Header { kind: Kind::Queue, length: self.length as u64, parameters, users, schema: schema.into() }
    }

    /// The layout that [`Layout::header`] describes; None if no queue is like that.
    pub fn from_header(header: &Header) -> Option<Layout> {
        let [record_size, capacity, lanes, policy, order, _] = header.parameters;
        let options = Options {
            record_size: record_size.try_into().ok()?,
            schema: header.schema.clone(),
            capacity: capacity.try_into().ok()?,
            lanes: lanes.try_into().ok()?,
            policy: Policy::ALL.into_iter().find(|&known| known as u64 == policy)?,
            order: Order::ALL.into_iter().find(|&known| known as u64 == order)?,
            shared: crate::shm::segment::Shared::No,
        };
        let layout = Layout::new(&options).ok()?;
        (layout.length as u64 == header.length && layout.header(&header.schema) == *header).then_some(layout)
    }

    pub fn word(&self, of: Of) -> Word {
        Word(self.words + LINE * of as usize)
    }

    pub fn lane_word(&self, lane: usize, of: OfLane) -> Word {
        Word(self.words + LINE * (WORDS_OF_LANE * (1 + lane) + of as usize))
    }

    pub fn lane(&self, lane: usize) -> Lane {
        Lane {
            tail: self.lane_word(lane, OfLane::Tail),
            void: self.lane_word(lane, OfLane::Void),
            cursor: Cursor {
                head: self.lane_word(lane, OfLane::Head),
                claim: self.lane_word(lane, OfLane::Claim),
                evicts: self.policy == Policy::DropOldest,
            },
            first_slot: lane * self.capacity,
            capacity: self.capacity as u64,
        }
    }

    pub fn ring(&self) -> Ring {
        Ring {
            tail: self.word(Of::RingTail),
            cursor: Cursor {
                head: self.word(Of::RingHead),
                claim: self.word(Of::RingClaim),
                evicts: self.policy == Policy::DropOldest,
            },
            sequence: Word(self.sequence),
            capacity: self.capacity as u64,
            intents: (0..self.lanes).map(|lane| self.lane_word(lane, OfLane::Intent)).collect(),
        }
    }

    pub fn gate(&self) -> Gate {
        Gate {
            state: self.word(Of::State),
            busy: (0..self.lanes).map(|lane| self.lane_word(lane, OfLane::Busy)).collect(),
        }
    }
}
