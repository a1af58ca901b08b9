//! RL.AUDIT cursor [MATCH pattern] [COUNT count]

use std::ffi::CStr;

use redis_module::Context;

use super::args::AuditCall;
use super::Handler;
use crate::api::{self, Argument, Caller};
use crate::errors::Error;
use crate::key::LeakedKey;
use crate::reply;

pub(crate) struct Audit;

impl Handler for Audit {
    const NAME: &'static CStr = c"rl.audit";

    fn run(ctx: &Context, args: &[Argument]) -> Result<(), Error> {
        let call = AuditCall::parse(args)?;
        let page = api::scan(ctx, call.cursor, call.pattern, call.count).ok_or(Error::NoScan)?;
        let caller = Caller::of(ctx);
        let mut found = Vec::new();
        for name in page.names.iter().filter(|name| caller.may_read(name)) {
            found.extend(LeakedKey::find(ctx, name)?);
        }
        reply::leaked(ctx, &page.cursor, &found);
        Ok(())
    }
}
