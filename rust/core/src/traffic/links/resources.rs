//! Selection of the resource that a station sends in.

use super::config::Config;
use super::draws::{Draws, Purpose};

/// Messages for which a semi-persistent choice lasts: the least, and how many more at most.
const KEPT: [usize; 2] = [5, 10];
/// Share of the resources that must be left to choose from; the threshold rises by 3 dB until it is.
const LEFT: f64 = 0.2;
const RISE: f64 = 3.0;

/// The resource of the next message of a station by sensing-based semi-persistent scheduling.
///
/// `sensed`: power in each resource at the last message, mW; NaN where it could not listen. `counter`: messages that
/// the present resource is kept for, `None` at first. Source: 3GPP TS 38.214, section 8.1.4, without priorities.
pub(super) fn semi_persistent(
    config: &Config,
    station: usize,
    resource: u32,
    counter: &mut Option<u32>,
    sensed: &[f64],
    draws: Draws,
) -> u32 {
    match counter {
        Some(left) if *left > 0 => {
            *left -= 1;
            return resource;
        }
        _ => {}
    }
    let kept = draws.below(Purpose::Keeping, station, KEPT[1] + 1) + KEPT[0];
    let is_first = counter.is_none();
    // This message is one of them.
    *counter = Some(kept as u32 - 1);
    if !is_first && draws.unit(Purpose::Decision, station) < config.keep {
        return resource;
    }
    let choice = draws.unit(Purpose::Resource, station);
    free_resource(sensed, config.taken, choice) as u32
}

/// A resource at share `choice` of those in which no more than `threshold` dBm were sensed; where these are too few,
/// the threshold rises.
fn free_resource(sensed: &[f64], threshold: f64, choice: f64) -> usize {
    let known = sensed.iter().filter(|power| !power.is_nan()).count();
    let pick = |limit: f64| {
        let fits = |power: f64| power <= limit;
        let count = sensed.iter().filter(|&&power| fits(power)).count();
        let place = (choice * count as f64) as usize;
        let found = sensed.iter().enumerate().filter(|&(_, &power)| fits(power)).nth(place).map(|(r, _)| r);
        (count, found)
    };
    let least = ((LEFT * sensed.len() as f64).ceil() as usize).clamp(1, known.max(1));
    let mut limit = threshold;
    // 400 dB: far beyond any power.
    while limit < threshold + 400.0 {
        if let (count, Some(found)) = pick(super::radio::linear(limit))
            && count >= least
        {
            return found;
        }
        limit += RISE;
    }
    // Nothing is known: any.
    ((choice * sensed.len() as f64) as usize).min(sensed.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::super::config::{Channel, Selection};
    use super::super::radio::linear;
    use super::*;

    #[test]
    fn quiet_resources_are_chosen_evenly() {
        let mut sensed = vec![linear(-60.0); 20];
        for quiet in [3, 7, 8, 15] {
            sensed[quiet] = linear(-120.0);
        }
        sensed[1] = f64::NAN;
        let mut counts = [0; 20];
        for i in 0..4000 {
            counts[free_resource(&sensed, -110.0, f64::from(i) / 4000.0)] += 1;
        }
        assert_eq!([counts[3], counts[7], counts[8], counts[15]], [1000; 4]);
    }

    #[test]
    fn the_threshold_rises_until_a_fifth_is_left() {
        let sensed: Vec<f64> = (0..20).map(|r| linear(-100.0 + f64::from(r))).collect();
        let chosen: Vec<usize> = (0..100).map(|i| free_resource(&sensed, -110.0, f64::from(i) / 100.0)).collect();
        // 3 dB steps from -110: at -95 there are six.
        assert_eq!((chosen.iter().min(), chosen.iter().max()), (Some(&0), Some(&5)));
        assert!(free_resource(&[f64::NAN; 5], -110.0, 0.99) == 4);
    }

    #[test]
    fn resources_are_kept_for_5_to_15_messages() {
        let config = Config { selection: Selection::Sensing, keep: 0.0, ..Config::new(Channel::Tr37885) };
        let (mut resource, mut counter) = (0, None);
        let mut runs = vec![];
        let mut run = 0;
        for message in 0..5000 {
            let before = counter;
            let draws = Draws::new(1, 0, message);
            resource = semi_persistent(&config, 2, resource, &mut counter, &[0.0; 20], draws);
            if before.is_none_or(|left| left == 0) {
                runs.push(std::mem::take(&mut run));
            }
            run += 1;
        }
        let runs = &runs[1..];
        assert_eq!((runs.iter().min(), runs.iter().max()), (Some(&5), Some(&15)));
    }
}
