//! The counters of a queue, readable at any time from any process.
#![deny(missing_docs)]

use super::layout::{ProducerWord, QueueWord};
use super::{Order, Queue};
use crate::shm::memory::{Memory, Site};
use crate::shm::process::Process;

/// Counters since the queue was made. They are read one after the other while others write them, so they may differ
/// from each other by what happened in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Counters of each producer index.
    pub producers: Vec<ProducerStats>,
    /// Records that consumers have taken.
    pub got: u64,
    /// Records that wait.
    pub depth: u64,
    /// The largest number of records that a consumer ever saw waiting in one ring.
    pub high_water: u64,
    /// Records that dead producers had announced and not published; in total order, the positions that they had taken.
    pub abandoned: u64,
    /// Time that consumers have waited for records, nanoseconds.
    pub consumer_wait_ns: u64,
    /// The process that has the consumer's role.
    pub consumer: Option<u32>,
}

/// Counters of one producer index, over all producers that ever had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerStats {
    /// The process that has this index now, or died having it.
    pub owner: Option<u32>,
    /// Records published.
    pub put: u64,
    /// New records dropped for want of room.
    pub dropped_newest: u64,
    /// Waiting records dropped to make room.
    pub dropped_oldest: u64,
    /// Number of times that there was no room.
    pub full_waits: u64,
    /// Time spent waiting for room, nanoseconds.
    pub wait_ns: u64,
    /// Records that wait; 0 in total order, where all producers share one ring.
    pub depth: u64,
}

impl Stats {
    pub(super) fn of(queue: &Queue) -> Stats {
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        let word = |of| memory.load(layout.word(of), Site::Plain);
        let producers: Vec<ProducerStats> = (0..layout.max_producers)
            .map(|producer| {
                let word = |of| memory.load(layout.producer_word(producer, of), Site::Plain);
                ProducerStats {
                    owner: queue.owner(producer).map(|process| process.pid()),
                    put: word(ProducerWord::Put),
                    dropped_newest: word(ProducerWord::DroppedNewest),
                    dropped_oldest: word(ProducerWord::DroppedOldest),
                    full_waits: word(ProducerWord::FullWaits),
                    wait_ns: word(ProducerWord::WaitNs),
                    depth: if layout.order == Order::PerProducer {
                        layout.spsc_ring(producer).depth(memory)
                    } else {
                        0
                    },
                }
            })
            .collect();
        let depth = queue.depth() as u64;
        let dead = |producer: usize| queue.owner(producer).is_some_and(|process| !process.is_alive());
        // Of dead producers that no other has replaced yet: replacing one adds its records to the counter.
        let lost: u64 = match layout.order {
            Order::PerProducer => {
                let pending = (0..layout.max_producers)
                    .filter(|&producer| dead(producer))
                    .map(|producer| queue.0.gate.pending(memory, producer));
                pending.fold(0, u64::wrapping_add)
            }
            Order::Total => 0,
        };
        let deepest = producers.iter().map(|producer| producer.depth).max().unwrap_or(0);
        Stats {
            got: word(QueueWord::Got),
            depth,
            high_water: word(QueueWord::HighWater).max(if layout.order == Order::PerProducer {
                deepest
            } else {
                depth
            }),
            abandoned: word(QueueWord::Abandoned).wrapping_add(lost),
            consumer_wait_ns: word(QueueWord::ConsumerWaitNs),
            consumer: Process::from_word(word(QueueWord::Consumer)).map(|process| process.pid()),
            producers,
        }
    }
}
