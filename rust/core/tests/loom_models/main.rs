//! Every interleaving, and every value that a weak memory may show, of the own code of queue, bulletin and rounds.
//!
//! Each model is run as it is, and once for every memory ordering that it depends on with that one taken away: then
//! it must fail, or the ordering, or the model, would be for nothing.

mod memory;

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrl_core::bulletin::{Pages, Reading};
use fastrl_core::queue::State;
use fastrl_core::queue::bell::Bell;
use fastrl_core::queue::cursor::Cursor;
use fastrl_core::queue::gate::Gate;
use fastrl_core::queue::lane::{Lane, LaneReader, LaneWriter};
use fastrl_core::queue::ring::{Ring, RingReader, RingWriter};
use fastrl_core::queue::role::Role;
use fastrl_core::rounds::{Seat, Table};
use fastrl_core::shm::memory::{Memory, Site, Word};
use loom::sync::Arc;
use loom::thread;
use memory::{Model, RECORD};
use std::time::Duration;

/// Runs a model: whole, then with each of `sites` weakened, where it must fail.
fn check(preemptions: usize, sites: &[Site], model: fn(Option<Site>)) {
    let run = |weakened: Option<Site>| {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        catch_unwind(AssertUnwindSafe(|| builder.check(move || model(weakened))))
    };
    if let Err(failure) = run(None) {
        std::panic::resume_unwind(failure);
    }
    let survivors: Vec<&Site> = sites.iter().filter(|&&site| run(Some(site)).is_ok()).collect();
    assert!(survivors.is_empty(), "nothing depends on the ordering of {survivors:?}");
}

fn words(count: usize) -> Vec<Word> {
    (0..count).map(|i| Word(8 * i)).collect()
}

const TAIL: Word = Word(0);
const VOID: Word = Word(8);
const HEAD: Word = Word(16);
const CLAIM: Word = Word(24);
const BELL: Word = Word(32);
const ROLE: Word = Word(40);
const STATE: Word = Word(48);
const BUSY: [Word; 2] = [Word(56), Word(64)];
const INTENTS: [Word; 3] = [Word(72), Word(80), Word(88)];
const SEQUENCE: Word = Word(96);
const WORDS: usize = 16;

fn cursor(evicts: bool) -> Cursor {
    Cursor { head: HEAD, claim: CLAIM, evicts }
}

fn lane(evicts: bool, capacity: u64) -> Lane {
    Lane { tail: TAIL, void: VOID, cursor: cursor(evicts), first_slot: 0, capacity }
}

fn ring(evicts: bool, producers: usize, capacity: u64) -> Ring {
    Ring { tail: TAIL, cursor: cursor(evicts), sequence: SEQUENCE, capacity, intents: INTENTS[..producers].to_vec() }
}

fn model(weakened: Option<Site>) -> Arc<Model> {
    Arc::new(Model::new(&words(WORDS), 4, weakened))
}

fn bytes(value: u64) -> [u8; RECORD] {
    value.to_ne_bytes()
}

fn take_one(read: impl FnOnce(&mut [MaybeUninit<u8>]) -> u64) -> Option<u64> {
    let mut out = [MaybeUninit::uninit(); RECORD];
    // SAFETY: a record was read.
    (read(&mut out) == 1).then(|| u64::from_ne_bytes(out.map(|byte| unsafe { byte.assume_init() })))
}

