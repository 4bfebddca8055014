"""fastrl._native._pixels against an obvious numpy model, and against OpenCV where it is installed."""

import pickle

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl._native._pixels import Shrinker

SIDES = st.integers(1, 40)


def grey(frame):
    if frame.ndim == 2:
        return frame.astype(np.int64)
    red, green, blue = np.moveaxis(frame.astype(np.int64), -1, 0)
    return (red * 9798 + green * 19235 + blue * 3735 + 2**14) >> 15


def overlaps(size, out_size):
    """The share of each output pixel that each input pixel covers, [out_size, size]."""
    scale = size / out_size
    shares = np.zeros((out_size, size))
    for i in range(out_size):
        for k in range(size):
            shares[i, k] = max(0.0, min((i + 1) * scale, k + 1) - max(i * scale, k)) / scale
    return shares


def model(frame, out_shape, previous=None):
    """Means over areas, not rounded."""
    both = grey(frame) if previous is None else np.maximum(grey(frame), grey(previous))
    rows, columns = (overlaps(*sizes) for sizes in zip(both.shape, out_shape, strict=True))
    return rows @ both @ columns.T


def shrunk(frame, out_shape, previous=None):
    out = np.full(out_shape, 77, np.uint8)
    Shrinker(frame.shape[:2], out_shape).shrink(frame, out, previous)
    return out


@st.composite
def cases(draw):
    shape = draw(st.tuples(SIDES, SIDES))
    forms = [hnp.arrays(np.uint8, form) for form in (shape, (*shape, 3))]
    frame = draw(st.one_of(*forms))
    previous = draw(st.one_of(st.none(), *forms))
    return frame, draw(st.tuples(SIDES, SIDES)), previous


@given(cases())
def test_agrees_with_the_rounded_mean_over_areas(case):
    frame, out_shape, previous = case
    expected = model(frame, out_shape, previous)
    # Rounded to the nearest; a mean within float32's error of a half may be rounded either way.
    assert np.abs(shrunk(frame, out_shape, previous) - expected).max() <= 0.5 + 1e-3


@given(cases())
def test_frames_may_have_any_strides(case):
    frame, out_shape, previous = case
    expected = shrunk(frame, out_shape, previous)
    flipped = np.ascontiguousarray(frame[::-1, ::-1])[::-1, ::-1]
    np.testing.assert_array_equal(shrunk(flipped, out_shape, previous), expected)
    wide = np.repeat(frame, 2, axis=1)[:, ::2]
    if frame.ndim == 3:
        wide = np.ascontiguousarray(wide[..., ::-1])[..., ::-1]
    np.testing.assert_array_equal(shrunk(wide, out_shape, previous), expected)


def test_a_frame_of_the_same_shape_is_only_converted_to_grey():
    rng = np.random.default_rng(0)
    frame = rng.integers(256, size=(84, 84, 3), dtype=np.uint8)
    np.testing.assert_array_equal(shrunk(frame, (84, 84)), grey(frame))
    np.testing.assert_array_equal(shrunk(grey(frame).astype(np.uint8), (84, 84)), grey(frame))


@pytest.mark.parametrize("value", [0, 1, 254, 255])
@pytest.mark.parametrize("shape", [(210, 160), (240, 256), (84, 84), (7, 500)])
def test_uniform_frames_stay_uniform(value, shape):
    assert (shrunk(np.full(shape, value, np.uint8), (84, 84)) == value).all()
    assert (shrunk(np.full((*shape, 3), value, np.uint8), (84, 84)) == value).all()


@pytest.mark.parametrize("shape", [(210, 160), (240, 256), (250, 160), (84, 168), (1000, 3000)])
def test_agrees_with_opencv(shape):
    cv2 = pytest.importorskip("cv2", reason="pip install opencv-python-headless")
    rng = np.random.default_rng(1)
    frame = rng.integers(256, size=(*shape, 3), dtype=np.uint8)
    theirs = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    np.testing.assert_array_equal(theirs, grey(frame))
    theirs = cv2.resize(theirs, (84, 84), interpolation=cv2.INTER_AREA)
    assert np.abs(shrunk(frame, (84, 84)) - theirs.astype(int)).max() <= 1


def test_one_shrinker_serves_many_frames():
    rng = np.random.default_rng(2)
    shrinker = Shrinker((210, 160))
    assert (shrinker.shape, shrinker.out_shape) == ((210, 160), (84, 84))
    again = pickle.loads(pickle.dumps(shrinker))
    for _ in range(3):
        frame, previous = rng.integers(256, size=(2, 210, 160), dtype=np.uint8)
        a, b = np.empty((2, 84, 84), np.uint8)
        shrinker.shrink(frame, a, previous)
        again.shrink(frame, b, previous)
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, shrunk(frame, (84, 84), previous))


GOOD = np.zeros((10, 12), np.uint8)
OUT = np.zeros((5, 6), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((GOOD.tolist(), OUT), TypeError, "frame must be a numpy array of uint8, got list"),
        ((GOOD.astype(np.float32), OUT), TypeError, "frame must be a numpy array of uint8, got float32"),
        ((GOOD[1:], OUT), ValueError, r"frame must have shape \[10, 12\] or \[10, 12, 3\], got \[9, 12\]"),
        ((np.zeros((10, 12, 4), np.uint8), OUT), ValueError, r"got \[10, 12, 4\]"),
        ((GOOD, OUT, GOOD[:, 1:]), ValueError, "previous must have shape"),
        ((GOOD, OUT.astype(np.int8)), TypeError, "out must have dtype uint8, got int8"),
        ((GOOD, OUT[:4]), ValueError, r"out must have shape \[5, 6\], got \[4, 6\]"),
        ((GOOD, np.zeros((5, 12), np.uint8)[:, ::2]), ValueError, "out must be C-contiguous"),
        ((GOOD, np.frombuffer(bytes(30), np.uint8).reshape(5, 6)), ValueError, "must not be read-only"),
    ],
)
def test_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        Shrinker((10, 12), (5, 6)).shrink(*arguments)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((0, 3), ValueError),
        ((3, 1 << 16), ValueError),
        ((3,), TypeError),
        (3, TypeError),
        ((2.0, 3), TypeError),
    ],
)
def test_invalid_shapes_are_refused(shape, error):
    with pytest.raises(error, match="must be"):
        Shrinker(shape)
    with pytest.raises(error, match="out_shape"):
        Shrinker((10, 12), shape)
