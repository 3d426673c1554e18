//! What a power cut leaves of a [`ModelDisk`], and a run of one cut short before each of its calls.

use super::model::{ByteChange, Call, ModelDisk, NameChange, State};

/// A small generator of pseudo-random numbers (xorshift64, Marsaglia 2003): the same seed, the same crash.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| {
            dice.roll();
        });
        dice
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `sides`, which is not 0.
    pub fn below(&mut self, sides: u64) -> u64 {
        (self.roll() >> 11) % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

impl ModelDisk {
    /// What a power cut at this moment leaves: all that was synced, and of the rest what the dice say. Sectors are of 512
    /// bytes or 4 KiB; none, some or all of what waits is lost.
    #[must_use]
    pub fn after_crash(&self, dice: &mut Dice) -> ModelDisk {
        ModelDisk::of(crashed(&self.state(), dice))
    }
}

fn crashed(state: &State, dice: &mut Dice) -> State {
    let kept_percent = [0, 20, 50, 80, 100][usize::try_from(dice.below(5)).unwrap_or(0)];
    let sector = if dice.chance(50) { 512 } else { 4_096 };
    let mut after = State::default();
    after.next_node = state.next_node;
    after.durable_names.clone_from(&state.durable_names);
    for change in &state.pending {
        if dice.chance(kept_percent) {
            kept_name(change.clone(), &mut after);
        }
    }
    // A name whose directory is gone is gone with it.
    let names = after.durable_names.clone();
    after.durable_names.retain(|path, _| path.ancestors().skip(1).all(|dir| names.contains_key(dir)));
    after.names = after.durable_names.clone();
    for node in after.names.values() {
        let Some(held) = state.nodes.get(node) else { continue };
        let mut durable = held.durable.clone();
        for change in &held.pending {
            keep_bytes(change, &mut durable, sector, kept_percent, dice);
        }
        let mut kept = held.clone();
        (kept.now, kept.durable) = (durable.clone(), durable);
        kept.pending.clear();
        after.nodes.insert(*node, kept);
    }
    after
}

/// A name that reached the disk. One that was moved from a name which did not is there all the same.
fn kept_name(change: NameChange, after: &mut State) {
    change.apply(&mut after.durable_names);
}

fn keep_bytes(change: &ByteChange, bytes: &mut Vec<u8>, sector: usize, kept_percent: u64, dice: &mut Dice) {
    let ByteChange::Write { at, bytes: new } = change else {
        if dice.chance(kept_percent) {
            change.apply(bytes);
        }
        return;
    };
    let mut from = 0;
    while from < new.len() {
        let until = ((at + from) / sector + 1) * sector - at;
        let until = until.min(new.len());
        if dice.chance(kept_percent) {
            ByteChange::Write { at: at + from, bytes: new[from..until].into() }.apply(bytes);
        }
        from = until;
    }
}

/// The calls of a run, one by one, on a disk of its own.
#[derive(Debug)]
pub struct Replay {
    state: State,
    calls: std::vec::IntoIter<Call>,
    /// The mark that the run noted last; see [`ModelDisk::mark`].
    mark: Option<u64>,
}

impl Replay {
    /// The run of a disk that was empty at its begin. Forgets it there.
    #[must_use]
    pub fn of(disk: &ModelDisk) -> Self {
        Replay::from(&ModelDisk::new(), disk)
    }

    /// The run of a disk that was as `before` at its begin.
    #[must_use]
    pub fn from(before: &ModelDisk, disk: &ModelDisk) -> Self {
        Replay { state: before.state(), calls: disk.take_history().into_iter(), mark: None }
    }

    /// The mark that the run noted last.
    #[must_use]
    pub fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// Carries out the next call; says whether there was one.
    pub fn step(&mut self) -> bool {
        for call in self.calls.by_ref() {
            if let Call::Mark(mark) = call {
                self.mark = Some(mark);
                continue;
            }
            // It succeeded in the run, so it does here.
            let _ = self.state.apply(&call);
            return true;
        }
        false
    }

    /// What a power cut now would leave.
    #[must_use]
    pub fn after_crash(&self, dice: &mut Dice) -> ModelDisk {
        ModelDisk::of(crashed(&self.state, dice))
    }
}
