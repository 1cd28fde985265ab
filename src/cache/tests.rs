//! Tests of the cache. They include the tests of the files that `model` compiles a second time, so that these run once.

#![cfg(test)]

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::error::ErrorKind;
use crate::id::{LibraryId, ThreadId};
use crate::mount::{Owner, Reach};

const HOUR: Duration = Duration::from_secs(3600);

/// A value with a weight of choice.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text(String, u64);

impl Cached for Text {
    fn weight(&self) -> Option<u64> {
        Some(self.1)
    }
}

#[derive(Debug)]
struct Number(u64);

impl Cached for Number {
    fn weight(&self) -> Option<u64> {
        (self.0 > 0).then_some(1)
    }
}

/// Fake session credentials: an id, and the evidence if they are valid.
#[derive(Debug)]
struct Fake(u8, Mutex<Option<Arc<Evidence>>>);

impl Credentials for Fake {
    fn id(&self, _: &str) -> [u8; 16] {
        [self.0; 16]
    }

    fn evidence(&self, _: &str) -> Option<Arc<Evidence>> {
        self.1.lock().unwrap().clone()
    }
}

fn process(cache: &Arc<Cache>, tenant: &str) -> TenantCache {
    TenantCache::new(cache.clone(), Tenant::named(tenant), None)
}

fn with_role(cache: &Arc<Cache>, tenant: &str, id: u8, reach: &[Reach]) -> (TenantCache, Arc<Evidence>) {
    let evidence = Arc::new(Evidence::new(reach));
    let credentials = Arc::new(Fake(id, Mutex::new(Some(evidence.clone()))));
    (TenantCache::new(cache.clone(), Tenant::named(tenant), Some(credentials)), evidence)
}

fn object(key: &str) -> Key<Text> {
    Key::new(About::Object(key.into()), Detail::Only)
}

fn keep(cache: &TenantCache, key: &str, bytes: u64) {
    let key = object(key);
    cache.put(&key, cache.moment(&key), Text("x".to_owned(), bytes));
}

fn is_cached(cache: &TenantCache, key: &str) -> bool {
    cache.peek(&object(key)).is_some()
}

async fn fetch_or_cached(cache: &TenantCache, key: &Key<Text>, bound: Duration, value: &str) -> String {
    let value = Text(value.to_owned(), 10);
    let fetch = |_| async { Ok(value) };
    cache.get(key, Accept::newer_than(bound), fetch).await.unwrap().value.0.clone()
}

