//! Mended rules: what the original's authors most likely meant where its code does something else.

/// The rules that are mended, each by itself; by default none, as in the original.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// An Impact costs blue only if it succeeds: the original also charges for those that fail or are dropped.
    pub impact: bool,
    /// A user's access needs a service of the server that serves: the original never looks at it.
    pub green_service: bool,
    /// Red acts through sessions that live, as long as it knows one: the original also takes those that are gone.
    pub red_session: bool,
    /// A Restore costs once, when it starts: the original also charges for one that a busy agent submits.
    pub restore_cost: bool,
}

impl Rules {
    /// The name of the original's rules.
    const ORIGINAL: &str = "original";
    pub const NAMES: [&str; 4] = ["impact", "green-service", "red-session", "restore-cost"];

    /// The rules that a text names: "original", or mended ones joined by "+". The error names all.
    pub fn named(text: &str) -> Result<Self, String> {
        let mut rules = Self::default();
        if text == Self::ORIGINAL {
            return Ok(rules);
        }
        for name in text.split('+') {
            let rule = match name {
                "impact" => &mut rules.impact,
                "green-service" => &mut rules.green_service,
                "red-session" => &mut rules.red_session,
                "restore-cost" => &mut rules.restore_cost,
                _ => {
                    let names = Self::NAMES.map(|name| format!("'{name}'")).join(", ");
                    return Err(format!("rules: expected 'original', or {names} joined by '+', got '{text}'"));
                }
            };
            if std::mem::replace(rule, true) {
                return Err(format!("rules: expected each name once, got '{name}' again in '{text}'"));
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fast_source::FastSource;
    use super::super::game::Game;
    use super::super::ledger::Reward;
    use super::super::log::Log;
    use super::super::mind::RedAgent;
    use super::super::network::FULL_HEALTH;
    use super::super::red_kind::{RedAction, RedKind};
    use super::super::scenario::{MOST_SERVERS, NUM_BLUE, NUM_NETWORKS, Slot, server};
    use super::*;
    use crate::rng::Rng;

    const STEPS: u32 = 200;

    /// Events of a step that rules concern.
    #[derive(Default)]
    struct Events {
        /// Red's Impacts that ended, and those of them that succeeded.
        impacts: [u32; 2],
        accesses: Vec<(Slot, Option<Slot>, bool)>,
        chosen: Vec<(usize, RedAction)>,
    }

    impl Log for Events {
        fn green(&mut self, host: Slot, action: u8, server: Option<Slot>, success: Option<bool>) {
            if action == 0 {
                self.accesses.push((host, server, success == Some(true)));
            }
        }

        fn red_chose(&mut self, agent: usize, action: RedAction) {
            self.chosen.push((agent, action));
        }

        fn red_did(&mut self, _agent: usize, action: RedAction, success: Option<bool>) {
            if action.kind == RedKind::Impact {
                self.impacts[0] += 1;
                self.impacts[1] += u32::from(success == Some(true));
            }
        }
    }

    /// The game, reward and events after a step of a copy of `game`.
    fn stepped(game: &Game<FastSource>, actions: [u8; NUM_BLUE], rules: &str) -> (Game<FastSource>, Reward, Events) {
        let (mut game, mut events) = (game.clone(), Events::default());
        let rules = Rules::named(rules).unwrap();
        let rewards = game.step(actions, RedAgent::FiniteState, rules, STEPS, &mut events);
        (game, rewards.team(), events)
    }

    /// Calls `check` with games, blue's actions in them and what a step does with them by the original's rules, and
    /// counts how often it returns true.
    fn cases(check: impl Fn(&Game<FastSource>, [u8; NUM_BLUE], (Game<FastSource>, Reward, Events)) -> bool) -> usize {
        let mut rng = Rng::new(9);
        let mut count = 0;
        for seed in 0..6 {
            let mut game = Game::new(FastSource::new(seed));
            game.reset();
            for _ in 0..STEPS {
                // Few actions, so that red gets on.
                let actions = std::array::from_fn(|_| if rng.below(4) == 0 { rng.below(242) as u8 } else { 145 });
                let original = stepped(&game, actions, "original");
                let next = original.0.clone();
                count += usize::from(check(&game, actions, original));
                game = next;
            }
        }
        count
    }

    /// The same state, whatever blue was paid.
    fn assert_same(mut mended: Game<FastSource>, original: &Game<FastSource>) {
        mended.ledger = original.ledger.clone();
        assert!(mended == *original);
    }

    #[test]
    fn only_impacts_that_succeed_are_charged() {
        let count = cases(|game, actions, (original, reward, events)| {
            let (mended, ours, _) = stepped(game, actions, "impact");
            assert_same(mended, &original);
            assert!((ours.impact != 0) <= (events.impacts[1] > 0));
            assert_eq!(Reward { impact: reward.impact, ..ours }, reward);
            if events.impacts[0] == events.impacts[1] {
                assert_eq!(ours, reward);
            }
            ours != reward
        });
        assert!(count > 50, "{count}");
    }

    #[test]
    fn an_access_fails_where_no_service_serves() {
        let count = cases(|game, actions, (original, reward, _)| {
            let (mut mended, ours, events) = stepped(game, actions, "green-service");
            let network = &mended.world.network;
            let failed = events.accesses.iter().filter(|(_, _, success)| !success);
            let degraded =
                |slot: Slot| network.host(slot).ot_stopped || network.services_up(slot).health != FULL_HEALTH;
            for (_, server, _) in failed.clone().filter(|_| original.world.blocks == [0; NUM_NETWORKS]) {
                assert!(degraded(server.unwrap()));
            }
            let servers = (0..NUM_NETWORKS).flat_map(|subnet| (0..MOST_SERVERS).map(move |n| server(subnet, n)));
            if !servers.into_iter().any(degraded) {
                assert_eq!(ours, reward);
            }
            // A failed access raises no false alarm. Nothing else differs.
            mended.world.watch.connection_alerts = original.world.watch.connection_alerts;
            assert_same(mended, &original);
            assert_eq!(Reward { access_failed: reward.access_failed, ..ours }, reward);
            ours.access_failed < reward.access_failed
        });
        assert!(count > 50, "{count}");
    }

    #[test]
    fn red_acts_through_sessions_that_live() {
        let count = cases(|game, actions, (_, _, original)| {
            let (_, _, events) = stepped(game, actions, "red-session");
            assert_eq!(events.chosen.len(), original.chosen.len());
            let mut differs = false;
            for ((agent, ours), (_, theirs)) in events.chosen.iter().zip(&original.chosen) {
                assert_eq!((ours.kind, ours.target), (theirs.kind, theirs.target));
                let sessions = &game.reds[*agent].sessions;
                let knows_one = game.reds[*agent].known_ids().iter().any(|&id| sessions.get(id).is_some());
                assert_eq!(sessions.get(ours.session).is_some(), knows_one);
                differs |= sessions.get(theirs.session).is_none() && knows_one;
            }
            differs
        });
        assert!(count > 20, "{count}");
    }

    #[test]
    fn a_restore_costs_once() {
        let count = cases(|game, actions, (original, reward, _)| {
            let (mended, ours, _) = stepped(game, actions, "restore-cost");
            assert_same(mended, &original);
            assert_eq!(Reward { action_cost: reward.action_cost, ..ours }, reward);
            assert!(ours.action_cost >= reward.action_cost);
            if game.tasks.iter().all(Option::is_none) {
                assert_eq!(ours, reward);
            }
            ours != reward
        });
        assert!(count > 5, "{count}");
    }

    #[test]
    fn rules_are_named() {
        assert_eq!(Rules::named("original"), Ok(Rules::default()));
        let some = Rules { impact: true, restore_cost: true, ..Rules::default() };
        assert_eq!(Rules::named("restore-cost+impact"), Ok(some));
        for bad in ["", "impacts", "impact+", "original+impact"] {
            assert!(Rules::named(bad).unwrap_err().ends_with(&format!("got '{bad}'")));
        }
        let twice = Rules::named("impact+red-session+impact").unwrap_err();
        assert_eq!(twice, "rules: expected each name once, got 'impact' again in 'impact+red-session+impact'");
    }
}
