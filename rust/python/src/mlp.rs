//! Choosing actions with a small network, for Python.

use fastrl_binding::arrays::{Array, Flag, disjoint, list, list_or_none, readable, writeable};
use fastrl_core::actor::{ActionsOut, Actor, Kind, Rows};
use fastrl_core::dense::Activation;
use fastrl_core::learn::Pooling;
use fastrl_core::mlp::Architecture;
use fastrl_core::recurrent::Cell;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::from_actor;
use crate::weights::Bytes;

/// The widest layer. Products of two such widths are far from overflow.
const MAX_WIDTH: usize = 1 << 16;
const MAX_LAYERS: usize = 64;

/// The largest table.
const MAX_TABLE_ROWS: usize = 1024;

/// Weights that fit into memory by far, 4 GiB.
const MAX_WEIGHTS: usize = 1 << 30;

/// Fewer rows than this are done before another thread could make use of the GIL.
const LARGE: usize = 64;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Mlp {
    pub(crate) actor: Actor,
}

/// Refuses tables that do not fit observations and actions, or whose passes would need gigabytes.
pub(crate) fn check_table(rows: usize, obs_dim: usize, actions: usize) -> PyResult<()> {
    if !(2..=MAX_TABLE_ROWS).contains(&rows) || !obs_dim.is_multiple_of(rows) || actions < rows {
        return Err(PyValueError::new_err(format!(
            "table_rows: expected 2 to {MAX_TABLE_ROWS} rows, at most as many as the {actions} actions, that share \
             {obs_dim} numbers, got {rows}"
        )));
    }
    Ok(())
}

/// Tables at the start of observations [tables, rows, width]; refuses those that do not fit, or whose passes would need
/// gigabytes.
pub(crate) fn check_pooling((tables, rows, width): (usize, usize, usize), obs_dim: usize) -> PyResult<Pooling> {
    let size = tables.checked_mul(rows).filter(|all| (2..=MAX_TABLE_ROWS).contains(all) && rows > 1);
    let pooling = Pooling { tables, rows, width };
    if width == 0 || size.and_then(|all| all.checked_mul(width)).is_none_or(|size| size > obs_dim) {
        return Err(PyValueError::new_err(format!(
            "pooling: expected tables, their rows and the rows' width, 2 rows or more and at most {MAX_TABLE_ROWS} of \
             all tables, in {obs_dim} numbers, got ({tables}, {rows}, {width})"
        )));
    }
    if pooling.features() > MAX_WIDTH {
        let got = pooling.features();
        return Err(PyValueError::new_err(format!("pooling: expected at most {MAX_WIDTH} features, got {got}")));
    }
    Ok(pooling)
}

impl Mlp {
    /// The states of rows: an array where the network has a memory, and nothing where it has none.
    fn states_of<'a, 'py>(
        &self,
        states: Option<&'a Bound<'py, PyAny>>,
        rows: usize,
    ) -> PyResult<Option<Array<'a, 'py, f32>>> {
        match (self.state_size(), states) {
            (0, None) => Ok(None),
            (0, Some(_)) => Err(PyValueError::new_err("states: expected None with a network without a memory")),
            (size, Some(states)) => writeable::<f32>("states", states, &[rows, size]).map(Some),
            (size, None) => Err(PyValueError::new_err(format!(
                "states: expected a C-contiguous float32 array of shape ({rows}, {size}), got None"
            ))),
        }
    }

    /// Rows of an array that should have the network's inputs.
    fn rows_of(&self, obs: &Bound<'_, PyAny>) -> usize {
        obs.getattr("shape").and_then(|shape| shape.get_item(0)?.extract()).unwrap_or(0)
    }
}

