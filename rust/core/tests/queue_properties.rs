//! The queue against an obvious model: a list for each producer, or one list. One thread, so every outcome is known.

use std::collections::VecDeque;
use std::mem::MaybeUninit;

use fastrl_core::queue::{Consumer, Error, Options, Order, Policy, Producer, Queue, Shared};
use proptest::prelude::*;

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

#[derive(Clone, Debug)]
enum Action {
    Offer(usize, usize),
    Reserve(usize, usize, bool),
    Take(usize),
    Peek(usize),
    NewProducer(usize),
    NewConsumer,
}

fn actions(producers: usize) -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0..producers, 0..12_usize).prop_map(|(p, n)| Action::Offer(p, n)),
        3 => (0..producers, 1..5_usize, prop::bool::weighted(0.8)).prop_map(|(p, n, b)| Action::Reserve(p, n, b)),
        3 => (1..12_usize).prop_map(Action::Take),
        3 => (1..12_usize).prop_map(Action::Peek),
        1 => (0..producers).prop_map(Action::NewProducer),
        1 => Just(Action::NewConsumer),
    ];
    prop::collection::vec(action, 1..120)
}

/// Records that the consumer may get from a model of several lists: the next of any of them.
struct Model {
    lists: Vec<VecDeque<[u8; SIZE]>>,
}

impl Model {
    fn expect(&mut self, got: &[[u8; SIZE]]) {
        for record in got {
            let list = self.lists.iter_mut().find(|list| list.front() == Some(record));
            list.unwrap_or_else(|| panic!("{record:?} is not the next of any list")).pop_front();
        }
    }

    fn len(&self) -> usize {
        self.lists.iter().map(VecDeque::len).sum()
    }
}

fn play(order: Order, policy: Policy, producers: usize, actions: &[Action]) {
    let capacity = 8;
    let queue = Queue::create(&options(capacity, producers, policy, order)).unwrap();
    let mut handles: Vec<Option<Producer>> = (0..producers).map(|_| Some(queue.producer().unwrap())).collect();
    let mut consumer = Some(queue.consumer().unwrap());
    let lists = if order == Order::PerProducer { producers } else { 1 };
    let mut model = Model { lists: vec![VecDeque::new(); lists] };
    let mut number = 0;
    let (mut put, mut newest, mut oldest, mut got) = (0, 0, 0, 0);
    let mut gaps = false;
    for action in actions {
        match *action {
            Action::Offer(p, n) => {
                let producer = handles[p].as_mut().unwrap();
                let records: Vec<[u8; SIZE]> = (0..n as u64).map(|i| record(p, number + i)).collect();
                number += n as u64;
                let list = &mut model.lists[if order == Order::PerProducer { p } else { 0 }];
                let free = capacity - list.len();
                let result = producer.offer(records.as_flattened());
                // Gaps before reserved records take room too, so then it may be less than the model has.
                let taken = match (policy, result) {
                    (Policy::Error, Err(Error::Full)) => {
                        assert!(n > free || gaps);
                        0
                    }
                    (Policy::Block, Ok(taken)) => {
                        assert!(taken == n.min(free) || gaps && taken <= n.min(free));
                        taken
                    }
                    (Policy::Error | Policy::DropOldest, Ok(taken)) => {
                        assert_eq!(taken, n);
                        n
                    }
                    (Policy::DropNewest, Ok(taken)) => {
                        assert_eq!(taken, n);
                        let dropped =
                            queue.stats().producers.iter().map(|producer| producer.dropped_newest).sum::<u64>()
                                - newest;
                        assert!(dropped as usize == n.saturating_sub(free) || gaps);
                        newest += dropped;
                        n - dropped as usize
                    }
                    (_, result) => panic!("{result:?}"),
                };
                if policy == Policy::DropOldest {
                    list.extend(&records);
                    put += n.min(capacity) as u64;
                } else {
                    list.extend(&records[..taken]);
                    put += taken as u64;
                }
            }
            Action::Reserve(p, n, is_filled) => {
                let producer = handles[p].as_mut().unwrap();
                let n = n.min(capacity / 2);
                match producer.reserve(n) {
                    Ok(Some(place)) => {
                        assert!(matches!(producer.offer(&[0; SIZE]), Err(Error::Borrowed(_))));
                        let list = &mut model.lists[if order == Order::PerProducer { p } else { 0 }];
                        for i in 0..n {
                            let record = record(p, number);
                            number += 1;
                            // SAFETY: room for n records was reserved from there on.
                            unsafe { place.add(i * SIZE).cast::<[u8; SIZE]>().write_unaligned(record) };
                            if is_filled {
                                list.push_back(record);
                            }
                        }
                        gaps = true;
                        if is_filled {
                            producer.commit();
                            put += n as u64;
                        } else {
                            producer.abort();
                        }
                    }
                    Ok(None) => assert!(matches!(policy, Policy::Block | Policy::DropNewest)),
                    Err(Error::Full) => assert_eq!(policy, Policy::Error),
                    Err(error) => panic!("{error}"),
                }
            }
            Action::Take(max) => {
                let records = take(consumer.as_mut().unwrap(), max).unwrap();
                forget_dropped(&mut model, &queue, &mut oldest);
                assert!(records.len() <= max);
                assert!(records.len() == max || queue.depth() == 0);
                got += records.len() as u64;
                model.expect(&records);
            }
            Action::Peek(max) => {
                let records = show(consumer.as_mut().unwrap(), max);
                forget_dropped(&mut model, &queue, &mut oldest);
                assert!(records.len() <= max && (!records.is_empty() || queue.depth() == 0));
                got += records.len() as u64;
                model.expect(&records);
            }
            Action::NewProducer(p) => {
                handles[p] = None;
                handles[p] = Some(queue.producer().unwrap());
            }
            Action::NewConsumer => {
                assert!(matches!(queue.consumer(), Err(Error::Consumer { .. })));
                drop(consumer.take());
                consumer = Some(queue.consumer().unwrap());
            }
        }
        forget_dropped(&mut model, &queue, &mut oldest);
        let stats = queue.stats();
        assert_eq!(stats.producers.iter().map(|producer| producer.put).sum::<u64>(), put);
        assert_eq!(stats.got, got);
        if order == Order::PerProducer {
            assert_eq!(stats.depth as usize, model.len());
        }
    }
    queue.shutdown(false);
    assert!(matches!(handles[0].as_mut().unwrap().offer(&[0; SIZE]), Err(Error::ShutDown)));
    let consumer = consumer.as_mut().unwrap();
    let rest = loop {
        match take(consumer, 3) {
            Ok(records) => model.expect(&records),
            Err(error) => break error,
        }
    };
    assert!(matches!(rest, Error::ShutDown));
    assert_eq!(model.len(), 0);
}

