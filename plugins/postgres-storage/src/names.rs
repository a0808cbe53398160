//! Names that are derived from the table's: indexes, the trigger and its function, the channel. All within what Postgres keeps of a name.

use outbox_table::ident::{Ident, NameFault, TableName};

/// Bytes of a name that Postgres keeps: it cuts longer ones, and two that differ only behind the cut are one
/// (<https://www.postgresql.org/docs/current/limits.html>).
pub(crate) const MAX_BYTES: usize = 63;

/// `name_suffix`, shortened where that is too long.
pub(crate) fn derived(name: &Ident, suffix: &str) -> Result<Ident, NameFault> {
    let whole = format!("{}_{suffix}", name.name());
    if whole.len() <= MAX_BYTES {
        return Ident::new(whole);
    }
    let tail = format!("_{:016x}_{suffix}", hash(name.name()));
    let mut end = MAX_BYTES.saturating_sub(tail.len());
    while !name.name().is_char_boundary(end) {
        end -= 1;
    }
    Ident::new(format!("{}{tail}", name.name().get(..end).unwrap_or_default()))
}

/// The channel that the trigger of outhaul's own table notifies: readable where the names allow it.
pub(crate) fn channel(schema: &str, table: &Ident) -> String {
    let whole = format!("outhaul_{schema}_{}", table.name());
    let plain = whole.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    if plain && whole.len() <= MAX_BYTES { whole } else { format!("outhaul_{:016x}", hash(&format!("{schema}\0{}", table.name()))) }
}

/// The first part of the table's name that Postgres would cut.
pub(crate) fn too_long(table: &TableName) -> Option<&str> {
    [table.schema.as_ref(), Some(&table.table)].into_iter().flatten().map(Ident::name).find(|name| name.len() > MAX_BYTES)
}

/// FNV-1a, 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>): the same in every version of everything, which a channel must be.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_channel_is_readable_where_it_can_be() {
        let channel = |schema: &str, table: &str| channel(schema, &Ident::new(table).unwrap());
        assert_eq!(channel("public", "outbox"), "outhaul_public_outbox");
        assert_ne!(channel("public", "Outbox"), channel("public", "OUTBOX"));
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c, "the published test vector");
    }

    proptest! {
        #[test]
        fn derived_names_fit_and_differ(name in "[a-zж]{1,100}") {
            let name = Ident::new(name).unwrap();
            let names = ["pending", "key_pending", "dead", "notify"].map(|suffix| derived(&name, suffix).unwrap());
            for (at, one) in names.iter().enumerate() {
                prop_assert!(one.name().len() <= MAX_BYTES);
                prop_assert!(names[..at].iter().all(|other| other != one));
            }
            prop_assert!(channel("public", &name).len() <= MAX_BYTES);
        }
    }
}
