//! Blue's observations and action masks, as the challenge's wrapper gives them with padded spaces.

use super::blue::{BlueAction, num_actions};
use super::network::Network;
use super::scenario::{BLUE_ZONES, BY_NAME, FORBIDDEN, NUM_BLUE, NUM_SUBNETS, SUBNET_SLOTS, Subnet, Subnets, WATCHED};
use super::world::World;
use crate::widest::widest;

/// Bits of a message.
pub const MESSAGE_BITS: usize = 8;
/// Bits of the others' messages.
const OTHERS_BITS: usize = (NUM_BLUE - 1) * MESSAGE_BITS;
/// Values of a subnet.
const SUBNET_VALUES: usize = 3 * NUM_SUBNETS + 2 * WATCHED;
/// Length of the observation of the agent with three subnets: the width of every agent's, filled up with zeros.
pub const OBS_LEN: usize = obs_len(NUM_BLUE - 1);

/// Length of an agent's observation without zeros at its end.
pub const fn obs_len(agent: usize) -> usize {
    1 + BLUE_ZONES[agent].len() * SUBNET_VALUES + OTHERS_BITS
}

/// Sets of subnets in the order of their names.
const SETS_BY_NAME: [Subnets; 1 << NUM_SUBNETS] = {
    let mut sets = [0; 1 << NUM_SUBNETS];
    let mut set = 0;
    while set < sets.len() {
        let mut place = 0;
        while place < NUM_SUBNETS {
            sets[set] |= ((set >> BY_NAME[place] & 1) as Subnets) << place;
            place += 1;
        }
        set += 1;
    }
    sets
};

/// The values of a subnet as bits.
fn subnet_bits(subnet: Subnet, phase: usize, world: &World) -> u64 {
    let parts = [
        (u64::from(SETS_BY_NAME[1 << subnet]), NUM_SUBNETS),
        (u64::from(SETS_BY_NAME[usize::from(world.blocks[subnet]) % SETS_BY_NAME.len()]), NUM_SUBNETS),
        (u64::from(FORBIDDEN[phase][subnet]), NUM_SUBNETS),
        // The router's alerts are not shown.
        (u64::from(world.watch.process_alerts[subnet] as u16), WATCHED),
        (u64::from(world.watch.connection_alerts[subnet] as u16), WATCHED),
    ];
    parts.iter().rev().fold(0, |bits, (part, len)| bits << len | part)
}

/// Writes the lowest bits as numbers.
#[inline(always)]
fn write_bits<const LEN: usize>(bits: u64, out: &mut [f32]) {
    let out: &mut [f32; LEN] = out.try_into().expect("the caller cuts it");
    let halves = [bits as u32, (bits >> 32) as u32];
    for (half, out) in halves.into_iter().zip(out.chunks_mut(32)) {
        out.iter_mut().enumerate().for_each(|(i, value)| *value = (half >> i & 1) as f32);
    }
}

widest! {
    /// Writes the observations of all agents. `messages` are those that they sent, the first bit highest.
    pub(super) fn write(phase: usize, world: &World, messages: &[u8; NUM_BLUE], out: &mut [f32]) {
        let all = messages.iter().rev().fold(0u64, |all, message| all << MESSAGE_BITS | u64::from(message.reverse_bits()));
        for (agent, out) in out.chunks_exact_mut(OBS_LEN).enumerate() {
            out[0] = phase as f32;
            let mut left = &mut out[1..];
            for &subnet in BLUE_ZONES[agent] {
                let (own, rest) = left.split_at_mut(SUBNET_VALUES);
                write_bits::<SUBNET_VALUES>(subnet_bits(subnet, phase, world), own);
                left = rest;
            }
            let (others, rest) = left.split_at_mut(OTHERS_BITS);
            let before = all & ((1 << (agent * MESSAGE_BITS)) - 1);
            let after = all >> ((agent + 1) * MESSAGE_BITS) << (agent * MESSAGE_BITS);
            write_bits::<OTHERS_BITS>(before | after, others);
            rest.fill(0.0);
        }
    }
}

/// Writes the action mask of an agent: 0 for actions on hosts that do not exist, and beyond the agent's last.
pub(super) fn write_mask(agent: usize, network: &Network, out: &mut [u8]) {
    let (allowed, beyond) = out.split_at_mut(num_actions(agent));
    allowed.fill(1);
    beyond.fill(0);
    let zone = BLUE_ZONES[agent].iter().flat_map(|&subnet| subnet * SUBNET_SLOTS + 1..(subnet + 1) * SUBNET_SLOTS);
    for host in zone.filter(|&slot| !network.exists(slot)).map(|slot| slot as u8) {
        for action in [BlueAction::Analyse, BlueAction::Remove, BlueAction::Restore, BlueAction::DeployDecoy] {
            allowed[action(host).index(agent)] = 0;
        }
    }
}
