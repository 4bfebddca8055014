"""Names that other libraries have for what fastrl calls otherwise, for error messages.

They are of Stable-Baselines3 2, its RL Zoo and CleanRL 1.
"""

from collections.abc import Collection

# Sentences on settings and arguments, by their names there; {in braces} the names of settings here.
_SETTINGS = {
    "policy": "it is chosen by the observations: leave it out, or give network=, a torch.nn.Module of your own",
    "policy_kwargs": "net_arch is hidden=(64, 64), activation_fn activation='tanh'; a module of your own is network=",
    "net_arch": "it is {hidden}",
    "activation_fn": "it is {activation}",
    "verbose": "learn(progress=False) shows nothing",
    "tensorboard_log": "learn(run_dir='runs/mine') writes TensorBoard events, among others",
    "monitor_wrapper": "returns and lengths of all episodes are in episodes.csv of the run directory",
    "stats_window_size": "means are over the newest 100 episodes",
    "callback": "learn(callbacks=[...]) takes a list, of subclasses of fastrl.callbacks.Callback",
    "progress_bar": "it is learn(progress=True)",
    "log_interval": "run.row_seconds, of the model run__row_seconds=, is the seconds between rows of metrics",
    "n_eval_episodes": "is episodes of model.evaluate, and eval_episodes of a run",
    "tb_log_name": "it is learn(run_dir='runs/mine')",
    "reset_num_timesteps": "learn() always continues: make a new model to start over",
    "n_steps": "it is {num_steps}",
    "n_epochs": "it is {num_epochs}",
    "update_epochs": "it is {num_epochs}",
    "batch_size": "it is {minibatch_size}",
    "num_minibatches": "it is {minibatch_size}, samples in place of a number of minibatches",
    "ent_coef": "it is {entropy_coef}; SAC's is {temperature}",
    "vf_coef": "it is {value_coef}, of half the squared error: twice Stable-Baselines3's, as much as CleanRL's",
    "clip_coef": "it is {clip_range}",
    "clip_vloss": "it is {value_clip}, a number",
    "clip_range_vf": "the nearest is {value_clip}, another rule: see the guide for users of Stable-Baselines3",
    "norm_adv": "it is {normalize_advantages}",
    "normalize_advantage": "it is {normalize_advantages}",
    "anneal_lr": "it is {final_learning_rate}: 0 lets the learning rate fall linearly",
    "use_sde": "state-dependent exploration is not there",
    "sde_sample_freq": "state-dependent exploration is not there",
    "buffer_size": "it is {capacity}, of DQN, SAC, TD3 and IQL",
    "replay_buffer_class": "hindsight is {hindsight}, prioritised replay of DQN {prioritized}",
    "replay_buffer_kwargs": "hindsight is {hindsight} and {hindsight_goals}",
    "optimize_memory_usage": "frames and last observations are stored once anyway",
    "gradient_steps": "it is {updates_per_step}, a ratio: train_freq=4 with gradient_steps=1 is 0.25",
    "train_frequency": "it is {updates_per_step}, a ratio: 4 is 0.25",
    "train_freq": "it is {updates_per_step}, a ratio: train_freq=4 with gradient_steps=1 is 0.25",
    "policy_frequency": "it is {policy_every}",
    "policy_delay": "it is {policy_every}",
    "target_policy_noise": "it is {target_noise}",
    "policy_noise": "it is {target_noise}",
    "noise_clip": "it is {target_noise_clip}",
    "action_noise": "it is {exploration_noise} of TD3, a standard deviation",
    "target_update_interval": "it is {target_every}, in gradient steps",
    "target_network_frequency": "it is {target_every}, in gradient steps",
    "exploration_initial_eps": "it is {epsilon}",
    "start_e": "it is {epsilon}",
    "exploration_final_eps": "it is {final_epsilon}",
    "end_e": "it is {final_epsilon}",
    "exploration_fraction": "it is {epsilon_steps}, a number of steps",
    "autotune": "it is {learn_temperature}; measuring speed is fastrl autotune",
    "alpha": "SAC's is {temperature}",
    "cuda": "it is {device}",
    "track": "it is {loggers}: wandb",
    "wandb_project_name": "the variable WANDB_PROJECT names the project",
    "wandb_entity": "the variable WANDB_ENTITY names the entity",
    "env_kwargs": "it is env_options, a dict, or --env-options key=value ...",
    "hyperparams": "each is an option of its own, such as --num-steps 128",
    "conf_file": "it is --config, a TOML file such as --print-config prints",
    "optimize_hyperparameters": "fastrl tune searches for settings",
    "n_trials": "fastrl tune ENV --trials searches for settings",
    "trained_agent": "--resume RUN continues a run, --init RUN starts with its weights",
    "vec_env": "it is --collector: sequential in one process, sync and executor in several",
    "n_eval_envs": "evaluations have an environment of their own",
    "exp_name": "it is the run directory, learn(run_dir='runs/mine') or --run-dir",
    "torch_deterministic": "runs on a CPU are deterministic anyway",
    "capture_video": "fastrl.callbacks.VideoRecorder films on the way, fastrl render afterwards",
    "save_model": "model.save('file.safetensors'), or a run directory, which has checkpoints",
}

