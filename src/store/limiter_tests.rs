//! Tests of the limiter. They are not in `limiter.rs` because `cache::model` compiles that file a second time.

#![cfg(test)]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::limiter::*;
use super::sync::{Arc, Mutex};
use crate::mount::Tenant;

#[tokio::test]
async fn tenants_take_turns() {
    let limiter = Limiter::new(2, 2);
    let (a, b) = (Tenant::named("a"), Tenant::named("b"));
    let held = [limiter.turn(&a).await, limiter.turn(&a).await];
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    let mut wait = |tenant: &Tenant, name: &'static str| {
        let (limiter, tenant, order) = (limiter.clone(), tenant.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let turn = limiter.turn(&tenant).await;
            order.lock().unwrap().push(name);
            drop(turn);
        }));
    };
    for _ in 0..100 {
        wait(&a, "a");
    }
    tokio::task::yield_now().await;
    wait(&b, "b");
    tokio::task::yield_now().await;
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    let place = order.iter().position(|name| *name == "b").unwrap();
    assert!(place <= 3, "{place} requests of `a` ran before `b`");
    assert_eq!(order.len(), 101);
    assert!(limiter.is_idle());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_and_nothing_is_lost_when_callers_go_away() {
    let limiter = Limiter::new(8, 3);
    let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for i in 0..2_000 {
        let (limiter, running, peak) = (limiter.clone(), running.clone(), peak.clone());
        let tenant = Tenant::named(&format!("t{}", i % 7));
        let task = tokio::spawn(async move {
            let _turn = limiter.turn(&tenant).await;
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
        });
        if i % 3 == 0 {
            task.abort();
        }
        tasks.push(task);
    }
    for task in tasks {
        let _ = task.await;
    }
    assert!(peak.load(Ordering::SeqCst) <= 8 + 1);
    assert!(limiter.is_idle());
}
