//! Memory that one process exported and others have opened: it outlives its owner's free, and its
//! owner.

use hashbrown::{HashMap, HashSet};

use crate::event::{BootTime, Pid};

/// Exported allocations kept account of. Beyond that, opened memory has no known owner.
const MAX_EXPORTS: usize = 65_536;
/// Opened pointers kept account of. Beyond that, a first close is taken for the last one.
const MAX_OPENED: usize = 1 << 20;

/// An exported allocation.
#[derive(Clone, Debug)]
pub struct Export {
    /// Whose memory it is.
    pub owner: Pid,
    /// Its pointer in that process.
    pub address: u64,
    /// Its bytes; `None` where its allocation was not seen.
    pub bytes: Option<u64>,
    /// When its owner gave it up, and how.
    pub given_up: Option<GivenUp>,
    /// Who has it open, and how often.
    pub holders: HashMap<Pid, u64>,
    /// When the allocation was made.
    returned: Option<BootTime>,
    key: u64,
}

/// How memory came to be without its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// When.
    pub at: BootTime,
    /// The owner, or its image, ended; else it freed the memory.
    pub by_end: bool,
}

/// Exports of all processes.
#[derive(Debug, Default)]
pub struct Sharing {
    next: u64,
    exports: HashMap<u64, Export>,
    by_key: HashMap<u64, u64>,
    owners: HashSet<Pid>,
    /// What a process opened, by pointer.
    opened: HashMap<(Pid, u64), Opened>,
}

#[derive(Debug)]
struct Opened {
    /// The export, if it is known.
    export: Option<u64>,
    /// How often it was opened and not closed.
    times: u64,
}

impl Sharing {
    /// A process exported the allocation at `address` under a key.
    pub fn exported(
        &mut self,
        owner: Pid,
        address: u64,
        allocation: Option<(u64, BootTime)>,
        key: u64,
    ) {
        let returned = allocation.map(|(_, returned)| returned);
        let known = self.by_key.get(&key).and_then(|id| self.exports.get(id));
        let same = known.is_some_and(|it| {
            it.owner == owner && it.address == address && it.returned == returned
        });
        if same || self.exports.len() >= MAX_EXPORTS {
            return;
        }
        let id = self.next;
        self.next += 1;
        self.by_key.insert(key, id);
        self.owners.insert(owner);
        self.exports.insert(
            id,
            Export {
                owner,
                address,
                bytes: allocation.map(|(bytes, _)| bytes),
                given_up: None,
                holders: HashMap::new(),
                returned,
                key,
            },
        );
    }

    /// A process opened what was exported under a key. Returns the bytes behind it, if they are
    /// known.
    pub fn opened(&mut self, holder: Pid, address: u64, key: Option<u64>) -> Option<u64> {
        let id = key.and_then(|key| self.by_key.get(&key)).copied();
        if self.opened.len() < MAX_OPENED || self.opened.contains_key(&(holder, address)) {
            let opened = self.opened.entry((holder, address)).or_insert(Opened {
                export: id,
                times: 0,
            });
            opened.times += 1;
        }
        let export = self.exports.get_mut(&id?)?;
        *export.holders.entry(holder).or_default() += 1;
        export.bytes
    }

    /// A process closes a pointer. `true`: it has it open once more, so that the pointer stays.
    pub fn closed(&mut self, holder: Pid, address: u64) -> bool {
        let Some(opened) = self.opened.get_mut(&(holder, address)) else {
            return false;
        };
        opened.times = opened.times.saturating_sub(1);
        let (export, left) = (opened.export, opened.times);
        if left == 0 {
            self.opened.remove(&(holder, address));
        }
        if let Some(id) = export {
            self.not_held(id, holder, 1);
        }
        left > 0
    }

    /// A process has something open fewer times.
    fn not_held(&mut self, id: u64, holder: Pid, times: u64) {
        if let Some(export) = self.exports.get_mut(&id)
            && let Some(handles) = export.holders.get_mut(&holder)
        {
            *handles = handles.saturating_sub(times);
            if *handles == 0 {
                export.holders.remove(&holder);
            }
            self.drop_if_over(id);
        }
    }

    /// A context of a process ended: what it had open there is closed.
    pub fn settle_holder(&mut self, holder: Pid, is_live: impl Fn(u64) -> bool) {
        let gone: Vec<_> = self
            .opened
            .extract_if(|(pid, address), _| *pid == holder && !is_live(*address))
            .map(|(_, opened)| opened)
            .collect();
        for opened in gone {
            if let Some(id) = opened.export {
                self.not_held(id, holder, opened.times);
            }
        }
    }

    /// Whether a process has exported anything.
    #[must_use]
    pub fn is_owner(&self, pid: Pid) -> bool {
        self.owners.contains(&pid)
    }

