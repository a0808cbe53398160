//! The documentation, held against the program: what a page shows is run, and what it says of files and pages is looked up.
//!
//! - [`page`]: a page in Markdown, taken apart into blocks, links and anchors
//! - [`transcript`]: commands and their output, as a block shows them, compared with what came
//! - [`shell`]: the terminals of a page
//! - [`stage`]: the folder that a page is run in, and what is there already
//! - [`settings`]: configuration that a page shows in parts
//! - [`quotes`]: texts that a page quotes without a command
//! - [`links`]: where links lead to
//! - [`run`]: a page from its first block to the last
//!
//! # How a block is marked
//!
//! Marks stand behind the language of a fenced block, where no renderer shows them.
//!
//! | block | what is done |
//! |---|---|
//! | `console` | Lines with `$ ` are commands, `> ` goes on with the one before, the lines below are what it prints. `...` is anything: in a line, or, alone, any number of lines. A command must succeed, unless the next one is `echo $?` |
//! | `console terminal=NAME` | One more terminal: its command goes on until the page ends; `^C` is typed. Without a command: what the terminal has printed since |
//! | `console not-run="REASON"` | Nothing. A test counts these |
//! | any, `file=NAME` | Written to the folder, for the commands below |
//! | `toml` | Added to the configuration of the stage, and `outhaul check` must find nothing wrong |
//! | `sql` | Run in the database of the stage, where it has one |
//! | `toml parse-only` | Must be TOML: it is something else than configuration |
//! | `json`, `jsonl` | Must be JSON, or each line of it |
//! | `text quoted` | Each line must be a text of the program, `...` for what varies |
//!
//! Every address `127.0.0.1:PORT` of a page is replaced by one with a free port, the same everywhere on the page.

pub mod links;
pub mod page;
pub mod quotes;
pub mod run;
pub mod settings;
pub mod shell;
pub mod stage;
pub mod transcript;
