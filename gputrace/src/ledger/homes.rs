//! Where the things of one process belong: to a context, to a device, to a pool, to the host; and
//! which context is current to which of its threads.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::{event::BootTime, resource::Place};

/// Threads whose current context is remembered, per process; beyond that the one that set its own
/// first is forgotten: most likely it has ended, which nothing tells.
const MAX_THREADS: usize = 16_384;
/// Homes kept apart in one process; what belongs to further ones belongs to an unknown one.
const MAX_HOMES: usize = 1 << 20;

/// Index of a home within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HomeIndex(pub u32);

impl HomeIndex {
    /// Where it belongs is not known: the thread's current context was set before tracing, or in a
    /// way that is not probed.
    pub const UNKNOWN: Self = Self(u32::MAX);
}

/// What a home is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Home {
    /// A context; its number makes it different from all others.
    Context(u32),
    /// A device, whatever contexts there are.
    Device(u32),
    /// The memory pools of a device: its primary context takes them along.
    Pools(u32),
    /// The device of a context, as long as it is not known which that is.
    DeviceOf(HomeIndex),
    /// The process itself.
    Process,
    /// Host memory.
    Host,
}

#[derive(Clone, Copy, Debug)]
struct Context {
    /// `None`: it was created before tracing; learned when the device's primary context turns out
    /// to be this one.
    device: Option<u32>,
    /// Whether its creation was seen.
    created: bool,
}

/// A device's primary context.
#[derive(Clone, Copy, Debug)]
struct Primary {
    home: HomeIndex,
    retained: u64,
    /// It exists: it was not reset since it was retained.
    active: bool,
    /// All that retain it have been seen.
    from_the_start: bool,
}

/// Which homes ended, and up to when what was made there ended with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    homes: [HomeIndex; 2],
    entered: BootTime,
}

impl Gone {
    /// Whether something that belongs to `home` and was made at `returned` is gone.
    #[must_use]
    pub fn takes(&self, home: HomeIndex, returned: BootTime) -> bool {
        home != HomeIndex::UNKNOWN && self.homes.contains(&home) && returned <= self.entered
    }
}

/// What became of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was destroyed, after its creation was seen.
    Destroyed(Gone),
    /// It was destroyed, and had been created before tracing.
    UnknownDestroyed(Option<Gone>),
    /// It lives on.
    Lives,
    /// It may have been destroyed: not all that retain it have been seen.
    Unsure(HomeIndex),
}

/// Homes of one process.
#[derive(Debug, Default)]
pub struct Homes {
    homes: Vec<Home>,
    index: HashMap<Home, HomeIndex>,
    contexts: HashMap<HomeIndex, Context>,
    /// Live contexts by handle; a green context has two.
    by_handle: HashMap<u64, HomeIndex>,
    next_context: u32,
    primary: HashMap<u32, Primary>,
    pools: HashMap<u64, HomeIndex>,
    current: HashMap<u32, Vec<HomeIndex>>,
    /// The threads in `current`, in the order in which they came there.
    threads: VecDeque<u32>,
}

impl Homes {
    fn home(&mut self, home: Home) -> HomeIndex {
        if let Some(&index) = self.index.get(&home) {
            return index;
        }
        let Some(index) = u32::try_from(self.homes.len())
            .ok()
            .filter(|_| self.homes.len() < MAX_HOMES)
            .map(HomeIndex)
        else {
            return HomeIndex::UNKNOWN;
        };
        self.homes.push(home);
        self.index.insert(home, index);
        index
    }

    fn context(&mut self, handle: u64, device: Option<u32>, created: bool) -> HomeIndex {
        self.next_context = self.next_context.wrapping_add(1);
        let home = self.home(Home::Context(self.next_context));
        if home != HomeIndex::UNKNOWN {
            self.contexts.insert(home, Context { device, created });
            self.by_handle.insert(handle, home);
        }
        home
    }

    /// The context with this handle; one that was not seen being created gets a home without a
    /// device.
    fn find(&mut self, handle: u64) -> HomeIndex {
        match self.by_handle.get(&handle) {
            Some(&home) => home,
            None => self.context(handle, None, false),
        }
    }