/// Takes from the model what the queue says that it has dropped of the oldest.
fn forget_dropped(model: &mut Model, queue: &Queue, known: &mut u64) {
    let stats = queue.stats();
    let dropped: Vec<u64> = stats.producers.iter().map(|producer| producer.dropped_oldest).collect();
    let total: u64 = dropped.iter().sum();
    let mut new = total - *known;
    *known = total;
    if new == 0 {
        return;
    }
    // One lane acts at a time, so what is new is of the list that is longer than the queue has room for.
    while new > 0 {
        let list = model.lists.iter_mut().max_by_key(|list| list.len()).unwrap();
        list.pop_front().unwrap();
        new -= 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn lanes_are_lists(actions in actions(2)) {
        for policy in [Policy::Block, Policy::Error, Policy::DropNewest] {
            play(Order::PerProducer, policy, 2, &actions);
        }
    }

    #[test]
    fn the_ring_is_a_list(actions in actions(3)) {
        for policy in [Policy::Block, Policy::Error, Policy::DropNewest] {
            play(Order::Total, policy, 3, &actions);
        }
    }

    #[test]
    fn a_lane_that_drops_the_oldest_keeps_the_newest(actions in actions(1)) {
        play(Order::PerProducer, Policy::DropOldest, 1, &actions);
    }

    #[test]
    fn a_ring_that_drops_the_oldest_keeps_the_newest(actions in actions(3)) {
        play(Order::Total, Policy::DropOldest, 3, &actions);
    }
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let good = options(4, 1, Policy::Block, Order::PerProducer);
    let bad = [
        Options { capacity: 0, ..good.clone() },
        Options { capacity: usize::MAX, ..good.clone() },
        Options { capacity: 1 << 50, record_size: 1 << 20, ..good.clone() },
        Options { max_producers: 0, ..good.clone() },
        Options { max_producers: 1 << 20, ..good.clone() },
        Options { record_size: 0, ..good.clone() },
        Options { shared: Shared::Named("a/b".into()), ..good.clone() },
    ];
    for options in bad {
        assert!(matches!(Queue::create(&options), Err(Error::Invalid(_))), "{options:?}");
    }
    let queue = Queue::create(&good).unwrap();
    let mut producer = queue.producer().unwrap();
    assert!(matches!(producer.reserve(3), Err(Error::TooMany(_))));
    assert!(matches!(producer.reserve(0), Err(Error::TooMany(_))));
    assert!(matches!(queue.producer(), Err(Error::NoProducerLeft { max_producers: 1 })));
}

#[cfg(target_os = "linux")]
mod shared {
    use super::*;
    use fastrl_core::barrier::LockstepBarrier;
    use fastrl_core::weight_broadcast::WeightBroadcast;

    fn shared(name: &str) -> Options {
        let name = format!("test-{}-{name}", std::process::id());
        Options { shared: Shared::Named(name), ..options(8, 2, Policy::Block, Order::PerProducer) }
    }

    fn name_of(options: &Options) -> &str {
        match &options.shared {
            Shared::Named(name) => name,
            _ => panic!("no name"),
        }
    }

    #[test]
    fn a_name_leads_to_the_same_queue() {
        let options = shared("same");
        let queue = Queue::create(&options).unwrap();
        assert!(matches!(Queue::create(&options), Err(Error::Exists(_))));
        let other = Queue::attach(name_of(&options)).unwrap();
        assert_eq!(other.schema(), "twelve bytes");
        other.producer().unwrap().offer(&record(1, 2)).unwrap();
        assert_eq!(take(&mut queue.consumer().unwrap(), 4).unwrap(), [record(1, 2)]);
        drop(queue);
        assert!(matches!(Queue::attach(name_of(&options)), Err(Error::NotFound(_))));
        assert_eq!(other.producer().unwrap().offer(&record(1, 2)).unwrap(), 1);
    }

    #[test]
    fn too_large_a_queue_is_an_error() {
        let huge = Options { capacity: 1 << 36, ..shared("huge") };
        match Queue::create(&huge) {
            Err(error @ Error::NoRoom { .. }) => {
                let text = error.to_string();
                assert!(text.contains("/dev/shm has ") && text.contains("capacity") && !text.contains('\n'), "{text}");
            }
            other => panic!("{:?}", other.err()),
        }
    }

    #[test]
    fn any_byte_of_the_header_is_checked() {
        let options = shared("damaged");
        let queue = Queue::create(&options).unwrap();
        let path = format!("/dev/shm/fastrl-{}", name_of(&options));
        let good = std::fs::read(&path).unwrap();
        for (at, &byte) in good.iter().enumerate().take(256 + "twelve bytes".len()) {
            use std::os::unix::fs::FileExt;
            // Bytes 20 to 31 mean nothing.
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[byte ^ 0x55], at as u64).unwrap();
            let result = Queue::attach(name_of(&options)).map(|_| ());
            file.write_all_at(&[byte], at as u64).unwrap();
            assert!(matches!(result, Err(Error::Foreign(_))) || (20..32).contains(&at), "byte {at}: {result:?}");
        }
        for length in [0, 100, 4096, good.len() - 1, good.len() + 4096] {
            let other = format!("/dev/shm/fastrl-{}-cut", name_of(&options));
            let mut bytes = good.clone();
            bytes.resize(length, 0);
            std::fs::write(&other, &bytes).unwrap();
            let result = Queue::attach(&format!("{}-cut", name_of(&options))).map(|_| ());
            std::fs::remove_file(&other).unwrap();
            assert!(matches!(result, Err(Error::Foreign(_))), "length {length}: {result:?}");
        }
        drop(queue);
    }

    const PLACES: usize = 8192;

    /// Values that another program may write into the queue's words.
    fn stray() -> impl Strategy<Value = (usize, u64)> {
        let value = prop_oneof![
            0..20_u64,
            any::<u64>(),
            prop::sample::select(vec![1 << 32, 1 << 60, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX]),
        ];
        // The header is one page, the words of the queue and of two lanes are the next two, 128 bytes apart.
        ((4096..4096 + PLACES).prop_map(|at| at / 128 * 128), value)
    }

    proptest! {
        /// Every call returns records or an error, with any bytes in these words.
        #[test]
        fn stray_writes_into_words_end_in_no_hang(
            is_total in any::<bool>(),
            policy in prop::sample::select(Policy::ALL.to_vec()),
            steps in prop::collection::vec((0..7_u8, prop::option::weighted(0.3, stray())), 1..60),
        ) {
            use std::os::unix::fs::FileExt;
            use std::time::Duration;

            let order = if is_total { Order::Total } else { Order::PerProducer };
            let options = Options { policy, order, shared: Shared::Anonymous, ..options(8, 2, policy, order) };
            let queue = Queue::create(&options).unwrap();
            let path = format!("/dev/shm/fastrl-{}", queue.name().unwrap());
            let file = std::fs::File::options().write(true).open(path).unwrap();
            let mut producer = queue.producer().unwrap();
            let mut consumer = queue.consumer().unwrap();
            let three = [record(0, 1), record(0, 2), record(0, 3)].concat();
            for (what, stray) in steps {
                if let Some((at, value)) = stray {
                    file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
                }
                match what {
                    0 | 1 => drop(producer.offer(&three)),
                    2 => {
                        if let Ok(Some(_)) = producer.reserve(2) {
                            producer.commit();
                        }
                    }
                    3 => drop(producer.wait(2, Duration::from_micros(50))),
                    4 => drop(take(&mut consumer, 5)),
                    5 => {
                        if let Ok(Some((_, count))) = consumer.peek(3) {
                            prop_assert!(count <= 3);
                            consumer.release();
                        }
                    }
                    _ => drop(consumer.wait(Duration::from_micros(50))),
                }
                prop_assert!(queue.depth() <= 16);
                let _counters = queue.stats();
            }
        }

        /// Headers with a checksum that fits, in files of any length: refused, or a segment that is as it says.
        #[test]
        fn forged_headers_are_refused(
            kind in 1..4_u32,
            words in prop::collection::vec(prop_oneof![0..5_u64, 4096..70_000_u64, any::<u64>()], 9),
            length in prop::sample::select(vec![4096_u64, 8192, 12_288, 65_536]),
        ) {
            let good = Queue::create(&Options { shared: Shared::Anonymous, ..options(2, 1, Policy::Block, Order::PerProducer) }).unwrap();
            let mut bytes = std::fs::read(format!("/dev/shm/fastrl-{}", good.name().unwrap())).unwrap();
            bytes.resize(length as usize, 0);
            let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            put(32, length);
            (0..6).for_each(|i| put(48 + 8 * i, words[i]));
            (0..3).for_each(|i| put(104 + 8 * i, words[6 + i]));
            bytes[12..16].copy_from_slice(&kind.to_ne_bytes());
            let checksum = crc32fast::hash(&bytes[32..256 + "twelve bytes".len()]);
            bytes[16..20].copy_from_slice(&checksum.to_ne_bytes());
            let name = format!("test-forged-{}", std::process::id());
            let path = format!("/dev/shm/fastrl-{name}");
            std::fs::write(&path, &bytes).unwrap();
            let results = [
                Queue::attach(&name).map(|queue| queue.depth()),
                WeightBroadcast::attach(&name).map(|weights| weights.nbytes()),
                LockstepBarrier::attach(&name).map(|rounds| rounds.nbytes()),
            ];
            std::fs::remove_file(path).unwrap();
            for result in results {
                match result {
                    Ok(size) => prop_assert!((size as u64) < length),
                    Err(error) => prop_assert!(matches!(error, Error::Foreign(_)), "{}", error),
                }
            }
        }
    }

    /// The word in which the consumer says that it holds records, though it holds none.
    #[test]
    fn a_stray_mark_of_held_records_blocks_no_call() {
        use std::os::unix::fs::FileExt;

        for (order, word) in [(Order::PerProducer, 16 + 3), (Order::Total, 9)] {
            let options = Options { shared: Shared::Anonymous, ..options(8, 2, Policy::DropOldest, order) };
            let queue = Queue::create(&options).unwrap();
            let mut producer = queue.producer().unwrap();
            let mut consumer = queue.consumer().unwrap();
            producer.offer(&record(0, 1)).unwrap();
            let file = std::fs::File::options().write(true).open(format!("/dev/shm/fastrl-{}", queue.name().unwrap()));
            file.unwrap().write_all_at(&1_u64.to_ne_bytes(), 4096 + 128 * word).unwrap();
            assert_eq!(take(&mut consumer, 4).unwrap(), [record(0, 1)]);
        }
    }

    /// No producer has taken so many positions, and the consumer does not skip them one by one.
    #[test]
    fn a_stray_write_into_the_tail_is_an_error() {
        use std::os::unix::fs::FileExt;
        use std::time::{Duration, Instant};

        for policy in [Policy::Block, Policy::DropOldest] {
            let options = Options { shared: Shared::Anonymous, ..options(8, 2, policy, Order::Total) };
            let queue = Queue::create(&options).unwrap();
            let mut producer = queue.producer().unwrap();
            let mut consumer = queue.consumer().unwrap();
            producer.offer(&record(0, 1)).unwrap();
            assert_eq!(take(&mut consumer, 1).unwrap(), [record(0, 1)]);
            let file = std::fs::File::options().write(true).open(format!("/dev/shm/fastrl-{}", queue.name().unwrap()));
            // The eighth word of the queue.
            file.unwrap().write_all_at(&(1_u64 << 61).to_ne_bytes(), 4096 + 128 * 7).unwrap();
            let start = Instant::now();
            let errors = [
                take(&mut consumer, 4).unwrap_err(),
                consumer.peek(1).unwrap_err(),
                consumer.wait(Duration::from_secs(60)).unwrap_err(),
                producer.wait(1, Duration::from_secs(60)).unwrap_err(),
                Queue::attach(queue.name().unwrap()).err().unwrap(),
            ];
            assert!(start.elapsed() < Duration::from_secs(30));
            for error in errors {
                assert!(matches!(error, Error::Foreign(_)) && error.to_string().contains("damaged"), "{error}");
            }
        }
    }
}