#[test]
fn a_lane_hands_on_every_record_in_order() {
    check(3, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = LaneWriter::new(&*shared, lane(false, 2));
            for value in 1..=3 {
                while writer.write(&*shared, &bytes(value), RECORD) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut reader = LaneReader::new(&*memory, lane(false, 2));
        for value in 1..=3 {
            let got = loop {
                match take_one(|out| reader.read(&*memory, out, RECORD)) {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, value);
        }
        producer.join().unwrap();
    });
}

#[test]
fn records_side_by_side_leave_a_gap_that_nobody_reads() {
    check(2, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = LaneWriter::new(&*shared, lane(false, 4));
            assert_eq!(writer.write(&*shared, [bytes(1), bytes(2), bytes(3)].as_flattened(), RECORD), 3);
            let slot = loop {
                match writer.reserve(&*shared, 2) {
                    Some(slot) => break slot,
                    None => thread::yield_now(),
                }
            };
            // SAFETY: these two slots are reserved.
            unsafe { shared.write(slot, [bytes(4), bytes(5)].as_flattened()) };
            writer.commit(&*shared);
        });
        let mut reader = LaneReader::new(&*memory, lane(false, 4));
        for value in 1..=5 {
            let got = loop {
                match take_one(|out| reader.read(&*memory, out, RECORD)) {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, value);
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_lane_that_drops_the_oldest_never_drops_what_is_read() {
    check(3, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = LaneWriter::new(&*shared, lane(true, 2));
            let (mut dropped, mut refused) = (0, 0);
            for value in 1..=4 {
                dropped += writer.evict(&*shared, 1);
                refused += 1 - writer.write(&*shared, &bytes(value), RECORD);
            }
            (dropped, refused)
        });
        let mut reader = LaneReader::new(&*memory, lane(true, 2));
        let mut got = Vec::new();
        for _ in 0..2 {
            got.extend(take_one(|out| reader.read(&*memory, out, RECORD)));
        }
        let (dropped, refused) = producer.join().unwrap();
        while let Some(value) = take_one(|out| reader.read(&*memory, out, RECORD)) {
            got.push(value);
        }
        assert!(got.is_sorted_by(|a, b| a < b), "{got:?}");
        assert_eq!(got.len() as u64 + dropped + refused, 4, "{got:?}");
    });
}

#[test]
fn a_sleeper_is_woken() {
    check(3, &[Site::Sleep, Site::Wake], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = LaneWriter::new(&*shared, lane(false, 2));
            writer.write(&*shared, &bytes(1), RECORD);
            Bell::after_change(&*shared);
            Bell(BELL).ring(&*shared);
        });
        let mut reader = LaneReader::new(&*memory, lane(false, 2));
        while !reader.is_ready(&*memory) {
            Bell(BELL).sleep(&*memory, Duration::MAX, || reader.is_ready(&*memory));
        }
        assert_eq!(take_one(|out| reader.read(&*memory, out, RECORD)), Some(1));
        producer.join().unwrap();
    });
}

#[test]
fn a_lane_changes_hands() {
    check(3, &[Site::HandOver, Site::TakeOver], |weakened| {
        let memory = model(weakened);
        let produce = |memory: Arc<Model>, own: u64| {
            move || {
                while Role(ROLE).take(&*memory, own, |_| true).is_err() {
                    thread::yield_now();
                }
                let mut writer = LaneWriter::new(&*memory, lane(false, 2));
                assert_eq!(writer.write(&*memory, &bytes(own), RECORD), 1);
                Role(ROLE).give(&*memory);
            }
        };
        let other = thread::spawn(produce(memory.clone(), 1));
        produce(memory.clone(), 2)();
        other.join().unwrap();
        let mut reader = LaneReader::new(&*memory, lane(false, 2));
        let got = [(); 2].map(|()| take_one(|out| reader.read(&*memory, out, RECORD)).unwrap());
        assert!(got == [1, 2] || got == [2, 1], "{got:?}");
    });
}

#[test]
fn a_ring_hands_on_every_record_once() {
    check(2, &[Site::Publish, Site::Collect], |weakened| {
        let memory = model(weakened);
        let produce = |number: usize, value: u64| {
            let memory = memory.clone();
            move || RingWriter::new(&*memory, ring(false, 2, 2), number).write(&*memory, &bytes(value), RECORD, 1)
        };
        let other = thread::spawn(produce(0, 10));
        let shared = memory.clone();
        let consumer = thread::spawn(move || {
            let mut reader = RingReader::new(&*shared, ring(false, 2, 2));
            let read = |_| take_one(|out| reader.read(&*shared, out, RECORD, Some(&|_| true)));
            (0..2).filter_map(read).collect::<Vec<u64>>()
        });
        let written = produce(1, 20)() + other.join().unwrap();
        let mut got = consumer.join().unwrap();
        let mut reader = RingReader::new(&*memory, ring(false, 2, 2));
        let read = |_| take_one(|out| reader.read(&*memory, out, RECORD, Some(&|_| false)));
        got.extend((0..2).filter_map(read));
        got.sort_unstable();
        assert_eq!((written, got), (2, vec![10, 20]));
    });
}

