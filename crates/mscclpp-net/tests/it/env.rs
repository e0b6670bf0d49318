//! Tests of the environment variables about the network.

use std::ffi::OsString;

use mscclpp_net::{
    env::{BadVariable, Env},
    interface::Family,
};

fn env(name: &'static str, value: &str) -> Result<Env, BadVariable> {
    let value = OsString::from(value);
    Env::from_lookup(move |asked| (asked == name).then(|| value.clone()))
}

#[test]
fn good_values() {
    assert_eq!(Env::from_lookup(|_| None).unwrap(), Env::default());
    assert_eq!(Env::from_lookup(|_| Some(OsString::new())).unwrap(), Env::default(), "unset if empty");
    assert_eq!(env("MSCCLPP_SOCKET_FAMILY", "AF_INET").unwrap().family, Some(Family::V4));
    assert_eq!(env("MSCCLPP_SOCKET_FAMILY", "AF_INET6").unwrap().family, Some(Family::V6));
    assert_eq!(env("MSCCLPP_SOCKET_IFNAME", "eth0.12").unwrap().interface.as_deref(), Some("eth0.12"));
    assert_eq!(env("MSCCLPP_HOSTID", "a b").unwrap().host_id.as_deref(), Some("a b"));
}

#[test]
fn bad_values_name_the_variable_and_what_is_allowed() {
    for (name, value, allowed) in [
        ("MSCCLPP_SOCKET_FAMILY", "ipv4", "AF_INET6"),
        ("MSCCLPP_SOCKET_IFNAME", "^docker0", "eth0"),
        ("MSCCLPP_HOSTID", &"x".repeat(257), "256"),
        ("MSCCLPP_HOSTID", "a\nb", "printable"),
    ] {
        let message = env(name, value).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains(allowed), "{message}");
    }
}
