//! The server's module API made safe: the only file with unsafe code.
//!
//! One safe function or method per call, each unsafe block with the reason why it is sound. What
//! they mean for a limiter is decided elsewhere. The crate's own wrappers are used where they cost
//! nothing; this file has what they lack: arguments without a Vec, a key with an absolute expiry,
//! values edited in place, replication without a lookup of every word, docs, categories, options.

#![allow(unsafe_code)]

use std::ffi::{c_int, CStr, CString};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::{raw, Context, KeyMode, NotifyEvent, Status};

use crate::command::{self, Handler};
use crate::docs::{Argument as DocsArgument, Kind};

/// Calls one function of the module API.
///
/// The server fills in these pointers before it runs anything of the module; one that it lacks is
/// null, and calling it is a panic, which the guard turns into an error reply. Functions that
/// some supported server lacks are not called this way.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match raw::$function {
            Some(function) => function($($argument),*),
            None => missing(stringify!($function)),
        }
    };
}

#[cold]
#[allow(clippy::panic)] // the guard catches it
fn missing(function: &str) -> ! {
    std::panic::panic_any(format!("this server has no {function}"))
}

/// The entry point of a command: what the server calls.
///
/// # Safety
///
/// For the server alone, which passes a context and `argc` strings, all alive for the call.
pub(crate) unsafe extern "C" fn entry<H: Handler>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let length = usize::try_from(argc).unwrap_or(0);
    // SAFETY: the server passes `argc` pointers that it keeps until the handler returns, and
    // `Argument` has the layout of one.
    let args = unsafe { slice::from_raw_parts(argv.cast::<Argument>(), length) };
    command::answer::<H>(&Context::new(ctx), args);
    // The reply says what happened; the server ignores what a command returns.
    Status::Ok as c_int
}

/// The signature of [`entry`].
pub(crate) type Entry = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// One argument of a call: bytes that the server owns.
#[repr(transparent)]
pub(crate) struct Argument(NonNull<raw::RedisModuleString>);

impl Argument {
    pub(crate) fn bytes(&self) -> &[u8] {
        let mut length = 0;
        let bytes = raw::string_ptr_len(self.0.as_ptr(), &mut length);
        // SAFETY: the server answers with the string's own bytes, which stay while the string does.
        unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) }
    }

    /// The argument as an integer, read as strictly as INCR reads its value.
    pub(crate) fn integer(&self) -> Option<i64> {
        let mut value = 0;
        // SAFETY: both pointers are good for the call.
        let status = unsafe { call!(RedisModule_StringToLongLong(self.0.as_ptr(), &mut value)) };
        (status == Status::Ok as c_int).then_some(value)
    }
}

/// The server's clock: milliseconds of Unix time, by the time at which this call or, inside MULTI
/// and scripts, the outermost one began, where the server tells (7.2 and later).
pub(crate) fn now_ms() -> i64 {
    // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
    match unsafe { raw::RedisModule_CachedMicroseconds } {
        // SAFETY: the function takes nothing and reads a variable of the server.
        Some(cached_microseconds) => (unsafe { cached_microseconds() }) / 1_000,
        // SAFETY: the function takes nothing and reads the clock.
        None => unsafe { call!(RedisModule_Milliseconds()) },
    }
}

/// An open key, closed when it goes out of scope.
pub(crate) struct Key<'a> {
    raw: NonNull<raw::RedisModuleKey>,
    held: Held,
    /// The bytes of the value, where they were last seen.
    bytes: Option<(NonNull<u8>, usize)>,
    call: PhantomData<&'a Context>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    String,
    Other,
}

impl<'a> Key<'a> {
    /// Opens the key for reading and writing. An expired key is deleted by the server first.
    pub(crate) fn open(ctx: &'a Context, name: &'a Argument) -> Option<Self> {
        let key = raw::open_key(ctx.ctx, name.0.as_ptr(), KeyMode::READ | KeyMode::WRITE);
        let raw = NonNull::new(key)?;
        // SAFETY: the key is open.
        let held = match unsafe { call!(RedisModule_KeyType(raw.as_ptr())) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Held::Nothing,
            raw::REDISMODULE_KEYTYPE_STRING => Held::String,
            _ => Held::Other,
        };
        Some(Self {
            raw,
            held,
            bytes: None,
            call: PhantomData,
        })
    }

