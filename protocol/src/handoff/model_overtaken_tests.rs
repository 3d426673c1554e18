//! Schedules in which another device of the owner opens the next epoch while a move is taken back.

use super::*;

impl World {
    /// Another device of the owner hands the session over without the source, once or twice, and this one learns of it: of the
    /// last one only, so that the source is told of an epoch whose chain nobody gave it.
    fn open_by_rival(&mut self) {
        let next = self.plan.epoch.next();
        let rival = signed_opening(&driver::Unsigned {
            session: session(),
            epoch: if self.random.percent(50) { next } else { next.next() },
            prev: point("genesis", 0, 3),
            seq: Seq::new(4).unwrap(),
            holder: principal("stranger"),
            grant: None,
        });
        self.left_source = true;
        self.openings.insert(rival.epoch(), rival.clone());
        self.driver.handle(self.now, driver::Input::Learned { opening: rival.clone() });
        self.rival = Some(rival);
        self.drain();
    }
}

/// A move that is taken back while another device of the owner opens the next epoch; none when the handoff was signed
/// before, or the move was over. Otherwise whether the source was told of that epoch and said so.
fn run_overtaken(seed: u64) -> Option<bool> {
    let mut world = World::new(seed);
    let steps = 20 + world.random.below(150);
    chaos(&mut world, steps);
    world.driver.abort(world.now).ok()?;
    let steps = world.random.below(40);
    chaos(&mut world, steps);
    // A crash may have undone the abort: a handoff of this device beside that of the rival is the owner's equivocation.
    if world.driver.outcome().is_some() || world.driver.opening().is_some() {
        return None;
    }
    world.open_by_rival();
    let steps = world.random.below(150);
    chaos(&mut world, steps);
    let outcome = world.settle();
    let (Outcome::RolledBack { source, .. } | Outcome::Aborted { source }) = outcome else {
        panic!("{outcome:?}")
    };
    let was_told = world.driver.drew_in_source()
        && world.driver.overtaken_by().is_some()
        && source == Confirmation::Confirmed;
    if was_told {
        assert_eq!(world.nodes[0].permit(), None, "{:?}", world.nodes[0].source);
        let told = world.nodes[0].source.as_ref().map(Source::epoch);
        assert_eq!(told, world.driver.overtaken_by().map(Opening::epoch));
    }
    Some(was_told)
}

#[test]
fn a_move_that_is_taken_back_never_thaws_the_source_of_a_session_that_moved_on() {
    let mut tally = [0_u32; 2];
    for seed in SEEDS {
        let Ok(told) = std::panic::catch_unwind(|| run_overtaken(seed)) else { panic!("seed {seed}") };
        if let Some(was_told) = told {
            tally[usize::from(was_told)] += 1;
        }
    }
    assert!(tally[0] > 50 && tally[1] > 500, "{tally:?}");
}
