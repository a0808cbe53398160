//! Tables that were there before fan-out.

use anyhow::Result;
use outhaul_tests::fan_out::{Ground, Plan};
use outhaul_tests::on_each_storage;

on_each_storage!(a_table_that_was_made_without_fan_out_gets_it_by_schema_apply,);

fn a_table_that_was_made_without_fan_out_gets_it_by_schema_apply(ground: Ground<'_>) -> Result<()> {
    let mut stage = ground.stage(&Plan::usual())?;
    let apply = ["schema", "--storage", "outbox", "--apply"];
    stage.reconfigure(|config| config.set_all("storages.outbox", "config = { table = \"older\" }"))?;
    stage.rig.run(&apply)?.success()?;
    // A relay that fans out is told what its storage lacks, before anything runs.
    let told = stage.rig.run(&["check"])?;
    assert!(told.output.contains("FAILED") && told.output.contains("fan_out"), "{}", told.output);
    stage.reconfigure(|config| config.set_all("storages.outbox", "config = { table = \"older\", fan_out = {} }"))?;
    stage.rig.run(&apply)?.success()?;
    stage.rig.run(&["check"])?.success()?;
    stage.rig.run(&["enqueue", "--storage", "outbox", "--topic", "orders", "--payload", "x"])?.success()?;
    let drained = stage.rig.run(&["drain", "--json"])?.json()?;
    assert_eq!(drained["sent"], 1, "{drained}");
    Ok(())
}
