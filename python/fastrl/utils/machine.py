"""The machine that something was measured or trained on."""

import os
import platform
import re
from pathlib import Path
from typing import Any


def hardware(cores: int, device: str = "cpu") -> dict[str, Any]:
    """Processor, cores, memory and system, and the GPU if that is the device.

    Args:
        cores: that this process may use.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "processor": _processor(),
        "cores": cores,
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device.startswith("cuda"):
        import torch

        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return names[0] if names else platform.processor() or platform.machine()
