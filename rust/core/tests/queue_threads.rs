//! The queue, the weight_broadcast and the barrier between threads, every record accounted for. `.ci/run` runs this
//! under ThreadSanitizer too.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrl_core::barrier::LockstepBarrier;
use fastrl_core::queue::{Consumer, Error, Options, Order, Policy, ProducerStats, Queue, Shared};
use fastrl_core::weight_broadcast::WeightBroadcast;

const SIZE: usize = 12;

fn record(producer: usize, number: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes[8..].copy_from_slice(&(producer as u32).to_ne_bytes());
    bytes
}

fn options(capacity: usize, max_producers: usize, policy: Policy, order: Order) -> Options {
    Options {
        record_size: SIZE,
        schema: "twelve bytes".into(),
        capacity,
        max_producers,
        policy,
        order,
        shared: Shared::No,
    }
}

fn take(consumer: &mut Consumer, max: usize) -> Result<Vec<[u8; SIZE]>, Error> {
    let mut out = vec![MaybeUninit::<u8>::uninit(); max * SIZE];
    let count = consumer.take(&mut out)?;
    // SAFETY: the first `count` records were written.
    let bytes: Vec<u8> = out[..count * SIZE].iter().map(|byte| unsafe { byte.assume_init() }).collect();
    Ok(bytes.chunks_exact(SIZE).map(|chunk| chunk.try_into().unwrap()).collect())
}

fn show(consumer: &mut Consumer, max: usize) -> Vec<[u8; SIZE]> {
    let Some((place, count)) = consumer.peek(max).unwrap() else { return Vec::new() };
    // SAFETY: so many records are shown from there on, until they are released.
    let bytes = unsafe { std::slice::from_raw_parts(place.as_ptr(), count * SIZE) };
    let records = bytes.chunks_exact(SIZE).map(|chunk| chunk.try_into().unwrap()).collect();
    consumer.release();
    records
}

#[test]
fn waiting_calls_are_woken() {
    for order in Order::ALL {
        let queue = Queue::create(&options(2, 1, Policy::Block, order)).unwrap();
        let mut producer = queue.producer().unwrap();
        let mut consumer = queue.consumer().unwrap();
        assert!(!consumer.wait(Duration::from_millis(1)).unwrap());
        let total = 20_000_u64;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..total {
                    while producer.offer(&record(0, number)).unwrap() == 0 {
                        producer.wait(1, Duration::from_secs(60)).unwrap();
                    }
                }
            });
            let mut next = 0;
            while next < total {
                assert!(consumer.wait(Duration::from_secs(60)).unwrap());
                for got in take(&mut consumer, 2).unwrap() {
                    assert_eq!(got, record(0, next));
                    next += 1;
                }
            }
        });
        assert_eq!(queue.stats().got, total);
    }
}

#[test]
fn a_shutdown_wakes_everybody() {
    let queue = Queue::create(&options(2, 2, Policy::Block, Order::PerProducer)).unwrap();
    let mut producer = queue.producer().unwrap();
    let mut consumer = queue.consumer().unwrap();
    producer.offer([record(0, 0), record(0, 1)].as_flattened()).unwrap();
    let other = queue.clone();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(move || producer.wait(1, Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(20));
        other.shutdown(false);
        assert!(matches!(blocked.join().unwrap(), Err(Error::ShutDown)));
    });
    assert_eq!(take(&mut consumer, 8).unwrap().len(), 2);
    assert!(matches!(take(&mut consumer, 8), Err(Error::ShutDown)));
}

/// Many threads, every record accounted for by number and contents.
fn soak(order: Order, policy: Policy) {
    const PRODUCERS: usize = 3;
    let total: u64 = if cfg!(debug_assertions) { 30_000 } else { 300_000 };
    let queue = Queue::create(&options(64, PRODUCERS, policy, order)).unwrap();
    let mut consumer = queue.consumer().unwrap();
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for p in 0..PRODUCERS {
            let mut producer = queue.producer().unwrap();
            let finished = &finished;
            scope.spawn(move || {
                let mut number = 0;
                while number < total {
                    let count = (number % 7 + 1).min(total - number) as usize;
                    let records: Vec<_> = (0..count as u64).map(|i| record(p, number + i)).collect();
                    if number % 3 == 0
                        && count <= 4
                        && let Ok(Some(place)) = producer.reserve(count)
                    {
                        // SAFETY: room for `count` records was reserved there.
                        unsafe {
                            place
                                .cast::<u8>()
                                .copy_from_nonoverlapping(NonNull::from(records.as_flattened()).cast(), count * SIZE)
                        };
                        producer.commit();
                        number += count as u64;
                        continue;
                    }
                    let taken = producer.offer(records.as_flattened()).unwrap();
                    if taken == 0 {
                        producer.wait(1, Duration::from_secs(60)).unwrap();
                    }
                    number += taken as u64;
                }
                finished.fetch_add(1, Ordering::Release);
            });
        }
        let mut next = [0; PRODUCERS];
        let mut got = 0_u64;
        loop {
            let is_over = finished.load(Ordering::Acquire) == PRODUCERS;
            let records =
                if got.is_multiple_of(2) { take(&mut consumer, 50).unwrap() } else { show(&mut consumer, 20) };
            if records.is_empty() && is_over {
                break;
            }
            if records.is_empty() {
                consumer.wait(Duration::from_millis(10)).unwrap();
            }
            for bytes in records {
                let number = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
                let p = u32::from_ne_bytes(bytes[8..].try_into().unwrap()) as usize;
                assert!(number >= next[p] && (number == next[p] || policy != Policy::Block), "{p}: {number}");
                next[p] = number + 1;
                got += 1;
            }
        }
        let stats = queue.stats();
        let sum = |of: fn(&ProducerStats) -> u64| stats.producers.iter().map(of).sum::<u64>();
        let (newest, oldest) = (sum(|producer| producer.dropped_newest), sum(|producer| producer.dropped_oldest));
        assert_eq!(got + newest + oldest, total * PRODUCERS as u64, "{stats:?}");
        assert_eq!(stats.got, got);
        assert!(policy != Policy::Block || newest + oldest == 0);
    });
}

