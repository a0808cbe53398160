//! Short ways to make messages, for the unit tests.

use outhaul_sdk::{Batch, NewMessage};

/// A batch of these messages.
pub(crate) fn batch_of(messages: &[NewMessage<'_>]) -> Batch {
    let mut batch = Batch::new();
    for message in messages {
        batch.push(message);
    }
    batch
}
