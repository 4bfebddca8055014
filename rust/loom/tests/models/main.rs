//! Every interleaving, and every value that a weak memory may show, of the code of queue, weight broadcast and barrier.
//!
//! Each model is run as it is, and once for each memory ordering that it relies on with that one weakened: then it must
//! fail, or the ordering, or the model, would be useless.

mod memory;

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrl_core::barrier::{BarrierWords, MemberWords};
use fastrl_core::queue::State;
use fastrl_core::queue::cursor::Cursor;
use fastrl_core::queue::event::Event;
use fastrl_core::queue::gate::Gate;
use fastrl_core::queue::mpsc_ring::{MpscReader, MpscRing, MpscWriter};
use fastrl_core::queue::role::Role;
use fastrl_core::queue::spsc_ring::{SpscReader, SpscRing, SpscWriter};
use fastrl_core::shm::memory::{Memory, Site, Word};
use fastrl_core::weight_broadcast::{Pages, ReadOutcome};
use loom::sync::Arc;
use loom::thread;
use memory::{Model, RECORD};
use std::time::Duration;

/// Runs a model as it is, then with each of `sites` weakened, where it must fail.
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
    assert!(survivors.is_empty(), "no model relies on the ordering of {survivors:?}");
}

fn words(count: usize) -> Vec<Word> {
    (0..count).map(|i| Word(8 * i)).collect()
}

const TAIL: Word = Word(0);
const VOID: Word = Word(8);
const HEAD: Word = Word(16);
const CLAIM: Word = Word(24);
const EVENT: Word = Word(32);
const ROLE: Word = Word(40);
const STATE: Word = Word(48);
const BUSY: [Word; 2] = [Word(56), Word(64)];
const INTENTS: [Word; 3] = [Word(72), Word(80), Word(88)];
const SEQUENCE: Word = Word(96);
const WORDS: usize = 16;

fn cursor(evicts: bool) -> Cursor {
    Cursor { head: HEAD, claim: CLAIM, evicts }
}

fn spsc(evicts: bool, capacity: u64) -> SpscRing {
    SpscRing { tail: TAIL, void: VOID, cursor: cursor(evicts), first_slot: 0, capacity }
}

fn mpsc(evicts: bool, producers: usize, capacity: u64) -> MpscRing {
    MpscRing {
        tail: TAIL,
        cursor: cursor(evicts),
        sequence: SEQUENCE,
        capacity,
        intents: INTENTS[..producers].to_vec(),
    }
}

fn model(weakened: Option<Site>) -> Arc<Model> {
    Arc::new(Model::new(&words(WORDS), 4, weakened))
}

fn bytes(value: u64) -> [u8; RECORD] {
    value.to_ne_bytes()
}

fn take_one(read: impl FnOnce(&mut [MaybeUninit<u8>]) -> u64) -> Option<u64> {
    let mut out = [MaybeUninit::uninit(); RECORD];
    // SAFETY: `read` returned 1, so it has filled the record.
    (read(&mut out) == 1).then(|| u64::from_ne_bytes(out.map(|byte| unsafe { byte.assume_init() })))
}

