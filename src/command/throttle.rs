//! CL.THROTTLE key max_burst count period [quantity]
//!
//! The command of redis-cell, with its reply and what it stores.

use std::ffi::CStr;

use redis_module::Context;

use super::args::ThrottleCall;
use super::{one, Handler};
use crate::api::{self, Argument};
use crate::errors::Error;
use crate::limiter::Action;
use crate::reply;

pub(crate) struct Throttle;

impl Handler for Throttle {
    const NAME: &'static CStr = c"cl.throttle";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        let now_us = api::now_us();
        let call = ThrottleCall::parse(args, now_us)?;
        let action = match call.rule.quantity {
            0 => Action::Peek,
            _ => Action::Hit,
        };
        one::act(
            ctx,
            call.key,
            action,
            |stored| call.rule.decide(stored, now_us),
            |allowed| call.rule.unstored(allowed),
            |verdict| reply::throttled(ctx, verdict),
        )
    }
}
