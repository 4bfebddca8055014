//! Rounds of work, one barrier each: a leader begins a round, every member does its part of it, and the leader goes on
//! when all have. What they work on lies in the same memory; it is the leader's between rounds and the members' within
//! them.
//!
//! ```text
//! leader                                   member i
//! writes what is to be done
//! round := r            (release)    -->   sees r (acquire), does its part
//! waits until all done are r         <--   done[i] := r (release)
//! ```
//!
//! Who waits looks for a moment, then lets others run between looks, then sleeps on a [`Bell`]; a round takes no system
//! call from the one side while the other does not sleep. The last member that is done rings the leader: each looks at
//! all the others after its own mark, so at least the last one sees that the round is complete.

use std::hint::spin_loop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

use crate::queue::bell::Bell;
use crate::shm::Error;
use crate::shm::memory::{Mapped, Memory, Site, Word};
use crate::shm::process::Process;
use crate::shm::segment::{Header, Kind, Segment, Shared, Users, header_length};

const LINE: usize = 128;
const PAGE: usize = 4096;
/// More than any machine has use for.
const MOST_MEMBERS: usize = 1 << 12;
/// How long one looks without letting others run, where every process has a core of its own.
const SPIN: Duration = Duration::from_micros(20);
/// How long one looks before one sleeps.
const LOOK: Duration = Duration::from_micros(100);
/// Looks between two looks at the clock.
const LOOKS: usize = 32;
/// Who let others run and was kept out for longer than this has too many beside it: the system prefers who wakes up to
/// who only let others run.
const KEPT_OUT: Duration = Duration::from_micros(200);
/// So many waits are then spent asleep from the beginning, before it is tried again.
const CROWDED: u32 = 50;

/// A member's words.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// The last round of which its part is done.
    pub done: Word,
    pub bell: Bell,
}

/// Where the words lie.
#[derive(Clone, Debug)]
pub struct Table {
    pub round: Word,
    pub leader: Bell,
    pub seats: Vec<Seat>,
}

impl Table {
    /// For the leader, when the last round is complete: begins the next one.
    pub fn begin(&self, memory: &impl Memory) {
        let round = memory.load(self.round, Site::Plain).wrapping_add(1);
        memory.store(self.round, round, Site::Begun);
        Bell::after_change(memory);
        for seat in &self.seats {
            seat.bell.ring(memory);
        }
    }

    /// Whether a member has done its part of the round that is on; the leader sees what it wrote then.
    pub fn is_done(&self, memory: &impl Memory, member: usize) -> bool {
        memory.load(self.seats[member].done, Site::DoneSeen) == memory.load(self.round, Site::Plain)
    }

    pub fn is_complete(&self, memory: &impl Memory) -> bool {
        (0..self.seats.len()).all(|member| self.is_done(memory, member))
    }

    /// For a member: the round that is on, if it is not this one; it sees what the leader wrote then.
    pub fn other(&self, memory: &impl Memory, than: u64) -> Option<u64> {
        let round = memory.load(self.round, Site::BegunSeen);
        (round != than).then_some(round)
    }

    /// For a member, or in place of a dead one: its part of this round is done.
    pub fn finish(&self, memory: &impl Memory, member: usize, round: u64) {
        memory.store(self.seats[member].done, round, Site::Done);
        Bell::after_change(memory);
        if self.is_complete(memory) {
            self.leader.ring(memory);
        }
    }
}

/// Rounds in shared memory, with `nbytes` bytes beside them.
pub struct Rounds {
    memory: Mapped,
    table: Table,
    data: usize,
    nbytes: usize,
    is_leader: bool,
    /// Whether there is a core for each process.
    has_cores: bool,
    /// How many of the next waits are to be spent asleep.
    crowded: AtomicU32,
    segment: Segment,
}

struct Layout {
    table: Table,
    /// Where the members' processes are written, one every two lines.
    users: Users,
    data: usize,
    length: usize,
}

fn layout(members: usize, nbytes: usize) -> Option<Layout> {
    let line = |i: usize| header_length("") + LINE * i;
    let seat = |i: usize| Seat { done: Word(line(2 + 2 * i)), bell: Bell(Word(line(3 + 2 * i))) };
    let table = Table { round: Word(line(0)), leader: Bell(Word(line(1))), seats: (0..members).map(seat).collect() };
    let users = Users { first: line(2) as u64 + 8, stride: 2 * LINE as u64, count: members as u64 };
    let data = line(2 + 2 * members).next_multiple_of(PAGE);
    let length = data.checked_add(nbytes)?.checked_next_multiple_of(PAGE)?;
    (length <= isize::MAX as usize).then_some(Layout { table, users, data, length })
}

fn header(members: usize, nbytes: usize, layout: &Layout) -> Header {
    Header {
        kind: Kind::Rounds,
        length: layout.length as u64,
        parameters: [members as u64, nbytes as u64, 0, 0, 0, 0],
        users: layout.users,
        schema: String::new(),
    }
}