#[test]
fn an_spsc_ring_delivers_every_record_in_order() {
    check(3, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = SpscWriter::new(&*shared, spsc(false, 2));
            for value in 1..=3 {
                while writer.write(&*shared, &bytes(value), RECORD) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut reader = SpscReader::new(&*memory, spsc(false, 2));
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
fn the_reader_skips_the_gap_before_reserved_records() {
    check(2, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = SpscWriter::new(&*shared, spsc(false, 4));
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
        let mut reader = SpscReader::new(&*memory, spsc(false, 4));
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
fn eviction_never_drops_a_record_that_is_being_read() {
    check(3, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = SpscWriter::new(&*shared, spsc(true, 2));
            let (mut dropped, mut refused) = (0, 0);
            for value in 1..=4 {
                dropped += writer.evict(&*shared, 1);
                refused += 1 - writer.write(&*shared, &bytes(value), RECORD);
            }
            (dropped, refused)
        });
        let mut reader = SpscReader::new(&*memory, spsc(true, 2));
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
fn an_event_wakes_its_waiter() {
    check(3, &[Site::Sleep, Site::Wake], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = SpscWriter::new(&*shared, spsc(false, 2));
            writer.write(&*shared, &bytes(1), RECORD);
            Event::fence(&*shared);
            Event(EVENT).notify(&*shared);
        });
        let mut reader = SpscReader::new(&*memory, spsc(false, 2));
        while !reader.is_ready(&*memory) {
            Event(EVENT).wait(&*memory, Duration::MAX, || reader.is_ready(&*memory));
        }
        assert_eq!(take_one(|out| reader.read(&*memory, out, RECORD)), Some(1));
        producer.join().unwrap();
    });
}

#[test]
fn a_role_passes_on_what_its_last_holder_wrote() {
    check(3, &[Site::HandOver, Site::TakeOver], |weakened| {
        let memory = model(weakened);
        let produce = |memory: Arc<Model>, own: u64| {
            move || {
                while Role(ROLE).acquire(&*memory, own, |_| true).is_err() {
                    thread::yield_now();
                }
                let mut writer = SpscWriter::new(&*memory, spsc(false, 2));
                assert_eq!(writer.write(&*memory, &bytes(own), RECORD), 1);
                Role(ROLE).release(&*memory);
            }
        };
        let other = thread::spawn(produce(memory.clone(), 1));
        produce(memory.clone(), 2)();
        other.join().unwrap();
        let mut reader = SpscReader::new(&*memory, spsc(false, 2));
        let got = [(); 2].map(|()| take_one(|out| reader.read(&*memory, out, RECORD)).unwrap());
        assert!(got == [1, 2] || got == [2, 1], "{got:?}");
    });
}

#[test]
fn an_mpsc_ring_delivers_every_record_once() {
    check(2, &[Site::Publish, Site::Collect], |weakened| {
        let memory = model(weakened);
        let produce = |number: usize, value: u64| {
            let memory = memory.clone();
            move || MpscWriter::new(&*memory, mpsc(false, 2, 2), number).write(&*memory, &bytes(value), RECORD, 1)
        };
        let other = thread::spawn(produce(0, 10));
        let shared = memory.clone();
        let consumer = thread::spawn(move || {
            let mut reader = MpscReader::new(&*shared, mpsc(false, 2, 2));
            let read = |_| take_one(|out| reader.read(&*shared, out, RECORD, Some(&|_| true)));
            (0..2).filter_map(read).collect::<Vec<u64>>()
        });
        let written = produce(1, 20)() + other.join().unwrap();
        let mut got = consumer.join().unwrap();
        let mut reader = MpscReader::new(&*memory, mpsc(false, 2, 2));
        let read = |_| take_one(|out| reader.read(&*memory, out, RECORD, Some(&|_| false)));
        got.extend((0..2).filter_map(read));
        got.sort_unstable();
        assert_eq!((written, got), (2, vec![10, 20]));
    });
}

#[test]
fn a_slot_of_an_mpsc_ring_is_reused() {
    check(3, &[Site::Publish, Site::Collect, Site::Free, Site::Reuse], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = MpscWriter::new(&*shared, mpsc(false, 1, 1), 0);
            for value in 1..=2 {
                while writer.write(&*shared, &bytes(value), RECORD, 1) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut reader = MpscReader::new(&*memory, mpsc(false, 1, 1));
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
fn only_positions_of_dead_producers_are_skipped() {
    check(3, &[Site::Take, Site::Taken, Site::Intend, Site::Intent], |weakened| {
        let memory = model(weakened);
        // Producer 0 died between its intent and the taking.
        memory.store(INTENTS[0], 1, Site::Plain);
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = MpscWriter::new(&*shared, mpsc(false, 2, 2), 1);
            for value in 1..=2 {
                assert_eq!(writer.write(&*shared, &bytes(value), RECORD, 1), 1);
            }
        });
        let mut reader = MpscReader::new(&*memory, mpsc(false, 2, 2));
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
fn a_position_that_a_dead_producer_took_is_skipped() {
    check(3, &[], |_| {
        let memory = model(None);
        let mut dead = MpscWriter::new(&*memory, mpsc(false, 2, 2), 0);
        assert!(dead.reserve(&*memory, 1).is_some());
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = MpscWriter::new(&*shared, mpsc(false, 2, 2), 1);
            assert_eq!(writer.write(&*shared, &bytes(7), RECORD, 1), 1);
        });
        let mut reader = MpscReader::new(&*memory, mpsc(false, 2, 2));
        assert_eq!(take_one(|out| reader.read(&*memory, out, RECORD, None)), None);
        let early = take_one(|out| reader.read(&*memory, out, RECORD, Some(&|number| number == 1)));
        producer.join().unwrap();
        let late = take_one(|out| reader.read(&*memory, out, RECORD, Some(&|number| number == 1)));
        assert_eq!((early.or(late), early.and(late), reader.abandoned), (Some(7), None, 1));
    });
}

#[test]
fn an_evicted_slot_is_free_for_every_producer() {
    check(3, &[Site::Drop, Site::Reuse, Site::Collect], |weakened| {
        let memory = model(weakened);
        let produce = |number: usize, values: &'static [u64]| {
            let memory = memory.clone();
            move || {
                let values: Vec<u8> = values.iter().copied().flat_map(bytes).collect();
                MpscWriter::new(&*memory, mpsc(true, 3, 2), number).write(&*memory, &values, RECORD, 1)
            }
        };
        let first = thread::spawn(produce(0, &[1, 2]));
        let shared = memory.clone();
        let second = thread::spawn(move || MpscWriter::new(&*shared, mpsc(true, 3, 2), 1).evict(&*shared, 1));
        let written = produce(2, &[3])();
        let dropped = second.join().unwrap();
        let written = written + first.join().unwrap();
        let mut reader = MpscReader::new(&*memory, mpsc(true, 3, 2));
        let read = |_| take_one(|out| reader.read(&*memory, out, RECORD, None));
        assert_eq!((0..4).filter_map(read).count() as u64 + dropped, written);
    });
}

#[test]
fn a_shutdown_loses_no_record() {
    check(3, &[Site::Busy, Site::Shut, Site::Intend, Site::Intent], |weakened| {
        let memory = model(weakened);
        let gate = || Gate { state: STATE, busy: BUSY.to_vec() };
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = SpscWriter::new(&*shared, spsc(false, 2));
            let is_open = gate().enter(&*shared, 0, 1);
            if is_open {
                writer.write(&*shared, &bytes(1), RECORD);
                gate().leave(&*shared, 0);
            }
            is_open
        });
        gate().close(&*memory, State::Closing);
        let mut reader = SpscReader::new(&*memory, spsc(false, 2));
        while !gate().is_quiet(&*memory, |_| true) {
            thread::yield_now();
        }
        let got = take_one(|out| reader.read(&*memory, out, RECORD));
        assert_eq!(got.is_some(), producer.join().unwrap());
    });
}

#[test]
fn records_put_before_a_shutdown_are_visible_after_it() {
    check(3, &[Site::State, Site::StateSeen], |weakened| {
        let memory = model(weakened);
        let gate = || Gate { state: STATE, busy: BUSY.to_vec() };
        let shared = memory.clone();
        let producer = thread::spawn(move || {
            let mut writer = SpscWriter::new(&*shared, spsc(false, 2));
            writer.write(&*shared, &bytes(1), RECORD);
            gate().close(&*shared, State::Closing);
        });
        let mut reader = SpscReader::new(&*memory, spsc(false, 2));
        if gate().state(&*memory) == State::Closing {
            assert_eq!(take_one(|out| reader.read(&*memory, out, RECORD)), Some(1));
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_weight_broadcast_never_mixes_versions() {
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
        if let ReadOutcome::Version(version) = reading {
            assert_eq!(out, [10 * version; 2]);
        }
        assert_ne!(reading, ReadOutcome::Damaged);
        writer.join().unwrap();
    });
}

fn barrier(members: usize) -> BarrierWords {
    let word = |i: usize| Word(8 * i);
    let words = |i: usize| MemberWords { done: word(2 + 2 * i), event: Event(word(3 + 2 * i)) };
    BarrierWords { round: word(0), leader: Event(word(1)), members: (0..members).map(words).collect() }
}

/// Writes a record that another thread reads once it is visible.
fn put(memory: &Model, slot: usize, value: u64) {
    // SAFETY: loom checks that no two threads touch a record at once.
    unsafe { memory.write(slot, &bytes(value)) };
}

fn get(memory: &Model, slot: usize) -> Option<u64> {
    take_one(|out| {
        // SAFETY: loom checks that no two threads touch a record at once.
        unsafe { memory.read(slot, out) };
        1
    })
}

#[test]
fn a_member_sees_a_round_and_its_task() {
    check(3, &[Site::RoundStart, Site::RoundSeen, Site::Sleep, Site::Wake], |weakened| {
        let memory = model(weakened);
        let shared = memory.clone();
        let leader = thread::spawn(move || {
            put(&shared, 0, 7);
            barrier(1).start_round(&*shared);
        });
        let barrier = barrier(1);
        while barrier.newer_round(&*memory, 0).is_none() {
            barrier.members[0].event.wait(&*memory, Duration::MAX, || barrier.newer_round(&*memory, 0).is_some());
        }
        assert_eq!(get(&memory, 0), Some(7));
        leader.join().unwrap();
    });
}

#[test]
fn the_last_member_wakes_the_leader() {
    check(3, &[Site::Done, Site::DoneSeen, Site::Sleep, Site::Wake], |weakened| {
        let memory = model(weakened);
        let barrier = barrier(2);
        barrier.start_round(&*memory);
        let members: Vec<_> = (0..2)
            .map(|member| {
                let (shared, barrier) = (memory.clone(), barrier.clone());
                thread::spawn(move || {
                    put(&shared, member, 7 + member as u64);
                    barrier.finish(&*shared, member, 1);
                })
            })
            .collect();
        while !barrier.is_complete(&*memory) {
            barrier.leader.wait(&*memory, Duration::MAX, || barrier.is_complete(&*memory));
        }
        assert_eq!([get(&memory, 0), get(&memory, 1)], [Some(7), Some(8)]);
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}