#[test]
fn a_slot_of_the_ring_is_used_again() {
    check(3, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = RingWriter::new(&*shared, ring(false, 1, 1), 0);
            for value in 1..=2 {
                while writer.write(&*shared, &bytes(value), RECORD, 1) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut reader = RingReader::new(&*memory, ring(false, 1, 1));
        for value in 1..=2 {
            let got = loop {
                match take_one(|out| reader.read(&*memory, out, RECORD, None)) {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, value);
        }
        producer.join().unwrap();
    });
}

#[test]
fn what_a_dead_producer_left_is_passed_over_and_nothing_else() {
    check(3, &[Site::Take, Site::Taken, Site::Intend, Site::Intent], |weakened| {
        let memory = model(weakened);
        // Producer 0 died between its intent and the taking.
        memory.store(INTENTS[0], 1, Site::Plain);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = RingWriter::new(&*shared, ring(false, 2, 2), 1);
            for value in 1..=2 {
                assert_eq!(writer.write(&*shared, &bytes(value), RECORD, 1), 1);
            }
        });
        let mut reader = RingReader::new(&*memory, ring(false, 2, 2));
        let mut got = Vec::new();
        for _ in 0..2 {
            got.extend(take_one(|out| reader.read(&*memory, out, RECORD, Some(&|number| number == 1))));
        }
        producer.join().unwrap();
        while let Some(value) = take_one(|out| reader.read(&*memory, out, RECORD, Some(&|_| false))) {
            got.push(value);
        }
        assert_eq!(got, [1, 2]);
        assert_eq!(reader.abandoned, 0);
    });
}

#[test]
fn a_position_that_the_dead_took_is_passed_over() {
    check(3, &[], |_| {
        let memory = model(None);
        let mut dead = RingWriter::new(&*memory, ring(false, 2, 2), 0);
        assert!(dead.reserve(&*memory, 1).is_some());
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = RingWriter::new(&*shared, ring(false, 2, 2), 1);
            assert_eq!(writer.write(&*shared, &bytes(7), RECORD, 1), 1);
        });
        let mut reader = RingReader::new(&*memory, ring(false, 2, 2));
        assert_eq!(take_one(|out| reader.read(&*memory, out, RECORD, None)), None);
        let early = take_one(|out| reader.read(&*memory, out, RECORD, Some(&|number| number == 1)));
        producer.join().unwrap();
        let late = take_one(|out| reader.read(&*memory, out, RECORD, Some(&|number| number == 1)));
        assert_eq!((early.or(late), early.and(late), reader.abandoned), (Some(7), None, 1));
    });
}

#[test]
fn who_drops_the_oldest_record_of_another_hands_on_its_slot() {
    check(3, &[Site::Drop, Site::Reuse, Site::Collect], |weakened| {
        let memory = model(weakened);
        let produce = |number: usize, values: &'static [u64]| {
            let memory = memory.clone();
            move || {
                let values: Vec<u8> = values.iter().copied().flat_map(bytes).collect();
                RingWriter::new(&*memory, ring(true, 3, 2), number).write(&*memory, &values, RECORD, 1)
            }
        };
        let first = thread::spawn(produce(0, &[1, 2]));
        let shared = memory.clone();
        let second = thread::spawn(move || RingWriter::new(&*shared, ring(true, 3, 2), 1).evict(&*shared, 1));
        let written = produce(2, &[3])();
        let dropped = second.join().unwrap();
        let written = written + first.join().unwrap();
        let mut reader = RingReader::new(&*memory, ring(true, 3, 2));
        let read = |_| take_one(|out| reader.read(&*memory, out, RECORD, None));
        assert_eq!((0..4).filter_map(read).count() as u64 + dropped, written);
    });
}

