//! States of environments as bytes, and back.
//!
//! ```text
//! magic and version (8), CRC-32 of the rest (4), fingerprint, alive flags, then for each environment its phase and its state
//! ```
//!
//! The checksum finds damage, no more: a program that alters a state can update it. So all that is read is checked, and
//! a state is refused that an environment could not have come to where what it then did would end in a panic, without
//! end or out of bounds.

use std::ops::Range;

use postcard::ser_flavors::Flavor;
use postcard::{serialize_with_flavor, take_from_bytes};
use serde::{Serialize, Serializer};

use super::{Error, Slot, VecEnv};
use crate::env::{Env, Phase};
use crate::memory::ask_for;

/// First bytes of every saved state: the format and its version.
const MAGIC: &[u8; 8] = b"fastrlv2";
const HEADER: usize = MAGIC.len() + 4;

/// Bytes that grow while there is memory.
struct Growing(Vec<u8>);

impl Flavor for Growing {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.try_reserve(bytes.len()).map_err(|_| postcard::Error::SerializeBufferFull)?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Flags of living agents, and phases and states of environments, that were read.
type Read<'a, W> = (&'a [u8], Vec<(Phase, <W as Env>::State)>);

/// Phases and states of environments, where they are.
struct States<'a, W>(&'a [Slot<W>]);

impl<W: Env> Serialize for States<'_, W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|slot| (slot.phase, slot.env.state())))
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::State(format!("this environment state cannot be restored: {why}"))
}

fn take<'a, T: serde::Deserialize<'a>>(bytes: &mut &'a [u8]) -> Result<T, Error> {
    let (value, rest) = take_from_bytes(bytes).map_err(|_| refused("it does not have the form of a state"))?;
    *bytes = rest;
    Ok(value)
}

impl<W: Env> VecEnv<W> {
    /// [`VecEnv::save_part`] of all environments.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        self.save_part(0..self.slots.len())
    }

    /// [`VecEnv::load_part`] of all environments.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.load_part(bytes, 0..self.slots.len())
    }

    /// Everything that the future of the environments `which` depends on, as bytes. Panics if there are no such ones.
    pub fn save_part(&self, which: Range<usize>) -> Result<Vec<u8>, Error> {
        let alive = &self.alive[which.start * self.num_agents..which.end * self.num_agents];
        let all = (self.fingerprint(), alive, States(&self.slots[which]));
        let saved = serialize_with_flavor(&all, Growing(vec![0; HEADER]));
        let mut bytes = saved.map_err(|_| self.too_large("to save the state of"))?;
        let sum = crc32fast::hash(&bytes[HEADER..]);
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes[MAGIC.len()..HEADER].copy_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    /// Restores what was saved of as many environments as `which` in these. On an error nothing has changed. Panics if
    /// there are no such ones.
    pub fn load_part(&mut self, bytes: &[u8], which: Range<usize>) -> Result<(), Error> {
        let (alive, states) = self.read(bytes, &self.slots[which.clone()])?;
        self.alive[which.start * self.num_agents..which.end * self.num_agents].copy_from_slice(alive);
        for (slot, (phase, state)) in self.slots[which].iter_mut().zip(states) {
            slot.phase = phase;
            slot.env.set_state(state);
        }
        Ok(())
    }

    /// Restores what was saved of one environment in all of these, and starts the random streams of `seeds` in them if
    /// there are any. On an error nothing has changed.
    pub fn branch(&mut self, bytes: &[u8], seeds: Option<&[u64]>) -> Result<(), Error> {
        let (alive, states) = self.read(bytes, &self.slots[..1])?;
        ask_for(self.slots.iter().fold(0, |sum: usize, slot| sum.saturating_add(slot.env.memory())))
            .map_err(|_| self.too_large("to restore the state of"))?;
        self.alive.chunks_exact_mut(self.num_agents).for_each(|flags| flags.copy_from_slice(alive));
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let (phase, state) = &states[0];
            slot.phase = *phase;
            slot.env.set_state(state.clone());
            if let Some(seeds) = seeds {
                slot.env.reseed(seeds[i]);
            }
        }
        Ok(())
    }

    /// Reads and checks what was saved of as many environments as there are `slots`.
    fn read<'a>(&self, bytes: &'a [u8], slots: &[Slot<W>]) -> Result<Read<'a, W>, Error> {
        if bytes.len() < HEADER || &bytes[..MAGIC.len()] != MAGIC {
            return Err(refused("it is not a state saved by this version of fastrl"));
        }
        let (sum, mut body) = bytes[MAGIC.len()..].split_at(4);
        if sum != crc32fast::hash(body).to_le_bytes() {
            return Err(refused("it is damaged (its checksum differs)"));
        }
        let (theirs, ours): (&str, _) = (take(&mut body)?, self.fingerprint());
        if theirs != ours {
            return Err(refused(format!("it was saved by {theirs}, this is {ours}")));
        }
        let alive: &[u8] = take(&mut body)?;
        let count: u64 = take(&mut body)?;
        if count != slots.len() as u64 || alive.len() != slots.len() * self.num_agents {
            return Err(refused(format!("it holds {count} environments, here are {}", slots.len())));
        }
        if alive.iter().any(|&flag| flag > 1) {
            return Err(refused("a flag is neither 0 nor 1"));
        }
        let no_memory = |_| self.too_large("to restore the state of");
        ask_for(slots.iter().fold(0, |sum: usize, slot| sum.saturating_add(slot.env.memory()))).map_err(no_memory)?;
        let mut states: Vec<(Phase, W::State)> = Vec::new();
        states.try_reserve_exact(slots.len()).map_err(no_memory)?;
        for (i, slot) in slots.iter().enumerate() {
            // A state is read only as far as the longest one of this environment.
            let own = &body[..body.len().min(slot.env.most_saved())];
            let mut rest = own;
            let (phase, state) = take::<(Phase, W::State)>(&mut rest)?;
            body = &body[own.len() - rest.len()..];
            slot.env.check_state(&state, phase).map_err(|why| refused(format!("in environment {i} {why}")))?;
            states.push((phase, state));
        }
        if !body.is_empty() {
            return Err(refused("more follows its last environment"));
        }
        Ok((alive, states))
    }

    fn too_large(&self, for_what: &str) -> Error {
        Error::Memory(format!("there is not enough memory {for_what} {} environments", self.slots.len()))
    }

    fn fingerprint(&self) -> String {
        format!("{} with autoreset {:?}", self.slots[0].env.fingerprint(), self.autoreset)
    }
}
