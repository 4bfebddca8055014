"""Graphs as ONNX files, with metadata."""

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fastrl import runtime
from fastrl.exports.graph import ExportError, PolicyGraph
from fastrl.utils.files import write_atomically
from fastrl.utils.output import redirect_to_null

# Of the operators in the file; onnxruntime knows it since version 1.12.
OPSET = 17


def require_onnx() -> Any:
    """The package onnx.

    Raises:
        ExportError: it or onnxruntime is not installed.
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f"exports need onnx and onnxruntime ({error.name} is not installed): pip install 'fastrl[export]'"
        ) from None
    return onnx


def write_onnx(graph: PolicyGraph, metadata: dict[str, Any], path: Path) -> None:
    """Writes a graph, for any number of observations; inputs with a default may be left out.

    Args:
        metadata: besides what the graph says itself, JSON-able.

    Raises:
        ExportError: PyTorch cannot export it.
    """
    onnx = require_onnx()
    model = onnx.load_from_string(_converted(graph.eval()))
    for each in model.graph.input:
        if each.name in graph.defaults:
            each.type.tensor_type.shape.dim[0].dim_param = "batch_or_1"
    for name, value in graph.defaults.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    entry = model.metadata_props.add()
    entry.key = runtime.KEY
    entry.value = json.dumps({"format": runtime.FORMAT, **metadata, **graph.description})
    write_model(model, path)


def write_model(model: Any, path: Path) -> None:
    """Writes a model in one piece: a reader finds the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, model.SerializeToString())


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """Drops what is written to file descriptor 1: PyTorch dumps graphs there that it cannot export."""
    sys.stdout.flush()
    kept = os.dup(1)
    redirect_to_null(1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _converted(graph: PolicyGraph) -> bytes:
    names, outputs = list(graph.inputs), graph.outputs
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # Tracing is the older of PyTorch's two ways, and warns of it; the other takes half a minute and a compiler.
        warnings.simplefilter("ignore")
        # PyTorch's fused attention has no form in ONNX.
        is_fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with _silent_stdout():
                torch.onnx.export(
                    graph,
                    tuple(graph.inputs.values()),
                    file,  # type: ignore[arg-type]
                    input_names=names,
                    output_names=outputs,
                    dynamic_axes={name: {0: "batch"} for name in (*names, *outputs)},
                    opset_version=OPSET,
                    dynamo=False,
                )
        except Exception as error:
            # A dump of the graph follows the reason.
            reason = " ".join(str(error).partition("\n")[0].split())[:300]
            raise ExportError(
                f"PyTorch cannot export the network: {reason}; write that part of forward() with operators that"
                f" ONNX {OPSET} has, or act with fastrl.load(...).predict"
            ) from error
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fused)
    return file.getvalue()
