//! A lockstep barrier: a leader starts a round, every member does its part of it, and the leader continues when all
//! have. The data that they work on lie in the same memory; they belong to the leader between rounds and to the members
//! within.
//!
//! ```text
//! leader                                   member i
//! writes the task
//! round := r            (release)    -->   sees r (acquire), does its part
//! waits until all done are r         <--   done[i] := r (release)
//! ```
//!
//! A waiter polls for a moment, then yields its core between polls, then sleeps on an [`Event`]; a round takes no
//! system call as long as the other side does not sleep. The last member that is done wakes the leader: each member
//! reads the words of all others after it has written its own, so at least the last one sees that the round is
//! complete.

use std::hint::spin_loop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

use crate::queue::event::Event;
use crate::shm::Error;
use crate::shm::memory::{Mapped, Memory, Site, Word};
use crate::shm::process::Process;
use crate::shm::segment::{Header, Kind, Segment, Shared, Users, header_length};

const LINE: usize = 128;
const PAGE: usize = 4096;
/// More members than any machine has use for.
const MAX_MEMBERS: usize = 1 << 12;
/// Time that a waiter polls without yielding, where every process has a core of its own.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// Time that a waiter polls before it sleeps.
const YIELD_TIME: Duration = Duration::from_micros(100);
const POLLS_PER_CLOCK_READ: usize = 32;
/// A waiter that yielded its core and was kept from running for longer than this is oversubscribed: the scheduler
/// prefers processes that wake up to processes that only yield.
const DESCHEDULED: Duration = Duration::from_micros(200);
/// Number of waits that an oversubscribed waiter then sleeps through at once, before it tries to poll again.
const OVERSUBSCRIBED_WAITS: u32 = 50;

/// The words of one member.
#[derive(Clone, Copy, Debug)]
pub struct MemberWords {
    /// The last round of which the member's part is done. Written by the member alone, or by the leader in place of a
    /// dead one.
    pub done: Word,
    /// The event that the member sleeps on.
    pub event: Event,
}

/// The words of a barrier.
#[derive(Clone, Debug)]
pub struct BarrierWords {
    /// The number of the present round. Written by the leader alone, when the last round is complete.
    pub round: Word,
    /// The event that the leader sleeps on.
    pub leader: Event,
    pub members: Vec<MemberWords>,
}

impl BarrierWords {
    /// For the leader, when the last round is complete: starts the next one. What it wrote before is visible to
    /// members.
    pub fn start_round(&self, memory: &impl Memory) {
        let round = memory.load(self.round, Site::Plain).wrapping_add(1);
        memory.store(self.round, round, Site::RoundStart);
        Event::fence(memory);
        for member in &self.members {
            member.event.notify(memory);
        }
    }

    /// Returns whether a member has done its part of the present round. Then all that it wrote is visible.
    pub fn is_done(&self, memory: &impl Memory, member: usize) -> bool {
        memory.load(self.members[member].done, Site::DoneSeen) == memory.load(self.round, Site::Plain)
    }

    /// Returns whether all members have done their parts of the present round.
    pub fn is_complete(&self, memory: &impl Memory) -> bool {
        (0..self.members.len()).all(|member| self.is_done(memory, member))
    }

    /// For a member: the present round, if it is not `round`. Then all that the leader wrote is visible.
    pub fn newer_round(&self, memory: &impl Memory, round: u64) -> Option<u64> {
        let newest = memory.load(self.round, Site::RoundSeen);
        (newest != round).then_some(newest)
    }

    /// For a member, or in place of a dead one: marks its part of this round as done.
    pub fn finish(&self, memory: &impl Memory, member: usize, round: u64) {
        memory.store(self.members[member].done, round, Site::Done);
        Event::fence(memory);
        if self.is_complete(memory) {
            self.leader.notify(memory);
        }
    }
}

