//! Scenarios of CAGE Challenge 2, compiled, for Python.

use std::sync::Arc;

use fastrl_binding::arrays::list;
use fastrl_core::cage2::red_agents::RedKind;
use fastrl_core::cage2::scenario::{Host, Hosts, IMAGE_KINDS};
use fastrl_core::cage2::tables::{Access, Description, Scenario, SubnetDescription};
use fastrl_core::cage2::{Ruleset, effective_actions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Cage2Scenario {
    /// None: Scenario 2.
    description: Option<Description>,
    tables: Arc<Scenario>,
}

impl Cage2Scenario {
    /// Its tables by the rules of a version.
    pub(crate) fn by(&self, ruleset: Ruleset) -> Arc<Scenario> {
        match &self.description {
            None => ruleset.scenario2().clone(),
            Some(_) if ruleset == Ruleset::Main => self.tables.clone(),
            Some(description) => {
                let tables = Scenario::new(description.clone(), ruleset);
                Arc::new(tables.expect("what was compiled by one ruleset can be by any"))
            }
        }
    }
}

pub(crate) fn ruleset_from_name(name: &str) -> PyResult<Ruleset> {
    let place = Ruleset::NAMES.iter().position(|n| *n == name);
    place.map(|i| Ruleset::ALL[i]).ok_or_else(|| {
        PyValueError::new_err(format!("ruleset: expected 'main', 'leaderboard' or 'plusplus', got '{name}'"))
    })
}

/// Names of blue's actions in the challenge's order.
pub(crate) fn action_names(scenario: &Scenario) -> Vec<String> {
    scenario.actions.iter().map(|action| action.name(&scenario.hosts)).collect()
}

fn image_from_name(name: &str) -> PyResult<usize> {
    let place = IMAGE_KINDS.iter().position(|(image, _)| *image == name);
    place.ok_or_else(|| {
        let known = IMAGE_KINDS.iter().map(|(image, _)| *image).collect::<Vec<_>>().join(", ");
        PyValueError::new_err(format!("image: expected one of {known}, got '{name}'"))
    })
}

fn access_from_name(name: &str) -> PyResult<Access> {
    match name {
        "open" => Ok(Access::Open),
        "gated" => Ok(Access::Gated),
        "closed" => Ok(Access::Closed),
        _ => Err(PyValueError::new_err(format!("access: expected 'open', 'gated' or 'closed', got '{name}'"))),
    }
}

#[pymethods]
impl Cage2Scenario {
    #[new]
    #[pyo3(signature = (*, hosts, images, confidentiality_tenths, availability_tenths, info, shows_service, subnets, start,
                        blue_sessions, green_sessions))]
    #[expect(clippy::too_many_arguments, reason = "the parts of a scenario, by name")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = list)] hosts: Vec<String>,
        #[pyo3(from_py_with = list)] images: Vec<String>,
        #[pyo3(from_py_with = list)] confidentiality_tenths: Vec<i32>,
        availability_tenths: i32,
        #[pyo3(from_py_with = list)] info: Vec<Py<PyAny>>,
        #[pyo3(from_py_with = list)] shows_service: Vec<bool>,
        #[pyo3(from_py_with = list)] subnets: Vec<(String, u32, Py<PyAny>, String)>,
        start: Host,
        #[pyo3(from_py_with = list)] blue_sessions: Vec<Host>,
        #[pyo3(from_py_with = list)] green_sessions: Vec<Host>,
    ) -> PyResult<Self> {
        let info = info.iter().map(|shown| list(shown.bind(py))).collect::<PyResult<_>>()?;
        let subnets = subnets.into_iter().map(|(name, size, hosts, access)| {
            Ok(SubnetDescription { name, size, hosts: list(hosts.bind(py))?, access: access_from_name(&access)? })
        });
        let description = Description {
            hosts,
            images: images.iter().map(|name| image_from_name(name)).collect::<PyResult<_>>()?,
            confidentiality_tenths,
            availability_tenths,
            info,
            shows_service,
            subnets: subnets.collect::<PyResult<_>>()?,
            start,
            blue_sessions,
            green_sessions,
        };
        let tables = Scenario::new(description.clone(), Ruleset::Main).map_err(PyValueError::new_err)?;
        Ok(Self { description: Some(description), tables: Arc::new(tables) })
    }

    #[staticmethod]
    fn challenge() -> Self {
        Self { description: None, tables: Ruleset::Main.scenario2().clone() }
    }

    #[getter]
    fn hosts(&self) -> Vec<String> {
        self.tables.hosts.clone()
    }

    #[getter]
    fn subnets(&self) -> Vec<String> {
        self.tables.subnets.clone()
    }

    #[getter]
    fn subnet_of(&self) -> Vec<usize> {
        self.tables.subnet_of[..self.tables.len()].iter().map(|&subnet| usize::from(subnet)).collect()
    }

    #[getter]
    fn access(&self) -> Vec<&str> {
        let Scenario { subnets, members, open, gated, .. } = &*self.tables;
        let name = |&hosts: &Hosts| match (hosts & open, hosts & gated) {
            (0, 0) => "closed",
            (0, _) => "gated",
            _ => "open",
        };
        members[..subnets.len()].iter().map(name).collect()
    }

    #[getter]
    fn start(&self) -> Host {
        self.tables.start
    }

    #[getter]
    fn target(&self) -> Host {
        self.tables.target
    }

    #[getter]
    fn server(&self) -> Host {
        self.tables.server
    }

    #[getter]
    fn root_costs(&self) -> Vec<f64> {
        let tenths = |host: Host| self.tables.root_costs[host / 8][1 << (host % 8)];
        (0..self.tables.len()).map(|host| f64::from(tenths(host)) / 10.0).collect()
    }

    #[getter]
    fn scan_hosts(&self) -> Vec<Host> {
        self.tables.memory.scan_hosts.clone()
    }

    #[getter]
    fn decoy_places(&self) -> Vec<(usize, Host)> {
        self.tables.memory.decoy_places.clone()
    }

    #[getter]
    fn actions(&self) -> Vec<String> {
        action_names(&self.tables)
    }

    #[getter]
    fn red_agents(&self) -> Vec<&str> {
        let kinds = RedKind::ALL.iter().zip(RedKind::NAMES);
        kinds.filter(|(kind, _)| kind.cannot_play(&self.tables).is_none()).map(|(_, name)| name).collect()
    }

    #[getter]
    fn effective_actions(&self) -> Vec<u16> {
        effective_actions(&self.tables)
    }
}
