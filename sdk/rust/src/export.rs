//! The macros that export a storage: one form a world, put together from one part an interface.

/// Exports a storage from the component. Once a crate.
///
/// - `export_storage!(T)`: a [`Storage`](crate::Storage), with the fused and the admin interface (world `storage-adapter-full`).
/// - `export_storage!(T: fan_out)`: a [`FanOutStorage`](crate::FanOutStorage), with the fan-out interface as well (world
///   `storage-adapter-fan-out`).
/// - `export_storage!(T: minimal)`: a [`MinimalStorage`](crate::MinimalStorage), with none of them (world `storage-adapter`).
///
/// Natively it is nothing: there the adapter is a plain type.
#[macro_export]
macro_rules! export_storage {
    ($storage:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
    $crate::__export_storage!(slot $storage);
            $crate::__export_storage!(storage);
            $crate::__export_storage!(storage_fused);
            $crate::__export_storage!(storage_admin);
    $crate::bindings::storage_full::export_world!(Exported with_types_in $crate::bindings::storage);
        };
    };
    ($storage:ty: minimal) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
    $crate::__export_storage!(slot $storage);
            $crate::__export_storage!(storage);
    $crate::bindings::storage_minimal::export_world!(Exported with_types_in $crate::bindings::storage);
        };
    };
    ($storage:ty: fan_out) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
    $crate::__export_storage!(slot $storage);
            $crate::__export_storage!(storage);
            $crate::__export_storage!(storage_fused);
            $crate::__export_storage!(storage_admin);
            $crate::__export_storage!(storage_fan_out);
    $crate::bindings::storage::export_fan_out_world!(Exported with_types_in $crate::bindings::storage);
        };
    };
}

/// The parts: the slot of the opened instance with the exported type, and what that type does for each interface.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_storage {
    (slot $storage:ty) => {
        use ::core::result::Result as R;
        use ::std::{string::String, vec::Vec};
        use $crate::bindings::storage::exports::outhaul::adapter as exported;
        thread_local! {
            static SLOT: $crate::macros::StorageSlot<$storage> = const { $crate::macros::StorageSlot::new() };
        }
        struct Exported;
    };
    (storage) => {
        use $crate::MinimalStorage as M;
        impl exported::storage::Guest for Exported {
            fn open(config: String) -> R<$crate::Description, $crate::Failure> {
                SLOT.with(|slot| slot.open(&config))
            }
            fn claim(request: $crate::ClaimRequest) -> R<$crate::Claimed, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| M::claim(storage, &request)))
            }
            fn settle(worker: String, settlements: Vec<$crate::Settlement>) -> R<Vec<String>, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| M::settle(storage, &worker, &settlements)))
            }
            fn extend(worker: String, ids: $crate::Column, lease_ms: u64) -> R<Vec<String>, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| M::extend(storage, &worker, &ids, lease_ms)))
            }
            fn stats() -> R<$crate::Counts, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| M::stats(storage)))
            }
        }
    };
    (storage_fused) => {
        impl exported::storage_fused::Guest for Exported {
            fn settle_and_claim(settlements: Vec<$crate::Settlement>, request: $crate::ClaimRequest) -> R<$crate::Turn, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::settle_and_claim(storage, &settlements, &request)))
            }
        }
    };
    (storage_admin) => {
        impl exported::storage_admin::Guest for Exported {
            fn schema() -> R<String, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::schema(storage)))
            }
            fn create_schema() -> R<(), $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::create_schema(storage)))
            }
            fn enqueue(batch: $crate::Batch) -> R<Vec<String>, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::enqueue(storage, &batch)))
            }
            fn browse(filter: $crate::Filter, after: Option<String>, limit: u32, with_messages: bool) -> R<$crate::Page, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::browse(storage, &filter, after.as_deref(), limit, with_messages)))
            }
            fn requeue(filter: $crate::Filter) -> R<u64, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::requeue(storage, &filter)))
            }
            fn discard(filter: $crate::Filter) -> R<u64, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::discard(storage, &filter)))
            }
            fn purge(older_than_ms: u64, limit: u32) -> R<u64, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| $crate::Storage::purge(storage, older_than_ms, limit)))
            }
        }
    };
    (storage_fan_out) => {
        use $crate::FanOutStorage as F;
        impl exported::storage_fan_out::Guest for Exported {
            fn claim_events(request: $crate::ClaimRequest, tenant: Option<String>) -> R<$crate::Events, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::claim_events(storage, &request, tenant.as_deref())))
            }
            fn expand(worker: String, expansions: Vec<$crate::Expansion>, deliveries: $crate::Batch) -> R<Vec<String>, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::expand(storage, &worker, &expansions, &deliveries)))
            }
            fn claim_deliveries(
                request: $crate::ClaimRequest,
                tenant: Option<String>,
                horizon_ms: u64,
            ) -> R<$crate::Claimed, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::claim_deliveries(storage, &request, tenant.as_deref(), horizon_ms)))
            }
            fn settle_deliveries(worker: String, settlements: Vec<$crate::DeliverySettlement>) -> R<Vec<String>, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::settle_deliveries(storage, &worker, &settlements)))
            }
            fn extend_deliveries(worker: String, ids: $crate::Column, lease_ms: u64) -> R<Vec<String>, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::extend_deliveries(storage, &worker, &ids, lease_ms)))
            }
            fn delivery_stats() -> R<$crate::DeliveryCounts, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::delivery_stats(storage)))
            }
            fn reemit(tenant: String, event: String) -> R<$crate::Reemitted, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::reemit(storage, &tenant, &event)))
            }
            fn list_deliveries(
                filter: $crate::DeliveryFilter,
                after: Option<String>,
                limit: u32,
            ) -> R<$crate::DeliveryPage, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::list_deliveries(storage, &filter, after.as_deref(), limit)))
            }
            fn requeue_deliveries(filter: $crate::DeliveryFilter) -> R<u64, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::requeue_deliveries(storage, &filter)))
            }
            fn list_sealed(newest: String, after: Option<String>, limit: u32, max_bytes: u64) -> R<$crate::SealedPage, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::list_sealed(storage, &newest, after.as_deref(), limit, max_bytes)))
            }
            fn reseal(deliveries: $crate::Batch, previous: $crate::Column) -> R<u32, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::reseal(storage, &deliveries, &previous)))
            }
            fn read_status(tenant: String, after: u64, limit: u32) -> R<Vec<$crate::StatusChange>, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::read_status(storage, &tenant, after, limit)))
            }
            fn checkpoint(tenant: String, reader: String) -> R<u64, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::checkpoint(storage, &tenant, &reader)))
            }
            fn advance(tenant: String, reader: String, expected: u64, through: u64) -> R<bool, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::advance(storage, &tenant, &reader, expected, through)))
            }
            fn purge_deliveries(older_than_ms: u64, limit: u32) -> R<u64, $crate::Failure> {
                SLOT.with(|slot| slot.call(|storage| F::purge_deliveries(storage, older_than_ms, limit)))
            }
        }
    };
}