/// A lockstep barrier in shared memory, with `nbytes` bytes of data beside it.
pub struct LockstepBarrier {
    /// The words; the data behind them are not touched through it.
    memory: Mapped,
    words: BarrierWords,
    /// Offset of the data.
    data: usize,
    nbytes: usize,
    is_leader: bool,
    /// True if there is a core for each process.
    has_cores: bool,
    /// Number of coming waits that sleep at once instead of polling.
    oversubscribed: AtomicU32,
    segment: Segment,
}

struct Layout {
    words: BarrierWords,
    /// The words that hold the members' processes, one every two lines.
    users: Users,
    data: usize,
    length: usize,
}

fn layout(members: usize, nbytes: usize) -> Option<Layout> {
    let line = |i: usize| header_length("") + LINE * i;
    let words_of = |i: usize| MemberWords { done: Word(line(2 + 2 * i)), event: Event(Word(line(3 + 2 * i))) };
    let words = BarrierWords {
        round: Word(line(0)),
        leader: Event(Word(line(1))),
        members: (0..members).map(words_of).collect(),
    };
    let users = Users { first: line(2) as u64 + 8, stride: 2 * LINE as u64, count: members as u64 };
    let data = line(2 + 2 * members).next_multiple_of(PAGE);
    let length = data.checked_add(nbytes)?.checked_next_multiple_of(PAGE)?;
    (length <= isize::MAX as usize).then_some(Layout { words, users, data, length })
}

fn header(members: usize, nbytes: usize, layout: &Layout) -> Header {
    Header {
        kind: Kind::Barrier,
        length: layout.length as u64,
        parameters: [members as u64, nbytes as u64, 0, 0, 0, 0],
        users: layout.users,
        schema: String::new(),
    }
}

impl LockstepBarrier {
    /// Creates a barrier for `members` members; this process leads.
    pub fn create(members: usize, nbytes: usize) -> Result<LockstepBarrier, Error> {
        if !(1..=MAX_MEMBERS).contains(&members) {
            return Err(Error::Invalid(format!("expected 1 to {MAX_MEMBERS} members, got {members}")));
        }
        let Some(layout) = layout(members, nbytes) else {
            return Err(Error::Invalid(format!("expected a number of bytes that memory can hold, got {nbytes}")));
        };
        let segment = Segment::create(&header(members, nbytes, &layout), &Shared::Anonymous)?;
        Ok(LockstepBarrier::over(segment, layout, nbytes, true))
    }

    /// Opens the barrier of this name, to be a member.
    pub fn attach(name: &str) -> Result<LockstepBarrier, Error> {
        let (segment, found) = Segment::attach(Kind::Barrier, name)?;
        let size = |i: usize| usize::try_from(found.parameters[i]).ok();
        if let (Some(members @ 1..=MAX_MEMBERS), Some(nbytes)) = (size(0), size(1))
            && let Some(layout) = layout(members, nbytes)
            && header(members, nbytes, &layout) == found
        {
            return Ok(LockstepBarrier::over(segment, layout, nbytes, false));
        }
        Err(Error::Foreign(format!("cannot attach to shared memory {name:?}: its header is damaged")))
    }

    fn over(segment: Segment, layout: Layout, nbytes: usize, is_leader: bool) -> LockstepBarrier {
        // SAFETY: `LockstepBarrier` keeps the segment as long as the memory. The bytes before the data are touched only
        // through `memory`, the data never.
        let memory = unsafe { Mapped::new(segment.base(), layout.data, layout.data, 0) };
        let has_cores = available_parallelism().is_ok_and(|cores| cores.get() > layout.words.members.len());
        LockstepBarrier {
            memory,
            words: layout.words,
            data: layout.data,
            nbytes,
            is_leader,
            has_cores,
            oversubscribed: AtomicU32::new(0),
            segment,
        }
    }

    pub fn name(&self) -> &str {
        self.segment.name().expect("barriers are shared")
    }

    pub fn members(&self) -> usize {
        self.words.members.len()
    }

