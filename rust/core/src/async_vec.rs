//! Asynchronous stepping of many environments of one agent each: each is stepped when its action comes, and none waits
//! for a slower one.
//!
//! ```text
//! send(envs, actions)  ->  todo  ->  threads step  ->  ready  ->  recv: the first M that are ready, in that order
//! ```
//!
//! The caller owns all arrays of a call; between calls each environment keeps the result of its last step. An
//! environment is idle, or in flight from `send` or `reset` until `recv`. Only an idle one can be sent, so each steps
//! exactly once for each send. Threads without work sleep. (The idea is EnvPool's: J. Weng and others, "EnvPool: a
//! highly parallel reinforcement learning environment execution engine", 2022.)

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::env::{ActionKind, Actions, AgentRows, Env};
use crate::memory::{arrays, ask_for};
use crate::streams::env_seed;

/// Time after which a thread delivers the environments that are ready, even amid many short steps.
const DELIVERY_INTERVAL: Duration = Duration::from_micros(50);

/// The largest number of steps that a thread takes on at once.
const MAX_BATCH: usize = 32;

/// The error of a call for masks that do not exist.
pub const NO_MASKS: &str =
    "action_masks: expected environments that have masks, got some without; only discrete actions can have them";

/// The reason why a call was refused. Nothing has changed then.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    NoSuchEnv {
        id: i64,
        num_envs: usize,
    },
    Twice {
        id: i64,
    },
    InFlight {
        id: i64,
    },
    NeverReset {
        id: i64,
    },
    Ended {
        id: i64,
    },
    /// The environments have no action masks.
    NoMasks,
    Action {
        id: i64,
        expected: String,
    },
    /// Actions of another kind or number than the envs take.
    Actions,
    TooMany {
        wanted: usize,
        in_flight: usize,
    },
    Threads(String),
    /// There is not enough memory.
    Memory(String),
    /// An environment panicked. None can be used any more.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchEnv { id, num_envs } => write!(f, "env_ids: expected 0 to {}, got {id}", num_envs - 1),
            Self::Twice { id } => write!(f, "env_ids: environment {id} is named twice"),
            Self::InFlight { id } => write!(f, "environment {id} is in flight: recv() it first"),
            Self::NeverReset { id } => write!(f, "environment {id} was never reset: call reset() and recv() first"),
            Self::Ended { id } => {
                write!(f, "the episode of environment {id} has ended and autoreset is disabled: reset() it first")
            }
            Self::NoMasks => f.write_str(NO_MASKS),
            Self::Action { id, expected } => write!(f, "action of environment {id}: expected {expected}"),
            Self::Actions => f.write_str("actions of another kind or number than these environments take"),
            Self::TooMany { wanted, in_flight } => {
                write!(f, "recv: expected at most {in_flight} environments, as many as are in flight, got {wanted}")
            }
            Self::Threads(why) | Self::Memory(why) => f.write_str(why),
            Self::Failed(why) => write!(f, "an environment failed, make new ones: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// The arrays that `recv` fills, a row for each environment that it waits for. Flags are bytes, 0 or 1.
pub struct Received<'a> {
    pub ids: &'a mut [i64],
    /// The observation for the next action: after the end of an episode, with `same_step`, the first of the next one.
    pub obs: &'a mut [f32],
    pub rewards: &'a mut [f32],
    pub terminated: &'a mut [u8],
    pub truncated: &'a mut [u8],
    /// The true last observation of an episode that ended; other rows stay as they are.
    pub final_obs: &'a mut [f32],
    /// The last action mask of an episode that ended; other rows stay as they are.
    pub final_masks: &'a mut [u8],
    /// The values of the infos of an episode that ended; other rows stay as they are.
    pub episode_info: &'a mut [f64],
}

enum Task {
    Reset { env_index: u64, number: u64 },
    Step,
}

struct Slot<W> {
    env: W,
    task: Task,
    env_index: u64,
    number: u64,
    action: i64,
    numbers: Vec<f32>,
    obs: Vec<f32>,
    final_obs: Vec<f32>,
    final_mask: Vec<u8>,
    episode_info: Vec<f64>,
    reward: f32,
    terminated: u8,
    truncated: u8,
    alive: u8,
}

#[derive(Clone, Copy, PartialEq)]
enum EnvState {
    NeverReset,
    Idle,
    /// Idle, and its episode has ended.
    Ended,
    InFlight,
}

#[derive(Default)]
struct Queues {
    todo: VecDeque<usize>,
    ready: VecDeque<usize>,
    /// Number of threads that sleep.
    idle: usize,
    /// Number of ready environments that `recv` waits for; 0 if it does not wait.
    wanted: usize,
    closing: bool,
    failed: Option<String>,
}

