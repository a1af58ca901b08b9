//! The server's module API made safe: the only file with unsafe code.
//!
//! One safe function or method per call, each unsafe block with the reason why it is sound. What
//! they mean for a limiter is decided elsewhere. The crate's own wrappers are used where they cost
//! nothing; this file has what they lack: arguments without a Vec, a key with an absolute expiry,
//! values edited in place, replication without a lookup of every word, docs, categories, options.

#![allow(unsafe_code)]

use std::ffi::{c_int, CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::{raw, Context, KeyMode, NotifyEvent, Status};

use crate::command::{self, Handler};
use crate::docs::{self, Docs, Keys, Kind};
use crate::lifecycle;

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

/// The entry point of the module, when it is loaded.
///
/// # Safety
///
/// For the server alone, which passes a context and `argc` strings, all alive for the call.
#[no_mangle]
pub(crate) unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // It fills in the pointers to the module API, and the allocator's among them: before it,
    // nothing may be allocated.
    // SAFETY: the context is the server's, and it copies the name.
    let status = unsafe {
        raw::Export_RedisModule_Init(
            ctx,
            lifecycle::NAME.as_ptr(),
            lifecycle::VERSION,
            raw::REDISMODULE_APIVER_1 as c_int,
        )
    };
    if status != Status::Ok as c_int {
        return status;
    }
    // SAFETY: as the caller says.
    let arguments = unsafe { arguments(argv, argc) };
    lifecycle::load(&Context::new(ctx), arguments) as c_int
}

/// The entry point of the module, when it is to be unloaded.
///
/// # Safety
///
/// For the server alone, which passes a context that is alive for the call.
#[no_mangle]
pub(crate) unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    lifecycle::unload(&Context::new(ctx)) as c_int
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
    // SAFETY: as the caller says.
    let arguments = unsafe { arguments(argv, argc) };
    command::answer::<H>(&Context::new(ctx), arguments);
    // The reply says what happened; the server ignores what a command returns.
    Status::Ok as c_int
}

/// The signature of [`entry`].
pub(crate) type Entry = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// # Safety
///
/// `argv` points to `argc` strings that outlive `'a`, or is null.
unsafe fn arguments<'a>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> &'a [Argument] {
    if argv.is_null() {
        return &[];
    }
    let length = usize::try_from(argc).unwrap_or(0);
    // SAFETY: as the caller says; an `Argument` has the layout of a pointer that is not null.
    unsafe { slice::from_raw_parts(argv.cast::<Argument>(), length) }
}

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

    /// Whether it is the option word, which is in upper case here; case doesn't matter.
    pub(crate) fn is(&self, word: &[u8]) -> bool {
        self.bytes().eq_ignore_ascii_case(word)
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
///
/// No pointer into the value is kept: other calls can move it.
pub(crate) struct Key<'a> {
    /// The server has no handle for a missing key that is opened for reading.
    raw: Option<NonNull<raw::RedisModuleKey>>,
    mode: Mode,
    held: Held,
    call: PhantomData<&'a Context>,
}

/// What a key is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    /// An expired key is deleted by the server first.
    ReadAndWrite,
}