#[test]
fn nothing_is_lost_between_threads() {
    for order in Order::ALL {
        for policy in [Policy::Block, Policy::DropNewest, Policy::DropOldest] {
            soak(order, policy);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_weight_broadcast_shows_the_newest_version() {
    let mut writer = WeightBroadcast::create(1003).unwrap();
    let reader = WeightBroadcast::attach(writer.name()).unwrap();
    let mut out = vec![0; 1003];
    assert_eq!(reader.read(&mut out, 0).unwrap(), None);
    let versions = 20_000_u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while seen < versions {
                let mut out = vec![0; 1003];
                if let Some(version) = reader.read(&mut out, seen).unwrap() {
                    assert!(version > seen);
                    assert!(out.iter().all(|&byte| byte == version as u8), "a mixture at {version}");
                    seen = version;
                }
            }
        });
        for version in 1..=versions {
            assert_eq!(writer.publish(&vec![version as u8; 1003]).unwrap(), version);
        }
    });
    assert!(matches!(writer.publish(&[0; 4]), Err(Error::Invalid(_))));
    let mut other = WeightBroadcast::attach(writer.name()).unwrap();
    assert!(matches!(other.publish(&[0; 1003]), Err(Error::NotOwner(_))));
    assert!(matches!(Queue::attach(writer.name()), Err(Error::Foreign(_))));
}

#[cfg(target_os = "linux")]
#[test]
fn a_barrier_keeps_members_in_step() {
    const MEMBERS: usize = 3;
    let barrier = LockstepBarrier::create(MEMBERS, 8 * (MEMBERS + 1)).unwrap();
    let members: Vec<LockstepBarrier> =
        (0..MEMBERS).map(|_| LockstepBarrier::attach(barrier.name()).unwrap()).collect();
    let words = |barrier: &LockstepBarrier, i: usize| {
        // SAFETY: `i` is at most MEMBERS, so the word lies inside of the data; it is aligned.
        unsafe { barrier.data().as_ptr().cast::<u64>().add(i) }
    };
    let turns = 5_000_u64;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (member, mine) in members.iter().enumerate() {
            let mut round = mine.join(member).unwrap();
            threads.push(scope.spawn(move || {
                for _ in 0..turns {
                    round = mine.next(member, round, Duration::from_secs(60)).expect("a round");
                    // SAFETY: within a round a member alone touches its word, and only reads the leader's.
                    unsafe { *words(mine, member) += *words(mine, MEMBERS) };
                    mine.finish(member, round);
                }
            }));
        }
        let mut sum = 0;
        for turn in 1..=turns {
            // SAFETY: between barrier the leader alone touches the data.
            unsafe { *words(&barrier, MEMBERS) = turn };
            barrier.start_round().unwrap();
            if turn == 1 {
                assert!(matches!(members[0].start_round(), Err(Error::NotOwner(_))));
            }
            assert!(barrier.wait(Duration::from_secs(60)).unwrap());
            sum += turn;
            // SAFETY: between barrier the leader alone touches the data.
            assert!((0..MEMBERS).all(|member| unsafe { *words(&barrier, member) } == sum));
        }
        // ThreadSanitizer sees a join, not the end of a scope.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    barrier.start_round().unwrap();
    assert!(!barrier.wait(Duration::from_millis(5)).unwrap());
    assert!(matches!(barrier.start_round(), Err(Error::Borrowed(_))));
    assert_eq!(members[1].next(1, turns + 1, Duration::from_millis(5)), None);
    for member in 0..MEMBERS {
        assert!(!barrier.is_done(member).unwrap());
        barrier.mark_dead(member).unwrap();
    }
    assert!(barrier.wait(Duration::from_secs(60)).unwrap());
    // A member that replaces a dead one starts after the present round.
    assert_eq!(members[2].join(2).unwrap(), turns + 1);
    assert!(matches!(barrier.mark_dead(MEMBERS), Err(Error::Invalid(_))));
    assert!(matches!(WeightBroadcast::attach(barrier.name()), Err(Error::Foreign(_))));
    let name = barrier.name().to_owned();
    drop(barrier);
    assert!(matches!(LockstepBarrier::attach(&name), Err(Error::NotFound(_))));
    assert!(matches!(LockstepBarrier::create(0, 8), Err(Error::Invalid(_))));
}