    /// Takes note of what a process has given up of its exports: all that is not live any more.
    pub fn settle(
        &mut self,
        owner: Pid,
        at: BootTime,
        by_end: bool,
        is_live: impl Fn(u64) -> Option<BootTime>,
    ) {
        let mut over = Vec::new();
        for (id, export) in &mut self.exports {
            if export.owner != owner || export.given_up.is_some() {
                continue;
            }
            let lives = match export.returned {
                Some(returned) => is_live(export.address) == Some(returned),
                // Its allocation was not seen, so its free cannot be told either.
                None => !by_end,
            };
            if !lives {
                export.given_up = Some(GivenUp { at, by_end });
                over.push(*id);
            }
        }
        for id in over {
            self.drop_if_over(id);
        }
    }

    /// A process, or its image, ended: it has nothing open any more, and owns nothing.
    pub fn ended(&mut self, pid: Pid, at: BootTime) {
        if self.owners.remove(&pid) {
            self.settle(pid, at, true, |_| None);
        }
        let mut over = Vec::new();
        for (id, export) in &mut self.exports {
            if export.holders.remove(&pid).is_some() {
                over.push(*id);
            }
        }
        self.opened.retain(|(holder, _), _| *holder != pid);
        for id in over {
            self.drop_if_over(id);
        }
    }

    /// Forgets an export that nobody owns and nobody has open.
    fn drop_if_over(&mut self, id: u64) {
        let over = |it: &mut Export| it.given_up.is_some() && it.holders.is_empty();
        if let hashbrown::hash_map::Entry::Occupied(mut entry) = self.exports.entry(id)
            && over(entry.get_mut())
        {
            let export = entry.remove();
            if self.by_key.get(&export.key) == Some(&id) {
                self.by_key.remove(&export.key);
            }
        }
    }

    /// Memory that its owner has given up and others keep, in no order.
    pub fn kept(&self) -> impl Iterator<Item = &Export> {
        self.exports.values().filter(|it| it.given_up.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pid(tgid: u32) -> Pid {
        Pid {
            tgid,
            start_ticks: 1,
        }
    }
    const A: Pid = pid(1);
    const B: Pid = pid(2);

    #[test]
    fn memory_outlives_its_owners_free_and_its_owner() {
        let mut sharing = Sharing::default();
        sharing.exported(A, 0x10, Some((640, BootTime(1))), 99);
        assert_eq!(sharing.opened(B, 0x20, Some(99)), Some(640));
        assert_eq!(sharing.kept().count(), 0);
        sharing.settle(A, BootTime(5), false, |_| None);
        let kept = sharing.kept().next().unwrap();
        let freed = GivenUp {
            at: BootTime(5),
            by_end: false,
        };
        assert_eq!((kept.given_up, kept.holders[&B]), (Some(freed), 1));
        sharing.ended(A, BootTime(6));
        assert_eq!(sharing.kept().next().unwrap().given_up, Some(freed));
        sharing.ended(B, BootTime(7));
        assert_eq!(sharing.kept().count(), 0);
        assert!(sharing.exports.is_empty() && sharing.by_key.is_empty());
        assert!(sharing.opened.is_empty());
    }

    #[test]
    fn a_handle_opened_twice_is_closed_twice() {
        let mut sharing = Sharing::default();
        sharing.exported(A, 0x10, None, 99);
        assert_eq!(sharing.opened(B, 0x20, Some(99)), None);
        sharing.opened(B, 0x20, Some(99));
        sharing.ended(A, BootTime(3));
        assert!(sharing.closed(B, 0x20));
        assert_eq!(sharing.kept().count(), 1);
        assert!(!sharing.closed(B, 0x20));
        assert_eq!(sharing.kept().count(), 0);
        assert!(!sharing.closed(B, 0x20));
        // Also where nobody knows whose it is.
        sharing.opened(B, 0x30, None);
        sharing.opened(B, 0x30, None);
        assert!(sharing.closed(B, 0x30));
        assert!(!sharing.closed(B, 0x30));
    }

    #[test]
    fn the_end_of_the_openers_context_closes() {
        let mut sharing = Sharing::default();
        sharing.exported(A, 0x10, None, 99);
        sharing.opened(B, 0x20, Some(99));
        sharing.opened(B, 0x20, Some(99));
        sharing.ended(A, BootTime(3));
        sharing.settle_holder(B, |_| true);
        assert_eq!(sharing.kept().count(), 1);
        sharing.settle_holder(B, |_| false);
        assert_eq!(sharing.kept().count(), 0);
    }

    #[test]
    fn an_address_used_again_is_another_allocation() {
        let mut sharing = Sharing::default();
        sharing.exported(A, 0x10, Some((64, BootTime(1))), 99);
        sharing.opened(B, 0x20, Some(99));
        sharing.settle(A, BootTime(5), false, |_| Some(BootTime(4)));
        assert_eq!(sharing.kept().count(), 1);
    }
}