    pub(crate) fn held(&self) -> Held {
        self.held
    }

    /// The bytes of a string, in place. `None` if the key holds no string.
    ///
    /// The server turns a value that it keeps as an integer into one that it keeps as bytes.
    pub(crate) fn bytes(&mut self) -> Option<&[u8]> {
        // For a missing key the server answers with bytes of its own, which no one may write to.
        if self.held != Held::String {
            return None;
        }
        let mut length = 0;
        let bytes = raw::string_dma(self.raw.as_ptr(), &mut length, KeyMode::WRITE);
        let bytes = NonNull::new(bytes.cast::<u8>())?;
        self.bytes = Some((bytes, length));
        // SAFETY: the server answers with the `length` bytes of the value. They stay until the
        // value is changed, which takes this key mutably and so ends the borrow.
        Some(unsafe { slice::from_raw_parts(bytes.as_ptr(), length) })
    }

    /// The key's expiry, in milliseconds of Unix time. `None` if it has none.
    pub(crate) fn end_ms(&self) -> Option<i64> {
        // SAFETY: the key is open.
        let end_ms = unsafe { call!(RedisModule_GetAbsExpire(self.raw.as_ptr())) };
        (end_ms != i64::from(raw::REDISMODULE_NO_EXPIRE)).then_some(end_ms)
    }

    /// Writes the value in place, and makes the key if it is missing. Its expiry stays. `text` is
    /// not empty. False, with nothing changed, if the server refuses.
    #[must_use]
    pub(crate) fn write(&mut self, text: &[u8]) -> bool {
        let target = match self.bytes {
            Some((bytes, length)) if length == text.len() => bytes,
            _ => {
                let resized = raw::string_truncate(self.raw.as_ptr(), text.len());
                if resized != Status::Ok {
                    return false;
                }
                self.held = Held::String;
                let _ = self.bytes();
                match self.bytes {
                    Some((bytes, length)) if length == text.len() => bytes,
                    _ => return false,
                }
            }
        };
        // SAFETY: the value was opened for writing and has exactly this many bytes; `text` is not
        // part of it, for it would be borrowed from this key, which is taken mutably.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), target.as_ptr(), text.len()) };
        true
    }

    /// Sets the expiry, in milliseconds of Unix time. False, with nothing changed, if the server
    /// refuses: a key that is missing, or a negative time.
    #[must_use]
    pub(crate) fn set_end_ms(&mut self, end_ms: i64) -> bool {
        // Some servers move the value when its expiry changes.
        self.bytes = None;
        // SAFETY: the key is open for writing.
        let status = unsafe { call!(RedisModule_SetAbsExpire(self.raw.as_ptr(), end_ms)) };
        status == Status::Ok as c_int
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        raw::close_key(self.raw.as_ptr());
    }
}

/// Hands `SET key text PXAT end_ms` to the replicas and the AOF. It counts as one change.
pub(crate) fn replicate_set(ctx: &Context, key: &Argument, text: &[u8], end_ms: &[u8]) -> bool {
    // SAFETY: the format names a string, a buffer with its length, a string and a buffer with its
    // length, and so do the arguments; the server copies what it keeps, and counts a reference to `PXAT`,
    // which `load` made and which stays until `unload`.
    let status = unsafe {
        call!(RedisModule_Replicate(
            ctx.ctx,
            c"SET".as_ptr(),
            c"sbsb".as_ptr(),
            key.0.as_ptr(),
            text.as_ptr(),
            text.len(),
            PXAT.load(Ordering::Relaxed),
            end_ms.as_ptr(),
            end_ms.len(),
        ))
    };
    status == Status::Ok as c_int
}

/// The word PXAT, made once: the server would copy it for every hit.
static PXAT: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(ptr::null_mut());

