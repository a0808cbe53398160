//! The WebAssembly engine of the process, and the clock that interrupts guests.

use super::PluginError;
use std::time::Duration;
use wasmtime::{Config, Engine, InstanceAllocationStrategy};

/// How often a running guest gives way to others and its time limit is looked at. Short enough that a spinning guest is not
/// noticed by its neighbours, long enough to cost nothing.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// Stack of a guest. Recursion past it is a trap.
const WASM_STACK: usize = 1 << 20;

/// Stack that a guest and the host functions that it calls share: room for the guest's and half a megabyte for the host's.
const FIBER_STACK: usize = WASM_STACK + (512 << 10);

/// Makes the engine and starts its ticker, a thread that ends when the last clone of the engine is gone.
pub(super) fn start() -> Result<Engine, PluginError> {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        // Adapters export plain functions; without the machinery for async ones a call costs a quarter.
        .concurrency_support(false)
        .memory_init_cow(true)
        .allocation_strategy(InstanceAllocationStrategy::OnDemand)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(FIBER_STACK);
    let engine = Engine::new(&config).map_err(|error| PluginError::Engine(format!("{error:#}")))?;
    let weak = engine.weak();
    std::thread::Builder::new()
        .name("outhaul-epoch".to_owned())
        .spawn(move || {
            while let Some(engine) = weak.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        })
        .map_err(|error| PluginError::Engine(format!("cannot start the ticker thread: {error}")))?;
    Ok(engine)
}