# Sentences on methods and attributes of models and callbacks, and on names of the package.
_METHODS = {
    "A2C": "IMPALA is the nearest; examples/own_algorithm.py is A2C",
    "MaskablePPO": "it is PPO(..., action_masks=True)",
    "RecurrentPPO": "it is PPO(..., memory='lstm')",
    "HerReplayBuffer": "DQN, SAC and TD3 have replay__hindsight=0.8",
    "load": "fastrl.load(path) reads a model of any algorithm",
    "set_env": "fastrl.load(path, env=...) continues in another environment",
    "get_env": "model.env_spec.make() makes the environment",
    "get_vec_env": "model.env_spec.make() makes the environment",
    "env": "model.env_spec.make() makes the environment",
    "get_parameters": "model.network is a torch.nn.Module: model.network.state_dict() has its weights",
    "set_parameters": "run__init_from='runs/mine' starts with the weights of a run",
    "num_timesteps": "it is steps of a model, and timesteps of the run that callbacks see",
    "n_calls": "it is iterations, which counts updates",
    "model": "training is the trainer, whose networks are training.algorithm.networks(); algorithm is its name",
    "training_env": "env is the environment's id",
    "parent": "a callback has none: learn(callbacks=[...]) takes several",
    "globals": "metrics has the newest numbers",
    "locals": "metrics has the newest numbers",
    "verbose": "learn(progress=False) shows nothing",
    "q_net": "it is network, a torch.nn.Module",
    "actor": "it is network, a torch.nn.Module",
    "critic": "model.distribution(obs).values has its values",
    "get_distribution": "model.distribution(obs) has the distribution and values",
    "predict_values": "it is model.distribution(obs).values",
    "replay_buffer": "replay__save=True keeps the replay in the run directory",
    "rollout_buffer": "algorithms of your own see it: a subclass of fastrl.algorithms.PPO",
    "num_envs": "settings has it: settings['env']['num_envs']",
    "n_envs": "settings has it: settings['env']['num_envs']",
    "observation_space": "model.env_spec.make() makes an environment, which has it",
    "action_space": "model.env_spec.make() makes an environment, which has it",
    "logger": "learn(loggers=[...]) takes loggers, see fastrl.loggers",
    "set_logger": "learn(loggers=[...]) takes loggers, see fastrl.loggers",
    "set_random_seed": "seed= of the model fixes everything random",
    "save_replay_buffer": "replay__save=True keeps the replay in the run directory",
    "load_replay_buffer": "replay__save=True keeps the replay in the run directory",
}


def other_setting(name: str, known: Collection[str]) -> str:
    """A sentence that says which setting here stands for one of another library; empty if it is none.

    Args:
        known: names of the settings that there are, without their tables.
    """
    sentence = _SETTINGS.get(name.replace("-", "_"), "")
    named = {part.partition("}")[0] for part in sentence.split("{")[1:]}
    plain = sentence.replace("{", "").replace("}", "")
    return f"not of this algorithm; of others {plain}" if named and not named & set(known) else plain


def no_attribute(owner: str, name: str) -> AttributeError:
    """The error of an attribute that is not there, with what is meant if it is one of another library's."""
    other = _METHODS.get(name, "")
    return AttributeError(f"{owner} has no attribute {name!r}{f': {other}' if other else ''}")