/// Makes what the calls above keep between them.
pub(crate) fn keep_words() {
    let word = c"PXAT";
    // SAFETY: the server copies the bytes; a string without a context belongs to the module.
    let kept = unsafe {
        call!(RedisModule_CreateString(
            ptr::null_mut(),
            word.as_ptr(),
            word.count_bytes()
        ))
    };
    PXAT.store(kept, Ordering::Relaxed);
}

/// Gives back what [`keep_words`] made; no command may run after it.
pub(crate) fn free_words() {
    let kept = PXAT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !kept.is_null() {
        // SAFETY: `keep_words` made it, and it is given back once.
        unsafe { call!(RedisModule_FreeString(ptr::null_mut(), kept)) };
    }
}

/// Tells WATCH and client-side caches that the key changed.
pub(crate) fn signal_modified(ctx: &Context, key: &Argument) {
    // SAFETY: the context and the string are alive.
    unsafe { call!(RedisModule_SignalModifiedKey(ctx.ctx, key.0.as_ptr())) };
}

/// Sends a keyspace event. Other modules may run inside it: no key may be open.
pub(crate) fn notify(ctx: &Context, class: NotifyEvent, event: &CStr, key: &Argument) {
    // SAFETY: the context, the name and the string are alive.
    unsafe {
        call!(RedisModule_NotifyKeyspaceEvent(
            ctx.ctx,
            class.bits(),
            event.as_ptr(),
            key.0.as_ptr(),
        ))
    };
}

/// Writes a line to the server's log, at its level `warning`.
pub(crate) fn log_warning(message: &str) {
    let message = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
    // SAFETY: the format takes one string. (The crate's log functions use the message itself as
    // the format: a % in a key or in a user's name would read memory that isn't there.)
    unsafe {
        call!(RedisModule_Log(
            ptr::null_mut(),
            c"warning".as_ptr(),
            c"rl: %s".as_ptr(),
            message.as_ptr(),
        ))
    };
}

/// Tells the server how the module behaves.
pub(crate) fn set_options(ctx: &Context) {
    /// Valkey 9: slots may move to another node as they are, with what the module keeps in them.
    const ATOMIC_SLOT_MIGRATION_HANDLED: c_int = 1 << 5;

    // A key opened for writing and left alone is no change; what is changed is signalled here. And
    // nothing is kept beside the keys, so a replica may load another data set while it serves.
    let mut options = (raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD) as c_int;
    // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
    if let Some(known_options) = unsafe { raw::RedisModule_GetModuleOptionsAll } {
        // SAFETY: the function takes nothing and answers with the bits that the server knows.
        options |= unsafe { known_options() } & ATOMIC_SLOT_MIGRATION_HANDLED;
    }
    // SAFETY: the context is alive.
    unsafe { call!(RedisModule_SetModuleOptions(ctx.ctx, options)) };
}

/// Adds an ACL category of the module's own. False where the server knows no such thing.
pub(crate) fn add_acl_category(ctx: &Context, name: &CStr) -> bool {
    // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
    match unsafe { raw::RedisModule_AddACLCategory } {
        // SAFETY: the context and the name are alive; the server copies the name.
        Some(add) => (unsafe { add(ctx.ctx, name.as_ptr()) }) == Status::Ok as c_int,
        None => false,
    }
}

/// A command that the server knows.
pub(crate) struct Registered(*mut raw::RedisModuleCommand);

/// Registers a command whose only key is its first argument. `None` if the server refuses.
pub(crate) fn create_command(
    ctx: &Context,
    name: &CStr,
    entry: Entry,
    flags: &CStr,
) -> Option<Registered> {
    // SAFETY: the server copies the names; the entry point stays as long as the module is loaded.
    let status = unsafe {
        call!(RedisModule_CreateCommand(
            ctx.ctx,
            name.as_ptr(),
            Some(entry),
            flags.as_ptr(),
            1,
            1,
            1,
        ))
    };
    if status != Status::Ok as c_int {
        return None;
    }
    // SAFETY: the context and the name are alive.
    let command = unsafe { call!(RedisModule_GetCommand(ctx.ctx, name.as_ptr())) };
    (!command.is_null()).then_some(Registered(command))
}

