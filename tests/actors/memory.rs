//! The books of memory and the prefix cache.

use super::*;

#[actix::test]
async fn kv_manager_grants_in_order_up_to_the_first_that_does_not_fit() {
    let (scheduler, granted) = recorder();
    let published = Arc::new(Published::default());
    let kv = KvManager {
        pool: KvPool::unified(10 * 16, 8, Reservation::Request),
        scheduler,
        published: Arc::clone(&published),
        check_invariants: true,
    }
    .start();
    let demand = |blocks: u32| Demand {
        prefix: None,
        prompt_tokens: 1,
        total_max: blocks * 16,
    };
    let demands = [4, 7, 1].map(demand).to_vec();
    let growth = Vec::new();
    kv.send(ReserveMemory(Reserve { growth, demands }))
        .await
        .unwrap();
    let Granted(reserved) = next(&granted).await;
    assert_eq!(
        reserved.leases.len(),
        1,
        "7 do not fit, and the 1 behind it does not pass"
    );
    assert!(reserved.short.is_some_and(|s| !s.attainable));
    assert_eq!(published.kv().blocks_free, 6);
    let seq = reserved.leases[0].seq;
    kv.send(Book(vec![BookEntry::Retire { seq }]))
        .await
        .unwrap();
    assert_eq!(published.kv().blocks_free, 10);
    assert_eq!(
        published.kv().sequences_free,
        7,
        "not before its cells are gone"
    );
    kv.send(Book(vec![BookEntry::Reusable { seq }]))
        .await
        .unwrap();
    assert_eq!(published.kv().sequences_free, 8);
}

fn query(prompt: &Arc<[TokenId]>, cacheable: bool) -> Query {
    Query {
        tokens: Arc::clone(prompt),
        cacheable,
    }
}

#[actix::test]
async fn prefix_cache_locks_what_it_finds_and_gives_up_what_is_not_locked() {
    let (inserted, insertions) = recorder();
    let (matched, matches) = recorder();
    let (evicted, evictions) = recorder();
    let published = Arc::new(Published::default());
    let cache = PrefixCache {
        tree: PrefixTree::new(EvictionOrder::Lru),
        inserted,
        matched,
        evicted,
        published: Arc::clone(&published),
        check_invariants: true,
    }
    .start();
    let prompt: Arc<[TokenId]> = (0..40).map(TokenId).collect();
    let computed = Insertion {
        seq: SeqId(3),
        tokens: Arc::clone(&prompt),
        len: 32,
        computed: 40,
        lock: None,
        leaves: true,
    };
    cache.send(Insert(vec![computed])).await.unwrap();
    assert!(next(&insertions).await.0[0].owner);
    let queries = vec![query(&prompt, true), query(&prompt, false)];
    cache.send(MatchPrefix(queries)).await.unwrap();
    let PrefixMatched(hits) = next(&matches).await;
    let hit = hits[0].unwrap();
    assert_eq!((hit.tokens, hit.seq, hits[1]), (32, SeqId(3), None));
    assert_eq!(published.prefixes().tokens_locked, 32);
    let all = || Evict {
        blocks: 9,
        sequences: 0,
        held: vec![],
    };
    cache.send(EvictPrefixes(all())).await.unwrap();
    assert!(next(&evictions).await.0.evicted.is_empty(), "it is in use");
    cache.send(Unlock(vec![hit.node])).await.unwrap();
    cache.send(EvictPrefixes(all())).await.unwrap();
    assert_eq!(next(&evictions).await.0.evicted[0].seq, SeqId(3));
}