struct Shared<W> {
    /// Each is locked by the thread that steps it while it is in flight, by the caller otherwise: no lock is ever
    /// contended.
    slots: Vec<Mutex<Slot<W>>>,
    queues: Mutex<Queues>,
    work: Condvar,
    done: Condvar,
    seed: u64,
    same_step: bool,
    info_keys: Vec<String>,
    threads: usize,
    busy_nanos: AtomicU64,
}

pub struct AsyncVec<W: Env> {
    shared: Arc<Shared<W>>,
    states: Vec<EnvState>,
    in_flight: usize,
    threads: Vec<JoinHandle<()>>,
    action_kind: ActionKind,
    obs_len: usize,
    mask_len: usize,
    /// The process that made it: threads do not survive a fork.
    owner: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic inside an environment is caught and reported; the state that it leaves is not used again.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The methods of an [`AsyncVec`], whatever the type of its environments.
pub trait AsyncEnvs: Send {
    fn num_envs(&self) -> usize;

    fn obs_len(&self) -> usize;

    fn action_kind(&self) -> ActionKind;

    /// See [`Env::mask_len`].
    fn mask_len(&self) -> usize;

    /// The number of environments in flight, which `recv` can return.
    fn in_flight(&self) -> usize;

    /// Time that the threads have spent on steps and resets so far, summed over them.
    fn busy(&self) -> Duration;

    /// Starts episode `numbers[i]` of the sequence `env_indices[i]` in environment `ids[i]`, which is in flight then.
    /// Its seed is `env_seed(seed, env_index, number)`.
    fn reset(&mut self, ids: &[i64], env_indices: &[u64], numbers: &[u64]) -> Result<(), Error>;

    /// Writes the action masks of these environments, none of which is in flight.
    fn action_masks(&self, ids: &[i64], masks: &mut [u8]) -> Result<(), Error>;

    /// Sends an action to each of these environments, which are in flight then.
    fn send(&mut self, ids: &[i64], actions: Actions<'_>) -> Result<(), Error>;

    /// Waits, at most `timeout`, until as many environments are ready as there are rows, and receives the first of
    /// them. Returns false, and nothing has changed, if there were not as many in time.
    fn recv(&mut self, rows: &mut Received<'_>, timeout: Duration) -> Result<bool, Error>;
}

impl<W: Env + 'static> AsyncVec<W> {
    /// Starts the threads. With `same_step` the step that ends an episode starts the next one of its sequence.
    /// `threads` 0: one for each core. `info_keys` name the infos that [`Received`] has of episodes that ended. Panics
    /// if there is no environment or one has several agents.
    pub fn new(
        envs: Vec<W>,
        seed: u64,
        same_step: bool,
        threads: usize,
        info_keys: Vec<String>,
    ) -> Result<Self, Error> {
        let first = envs.first().expect("at least one env");
        assert!(envs.iter().all(|env| env.num_agents() == 1));
        let (action_kind, obs_len, mask_len) = (first.action_kind(), first.obs_len(), first.mask_len());
        let numbers = if let ActionKind::Box(len) = action_kind { len } else { 0 };
        let count = envs.len();
        let of_arrays = (2 * obs_len + numbers) * size_of::<f32>() + mask_len + info_keys.len() * size_of::<f64>();
        let each = 2 * size_of::<Mutex<Slot<W>>>() + arrays(5, of_arrays);
        ask_for(each.saturating_mul(count)).map_err(|_| {
            Error::Memory(format!("there is not enough memory to step {count} environments asynchronously"))
        })?;
        let states = vec![EnvState::NeverReset; count];
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores } else { threads }.min(envs.len());
        let slot = |env| Slot {
            env,
            task: Task::Step,
            env_index: 0,
            number: 0,
            action: 0,
            numbers: vec![0.0; numbers],
            obs: vec![0.0; obs_len],
            final_obs: vec![0.0; obs_len],
            final_mask: vec![0; mask_len],
            episode_info: vec![f64::NAN; info_keys.len()],
            reward: 0.0,
            terminated: 0,
            truncated: 0,
            alive: 0,
        };
        let shared = Arc::new(Shared {
            slots: envs.into_iter().map(|env| Mutex::new(slot(env))).collect(),
            queues: Mutex::new(Queues::default()),
            work: Condvar::new(),
            done: Condvar::new(),
            seed,
            same_step,
            info_keys,
            threads,
            busy_nanos: AtomicU64::new(0),
        });
        let owner = std::process::id();
        let mut all = Self { shared, states, in_flight: 0, threads: Vec::new(), action_kind, obs_len, mask_len, owner };
        for i in 0..threads {
            let shared = all.shared.clone();
            // Dropping `all` ends the threads that have started.
            let thread = Builder::new().name(format!("fastrl-async-{i}")).spawn(move || shared.run());
            let thread = thread.map_err(|e| {
                Error::Threads(format!("could not start {threads} threads: {e}; pass a smaller num_threads"))
            })?;
            all.threads.push(thread);
        }
        Ok(all)
    }