impl Registered {
    /// Puts the command into ACL categories, separated by blanks. False where the server can't.
    pub(crate) fn set_acl_categories(&self, categories: &str) -> bool {
        let Ok(categories) = CString::new(categories) else {
            return false;
        };
        // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
        match unsafe { raw::RedisModule_SetCommandACLCategories } {
            // SAFETY: the command is registered, the string alive.
            Some(set) => (unsafe { set(self.0, categories.as_ptr()) }) == Status::Ok as c_int,
            None => false,
        }
    }

    /// Gives the command its arity and what COMMAND DOCS says. False if the server refuses.
    pub(crate) fn set_docs(&self, docs: &crate::docs::Docs) -> bool {
        let version = raw::RedisModuleCommandInfoVersion {
            version: 1,
            sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
            sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
            sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
        };
        let mut key_specs = [first_argument_is_the_key(), zeroed()];
        let mut arguments = RawArguments::new(docs.arguments);
        let info = raw::RedisModuleCommandInfo {
            version: &version,
            summary: docs.summary.as_ptr(),
            complexity: docs.complexity.as_ptr(),
            since: docs.since.as_ptr(),
            history: ptr::null_mut(),
            tips: ptr::null(),
            arity: docs.arity,
            key_specs: key_specs.as_mut_ptr(),
            args: arguments.0.as_mut_ptr(),
        };
        // SAFETY: the command is registered; all that `info` points to is alive, each list ends
        // with an entry of zeros, and the server copies what it keeps.
        let status = unsafe { call!(RedisModule_SetCommandInfo(self.0, &info)) };
        status == Status::Ok as c_int
    }
}

/// A key spec of a command that reads and updates the key in its first argument.
fn first_argument_is_the_key() -> raw::RedisModuleCommandKeySpec {
    let mut spec: raw::RedisModuleCommandKeySpec = zeroed();
    spec.flags = u64::from(
        raw::REDISMODULE_CMD_KEY_RW
            | raw::REDISMODULE_CMD_KEY_ACCESS
            | raw::REDISMODULE_CMD_KEY_UPDATE,
    );
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range.lastkey = 0;
    spec.fk.range.keystep = 1;
    spec.fk.range.limit = 0;
    spec
}

/// The arguments of a command as the server takes them: a list that ends with an entry of zeros.
struct RawArguments(Vec<raw::RedisModuleCommandArg>);

impl RawArguments {
    fn new(arguments: &[DocsArgument]) -> Self {
        let listed = arguments.iter().map(|argument| {
            let mut listed: raw::RedisModuleCommandArg = zeroed();
            listed.name = argument.name.as_ptr();
            listed.key_spec_index = -1;
            match argument.kind {
                Kind::Key => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
                    listed.key_spec_index = 0;
                }
                Kind::Integer => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER;
                }
                Kind::Word => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
                }
            }
            if let Some(word) = argument.word {
                listed.token = word.as_ptr();
                listed.flags = raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
            }
            listed
        });
        Self(listed.chain([zeroed()]).collect())
    }
}

/// A plain structure of the server's header, all zeros.
fn zeroed<T: ZeroIsValid>() -> T {
    // SAFETY: only types are marked for which zeros are a value.
    unsafe { std::mem::zeroed() }
}

/// # Safety
///
/// For types of which a value may be all zeros.
unsafe trait ZeroIsValid {}
// SAFETY: integers and nullable pointers.
unsafe impl ZeroIsValid for raw::RedisModuleCommandArg {}
// SAFETY: integers, nullable pointers, and unions of such.
unsafe impl ZeroIsValid for raw::RedisModuleCommandKeySpec {}

#[cfg(feature = "deliberate-panic")]
pub(crate) fn panic_on_flush(ctx: &Context) {
    unsafe extern "C" fn on_flush(
        _: *mut raw::RedisModuleCtx,
        _: raw::RedisModuleEvent,
        _: u64,
        _: *mut std::ffi::c_void,
    ) {
        command::guard(|| command::panic::on_purpose("an event"));
    }
    let event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_FLUSHDB,
        dataver: 1,
    };
    raw::subscribe_to_server_event(ctx.ctx, event, Some(on_flush));
}
