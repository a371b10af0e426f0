//! Every case there is, and which of them run.

use crate::result::{Form, label};
use cairn_workloads::case::{Case, Interface, Workload};
use cairn_workloads::cases;
use programs::lab::{self, Timed};

/// Where the measured code lives.
#[derive(Clone, Copy)]
pub enum Run {
    /// In `cairn-workload`, or an engine.
    Workload(&'static Workload),
    /// A program of its own.
    Program(&'static Timed),
}

/// A case in one form.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The code.
    pub run: Run,
    /// The form.
    pub form: Form,
}

impl Entry {
    /// What the tables know.
    pub fn case(&self) -> &'static Case {
        match self.run {
            Run::Workload(workload) => &workload.case,
            Run::Program(program) => &program.case,
        }
    }

    /// Name of the case, and the form where it is not the usual one.
    pub fn label(&self) -> String {
        label(self.case(), self.form)
    }
}

/// All cases, in the order of the tables: by group, and the linked form after the preloaded.
pub fn all() -> Vec<Entry> {
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