    /// A context was created on a thread, which makes it current there.
    pub fn created(&mut self, tid: u32, device: u32, handle: u64) {
        let home = self.context(handle, Some(device), true);
        self.push(tid, home);
    }

    /// A green context was created: it is made current through a context that is named later.
    pub fn created_green(&mut self, device: u32, green: u64) {
        self.context(green, Some(device), true);
    }

    /// The context of a green context has this handle.
    pub fn named_green(&mut self, green: u64, handle: u64) {
        let home = self.find(green);
        if home != HomeIndex::UNKNOWN {
            self.by_handle.insert(handle, home);
        }
    }

    fn push(&mut self, tid: u32, context: HomeIndex) {
        if !self.current.contains_key(&tid) {
            if self.threads.len() >= MAX_THREADS
                && let Some(oldest) = self.threads.pop_front()
            {
                self.current.remove(&oldest);
            }
            self.threads.push_back(tid);
        }
        self.current.entry(tid).or_default().push(context);
    }

    /// A context was made current on top of the thread's stack.
    pub fn pushed(&mut self, tid: u32, handle: u64) {
        let context = self.find(handle);
        self.push(tid, context);
    }

    /// The thread's current context was taken off.
    pub fn popped(&mut self, tid: u32) {
        if let Some(stack) = self.current.get_mut(&tid) {
            stack.pop();
        }
    }

    /// A context replaced the thread's current one; 0 takes it off.
    pub fn set(&mut self, tid: u32, handle: u64) {
        self.popped(tid);
        if handle != 0 {
            self.pushed(tid, handle);
        }
    }

    /// A device's primary context was retained. `true`: that created it. `from_the_start`: all
    /// calls of the process have been seen.
    pub fn retained_primary(&mut self, device: u32, handle: u64, from_the_start: bool) -> bool {
        if let Some(primary) = self.primary.get_mut(&device)
            && self.by_handle.get(&handle) == Some(&primary.home)
        {
            primary.retained += 1;
            let created = !primary.active;
            primary.active = true;
            return created;
        }
        let home = self.find(handle);
        // Learned: a context that was current before tracing is this device's.
        if let Some(context) = self.contexts.get_mut(&home) {
            context.device = Some(device);
            context.created |= from_the_start;
        }
        self.primary.insert(
            device,
            Primary {
                home,
                retained: 1,
                active: true,
                from_the_start,
            },
        );
        from_the_start
    }

    /// A device's primary context was released.
    pub fn released_primary(&mut self, device: u32, entered: BootTime) -> Fate {
        let Some(primary) = self.primary.get_mut(&device) else {
            return Fate::Unsure(HomeIndex::UNKNOWN);
        };
        primary.retained = primary.retained.saturating_sub(1);
        let Primary {
            home,
            retained,
            active,
            from_the_start,
        } = *primary;
        if retained > 0 {
            return Fate::Lives;
        }
        if !from_the_start {
            return Fate::Unsure(home);
        }
        self.primary.remove(&device);
        let gone = self.end_context(home, Some(device), entered);
        if active {
            Fate::Destroyed(gone)
        } else {
            Fate::Lives
        }
    }

    /// A device's primary context was reset: what it held is gone, it can be used again. One that
    /// does not exist, or was reset before, stays as it is.
    pub fn reset_primary(&mut self, device: u32, entered: BootTime, from_the_start: bool) -> Fate {
        let pools = self.home(Home::Pools(device));
        let Some(primary) = self.primary.get_mut(&device) else {
            return if from_the_start {
                Fate::Lives
            } else {
                Fate::Unsure(HomeIndex::UNKNOWN)
            };
        };
        if !std::mem::replace(&mut primary.active, false) {
            return Fate::Lives;
        }
        let gone = Gone {
            homes: [primary.home, pools],
            entered,
        };
        if primary.from_the_start {
            Fate::Destroyed(gone)
        } else {
            Fate::UnknownDestroyed(Some(gone))
        }
    }

    /// A thread destroyed a context. If it was current there, the one below it is now; to other
    /// threads it stays current, destroyed, until they take it off.
    pub fn destroyed(&mut self, tid: u32, handle: u64, entered: BootTime) -> Fate {
        let Some(&home) = self.by_handle.get(&handle) else {
            return Fate::UnknownDestroyed(None);
        };
        if self.current(tid) == home {
            self.popped(tid);
        }
        let was_created = self.contexts.get(&home).is_some_and(|it| it.created);
        let gone = self.end_context(home, None, entered);
        if was_created {
            Fate::Destroyed(gone)
        } else {
            Fate::UnknownDestroyed(Some(gone))
        }
    }

