"""Environments. Importing this package loads no torch."""

from fastrl.envs.async_vector import AsyncNativeVectorEnv
from fastrl.envs.cage2.env import Cage2Env, Cage2VectorEnv
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv
from fastrl.envs.multi_agent import MultiAgentVectorEnv, make_multi
from fastrl.envs.pixels import PixelEnv, make_pixels
from fastrl.envs.process_vector import ProcessVectorEnv
from fastrl.envs.toys.catch import CatchEnv
from fastrl.envs.toys.uneven import UnevenEnv
from fastrl.envs.traffic.coop import CoopVectorEnv
from fastrl.envs.traffic.highway import HighwayEnv, HighwayVectorEnv
from fastrl.envs.traffic.highway_multi import HighwayWorlds
from fastrl.envs.traffic.ring import RingEnv, RingVectorEnv, RingWorlds
from fastrl.envs.vector import NativeVectorEnv

__all__ = [
    "AsyncNativeVectorEnv",
    "Cage2Env",
    "Cage2VectorEnv",
    "Cage2WorkflowVectorEnv",
    "CatchEnv",
    "CoopVectorEnv",
    "HighwayEnv",
    "HighwayVectorEnv",
    "HighwayWorlds",
    "MultiAgentVectorEnv",
    "NativeVectorEnv",
    "PixelEnv",
    "ProcessVectorEnv",
    "RingEnv",
    "RingVectorEnv",
    "RingWorlds",
    "UnevenEnv",
    "make_multi",
    "make_pixels",
]
