//! Unique ids, as bytes and as text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_bootstrap::UniqueId;

fuzz_target!(|data: &[u8]| {
    if let Ok(id) = UniqueId::from_bytes(data) {
        assert_eq!(id.to_bytes(), data);
        assert!(!id.addresses().is_empty());
        assert_eq!(id.to_hex().parse::<UniqueId>().ok(), Some(id));
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = text.parse::<UniqueId>();
    }
});