    fn end_context(&mut self, home: HomeIndex, pools_of: Option<u32>, entered: BootTime) -> Gone {
        self.contexts.remove(&home);
        if let Some(ended) = self.homes.get(home.0 as usize) {
            self.index.remove(ended);
        }
        self.by_handle.retain(|_, it| *it != home);
        let pools = pools_of.map_or(home, |device| self.home(Home::Pools(device)));
        Gone {
            homes: [home, pools],
            entered,
        }
    }

    /// A pool was created, imported or asked for.
    pub fn pool(&mut self, handle: u64, place: Place) {
        let home = match place {
            Place::Device { ordinal } => self.home(Home::Pools(ordinal)),
            Place::Host => self.home(Home::Host),
            _ => HomeIndex::UNKNOWN,
        };
        self.pools.insert(handle, home);
    }

    /// A pool was destroyed.
    pub fn pool_gone(&mut self, handle: u64) {
        self.pools.remove(&handle);
    }

    /// The thread's current context.
    #[must_use]
    pub fn current(&self, tid: u32) -> HomeIndex {
        self.current
            .get(&tid)
            .and_then(|stack| stack.last())
            .copied()
            .unwrap_or(HomeIndex::UNKNOWN)
    }

    /// Where something belongs that a thread asked for.
    pub fn of(&mut self, tid: u32, place: Place) -> HomeIndex {
        let current = self.current(tid);
        match place {
            Place::Current => current,
            Place::CurrentDevice if current == HomeIndex::UNKNOWN => HomeIndex::UNKNOWN,
            Place::CurrentDevice => match self.device(current) {
                Some(device) => self.home(Home::Pools(device)),
                None => self.home(Home::DeviceOf(current)),
            },
            Place::Device { ordinal } => self.home(Home::Device(ordinal)),
            Place::Process => self.home(Home::Process),
            Place::Host => self.home(Home::Host),
            Place::Pool { pool } => self.pools.get(&pool).copied().unwrap_or(HomeIndex::UNKNOWN),
            Place::Unknown => HomeIndex::UNKNOWN,
        }
    }

    /// The device of a home, as the process counts them. `None` where it is not known, and for the
    /// host.
    #[must_use]
    pub fn device(&self, home: HomeIndex) -> Option<u32> {
        match *self.homes.get(home.0 as usize)? {
            Home::Context(_) => self.contexts.get(&home)?.device,
            Home::Device(device) | Home::Pools(device) => Some(device),
            Home::DeviceOf(context) => self.contexts.get(&context)?.device,
            Home::Process | Home::Host => None,
        }
    }

    /// Whether a home is host memory.
    #[must_use]
    pub fn is_host(&self, home: HomeIndex) -> bool {
        self.homes.get(home.0 as usize) == Some(&Home::Host)
    }

    /// A new image has none.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: BootTime = BootTime(100);

    #[test]
    fn each_thread_has_a_stack_of_its_own() {
        let mut homes = Homes::default();
        homes.created(1, 0, 0xa);
        let a = homes.current(1);
        homes.created(1, 1, 0xb);
        let b = homes.current(1);
        assert_eq!((homes.device(a), homes.device(b)), (Some(0), Some(1)));
        assert_eq!(homes.current(2), HomeIndex::UNKNOWN);
        homes.set(2, 0xa);
        homes.popped(1);
        assert_eq!((homes.current(1), homes.current(2)), (a, a));
        let Fate::Destroyed(gone) = homes.destroyed(1, 0xa, LATER) else {
            panic!("it was created");
        };
        assert!(gone.takes(a, LATER) && !gone.takes(b, LATER));
        assert!(!gone.takes(a, BootTime(101)));
        // To the other thread it stays current, though it is destroyed.
        assert_eq!(
            (homes.current(1), homes.current(2)),
            (HomeIndex::UNKNOWN, a)
        );
        assert_eq!(homes.destroyed(1, 0xa, LATER), Fate::UnknownDestroyed(None));
        homes.set(2, 0xb);
        assert_eq!(homes.current(2), b);
        homes.set(2, 0);
        assert_eq!(homes.current(2), HomeIndex::UNKNOWN);
    }

