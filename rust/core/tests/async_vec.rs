//! Asynchronous stepping against environments that are simply stepped, under random orders of
//! calls.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fastrl_core::async_vec::{AsyncEnvs, AsyncVec, Error, Received};
use fastrl_core::env::{Actions, Phase};
use fastrl_core::single_agent::{SingleAgentEnv, Step};
use fastrl_core::streams::env_seed;
use proptest::prelude::*;

const LONG: Duration = Duration::from_secs(60);

/// Counts its steps; an observation is (seed, time, sum of actions). Action 9 panics. Dropped environments are counted.
struct Counter {
    state: (u64, u32, i64),
    slow: bool,
    dropped: Arc<AtomicUsize>,
}

impl Counter {
    fn write(&self, obs: &mut [f32]) {
        obs.copy_from_slice(&[self.state.0 as f32, self.state.1 as f32, self.state.2 as f32]);
    }

    /// The length of an episode.
    fn length(seed: u64) -> u32 {
        1 + (seed % 5) as u32
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, SeqCst);
    }
}

impl SingleAgentEnv for Counter {
    type State = (u64, u32, i64);

    fn obs_len(&self) -> usize {
        3
    }

    fn accepts(&self, action: i64) -> bool {
        (0..10).contains(&action)
    }

    fn expected_action(&self) -> String {
        "0 to 9".into()
    }

    fn seed(&mut self, seed: u64) {
        self.state.0 = seed;
    }

    fn reset(&mut self, obs: &mut [f32]) {
        (self.state.1, self.state.2) = (0, 0);
        self.write(obs);
    }

    fn observe(&self, obs: &mut [f32]) {
        self.write(obs);
    }

    fn step(&mut self, action: i64, obs: &mut [f32]) -> Step {
        if self.slow {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(action != 9, "nine is too much");
        self.state.1 += 1;
        self.state.2 += action;
        self.write(obs);
        let over = self.state.1 == Self::length(self.state.0);
        let even = self.state.0.is_multiple_of(2);
        Step { reward: action as f64, terminated: over && even, truncated: over && !even }
    }

    fn mask_len(&self) -> usize {
        2
    }

    fn action_mask(&self, mask: &mut [u8]) {
        mask.copy_from_slice(&[self.state.1 as u8, self.state.2 as u8]);
    }

    fn episode_info(&self, key: &str) -> f64 {
        if key == "sum" { self.state.2 as f64 } else { f64::NAN }
    }

    fn fingerprint(&self) -> String {
        "Counter".into()
    }

    fn state(&self) -> &Self::State {
        &self.state
    }

    fn check_state(&self, _state: &Self::State, _phase: Phase) -> Result<(), String> {
        Ok(())
    }

    fn memory(&self) -> usize {
        0
    }

    fn set_state(&mut self, state: Self::State) {
        self.state = state;
    }
}

fn counters(count: usize, same_step: bool, threads: usize, slow: bool) -> (AsyncVec<Counter>, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let all = (0..count).map(|_| Counter { state: (0, 0, 0), slow, dropped: dropped.clone() }).collect();
    (AsyncVec::new(all, 7, same_step, threads, vec!["none".into(), "sum".into()]).unwrap(), dropped)
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    obs: [f32; 3],
    reward: f32,
    terminated: bool,
    truncated: bool,
    final_obs: Option<[f32; 3]>,
    /// Sum of the actions of an episode that ended.
    sum: Option<f64>,
    /// The first entries of the mask for the next action.
    mask: [u8; 2],
}

fn recv(envs: &mut impl AsyncEnvs, count: usize, timeout: Duration) -> Result<Option<Vec<(i64, Row)>>, Error> {
    let (mut ids, mut obs, mut rewards) = (vec![-1; count], vec![f32::NAN; 3 * count], vec![f32::NAN; count]);
    let (mut terminated, mut truncated, mut final_obs) = (vec![7; count], vec![7; count], vec![f32::NAN; 3 * count]);
    let (mut final_masks, mut infos) = (vec![7; 2 * count], vec![-1.0; 2 * count]);
    let mut rows = Received {
        ids: &mut ids,
        obs: &mut obs,
        rewards: &mut rewards,
        terminated: &mut terminated,
        truncated: &mut truncated,
        final_obs: &mut final_obs,
        final_masks: &mut final_masks,
        episode_info: &mut infos,
    };
    if !envs.recv(&mut rows, timeout)? {
        assert!(ids.iter().all(|&id| id == -1) && obs.iter().all(|x| x.is_nan()), "nothing is written");
        return Ok(None);
    }
    let mut masks = vec![7; 2 * count];
    envs.action_masks(&ids, &mut masks).unwrap();
    let three = |all: &[f32], i: usize| <[f32; 3]>::try_from(&all[3 * i..3 * i + 3]).unwrap();
    let row = |i: usize| {
        let last = three(&final_obs, i);
        let final_obs = (!last[0].is_nan()).then_some(last);
        // Its mask is that of the same moment.
        let expected = final_obs.map_or([7, 7], |last| [last[1] as u8, last[2] as u8]);
        assert_eq!(final_masks[2 * i..2 * i + 2], expected);
        let (terminated, truncated) = (terminated[i] == 1, truncated[i] == 1);
        let sum = final_obs.map(|_| infos[2 * i + 1]);
        assert_eq!(infos[2 * i].is_nan(), sum.is_some(), "only of episodes that ended");
        let mask = [masks[2 * i], masks[2 * i + 1]];
        (ids[i], Row { obs: three(&obs, i), reward: rewards[i], terminated, truncated, final_obs, sum, mask })
    };
    Ok(Some((0..count).map(row).collect()))
}

/// The expected behaviour of an environment.
#[derive(Clone)]
struct Model {
    env_index: u64,
    number: u64,
    time: u32,
    sum: i64,
    ended: bool,
}

impl Model {
    fn begin(env_index: u64, number: u64) -> (Self, Row) {
        let model = Self { env_index, number, time: 0, sum: 0, ended: false };
        let (obs, mask) = (model.obs(), [0, 0]);
        let row = Row { obs, reward: 0.0, terminated: false, truncated: false, final_obs: None, sum: None, mask };
        (model, row)
    }

