//! Queue pairs for reads of their owner's, which no lane carries.

use tokio::sync::oneshot;

use super::*;
use crate::session::rails::client::Own;

impl Joined {
    async fn wish(&self, rail: u16) -> Result<Own<Wire>, String> {
        let (answer, answered) = oneshot::channel();
        let wished = self.wishes.send(Wish { rail, answer }).await;
        wished.ok().unwrap();
        let answered = tokio::time::timeout(PATIENCE, answered).await;
        answered.unwrap().unwrap()
    }
}

async fn join_one(ways: (RailDial, bool)) -> (Joined, Vec<RailLink>) {
    let (client, server) = ([port("c0", "10.0.0.1")], [port("s0", "10.0.0.2")]);
    let joined = join_by(Arc::default(), &client, &server, ways).await;
    let of_lanes = joined.server.until(|links| links.len() == 2).await;
    (joined, of_lanes)
}

#[tokio::test]
async fn who_reads_alone_gets_a_queue_pair_that_no_lane_carries() {
    let (joined, of_lanes) = join_one((RailDial::Direct, false)).await;
    let own = joined.wish(1).await.ok().unwrap();
    let served = joined.server.until(|links| links.len() == 3).await;
    assert!(served.contains(&own.link));
    assert_eq!(joined.client.links(), of_lanes, "no lane has it");
    assert_eq!(joined.wish(2).await.err().unwrap(), "the rail was lost");
    assert!(own.gone.get().is_none());
    // Lost at the server, it is made known to its reader and not made anew.
    joined.server.lose(own.link);
    let gone = async {
        while own.gone.get().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(joined.client.links(), of_lanes);
    // Given up by its reader, the server ends it.
    let other = joined.wish(1).await.ok().unwrap();
    joined.server.until(|links| links.len() == 3).await;
    let link = other.link;
    joined.client.say(Message::RailDown {
        link,
        reason: "done".to_owned(),
    });
    joined.server.until(|links| links == of_lanes).await;
}

#[tokio::test]
async fn it_is_connected_as_those_of_lanes_are() {
    let (joined, of_lanes) = join_one((RailDial::Cm, true)).await;
    let own = joined.wish(1).await.ok().unwrap();
    let served = joined.server.until(|links| links.len() == 3).await;
    assert!(served.contains(&own.link) && !of_lanes.contains(&own.link));
    let expected = joined.world.expected.lock().unwrap();
    assert_eq!(expected.len(), 3);
    assert!(expected.values().all(|(_, dialled)| *dialled));
}

#[tokio::test]
async fn what_lanes_lose_while_one_is_made_is_made_anew() {
    let (joined, of_lanes) = join_one((RailDial::Direct, false)).await;
    let (answer, answered) = oneshot::channel();
    let wish = Wish { rail: 1, answer };
    joined.wishes.send(wish).await.ok().unwrap();
    // The wish is taken up before word of this comes.
    tokio::task::yield_now().await;
    joined.client.lose(of_lanes[0]);
    let own = answered.await.unwrap().ok().unwrap();
    let lanes = joined.client.until(|links| links.len() == 2).await;
    assert!(!lanes.contains(&of_lanes[0]) && !lanes.contains(&own.link));
}

#[tokio::test]
async fn who_can_not_keep_queue_pairs_gets_none_and_hears_when_rails_are_given_up() {
    let (joined, of_lanes) = join_one((RailDial::Direct, false)).await;
    let own = joined.wish(1).await.ok().unwrap();
    joined.server.until(|links| links.len() == 3).await;
    joined.client.lose_so(of_lanes[0], false);
    joined.server.until(|links| links.len() == 2).await;
    assert_eq!(joined.wish(1).await.err().unwrap(), "retries ran out");
    assert!(own.gone.get().is_none());
    joined.client.lose_so(of_lanes[1], false);
    let given_up = |_: &[RailLink]| joined.client.gave_up.get().is_some();
    joined.client.until(given_up).await;
    assert_eq!(own.gone.get().unwrap(), "retries ran out");
}