    #[test]
    fn threads_that_come_and_go_leave_room_for_others() {
        let mut homes = Homes::default();
        homes.created(0, 5, 0xa);
        let threads = u32::try_from(MAX_THREADS).unwrap();
        for tid in 1..3 * threads {
            homes.set(tid, 0xa);
            homes.set(tid, 0);
            homes.set(tid, 0xa);
        }
        assert_eq!(homes.device(homes.current(3 * threads - 1)), Some(5));
        assert_eq!(homes.current(0), HomeIndex::UNKNOWN);
        assert_eq!(
            (homes.current.len(), homes.threads.len()),
            (MAX_THREADS, MAX_THREADS)
        );
    }

    #[test]
    fn a_handle_may_be_given_out_again() {
        let mut homes = Homes::default();
        homes.created(1, 0, 0xa);
        let first = homes.current(1);
        homes.destroyed(1, 0xa, LATER);
        homes.created(1, 0, 0xa);
        assert_ne!(first, homes.current(1));
    }

    #[test]
    fn a_primary_context_lives_until_its_last_release() {
        let mut homes = Homes::default();
        assert!(homes.retained_primary(0, 0xa, true));
        assert!(!homes.retained_primary(0, 0xa, true));
        homes.set(1, 0xa);
        let home = homes.of(1, Place::Current);
        let stream_ordered = homes.of(1, Place::CurrentDevice);
        assert_eq!(homes.released_primary(0, LATER), Fate::Lives);
        let Fate::Destroyed(gone) = homes.released_primary(0, LATER) else {
            panic!("nobody retains it");
        };
        assert!(gone.takes(home, LATER) && gone.takes(stream_ordered, LATER));
        assert!(homes.retained_primary(0, 0xa, true));
    }

    #[test]
    fn a_reset_takes_what_the_context_held_and_leaves_the_handle() {
        let mut homes = Homes::default();
        homes.retained_primary(0, 0xa, true);
        homes.set(1, 0xa);
        let home = homes.current(1);
        assert!(
            matches!(homes.reset_primary(0, LATER, true), Fate::Destroyed(gone) if gone.takes(home, LATER))
        );
        assert_eq!(homes.current(1), home);
        assert_eq!(homes.reset_primary(0, LATER, true), Fate::Lives);
        assert_eq!(homes.reset_primary(1, LATER, true), Fate::Lives);
        assert!(homes.retained_primary(0, 0xa, true));
    }

    #[test]
    fn the_device_of_an_old_context_is_learned() {
        let mut homes = Homes::default();
        homes.set(1, 0xa);
        let (home, pooled) = (
            homes.of(1, Place::Current),
            homes.of(1, Place::CurrentDevice),
        );
        assert_eq!((homes.device(home), homes.device(pooled)), (None, None));
        assert!(!homes.retained_primary(3, 0xa, false));
        assert_eq!(
            (homes.device(home), homes.device(pooled)),
            (Some(3), Some(3))
        );
    }

    #[test]
    fn a_pool_knows_its_place() {
        let mut homes = Homes::default();
        homes.pool(7, Place::Device { ordinal: 2 });
        homes.pool(8, Place::Host);
        let home = homes.of(1, Place::Pool { pool: 7 });
        assert_eq!(homes.device(home), Some(2));
        let host = homes.of(1, Place::Pool { pool: 8 });
        assert!(homes.is_host(host));
        homes.pool_gone(7);
        assert_eq!(homes.of(1, Place::Pool { pool: 7 }), HomeIndex::UNKNOWN);
    }

    #[test]
    fn a_green_context_has_two_handles() {
        let mut homes = Homes::default();
        homes.created_green(1, 0x9);
        homes.named_green(0x9, 0xc);
        homes.set(1, 0xc);
        let home = homes.current(1);
        assert_eq!(homes.device(home), Some(1));
        assert!(
            matches!(homes.destroyed(1, 0x9, LATER), Fate::Destroyed(gone) if gone.takes(home, LATER))
        );
        assert_eq!(homes.current(1), HomeIndex::UNKNOWN);
    }
}
