//! Endpoints: opening them, sending them, connecting them.

use mscclpp_core::{Connection, Endpoint, EndpointConfig, EndpointInfo, Error, ProcessId, Transport};

use crate::{
    Cases, Setup,
    pair::{End, PATIENCE, Pair, assert_error, builder, device, noise, other_transport, received, within},
};

pub(crate) const CASES: Cases = cases!["endpoints":
    what_a_provider_claims_to_serve_opens,
    an_endpoint_survives_its_journey,
    two_ends_connect_both_ways,
    an_endpoint_connects_with_itself,
    two_endpoints_of_one_device_connect,
    one_endpoint_has_many_connections,
    another_transport_is_a_mismatch,
    a_peers_endpoint_is_no_local_one,
    a_queue_that_holds_nothing_is_refused,
    what_cannot_be_reached_is_an_error,
    an_endpoint_that_is_gone_is_an_error,
];

/// Checks that every transport that is claimed to be served can be opened, and no other.
fn what_a_provider_claims_to_serve_opens(setup: &dyn Setup) {
    let context = builder(setup).build();
    let served = context.transports();
    assert!(served.has(setup.transport()), "the context serves {served}, not {}", setup.transport());
    for device in [0, 1].map(|side| device(setup, side)) {
        for transport in served.iter() {
            let endpoint = context.create_endpoint(EndpointConfig::new(transport, device));
            assert_eq!(endpoint.unwrap_or_else(|e| panic!("{transport}: {e}")).transport(), transport);
        }
        for transport in (0..16).map(Transport::custom).chain([Transport::CUDA_IPC, Transport::ETHERNET]) {
            if !served.has(transport) {
                assert_error!(
                    context.create_endpoint(EndpointConfig::new(transport, device)),
                    Error::NoProvider { .. }
                );
            }
        }
    }
}

fn an_endpoint_survives_its_journey(setup: &dyn Setup) {
    for side in [0, 1] {
        let end = End::open(setup, side);
        let config = EndpointConfig::new(setup.transport(), device(setup, side)).max_write_queue_size(77);
        let endpoint = end.context.create_endpoint(config.clone()).expect("an endpoint");
        let bytes = endpoint.serialize().expect("serializing");
        assert!(bytes.len() <= 16 << 10, "an endpoint of {} bytes is too much to send around", bytes.len());
        let arrived = Endpoint::deserialize(&bytes).expect("reading");
        assert_eq!((endpoint.config(), endpoint.max_write_queue_size()), (Some(&config), Some(77)));
        assert_eq!((arrived.config(), arrived.max_write_queue_size()), (None, None), "that is not sent");
        assert_eq!((arrived.transport(), arrived.device()), (setup.transport(), device(setup, side)));
        let (sent, got) = (endpoint.info(), arrived.info());
        assert_eq!((sent.process, sent.id, &sent.host), (got.process, got.id, &got.host));
        assert_eq!((sent.platform, sent.device_uuid, &sent.blob), (got.platform, got.device_uuid, &got.blob));
        assert_eq!(arrived.serialize().expect("serializing again"), bytes);
        assert_ne!(endpoint.info().id, end.endpoint.info().id, "two endpoints have one id");
    }
}

fn two_ends_connect_both_ways(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let directions = [(&pair.ab, &pair.a, &pair.b), (&pair.ba, &pair.b, &pair.a)];
    for (side, (connection, from, to)) in directions.into_iter().enumerate() {
        connection.check().expect("a new connection is alive");
        assert_eq!(connection.transport(), setup.transport());
        assert_eq!(connection.remote_transport(), setup.transport());
        assert_eq!(connection.local_device(), device(setup, side));
        assert_eq!(connection.max_write_queue_size(), None);
        connection.set_label("rank 5");
        assert_eq!(connection.label(), "rank 5");
        delivers(connection, from, to);
    }
}

fn an_endpoint_connects_with_itself(setup: &dyn Setup) {
    let end = End::open(setup, 0);
    for remote in [end.endpoint.clone(), received(&end.endpoint)] {
        let connection = end.context.connect(&end.endpoint, &remote).expect("connecting with itself");
        delivers(&connection, &end, &end);
    }
}