#[pymethods]
impl Mlp {
    #[new]
    #[pyo3(signature = (
        *, kind, obs_dim, outputs, hidden, activation, layer_norm=false, obs_clip=None, nvec=None, memory="none",
        memory_size=0, table_rows=None, pooling=None, num_threads=1,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the architecture")]
    fn new(
        kind: &str,
        obs_dim: usize,
        outputs: usize,
        #[pyo3(from_py_with = list)] hidden: Vec<usize>,
        activation: &str,
        layer_norm: bool,
        obs_clip: Option<f32>,
        #[pyo3(from_py_with = list_or_none)] nvec: Option<Vec<usize>>,
        memory: &str,
        memory_size: usize,
        table_rows: Option<usize>,
        pooling: Option<(usize, usize, usize)>,
        num_threads: usize,
    ) -> PyResult<Self> {
        let refuse = |message: String| Err(PyValueError::new_err(message));
        let kind = match (kind, nvec) {
            ("discrete", None) => Kind::Discrete,
            ("gaussian", None) => Kind::Gaussian,
            ("multi_discrete", Some(nvec)) => {
                // Not `sum`, which could overflow.
                let total = nvec.iter().try_fold(0_usize, |total, &values| total.checked_add(values));
                if nvec.is_empty() || nvec.contains(&0) || total != Some(outputs) {
                    return refuse(format!("nvec: expected positive numbers that add up to {outputs}, got {nvec:?}"));
                }
                Kind::MultiDiscrete(nvec)
            }
            ("multi_discrete", None) => return refuse("nvec: expected a list with kind 'multi_discrete'".to_owned()),
            ("discrete" | "gaussian", Some(_)) => return refuse(format!("nvec: expected None with kind '{kind}'")),
            _ => {
                return refuse(format!("kind: expected 'discrete', 'multi_discrete' or 'gaussian', got '{kind}'"));
            }
        };
        let memory = match (memory, memory_size) {
            ("none", 0) => None,
            ("none", _) => return refuse(format!("memory_size: expected 0 without a memory, got {memory_size}")),
            ("gru", _) => Some((Cell::Gru, memory_size)),
            ("lstm", _) => Some((Cell::Lstm, memory_size)),
            _ => return refuse(format!("memory: expected 'none', 'gru' or 'lstm', got '{memory}'")),
        };
        let activation = match activation {
            "tanh" => Activation::Tanh,
            "relu" => Activation::Relu,
            _ => return refuse(format!("activation: expected 'tanh' or 'relu', got '{activation}'")),
        };
        let widths = [("obs_dim", obs_dim), ("outputs", outputs)];
        let hidden_widths = hidden.iter().map(|&width| ("hidden", width));
        let widths = widths.into_iter().chain(hidden_widths).chain(memory.map(|(_, size)| ("memory_size", size)));
        for (name, width) in widths {
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
        if let Some(rows) = table_rows {
            check_table(rows, obs_dim, outputs)?;
            if layer_norm || obs_clip.is_some() || memory.is_some() || kind != Kind::Discrete {
                return refuse(
                    "table_rows: expected the kind 'discrete', and none of layer_norm, obs_clip and memory".to_owned(),
                );
            }
        }
        let pooling = pooling.map(|pooling| check_pooling(pooling, obs_dim)).transpose()?;
        if pooling.is_some() && (layer_norm || obs_clip.is_some() || memory.is_some() || table_rows.is_some()) {
            return refuse("pooling: expected none of layer_norm, obs_clip, memory and table_rows".to_owned());
        }
        let architecture = Architecture {
            inputs: obs_dim,
            hidden,
            outputs,
            activation,
            layer_norm,
            clip: obs_clip,
            memory,
            table_rows,
            pooling,
        };
        let weights = architecture.num_weights();
        if weights > MAX_WEIGHTS {
            return refuse(format!("hidden: expected a network of at most {MAX_WEIGHTS} weights, got {weights}"));
        }
        Ok(Self { actor: Actor::new(kind, architecture, num_threads) })
    }

    #[getter]
    fn num_weights(&self) -> usize {
        self.actor.num_weights()
    }

    #[getter]
    fn state_size(&self) -> usize {
        self.actor.architecture().state_size()
    }

    fn load(&self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let nbytes = 4 * self.actor.num_weights();
        let bytes = Bytes::of("buffer", buffer, nbytes, false)?;
        // SAFETY: the buffer is held, and its owner leaves it alone during the call.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.pointer(), nbytes) };
        // SAFETY: any bytes are numbers.
        let (before, weights, _) = unsafe { bytes.align_to::<f32>() };
        if before.is_empty() {
            return self.actor.load(weights).map_err(from_actor);
        }
        let copied = bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().expect("four")));
        self.actor.load(&copied.collect::<Vec<f32>>()).map_err(from_actor)
    }

    #[pyo3(signature = (obs, streams, steps, actions, log_probs, masks=None, states=None, *, greedy=false))]
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
        states: Option<&Bound<'_, PyAny>>,
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
            Kind::MultiDiscrete(values) => {
                let actions = writeable::<i64>("actions", actions, &[rows, values.len()])?;
                // SAFETY: `writeable` has checked it; `disjoint`, before anything is written, keeps it apart from the
                // others.
                (actions.place(), ActionsOut::MultiDiscrete(unsafe { actions.slice_mut() }))
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
        let states = self.states_of(states, rows)?;
        let state = states.as_ref().map_or(("states", 0..0), |states| states.place());
        disjoint(&[obs.place(), streams.place(), steps.place(), log_probs.place(), place, mask, state])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let rows = unsafe {
            Rows {
                obs: obs.slice(),
                streams: streams.slice(),
                steps: steps.slice(),
                masks: masks.as_ref().map(|masks| masks.bytes()),
                states: states.as_ref().map_or(&mut [], |states| states.slice_mut()),
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

    #[pyo3(signature = (obs, out, states=None))]
    fn outputs(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        states: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let rows = self.rows_of(obs);
        let Architecture { inputs, outputs, .. } = *self.actor.architecture();
        let obs = readable::<f32>("obs", obs, &[rows, inputs])?;
        let out = writeable::<f32>("out", out, &[rows, outputs])?;
        let states = self.states_of(states, rows)?;
        disjoint(&[obs.place(), out.place(), states.as_ref().map_or(("states", 0..0), |states| states.place())])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (obs, out) = unsafe { (obs.slice(), out.slice_mut()) };
        // SAFETY: as above.
        let states = states.as_ref().map_or(&mut [][..], |states| unsafe { states.slice_mut() });
        let policy = self.actor.policy().map_err(from_actor)?;
        py.detach(|| policy.outputs(obs, states, out));
        Ok(())
    }
}