    /// Checks that these environments are idle and each is named once.
    fn check(&self, ids: &[i64]) -> Result<(), Error> {
        if let Some(why) = &lock(&self.shared.queues).failed {
            return Err(Error::Failed(why.clone()));
        }
        let mut seen = vec![false; self.states.len()];
        for &id in ids {
            let state = usize::try_from(id).ok().and_then(|i| self.states.get(i));
            match state.ok_or(Error::NoSuchEnv { id, num_envs: self.states.len() })? {
                EnvState::InFlight => return Err(Error::InFlight { id }),
                _ if std::mem::replace(&mut seen[id as usize], true) => return Err(Error::Twice { id }),
                _ => {}
            }
        }
        Ok(())
    }

    fn put(&mut self, ids: &[i64]) {
        for &id in ids {
            self.states[id as usize] = EnvState::InFlight;
        }
        self.in_flight += ids.len();
        let mut queues = lock(&self.shared.queues);
        queues.todo.extend(ids.iter().map(|&id| id as usize));
        let wake = queues.idle.min(ids.len());
        drop(queues);
        for _ in 0..wake {
            self.shared.work.notify_one();
        }
    }
}

impl<W: Env + 'static> AsyncEnvs for AsyncVec<W> {
    fn num_envs(&self) -> usize {
        self.states.len()
    }

    fn obs_len(&self) -> usize {
        self.obs_len
    }

    fn action_kind(&self) -> ActionKind {
        self.action_kind
    }

    fn mask_len(&self) -> usize {
        self.mask_len
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn busy(&self) -> Duration {
        Duration::from_nanos(self.shared.busy_nanos.load(Relaxed))
    }

    fn reset(&mut self, ids: &[i64], env_indices: &[u64], numbers: &[u64]) -> Result<(), Error> {
        self.check(ids)?;
        for ((&id, &env_index), &number) in ids.iter().zip(env_indices).zip(numbers) {
            lock(&self.shared.slots[id as usize]).task = Task::Reset { env_index, number };
        }
        self.put(ids);
        Ok(())
    }

    fn action_masks(&self, ids: &[i64], masks: &mut [u8]) -> Result<(), Error> {
        if self.mask_len == 0 {
            return Err(Error::NoMasks);
        }
        self.check(ids)?;
        for (&id, mask) in ids.iter().zip(masks.chunks_exact_mut(self.mask_len)) {
            lock(&self.shared.slots[id as usize]).env.action_mask(mask);
        }
        Ok(())
    }

    fn send(&mut self, ids: &[i64], actions: Actions<'_>) -> Result<(), Error> {
        self.check(ids)?;
        if matches!(actions, Actions::Double(_)) || !actions.fit(self.action_kind, ids.len()) {
            return Err(Error::Actions);
        }
        for (i, &id) in ids.iter().enumerate() {
            match self.states[id as usize] {
                EnvState::NeverReset => return Err(Error::NeverReset { id }),
                EnvState::Ended => return Err(Error::Ended { id }),
                EnvState::Idle | EnvState::InFlight => {}
            }
            let slot = lock(&self.shared.slots[id as usize]);
            let checked = slot.env.check(actions.of_env(i, 1, ids.len()));
            checked.map_err(|refused| Error::Action { id, expected: refused.expected })?;
        }
        for (i, &id) in ids.iter().enumerate() {
            let mut slot = lock(&self.shared.slots[id as usize]);
            slot.task = Task::Step;
            match actions.of_env(i, 1, ids.len()) {
                Actions::Discrete(own) => slot.action = own[0],
                Actions::Box(own) => slot.numbers.copy_from_slice(own),
                Actions::Double(_) => unreachable!("refused above"),
            }
        }
        self.put(ids);
        Ok(())
    }

    fn recv(&mut self, rows: &mut Received<'_>, timeout: Duration) -> Result<bool, Error> {
        let count = rows.ids.len();
        if count > self.in_flight {
            return Err(Error::TooMany { wanted: count, in_flight: self.in_flight });
        }
        let mut queues = lock(&self.shared.queues);
        if queues.ready.len() < count && queues.failed.is_none() {
            queues.wanted = count;
            let waited = self
                .shared
                .done
                .wait_timeout_while(queues, timeout, |queues| queues.ready.len() < count && queues.failed.is_none());
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
            queues.wanted = 0;
        }
        if let Some(why) = &queues.failed {
            return Err(Error::Failed(why.clone()));
        }
        if queues.ready.len() < count {
            return Ok(false);
        }
        for (id, ready) in rows.ids.iter_mut().zip(queues.ready.drain(..count)) {
            *id = ready as i64;
        }
        drop(queues);
        self.in_flight -= count;
        for (i, &id) in rows.ids.iter().enumerate() {
            let slot = lock(&self.shared.slots[id as usize]);
            let own = i * self.obs_len..(i + 1) * self.obs_len;
            rows.obs[own.clone()].copy_from_slice(&slot.obs);
            (rows.rewards[i], rows.terminated[i], rows.truncated[i]) = (slot.reward, slot.terminated, slot.truncated);
            let ended = slot.terminated | slot.truncated != 0;
            if ended {
                rows.final_obs[own].copy_from_slice(&slot.final_obs);
                rows.final_masks[i * self.mask_len..(i + 1) * self.mask_len].copy_from_slice(&slot.final_mask);
                let count = slot.episode_info.len();
                rows.episode_info[i * count..(i + 1) * count].copy_from_slice(&slot.episode_info);
            }
            self.states[id as usize] = if ended && !self.shared.same_step { EnvState::Ended } else { EnvState::Idle };
        }
        Ok(true)
    }
}

impl<W: Env> Drop for AsyncVec<W> {
    fn drop(&mut self) {
        if std::process::id() != self.owner {
            // A fork has none of these threads.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        lock(&self.shared.queues).closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // The thread catches the panics of environments, so it has none.
            let _ = thread.join();
        }
    }
}

impl<W: Env> Shared<W> {
    /// The loop of each thread.
    fn run(&self) {
        let mut taken = Vec::with_capacity(MAX_BATCH);
        let mut finished = Vec::with_capacity(MAX_BATCH);
        while self.take(&mut taken) {
            let mut start = Instant::now();
            for id in taken.drain(..) {
                match catch_unwind(AssertUnwindSafe(|| self.work_on(&mut lock(&self.slots[id])))) {
                    Ok(()) => finished.push(id),
                    Err(panic) => {
                        lock(&self.queues).failed.get_or_insert(format!("environment {id}: {}", words(&*panic)));
                        self.done.notify_all();
                    }
                }
                let now = Instant::now();
                if now - start >= DELIVERY_INTERVAL {
                    self.deliver(&mut finished, now - start);
                    start = now;
                }
            }
            self.deliver(&mut finished, start.elapsed());
        }
    }

