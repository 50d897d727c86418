//! What runs in this process, in words, for a person who asks a program that seems to stand still.
//!
//! In: the question, from anywhere in the process. Out: what each session and each driver says of itself,
//! as text. Drivers answer between two steps, so a task that hangs is seen by its silence; nothing is
//! stopped, locked for long or changed by it. What sets the question off, a signal, is the programs' affair.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::peer::Peer;

/// How long drivers may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The way for the answers to the last question.
type Question = Option<mpsc::UnboundedSender<Vec<String>>>;

static QUESTION: LazyLock<watch::Sender<Question>> = LazyLock::new(|| watch::Sender::new(None));
/// Drivers that listen.
static LISTENING: AtomicUsize = AtomicUsize::new(0);
static PEERS: Mutex<Vec<Weak<Peer>>> = Mutex::new(Vec::new());

/// A driver's ear.
pub(super) struct Listener {
    question: watch::Receiver<Question>,
}

impl Listener {
    pub(super) fn new() -> Self {
        LISTENING.fetch_add(1, Ordering::Relaxed);
        let mut question = QUESTION.subscribe();
        // Earlier questions were others' to answer.
        question.mark_unchanged();
        Self { question }
    }

    /// Waits for a question, and gives the way for the answer: lines, the first of which says whose.
    pub(super) async fn asked(&mut self) -> mpsc::UnboundedSender<Vec<String>> {
        loop {
            if self.question.changed().await.is_err() {
                // The other end is never dropped.
                std::future::pending::<()>().await;
            }
            if let Some(answers) = &*self.question.borrow_and_update() {
                return answers.clone();
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        LISTENING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session begins; it is described for as long as it lasts.
pub(super) fn enter(peer: &Arc<Peer>) {
    let mut peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
    peers.retain(|peer| peer.strong_count() > 0);
    peers.push(Arc::downgrade(peer));
}

/// Asks all that runs in this process what it does: a line each, those of one thing indented below its
/// first. Takes half a second at most.
pub async fn describe_activity() -> Vec<String> {
    let peers: Vec<_> = {
        let peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
        peers.iter().filter_map(Weak::upgrade).collect()
    };
    let mut lines = vec![format!(
        "{} sessions, {} transfers and open files",
        peers.len(),
        LISTENING.load(Ordering::Relaxed)
    )];
    for peer in peers {
        push(&mut lines, peer.describe());
    }
    let (answers, mut answered) = mpsc::unbounded_channel();
    let expected = LISTENING.load(Ordering::Relaxed);
    QUESTION.send_replace(Some(answers));
    let deadline = Instant::now() + PATIENCE;
    let mut count = 0;
    while count < expected {
        let Ok(Some(answer)) = timeout_at(deadline, answered.recv()).await else {
            break;
        };
        push(&mut lines, answer);
        count += 1;
    }
    QUESTION.send_replace(None);
    // Some may have ended meanwhile.
    let missing = LISTENING.load(Ordering::Relaxed).saturating_sub(count);
    if missing > 0 {
        lines.push(format!("{missing} did not answer in time"));
    }
    lines
}

fn push(lines: &mut Vec<String>, answer: Vec<String>) {
    for (number, line) in answer.into_iter().enumerate() {
        let indent = if number == 0 { "" } else { "  " };
        lines.push(format!("{indent}{line}"));
    }
}