impl Mode {
    fn bits(self) -> KeyMode {
        match self {
            Self::Read => KeyMode::READ,
            Self::ReadAndWrite => KeyMode::READ | KeyMode::WRITE,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    String,
    Other,
}

impl<'a> Key<'a> {
    /// `None` if the server refuses, for which it has no reason.
    pub(crate) fn open(ctx: &'a Context, name: &'a Argument, mode: Mode) -> Option<Self> {
        let raw = NonNull::new(raw::open_key(ctx.ctx, name.0.as_ptr(), mode.bits()));
        if raw.is_none() && mode == Mode::ReadAndWrite {
            return None;
        }
        let held = match raw {
            None => Held::Nothing,
            // SAFETY: the key is open.
            Some(raw) => match unsafe { call!(RedisModule_KeyType(raw.as_ptr())) } as isize {
                raw::REDISMODULE_KEYTYPE_EMPTY => Held::Nothing,
                raw::REDISMODULE_KEYTYPE_STRING => Held::String,
                _ => Held::Other,
            },
        };
        Some(Self {
            raw,
            mode,
            held,
            call: PhantomData,
        })
    }

    pub(crate) fn held(&self) -> Held {
        self.held
    }

    /// Where the bytes of a string are, and how many. `None` if the key holds no string.
    ///
    /// The server turns a value that it keeps as an integer into one that it keeps as bytes.
    fn place(&mut self) -> Option<(NonNull<u8>, usize)> {
        // For a missing key the server answers with bytes of its own, which no one may write to.
        if self.held != Held::String {
            return None;
        }
        let mode = match self.mode {
            Mode::Read => KeyMode::READ,
            Mode::ReadAndWrite => KeyMode::WRITE,
        };
        let mut length = 0;
        let bytes = raw::string_dma(self.raw?.as_ptr(), &mut length, mode);
        Some((NonNull::new(bytes.cast::<u8>())?, length))
    }

    /// Copies the value, or as much of it as there is room for. `None` if the key holds no string.
    pub(crate) fn read<'b>(&mut self, room: &'b mut [u8]) -> Option<&'b [u8]> {
        let (bytes, length) = self.place()?;
        let room = room.get_mut(..length.min(room.len()))?;
        // SAFETY: the value has at least as many bytes as `room` now, and is not `room`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), room.as_mut_ptr(), room.len()) };
        Some(room)
    }

    /// The key's expiry, in milliseconds of Unix time. `None` if it has none.
    pub(crate) fn end_ms(&self) -> Option<i64> {
        // SAFETY: the key is open.
        let end_ms = unsafe { call!(RedisModule_GetAbsExpire(self.raw?.as_ptr())) };
        (end_ms != i64::from(raw::REDISMODULE_NO_EXPIRE)).then_some(end_ms)
    }

    /// The handle of a key that may be written to.
    fn writable(&self) -> Option<NonNull<raw::RedisModuleKey>> {
        self.raw.filter(|_| self.mode == Mode::ReadAndWrite)
    }

    /// Writes the value in place, and makes the key if it is missing. Its expiry stays. `text` is
    /// not empty. False if the server refuses.
    #[must_use]
    pub(crate) fn write(&mut self, text: &[u8]) -> bool {
        let Some(raw) = self.writable() else {
            return false;
        };
        let mut place = self.place();
        if place.is_none_or(|(_, length)| length != text.len()) {
            if raw::string_truncate(raw.as_ptr(), text.len()) != Status::Ok {
                return false;
            }
            self.held = Held::String;
            place = self.place();
        }
        let Some((bytes, _)) = place.filter(|(_, length)| *length == text.len()) else {
            return false;
        };
        // SAFETY: the value was opened for writing and has exactly this many bytes; `text` is
        // not part of it, since nothing borrows from the value.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), bytes.as_ptr(), text.len()) };
        true
    }

    /// Sets the expiry, in milliseconds of Unix time. False, with nothing changed, if the server
    /// refuses: a key that is missing, or a negative time.
    #[must_use]
    pub(crate) fn set_end_ms(&mut self, end_ms: i64) -> bool {
        self.writable().is_some_and(|raw| {
            // SAFETY: the key is open for writing.
            let status = unsafe { call!(RedisModule_SetAbsExpire(raw.as_ptr(), end_ms)) };
            status == Status::Ok as c_int
        })
    }

    /// Deletes the key. False, with nothing changed, if the server refuses.
    #[must_use]
    pub(crate) fn delete(&mut self) -> bool {
        self.writable().is_some_and(|raw| {
            self.held = Held::Nothing;
            // SAFETY: the key is open for writing.
            let status = unsafe { call!(RedisModule_DeleteKey(raw.as_ptr())) };
            status == Status::Ok as c_int
        })
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw {
            raw::close_key(raw.as_ptr());
        }
    }
}

/// Hands `SET key text PXAT end_ms` to the replicas and the AOF. It counts as one change.
pub(crate) fn replicate_set(ctx: &Context, key: &Argument, text: &[u8], end_ms: &[u8]) -> bool {
    let pxat = PXAT.load(Ordering::Relaxed);
    if pxat.is_null() {
        return false;
    }
    // SAFETY: the format names a string, a buffer with its length, a string and a buffer with its
    // length, and so do the arguments; the server copies what it keeps, and counts a reference to `pxat`,
    // which `acquire` made and which stays until `release`.
    let status = unsafe {
        call!(RedisModule_Replicate(
            ctx.ctx,
            c"SET".as_ptr(),
            c"sbsb".as_ptr(),
            key.0.as_ptr(),
            text.as_ptr(),
            text.len(),
            pxat,
            end_ms.as_ptr(),
            end_ms.len(),
        ))
    };
    status == Status::Ok as c_int
}

