//! A small, fixed number of threads for calls that may block for long: opening, syncing, renaming,
//! hashing ahead. Jobs flow in from any thread; results flow out through the futures of their
//! owners, or by whatever the job itself does.
//!
//! The queue has no bound of its own: each owner bounds what it has outstanding, so that one of
//! them can't be made to wait by another's refusal. Nothing here knows what a job does. A job that
//! panics costs its owner an error and the pool nothing.

use std::any::Any;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender};
use tokio::sync::oneshot;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The pool; clones are handles to the same threads. When the last one goes, what was submitted is
/// still done, and that drop waits for it (except on one of the pool's own threads).
#[derive(Clone, Debug)]
pub struct Workers(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    /// `None` once the pool is shutting down: the threads then end when the queue is empty.
    jobs: Option<Sender<Job>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A job did not give its result because it panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a worker panicked: {message}")]
pub struct WorkerPanicked {
    /// What the panic said, as far as it was text.
    pub message: String,
}

impl Workers {
    /// Starts `threads` threads, named `rdcp-work-0` and on.
    ///
    /// # Errors
    /// A thread could not be started; none is left then.
    pub fn start(threads: NonZeroUsize) -> io::Result<Self> {
        let (sender, receiver) = crossbeam_channel::unbounded();
        // Built first, so that an error on the way ends the threads that did start.
        let workers = Self(Arc::new(Pool {
            jobs: Some(sender),
            threads: Mutex::default(),
        }));
        for number in 0..threads.get() {
            let jobs = receiver.clone();
            let thread = thread::Builder::new()
                .name(format!("rdcp-work-{number}"))
                .spawn(move || work(&jobs))?;
            workers
                .0
                .threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(thread);
        }
        Ok(workers)
    }

    /// Puts a job in the queue; jobs are begun in the order in which they came. If it panics, that
    /// is logged; [`Self::run`] tells its owner.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        // Log lines of the job name the transfer on whose behalf it runs.
        let span = tracing::Span::current();
        let job: Job = Box::new(move || span.in_scope(job));
        let sent = self
            .0
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        // Threads outlive every handle, panics included, so there is always a receiver.
        debug_assert!(sent, "a handle exists, so the pool runs");
    }

    /// Puts a job in the queue at once, and gives its result when the future is awaited. A future
    /// that is dropped drops the result; the job is done all the same.
    pub fn run<T, F>(
        &self,
        job: F,
    ) -> impl Future<Output = Result<T, WorkerPanicked>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (give, result) = oneshot::channel();
        self.submit(move || {
            let outcome = catch(job);
            // The owner may have gone; then nobody needs it.
            drop(give.send(outcome));
        });
        async move {
            result.await.unwrap_or_else(|_| {
                Err(WorkerPanicked {
                    message: "its job was dropped before it ran".to_owned(),
                })
            })
        }
    }
}

#[cfg(test)]
impl Workers {
    /// A pool without threads: its jobs are run by whoever takes them.
    pub(crate) fn without_threads() -> (Self, Receiver<Job>) {
        let (sender, jobs) = crossbeam_channel::unbounded();
        let pool = Pool {
            jobs: Some(sender),
            threads: Mutex::default(),
        };
        (Self(Arc::new(pool)), jobs)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A job may hold the last handle; a thread can't wait for its own end.
            if thread.thread().id() != thread::current().id() {
                // Panics of jobs are caught, and there is no other code on these threads.
                drop(thread.join());
            }
        }
    }
}

fn work(jobs: &Receiver<Job>) {
    // Ends once the last handle is gone and the queue is empty.
    for job in jobs {
        if let Err(panicked) = catch(job) {
            tracing::error!(message = panicked.message, "a job panicked");
        }
    }
}

fn catch<T>(job: impl FnOnce() -> T) -> Result<T, WorkerPanicked> {
    // What the job captured is gone afterwards; what it shares is as consistent as its locks.
    catch_unwind(AssertUnwindSafe(job)).map_err(|panic| WorkerPanicked {
        message: text_of(panic),
    })
}

