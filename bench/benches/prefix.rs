//! What a lookup costs, beside a reference that scans all prefixes: `cargo bench --bench prefix`.

use std::hint::black_box;
use std::time::Duration;

use cadenced::ids::{SeqId, TokenId};
use cadenced::logic::prefix::{EvictionOrder, PrefixCache, Want};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SIZES: [u32; 3] = [100, 1_000, 10_000];
const PROMPT: usize = 512;

/// Token `i` of prefix `p`: what a hundred system prompts of 256 tokens begin, each goes on in its own way.
fn token(p: u32, i: usize) -> TokenId {
    let who = if i < 256 { p % 100 } else { 1000 + p };
    TokenId((who.wrapping_mul(2_654_435_761) ^ (i as u32).wrapping_mul(40_503)) as i32 & 0x1_ffff)
}

fn prompt(p: u32, len: usize) -> Vec<TokenId> {
    (0..len).map(|i| token(p, i)).collect()
}

fn filled(prefixes: u32) -> PrefixCache {
    let mut cache = PrefixCache::new(EvictionOrder::Lru);
    for p in 0..prefixes {
        cache.insert(&prompt(p, PROMPT), SeqId(p));
    }
    assert_eq!(cache.usage().leaves, prefixes);
    cache
}

/// The longest common prefix with any of `all`, in whole blocks.
fn scan(all: &[Vec<TokenId>], prompt: &[TokenId]) -> usize {
    let shared = |p: &Vec<TokenId>| p.iter().zip(prompt).take_while(|(a, b)| a == b).count() / 16;
    all.iter().map(shared).max().unwrap_or(0) * 16
}

/// 512 tokens in trees of several sizes. The work is the same in each; when the prompts go round, the largest
/// tree (20 MB of tokens) no longer fits into the CPU's caches.
fn independent_of_the_tree(c: &mut Criterion) {
    let mut group = c.benchmark_group("longest_prefix_of_512_tokens");
    for size in SIZES {
        let mut cache = filled(size);
        let all: Vec<_> = (0..size).map(|p| prompt(p, PROMPT)).collect();
        let mut next = (0..size)
            .map(|i| (i.wrapping_mul(7919) % size) as usize)
            .cycle();
        group.bench_function(BenchmarkId::new("probe_one_again", size), |b| {
            b.iter(|| cache.probe(black_box(&all[size as usize / 2]), 511));
        });
        group.bench_function(BenchmarkId::new("probe", size), |b| {
            b.iter(|| cache.probe(black_box(&all[next.next().unwrap()]), 511));
        });
        group.bench_function(BenchmarkId::new("match_and_unlock", size), |b| {
            b.iter(|| {
                let hit = cache
                    .match_prefix(black_box(&all[next.next().unwrap()]), 511)
                    .unwrap();
                cache.unlock(hit.node)
            });
        });
        group.bench_function(BenchmarkId::new("naive_scan", size), |b| {
            b.iter(|| scan(&all, black_box(&all[next.next().unwrap()])));
        });
    }
    group.finish();
}

/// Prompts of several lengths, each cached as one edge, and as an edge for every block: the worst case.
fn linear_in_the_prompt(c: &mut Criterion) {
    let mut group = c.benchmark_group("prompt_length");
    for len in [128, 512, 2_048, 8_192] {
        group.throughput(Throughput::Elements(len as u64));
        let mut cache = filled(1_000);
        let long = prompt(5_000, len);
        cache.insert(&long, SeqId(5_000));
        group.bench_function(BenchmarkId::new("one_edge", len), |b| {
            b.iter(|| cache.probe(black_box(&long), u32::MAX));
        });
        for end in (16..len).step_by(16) {
            let hit = cache.match_prefix(&long[..end], u32::MAX).unwrap();
            cache.unlock(hit.node).unwrap();
        }
        group.bench_function(BenchmarkId::new("edge_a_block", len), |b| {
            b.iter(|| cache.probe(black_box(&long), u32::MAX));
        });
    }
    group.finish();
}

/// A leaf evicted and a sequence inserted in its place.
fn turnover(c: &mut Criterion) {
    let mut group = c.benchmark_group("evict_and_insert");
    for size in SIZES {
        let mut cache = filled(size);
        let all: Vec<_> = (0..2 * size).map(|p| prompt(p, PROMPT)).collect();
        let mut next = (size..2 * size).chain(0..size).cycle();
        let mut out = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                out.clear();
                let one = Want {
                    blocks: 0,
                    sequences: 1,
                };
                cache.evict(one, &mut out);
                let p = next.next().unwrap();
                cache.insert(black_box(&all[p as usize]), SeqId(p))
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2));
    targets = independent_of_the_tree, linear_in_the_prompt, turnover
}
criterion_main!(benches);
