//! The limiter: a fair queue for requests.
//!
//! So many requests may be in flight at once, and so many for each tenant; the rest wait. Tenants that wait take
//! turns (round robin), so one with a long queue delays itself, and others by one request each. A turn is given back
//! when it is dropped, also by a caller that goes away while it waits. `model` runs this file under shuttle.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::mount::Tenant;

/// Lets requests through.
#[derive(Debug, Clone)]
pub(super) struct Limiter(Arc<LimiterShared>);

#[derive(Debug)]
struct LimiterShared {
    most: usize,
    most_each: usize,
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
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
    limiter: Limiter,
    tenant: Tenant,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.limiter.release(&self.tenant);
    }
}

impl Limiter {
    pub(super) fn new(most: usize, most_each: usize) -> Self {
        let (most, most_each) = (most.max(1), most_each.max(1));
        Self(Arc::new(LimiterShared { most, most_each, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. Whoever goes away while waiting loses it.
    pub(super) async fn turn(&self, tenant: &Tenant) -> Turn {
        let turn = || Turn { limiter: self.clone(), tenant: tenant.clone() };
        let waiting = {
            let mut state = self.lock();
            let LimiterState { running, tenants, turns } = &mut *state;
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
                // The limiter lives as long as its turns: the sender is dropped only with a turn in it.
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
        let mut state = self.lock();
        state.running = state.running.saturating_sub(1);
        let LimiterState { tenants, turns, .. } = &mut *state;
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
        let somebody_waits = !turns.is_empty();
        drop(state);
        if somebody_waits {
            self.dispatch();
        }
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
        let LimiterState { running, tenants, turns } = &mut *state;
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
            return Some((granted, Turn { limiter: self.clone(), tenant }));
        }
        None
    }
}

#[cfg(test)]
impl Limiter {
    /// Whether nobody has a turn and nobody waits for one.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.running == 0 && state.tenants.values().all(|queue| queue.waiting.is_empty())
    }
}
