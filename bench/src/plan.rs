//! Every case there is, and which of them run.

use crate::result::{Form, label};
use cairn_workloads::case::{Case, Interface, Workload};
use cairn_workloads::cases;
use programs::given::Given;
use programs::lab::{self, Timed};
use std::time::Duration;

/// Where the measured code lives.
#[derive(Clone, Copy)]
pub enum Run<'a> {
    /// In `cairn-workload`, or an engine.
    Workload(&'static Workload),
    /// A program of its own.
    Program(&'static Timed),
    /// A program of the user's.
    Given(&'a Given),
}

/// A case in one form.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The code.
    pub run: Run<'a>,
    /// The form.
    pub form: Form,
}

impl<'a> Entry<'a> {
    /// A row of a suite.
    pub fn given(given: &'a Given) -> Entry<'a> {
        Entry { run: Run::Given(given), form: Form::Preloaded }
    }

    /// What the tables know.
    pub fn case(&self) -> &'a Case {
        match self.run {
            Run::Workload(workload) => &workload.case,
            Run::Program(program) => &program.case,
            Run::Given(given) => &given.case,
        }
    }

    /// A time limit of its own, in place of the usual one.
    pub fn limit(&self) -> Option<Duration> {
        match self.run {
            Run::Given(given) => given.limit,
            Run::Workload(_) | Run::Program(_) => None,
        }
    }

    /// The program whose recorded calls it makes, if it does.
    pub fn trace(&self) -> Option<&'static Timed> {
        match self.run {
            Run::Program(program) => Some(program).filter(|program| program.is_replay()),
            Run::Workload(_) | Run::Given(_) => None,
        }
    }

    /// What has to be the same for a run to be gone on with. The lab's own code is known by its name.
    pub fn identity(&self) -> String {
        match self.run {
            Run::Given(given) => format!("{} {}", self.label(), given.identity()),
            Run::Workload(_) | Run::Program(_) => self.label(),
        }
    }

    /// Name of the case, and the form where it is not the usual one.
    pub fn label(&self) -> String {
        label(self.case(), self.form)
    }
}

/// All cases, in the order of the tables: by group, and the linked form after the preloaded.
pub fn all() -> Vec<Entry<'static>> {
    let workloads = cases::all().map(Run::Workload);
    let programs = lab::all().iter().map(Run::Program);
    let mut entries = Vec::new();
    for run in workloads.chain(programs) {
        entries.push(Entry { run, form: Form::Preloaded });
        if matches!(run, Run::Workload(workload) if workload.interface == Interface::Rust) {
            entries.push(Entry { run, form: Form::Linked });
        }
    }
    entries.sort_by_key(|entry| (entry.case().group, entry.form));
    entries
}
