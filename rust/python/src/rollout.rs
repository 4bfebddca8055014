//! Rollouts of the vector classes, whose actions an `Mlp` chooses.

/// The method of a vector class over its `venv`; `_rust.pyi` says what it does. It takes an `Mlp`, which is of this module,
/// so that classes of other modules do not have it.
macro_rules! rollout_method {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            #[pyo3(signature = (
                actor, *, seed, env_indices, numbers, steps, returns, streams, took_part, scored, states, obs, actions,
                log_probs, rewards, terminations, truncations, final_obs, masks, final_masks, alive, ends, scaling, episode_info,
            ))]
            #[expect(clippy::too_many_arguments, reason = "the arrays of a rollout")]
            fn rollout(
                &self,
                py: Python<'_>,
                actor: &$crate::mlp::Mlp,
                seed: u64,
                env_indices: &Bound<'_, PyAny>,
                numbers: &Bound<'_, PyAny>,
                steps: &Bound<'_, PyAny>,
                returns: &Bound<'_, PyAny>,
                streams: &Bound<'_, PyAny>,
                took_part: &Bound<'_, PyAny>,
                scored: usize,
                states: Option<&Bound<'_, PyAny>>,
                obs: &Bound<'_, PyAny>,
                actions: &Bound<'_, PyAny>,
                log_probs: &Bound<'_, PyAny>,
                rewards: &Bound<'_, PyAny>,
                terminations: &Bound<'_, PyAny>,
                truncations: &Bound<'_, PyAny>,
                final_obs: &Bound<'_, PyAny>,
                masks: Option<&Bound<'_, PyAny>>,
                final_masks: Option<&Bound<'_, PyAny>>,
                alive: Option<&Bound<'_, PyAny>>,
                ends: Option<&Bound<'_, PyAny>>,
                scaling: Option<&Bound<'_, PyAny>>,
                #[pyo3(from_py_with = fastrl_binding::arrays::list)] episode_info: Vec<String>,
            ) -> PyResult<(Vec<fastrl_binding::rollout::Ended>, f64)> {
                let arrays = fastrl_binding::rollout::Arrays {
                    env_indices,
                    numbers,
                    steps,
                    returns,
                    streams,
                    took_part,
                    scored,
                    states,
                    obs,
                    actions,
                    log_probs,
                    rewards,
                    terminations,
                    truncations,
                    final_obs,
                    masks,
                    final_masks,
                    alive,
                    ends,
                    scaling,
                };
                self.venv.rollout(py, &actor.actor, seed, &episode_info, &arrays)
            }
        }
    };
}

pub(crate) use rollout_method;
