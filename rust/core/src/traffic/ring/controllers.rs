//! The two controllers that dissolved a wave among human drivers in the field.
//!
//! Source: R. E. Stern et al., "Dissipation of stop-and-go waves via control of autonomous vehicles: Field
//! experiments", Transp. Res. C 89 (2018); numbers as there, which are also those of Flow's `FollowerStopper` and
//! `PISaturation`.

use serde::{Deserialize, Serialize};

/// FollowerStopper: the speed to drive, m/s. The desired speed far behind the leader, the leader's speed closer up, a
/// stop closer still; the borders lie farther back the faster the gap closes.
pub(super) fn follower_stopper(desired: f64, v: f64, gap: f64, lead_speed: f64) -> f64 {
    let closing = (lead_speed - v).min(0.0);
    let border = |at_rest: f64, decel: f64| at_rest + closing * closing / (2.0 * decel);
    let (stop, adapt, safe) = (border(4.5, 1.5), border(5.25, 1.0), border(6.0, 0.5));
    let follow = lead_speed.max(0.0).min(desired);
    if gap <= stop {
        0.0
    } else if gap <= adapt {
        follow * (gap - stop) / (adapt - stop)
    } else if gap <= safe {
        follow + (desired - follow) * (gap - adapt) / (safe - adapt)
    } else {
        desired
    }
}

/// Time over which PI with saturation averages its own speed, s.
const MEMORY: f64 = 38.0;

/// PI with saturation: drives the mean of its own last speeds, a little faster where the gap is wide, and like its
/// leader where it is narrow. It needs no desired speed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PiSaturation {
    /// Own speeds, m/s, a ring once it is full; `oldest` is the next to be replaced.
    history: Vec<f64>,
    oldest: usize,
    sum: f64,
    command: f64,
}

impl PiSaturation {
    /// Most speeds that one remembers that is called in every step of `dt` s.
    pub(super) fn longest_memory(dt: f64) -> usize {
        // Conversions of floats to integers saturate.
        ((MEMORY / dt) as usize).max(1)
    }

    /// Returns whether it is one that is called in every step of `dt` s.
    pub(super) fn is_sound(&self, dt: f64) -> bool {
        let Self { history, oldest, sum, command } = self;
        history.len() <= Self::longest_memory(dt).saturating_add(1)
            && (*oldest < history.len() || *oldest == 0)
            && history.iter().chain([sum, command]).all(|x| x.is_finite())
    }

    /// The speed to drive, m/s. Called once in every step of `dt` s.
    pub(super) fn command(&mut self, dt: f64, v: f64, gap: f64, lead_speed: f64) -> f64 {
        if self.history.is_empty() {
            self.command = v;
        }
        if ((self.history.len() + 1) as f64) * dt <= MEMORY || self.history.is_empty() {
            self.history.push(v);
        } else {
            self.sum -= self.history[self.oldest];
            self.history[self.oldest] = v;
            self.oldest = (self.oldest + 1) % self.history.len();
        }
        self.sum += v;
        let mean = self.sum / self.history.len() as f64;
        let target = mean + ((gap - 7.0) / (30.0 - 7.0)).clamp(0.0, 1.0);
        let safe_gap = (2.0 * (lead_speed - v)).max(4.0);
        let alpha = ((gap - safe_gap) / 2.0).clamp(0.0, 1.0);
        let beta = 1.0 - 0.5 * alpha;
        self.command = beta * (alpha * target + (1.0 - alpha) * lead_speed) + (1.0 - beta) * self.command;
        self.command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follower_stopper_has_the_borders_of_the_paper() {
        let at = |gap: f64| follower_stopper(7.0, 6.0, gap, 4.0);
        // Closing at 2 m/s: 4.5 + 4/3, 5.25 + 4/2, 6 + 4/1.
        assert_eq!(at(4.5 + 4.0 / 3.0), 0.0);
        assert!((at(7.25) - 4.0).abs() < 1e-12);
        assert!((at(0.5 * (7.25 + 10.0)) - 5.5).abs() < 1e-12);
        assert_eq!(at(10.1), 7.0);
        // A leader that draws away moves no border; one that is faster than desired is not followed.
        assert_eq!(follower_stopper(7.0, 6.0, 5.25, 20.0), 7.0);
        assert_eq!(follower_stopper(7.0, 6.0, 4.5, 20.0), 0.0);
    }

    #[test]
    fn pi_with_saturation_keeps_a_steady_speed_and_closes_wide_gaps() {
        let mut steady = PiSaturation::default();
        for _ in 0..1000 {
            assert!((steady.command(0.1, 4.0, 7.0, 4.0) - 4.0).abs() < 1e-9);
        }
        assert_eq!(steady.history.len(), 380);
        let mut wide = PiSaturation::default();
        let last = (0..100).map(|_| wide.command(0.1, 4.0, 40.0, 4.0)).last().unwrap();
        assert!((last - 5.0).abs() < 1e-9, "{last}");
        // Closer than 4 m it does what the leader does.
        let mut close = PiSaturation::default();
        assert_eq!(close.command(0.1, 4.0, 3.0, 1.0), 1.0);
    }

    #[test]
    fn pi_with_saturation_forgets_what_is_older_than_its_memory() {
        let drive = |pi: &mut PiSaturation, speed: f64, steps: usize| {
            for _ in 0..steps {
                pi.command(1.0, speed, 7.0, speed);
            }
        };
        let (mut pi, mut fresh) = (PiSaturation::default(), PiSaturation::default());
        drive(&mut pi, 9.0, 500);
        drive(&mut pi, 2.0, 100);
        drive(&mut fresh, 2.0, 500);
        assert!((pi.command - fresh.command).abs() < 1e-9 && (pi.sum - fresh.sum).abs() < 1e-9);
    }
}
