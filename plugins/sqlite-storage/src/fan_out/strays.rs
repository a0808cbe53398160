//! Events whose tenant is neither text nor a number, such as bytes that a producer has bound for a name: they are in no tenant's turn, and
//! nobody would be told.

use crate::outbox::{Outbox, statement};
use crate::statements::Sql;
use outbox_table::database::{ColumnType, Database, Results};
use outbox_table::failure;
use outbox_table::page::text_of;
use outhaul_sdk::Failure;

impl<D: Database> Outbox<D> {
    /// Looks for one, if none was told of yet.
    ///
    /// # Errors
    /// Those of the database.
    pub(super) fn look_for_strays(&mut self) -> Result<(), Failure> {
        let (Some(fan_out), Some(tenant)) = (&mut self.fan_out, self.config.tenant()) else { return Ok(()) };
        let Some(events) = fan_out.events.as_ref().filter(|_| !fan_out.told_of_strays) else { return Ok(()) };
        let layout = &events.layout;
        let sql = format!(
            "SELECT CAST(t.{} AS TEXT), typeof(t.{tenant}) FROM {} AS t WHERE {} AND typeof(t.{tenant}) NOT IN ('integer', 'text') LIMIT 1",
            layout.columns.id,
            layout.table(),
            Sql(layout).unsettled("t."),
        );
        let rows = self
            .reader
            .execute(vec![statement(sql, Vec::new(), vec![ColumnType::Bytes, ColumnType::Bytes])])
            .map_err(|error| failure::of_sql(&error, "looking at tenants"))?;
        let mut reader = Results::new(rows).next_rows()?;
        let (ids, types) = (reader.bytes()?, reader.bytes()?);
        if !ids.is_empty() {
            fan_out.told_of_strays = true;
            self.notice = Some(format!(
                "events whose tenant is neither text nor a whole number are never expanded, such as `{}`, whose tenant is a {}: set \
                 {tenant} to the tenant's name as text",
                text_of(&ids, 0),
                text_of(&types, 0)
            ));
        }
        Ok(())
    }
}
