//! What a bench leaves in a table, and how it goes.

use crate::cli::CONFIG;
use crate::cli::output::count;
use std::path::{Path, PathBuf};

/// What a command must be told to take this configuration.
pub(super) fn option(config: &Path) -> String {
    if config == Path::new(CONFIG) {
        return String::new();
    }
    let path = config.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+".contains(letter);
    if path.chars().all(is_plain) { format!(" --config {path}") } else { format!(" --config '{}'", path.replace('\'', r"'\''")) }
}

/// What is left in the table of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The configuration that the storage is in.
    pub config: PathBuf,
    /// The storage.
    pub storage: String,
    /// The relay that was measured on it.
    pub relay: String,
    /// Whether delivered rows are in it.
    pub delivered: bool,
    /// Rows of the bench that have ended dead.
    pub dead: u64,
    /// Rows of the bench that are pending; none: nobody knows.
    pub pending: Option<u64>,
    /// Rows of others that a claim has ended dead, and that could not be made pending again.
    pub refused: Vec<String>,
}

impl Left {
    /// With what an earlier run has left in the same table.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        let refused = earlier.refused.iter().cloned().chain(self.refused).collect();
        Self { dead: self.dead.saturating_add(earlier.dead), refused, ..self }
    }

    /// For people: what it is, and the command for it. Empty: nothing is left.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let Self { config, storage, relay, delivered, dead, pending, refused } = self;
        let option = option(config);
        let clear = format!("`outhaul bench{option} --clear --relay {relay}` removes them, and nothing else");
        let pending = match pending {
            Some(0) => None,
            Some(rows) => Some(format!(
                "pending rows of the bench are left in the table of storages.{storage} ({rows}), and a relay on it would publish them: {clear}"
            )),
            None => Some(format!(
                "pending rows of the bench may be left in the table of storages.{storage}, and a relay on it would publish them: {clear}"
            )),
        };
        let dead = (*dead > 0).then(|| {
            let rows = count(*dead, "row");
            format!("{rows} of the bench ended dead in the table of storages.{storage}: `outhaul dead list{option} --storage {storage}` says why, {clear}")
        });
        let delivered = delivered.then(|| {
            format!(
                "the delivered rows are left in the table of storages.{storage}; with all other delivered rows of the table they go by: \
                 outhaul purge{option} --storage {storage} --older-than 0s"
            )
        });
        let refused = (!refused.is_empty()).then(|| {
            let ids: Vec<String> = refused.iter().map(|id| format!(" --id {id}")).collect();
            let rows = count(u64::try_from(refused.len()).unwrap_or(u64::MAX), "row");
            format!("{rows} of others ended dead as too large: outhaul dead requeue{option} --storage {storage}{}", ids.concat())
        });
        [pending, refused, dead, delivered].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Left {
        let text = |text: &str| text.to_owned();
        Left {
            config: CONFIG.into(),
            storage: text("s"),
            relay: text("r"),
            delivered: false,
            dead: 0,
            pending: Some(0),
            refused: Vec::new(),
        }
    }

    #[test]
    fn each_thing_has_its_command() {
        assert_eq!(nothing().notes(), Vec::<String>::new());
        let clear = "`outhaul bench --clear --relay r` removes them, and nothing else";
        let publish = "and a relay on it would publish them";
        let all = Left { delivered: true, dead: 1, pending: Some(3), refused: vec!["7".into(), "8".into()], ..nothing() };
        assert_eq!(
            all.notes(),
            [
                format!("pending rows of the bench are left in the table of storages.s (3), {publish}: {clear}"),
                "2 rows of others ended dead as too large: outhaul dead requeue --storage s --id 7 --id 8".to_owned(),
                format!("1 row of the bench ended dead in the table of storages.s: `outhaul dead list --storage s` says why, {clear}"),
                "the delivered rows are left in the table of storages.s; with all other delivered rows of the table they go by: outhaul purge \
                 --storage s --older-than 0s"
                    .to_owned(),
            ]
        );
        let unknown = Left { pending: None, ..nothing() }.notes();
        assert_eq!(unknown, [format!("pending rows of the bench may be left in the table of storages.s, {publish}: {clear}")]);
    }

    #[test]
    fn commands_name_the_configuration_that_was_meant() {
        assert_eq!(option(Path::new("outhaul.toml")), "");
        assert_eq!(option(Path::new("./via/o.toml")), " --config ./via/o.toml");
        assert_eq!(option(Path::new("/my relay's/o.toml")), r" --config '/my relay'\''s/o.toml'");
        let all = Left { config: "b.toml".into(), delivered: true, dead: 1, pending: None, refused: vec!["7".into()], ..nothing() };
        let notes = all.notes();
        assert!(notes.len() == 4 && notes.iter().all(|note| note.contains(" --config b.toml --")), "{notes:?}");
    }

    #[test]
    fn a_purge_ends_what_earlier_runs_have_left() {
        let first = Left { delivered: true, dead: 2, ..nothing() };
        let second = Left { dead: 1, ..nothing() }.after(&first);
        assert_eq!((second.delivered, second.dead), (false, 3));
    }
}
