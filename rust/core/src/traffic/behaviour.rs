//! How traffic drives by itself.

use super::vehicles::{Driver, Gains};

/// The usual weights of that kind of driver.
pub(super) fn gains(driver: Driver) -> Gains {
    // MERGE_ACC_GAIN, (1 - MERGE_VEL_RATIO) MERGE_TARGET_VEL and MERGE_VEL_RATIO MERGE_TARGET_VEL
    let merging = |gain: f64, gap: f64| [gain / 7.5, gain / 22.5, gap];
    let acceleration = match driver {
        Driver::Aggressive => merging(0.8, 0.5),
        Driver::Defensive => merging(1.2, 2.0),
        _ => [0.3, 0.3, 2.0],
    };
    Gains { acceleration, steering: [1.0 / 0.2, 1.0 / 0.2 * (1.0 / 0.6)] }
}