fn two_endpoints_of_one_device_connect(setup: &dyn Setup) {
    let (first, second) = (End::open(setup, 0), End::open(setup, 0));
    let there = first.context.connect(&first.endpoint, &received(&second.endpoint)).expect("connecting");
    let back = second.context.connect(&second.endpoint, &received(&first.endpoint)).expect("connecting back");
    delivers(&there, &first, &second);
    delivers(&back, &second, &first);
}

fn one_endpoint_has_many_connections(setup: &dyn Setup) {
    let hub = End::open(setup, 0);
    let spokes: Vec<End> = (0..4).map(|i| End::open(setup, i % 2)).collect();
    let connections: Vec<Connection> = spokes
        .iter()
        .map(|spoke| {
            hub.context.connect(&hub.endpoint, &received(&spoke.endpoint)).expect("connecting a spoke")
        })
        .collect();
    for (connection, spoke) in connections.iter().zip(&spokes) {
        delivers(connection, &hub, spoke);
    }
}

fn another_transport_is_a_mismatch(setup: &dyn Setup) {
    let (a, b) = (End::open(setup, 0), End::open(setup, 1));
    let other = EndpointConfig::new(other_transport(setup), device(setup, 1));
    let other = b.context.create_endpoint(other).expect("an endpoint of the other transport");
    assert_error!(a.context.connect(&a.endpoint, &received(&other)), Error::TransportMismatch { .. });
    assert_error!(b.context.connect(&other, &received(&a.endpoint)), Error::TransportMismatch { .. });
}

fn a_peers_endpoint_is_no_local_one(setup: &dyn Setup) {
    let (a, b) = (End::open(setup, 0), End::open(setup, 1));
    assert_error!(
        a.context.connect(&received(&a.endpoint), &received(&b.endpoint)),
        Error::InvalidArgument(_)
    );
}

fn a_queue_that_holds_nothing_is_refused(setup: &dyn Setup) {
    let a = End::open(setup, 0);
    let config = EndpointConfig::new(setup.transport(), device(setup, 0)).max_write_queue_size(0);
    assert_error!(a.context.create_endpoint(config), Error::InvalidArgument(_));
}

/// Tries endpoints on another platform and, if the transport stays within one node, on another node.
fn what_cannot_be_reached_is_an_error(setup: &dyn Setup) {
    use mscclpp_gpu::Platform;
    let (a, b) = (End::open(setup, 0), End::open(setup, 1));
    let platform = if b.gpu.platform() == Platform::Sim { Platform::Hip } else { Platform::Sim };
    let foreign = altered(&b.endpoint, |info| info.platform = platform);
    assert_error!(a.context.connect(&a.endpoint, &foreign), Error::Unreachable { .. });
    if !setup.reaches_other_hosts() {
        let foreign = altered(&b.endpoint, |info| {
            info.host = "another host".to_owned();
            info.process = ProcessId::from_bytes([7; 16]);
        });
        assert_error!(a.context.connect(&a.endpoint, &foreign), Error::Unreachable { .. });
    }
}

fn an_endpoint_that_is_gone_is_an_error(setup: &dyn Setup) {
    let a = End::open(setup, 0);
    let gone = received(&End::open(setup, 1).endpoint);
    let result = within(PATIENCE, "connecting to an endpoint that is gone", move || {
        a.context.connect(&a.endpoint, &gone).map(|_| ())
    });
    assert_error!(result, Error::Unreachable { .. } | Error::PeerLost { .. } | Error::PeerClosed { .. });
}

/// Returns the endpoint as its peer gets it if the sender altered it.
fn altered(endpoint: &Endpoint, alter: impl FnOnce(&mut EndpointInfo)) -> Endpoint {
    let mut info = EndpointInfo::clone(endpoint.info());
    alter(&mut info);
    received(&Endpoint::from(info))
}

/// Checks that bytes written over the connection arrive.
fn delivers(connection: &Connection, from: &End, to: &End) {
    let data = noise(1000);
    let (source, target) = (from.share_bytes(&data), to.share(1000));
    connection.write(&target.at_peer, 0, &source.memory, 0, 1000).expect("write");
    connection.flush(PATIENCE).expect("flush");
    assert_eq!(target.bytes(), data);
}
