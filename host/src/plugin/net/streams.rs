//! What an adapter's output streams hold when they are dropped.
//!
//! WASI's own drop waits until the bytes of a TCP stream that the system has not taken yet have gone out. A server that stops reading
//! would so keep the guest past its deadline, and the call would be cut with all that the guest knew; and bytes of a message would
//! leave after the guest has given the message up. So the stream is just dropped, with the task that writes for it. Whoever needs to
//! know that bytes have arrived waits for an answer; whoever closes in good order flushes first.

use crate::plugin::state::State;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::p2::DynOutputStream;

/// The interface as `wasmtime-wasi` names it; the linker takes it for every other patch version of WASI 0.2 too.
const STREAMS: &str = "wasi:io/streams@0.2.12";

/// Replaces the drop of `output-stream` by one that does not wait.
pub(in crate::plugin) fn add_prompt_drop(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    linker.instance(STREAMS)?.resource("output-stream", ResourceType::host::<DynOutputStream>(), |mut store, rep| {
        store.data_mut().table.delete(Resource::<DynOutputStream>::new_own(rep))?;
        Ok(())
    })?;
    linker.allow_shadowing(false);
    Ok(())
}
