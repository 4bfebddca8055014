//! Observations and actions of a highway as Python describes them: dicts with highway-env's words.

use fastrl_binding::arrays::list;
use fastrl_core::traffic::action::{ActionType, Continuous, Span};
use fastrl_core::traffic::observation::{
    Attribute, Attributes, Column, Feature, Goal, Grayscale, Kinematics, Layer, Lidar, Limits, Observation,
    OccupancyGrid, TimeToCollision,
};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Limits that `fastrl.envs.traffic.highway_config` has too.
const MOST_CELLS: usize = 10_000_000;
const MOST_ROWS: usize = 100_000;
/// Tuples of observations in each other.
const MOST_TUPLES: usize = 8;
/// Pixels along a side of a picture.
const MOST_SIDE: usize = 2048;

/// The entry of a dict, which must be there.
fn get<'py, T>(options: &Bound<'py, PyDict>, key: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
    for<'a> <T as FromPyObject<'a, 'py>>::Error: Into<PyErr>,
{
    let value = options.get_item(key)?.ok_or_else(|| PyKeyError::new_err(format!("the option {key} is missing")))?;
    value.extract().map_err(Into::into)
}

/// The entry of a dict, which must be there, as a list.
fn get_list<'py, T: FromPyObjectOwned<'py>>(options: &Bound<'py, PyDict>, key: &str) -> PyResult<Vec<T>> {
    list(&get::<Bound<'py, PyAny>>(options, key)?)
}

/// A whole number from 1 to `most`.
fn within(options: &Bound<'_, PyDict>, key: &str, most: usize) -> PyResult<usize> {
    let number: usize = get(options, key)?;
    if (1..=most).contains(&number) {
        Ok(number)
    } else {
        Err(PyValueError::new_err(format!("{key}: expected 1 to {most}, got {number}")))
    }
}

fn limits(ranges: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<Limits>> {
    let Some(range) = ranges.get_item(name)? else { return Ok(None) };
    let (low, high): (f64, f64) = range.extract()?;
    Ok(Some(Limits { low, high }))
}

fn feature(name: &str) -> PyResult<Feature> {
    let place = Feature::NAMES.iter().position(|n| *n == name).ok_or_else(|| {
        PyValueError::new_err(format!("features: expected names out of {}, got '{name}'", Feature::NAMES.join(", ")))
    })?;
    Ok(Feature::ALL[place])
}

fn column(ranges: &Bound<'_, PyDict>, name: &str) -> PyResult<Column> {
    Ok(Column { feature: feature(name)?, limits: limits(ranges, name)? })
}

fn attribute(name: &str) -> PyResult<Attribute> {
    let found = Attribute::ALL.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, attribute)| attribute).ok_or_else(|| {
        let known = Attribute::ALL.map(|(known, _)| known).join(", ");
        PyValueError::new_err(format!("attributes: expected names out of {known}, got '{name}'"))
    })
}

/// The observation that a dict describes. `step` is the time of one step, seconds.
pub(crate) fn observation(options: &Bound<'_, PyDict>, step: f64) -> PyResult<Observation> {
    observation_within(options, step, 0)
}

/// An observation that is a part of `tuples` others.
fn observation_within(options: &Bound<'_, PyDict>, step: f64, tuples: usize) -> PyResult<Observation> {
    let kind: String = get(options, "type")?;
    if kind == "TimeToCollision" {
        return Ok(Observation::TimeToCollision(TimeToCollision {
            steps: within(options, "time_steps", MOST_CELLS)?,
            step,
        }));
    }
    if kind == "AttributesObservation" {
        let names: Vec<String> = get_list(options, "attributes")?;
        let noise: Vec<(String, f64)> = get_list(options, "noise")?;
        if let Some((name, most)) = noise.iter().find(|(_, most)| !(most.is_finite() && *most >= 0.0)) {
            return Err(PyValueError::new_err(format!("noise: expected at least 0 for '{name}', got {most}")));
        }
        return Ok(Observation::Attributes(Attributes {
            shown: names.iter().map(|name| attribute(name)).collect::<PyResult<_>>()?,
            noise: noise.iter().map(|(name, most)| Ok((attribute(name)?, *most))).collect::<PyResult<_>>()?,
        }));
    }
    if kind == "TupleObservation" {
        // A dict may contain itself.
        if tuples >= MOST_TUPLES {
            return Err(PyValueError::new_err(format!("parts: expected at most {MOST_TUPLES} tuples in each other")));
        }
        let parts: Vec<Bound<'_, PyDict>> = get_list(options, "parts")?;
        let part = |part| observation_within(part, step, tuples + 1);
        return Ok(Observation::Tuple(parts.iter().map(part).collect::<PyResult<_>>()?));
    }
    if kind == "LidarObservation" {
        let (cells, range) = (within(options, "cells", MOST_CELLS)?, get(options, "maximum_range")?);
        return Ok(Observation::Lidar(Lidar { cells, range, normalize: get(options, "normalize")? }));
    }
    if kind == "GrayscaleObservation" {
        return grayscale(options).map(Observation::Grayscale);
    }
    let names: Vec<String> = get_list(options, "features")?;
    if names.is_empty() || names.len() > Feature::ALL.len() + 1 {
        return Err(PyValueError::new_err(format!(
            "features: expected 1 to {}, got {}",
            Feature::ALL.len() + 1,
            names.len()
        )));
    }
    if kind == "KinematicsGoal" {
        let scales: Vec<f64> = get_list(options, "scales")?;
        if scales.len() != names.len() {
            return Err(PyValueError::new_err(format!("scales: expected {}, got {}", names.len(), scales.len())));
        }
        let features = names.iter().zip(scales).map(|(name, scale)| Ok((feature(name)?, scale)));
        return Ok(Observation::Goal(Goal { features: features.collect::<PyResult<_>>()? }));
    }
    let ranges: Bound<'_, PyDict> = get(options, "ranges")?;
    match kind.as_str() {
        "Kinematics" => Ok(Observation::Kinematics(Kinematics {
            columns: names.iter().map(|name| column(&ranges, name)).collect::<PyResult<_>>()?,
            rows: within(options, "vehicles_count", MOST_ROWS)?,
            absolute: get(options, "absolute")?,
            shuffled: get(options, "shuffled")?,
            clip: get(options, "clip")?,
            see_behind: get(options, "see_behind")?,
            intentions: get(options, "observe_intentions")?,
            obstacles: get(options, "include_obstacles")?,
            along: get(options, "along")?,
        })),
        "OccupancyGrid" => {
            let (step, shape): ([f64; 2], (usize, usize)) = (pair(options, "step")?, get(options, "shape")?);
            let cells = shape.0.checked_mul(shape.1).filter(|cells| (1..=MOST_CELLS).contains(cells));
            if cells.is_none() || !step.iter().all(|step| (1e-9..=1e9).contains(step)) {
                return Err(PyValueError::new_err(format!(
                    "expected a grid of 1 to {MOST_CELLS} cells of 1e-9 m to 1e9 m, got shape {shape:?} and step {step:?}"
                )));
            }
            let layer = |name: &String| {
                if name == "on_road" { Ok(Layer::OnRoad) } else { column(&ranges, name).map(Layer::Vehicles) }
            };
            Ok(Observation::OccupancyGrid(OccupancyGrid {
                layers: names.iter().map(layer).collect::<PyResult<_>>()?,
                low: pair(options, "low")?,
                step,
                shape: shape.into(),
                places: [limits(&ranges, "x")?, limits(&ranges, "y")?],
                align: get(options, "align_to_vehicle_axes")?,
                clip: get(options, "clip")?,
                image: get(options, "as_image")?,
            }))
        }
        _ => Err(PyValueError::new_err(format!(
            "observation: expected 'Kinematics', 'TimeToCollision', 'OccupancyGrid', 'KinematicsGoal', \
             'AttributesObservation', 'LidarObservation', 'GrayscaleObservation' or 'TupleObservation', got '{kind}'"
        ))),
    }
}

