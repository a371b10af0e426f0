//! Models of what cairn's threads do to each other, on the allocator's own source files. This
//! crate is a map; the models are its tests.
//!
//! | tests | what runs | where the threads come from |
//! | --- | --- | --- |
//! | `protocol` | the word, the lock, the pool, the reservation, lists of abandoned spans, heaps; parts, turns, nurseries and large blocks of the program's heaps | loom: every interleaving and every value that the orderings allow, within bounds |
//! | `whole` | the whole core in a simulated system | shuttle: as many random schedules as there is time for |
//! | `seeds` | whether the seeded bugs fit the core | - |
//!
//! `build.rs` copies the core's files and lays the few of `facades` over them: `sync`, the
//! system, and where a thread's heap is found. `seeds.toml` has bugs that the models must find.
//! docs/results/verification.md says what is proved, and within which bounds.
//!
//! ```sh
//! cargo test -p cairn-models     # quick bounds
//! cargo xtask models --full      # larger ones, and a table of executions
//! cargo xtask models --seeded    # each seeded bug must be caught
//! ```
