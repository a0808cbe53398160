//! What `cargo test` is given for test programs, less what criterion does not know: it would end with an error.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Options of test programs that have a value.
const WITH_VALUE: [&str; 4] = ["--test-threads", "--skip", "--logfile", "--shuffle-seed"];

/// Options of test programs that have none.
const WITHOUT: [&str; 2] = ["--report-time", "--shuffle"];

/// Goes on as the same program without the options that only test programs know, if there are any.
pub fn leave_out_unknown() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let known = known(given.iter().cloned());
    if known != given {
        let program = std::env::current_exe().expect("a path of this program");
        let error = Command::new(program).args(known).exec();
        panic!("cannot start again: {error}");
    }
}

fn known(given: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = Vec::new();
    let mut is_value = false;
    for argument in given {
        let option = argument.split('=').next().unwrap_or_default();
        let takes = WITH_VALUE.contains(&option);
        if !(is_value || takes || WITHOUT.contains(&option)) {
            known.push(argument.clone());
        }
        is_value = takes && option == argument;
    }
    known
}