/// Hands `DEL key` to the replicas and the AOF. It counts as one change.
pub(crate) fn replicate_del(ctx: &Context, key: &Argument) -> bool {
    // SAFETY: the format names a string, and so do the arguments; the server counts a reference.
    let status = unsafe {
        call!(RedisModule_Replicate(
            ctx.ctx,
            c"DEL".as_ptr(),
            c"s".as_ptr(),
            key.0.as_ptr(),
        ))
    };
    status == Status::Ok as c_int
}

/// The word PXAT, made once: the server would copy it for every hit.
static PXAT: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(ptr::null_mut());

/// Makes what the calls above keep between them.
pub(crate) fn acquire() {
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

/// Gives back what the module holds of the server; nothing of it may run after that.
pub(crate) fn release() {
    let word = PXAT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !word.is_null() {
        // SAFETY: `acquire` made it, and it is given back once.
        unsafe { call!(RedisModule_FreeString(ptr::null_mut(), word)) };
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

/// Whether the server has a command of this name.
pub(crate) fn has_command(ctx: &Context, name: &CStr) -> bool {
    // SAFETY: the context and the name are alive, and the format names no arguments.
    let reply = unsafe { call!(RedisModule_Call(ctx.ctx, name.as_ptr(), c"".as_ptr())) };
    if reply.is_null() {
        // Without arguments there is no command that runs; one that exists misses them.
        return io::Error::last_os_error().kind() != io::ErrorKind::NotFound;
    }
    raw::free_call_reply(reply);
    true
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

/// Replies an error; the text starts with its code.
pub(crate) fn reply_error(ctx: &Context, text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    raw::reply_with_error(ctx.ctx, text.as_ptr());
}

/// Tells the server how the module behaves.
pub(crate) fn set_options(ctx: &Context, is_valkey: bool) {
    /// Valkey 9: slots may move to another node as they are, with what the module keeps in them.
    const ATOMIC_SLOT_MIGRATION_HANDLED: c_int = 1 << 5;

    // A key opened for writing and left alone is no change; what is changed is signalled here. And
    // nothing is kept beside the keys, so a replica may load another data set while it serves.
    let mut options = (raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD) as c_int;
    // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
    let known_options = unsafe { raw::RedisModule_GetModuleOptionsAll };
    // Another server may give the bit another meaning.
    if let Some(known_options) = known_options.filter(|_| is_valkey) {
        // SAFETY: the function takes nothing and answers with the bits that the server knows.
        options |= unsafe { known_options() } & ATOMIC_SLOT_MIGRATION_HANDLED;
    }
    // SAFETY: the context is alive.
    unsafe { call!(RedisModule_SetModuleOptions(ctx.ctx, options)) };
}

/// Adds an ACL category of the module's own, if it isn't there already: the server keeps it when the
/// module is unloaded. False where the server knows no such thing.
pub(crate) fn add_acl_category(ctx: &Context, name: &CStr) -> bool {
    // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
    let Some(add) = (unsafe { raw::RedisModule_AddACLCategory }) else {
        return false;
    };
    // SAFETY: the context and the name are alive; the server copies the name.
    let status = unsafe { add(ctx.ctx, name.as_ptr()) };
    status == Status::Ok as c_int
        || io::Error::last_os_error().kind() == io::ErrorKind::ResourceBusy
}

/// Whether the server has what [`Registered::set_docs`] and the key specs need: Redis 7.0.
pub(crate) fn has_command_info() -> bool {
    // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
    unsafe { raw::RedisModule_SetCommandInfo }.is_some()
}

/// A command that the server knows.
pub(crate) struct Registered(*mut raw::RedisModuleCommand);

/// Registers a command. `None` if the server refuses.
pub(crate) fn create_command(
    ctx: &Context,
    name: &CStr,
    entry: Entry,
    flags: &CStr,
    keys: Keys,
) -> Option<Registered> {
    // The first key, the last and the step; keys that are counted can't be told this way.
    let (first, last, step) = match keys {
        Keys::FirstRead | Keys::FirstUpdated => (1, 1, 1),
        Keys::CountedUpdated => (0, 0, 0),
    };
    // SAFETY: the server copies the names; the entry point stays as long as the module is loaded.
    let status = unsafe {
        call!(RedisModule_CreateCommand(
            ctx.ctx,
            name.as_ptr(),
            Some(entry),
            flags.as_ptr(),
            first,
            last,
            step,
        ))
    };
    if status != Status::Ok as c_int {
        return None;
    }
    // SAFETY: the context and the name are alive.
    let command = unsafe { call!(RedisModule_GetCommand(ctx.ctx, name.as_ptr())) };
    (!command.is_null()).then_some(Registered(command))
}

/// Answers a question for the positions of keys: `count` of them from `first` on, read and updated.
pub(crate) fn name_keys(ctx: &Context, first: usize, count: usize) {
    for position in (first..).take(count) {
        // SAFETY: the context is that of the question, and the position one of its arguments.
        unsafe {
            call!(RedisModule_KeyAtPosWithFlags(
                ctx.ctx,
                position as c_int,
                READ_AND_UPDATED as c_int,
            ))
        };
    }
}

/// The flags of a key that is read and updated.
const READ_AND_UPDATED: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;

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
    pub(crate) fn set_docs(&self, docs: &Docs) -> bool {
        let version = raw::RedisModuleCommandInfoVersion {
            version: 1,
            sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
            sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
            sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
        };
        let mut key_specs = [key_spec(docs.keys), zeroed()];
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
            args: arguments.list.as_mut_ptr(),
        };
        // SAFETY: the command is registered; all that `info` points to is alive, each list ends
        // with an entry of zeros, and the server copies what it keeps.
        let status = unsafe { call!(RedisModule_SetCommandInfo(self.0, &info)) };
        status == Status::Ok as c_int
    }
}

/// Where the keys are, and what happens to them, as the server takes it.
fn key_spec(keys: Keys) -> raw::RedisModuleCommandKeySpec {
    let mut spec: raw::RedisModuleCommandKeySpec = zeroed();
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    spec.flags = u64::from(match keys {
        Keys::FirstRead => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        Keys::FirstUpdated | Keys::CountedUpdated => READ_AND_UPDATED,
    });
    match keys {
        Keys::FirstRead | Keys::FirstUpdated => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range.lastkey = 0;
            spec.fk.range.keystep = 1;
            spec.fk.range.limit = 0;
        }
        Keys::CountedUpdated => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum.keynumidx = 0;
            spec.fk.keynum.firstkey = 1;
            spec.fk.keynum.keystep = 1;
        }
    }
    spec
}

