//! The program's function that frees what it has put off, from C.

mod common;

use common::{Loading, passes_in, skip_for_stand_in};

#[test]
fn it_is_called_and_may_free() {
    if !skip_for_stand_in() {
        let all = [Loading::Linked, Loading::Static];
        passes_in(&all, "deferred.c", &["calls"]);
        passes_in(&all, "deferred.c", &["force"]);
    }
}
