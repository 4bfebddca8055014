//! Blue's observations and action masks, as the challenge's wrapper gives them with padded spaces.

use super::blue::{BlueAction, NUM_ACTIONS};
use super::network::Network;
use super::scenario::{BLUE_ZONES, BY_NAME, FORBIDDEN, NUM_BLUE, NUM_SUBNETS, Subnets, WATCHED};
use super::world::World;

/// Bits of a message.
pub const MESSAGE_BITS: usize = 8;
/// Values of a subnet.
const SUBNET_VALUES: usize = 3 * NUM_SUBNETS + 2 * WATCHED;
/// Length of the observation of the agent with three subnets: the width of every agent's, filled up with zeros.
pub const OBS_LEN: usize = obs_len(NUM_BLUE - 1);

/// Length of an agent's observation without zeros at its end.
pub const fn obs_len(agent: usize) -> usize {
    1 + BLUE_ZONES[agent].len() * SUBNET_VALUES + (NUM_BLUE - 1) * MESSAGE_BITS
}

/// Writes the lowest bits as numbers.
fn write_bits(bits: u32, out: &mut [f32]) {
    for (i, value) in out.iter_mut().enumerate() {
        *value = (bits >> i & 1) as f32;
    }
}

/// A set of subnets in the order of their names.
fn by_name(subnets: Subnets) -> u32 {
    if subnets == 0 {
        return 0;
    }
    BY_NAME.iter().enumerate().fold(0, |bits, (i, subnet)| bits | u32::from(subnets >> subnet & 1) << i)
}

/// Writes the observation of an agent. `messages` are those that all agents sent, the first bit highest.
pub(super) fn write(agent: usize, phase: usize, world: &World, messages: [u8; NUM_BLUE], out: &mut [f32]) {
    let (used, rest) = out.split_at_mut(obs_len(agent));
    rest.fill(0.0);
    let (first, mut left) = used.split_at_mut(1);
    first[0] = phase as f32;
    let mut next = |bits: u32, len: usize| {
        let (place, rest) = std::mem::take(&mut left).split_at_mut(len);
        write_bits(bits, place);
        left = rest;
    };
    for &subnet in BLUE_ZONES[agent] {
        next(by_name(1 << subnet), NUM_SUBNETS);
        next(by_name(world.blocks[subnet]), NUM_SUBNETS);
        next(FORBIDDEN[phase][subnet].into(), NUM_SUBNETS);
        next(world.watch.process_alerts[subnet], WATCHED);
        next(world.watch.connection_alerts[subnet], WATCHED);
    }
    for (_, message) in messages.iter().enumerate().filter(|(sender, _)| *sender != agent) {
        next(message.reverse_bits().into(), MESSAGE_BITS);
    }
}

/// Reads the blocks (a set of subnets), process alerts and connection alerts (a bit each for servers, then users) of the
/// subnet at a place of the agent's zone from its observation.
pub(super) fn read_subnet(obs: &[f32], place: usize) -> [u32; 3] {
    let values = &obs[1 + place * SUBNET_VALUES..][..SUBNET_VALUES];
    let bits = |values: &[f32]| values.iter().rev().fold(0, |bits, &value| bits << 1 | u32::from(value != 0.0));
    let (by_name, alerts) = values.split_at(3 * NUM_SUBNETS);
    let blocks = by_name[NUM_SUBNETS..2 * NUM_SUBNETS].iter().zip(BY_NAME);
    let blocks = blocks.fold(0, |bits, (&value, subnet)| bits | u32::from(value != 0.0) << subnet);
    [blocks, bits(&alerts[..WATCHED]), bits(&alerts[WATCHED..])]
}

/// Writes the action mask of an agent: 0 for actions on hosts that do not exist, and beyond the agent's last.
pub(super) fn write_mask(agent: usize, network: &Network, out: &mut [u8]) {
    let len = super::blue::num_actions(agent);
    for (index, flag) in out.iter_mut().enumerate().take(NUM_ACTIONS) {
        *flag = u8::from(index < len && BlueAction::from_index(agent, index).is_valid(network));
    }
}
