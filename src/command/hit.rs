//! RL.HIT key limit window [FIXED] [COST cost] [MS]

use std::ffi::CStr;

use redis_module::Context;

use super::args::Call;
use super::Handler;
use crate::api::{self, Argument};
use crate::errors::Error;
use crate::key::LimiterKey;
use crate::{limiter, reply};

pub(crate) struct Hit;

impl Handler for Hit {
    const NAME: &'static CStr = c"rl.hit";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        let now_ms = api::now_ms();
        let call = Call::parse(args, now_ms)?;
        let mut key = LimiterKey::open(ctx, call.key)?;
        let (verdict, change) = limiter::hit(key.stored(), &call.rule, now_ms)?;
        match change {
            Some(change) => key.store(&change, c"incrby")?,
            None => drop(key),
        }
        reply::verdict(ctx, &verdict, call.unit);
        Ok(())
    }
}
