//! Who may send now: so many requests at once, so many for each tenant, and tenants take turns.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::mount::Tenant;

/// Lets requests through. A tenant with a long queue delays itself, and others by one request each.
#[derive(Debug, Clone)]
pub(super) struct Gate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    most_each: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    tenants: HashMap<Tenant, Queue>,
    /// Tenants that wait and may send, in their order.
    turns: VecDeque<Tenant>,
}

#[derive(Debug, Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
    in_turns: bool,
}

/// The right to have one request under way; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    gate: Gate,
    tenant: Tenant,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gate.release(&self.tenant);
    }
}

impl Gate {
    pub(super) fn new(most: usize, most_each: usize) -> Self {
        let (most, most_each) = (most.max(1), most_each.max(1));
        Self(Arc::new(Shared { most, most_each, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. Whoever goes away while waiting loses it.
    pub(super) async fn turn(&self, tenant: &Tenant) -> Turn {
        let turn = || Turn { gate: self.clone(), tenant: tenant.clone() };
        let waiting = {
            let mut state = self.lock();
            let State { running, tenants, turns } = &mut *state;
            let queue = tenants.entry(tenant.clone()).or_default();
            let free = *running < self.0.most && queue.running < self.0.most_each;
            // Those who wait come first; some wait only because their own tenant has enough under way.
            if free && queue.waiting.is_empty() && turns.is_empty() {
                *running += 1;
                queue.running += 1;
                None
            } else {
                let (granted, waiting) = oneshot::channel();
                queue.waiting.push_back(granted);
                if !queue.in_turns && queue.running < self.0.most_each {
                    queue.in_turns = true;
                    turns.push_back(tenant.clone());
                }
                Some(waiting)
            }
        };
        match waiting {
            None => turn(),
            Some(waiting) => {
                self.dispatch();
                // The gate lives as long as its turns: the sender is dropped only with a turn in it.
                waiting.await.unwrap_or_else(|_| {
                    let mut state = self.lock();
                    state.running += 1;
                    state.tenants.entry(tenant.clone()).or_default().running += 1;
                    drop(state);
                    turn()
                })
            }
        }
    }

    fn release(&self, tenant: &Tenant) {
        {
            let mut state = self.lock();
            state.running = state.running.saturating_sub(1);
            let State { tenants, turns, .. } = &mut *state;
            if let Some(queue) = tenants.get_mut(tenant) {
                queue.running = queue.running.saturating_sub(1);
                if !queue.waiting.is_empty() && !queue.in_turns {
                    queue.in_turns = true;
                    turns.push_back(tenant.clone());
                }
                if queue.waiting.is_empty() && queue.running == 0 && !queue.in_turns {
                    tenants.remove(tenant);
                }
            }
        }
        self.dispatch();
    }

    /// Gives out what is free: one to each tenant in turn.
    fn dispatch(&self) {
        loop {
            // Outside of the lock: a turn that nobody takes any more comes straight back.
            let Some((granted, turn)) = self.next() else { return };
            let _ = granted.send(turn);
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<Turn>, Turn)> {
        let mut state = self.lock();
        let State { running, tenants, turns } = &mut *state;
        while *running < self.0.most {
            let tenant = turns.pop_front()?;
            let Some(queue) = tenants.get_mut(&tenant) else { continue };
            queue.in_turns = false;
            // Those who went away need no turn.
            while queue.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                queue.waiting.pop_front();
            }
            if queue.running >= self.0.most_each {
                continue;
            }
            let Some(granted) = queue.waiting.pop_front() else {
                if queue.running == 0 {
                    tenants.remove(&tenant);
                }
                continue;
            };
            queue.running += 1;
            *running += 1;
            if !queue.waiting.is_empty() && queue.running < self.0.most_each {
                queue.in_turns = true;
                turns.push_back(tenant.clone());
            }
            return Some((granted, Turn { gate: self.clone(), tenant }));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn tenants_take_turns() {
        let gate = Gate::new(2, 2);
        let (a, b) = (Tenant::named("a"), Tenant::named("b"));
        let held = [gate.turn(&a).await, gate.turn(&a).await];
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        let mut wait = |tenant: &Tenant, name: &'static str| {
            let (gate, tenant, order) = (gate.clone(), tenant.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let turn = gate.turn(&tenant).await;
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
        assert!(place <= 3, "b came {place} places behind a");
        assert_eq!(order.len(), 101);
        assert!(gate.lock().tenants.is_empty() && gate.lock().running == 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn limits_hold_and_nothing_is_lost_when_callers_go_away() {
        let gate = Gate::new(8, 3);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = Vec::new();
        for i in 0..2_000 {
            let (gate, running, most) = (gate.clone(), running.clone(), most.clone());
            let tenant = Tenant::named(&format!("t{}", i % 7));
            let task = tokio::spawn(async move {
                let _turn = gate.turn(&tenant).await;
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
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
        assert!(most.load(Ordering::SeqCst) <= 8 + 1);
        let state = gate.lock();
        assert!(state.running == 0 && state.tenants.values().all(|queue| queue.waiting.is_empty()));
    }
}
