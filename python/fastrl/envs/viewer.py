"""Rendering of traffic: pictures by the compiled rasteriser, and a window.

The compiled simulators of traffic have `scene(index)`, the present scene of one environment. `View` draws scenes;
`Viewer` implements `render` of an environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastrl._native._rust import TrafficScene
from fastrl.utils.arguments import as_integer

RENDER_MODES = ("rgb_array", "human")
MOST_PIXELS = 16_384
# Number of earlier pictures whose cars are drawn as traces with `show_trajectories`.
TRAIL = 8


class HasScenes(Protocol):
    """A compiled simulator of traffic."""

    @property
    def num_envs(self) -> int: ...
    def scene(self, env: int) -> TrafficScene: ...


@dataclass(frozen=True, kw_only=True)
class View:
    """Settings of pictures. All but `legend` are keys of highway-env's config, with its meaning and defaults.

    Attributes:
        screen_width, screen_height: pixels.
        scaling: pixels a metre. A picture that must show all agents uses a smaller scale if needed; one of a whole
            ring uses the scale at which the ring fits.
        centering_position: position of the followed vehicle in the picture, as shares of width and height. A road that
            fits above the legend is in the middle of the height.
        show_trajectories: cars leave a faint trace at their positions in the last pictures.
        legend: time, mean speed, a distance and what the colours mean, along the lower edge.
    """

    screen_width: int = 600
    screen_height: int = 150
    scaling: float = 5.5
    centering_position: Sequence[float] = (0.3, 0.5)
    show_trajectories: bool = False
    legend: bool = True

    def __post_init__(self) -> None:
        for name in ("screen_width", "screen_height"):
            as_integer(name, getattr(self, name), 1, MOST_PIXELS)
        if not (0 < self.scaling < np.inf):
            raise ValueError(f"scaling: expected pixels a metre above 0, got {self.scaling!r}")
        if len(self.centering_position) != 2 or not np.isfinite(self.centering_position).all():
            raise ValueError(
                f"centering_position: expected two numbers such as (0.3, 0.5), got {self.centering_position!r}"
            )

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> View:
        """The view of a config in highway-env's form; missing keys keep their defaults."""
        names = ("screen_width", "screen_height", "scaling", "centering_position", "show_trajectories")
        return cls(**{name: config[name] for name in names if name in config})

    def draw(self, scene: TrafficScene, trail: Sequence[TrafficScene] = ()) -> NDArray[np.uint8]:
        """A picture of the scene, uint8 [screen_height, screen_width, 3], with the traces of earlier ones."""
        picture = np.empty((self.screen_height, self.screen_width, 3), np.uint8)
        scene.draw(picture, **self._options(), trail=list(trail))
        return picture

    def filled(self, scene: TrafficScene) -> View:
        """A view whose height the lanes of the scene fill: the same one, or one that is less high, by an even number of
        pixels as videos need it."""
        height = scene.filled_height((self.screen_width, self.screen_height), **self._options())
        return self if height >= self.screen_height else replace(self, screen_height=height + height % 2)

    def _options(self) -> dict[str, Any]:
        x, y = map(float, self.centering_position)
        return {"scaling": float(self.scaling), "centering": (x, y), "legend": self.legend}


class Viewer:
    """Pictures or a window for the `render` of an environment.

    Args:
        view: settings of the pictures.
        render_mode: one of `RENDER_MODES`. "rgb_array": pictures; "human": a window, which shows the first environment.
        fps: the most pictures a second that the window shows.

    Raises:
        ImportError: "human" without pygame; the message says how to install it.
    """

    def __init__(self, view: View, render_mode: str, *, fps: float) -> None:
        self.view = view
        self._window = Window(fps) if render_mode == "human" else None
        self._trails: dict[int, deque[TrafficScene]] = {}

    def render(self, native: HasScenes) -> tuple[NDArray[np.uint8], ...] | None:
        """One picture an environment, uint8 [screen_height, screen_width, 3] each; None if there is a window."""
        if self._window is not None:
            self._window.show(self._picture(native.scene(0), 0))
            return None
        return tuple(self._picture(native.scene(i), i) for i in range(native.num_envs))

    def _picture(self, scene: TrafficScene, index: int) -> NDArray[np.uint8]:
        if not self.view.show_trajectories:
            return self.view.draw(scene)
        trail = self._trails.setdefault(index, deque(maxlen=TRAIL))
        # A new episode has started, or this scene was drawn already.
        while trail and trail[-1].time >= scene.time:
            trail.pop()
        picture = self.view.draw(scene, tuple(trail))
        trail.append(scene)
        return picture

    def close(self) -> None:
        """Closes the window. May be called again."""
        if self._window is not None:
            self._window.close()


class Window:
    """A window on the screen, by pygame.

    Args:
        fps: the most pictures a second: `show` waits for the next one's time.

    Raises:
        ImportError: there is no pygame; the message says how to install it.
    """

    def __init__(self, fps: float) -> None:
        try:
            import pygame
        except ImportError:
            raise ImportError(
                'render_mode="human" needs pygame: install the extra, pip install "fastrl[render]"'
            ) from None
        self._pygame = pygame
        self._fps = fps
        self._screen: Any = None
        self._clock: Any = None
        self.is_closed = False

    def show(self, picture: NDArray[np.uint8]) -> None:
        """Shows a picture, uint8 [H, W, 3]. Does nothing once the user has closed the window."""
        pygame = self._pygame
        if self.is_closed:
            return
        size = (picture.shape[1], picture.shape[0])
        if self._screen is None:
            pygame.display.init()
            pygame.display.set_caption("fastrl")
            self._screen = pygame.display.set_mode(size)
            self._clock = pygame.time.Clock()
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                self.close()
                return
        self._screen.blit(pygame.image.frombuffer(picture.tobytes(), size, "RGB"), (0, 0))
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Closes the window; `show` does nothing then. May be called again."""
        if self._screen is not None:
            self._pygame.display.quit()
        self._screen, self.is_closed = None, True
