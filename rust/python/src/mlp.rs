//! Choosing actions with a small network, for Python.

use fastrl_binding::arrays::{Flag, disjoint, readable, writeable};
use fastrl_core::actor::{ActionsOut, Actor, Kind, Rows};
use fastrl_core::mlp::{Activation, Architecture};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::from_actor;
use crate::weights::Bytes;

/// The widest layer. Products of two such widths are far from overflow.
const MAX_WIDTH: usize = 1 << 16;
const MAX_LAYERS: usize = 64;

/// Weights that fit into memory by far, 4 GiB.
const MAX_WEIGHTS: usize = 1 << 30;

/// Fewer rows than this are done before another thread could make use of the GIL.
const LARGE: usize = 64;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Mlp {
    actor: Actor,
}

impl Mlp {
    /// Rows of an array that should have the network's inputs.
    fn rows_of(&self, obs: &Bound<'_, PyAny>) -> usize {
        obs.getattr("shape").and_then(|shape| shape.get_item(0)?.extract()).unwrap_or(0)
    }
}

#[pymethods]
impl Mlp {
    #[new]
    #[pyo3(signature = (*, kind, obs_dim, outputs, hidden, activation, obs_clip=None, num_threads=1))]
    fn new(
        kind: &str,
        obs_dim: usize,
        outputs: usize,
        hidden: Vec<usize>,
        activation: &str,
        obs_clip: Option<f32>,
        num_threads: usize,
    ) -> PyResult<Self> {
        let refuse = |message: String| Err(PyValueError::new_err(message));
        let kind = match kind {
            "discrete" => Kind::Discrete,
            "gaussian" => Kind::Gaussian,
            _ => return refuse(format!("kind: expected 'discrete' or 'gaussian', got '{kind}'")),
        };
        let activation = match activation {
            "tanh" => Activation::Tanh,
            "relu" => Activation::Relu,
            _ => return refuse(format!("activation: expected 'tanh' or 'relu', got '{activation}'")),
        };
        let widths = [("obs_dim", obs_dim), ("outputs", outputs)];
        for (name, width) in widths.into_iter().chain(hidden.iter().map(|&width| ("hidden", width))) {
            if !(1..=MAX_WIDTH).contains(&width) {
                return refuse(format!("{name}: expected 1 to {MAX_WIDTH}, got {width}"));
            }
        }
        if hidden.len() > MAX_LAYERS {
            return refuse(format!("hidden: expected at most {MAX_LAYERS} layers, got {}", hidden.len()));
        }
        if let Some(clip) = obs_clip
            && !(clip > 0.0 && clip.is_finite())
        {
            return refuse(format!("obs_clip: expected None or a positive number, got {clip}"));
        }
        if !(1..=1024).contains(&num_threads) {
            return refuse(format!("num_threads: expected 1 to 1024, got {num_threads}"));
        }
        let architecture = Architecture { inputs: obs_dim, hidden, outputs, activation, clip: obs_clip };
        let weights = architecture.num_weights();
        if weights > MAX_WEIGHTS {
            return refuse(format!("hidden: expected a network of at most {MAX_WEIGHTS} weights, got {weights}"));
        }
        Ok(Self { actor: Actor::new(kind, architecture, num_threads).map_err(from_actor)? })
    }

    #[getter]
    fn num_weights(&self) -> usize {
        self.actor.num_weights()
    }

    fn load(&self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let nbytes = 4 * self.actor.num_weights();
        let bytes = Bytes::of("buffer", buffer, nbytes, false)?;
        // SAFETY: the buffer is held, and its owner leaves it alone during the call.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.pointer(), nbytes) };
        let weights: Vec<f32> =
            bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().expect("four"))).collect();
        self.actor.load(&weights).map_err(from_actor)
    }

    #[pyo3(signature = (obs, streams, steps, actions, log_probs, masks=None, *, greedy=false))]
    #[expect(clippy::too_many_arguments, reason = "the arrays of a step")]
    fn act(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        streams: &Bound<'_, PyAny>,
        steps: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        log_probs: &Bound<'_, PyAny>,
        masks: Option<&Bound<'_, PyAny>>,
        greedy: bool,
    ) -> PyResult<()> {
        let rows = self.rows_of(obs);
        let outputs = self.actor.architecture().outputs;
        let obs = readable::<f32>("obs", obs, &[rows, self.actor.architecture().inputs])?;
        let streams = readable::<u64>("streams", streams, &[rows])?;
        let steps = readable::<i64>("steps", steps, &[rows])?;
        let log_probs = writeable::<f32>("log_probs", log_probs, &[rows])?;
        let masks = masks.map(|masks| readable::<Flag>("masks", masks, &[rows, outputs])).transpose()?;
        let (place, actions) = match self.actor.kind() {
            Kind::Discrete => {
                let actions = writeable::<i64>("actions", actions, &[rows])?;
                // SAFETY: `writeable` has checked it; `disjoint`, before anything is written, keeps it apart from the
                // others.
                (actions.place(), ActionsOut::Discrete(unsafe { actions.slice_mut() }))
            }
            Kind::Gaussian if masks.is_some() => {
                return Err(PyValueError::new_err("masks: expected None with actions that are numbers"));
            }
            Kind::Gaussian => {
                let actions = writeable::<f32>("actions", actions, &[rows, outputs])?;
                // SAFETY: `writeable` has checked it; `disjoint`, before anything is written, keeps it apart from the
                // others.
                (actions.place(), ActionsOut::Gaussian(unsafe { actions.slice_mut() }))
            }
        };
        let mask = masks.as_ref().map_or(("masks", 0..0), |masks| masks.place());
        disjoint(&[obs.place(), streams.place(), steps.place(), log_probs.place(), place, mask])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let rows = unsafe {
            Rows {
                obs: obs.slice(),
                streams: streams.slice(),
                steps: steps.slice(),
                masks: masks.as_ref().map(|masks| masks.bytes()),
                actions,
                log_probs: log_probs.slice_mut(),
            }
        };
        let chosen = if rows.streams.len() >= LARGE {
            py.detach(|| self.actor.act(rows, greedy))
        } else {
            self.actor.act(rows, greedy)
        };
        chosen.map_err(from_actor)
    }

    fn outputs(&self, py: Python<'_>, obs: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let rows = self.rows_of(obs);
        let Architecture { inputs, outputs, .. } = *self.actor.architecture();
        let obs = readable::<f32>("obs", obs, &[rows, inputs])?;
        let out = writeable::<f32>("out", out, &[rows, outputs])?;
        disjoint(&[obs.place(), out.place()])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (obs, out) = unsafe { (obs.slice(), out.slice_mut()) };
        let policy = self.actor.policy().map_err(from_actor)?;
        py.detach(|| policy.outputs(obs, out));
        Ok(())
    }
}
