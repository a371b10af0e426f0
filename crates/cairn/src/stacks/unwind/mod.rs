//! Owns: where the caller's frame is, for code without frame pointers: by the tables that compilers write for exceptions.
//! Idea: the loader says without a lock which file has an address; what its table says of an address is a rule of 28 bits,
//!   which is kept.
//! Never: takes the loader's lock, allocates, or reads a stack; relies on it that an address is code that somebody runs: where
//!   frames have no rules, any word may be taken for one.
//! Threads: any, in a signal's handler too; holds nothing.
//! Checked: tests/unwind.rs; tests/profile.rs of the C layer compares stacks with functions.
//! Story: docs/guide/profile.md

mod table;

use crate::base::{AtomicUsize, Ordering};
use crate::os;
use crate::stacks::machine::HAS_TABLES;
use crate::stacks::tuning::RULES;

/// Whether a table has a rule for an address.
#[cfg(test)]
pub(crate) fn has_rule(found: &os::UnwindTable, address: usize) -> bool {
    table::rule(found, address).is_some()
}

/// How to go from a function to its caller. Numbers are words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The caller's stack pointer is so far above the frame pointer, not above the stack pointer.
    pub(crate) by_frame: bool,
    /// How far. The return address is right below it. 0: nobody has called it.
    pub(crate) up: usize,
    /// The caller's frame pointer has been stored so far below that; 0: it is still in its register.
    pub(crate) saved: usize,
}

const UP_BITS: u32 = 14;
const SAVED_BITS: u32 = 13;
const RULE_BITS: u32 = 1 + UP_BITS + SAVED_BITS;

impl Rule {
    /// Of code where a thread begins.
    pub(crate) const OUTERMOST: Rule = Rule { by_frame: true, up: 0, saved: 0 };

    /// 0: there is no rule.
    fn pack(rule: Option<Rule>) -> usize {
        let fits = |rule: &Rule| rule.up >> UP_BITS == 0 && rule.saved >> SAVED_BITS == 0;
        rule.filter(fits).map_or(0, |rule| {
            (rule.up << SAVED_BITS | rule.saved) << 1 | usize::from(rule.by_frame)
        })
    }

    fn unpack(bits: usize) -> Option<Rule> {
        let saved = bits >> 1 & ((1 << SAVED_BITS) - 1);
        let up = bits >> 1 >> SAVED_BITS & ((1 << UP_BITS) - 1);
        (bits > 0).then_some(Rule { by_frame: bits & 1 != 0, up, saved })
    }
}

/// What is known, by the address: its upper bits, which with the place make up all, and the rule. Code does not change; where
/// another file has come to the same addresses, stacks are wrong, and no more. Relaxed: each is complete.
static KNOWN: [AtomicUsize; RULES] = [const { AtomicUsize::new(0) }; RULES];
const PLACE_BITS: u32 = RULES.ilog2();

const _: () = assert!(RULES.is_power_of_two() && 48 - PLACE_BITS + RULE_BITS <= usize::BITS);

/// The rule for an address in code; what is none may be asked about, too. None if there is no table, or it says more than a rule does.
#[inline(never)]
pub(crate) fn rule(address: usize) -> Option<Rule> {
    if address >> 48 != 0 || !HAS_TABLES {
        return None;
    }
    let tag = address >> PLACE_BITS;
    let place = KNOWN.get((address ^ tag) % RULES)?;
    let known = place.load(Ordering::Relaxed);
    if known >> RULE_BITS == tag {
        return Rule::unpack(known & ((1 << RULE_BITS) - 1));
    }
    let rule = os::unwind_table(address).and_then(|found| table::rule(&found, address));
    let rule = Rule::pack(rule);
    place.store(tag << RULE_BITS | rule, Ordering::Relaxed);
    Rule::unpack(rule)
}