    fn seed(&self) -> u64 {
        env_seed(7, self.env_index, self.number)
    }

    fn obs(&self) -> [f32; 3] {
        [self.seed() as f32, self.time as f32, self.sum as f32]
    }

    fn step(&mut self, action: i64, same_step: bool) -> Row {
        (self.time, self.sum) = (self.time + 1, self.sum + action);
        let (over, even) = (self.time == Counter::length(self.seed()), self.seed().is_multiple_of(2));
        let (final_obs, sum) = (over.then_some(self.obs()), over.then_some(self.sum as f64));
        self.ended = over && !same_step;
        if over && same_step {
            *self = Self::begin(self.env_index, self.number + 1).0;
        }
        let (terminated, truncated) = (over && even, over && !even);
        let mask = [self.time as u8, self.sum as u8];
        Row { obs: self.obs(), reward: action as f32, terminated, truncated, final_obs, sum, mask }
    }
}

#[derive(Clone, Debug)]
enum Call {
    Begin(i64, u64, u64),
    Send(Vec<(i64, i64)>),
    Recv(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    // Ids just beyond the environments, actions just beyond the allowed ones, more than are in flight.
    let call = prop_oneof![
        1 => (-1..5i64, 0..9u64, 0..9u64).prop_map(|(id, env_index, number)| Call::Begin(id, env_index, number)),
        4 => prop::collection::vec((0..5i64, prop_oneof![20 => 0..9i64, 1 => Just(-1i64)]), 0..5).prop_map(Call::Send),
        4 => (0..5usize).prop_map(Call::Recv),
    ];
    prop::collection::vec(call, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_environment_steps_once_for_each_send(
        calls in calls(), count in 1..5usize, threads in 1..4usize, same_step: bool,
    ) {
        let (mut envs, dropped) = counters(count, same_step, threads, false);
        let mut models: Vec<Option<Model>> = vec![None; count];
        let mut expected: HashMap<i64, Row> = HashMap::new();
        for call in calls {
            match call {
                Call::Begin(id, env_index, number) => {
                    let got = envs.reset(&[id], &[env_index], &[number]);
                    if !(0..count as i64).contains(&id) {
                        prop_assert_eq!(got, Err(Error::NoSuchEnv { id, num_envs: count }));
                    } else if let Entry::Vacant(place) = expected.entry(id) {
                        prop_assert_eq!(got, Ok(()));
                        let (model, row) = Model::begin(env_index, number);
                        models[id as usize] = Some(model);
                        place.insert(row);
                    } else {
                        prop_assert_eq!(got, Err(Error::InFlight { id }));
                    }
                }
                Call::Send(sent) => {
                    let (ids, actions): (Vec<i64>, Vec<i64>) = sent.iter().copied().unzip();
                    let twice = (1..ids.len()).any(|i| ids[..i].contains(&ids[i]));
                    let ready = |&(id, action): &(i64, i64)| {
                        let model = models.get(id as usize).and_then(Option::as_ref);
                        model.is_some_and(|model| !model.ended) && !expected.contains_key(&id) && action >= 0
                    };
                    let allowed = !twice && sent.iter().all(ready);
                    let got = envs.send(&ids, Actions::Discrete(&actions));
                    prop_assert_eq!(got.is_ok(), allowed, "{:?}: {:?}", sent, got);
                    if allowed {
                        for (id, action) in sent {
                            let model = models[id as usize].as_mut().unwrap();
                            expected.insert(id, model.step(action, same_step));
                        }
                    }
                }
                Call::Recv(count) => match recv(&mut envs, count, LONG) {
                    Ok(rows) => {
                        for (id, row) in rows.expect("in time") {
                            prop_assert_eq!(Some(row), expected.remove(&id));
                        }
                    }
                    Err(error) => {
                        prop_assert!(count > expected.len());
                        prop_assert_eq!(error, Error::TooMany { wanted: count, in_flight: expected.len() });
                    }
                },
            }
            prop_assert_eq!(envs.in_flight(), expected.len());
        }
        drop(envs);
        prop_assert_eq!(dropped.load(SeqCst), count);
    }
}

fn begin_all(envs: &mut AsyncVec<Counter>) {
    let ids: Vec<i64> = (0..envs.num_envs() as i64).collect();
    let env_indices: Vec<u64> = (0..envs.num_envs() as u64).collect();
    envs.reset(&ids, &env_indices, &vec![0; ids.len()]).unwrap();
}

#[test]
fn dropping_it_amid_steps_ends_threads_and_worlds() {
    let (mut envs, dropped) = counters(50, true, 3, true);
    begin_all(&mut envs);
    recv(&mut envs, 50, LONG).unwrap().unwrap();
    let ids: Vec<i64> = (0..50).collect();
    envs.send(&ids, Actions::Discrete(&[0; 50])).unwrap();
    drop(envs);
    assert_eq!(dropped.load(SeqCst), 50);
}

#[test]
fn waiting_ends_in_time_and_nothing_is_lost() {
    let (mut envs, _) = counters(2, true, 1, true);
    begin_all(&mut envs);
    recv(&mut envs, 2, LONG).unwrap().unwrap();
    envs.send(&[1, 0], Actions::Discrete(&[1, 2])).unwrap();
    assert_eq!(envs.action_masks(&[0], &mut [0; 2]), Err(Error::InFlight { id: 0 }));
    assert_eq!(recv(&mut envs, 2, Duration::ZERO), Ok(None));
    let rewards = recv(&mut envs, 2, LONG).unwrap().unwrap().into_iter().map(|(id, row)| (id, row.reward));
    assert_eq!(rewards.collect::<Vec<_>>(), [(1, 1.0), (0, 2.0)]);
    assert!(envs.busy() >= Duration::from_millis(2));
}

#[test]
fn a_world_that_panics_is_told_and_the_others_end_well() {
    let (mut envs, dropped) = counters(4, true, 2, false);
    begin_all(&mut envs);
    recv(&mut envs, 4, LONG).unwrap().unwrap();
    envs.send(&[0, 1, 2, 3], Actions::Discrete(&[0, 9, 0, 0])).unwrap();
    // It waits for what never comes, and is woken.
    let Err(Error::Failed(why)) = recv(&mut envs, 4, LONG) else { panic!("expected a failure") };
    assert!(why.contains("environment 1") && why.contains("nine is too much"), "{why}");
    assert!(matches!(envs.reset(&[0], &[0], &[0]), Err(Error::Failed(_))));
    assert!(matches!(envs.send(&[0], Actions::Discrete(&[0])), Err(Error::Failed(_))));
    assert!(matches!(recv(&mut envs, 1, LONG), Err(Error::Failed(_))));
    drop(envs);
    assert_eq!(dropped.load(SeqCst), 4);
}

#[test]
fn actions_of_another_kind_are_refused() {
    let (mut envs, _) = counters(1, true, 1, false);
    begin_all(&mut envs);
    recv(&mut envs, 1, LONG).unwrap().unwrap();
    for actions in [Actions::Box(&[0.0]), Actions::Discrete(&[0, 0])] {
        assert_eq!(envs.send(&[0], actions), Err(Error::Actions));
    }
    assert_eq!(envs.in_flight(), 0);
}