fn grayscale(options: &Bound<'_, PyDict>) -> PyResult<Grayscale> {
    let shape: (usize, usize) = get(options, "shape")?;
    let (stack, scaling) = (get::<usize>(options, "stack_size")?, get::<f64>(options, "scaling")?);
    let sides = 1..=MOST_SIDE;
    let cells = shape.0.saturating_mul(shape.1).saturating_mul(stack);
    if !sides.contains(&shape.0) || !sides.contains(&shape.1) || !(1..=MOST_CELLS).contains(&cells) {
        return Err(PyValueError::new_err(format!(
            "expected pictures of 1 to {MOST_SIDE} pixels along each side and of {MOST_CELLS} in all, got {stack} of {shape:?}"
        )));
    }
    if !(0.1..=100.0).contains(&scaling) {
        return Err(PyValueError::new_err(format!("scaling: expected 0.1 to 100 pixels a metre, got {scaling}")));
    }
    let weights: (f64, f64, f64) = get(options, "weights")?;
    let centering = pair(options, "centering_position")?;
    Ok(Grayscale { shape: shape.into(), stack, weights: weights.into(), scaling, centering })
}

/// The action space that a dict describes, and the speeds of its meta-actions, if it has such, m/s.
pub(crate) fn action(options: &Bound<'_, PyDict>) -> PyResult<(ActionType, Vec<f64>)> {
    let kind: String = get(options, "type")?;
    let unused = || vec![25.0];
    match kind.as_str() {
        "DiscreteMetaAction" => {
            let (longitudinal, lateral) = (get(options, "longitudinal")?, get(options, "lateral")?);
            let speeds: Vec<f64> = get_list(options, "target_speeds")?;
            if speeds.is_empty() {
                return Err(PyValueError::new_err("target_speeds: expected at least one speed, got none"));
            }
            Ok((ActionType::Meta { longitudinal, lateral }, speeds))
        }
        "ContinuousAction" => {
            let continuous = Continuous {
                longitudinal: get(options, "longitudinal")?,
                lateral: get(options, "lateral")?,
                acceleration: span(options, "acceleration_range")?,
                steering: span(options, "steering_range")?,
                clip: get(options, "clip")?,
                speed: get::<Option<(f64, f64)>>(options, "speed_range")?.map(|(low, high)| [low, high]),
                dynamical: get(options, "dynamical")?,
            };
            Ok((ActionType::Continuous(continuous), unused()))
        }
        "DiscreteAction" => {
            let commands: Vec<(f64, f64)> = get_list(options, "commands")?;
            if commands.is_empty() {
                return Err(PyValueError::new_err("commands: expected at least one, got none"));
            }
            let commands = commands.into_iter().map(|(a, b)| [a, b]).collect();
            Ok((ActionType::Table { commands, dynamical: get(options, "dynamical")? }, unused()))
        }
        _ => Err(PyValueError::new_err(format!(
            "action: expected 'DiscreteMetaAction', 'ContinuousAction' or 'DiscreteAction', got '{kind}'"
        ))),
    }
}

/// Limits, and whether they are double precision where the number that is scaled is not.
fn span(options: &Bound<'_, PyDict>, key: &str) -> PyResult<Span> {
    let (low, high, double): (f64, f64, bool) = get(options, key)?;
    Ok(Span { low, high, double })
}

fn pair(options: &Bound<'_, PyDict>, key: &str) -> PyResult<[f64; 2]> {
    let (low, high): (f64, f64) = get(options, key)?;
    Ok([low, high])
}
