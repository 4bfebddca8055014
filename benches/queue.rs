//! Cost of a record in the queue, without Python: inside one thread and between two.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fastrl_core::queue::{Options, Order, Policy, Queue, Shared};

const BATCH: usize = 64;

fn queue(order: Order, record_size: usize, capacity: usize) -> Queue {
    let schema = String::new();
    let options =
        Options { record_size, schema, capacity, max_producers: 1, policy: Policy::Block, order, shared: Shared::No };
    Queue::create(&options).expect("these sizes are good")
}

fn put_and_take(c: &mut Criterion) {
    let mut group = c.benchmark_group("put and take, one thread");
    for (order, name) in [(Order::PerProducer, "per producer"), (Order::Total, "total order")] {
        for size in [64, 28 * 1024] {
            let queue = queue(order, size, 4 * BATCH);
            let (mut producer, mut consumer) = (queue.producer().unwrap(), queue.consumer().unwrap());
            let records = vec![7_u8; BATCH * size];
            let mut out = vec![MaybeUninit::<u8>::uninit(); BATCH * size];
            group.throughput(Throughput::Elements(BATCH as u64));
            group.bench_function(format!("{name}, {size} bytes"), |b| {
                b.iter(|| {
                    producer.offer(black_box(&records)).unwrap();
                    consumer.take(black_box(&mut out)).unwrap()
                });
            });
        }
    }
    group.finish();
}

fn between_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("two threads, 64 bytes");
    group.throughput(Throughput::Elements(1));
    for (order, name) in [(Order::PerProducer, "per producer"), (Order::Total, "total order")] {
        group.bench_function(name, |b| {
            b.iter_custom(|count| {
                let queue = queue(order, 64, 64 * BATCH);
                let (mut producer, mut consumer) = (queue.producer().unwrap(), queue.consumer().unwrap());
                let start = std::time::Instant::now();
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let records = vec![7_u8; BATCH * 64];
                        let mut left = count as usize;
                        while left > 0 {
                            let put = producer.offer(&records[..left.min(BATCH) * 64]).unwrap();
                            if put == 0 {
                                producer.wait(1, Duration::from_secs(1)).unwrap();
                            }
                            left -= put;
                        }
                    });
                    let mut out = vec![MaybeUninit::<u8>::uninit(); BATCH * 64];
                    let mut left = count as usize;
                    while left > 0 {
                        let taken = consumer.take(&mut out).unwrap();
                        if taken == 0 {
                            consumer.wait(Duration::from_secs(1)).unwrap();
                        }
                        left -= taken;
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, put_and_take, between_threads);
criterion_main!(benches);