#[tokio::test(start_paused = true)]
async fn a_value_is_served_for_as_long_as_the_caller_accepts() {
    let cache = Arc::new(Cache::new(1 << 20));
    let (one, key) = (process(&cache, "a"), object("k"));
    assert_eq!(fetch_or_cached(&one, &key, HOUR, "first").await, "first");
    tokio::time::advance(HOUR / 3).await;
    assert_eq!(fetch_or_cached(&one, &key, HOUR, "second").await, "first");
    assert_eq!(fetch_or_cached(&one, &key, HOUR / 4, "third").await, "third");
    assert_eq!(fetch_or_cached(&one, &key, Duration::ZERO, "fourth").await, "fourth");
    assert_eq!(fetch_or_cached(&one, &key, HOUR, "fifth").await, "fourth");
    let CacheCounts { hits, misses, entries, .. } = cache.counts();
    assert_eq!((hits, misses, entries), (2, 3, 1));
    // Another type about the same place is another entry.
    let number = Key::<Number>::new(About::Object("k".into()), Detail::Only);
    assert!(one.peek(&number).is_none());
    // A value without a weight is not cached.
    let fetched = one.get(&number, Accept::newer_than(HOUR), |_| async { Ok(Number(0)) }).await;
    assert_eq!(fetched.unwrap().value.0, 0);
    assert!(one.peek(&number).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_hit_in_the_second_half_of_its_life_is_refreshed_behind_the_answer() {
    let cache = Arc::new(Cache::new(1 << 20));
    let (one, key) = (process(&cache, "a"), object("k"));
    fetch_or_cached(&one, &key, HOUR, "old").await;
    tokio::time::advance(HOUR * 2 / 3).await;
    assert_eq!(fetch_or_cached(&one, &key, HOUR, "new").await, "old");
    tokio::task::yield_now().await;
    assert_eq!(fetch_or_cached(&one, &key, HOUR, "newer").await, "new");
    assert_eq!(cache.counts().refreshed, 1);
}

#[tokio::test]
async fn what_was_asked_for_before_a_change_is_not_kept_after_it() {
    let cache = Arc::new(Cache::new(1 << 20));
    let one = process(&cache, "a");
    let key = object("threads/t/a.md");
    let (fetching, started) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let (fetching, started) = (Arc::new(fetching), Arc::new(started));
    let slow = {
        let (one, key, fetching, started) = (one.clone(), key.clone(), fetching.clone(), started.clone());
        tokio::spawn(async move {
            let fetch = move |_| async move {
                started.notify_one();
                fetching.notified().await;
                Ok(Text("old".to_owned(), 1))
            };
            one.get(&key, Accept::newer_than(HOUR), fetch).await.unwrap().value.0.clone()
        })
    };
    started.notified().await;
    one.changed_object("threads/t/a.md");
    // A caller after the change neither joins that fetch nor sees its value.
    assert_eq!(fetch_or_cached(&one, &key, HOUR, "new").await, "new");
    fetching.notify_one();
    assert_eq!(slow.await.unwrap(), "old");
    assert_eq!(fetch_or_cached(&one, &key, HOUR, "newer").await, "new");
    // Entries about the parent directories are invalidated as well.
    for about in [About::Prefix("threads/t/".into()), About::Object("threads/t/a".into())] {
        let key = Key::<Number>::new(about.clone(), Detail::Only);
        one.put(&key, one.moment(&key), Number(1));
        one.changed_object("threads/t/a.md");
        assert!(one.peek(&key).is_none(), "{about:?}");
    }
    // An entry about several places is invalidated with any of them.
    let libraries = Arc::new(LibraryPrefixes::of_prefixes(&["u/skills/", "shared/l/skills/"]));
    let key = Key::<Number>::new(About::Libraries(libraries), Detail::Only);
    for changed in ["u/skills/a/SKILL.md", "shared/l/skills/b.md"] {
        one.put(&key, one.moment(&key), Number(1));
        assert!(one.peek(&key).is_some());
        one.changed_object(changed);
        assert!(one.peek(&key).is_none(), "{changed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_callers_share_a_fetch_and_its_error() {
    let cache = Arc::new(Cache::new(1 << 20));
    let one = process(&cache, "a");
    let fetches = Arc::new(AtomicUsize::new(0));
    let call = |fails: bool| {
        let (one, fetches) = (one.clone(), fetches.clone());
        async move {
            let fetch = move |_| async move {
                fetches.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                if fails { Err(Error::new(ErrorKind::Timeout, "no")) } else { Ok(Number(7)) }
            };
            let key = Key::<Number>::new(About::Object(format!("{fails}").into()), Detail::Only);
            one.get(&key, Accept::newer_than(HOUR), fetch).await.map(|kept| kept.value.0)
        }
    };
    let all = futures_util::future::join_all((0..1_000).map(|_| call(false))).await;
    assert!(all.into_iter().all(|result| result.unwrap() == 7));
    let CacheCounts { hits, joined, .. } = cache.counts();
    assert_eq!((fetches.load(Ordering::SeqCst), hits + joined), (1, 999));
    let all = futures_util::future::join_all((0..10).map(|_| call(true))).await;
    assert!(all.into_iter().all(|result| result.unwrap_err().kind() == ErrorKind::Timeout));
    assert_eq!(fetches.load(Ordering::SeqCst), 2);
}

#[test]
fn the_budget_holds_and_what_is_shared_is_the_librarys() {
    let cache = Arc::new(Cache::new(1_000_000));
    let (small, greedy) = (process(&cache, "small"), process(&cache, "greedy"));
    for i in 0..20 {
        keep(&small, &format!("threads/s/{i}"), 1_000);
    }
    for i in 0..5_000 {
        keep(&greedy, &format!("threads/g/{i}"), 1_000);
        assert!(cache.counts().bytes <= 1_000_000);
    }
    assert!((0..20).all(|i| is_cached(&small, &format!("threads/s/{i}"))), "one tenant evicts another");
    assert!(cache.counts().bytes > 900_000, "one tenant cannot use the rest of the budget");
    // A value that is too large is not cached, and does not evict everything else.
    keep(&greedy, "threads/g/huge", 600_000);
    assert!(!is_cached(&greedy, "threads/g/huge"));
    // Entries of a shared library belong to the library: they do not count against the tenant that read them, and a
    // greedy tenant does not evict them.
    for i in 0..20 {
        keep(&greedy, &format!("shared/l/skills/{i}"), 1_000);
    }
    for i in 0..5_000 {
        keep(&greedy, &format!("threads/g/more-{i}"), 1_000);
    }
    assert!(
        (0..20).all(|i| is_cached(&small, &format!("shared/l/skills/{i}"))),
        "entries of a library count against a tenant"
    );
}

#[test]
fn every_part_of_a_key_distinguishes_entries() {
    let cache = Arc::new(Cache::new(1 << 20));
    let one = process(&cache, "a");
    let libraries = |prefixes: &[&str]| About::Libraries(Arc::new(LibraryPrefixes::of_prefixes(prefixes)));
    let places = [
        About::Object("u/skills/".into()),
        About::Object("u/skills".into()),
        About::Prefix("u/skills/".into()),
        libraries(&["u/skills/"]),
        libraries(&["u/skills/", "shared/a/skills/"]),
        libraries(&["u/skills/", "shared/b/skills/"]),
        libraries(&["shared/a/skills/", "u/skills/"]),
    ];
    let details = [
        Detail::Only,
        Detail::Kind("a"),
        Detail::named("a"),
        Detail::named("b"),
        Detail::Depth(crate::entry::Depth::One),
        Detail::Depth(crate::entry::Depth::All),
    ];
    let mut number = 0;
    let mut all = Vec::new();
    for about in &places {
        for detail in &details {
            number += 1;
            let key = Key::<Number>::new(about.clone(), detail.clone());
            one.put(&key, one.moment(&key), Number(number));
            all.push((key, number));
        }
    }
    for (key, number) in all {
        assert_eq!(one.peek(&key).map(|kept| kept.value.0), Some(number), "{key:?}");
    }
}

fn library(id: &str) -> Reach {
    Reach::library(Owner::Library(LibraryId::parse(id).unwrap()))
}

fn thread(id: &str) -> Reach {
    let of = Owner::Thread(ThreadId::parse(id).unwrap());
    Reach::Below { prefix: format!("threads/{id}/"), write: true, of }
}

#[test]
fn with_a_role_a_session_sees_what_its_own_credentials_were_let_through_to() {
    let cache = Arc::new(Cache::new(1 << 20));
    let (one, own) = with_role(&cache, "u1", 1, &[library("acme"), thread("t1")]);
    let (other, others) = with_role(&cache, "u2", 2, &[library("acme"), thread("t2")]);
    let blob = "shared/acme/.skillfs/blobs/b";
    // Nothing is cached without evidence that S3 allowed it.
    keep(&one, blob, 10);
    assert!(process(&cache, "x").peek(&object(blob)).is_none());
    own.record("shared/acme/.skillfs/index.json", Passed::Read, true);
    keep(&one, blob, 10);
    assert!(is_cached(&one, blob));
    // Another session sees it only after S3 has allowed it to read the index itself.
    assert!(!is_cached(&other, blob));
    others.record("shared/acme/.skillfs/index.json", Passed::Read, true);
    assert!(is_cached(&other, blob));
    // A denied request revokes that.
    others.record("shared/acme/.skillfs/index.json", Passed::Read, false);
    assert!(!is_cached(&other, blob));
    assert!(is_cached(&one, blob));
    // A session never sees the files of another thread.
    own.record("threads/t1/a", Passed::Read, true);
    others.record("threads/t2/a", Passed::Read, true);
    keep(&one, "threads/t1/secret", 10);
    assert!(is_cached(&one, "threads/t1/secret") && !is_cached(&other, "threads/t1/secret"));
    keep(&other, "threads/t1/forged", 10);
    assert!(!is_cached(&one, "threads/t1/forged"), "a session can cache what it cannot access");
}

#[test]
fn without_credentials_nothing_is_shown() {
    let cache = Arc::new(Cache::new(1 << 20));
    let (one, own) = with_role(&cache, "u1", 1, &[thread("t1")]);
    own.record("threads/t1/a", Passed::Read, true);
    keep(&one, "threads/t1/a", 10);
    let waiting = Arc::new(Fake(1, Mutex::new(None)));
    let waiting = TenantCache::new(cache, Tenant::named("u1"), Some(waiting));
    assert!(is_cached(&one, "threads/t1/a") && !is_cached(&waiting, "threads/t1/a"));
}

#[tokio::test]
async fn callers_with_different_credentials_do_not_share_a_fetch() {
    let cache = Arc::new(Cache::new(1 << 20));
    let reach = [library("acme")];
    let (one, _) = with_role(&cache, "u1", 1, &reach);
    let (same, _) = with_role(&cache, "u1", 1, &reach);
    let (other, _) = with_role(&cache, "u2", 2, &reach);
    let fetches = Arc::new(AtomicUsize::new(0));
    let call = |cache: &TenantCache| {
        let (cache, fetches) = (cache.clone(), fetches.clone());
        async move {
            let fetch = move |_| async move {
                fetches.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Ok(Number(1))
            };
            let key = Key::<Number>::new(About::Object("shared/acme/skills/a".into()), Detail::Only);
            cache.get(&key, Accept::newer_than(HOUR), fetch).await.unwrap();
        }
    };
    tokio::join!(call(&one), call(&same));
    assert_eq!(fetches.load(Ordering::SeqCst), 1, "the same credentials do not share a fetch");
    tokio::join!(call(&one), call(&other), call(&process(&cache, "p")));
    assert_eq!(fetches.load(Ordering::SeqCst), 4, "different credentials share a fetch");
}

#[tokio::test]
async fn callers_that_want_different_things_do_not_share_a_fetch() {
    let cache = Arc::new(Cache::new(1 << 20));
    let one = process(&cache, "a");
    let call = |detail: &'static str| {
        let one = one.clone();
        async move {
            let accept = Accept { fetches: Detail::Kind(detail), ..Accept::newer_than(HOUR) };
            let fetch = move |_| async move {
                tokio::task::yield_now().await;
                Ok(Text(detail.to_owned(), 1))
            };
            one.get(&object("k"), accept, fetch).await.unwrap().value.0.clone()
        }
    };
    assert_eq!(tokio::join!(call("text"), call("bytes")), ("text".to_owned(), "bytes".to_owned()));
}

mod epochs {
    use crate::cache::epochs::*;

    #[test]
    fn a_write_invalidates_the_object_and_all_directories_above_it() {
        // A write, the paths that it must invalidate, and paths that it must not.
        for (written, stale, fresh) in [
            (
                "threads/t/a/b.md",
                vec!["threads/t/a/b.md", "threads/t/a/b", "threads/t/a/", "threads/t/", "threads/t"],
                vec!["threads/t/a/c.md", "threads/t2/"],
            ),
            ("threads/t/dir/", vec!["threads/t/dir", "threads/t/dir/", "threads/t/"], vec!["threads/t/dir2"]),
        ] {
            let epochs = Epochs::new();
            let before = |path: &str| epochs.of([path].into_iter());
            let (old, kept): (Vec<_>, Vec<_>) = (
                stale.iter().map(|path| before(path)).collect(),
                fresh.iter().map(|path| before(path)).collect(),
            );
            epochs.advance_object(written);
            for (path, old) in stale.iter().zip(old) {
                assert_ne!(before(path), old, "{written} does not invalidate {path}");
            }
            for (path, old) in fresh.iter().zip(kept) {
                // Two paths may share a slot by chance.
                let shared = stale.iter().any(|stale| std::ptr::eq(epochs.slot(stale), epochs.slot(path)));
                assert!(before(path) == old || shared, "{written} invalidates {path}");
            }
        }
    }

    #[test]
    fn the_epoch_of_several_paths_changes_with_any_of_them() {
        let epochs = Epochs::new();
        let both = || epochs.of(["a/", "b/"].into_iter());
        let start = both();
        epochs.advance("a/");
        let after_a = both();
        epochs.advance("b/");
        assert!(start != after_a && after_a != both() && start != both());
    }
}

mod eviction {
    use crate::cache::eviction::*;

    fn entries(budget: u64) -> Entries<String, &'static str, u32> {
        Entries::new(budget)
    }

    fn put(entries: &Entries<String, &'static str, u32>, owner: &'static str, key: &str, weight: u64) -> u64 {
        entries.insert(key.to_owned(), owner, weight, 0, |_| false)
    }

    #[test]
    fn the_budget_holds_and_the_books_are_right() {
        let all = entries(1_000);
        let mut evicted = 0;
        for i in 0..1_000 {
            evicted += put(&all, "a", &format!("{}", i % 300), 10 + i % 7);
            let (_, bytes) = all.usage();
            assert!(bytes <= 1_000, "{i}: {bytes}");
        }
        let (count, bytes) = all.usage();
        let held = (0..300).filter_map(|i| all.get(&format!("{i}"))).collect::<Vec<_>>();
        assert_eq!(held.len() as u64, count);
        assert_eq!(held.iter().map(|slot| slot.weight).sum::<u64>(), bytes);
        assert!(evicted > 0 && bytes > 900, "{evicted} {bytes}");
    }

    #[test]
    fn one_owner_cannot_evict_the_others() {
        let all = entries(1_000);
        for i in 0..10 {
            put(&all, "small", &format!("s{i}"), 10);
        }
        for i in 0..10_000 {
            put(&all, "greedy", &format!("g{i}"), 10);
        }
        assert!((0..10).all(|i| all.get(&format!("s{i}")).is_some()));
        // Two owners with equal use lose the same number of entries.
        let all = entries(1_000);
        for i in 0..1_000 {
            put(&all, "one", &format!("a{i}"), 10);
            put(&all, "two", &format!("b{i}"), 10);
        }
        let count = |letter: &str| (0..1_000).filter(|i| all.get(&format!("{letter}{i}")).is_some()).count();
        assert_eq!((count("a"), count("b")), (50, 50));
    }

    #[test]
    fn what_is_used_gets_a_second_chance() {
        let all = entries(100);
        for i in 0..10 {
            put(&all, "a", &format!("{i}"), 10);
        }
        assert!(all.get(&"0".to_owned()).is_some());
        put(&all, "a", "new", 10);
        assert!(all.get(&"0".to_owned()).is_some(), "an entry in use was evicted");
        assert!(all.get(&"1".to_owned()).is_none());
    }

    #[test]
    fn a_newer_value_is_not_replaced_by_an_older_one() {
        let all = entries(100);
        let put = |value: u32| all.insert("k".to_owned(), "a", 10, value, |cached| *cached > value);
        put(2);
        put(1);
        assert_eq!(all.get(&"k".to_owned()).unwrap().value, 2);
        put(3);
        assert_eq!((all.get(&"k".to_owned()).unwrap().value, all.usage()), (3, (1, 10)));
    }

    #[test]
    fn an_entry_larger_than_the_budget_is_evicted_at_once() {
        let all = entries(100);
        put(&all, "a", "small", 10);
        assert_eq!(put(&all, "b", "huge", 500), 1);
        assert_eq!(all.usage(), (1, 10));
    }
}