impl Rounds {
    /// New ones; who makes them leads.
    pub fn create(members: usize, nbytes: usize) -> Result<Rounds, Error> {
        if !(1..=MOST_MEMBERS).contains(&members) {
            return Err(Error::Invalid(format!("expected 1 to {MOST_MEMBERS} members, got {members}")));
        }
        let Some(layout) = layout(members, nbytes) else {
            return Err(Error::Invalid(format!("expected a number of bytes that memory can hold, got {nbytes}")));
        };
        let segment = Segment::create(&header(members, nbytes, &layout), &Shared::Anonymous)?;
        Ok(Rounds::over(segment, layout, nbytes, true))
    }

    /// To be a member.
    pub fn attach(name: &str) -> Result<Rounds, Error> {
        let (segment, found) = Segment::attach(Kind::Rounds, name)?;
        let size = |i: usize| usize::try_from(found.parameters[i]).ok();
        if let (Some(members @ 1..=MOST_MEMBERS), Some(nbytes)) = (size(0), size(1))
            && let Some(layout) = layout(members, nbytes)
            && header(members, nbytes, &layout) == found
        {
            return Ok(Rounds::over(segment, layout, nbytes, false));
        }
        Err(Error::Foreign(format!("cannot attach to shared memory {name:?}: its header is damaged")))
    }

    fn over(segment: Segment, layout: Layout, nbytes: usize, is_leader: bool) -> Rounds {
        // SAFETY: the segment lives as long as the memory does, in the same struct. Of its bytes only those before the
        // data are touched through it, and those in no other way.
        let memory = unsafe { Mapped::new(segment.base(), layout.data, layout.data, 0) };
        let has_cores = available_parallelism().is_ok_and(|cores| cores.get() > layout.table.seats.len());
        Rounds {
            memory,
            table: layout.table,
            data: layout.data,
            nbytes,
            is_leader,
            has_cores,
            crowded: AtomicU32::new(0),
            segment,
        }
    }

    pub fn name(&self) -> &str {
        self.segment.name().expect("rounds are shared")
    }

    pub fn members(&self) -> usize {
        self.table.seats.len()
    }

    /// The bytes that leader and members work on, aligned to a page. Mapped as long as this lives.
    pub fn data(&self) -> NonNull<u8> {
        // SAFETY: inside of the mapping.
        unsafe { self.segment.base().add(self.data) }
    }

    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    fn check_leader(&self) -> Result<(), Error> {
        if self.is_leader && self.segment.is_own() {
            Ok(())
        } else {
            Err(Error::NotOwner("only the process that made these rounds can lead them"))
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

    /// For the leader, one thread at a time: begins a round.
    pub fn begin(&self) -> Result<(), Error> {
        self.check_leader()?;
        if !self.table.is_complete(&self.memory) {
            return Err(Error::Borrowed("the last round is not complete yet: wait for it"));
        }
        self.table.begin(&self.memory);
        Ok(())
    }

    /// For the leader: blocks until all members are done, at most `timeout`; whether they are.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        self.check_leader()?;
        Ok(self.await_that(self.table.leader, timeout, || self.table.is_complete(&self.memory)))
    }

    /// Whether this member has done its part of the round that is on.
    pub fn is_done(&self, member: usize) -> Result<bool, Error> {
        self.check_member(member)?;
        Ok(self.table.is_done(&self.memory, member))
    }

    /// For the leader: does the part of a member that is dead, so that the round can be complete.
    pub fn give_up(&self, member: usize) -> Result<(), Error> {
        self.check_leader()?;
        self.check_member(member)?;
        self.table.finish(&self.memory, member, self.memory.load(self.table.round, Site::Plain));
        Ok(())
    }

    /// Takes a member's seat, between two rounds; the one that is on, which its part begins after.
    pub fn join(&self, member: usize) -> Result<u64, Error> {
        self.check_member(member)?;
        let Word(seat) = self.table.seats[member].done;
        self.memory.store(Word(seat + 8), Process::own().word(), Site::Plain);
        Ok(self.memory.load(self.table.round, Site::BegunSeen))
    }

    /// For a member: it is done with this round.
    pub fn finish(&self, member: usize, round: u64) {
        self.table.finish(&self.memory, member, round);
    }

    /// For a member that is done with this round: blocks until there is another, at most `timeout`; its number.
    pub fn next(&self, member: usize, round: u64, timeout: Duration) -> Option<u64> {
        let other = || self.table.other(&self.memory, round);
        self.await_that(self.table.seats[member].bell, timeout, || other().is_some()).then(other).flatten()
    }

    fn await_that(&self, bell: Bell, timeout: Duration, is_so: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        let crowded = self.crowded.load(Ordering::Relaxed);
        self.crowded.store(crowded.saturating_sub(1), Ordering::Relaxed);
        loop {
            if (0..LOOKS).any(|_| {
                spin_loop();
                is_so()
            }) {
                return true;
            }
            let passed = start.elapsed();
            if passed >= timeout {
                return false;
            } else if self.has_cores && passed < SPIN {
                continue;
            } else if crowded == 0 && passed < LOOK {
                yield_now();
                if start.elapsed() - passed > KEPT_OUT {
                    self.crowded.store(CROWDED, Ordering::Relaxed);
                }
            } else {
                bell.sleep(&self.memory, timeout - passed, &is_so);
            }
        }
    }

    /// Takes the name away: nobody can attach any more.
    pub fn unlink(&self) {
        self.segment.unlink();
    }
}