    /// The data that leader and members work on, aligned to a page. Mapped as long as this barrier lives.
    pub fn data(&self) -> NonNull<u8> {
        // SAFETY: `layout` puts the data inside of the mapping, and `over` is called only with a segment of that
        // layout.
        unsafe { self.segment.base().add(self.data) }
    }

    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    fn check_leader(&self) -> Result<(), Error> {
        if self.is_leader && self.segment.is_own() {
            Ok(())
        } else {
            Err(Error::NotOwner("only the process that made this barrier can lead it"))
        }
    }

    fn check_member(&self, member: usize) -> Result<(), Error> {
        let members = self.members();
        if member < members {
            Ok(())
        } else {
            Err(Error::Invalid(format!("expected a member from 0 to {}, got {member}", members - 1)))
        }
    }

    /// For the leader, one thread at a time: starts a round. [`Error::Borrowed`]: the last one is not complete.
    pub fn start_round(&self) -> Result<(), Error> {
        self.check_leader()?;
        if !self.words.is_complete(&self.memory) {
            return Err(Error::Borrowed("the last round is not complete yet: wait for it"));
        }
        self.words.start_round(&self.memory);
        Ok(())
    }

    /// For the leader: blocks until all members are done, at most `timeout`; returns whether they are.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        self.check_leader()?;
        Ok(self.wait_until(self.words.leader, timeout, || self.words.is_complete(&self.memory)))
    }

    /// Returns whether this member has done its part of the present round.
    pub fn is_done(&self, member: usize) -> Result<bool, Error> {
        self.check_member(member)?;
        Ok(self.words.is_done(&self.memory, member))
    }

    /// For the leader: marks the part of a dead member as done, so that the round can become complete.
    pub fn mark_dead(&self, member: usize) -> Result<(), Error> {
        self.check_leader()?;
        self.check_member(member)?;
        self.words.finish(&self.memory, member, self.memory.load(self.words.round, Site::Plain));
        Ok(())
    }

    /// Makes this process a member, between two rounds. Returns the present round: the member's part begins with the
    /// next.
    pub fn join(&self, member: usize) -> Result<u64, Error> {
        self.check_member(member)?;
        let Word(done) = self.words.members[member].done;
        self.memory.store(Word(done + 8), Process::own().word(), Site::Plain);
        Ok(self.memory.load(self.words.round, Site::RoundSeen))
    }

    /// For a member: marks its part of this round as done.
    pub fn finish(&self, member: usize, round: u64) {
        self.words.finish(&self.memory, member, round);
    }

    /// For a member that is done with `round`: blocks until there is another, at most `timeout`. Returns its number.
    pub fn next(&self, member: usize, round: u64, timeout: Duration) -> Option<u64> {
        let newer = || self.words.newer_round(&self.memory, round);
        self.wait_until(self.words.members[member].event, timeout, || newer().is_some()).then(newer).flatten()
    }

    /// Waits on `event` until `is_ready`, at most `timeout`; returns whether it is.
    fn wait_until(&self, event: Event, timeout: Duration, is_ready: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        let oversubscribed = self.oversubscribed.load(Ordering::Relaxed);
        self.oversubscribed.store(oversubscribed.saturating_sub(1), Ordering::Relaxed);
        loop {
            if (0..POLLS_PER_CLOCK_READ).any(|_| {
                spin_loop();
                is_ready()
            }) {
                return true;
            }
            let passed = start.elapsed();
            if passed >= timeout {
                return false;
            } else if self.has_cores && passed < SPIN_TIME {
                continue;
            } else if oversubscribed == 0 && passed < YIELD_TIME {
                yield_now();
                if start.elapsed() - passed > DESCHEDULED {
                    self.oversubscribed.store(OVERSUBSCRIBED_WAITS, Ordering::Relaxed);
                }
            } else {
                event.wait(&self.memory, timeout - passed, &is_ready);
            }
        }
    }

    /// Removes the name: no process can attach any more.
    pub fn unlink(&self) {
        self.segment.unlink();
    }
}
