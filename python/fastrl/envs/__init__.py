"""Environments. Importing this package loads no torch, and the module of an environment on its first use."""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastrl.envs.async_vector import AsyncNativeVectorEnv as AsyncNativeVectorEnv
    from fastrl.envs.cage2.env import Cage2Env as Cage2Env
    from fastrl.envs.cage2.env import Cage2VectorEnv as Cage2VectorEnv
    from fastrl.envs.cage2.game import Cage2GameVectorEnv as Cage2GameVectorEnv
    from fastrl.envs.cage2.rows import Cage2RowsVectorEnv as Cage2RowsVectorEnv
    from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv as Cage2WorkflowVectorEnv
    from fastrl.envs.cage4.env import Cage4VectorEnv as Cage4VectorEnv
    from fastrl.envs.classic.control import ClassicEnv as ClassicEnv
    from fastrl.envs.classic.control import ClassicVectorEnv as ClassicVectorEnv
    from fastrl.envs.multi_agent import MultiAgentVectorEnv as MultiAgentVectorEnv
    from fastrl.envs.pixels import PixelEnv as PixelEnv
    from fastrl.envs.pixels import make_pixels as make_pixels
    from fastrl.envs.process_vector import ProcessVectorEnv as ProcessVectorEnv
    from fastrl.envs.registration import make_multi as make_multi
    from fastrl.envs.registration import register_multi as register_multi
    from fastrl.envs.toys.catch import CatchEnv as CatchEnv
    from fastrl.envs.toys.uneven import UnevenEnv as UnevenEnv
    from fastrl.envs.traffic.coop import CoopVectorEnv as CoopVectorEnv
    from fastrl.envs.traffic.driving_task import DrivingTask as DrivingTask
    from fastrl.envs.traffic.driving_task import DrivingWorld as DrivingWorld
    from fastrl.envs.traffic.highway import HighwayEnv as HighwayEnv
    from fastrl.envs.traffic.highway import HighwayMultiAgentVectorEnv as HighwayMultiAgentVectorEnv
    from fastrl.envs.traffic.highway import HighwayVectorEnv as HighwayVectorEnv
    from fastrl.envs.traffic.ring import RingEnv as RingEnv
    from fastrl.envs.traffic.ring import RingMultiAgentVectorEnv as RingMultiAgentVectorEnv
    from fastrl.envs.traffic.ring import RingVectorEnv as RingVectorEnv
    from fastrl.envs.vector import NativeVectorEnv as NativeVectorEnv

_MODULES = {
    "AsyncNativeVectorEnv": "async_vector",
    "Cage2Env": "cage2.env",
    "Cage2GameVectorEnv": "cage2.game",
    "Cage2RowsVectorEnv": "cage2.rows",
    "Cage2VectorEnv": "cage2.env",
    "Cage2WorkflowVectorEnv": "cage2.workflow",
    "Cage4VectorEnv": "cage4.env",
    "CatchEnv": "toys.catch",
    "ClassicEnv": "classic.control",
    "ClassicVectorEnv": "classic.control",
    "CoopVectorEnv": "traffic.coop",
    "DrivingTask": "traffic.driving_task",
    "DrivingWorld": "traffic.driving_task",
    "HighwayEnv": "traffic.highway",
    "HighwayMultiAgentVectorEnv": "traffic.highway",
    "HighwayVectorEnv": "traffic.highway",
    "MultiAgentVectorEnv": "multi_agent",
    "NativeVectorEnv": "vector",
    "PixelEnv": "pixels",
    "ProcessVectorEnv": "process_vector",
    "RingEnv": "traffic.ring",
    "RingMultiAgentVectorEnv": "traffic.ring",
    "RingVectorEnv": "traffic.ring",
    "UnevenEnv": "toys.uneven",
    "make_multi": "registration",
    "make_pixels": "pixels",
    "register_multi": "registration",
}
__all__ = [*_MODULES]

# Each folder registers its environments by id, so that a new environment is a folder and no entry in a list.
for _folder in pkgutil.iter_modules(__path__):
    if _folder.ispkg:
        import_module(f"{__name__}.{_folder.name}")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
