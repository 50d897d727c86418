//! The same where queue pairs are connected by rdma_cm.

use super::*;

#[tokio::test]
async fn rdma_cm_is_used_if_either_end_wants_it_and_the_server_listens() {
    let (of_client, of_server) = ([port("c0", "10.0.0.1")], [port("s0", "10.0.0.2")]);
    let join = async |ways| join_by(Arc::default(), &of_client, &of_server, ways).await;
    for wanted in [RailDial::Direct, RailDial::Cm] {
        let joined = join((wanted, true)).await;
        assert_eq!(joined.outcome.up, 2, "{:?}", joined.outcome);
        let rails = joined.client_book.lock().unwrap().reports();
        assert!(rails[0].to_string().contains("by rdma_cm"), "{rails:?}");
        {
            let expected = joined.world.expected.lock().unwrap();
            assert_eq!(expected.len(), 2);
            assert!(expected.values().all(|(_, dialled)| *dialled));
        }
        let links = joined.server.until(|links| links.len() == 2).await;
        // What is lost is made anew the same way.
        joined.server.lose(links[0]);
        let made_anew = |now: &[RailLink]| now.len() == 2 && !now.contains(&links[0]);
        joined.client.until(made_anew).await;
        let expected = joined.world.expected.lock().unwrap();
        assert_eq!(expected.len(), 3);
    }
    let joined = join((RailDial::Cm, false)).await;
    assert_eq!(joined.outcome.up, 0);
    let told = joined.outcome.reasons.join("; ");
    assert!(told.contains("does not listen with rdma_cm"), "{told}");
    assert_eq!(joined.world.queue_pairs_most.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn who_does_not_dial_gets_no_rail_and_older_releases_are_told_why() {
    let mut hand = ByHand::of_server(true);
    hand.offer(1);
    let answer = hand.answer().await;
    let told = answer.rails[0].invitation.as_ref().unwrap();
    assert_eq!((told.tokens.len(), told.port), (2, 20471));
    assert_eq!(told.address, answer.rails[0].server.gids[0].gid);
    let end = RailEnd {
        probe: answer.rails[0].end.probe,
        queue_pairs: vec![QueuePair { number: 1, psn: 1 }; 2],
    };
    let rails = vec![(1, end)];
    let connect = RailConnect { attempt: 1, rails };
    hand.to.hear(Message::RailConnect(connect)).unwrap();
    match hand.next().await {
        Message::RailReady(ready) => {
            assert!(ready.rails.is_empty());
            assert_eq!(ready.reasons, ["s0: nobody has dialled"]);
        }
        other => panic!("{other:?}"),
    }
    hand.offer_to_be(2, None);
    let answer = hand.answer().await;
    assert!(answer.rails.is_empty());
    assert!(answer.reasons[0].contains("by rdma_cm only"), "{answer:?}");
}

#[tokio::test]
async fn a_server_that_invites_elsewhere_is_not_followed() {
    let world = Arc::<World>::default();
    let (client, mut said) = End::new();
    let sender = OnceLock::new();
    let outcome = client::start(
        adapters(&world, &[port("c0", "10.0.0.1")]),
        Arc::clone(&client),
        workers(),
        Arc::default(),
        ClientRules {
            policy: policy(),
            rails_only: false,
            queue_pairs: 1,
            connect: RailDial::Cm,
        },
        mpsc::channel(1).1,
        |to| sender.set(to).unwrap(),
    );
    let Some(Message::RailOffer(offer)) = said.recv().await else {
        panic!("no offer");
    };
    assert_eq!(offer.connect, Some(RailDial::Cm));
    let elsewhere: std::net::Ipv4Addr = "10.0.0.3".parse().unwrap();
    let pair = RailPair {
        rail: 1,
        port: 0,
        gid: 0,
        server: port("s0", "10.0.0.2").port,
        end: RailEnd {
            probe: Probe {
                address: 1,
                key: RemoteKey(1),
                digest: [0; 32],
            },
            queue_pairs: vec![QueuePair { number: 1, psn: 1 }],
        },
        invitation: Some(Invitation {
            address: elsewhere.to_ipv6_mapped().octets(),
            port: 1,
            tokens: vec![RailToken([1; 32])],
        }),
    };
    let answer = RailAnswer {
        attempt: offer.attempt,
        may_pass: false,
        rails: vec![pair],
        reasons: Vec::new(),
    };
    let to = sender.get().unwrap();
    to.hear(Message::RailAnswer(answer)).unwrap();
    let outcome = outcome.await.unwrap();
    assert_eq!(
        outcome.reasons,
        ["c0: the server invites to 10.0.0.3, which is not its port's"]
    );
    assert_eq!(world.queue_pairs_most.load(Ordering::SeqCst), 0);
}