#[test]
fn nothing_is_lost_at_a_shutdown() {
    check(3, &[Site::Busy, Site::Shut, Site::Intend, Site::Intent], |weakened| {
        let memory = model(weakened);
        let gate = || Gate { state: STATE, busy: BUSY.to_vec() };
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = LaneWriter::new(&*shared, lane(false, 2));
            let is_open = gate().enter(&*shared, 0, 1);
            if is_open {
                writer.write(&*shared, &bytes(1), RECORD);
                gate().leave(&*shared, 0);
            }
            is_open
        });
        gate().close(&*memory, State::Closing);
        let mut reader = LaneReader::new(&*memory, lane(false, 2));
        while !gate().is_quiet(&*memory, |_| true) {
            thread::yield_now();
        }
        let got = take_one(|out| reader.read(&*memory, out, RECORD));
        assert_eq!(got.is_some(), producer.join().unwrap());
    });
}

#[test]
fn what_was_put_before_a_shutdown_is_seen_after_it() {
    check(3, &[Site::State, Site::StateSeen], |weakened| {
        let memory = model(weakened);
        let gate = || Gate { state: STATE, busy: BUSY.to_vec() };
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = LaneWriter::new(&*shared, lane(false, 2));
            writer.write(&*shared, &bytes(1), RECORD);
            gate().close(&*shared, State::Closing);
        });
        let mut reader = LaneReader::new(&*memory, lane(false, 2));
        if gate().state(&*memory) == State::Closing {
            assert_eq!(take_one(|out| reader.read(&*memory, out, RECORD)), Some(1));
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_bulletin_never_shows_a_mixture() {
    check(3, &[Site::Mark, Site::Begin, Site::Finish, Site::Newest, Site::Recheck, Site::Marked], |weakened| {
        let pages = Pages { version: Word(0), held: [Word(8), Word(16)], first: [Word(24), Word(40)], words: 2 };
        let memory = model(weakened);
        let shared = memory.clone();
        let writer = thread::spawn(move || {
            for version in 1..=3 {
                assert_eq!(pages.publish(&*shared, |_| 10 * version), version);
            }
        });
        let mut out = [0; 2];
        let reading = pages.read(&*memory, 0, |i, word| out[i] = word);
        if let Reading::Version(version) = reading {
            assert_eq!(out, [10 * version; 2]);
        }
        assert_ne!(reading, Reading::Damaged);
        writer.join().unwrap();
    });
}

fn table(members: usize) -> Table {
    let word = |i: usize| Word(8 * i);
    let seat = |i: usize| Seat { done: word(2 + 2 * i), bell: Bell(word(3 + 2 * i)) };
    Table { round: word(0), leader: Bell(word(1)), seats: (0..members).map(seat).collect() }
}

/// A record that one wrote, and that another reads when it should be there.
fn put(memory: &Model, slot: usize, value: u64) {
    // SAFETY: loom checks that no two touch a record at once.
    unsafe { memory.write(slot, &bytes(value)) };
}

fn get(memory: &Model, slot: usize) -> Option<u64> {
    take_one(|out| {
        // SAFETY: as in `put`.
        unsafe { memory.read(slot, out) };
        1
    })
}

#[test]
fn a_member_sees_a_round_and_what_is_to_be_done() {
    check(3, &[Site::Begun, Site::BegunSeen, Site::Sleep, Site::Wake], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let leader = thread::spawn(move || {
            put(&shared, 0, 7);
            table(1).begin(&*shared);
        });
        let table = table(1);
        while table.other(&*memory, 0).is_none() {
            table.seats[0].bell.sleep(&*memory, Duration::MAX, || table.other(&*memory, 0).is_some());
        }
        assert_eq!(get(&memory, 0), Some(7));
        leader.join().unwrap();
    });
}

#[test]
fn the_last_member_that_is_done_wakes_the_leader() {
    check(3, &[Site::Done, Site::DoneSeen, Site::Sleep, Site::Wake], |weakened| {
        let memory = model(weakened);
        let table = table(2);
        table.begin(&*memory);
        let members: Vec<_> = (0..2)
            .map(|member| {
                let (shared, table) = (memory.clone(), table.clone());
                thread::spawn(move || {
                    put(&shared, member, 7 + member as u64);
                    table.finish(&*shared, member, 1);
                })
            })
            .collect();
        while !table.is_complete(&*memory) {
            table.leader.sleep(&*memory, Duration::MAX, || table.is_complete(&*memory));
        }
        assert_eq!([get(&memory, 0), get(&memory, 1)], [Some(7), Some(8)]);
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}