/// The arguments of a command as the server takes them: a list that ends with an entry of zeros,
/// which points into the lists of arguments that are made of others.
struct RawArguments {
    list: Vec<raw::RedisModuleCommandArg>,
    _inner: Vec<RawArguments>,
}

impl RawArguments {
    fn new(arguments: &[docs::Argument]) -> Self {
        let mut list = Vec::new();
        let mut inner = Vec::new();
        for argument in arguments {
            let mut listed: raw::RedisModuleCommandArg = zeroed();
            listed.name = argument.name.as_ptr();
            listed.key_spec_index = -1;
            let parts = match argument.kind {
                Kind::Key => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
                    listed.key_spec_index = 0;
                    None
                }
                Kind::Integer => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER;
                    None
                }
                Kind::Word => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
                    None
                }
                Kind::OneOf(parts) => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
                    Some(parts)
                }
                Kind::Block(parts) => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;
                    Some(parts)
                }
            };
            if let Some(parts) = parts {
                let mut parts = Self::new(parts);
                // The list stays where it is when its owner is moved.
                listed.subargs = parts.list.as_mut_ptr();
                inner.push(parts);
            }
            if let Some(word) = argument.word {
                listed.token = word.as_ptr();
            }
            if argument.optional {
                listed.flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
            }
            if argument.multiple {
                listed.flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE as c_int;
            }
            list.push(listed);
        }
        list.push(zeroed());
        Self {
            list,
            _inner: inner,
        }
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
