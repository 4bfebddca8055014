//! What a queue has counted, readable at any time by anybody.

use super::layout::{Of, OfLane};
use super::{Order, Queue};
use crate::shm::memory::{Memory, Site};

/// Since the queue was made. Counters are read one after the other while others write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    pub lanes: Vec<LaneStats>,
    /// Records that the consumer has taken.
    pub got: u64,
    /// Records that wait.
    pub depth: u64,
    /// The most that the consumer ever saw waiting in one ring: a lane, or the one for all.
    pub high_water: u64,
    /// Records that a dead producer had begun and not published; in total order the positions that it had taken.
    pub abandoned: u64,
    pub consumer_wait_ns: u64,
    /// Process that consumes.
    pub consumer: Option<u32>,
}

/// Of one lane, all its producers together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// Process that produces.
    pub owner: Option<u32>,
    pub put: u64,
    pub dropped_newest: u64,
    pub dropped_oldest: u64,
    /// How often there was no room.
    pub full_waits: u64,
    pub wait_ns: u64,
    /// Records that wait; 0 in total order, where they have no lane.
    pub depth: u64,
}

impl Stats {
    pub(super) fn of(queue: &Queue) -> Stats {
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        let word = |of| memory.load(layout.word(of), Site::Plain);
        let lanes: Vec<LaneStats> = (0..layout.lanes)
            .map(|lane| {
                let word = |of| memory.load(layout.lane_word(lane, of), Site::Plain);
                LaneStats {
                    owner: queue.owner(lane).map(|process| process.pid()),
                    put: word(OfLane::Put),
                    dropped_newest: word(OfLane::DroppedNewest),
                    dropped_oldest: word(OfLane::DroppedOldest),
                    full_waits: word(OfLane::FullWaits),
                    wait_ns: word(OfLane::WaitNs),
                    depth: if layout.order == Order::Lanes { layout.lane(lane).depth(memory) } else { 0 },
                }
            })
            .collect();
        let depth = queue.depth() as u64;
        let dead = |lane: usize| queue.owner(lane).is_some_and(|process| !process.is_alive());
        // Lanes that nobody has taken over since their producer died.
        let lost: u64 = match layout.order {
            Order::Lanes => {
                let begun = (0..layout.lanes).filter(|&lane| dead(lane)).map(|lane| queue.0.gate.begun(memory, lane));
                begun.fold(0, u64::wrapping_add)
            }
            Order::Total => 0,
        };
        let deepest = lanes.iter().map(|lane| lane.depth).max().unwrap_or(0);
        Stats {
            got: word(Of::Got),
            depth,
            high_water: word(Of::HighWater).max(if layout.order == Order::Lanes { deepest } else { depth }),
            abandoned: word(Of::Abandoned).wrapping_add(lost),
            consumer_wait_ns: word(Of::ConsumerWaitNs),
            consumer: crate::shm::process::Process::from_word(word(Of::Consumer)).map(|process| process.pid()),
            lanes,
        }
    }
}
