use super::Tick;

/// The calls that were asked of a [`TimeSource`](crate::TimeSource) and have not come yet.
///
/// A call can't be taken back, so one that is asked for whenever the earliest deadline changes would pile up behind a
/// late one. Here a call is asked for only when it has to come before all that are outstanding; whichever comes looks
/// at the deadlines anew.
#[derive(Debug, Default)]
pub struct Alarm {
    /// The latest first: each was asked for because it was earlier than the one before.
    owed: Vec<Tick>,
}

impl Alarm {
    /// Nothing was asked for.
    #[must_use]
    pub const fn new() -> Self {
        Alarm { owed: Vec::new() }
    }

    /// Whether a call at `deadline` must be asked for, so that it is not missed. If so, it counts as asked for.
    #[must_use = "a call that counts as asked for has to be"]
    pub fn arm(&mut self, deadline: Tick) -> bool {
        let needed =
            deadline != Tick::NEVER && self.owed.last().is_none_or(|&next| deadline < next);
        if needed {
            self.owed.push(deadline);
        }
        needed
    }

    /// A call came, whatever the clock says: the earliest of the outstanding ones.
    pub fn came(&mut self) {
        self.owed.pop();
    }
}
