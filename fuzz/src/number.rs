//! Numbers as they are worth trying: small ones, where much happens, and those at the edges.

use arbitrary::{Arbitrary, Result, Unstructured};

/// Any integer of 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(pub(crate) i64);

impl<'a> Arbitrary<'a> for Number {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let kind: u8 = u.arbitrary()?;
        Ok(Self(match kind % 16 {
            0..=4 => i64::from(u.arbitrary::<u8>()? % 12),
            5..=7 => i64::from(u.arbitrary::<u8>()?),
            8..=9 => i64::from(u.arbitrary::<u16>()?),
            10..=11 => i64::from(u.arbitrary::<u32>()?),
            12 => 10_i64.pow(u32::from(u.arbitrary::<u8>()? % 19)),
            // A power of two and its neighbours, the largest number there is among them.
            13..=14 => {
                let power = i64::MAX >> (u.arbitrary::<u8>()? % 63);
                power.saturating_add(u.arbitrary::<i8>()?.into())
            }
            _ => u.arbitrary()?,
        }))
    }
}

/// A time: mostly one of these years.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(pub(crate) i64);

impl<'a> Arbitrary<'a> for Moment {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let kind: u8 = u.arbitrary()?;
        Ok(Self(match kind % 8 {
            0..=5 => 1_796_000_000_000 + i64::from(u.arbitrary::<u8>()?),
            6 => u.arbitrary::<Number>()?.0,
            _ => i64::MAX.saturating_sub(u.arbitrary::<Number>()?.0),
        }))
    }
}

/// A time in microseconds: mostly one of these years; those around which nanoseconds end in 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MomentUs(pub(crate) i64);

impl<'a> Arbitrary<'a> for MomentUs {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let kind: u8 = u.arbitrary()?;
        let last_us = (u64::MAX / 1_000) as i64;
        Ok(Self(match kind % 8 {
            0..=5 => 1_796_000_000_000_000 + i64::from(u.arbitrary::<u16>()?),
            6 => u.arbitrary::<Number>()?.0,
            _ => last_us.saturating_sub(u.arbitrary::<Number>()?.0),
        }))
    }
}
