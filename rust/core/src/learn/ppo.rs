//! Updates of PPO (Schulman et al., 2017): all gradient steps of a rollout.

use std::fmt;

use super::losses::Kind;
use super::minibatch::{Losses, Minibatches};
use super::rounding::rounded_log_probs;
pub use super::samples::{Actions, Networks, Parameters, Samples, Settings, Shape};
use crate::team::Team;

/// Means over gradient steps of means over samples, and numbers of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub policy_loss: f64,
    pub value_loss: f64,
    pub entropy: f64,
    pub approx_kl: f64,
    pub clip_fraction: f64,
    /// Before clipping.
    pub grad_norm: f64,
    /// Of imitation: share of numbers that are the likeliest choices, or mean square error. Of values of actions: absolute
    /// error.
    pub score: f64,
    /// Value of the actions that were taken.
    pub q: f64,
    pub steps: usize,
}

/// The reason why samples were refused. Nothing has changed then.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn within(name: &str, values: &[i64], end: usize) -> Result<(), Refused> {
    match values.iter().find(|&&value| value < 0 || value as usize >= end) {
        None => Ok(()),
        Some(value) => Err(Refused(format!("{name}: expected numbers from 0 to {}, got {value}", end as i64 - 1))),
    }
}

/// Checks all places that samples name, the lengths of arrays, and settings.
fn check(shape: &Shape, settings: &Settings, samples: &Samples<'_>, order: &[i64]) -> Result<(), Refused> {
    let (count, width) = (samples.groups.len(), shape.kind.width());
    let groups = samples.obs.len() / shape.inputs;
    let values_actions = settings.huber.is_some();
    assert!(!values_actions || shape.networks == Networks::Critic && samples.learned.is_none(), "a critic alone");
    let acted = if shape.has_actor() { count } else { 0 };
    let cloned = settings.imitation.is_some();
    assert!(!cloned || shape.networks == Networks::Actor && samples.masks.is_none(), "imitation is for actors alone");
    let weighed = if cloned { 0 } else { acted };
    assert!([samples.log_probs, samples.advantages].iter().all(|array| array.len() == weighed), "of other lengths");
    let valued = if cloned { 0 } else { count * shape.critic_outputs };
    let lengths = if values_actions { [count, 0] } else { [valued; 2] };
    assert_eq!([samples.returns.len(), samples.values.len()], lengths, "of other lengths");
    assert!(samples.learned.is_none_or(|learned| learned.len() == valued), "of other lengths");
    assert!(samples.masks.is_none_or(|masks| masks.len() == acted * shape.kind.outputs()), "masks of other sizes");
    if count == 0 || !order.len().is_multiple_of(count) {
        return Err(Refused(format!("order: expected orders of {count} samples, got {} numbers", order.len())));
    }
    if settings.minibatches == 0 || settings.minibatches > count {
        let got = settings.minibatches;
        return Err(Refused(format!("minibatches: expected 1 to {count}, got {got}")));
    }
    let mut clips = std::iter::once(settings.clip_range).chain(settings.value_clip);
    if let Some(clip) = clips.find(|clip| clip.is_nan() || *clip < 0.0) {
        return Err(Refused(format!("clip_range, value_clip: expected numbers from 0 on, got {clip}")));
    }
    if let Some(loss) = settings.imitation.filter(|loss| !(0.0..=1.0).contains(&loss.label_smoothing)) {
        return Err(Refused(format!("label_smoothing: expected a number from 0 to 1, got {}", loss.label_smoothing)));
    }
    within("groups", samples.groups, groups)?;
    within("order", order, count)?;
    match (&shape.kind, samples.actions) {
        (_, Actions::Categorical(actions)) if values_actions => {
            assert_eq!(actions.len(), count, "too few actions");
            within("actions", actions, shape.critic_outputs)?;
        }
        (Kind::Gaussian(_), Actions::Gaussian(draws)) => assert_eq!(draws.len(), acted * width, "too few draws"),
        (Kind::Categorical(choices), Actions::Categorical(actions)) => {
            assert_eq!(actions.len(), acted * width, "too few actions");
            for action in actions.chunks(width.max(1)) {
                for (number, &choices) in action.iter().zip(choices) {
                    within("actions", std::slice::from_ref(number), choices)?;
                }
            }
        }
        _ => return Err(Refused("actions: expected those of the network's kind".to_owned())),
    }
    Ok(())
}

/// Takes a gradient step for each minibatch of each epoch.
///
/// # Arguments
/// - `order`: the samples of one epoch after the other, each in as many parts as there are minibatches.
/// - `team`: that of earlier updates, whose threads need not be started again.
///
/// # Errors
/// A sample, an observation or an action that is not there, or a setting out of range; nothing has changed then.
///
/// # Panics
/// Arrays do not fit each other.
pub fn update(
    shape: &Shape,
    settings: &Settings,
    samples: Samples<'_>,
    order: &[i64],
    parameters: &mut Parameters<'_>,
    team: &mut Team,
) -> Result<Outcome, Refused> {
    check(shape, settings, &samples, order)?;
    let count = shape.num_parameters();
    let lengths = [parameters.values.len(), parameters.mean.len(), parameters.square.len()];
    assert_eq!(lengths, [count; 3], "parameters of another network");
    let parts = order.chunks(samples.groups.len()).flat_map(|epoch| split(epoch, settings.minibatches));
    let size = samples.groups.len().div_ceil(settings.minibatches);
    let rounded = rounded_log_probs(shape, &samples, parameters.values, team);
    let samples = Samples { log_probs: rounded.as_deref().unwrap_or(samples.log_probs), ..samples };
    let mut minibatches = Minibatches::new(shape, settings, samples, parameters, size, team);
    let (mut norms, mut totals, mut steps) = (0.0, Losses::default(), 0);
    for part in parts {
        let losses = minibatches.differentiate(part);
        let norm = minibatches.norm();
        minibatches.step((f64::from(settings.max_grad_norm) / (norm + 1e-6)).min(1.0) as f32);
        norms += norm;
        totals.add(&losses);
        steps += 1;
        if settings.target_kl.is_some_and(|target| losses.kl > target) {
            break;
        }
    }
    minibatches.write(parameters);
    parameters.steps += steps as u64;
    let mean = |total: f64| total / steps.max(1) as f64;
    Ok(Outcome {
        policy_loss: mean(totals.policy),
        value_loss: mean(totals.value),
        entropy: mean(totals.entropy),
        approx_kl: mean(totals.kl),
        clip_fraction: mean(totals.clipped),
        grad_norm: mean(norms),
        score: mean(totals.score),
        q: mean(totals.q),
        steps,
    })
}

/// Parts of a list whose lengths differ by one at most, the longer ones first.
fn split(list: &[i64], parts: usize) -> impl Iterator<Item = &[i64]> {
    let (length, longer) = (list.len() / parts, list.len() % parts);
    let start = move |part: usize| part * length + part.min(longer);
    (0..parts).map(move |part| &list[start(part)..start(part + 1)])
}
