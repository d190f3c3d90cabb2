//! Who asks for things.

use crate::engine::books::{Asked, Offered, contained, refused, settle, submitted, tried};
use crate::engine::dice::Dice;
use crate::engine::tokens::{Bonds, Outcome};
use crate::engine::work::{Work, plain};
use crate::engine::world::{Wish, World, lock};
use futures_lite::future::block_on;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tollgate_blocking::admission::TimeSource;
use tollgate_blocking::{BlockingPool, Deadline, Dedicated, LanePolicy, Permit, RunError, Ticket};

/// What is done once on the way, when this share of the jobs, in percent, has been made.
const DOOM: u64 = 60;
const CLOSE_WHOLE: u64 = 75;
const CLOSE: u64 = 90;

pub(crate) struct Driver {
    world: Arc<World>,
    dice: Dice,
    /// Does what is done once.
    first: bool,
}

/// Polls once, for nobody who wants to be woken.
fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Too large to be kept in a job's cell.
struct Large(Outcome, [u64; 12]);

impl Driver {
    pub(crate) fn new(world: Arc<World>, dice: Dice, first: bool) -> Self {
        Driver { world, dice, first }
    }

    /// Goes on until so many closures have been made, by all.
    pub(crate) fn drive(&mut self, jobs: u64) {
        let world = Arc::clone(&self.world);
        let faults = &world.tally.faults;
        let mut marks = vec![CLOSE, CLOSE_WHOLE, DOOM];
        loop {
            let made = world.tally.made.get();
            while self.first
                && let Some(&mark) = marks.last()
                && made >= jobs * mark / 100
            {
                marks.pop();
                contained(faults, || self.once(mark));
            }
            if made >= jobs {
                return;
            }
            contained(faults, || self.step());
        }
    }

    fn once(&mut self, mark: u64) {
        match mark {
            DOOM => drop(lock(&self.world.doomed).take()),
            CLOSE_WHOLE => self.close_whole(),
            CLOSE => self.world.pools[0].pool.close(),
            _ => {}
        }
    }

    fn step(&mut self) {
        match self.dice.below(40) {
            0..=9 => self.run(),
            10..=16 => self.run_and_leave(),
            17..=26 => self.submit(),
            27..=33 => self.acquire(),
            34 | 35 => self.spawn_task(),
            36 | 37 => self.world.meddle(&mut self.dice),
            38 => match self.dice.below(16) {
                0 => self.short_pool(),
                1 => self.dedicated(),
                2..=5 => self.look(),
                6..=8 => self.world.pool(&mut self.dice).resize(&mut self.dice),
                _ => self.end_a_scope(),
            },
            _ => std::thread::yield_now(),
        }
    }

