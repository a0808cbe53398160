//! How long names may be that become part of an index: a row of an index has at most 2,704 bytes in PostgreSQL (a third of a page). SQLite
//! would take more; an event must not depend on the storage, so it is refused for both.

/// Bytes of an index that names may take: what is left is for numbers and the row's own head.
const MOST_BYTES: usize = 2500;
/// Bytes of an index that a subscriber's name may take.
const OF_SUBSCRIBER: usize = 512;
/// Bytes that tenant and id of an event may have together.
pub(super) const MOST_OF_EVENT: usize = MOST_BYTES - OF_SUBSCRIBER;

/// Refuses an event whose tenant and id are too long to be told apart by them.
///
/// # Errors
/// What is too long.
pub(super) fn check_event(tenant: &str, event: &str) -> Result<(), String> {
    match tenant.len().saturating_add(event.len()) {
        bytes if bytes > MOST_OF_EVENT => Err(format!("its tenant and its id have {bytes} bytes together, and may have {MOST_OF_EVENT}")),
        _ => Ok(()),
    }
}

/// Refuses a delivery whose order key is too long to be looked for.
///
/// # Errors
/// What is too long.
pub(super) fn check_order_key(tenant: &str, subscriber: &str, order_key: Option<&str>) -> Result<(), String> {
    let bytes = order_key.map_or(0, |key| key.len().saturating_add(tenant.len()));
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    Err(format!(
        "its key is too long: with the tenant and the subscriber {:?} it makes an order_key for which {bytes} bytes are needed, and there may \
         be {MOST_BYTES}",
        subscriber.chars().take(128).collect::<String>()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_into_an_index_is_taken_and_what_does_not_is_named() {
        assert_eq!(check_event(&"t".repeat(988), &"e".repeat(1000)), Ok(()));
        let refused = check_event(&"t".repeat(989), &"e".repeat(1000)).unwrap_err();
        assert_eq!(refused, "its tenant and its id have 1989 bytes together, and may have 1988");
        assert_eq!(check_order_key("acme", "crm", None), Ok(()));
        assert_eq!(check_order_key("acme", "crm", Some(&"k".repeat(2496))), Ok(()));
        let refused = check_order_key("acme", "crm", Some(&"k".repeat(2497))).unwrap_err();
        assert!(refused.starts_with("its key is too long: with the tenant and the subscriber \"crm\""), "{refused}");
        assert!(refused.contains("2501 bytes are needed, and there may be 2500"), "{refused}");
    }
}
