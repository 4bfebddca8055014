"""A Gaussian process over permutations: predictions for all orders from the outcomes of a few.

The distance of two orders is the number of pairs that they order differently (Kendall's distance), and outcomes
correlate by exp(-distance / length scale), the Mallows kernel. It is positive definite: Jiao and Vert, "The Kendall
and Mallows kernels for permutations", ICML 2015, IEEE TPAMI 2018. (Each pair is a bit that says which of the two comes
first; the kernel is the product over pairs of [[1, e], [e, 1]] with e = exp(-1 / length scale) < 1.)
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
from sklearn.gaussian_process.kernels import (  # type: ignore[import-untyped]
    ConstantKernel,
    Hyperparameter,
    Kernel,
    NormalizedKernelMixin,
    WhiteKernel,
)
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fastrl.tasks.workflow.orders import Order, kendall_distances


class MallowsKernel(NormalizedKernelMixin, Kernel):
    """exp(-Kendall distance / length_scale), a kernel of scikit-learn for orders int [n, k].

    Args:
        length_scale: the distance over which correlation falls to 1/e.
        length_scale_bounds: between which it is fitted.
    """

    def __init__(
        self, length_scale: float = 3.0, length_scale_bounds: tuple[float, float] = (0.3, 30.0)
    ) -> None:
        self.length_scale = length_scale
        self.length_scale_bounds = length_scale_bounds

    @property
    def hyperparameter_length_scale(self) -> Hyperparameter:
        return Hyperparameter("length_scale", "numeric", self.length_scale_bounds)

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:  # noqa: N803
        """The kernel's values, float64 [n, m]; and their gradient by log(length_scale), float64 [n, n, 1]."""
        scaled = kendall_distances(X, X if Y is None else Y) / self.length_scale
        values = np.exp(-scaled)
        return (values, (values * scaled)[:, :, None]) if eval_gradient else values

    def is_stationary(self) -> bool:
        """True: renaming the items of both orders alike changes nothing."""
        return True


class PermutationGP:
    """Regression over orders. Each `fit` fits all parameters by marginal likelihood.

    An observation is mean + f(order) + noise + its own known error, with f drawn from a Gaussian process with variance
    ``signal``^2 and the Mallows kernel.

    Attributes:
        length_scale: of the kernel, in discordant pairs.
        signal, noise: deviations, in the values' unit; noise is beyond the known errors.
    """

    def __init__(self) -> None:
        self.length_scale = self.signal = self.noise = float("nan")

    def fit(self, orders: Sequence[Order], values: ArrayLike, errors: ArrayLike) -> "PermutationGP":
        """Fits the model to observations, which replace earlier ones.

        Args:
            orders: int [n, k]; an order may be there several times.
            values: float [n].
            errors: float [n], the known standard error of each.

        Returns:
            Itself.

        Raises:
            ValueError: no observations, or one that is not finite.
        """
        y, own = np.asarray(values, np.float64), np.asarray(errors, np.float64)
        if not len(y) or not (np.isfinite(y).all() and np.isfinite(own).all()):
            raise ValueError("values and errors should be finite, and at least one of each")
        self._mean = float(y.mean())
        self._scale = float(y.std()) or float(own.max()) or 1.0
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * MallowsKernel() + WhiteKernel(0.1, (1e-6, 1e1))
        self._model = GaussianProcessRegressor(
            kernel, alpha=(own / self._scale) ** 2 + 1e-8, n_restarts_optimizer=2, random_state=0
        )
        # Several threads would only wait for each other over matrices as small as these.
        with threadpool_limits(1, "blas"), warnings.catch_warnings():
            # Without noise, or with nothing but noise, a parameter ends at its bound.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit(np.asarray(orders, np.int64), (y - self._mean) / self._scale)
        fitted = self._model.kernel_
        self.length_scale = float(fitted.k1.k2.length_scale)
        self.signal = float(np.sqrt(fitted.k1.k1.constant_value)) * self._scale
        self.noise = float(np.sqrt(fitted.k2.noise_level)) * self._scale
        return self

    def predict(self, orders: Sequence[Order]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and deviation of mean + f, without noise, float64 [m] each."""
        with threadpool_limits(1, "blas"):
            mean, deviation = self._model.predict(np.asarray(orders, np.int64), return_std=True)
        # scikit-learn includes the noise.
        variance = deviation**2 - self._model.kernel_.k2.noise_level
        return mean * self._scale + self._mean, np.sqrt(np.maximum(variance, 0.0)) * self._scale
