//! One server of the model: its two machines, the work they asked for, and what of it is durable.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use super::driver::View;
use super::testing::{Random, epoch, point, principal, receipt, session};
use super::*;

/// Work that a node was asked for and has not done yet; lost in a crash.
#[derive(Clone, Debug)]
pub(super) enum Job {
    PersistSource(Ticket, Vec<u8>),
    PersistTarget(Ticket, Vec<u8>),
    Fetch(Ticket, Point),
    Prepare(Ticket),
    Adopt(Ticket, Opening, Vec<u8>),
    Told(target::Input),
}

pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) source: Option<Source>,
    pub(super) target: Target,
    pub(super) jobs: Vec<Job>,
    // What is durable:
    source_row: Option<Vec<u8>>,
    target_row: Option<Vec<u8>>,
    /// Openings in its copy of the chain.
    pub(super) store: BTreeMap<Epoch, Opening>,
    /// The newest entry by epoch.
    pub(super) heads: BTreeMap<Epoch, Point>,
}

pub(super) fn node(name: &'static str) -> Node {
    let me = principal(name);
    let is_holder = name == "server1";
    Node {
        name,
        source: is_holder.then(|| Source::holder(session(), me, epoch(0), Limits::default())),
        target: Target::new(session(), me, None, Limits::default()),
        jobs: Vec::new(),
        source_row: None,
        target_row: None,
        store: BTreeMap::new(),
        heads: BTreeMap::from([(epoch(0), point("genesis", 0, 3))]),
    }
}

/// Signing is slow and every run signs much the same.
pub(super) fn signed_receipt(server: &'static str, opening: &Opening) -> Receipt {
    type Key = (&'static str, EntryCid);
    static MADE: LazyLock<Mutex<BTreeMap<Key, Receipt>>> = LazyLock::new(Mutex::default);
    let key = (server, opening.point().cid);
    MADE.lock().unwrap().entry(key).or_insert_with(|| receipt(server, opening)).clone()
}

impl Node {
    pub(super) fn permit(&self) -> Option<Epoch> {
        self.source.as_ref().and_then(|source| source.permit().ok())
    }

    pub(super) fn highest(&self) -> Option<&Opening> {
        self.store.values().next_back()
    }

    /// Restarts from what is durable. Some of the writes under way may have happened.
    pub(super) fn crash(&mut self, random: &mut Random) {
        for job in std::mem::take(&mut self.jobs) {
            if random.percent(50) {
                self.durable_part(&job);
            }
        }
        let me = principal(self.name);
        let limits = Limits::default();
        self.target = match &self.target_row {
            Some(row) => Target::from_bytes(session(), me, row, limits).unwrap(),
            None => Target::new(session(), me, None, limits),
        };
        let adopted = self.target.adopted().cloned();
        self.source = match (&self.source_row, &adopted) {
            (Some(row), _) => Some(Source::from_bytes(session(), me, row, limits).unwrap()),
            (None, Some(opening)) => Some(Source::holder(session(), me, opening.epoch(), limits)),
            (None, None) => (self.name == "server1").then(|| Source::holder(session(), me, epoch(0), limits)),
        };
        if let Some(opening) = self.highest().cloned() {
            self.learn(&opening);
        }
        if let (Some(source), Some(opening)) = (&mut self.source, adopted) {
            source.handle(source::Input::Adopted { opening });
        }
    }

    pub(super) fn learn(&mut self, opening: &Opening) {
        self.store.insert(opening.epoch(), opening.clone());
        if let Some(source) = &mut self.source {
            source.handle(source::Input::Learned { opening: opening.clone() });
        }
        self.target.handle(target::Input::Learned { opening: opening.clone() });
    }

    /// What of a job survives a crash right after it.
    fn durable_part(&mut self, job: &Job) {
        match job {
            Job::PersistSource(_, row) => self.source_row = Some(row.clone()),
            Job::PersistTarget(_, row) => self.target_row = Some(row.clone()),
            Job::Adopt(_, opening, row) => {
                self.target_row = Some(row.clone());
                self.store.insert(opening.epoch(), opening.clone());
                self.heads.entry(opening.epoch()).or_insert(opening.point());
            }
            Job::Fetch(..) | Job::Prepare(_) | Job::Told(_) => {}
        }
    }

    pub(super) fn run(&mut self, job: Job, random: &mut Random, fair: bool) {
        if let Job::Adopt(ticket, ..) = job
            && !fair
            && random.percent(15)
        {
            let result = Err(Code::StoreIo.into());
            return self.target.handle(target::Input::AdoptDone { ticket, result });
        }
        self.durable_part(&job);
        match job {
            Job::PersistSource(ticket, _) => {
                if let Some(source) = &mut self.source {
                    source.handle(source::Input::Persisted { ticket });
                }
            }
            Job::PersistTarget(ticket, _) => self.target.handle(target::Input::Persisted { ticket }),
            Job::Fetch(ticket, head) => {
                let result = if fair || random.percent(70) { Ok(()) } else { Err(Code::Unreachable.into()) };
                self.target.handle(target::Input::Fetched { ticket, through: head.seq, bytes: 0 });
                self.target.handle(target::Input::FetchDone { ticket, result });
            }
            Job::Prepare(ticket) => {
                let refuses = !fair && random.percent(10);
                let result = if refuses { Err("model-missing".to_owned()) } else { Ok(Readiness::default()) };
                self.target.handle(target::Input::PrepareDone { ticket, result });
            }
            Job::Adopt(ticket, opening, _) => {
                let result = Ok(signed_receipt(self.name, &opening));
                self.jobs.push(Job::Told(target::Input::AdoptDone { ticket, result }));
            }
            Job::Told(input) => {
                self.target.handle(input);
                if let Some(opening) = self.target.adopted().cloned() {
                    match &mut self.source {
                        Some(source) => source.handle(source::Input::Adopted { opening }),
                        None => {
                            let me = principal(self.name);
                            self.source =
                                Some(Source::holder(session(), me, opening.epoch(), Limits::default()));
                        }
                    }
                }
            }
        }
    }

    pub(super) fn view(&self, random: &mut Random) -> View {
        let opening = self.highest().cloned();
        let last = opening.as_ref().map_or(Epoch::ZERO, Opening::epoch);
        let is_holder = opening.as_ref().and_then(Opening::holder) == Some(principal(self.name));
        let receipt = opening.as_ref().filter(|_| is_holder && random.percent(50));
        let receipt = receipt.map(|opening| signed_receipt(self.name, opening));
        View { head: self.heads.get(&last).copied(), told: None, receipt, opening }
    }
}
