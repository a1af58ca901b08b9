//! RL.REPAIR cursor pattern window [COUNT count] [MS]

use std::ffi::CStr;

use redis_module::Context;

use super::args::RepairCall;
use super::Handler;
use crate::api::{self, Argument, Caller};
use crate::errors::Error;
use crate::key::{Events, LeakedKey};
use crate::{reply, stats};

pub(crate) struct Repair;

impl Handler for Repair {
    const NAME: &'static CStr = c"rl.repair";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        let call = RepairCall::parse(args, api::now_ms())?;
        let page = api::scan(ctx, call.cursor, call.pattern, call.count).ok_or(Error::NoScan)?;
        let caller = Caller::of(ctx);
        let mut events = Vec::new();
        for name in page.names.iter().filter(|name| caller.may_write(name)) {
            if let Some(leaked) = LeakedKey::find(ctx, name)? {
                events.push(leaked.repair(call.end_ms)?);
            }
        }
        let repaired = events.len();
        stats::LIMITERS_REPAIRED_BY_REPAIR.add(repaired as u64);
        events.into_iter().for_each(Events::send);
        reply::repaired(ctx, &page.cursor, repaired);
        Ok(())
    }
}