fn text_of(panic: Box<dyn Any + Send>) -> String {
    let text = match panic.downcast::<String>() {
        Ok(text) => return *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => return (*text).to_owned(),
            Err(panic) => catch_unwind(AssertUnwindSafe(|| drop(panic))),
        },
    };
    if let Err(panic_of_drop) = text {
        // It panicked while being dropped; leaking it is the one way to be sure it won't again.
        std::mem::forget(panic_of_drop);
    }
    "no text".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn workers(threads: usize) -> Workers {
        Workers::start(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn results_come_back_from_named_threads() {
        let workers = workers(3);
        let names = block_on(async {
            let mut names = Vec::new();
            for _ in 0..20 {
                names.push(
                    workers
                        .run(|| thread::current().name().map(str::to_owned))
                        .await,
                );
            }
            names
        });
        for name in names {
            let name = name.unwrap().unwrap();
            assert!(
                ["rdcp-work-0", "rdcp-work-1", "rdcp-work-2"].contains(&&*name),
                "{name}"
            );
        }
    }

    #[test]
    fn all_threads_work_at_once() {
        let workers = workers(4);
        let meeting = Arc::new(Barrier::new(4));
        let futures: Vec<_> = (0..4)
            .map(|_| {
                let meeting = Arc::clone(&meeting);
                workers.run(move || meeting.wait().is_leader())
            })
            .collect();
        let leaders = block_on(async {
            let mut leaders = 0;
            for future in futures {
                leaders += usize::from(future.await.unwrap());
            }
            leaders
        });
        assert_eq!(leaders, 1);
    }

    #[test]
    fn a_panic_is_told_to_its_owner_and_the_thread_goes_on() {
        struct PanicsOnDrop;
        impl Drop for PanicsOnDrop {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }

        let workers = workers(1);
        let before = block_on(workers.run(|| thread::current().id())).unwrap();
        let number = 7;
        let told = block_on(workers.run(move || -> () { panic!("number {number}") }));
        assert_eq!(
            told,
            Err(WorkerPanicked {
                message: "number 7".to_owned()
            })
        );
        let told = block_on(workers.run(|| -> () { panic!("plain") }));
        assert_eq!(told.unwrap_err().to_string(), "a worker panicked: plain");
        let told = block_on(workers.run(|| -> () { std::panic::panic_any(PanicsOnDrop) }));
        assert_eq!(told.unwrap_err().message, "no text");
        workers.submit(|| panic!("nobody is told but the log"));
        drop(workers.run(|| PanicsOnDrop));
        assert_eq!(block_on(workers.run(|| thread::current().id())), Ok(before));
    }

    #[test]
    fn a_job_whose_owner_has_gone_is_done_all_the_same() {
        let workers = workers(1);
        let (sender, receiver) = mpsc::channel();
        drop(workers.run(move || sender.send(5)));
        assert_eq!(receiver.recv(), Ok(5));
    }

    #[test]
    fn dropping_the_pool_finishes_the_queue() {
        let done = Arc::new(AtomicUsize::new(0));
        let workers = workers(2);
        let second = workers.clone();
        for _ in 0..100 {
            let done = Arc::clone(&done);
            workers.submit(move || {
                thread::yield_now();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(workers);
        let last = second.run(|| 1);
        drop(second);
        assert_eq!(done.load(Ordering::Relaxed), 100);
        assert_eq!(block_on(last), Ok(1));
    }

    #[test]
    fn a_job_may_hold_the_last_handle() {
        let workers = workers(2);
        let (go, wait) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let inner = workers.clone();
        workers.submit(move || {
            wait.recv().unwrap();
            drop(inner);
            sender.send(()).unwrap();
        });
        drop(workers);
        go.send(()).unwrap();
        assert_eq!(receiver.recv(), Ok(()));
    }
}