    /// Waits for work and takes some of it; false at the end. It takes less when little is left, so that no environment
    /// waits in one thread while another thread has nothing to do.
    fn take(&self, taken: &mut Vec<usize>) -> bool {
        let mut queues = lock(&self.queues);
        while queues.todo.is_empty() && !queues.closing {
            queues.idle += 1;
            queues = self.work.wait(queues).unwrap_or_else(PoisonError::into_inner);
            queues.idle -= 1;
        }
        let count = (queues.todo.len() / (2 * self.threads)).clamp(1, MAX_BATCH).min(queues.todo.len());
        taken.extend(queues.todo.drain(..count));
        !queues.closing
    }

    fn deliver(&self, finished: &mut Vec<usize>, spent: Duration) {
        self.busy_nanos.fetch_add(spent.as_nanos() as u64, Relaxed);
        let mut queues = lock(&self.queues);
        queues.ready.extend(finished.drain(..));
        let wake = queues.wanted > 0 && queues.ready.len() >= queues.wanted;
        drop(queues);
        if wake {
            self.done.notify_one();
        }
    }

    fn work_on(&self, slot: &mut Slot<W>) {
        (slot.reward, slot.terminated, slot.truncated) = (0.0, 0, 0);
        match slot.task {
            Task::Reset { env_index, number } => {
                (slot.env_index, slot.number) = (env_index, number);
                self.start_episode(slot);
            }
            Task::Step => {
                let action = [slot.action];
                let actions =
                    if slot.numbers.is_empty() { Actions::Discrete(&action) } else { Actions::Box(&slot.numbers) };
                let rows = AgentRows {
                    obs: &mut slot.obs,
                    rewards: std::slice::from_mut(&mut slot.reward),
                    terminated: std::slice::from_mut(&mut slot.terminated),
                    truncated: std::slice::from_mut(&mut slot.truncated),
                    alive: std::slice::from_mut(&mut slot.alive),
                };
                if slot.env.step(actions, rows) {
                    slot.final_obs.copy_from_slice(&slot.obs);
                    slot.env.action_mask(&mut slot.final_mask);
                    for (value, key) in slot.episode_info.iter_mut().zip(&self.info_keys) {
                        *value = slot.env.episode_info(key);
                    }
                    if self.same_step {
                        slot.number += 1;
                        self.start_episode(slot);
                    }
                }
            }
        }
    }

    fn start_episode(&self, slot: &mut Slot<W>) {
        slot.env.seed(env_seed(self.seed, slot.env_index, slot.number));
        slot.env.reset(&mut slot.obs, std::slice::from_mut(&mut slot.alive));
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}
