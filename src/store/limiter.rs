//! A concurrency limiter with a fair queue over tenants.
//!
//! The number of requests in flight is limited in total and per tenant; the rest wait. Waiting tenants are served round
//! robin, so a tenant with a long queue delays the others by at most one request each. A [`Turn`] is a permit: dropping
//! it releases it, and a waiter that is dropped loses its place. `cache::model` runs this file under shuttle.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::mount::Tenant;

/// Grants permits to send requests.
#[derive(Debug, Clone)]
pub(super) struct Limiter(Arc<LimiterShared>);

#[derive(Debug)]
struct LimiterShared {
    max: usize,
    max_per_tenant: usize,
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
    running: usize,
    tenants: HashMap<Tenant, Queue>,
    /// Tenants with waiters that are below their limit, in round-robin order.
    turns: VecDeque<Tenant>,
}

#[derive(Debug, Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
    /// Whether the tenant is in [`LimiterState::turns`].
    in_turns: bool,
}

/// A permit for one request in flight. Released on drop.
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
    pub(super) fn new(max: usize, max_per_tenant: usize) -> Self {
        let (max, max_per_tenant) = (max.max(1), max_per_tenant.max(1));
        Self(Arc::new(LimiterShared { max, max_per_tenant, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a permit. Dropping the future gives up the place in the queue.
    pub(super) async fn turn(&self, tenant: &Tenant) -> Turn {
        let turn = || Turn { limiter: self.clone(), tenant: tenant.clone() };
        let waiting = {
            let mut state = self.lock();
            let LimiterState { running, tenants, turns } = &mut *state;
            let queue = tenants.entry(tenant.clone()).or_default();
            let free = *running < self.0.max && queue.running < self.0.max_per_tenant;
            // Waiters come first. Tenants that are at their own limit are not in `turns` and do not count.
            if free && queue.waiting.is_empty() && turns.is_empty() {
                *running += 1;
                queue.running += 1;
                None
            } else {
                let (granted, waiting) = oneshot::channel();
                queue.waiting.push_back(granted);
                if !queue.in_turns && queue.running < self.0.max_per_tenant {
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
                // Not expected: a queued sender is dropped only after it has sent a permit, or once its receiver is
                // gone.
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
        let has_waiters = !turns.is_empty();
        drop(state);
        if has_waiters {
            self.dispatch();
        }
    }

    /// Grants the free permits, one per tenant in round-robin order.
    fn dispatch(&self) {
        loop {
            // Send outside the lock: a permit whose receiver is gone is dropped at once, and its `Drop` takes the lock.
            let Some((granted, turn)) = self.next() else { return };
            let _ = granted.send(turn);
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<Turn>, Turn)> {
        let mut state = self.lock();
        let LimiterState { running, tenants, turns } = &mut *state;
        while *running < self.0.max {
            let tenant = turns.pop_front()?;
            let Some(queue) = tenants.get_mut(&tenant) else { continue };
            queue.in_turns = false;
            // Skip waiters that were dropped.
            while queue.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                queue.waiting.pop_front();
            }
            if queue.running >= self.0.max_per_tenant {
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
            if !queue.waiting.is_empty() && queue.running < self.0.max_per_tenant {
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
    /// Returns whether no permit is held and nobody waits for one.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.running == 0 && state.tenants.values().all(|queue| queue.waiting.is_empty())
    }
}
