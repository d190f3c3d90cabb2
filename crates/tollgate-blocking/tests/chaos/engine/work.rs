//! What closures do.

use crate::engine::books::{Asked, Offered, Spark, refused, settle, submitted, tried};
use crate::engine::dice::Dice;
use crate::engine::tokens::{Bonds, Outcome, Tally, Token};
use crate::engine::world::{Pool, Wish, World};
use futures_lite::future::block_on;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tollgate_blocking::JobContext;

pub(crate) type Work = Box<dyn FnOnce(&JobContext<'_>) -> Outcome + Send>;

/// Jobs within jobs, at most.
const DEPTH: u32 = 3;

/// Captures of a closure, some of which panic as they are dropped.
fn token(dice: &mut Dice, tally: &Arc<Tally>, bonds: Bonds, observed: bool) -> Token {
    let bomb = dice.one_in(40).then(|| Spark::new(dice));
    Token::new(tally, bonds, observed, bomb)
}

/// A closure that keeps to itself, for a pool whose figures nobody looks at.
pub(crate) fn plain(dice: &mut Dice, tally: &Arc<Tally>, bonds: Bonds) -> Work {
    let (token, mut dice) = (token(dice, tally, bonds, false), dice.split());
    Box::new(move |job| {
        let token = token;
        token.start();
        by_itself(&mut dice, job);
        token.result()
    })
}

/// Panics, or takes its time until it is asked to stop.
fn by_itself(dice: &mut Dice, job: &JobContext<'_>) {
    match dice.below(6) {
        0 => Spark::new(dice).fly(),
        1 | 2 => {
            let token = dice.one_in(4).then(|| job.token());
            let stop = || token.as_ref().is_some_and(CancellationToken::is_cancelled);
            while job.checkpoint().is_ok() && !stop() && !dice.one_in(40) {
                std::thread::yield_now();
            }
        }
        _ => {}
    }
}

impl World {
    /// A closure for a job of one of the world's pools that does some of what closures do.
    pub(crate) fn work(self: &Arc<Self>, dice: &mut Dice, wish: &Wish<'_>, depth: u32) -> Work {
        let token = token(dice, &self.tally, wish.bonds(), true);
        let (what, number) = (dice.below(24), wish.pool.number);
        if what >= 10 {
            // most do nothing: the pool is what is tried
            return Box::new(move |_| {
                let token = token;
                token.start();
                token.result()
            });
        }
        let (world, mut dice) = (Arc::clone(self), dice.split());
        Box::new(move |job| {
            // moved in as one, so that it goes at the end
            let token = token;
            token.start();
            match what {
                0..=3 => by_itself(&mut dice, job),
                4 | 5 if depth < DEPTH => world.nest(&mut dice, number, depth),
                6 if depth < DEPTH => world.beside(&mut dice, number),
                7 => world.elsewhere(&mut dice, number, depth),
                8 if dice.one_in(8) => world.meddle(&mut dice),
                _ => {}
            }
            token.result()
        })
    }

    /// A job within a job of the same pool, which has run when this returns.
    fn nest(self: &Arc<Self>, dice: &mut Dice, number: usize, depth: u32) {
        let wish = self.wish(dice, &self.pools[number]);
        let work = self.work(dice, &wish, depth + 1);
        let (faults, book) = (&self.tally.faults, wish.book());
        if dice.one_in(2) {
            book.jobs.add();
            match wish.builder().submit_with(work) {
                Ok(ticket) => {
                    if !ticket.is_done() {
                        faults.add("a job that was submitted inside another had not run");
                    }
                    settle(faults, ticket.join());
                }
                Err(error) => submitted(faults, error),
            }
        } else {
            settle(faults, block_on(Offered::new(wish.builder().run_with(work), book)));
        }
    }

    /// A job within a job of the same pool, under a permit of its own.
    fn beside(self: &Arc<Self>, dice: &mut Dice, number: usize) {
        let wish = self.wish(dice, &self.pools[number]);
        let (faults, book) = (&self.tally.faults, wish.book());
        let permit = if dice.one_in(2) {
            book.acquires.add();
            match wish.builder().try_acquire() {
                Ok(permit) => {
                    book.granted.add();
                    permit
                }
                Err(error) => return tried(faults, &error),
            }
        } else {
            match block_on(Asked::new(wish.builder().acquire(), Arc::clone(&book))) {
                Ok(permit) => permit,
                Err(error) => return refused(faults, &error),
            }
        };
        match dice.below(4) {
            0 => drop(permit),
            1 => self.bin.throw(permit),
            _ => {
                let work = self.work(dice, &wish, DEPTH);
                book.jobs.add();
                match permit.spawn_with(work) {
                    Ok(ticket) => self.bin.throw(ticket),
                    Err(error) => submitted(faults, error),
                }
            }
        }
    }

    /// A job of another pool. It is waited for if jobs there never wait for jobs here.
    fn elsewhere(self: &Arc<Self>, dice: &mut Dice, number: usize, depth: u32) {
        let pool: &Pool = self.pool(dice);
        if pool.number == number {
            return;
        }
        let wish = self.wish(dice, pool);
        let work = self.work(dice, &wish, depth + 1);
        let (faults, book) = (&self.tally.faults, wish.book());
        if pool.number > number && dice.one_in(2) {
            return settle(faults, block_on(Offered::new(wish.builder().run_with(work), book)));
        }
        book.jobs.add();
        match wish.builder().submit_with(work) {
            Ok(ticket) if pool.number > number => settle(faults, ticket.join()),
            Ok(ticket) => self.bin.throw(ticket),
            Err(error) => submitted(faults, error),
        }
    }

    /// Does something to a scope, from wherever.
    pub(crate) fn meddle(self: &Arc<Self>, dice: &mut Dice) {
        match dice.below(16) {
            0..=4 => self.open(dice),
            5..=7 => self.lend(dice),
            8 | 9 => {
                if let Ok(guard) = self.place(dice).scope.enter("guard") {
                    self.bin.throw(guard);
                }
            }
            10 | 11 => {
                let place = self.place(dice);
                // the root's deadline is everybody's
                if !Arc::ptr_eq(&place, &self.root) {
                    place.scope.tighten(std::time::Instant::now() + dice.micros(500));
                    self.forget(&place);
                }
            }
            12 => self.track(dice),
            _ => {
                let place = self.place(dice);
                if !Arc::ptr_eq(&place, &self.root) {
                    if dice.one_in(2) {
                        place.scope.cancel();
                    } else {
                        place.scope.close();
                    }
                    self.forget(&place);
                    let world = Arc::clone(self);
                    self.bin.leave(async move {
                        place.scope.drained().await;
                        place.check_closed(&world.tally.faults);
                    });
                }
            }
        }
    }

    /// An async task of a scope.
    fn track(&self, dice: &mut Dice) {
        let place = self.place(dice);
        let (token, patient) = (place.scope.token(), dice.one_in(2));
        let task = async move {
            if patient {
                token.cancelled().await;
            } else {
                tokio::task::yield_now().await;
            }
        };
        let Ok(task) = place.scope.track("task", task) else { return };
        if dice.one_in(4) {
            self.bin.throw(task);
        } else {
            self.keeper.spawn(task);
        }
    }
}
