//! Scenes of traffic simulators for Python.

use fastrl_binding::arrays::{list, writeable};
use fastrl_binding::vec_env::VecBinding;
use fastrl_core::env::Env;
use fastrl_core::traffic::raster::{View, draw, filled_height};
use fastrl_core::traffic::scene::{Car, Scene, Scenic};
use fastrl_core::vec_env::Error;
use numpy::PyArray1;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The scene of one environment.
pub(crate) fn of<W: Env + Scenic>(py: Python<'_>, venv: &VecBinding<W>, env: usize) -> PyResult<TrafficScene> {
    let num_envs = venv.num_envs();
    if env >= num_envs {
        return Err(PyIndexError::new_err(format!("env: expected 0 to {}, got {env}", num_envs - 1)));
    }
    venv.with(py, |venv| {
        if venv.was_reset(env) {
            Ok(TrafficScene { scene: venv.env(env).scene() })
        } else {
            Err(Error::NeverReset { env })
        }
    })
}

fn checked(view: View) -> PyResult<View> {
    if view.scaling > 0.0 && view.scaling.is_finite() && view.centering.iter().all(|share| share.is_finite()) {
        return Ok(view);
    }
    Err(PyValueError::new_err(format!(
        "expected a positive scaling and a finite centering, got {} and {:?}",
        view.scaling, view.centering
    )))
}

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct TrafficScene {
    scene: Scene,
}

#[pymethods]
impl TrafficScene {
    #[getter]
    fn time(&self) -> f64 {
        self.scene.time
    }

    #[getter]
    fn speeds(&self) -> (f64, f64) {
        (self.scene.speeds[0], self.scene.speeds[1])
    }

    /// Metres of each lane.
    #[getter]
    fn lane_lengths(&self) -> Vec<f64> {
        self.scene.lanes.iter().map(|lane| lane.length).collect()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.scene.lanes.iter().any(|lane| lane.closed)
    }

    fn cars<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let cars = &self.scene.cars;
        let numbers = |of: fn(&Car) -> f64| PyArray1::from_iter(py, cars.iter().map(of));
        let columns = PyDict::new(py);
        columns.set_item("id", PyArray1::from_iter(py, cars.iter().map(|car| i64::from(car.id))))?;
        columns.set_item("x", numbers(|car| car.x))?;
        columns.set_item("y", numbers(|car| car.y))?;
        columns.set_item("heading", numbers(|car| car.heading))?;
        columns.set_item("length", numbers(|car| car.length))?;
        columns.set_item("width", numbers(|car| car.width))?;
        columns.set_item("speed", numbers(|car| car.speed))?;
        columns.set_item("lane", PyArray1::from_iter(py, cars.iter().map(|car| i64::from(car.lane))))?;
        columns.set_item("along", numbers(|car| car.along))?;
        columns.set_item("agent", PyArray1::from_iter(py, cars.iter().map(|car| car.agent.map_or(-1, i64::from))))?;
        columns.set_item("crashed", PyArray1::from_iter(py, cars.iter().map(|car| car.crashed)))?;
        Ok(columns)
    }

    fn links<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let links = &self.scene.links;
        let columns = PyDict::new(py);
        columns.set_item("sender", PyArray1::from_iter(py, links.iter().map(|link| i64::from(link.from))))?;
        columns.set_item("receiver", PyArray1::from_iter(py, links.iter().map(|link| i64::from(link.to))))?;
        columns.set_item("quality", PyArray1::from_iter(py, links.iter().map(|link| link.quality)))?;
        columns.set_item("age", PyArray1::from_iter(py, links.iter().map(|link| link.age)))?;
        Ok(columns)
    }

    #[pyo3(signature = (out, *, scaling, centering, legend, trail))]
    fn draw(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        scaling: f64,
        centering: [f64; 2],
        legend: bool,
        #[pyo3(from_py_with = list)] trail: Vec<Py<Self>>,
    ) -> PyResult<()> {
        let shape: Vec<usize> = list(&out.getattr("shape")?)?;
        let &[height, width, 3] = shape.as_slice() else {
            return Err(PyValueError::new_err(format!("out: expected shape (height, width, 3), got {shape:?}")));
        };
        let view = checked(View { width, height, scaling, centering, legend })?;
        let out = writeable::<u8>("out", out, &shape)?;
        // SAFETY: checked, and the caller's for the length of this call.
        let pixels = unsafe { out.slice_mut() };
        let trail: Vec<&Scene> = trail.iter().map(|earlier| &earlier.get().scene).collect();
        py.detach(|| draw(&self.scene, &trail, &view, pixels));
        Ok(())
    }

    #[pyo3(signature = (size, *, scaling, centering, legend))]
    fn filled_height(&self, size: (usize, usize), scaling: f64, centering: [f64; 2], legend: bool) -> PyResult<usize> {
        let (width, height) = size;
        Ok(filled_height(&self.scene, &checked(View { width, height, scaling, centering, legend })?))
    }

    fn between(&self, later: &Self, share: f64) -> PyResult<Self> {
        if !(0.0..=1.0).contains(&share) {
            return Err(PyValueError::new_err(format!("share: expected 0 to 1, got {share}")));
        }
        Ok(Self { scene: self.scene.between(&later.scene, share) })
    }
}
