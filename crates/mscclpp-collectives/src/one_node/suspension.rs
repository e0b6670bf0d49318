//! The scratch while it is suspended.

use mscclpp::{MemoryChannel, RegisteredMemory, engine::Group};

use crate::{Result, rank::RankState};

use super::engine::OneNode;

impl OneNode {
    /// Gives the scratch back, unless a rank cannot.
    ///
    /// # Safety
    /// The same as of [`Engine::suspend`](crate::rank::Engine::suspend).
    pub(super) unsafe fn suspend_scratch(&self, rank: &RankState) -> Result<()> {
        let group = rank.telling_of_suspension();
        if !group.all(self.scratch.memory().can_suspend())? {
            return Ok(());
        }
        // From here on, the kernels of all ranks are complete: each has promised it.
        // SAFETY: the caller's promise, which all ranks have made.
        group.all_have("suspending the scratch", unsafe { self.give_back() })
    }

    /// # Safety
    /// No kernel of any rank uses the scratch of this one, and no kernel of this one uses any.
    unsafe fn give_back(&self) -> Result<()> {
        // Kernels count in the words in front of the packets. Packets have flags of calls to come, and no call has the flag 0.
        let mut words = vec![0; self.layout.parts.ll16 as usize];
        self.scratch.memory().read(0, &mut words)?;
        *self.words.lock() = Some(words);
        for memory in self.own().chain(self.theirs()) {
            // SAFETY: nothing but kernels uses these memories, and they do not (the caller's promise).
            unsafe { memory.suspend() }.map_err(mscclpp::Error::from)?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.scratch.memory().suspend() }.map_err(Into::into)
    }

    /// Takes the scratch again, if it was given back.
    pub(super) fn resume_scratch(&self, rank: &RankState) -> Result<()> {
        let group = rank.telling_of_suspension();
        // Everybody's memory is there before it is mapped, and mapped before anybody writes.
        group.all_have("resuming the scratch", self.take_again())?;
        group.all_have("resuming the scratch", self.theirs().try_for_each(resumed))?;
        *self.words.lock() = None;
        Ok(())
    }

    fn take_again(&self) -> Result<()> {
        self.scratch.memory().resume()?;
        if let Some(words) = &*self.words.lock() {
            self.scratch.memory().write(0, words)?;
        }
        self.own().try_for_each(resumed)
    }

    /// The scratch of this rank, if it is shared.
    fn own(&self) -> impl Iterator<Item = &RegisteredMemory> {
        self.scratch.channels().iter().take(1).map(MemoryChannel::src)
    }

    /// The scratch of the other ranks.
    fn theirs(&self) -> impl Iterator<Item = &RegisteredMemory> {
        self.scratch.channels().iter().map(MemoryChannel::dst)
    }
}

fn resumed(memory: &RegisteredMemory) -> Result<()> {
    memory.resume().map_err(|error| mscclpp::Error::from(error).into())
}

impl RankState {
    fn telling_of_suspension(&self) -> Group {
        self.group.telling(crate::rank::purpose::SUSPEND, 0)
    }
}