    /// What a job is to be like, and its closure.
    fn job<'a>(world: &'a Arc<World>, dice: &mut Dice) -> (Wish<'a>, Work) {
        let pool = world.pool(dice);
        let wish = world.wish(dice, pool);
        let work = world.work(dice, &wish, 0);
        (wish, work)
    }

    fn run(&mut self) {
        let Driver { world, dice, .. } = self;
        let (wish, work) = Self::job(world, dice);
        let (faults, book) = (&world.tally.faults, wish.book());
        if dice.one_in(4) {
            let run = wish.builder().run_with(move |job| Large(work(job), [7; 12]));
            let result = block_on(Offered::new(run, book));
            settle(faults, result.map(|large| (black_box(large.1), large.0)));
        } else {
            settle(faults, block_on(Offered::new(wish.builder().run_with(work), book)));
        }
    }

    /// Dropped at some stage, by some thread.
    fn run_and_leave(&mut self) {
        let Driver { world, dice, .. } = self;
        let (wish, work) = Self::job(world, dice);
        let mut run = Offered::new(wish.builder().run_with(work), wish.book());
        for _ in 0..dice.below(4) {
            if let Poll::Ready(result) = poll(&mut run) {
                return settle(&world.tally.faults, result);
            }
            if dice.one_in(2) {
                std::thread::yield_now();
            }
        }
        match dice.below(3) {
            0 => drop(run),
            1 => world.bin.throw(run),
            _ => Self::leave(world, run),
        }
    }

    /// Has somebody else wait for it.
    fn leave<R: Send + 'static>(
        world: &Arc<World>,
        job: impl Future<Output = Result<R, RunError>> + Send + 'static,
    ) {
        let tally = Arc::clone(&world.tally);
        world.bin.leave(async move { settle(&tally.faults, job.await) });
    }

    fn submit(&mut self) {
        let Driver { world, dice, .. } = self;
        let (wish, work) = Self::job(world, dice);
        wish.book().jobs.add();
        match wish.builder().submit_with(work) {
            Ok(ticket) => Self::watch(world, dice, ticket),
            Err(error) => submitted(&world.tally.faults, error),
        }
    }

    /// Does with a ticket what can be done with it.
    fn watch<R: Send + 'static>(world: &Arc<World>, dice: &mut Dice, mut ticket: Ticket<R>) {
        let faults = &world.tally.faults;
        match dice.below(8) {
            0 => drop(ticket),
            1 => world.bin.throw(ticket),
            2 => {
                let never = ticket.cancel();
                let result = ticket.join();
                if never && !result.as_ref().is_err_and(RunError::never_ran) {
                    faults.add("a job was cancelled before it started, and has a result");
                }
                settle(faults, result);
            }
            3 => {
                if dice.one_in(2) {
                    std::thread::yield_now();
                }
                ticket.cancel();
                Self::leave(world, ticket);
            }
            4 => {
                let soon = Deadline::after(dice.micros(100));
                match block_on(ticket.wait_until(soon)) {
                    Some(result) => settle(faults, result),
                    None => settle(faults, ticket.join()),
                }
            }
            5 => match ticket.join_until(Deadline::after(dice.micros(100))) {
                Ok(result) => settle(faults, result),
                Err(ticket) => Self::leave(world, ticket),
            },
            _ => settle(faults, ticket.join()),
        }
    }

    fn acquire(&mut self) {
        let Driver { world, dice, .. } = self;
        let (wish, work) = Self::job(world, dice);
        let (faults, book) = (&world.tally.faults, wish.book());
        if dice.one_in(4) {
            book.acquires.add();
            return match wish.builder().try_acquire() {
                Ok(permit) => {
                    book.granted.add();
                    Self::use_permit(world, dice, &wish, permit, work);
                }
                Err(error) => tried(faults, &error),
            };
        }
        let mut acquire = Asked::new(wish.builder().acquire(), book);
        let result = if dice.one_in(2) {
            match poll(&mut acquire) {
                Poll::Ready(result) => result,
                Poll::Pending if dice.one_in(2) => return world.bin.throw(acquire),
                Poll::Pending => {
                    let bin = world.bin.clone();
                    return world.bin.leave(async move { bin.throw(acquire.await) });
                }
            }
        } else {
            block_on(acquire)
        };
        match result {
            Ok(permit) => Self::use_permit(world, dice, &wish, permit, work),
            Err(error) => refused(faults, &error),
        }
    }

    fn use_permit(
        world: &Arc<World>,
        dice: &mut Dice,
        wish: &Wish<'_>,
        permit: Permit,
        work: Work,
    ) {
        // a permit's job is one of its lane whatever its kind
        let (faults, book) = (&world.tally.faults, wish.book());
        match dice.below(6) {
            0 => world.bin.throw(permit),
            1 => drop(permit),
            2 => settle(faults, block_on(Offered::new(permit.run_with(work), book))),
            3 => {
                let mut run = Offered::new(permit.run_with(work), book);
                if dice.one_in(2)
                    && let Poll::Ready(result) = poll(&mut run)
                {
                    return settle(faults, result);
                }
                world.bin.throw(run);
            }
            _ => {
                book.jobs.add();
                match permit.spawn_with(work) {
                    Ok(ticket) => Self::watch(world, dice, ticket),
                    Err(error) => submitted(faults, error),
                }
            }
        }
    }

    /// From async code, which is left to itself or aborted.
    fn spawn_task(&mut self) {
        let Driver { world, dice, .. } = self;
        let (wish, work) = Self::job(world, dice);
        let run = Offered::new(wish.builder().run_with(work), wish.book());
        let tally = Arc::clone(&world.tally);
        let task = async move { settle(&tally.faults, run.await) };
        let task = world.keeper.spawn(task);
        if dice.one_in(2) {
            task.abort();
        }
        let tally = Arc::clone(&world.tally);
        world.bin.leave(async move {
            if let Err(error) = task.await
                && let Ok(payload) = error.try_into_panic()
            {
                // what it dropped may have panicked, as planned
                contained(&tally.faults, || std::panic::resume_unwind(payload));
            }
        });
    }

    fn look(&mut self) {
        let Driver { world, dice, .. } = self;
        let pool = &world.pool(dice).pool;
        match dice.below(4) {
            0 => drop(black_box(pool.stats())),
            1 => drop(black_box(format!("{pool:?}"))),
            2 => drop(black_box(pool.snapshot())),
            _ => drop(black_box(world.place(dice).scope.report().to_string())),
        }
    }

    /// Closes a scope and waits a little; it need not have ended then.
    fn end_a_scope(&mut self) {
        let Driver { world, dice, .. } = self;
        let place = world.place(dice);
        if Arc::ptr_eq(&place, &world.root) {
            return world.open(dice);
        }
        if dice.one_in(2) {
            world.forget(&place);
        }
        let now = Instant::now();
        let mut shutdown = place.scope.shutdown(now + dice.micros(1_000));
        if dice.one_in(2) {
            shutdown = shutdown.cancel_at(now + dice.micros(400));
        }
        if dice.one_in(8) {
            // dropped on the way
            let _ = poll(&mut shutdown);
            return;
        }
        if block_on(shutdown).complete {
            place.check_closed(&world.tally.faults);
        }
    }

    /// Ends the scope of the pool that is attached to one.
    fn close_whole(&mut self) {
        let Driver { world, dice, .. } = self;
        let pool = &world.pools[1];
        let place = pool.attached.as_ref().expect("this one is");
        match dice.below(3) {
            0 => place.scope.close(),
            1 => place.scope.cancel(),
            _ => drop(block_on(place.scope.shutdown(Instant::now() + dice.micros(1_000)))),
        }
        let world = Arc::clone(world);
        self.world.bin.leave(async move {
            let pool = &world.pools[1];
            let place = pool.attached.as_ref().expect("this one is");
            place.scope.drained().await;
            place.check_closed(&world.tally.faults);
            let threads = pool.pool.stats().threads.alive;
            if threads != 0 {
                let fault = "the scope of a pool is closed, and threads of the pool are left:";
                world.tally.faults.add(format!("{fault} {threads}"));
            }
        });
    }

    /// A pool whose last handle goes while its jobs are under way.
    fn short_pool(&mut self) {
        let Driver { world, dice, .. } = self;
        let owner = match &*lock(&world.doomed) {
            Some(doomed) if dice.one_in(3) => doomed.handle().clone(),
            _ => world.keeper.handle().clone(),
        };
        let mut builder = BlockingPool::builder(owner)
            .capacity(1 + dice.below(2))
            .lane(LanePolicy::new("a").max_waiting(4));
        if dice.one_in(2) {
            builder = builder.time(Arc::clone(&world.timer) as Arc<dyn TimeSource>);
        }
        let place = dice.one_in(2).then(|| world.place(dice));
        if let Some(place) = &place {
            builder = builder.scope(&place.scope);
        }
        let bonds =
            Bonds { running: place.map(|place| Arc::clone(&place.running)), ..Bonds::default() };
        // its scope is closed
        let Ok(pool) = builder.build() else { return };
        let lane = pool.executor("a").expect("it was built with this lane");
        for _ in 0..dice.below(6) {
            let work = plain(dice, &world.tally, bonds.clone());
            let job = lane.job("short");
            match dice.below(4) {
                0 => {
                    let mut run = job.run_with(work);
                    if let Poll::Ready(result) = poll(&mut run) {
                        settle(&world.tally.faults, result);
                    } else {
                        world.bin.throw(run);
                    }
                }
                1 => {
                    // the last handle may be a job's own
                    let own = lane.clone();
                    let ticket = job.submit_with(move |job| {
                        let _own = own;
                        work(job)
                    });
                    if let Ok(ticket) = ticket {
                        Self::leave(world, ticket);
                    }
                }
                _ => {
                    if let Ok(ticket) = job.submit_with(work) {
                        Self::leave(world, ticket);
                    }
                }
            }
        }
        match dice.below(3) {
            0 => world.bin.throw((lane, pool)),
            1 => drop((lane, pool)),
            _ => {
                drop(pool);
                world.bin.throw(lane);
            }
        }
    }

    /// A thread for one job, which may run until its scope is cancelled.
    fn dedicated(&mut self) {
        let Driver { world, dice, .. } = self;
        let place = world.place(dice);
        let bonds = Bonds { running: Some(Arc::clone(&place.running)), ..Bonds::default() };
        let (work, patient) = (plain(dice, &world.tally, bonds), dice.one_in(4));
        let thread = Dedicated::new(world.keeper.handle().clone(), "chaos-dedicated");
        let ticket = thread.scope(&place.scope).spawn_with(move |job| {
            if patient {
                let token = job.token();
                block_on(token.cancelled());
            }
            work(job)
        });
        match ticket {
            Ok(ticket) if dice.one_in(2) => {
                ticket.cancel();
                Self::leave(world, ticket);
            }
            Ok(ticket) if patient => world.bin.throw(ticket),
            Ok(ticket) => Self::leave(world, ticket),
            // its scope is closed
            Err(_) => {}
        }
    }
}
