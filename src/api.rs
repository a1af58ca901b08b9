//! The server's module API made safe: the only file with unsafe code.
//!
//! One safe function or method per call, each unsafe block with the reason why it is sound. What
//! they mean for a limiter is decided elsewhere. The crate's own wrappers are used where they cost
//! nothing; this file has what they lack: arguments without a Vec, a key with an absolute expiry,
//! values edited in place, replication without a lookup of every word, docs, categories, options.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void, CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};
use std::time::SystemTime;

use redis_module::{raw, Context, KeyMode, NotifyEvent, Status};

use crate::command::{self, Handler};
use crate::docs::{self, Docs, Keys, Kind};
use crate::{lifecycle, stats, sweeper};

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
        return lifecycle::refuse_another() as c_int;
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

/// A string that the module owns: the name of a key that no argument names.
pub(crate) struct Name(Argument);

// SAFETY: nobody else uses it while the module does, and the server calls the module from one thread
// at a time.
unsafe impl Send for Name {}

impl Name {
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the server copies the bytes; a string without a context belongs to the module.
        let string = unsafe {
            call!(RedisModule_CreateString(
                ptr::null_mut(),
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        };
        NonNull::new(string).map(|string| Self(Argument(string)))
    }

    fn into_raw(self) -> *mut raw::RedisModuleString {
        let string = self.0 .0.as_ptr();
        std::mem::forget(self);
        string
    }
}

impl Deref for Name {
    type Target = Argument;

    fn deref(&self) -> &Argument {
        &self.0
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        free_string(self.0 .0.as_ptr());
    }
}

/// Gives back a string that the module owns; nothing may use it any more.
fn free_string(string: *mut raw::RedisModuleString) {
    if !string.is_null() {
        // SAFETY: the module owns it, and gives it back once.
        unsafe { call!(RedisModule_FreeString(ptr::null_mut(), string)) };
    }
}

/// The server's clock: milliseconds of Unix time, by the time at which this call or, inside MULTI
/// and scripts, the outermost one began, where the server tells (7.2 and later).
pub(crate) fn now_ms() -> i64 {
    match cached_us() {
        Some(now_us) => now_us / 1_000,
        // SAFETY: the function takes nothing and reads the clock.
        None => unsafe { call!(RedisModule_Milliseconds()) },
    }
}

/// The same in microseconds.
pub(crate) fn now_us() -> i64 {
    // Else the clock that the server reads as well.
    cached_us().unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .and_then(|since| since.as_micros().try_into().ok())
            .unwrap_or(0)
    })
}

/// The time that the server keeps for the call; `None` where it doesn't tell.
#[inline]
fn cached_us() -> Option<i64> {
    // SAFETY: reads a pointer that the server wrote before it ran anything of the module.
    let cached_microseconds = unsafe { raw::RedisModule_CachedMicroseconds }?;
    // SAFETY: the function takes nothing and reads a variable of the server.
    Some(unsafe { cached_microseconds() })
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
    /// As [`Mode::Read`], but it doesn't count as a use of the key, by which the server chooses
    /// what to evict.
    Look,
    /// An expired key is deleted by the server first.
    ReadAndWrite,
}

impl Mode {
    fn bits(self) -> KeyMode {
        match self {
            Self::Read => KeyMode::READ,
            Self::Look => {
                KeyMode::READ
                    | KeyMode::from_bits_retain(raw::REDISMODULE_OPEN_KEY_NOTOUCH as c_int)
            }
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
            Mode::Read | Mode::Look => KeyMode::READ,
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

    /// How long the value of a string is, in bytes. It is not read, and stays as it is kept.
    pub(crate) fn length(&self) -> usize {
        // SAFETY: the key is open.
        self.raw.map_or(0, |raw| unsafe {
            call!(RedisModule_ValueLength(raw.as_ptr()))
        })
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
pub(crate) fn replicate_set(ctx: &Context, key: &Argument, text: &[u8], end_ms: i64) -> bool {
    // As bytes: of an integer the server makes two allocations.
    let mut digits = itoa::Buffer::new();
    let end = digits.format(end_ms);
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
            end.as_ptr(),
            end.len(),
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
    let kept = Name::new(b"PXAT").map_or(ptr::null_mut(), Name::into_raw);
    PXAT.store(kept, Ordering::Relaxed);
}

/// Gives back what the module holds of the server; nothing of it may run after that.
pub(crate) fn release() {
    free_string(PXAT.swap(ptr::null_mut(), Ordering::Relaxed));
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
    // Without arguments there is no command that runs; one that exists misses them.
    refusal(ctx, name, c"") != Some(io::ErrorKind::NotFound)
}

/// Calls a command without arguments, and tells why the server didn't reply; `None` if it did.
fn refusal(ctx: &Context, name: &CStr, format: &CStr) -> Option<io::ErrorKind> {
    // SAFETY: the context and the name are alive, and the format names no arguments.
    let reply = unsafe { call!(RedisModule_Call(ctx.ctx, name.as_ptr(), format.as_ptr())) };
    match NonNull::new(reply).map(CallReply) {
        Some(_) => None,
        None => Some(io::Error::last_os_error().kind()),
    }
}

/// A command's reply, given back when it goes out of scope.
struct CallReply(NonNull<raw::RedisModuleCallReply>);

impl Drop for CallReply {
    fn drop(&mut self) {
        raw::free_call_reply(self.0.as_ptr());
    }
}

impl CallReply {
    fn is(&self, kind: isize) -> bool {
        // SAFETY: the reply is alive.
        let found = unsafe { call!(RedisModule_CallReplyType(self.0.as_ptr())) };
        found as isize == kind
    }

    /// The bytes of a string or of an error; empty for anything else.
    fn bytes(&self) -> &[u8] {
        bytes_of(self.0.as_ptr())
    }

    /// The element of an array.
    fn element(&self, index: usize) -> *mut raw::RedisModuleCallReply {
        raw::call_reply_array_element(self.0.as_ptr(), index)
    }
}

/// The bytes of a reply that is a string or an error, alive as long as the whole reply is.
fn bytes_of<'a>(reply: *mut raw::RedisModuleCallReply) -> &'a [u8] {
    if reply.is_null() {
        return &[];
    }
    let mut length = 0;
    let bytes = raw::call_reply_string_ptr(reply, &mut length);
    if bytes.is_null() {
        return &[];
    }
    // SAFETY: the server answers with the string's own bytes.
    unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) }
}

/// Keys that the server's SCAN names, and the cursor to go on with.
pub(crate) struct Page {
    pub(crate) cursor: Vec<u8>,
    pub(crate) names: Vec<Name>,
}

/// A step of the server's SCAN over the keys of the selected database whose names match. `None` if it
/// doesn't run.
pub(crate) fn scan(ctx: &Context, cursor: &[u8], pattern: &[u8], count: i64) -> Option<Page> {
    // SAFETY: the context is alive; the format names a buffer with its length, a string, a buffer
    // with its length, a string and an integer, and so do the arguments.
    let reply = unsafe {
        call!(RedisModule_Call(
            ctx.ctx,
            c"SCAN".as_ptr(),
            c"bcbcl".as_ptr(),
            cursor.as_ptr(),
            cursor.len(),
            c"MATCH".as_ptr(),
            pattern.as_ptr(),
            pattern.len(),
            c"COUNT".as_ptr(),
            count,
        ))
    };
    let reply = CallReply(NonNull::new(reply)?);
    if !reply.is(raw::REDISMODULE_REPLY_ARRAY) {
        return None;
    }
    let names = reply.element(1);
    if names.is_null() {
        return None;
    }
    let names = (0..raw::call_reply_length(names))
        .filter_map(|index| Name::new(bytes_of(raw::call_reply_array_element(names, index))));
    Some(Page {
        cursor: bytes_of(reply.element(0)).to_vec(),
        names: names.collect(),
    })
}

/// What the server's GET replies, which leaves the value as it is kept; nothing if that is no string.
/// `None` if it doesn't run.
pub(crate) fn get(ctx: &Context, key: &Argument) -> Option<Vec<u8>> {
    // SAFETY: the context and the name are alive, and the format names a string.
    let reply = unsafe {
        call!(RedisModule_Call(
            ctx.ctx,
            c"GET".as_ptr(),
            c"s".as_ptr(),
            key.0.as_ptr(),
        ))
    };
    let reply = CallReply(NonNull::new(reply)?);
    let is_string = reply.is(raw::REDISMODULE_REPLY_STRING);
    Some(if is_string { reply.bytes() } else { &[] }.to_vec())
}

/// Whether the server would refuse now, for want of memory, a command that makes this key, which is
/// missing.
pub(crate) fn out_of_memory(ctx: &Context, key: &Argument) -> bool {
    if !has_flag(ctx, raw::REDISMODULE_CTX_FLAGS_OOM) {
        return false;
    }
    // Over maxmemory; but the server may go on by evicting. So it is asked to add nothing to the
    // key, which it refuses exactly when it would refuse more, and which makes no key.
    // SAFETY: the context and the name are alive; the format says that a refusal for want of memory
    // (M) is a reply (E), and names a string of the server and two strings.
    let reply = unsafe {
        call!(RedisModule_Call(
            ctx.ctx,
            c"SETRANGE".as_ptr(),
            c"MEscc".as_ptr(),
            key.0.as_ptr(),
            c"0".as_ptr(),
            c"".as_ptr(),
        ))
    };
    // Another error is that SETRANGE has another name; loading has warned of that.
    NonNull::new(reply)
        .map(CallReply)
        .is_some_and(|reply| reply.bytes().starts_with(b"OOM "))
}

/// Whether the call comes from somebody whom the ACL knows.
fn has_user(ctx: &Context) -> bool {
    // A call in the user's name (C), of a command that there isn't: the server looks for the user first,
    // and for the command then.
    refusal(ctx, c"rl.", c"C").is_none_or(|kind| kind == io::ErrorKind::NotFound)
}

fn has_flag(ctx: &Context, flag: u32) -> bool {
    // SAFETY: the context is alive.
    let flags = unsafe { call!(RedisModule_GetContextFlags(ctx.ctx)) };
    flags & flag as c_int != 0
}

/// Whether what nobody asked for may be written now: on a primary that has its data, and not while
/// writes are paused, when the server aborts over one.
pub(crate) fn may_write_unasked(ctx: &Context) -> bool {
    // SAFETY: the function takes nothing and reads a variable of the server.
    let paused = unsafe { call!(RedisModule_AvoidReplicaTraffic()) } != 0;
    !paused
        && has_flag(ctx, raw::REDISMODULE_CTX_FLAGS_MASTER)
        && !has_flag(ctx, raw::REDISMODULE_CTX_FLAGS_LOADING)
}

/// Selects a database. False if there is none of this number.
pub(crate) fn select_db(ctx: &Context, number: c_int) -> bool {
    // SAFETY: the context is alive.
    let status = unsafe { call!(RedisModule_SelectDb(ctx.ctx, number)) };
    status == Status::Ok as c_int
}

/// How many keys the selected database has.
pub(crate) fn db_size(ctx: &Context) -> u64 {
    // SAFETY: the context is alive.
    unsafe { call!(RedisModule_DbSize(ctx.ctx)) }
}

/// Who made the call, by the ACL.
pub(crate) enum Caller {
    /// Nobody whom the ACL knows: another module, or the server itself, which may do anything.
    Server,
    User(NonNull<raw::RedisModuleUser>),
    /// A user who was deleted or disabled since.
    Nobody,
}

impl Caller {
    pub(crate) fn of(ctx: &Context) -> Self {
        if !has_user(ctx) {
            return Self::Server;
        }
        // SAFETY: the context has a client with a user; without one the server would crash here.
        let name = unsafe { call!(RedisModule_GetCurrentUserName(ctx.ctx)) };
        let Some(name) = NonNull::new(name).map(|name| Name(Argument(name))) else {
            return Self::Nobody;
        };
        // SAFETY: the name is alive.
        let user = unsafe { call!(RedisModule_GetModuleUserFromUserName(name.0 .0.as_ptr())) };
        NonNull::new(user).map_or(Self::Nobody, Self::User)
    }

    pub(crate) fn may_read(&self, key: &Argument) -> bool {
        self.may(key, raw::REDISMODULE_CMD_KEY_ACCESS)
    }

    pub(crate) fn may_write(&self, key: &Argument) -> bool {
        self.may(key, raw::REDISMODULE_CMD_KEY_UPDATE)
    }

    fn may(&self, key: &Argument, flag: u32) -> bool {
        match self {
            Self::Server => true,
            Self::Nobody => false,
            Self::User(user) => {
                // SAFETY: the user and the name are alive.
                let status = unsafe {
                    call!(RedisModule_ACLCheckKeyPermissions(
                        user.as_ptr(),
                        key.0.as_ptr(),
                        flag as c_int,
                    ))
                };
                status == Status::Ok as c_int
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Self::User(user) = self {
            // SAFETY: `of` was given it, and it is given back once.
            unsafe { call!(RedisModule_FreeModuleUser(user.as_ptr())) };
        }
    }
}

/// Replies a string of bytes.
pub(crate) fn reply_bytes(ctx: &Context, bytes: &[u8]) {
    raw::reply_with_string_buffer(ctx.ctx, bytes.as_ptr().cast::<c_char>(), bytes.len());
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
        Keys::CountedUpdated | Keys::None => (0, 0, 0),
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
        // A list that ends with an entry of zeros.
        let mut key_specs = match docs.keys {
            Keys::None => [zeroed(), zeroed()],
            keys => [key_spec(keys), zeroed()],
        };
        let mut arguments = RawArguments::new(docs.arguments);
        let info = raw::RedisModuleCommandInfo {
            version: &version,
            summary: docs.summary.as_ptr(),
            complexity: docs.complexity.as_ptr(),
            since: docs.since.as_ptr(),
            history: ptr::null_mut(),
            tips: docs.tips.map_or(ptr::null(), CStr::as_ptr),
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
        Keys::None => 0,
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
        Keys::None => {}
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
                Kind::Pattern => {
                    listed.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PATTERN;
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

/// A setting that is a number, which the server gets and sets: a word of several, or yes or no, is
/// the number of the word.
pub(crate) struct NumberSetting(AtomicI64);

impl NumberSetting {
    pub(crate) const fn new(value: i64) -> Self {
        Self(AtomicI64::new(value))
    }

    #[inline]
    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// What the callbacks are given with each call.
    fn as_data(&'static self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// # Safety
    ///
    /// `data` is what [`NumberSetting::as_data`] made.
    unsafe fn of(data: *mut c_void) -> &'static AtomicI64 {
        // SAFETY: as the caller says.
        unsafe { &(*data.cast::<Self>()).0 }
    }
}

unsafe extern "C" fn get_integer(_: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: the server passes what it was given with the setting.
    unsafe { NumberSetting::of(data) }.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_integer(
    _: *const c_char,
    value: c_longlong,
    data: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes what it was given with the setting.
    unsafe { NumberSetting::of(data) }.store(value, Ordering::Relaxed);
    Status::Ok as c_int
}

unsafe extern "C" fn get_word(_: *const c_char, data: *mut c_void) -> c_int {
    // SAFETY: the server passes what it was given with the setting.
    let value = unsafe { NumberSetting::of(data) }.load(Ordering::Relaxed);
    c_int::try_from(value).unwrap_or(0)
}

unsafe extern "C" fn set_word(
    _: *const c_char,
    value: c_int,
    data: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes what it was given with the setting.
    unsafe { NumberSetting::of(data) }.store(value.into(), Ordering::Relaxed);
    Status::Ok as c_int
}

/// A setting of bytes, which the server gets and sets.
pub(crate) struct BytesSetting(AtomicPtr<raw::RedisModuleString>);

impl BytesSetting {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// What it is now; the setting may change with the next call of the server.
    pub(crate) fn get(&self) -> Vec<u8> {
        let string = NonNull::new(self.0.load(Ordering::Relaxed));
        string.map_or_else(Vec::new, |string| Argument(string).bytes().to_vec())
    }

    fn set(&self, bytes: &[u8]) {
        let string = Name::new(bytes).map_or(ptr::null_mut(), Name::into_raw);
        free_string(self.0.swap(string, Ordering::Relaxed));
    }

    /// Gives back what it holds.
    pub(crate) fn release(&self) {
        free_string(self.0.swap(ptr::null_mut(), Ordering::Relaxed));
    }
}

unsafe extern "C" fn get_bytes(_: *const c_char, data: *mut c_void) -> *mut raw::RedisModuleString {
    // SAFETY: the server passes what it was given with the setting, and copies the string.
    unsafe { &(*data.cast::<BytesSetting>()).0 }.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_bytes(
    _: *const c_char,
    value: *mut raw::RedisModuleString,
    data: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let done = command::guard(|| {
        let value = Argument(NonNull::new(value)?);
        if value.bytes().contains(&0) {
            let text = Name::new(b"a NUL byte can't be kept in the configuration file")?;
            // SAFETY: the server takes the string over and gives it back.
            unsafe { *error = text.into_raw() };
            return None;
        }
        // SAFETY: the server passes what it was given with the setting.
        unsafe { &*data.cast::<BytesSetting>() }.set(value.bytes());
        Some(())
    });
    match done {
        Some(Some(())) => Status::Ok as c_int,
        _ => Status::Err as c_int,
    }
}

/// Registers a setting that is an integer. False if the server refuses.
pub(crate) fn add_integer_setting(
    ctx: &Context,
    name: &CStr,
    setting: &'static NumberSetting,
    default: i64,
    range: std::ops::RangeInclusive<i64>,
) -> bool {
    // SAFETY: the server copies the name, and gives the setting, which stays, to the callbacks.
    let status = unsafe {
        call!(RedisModule_RegisterNumericConfig(
            ctx.ctx,
            name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT,
            *range.start(),
            *range.end(),
            Some(get_integer),
            Some(set_integer),
            None,
            setting.as_data(),
        ))
    };
    status == Status::Ok as c_int
}

/// Registers a setting that is yes or no; if it is fixed, for as long as the module is loaded. False if the
/// server refuses.
pub(crate) fn add_yes_no_setting(
    ctx: &Context,
    name: &CStr,
    setting: &'static NumberSetting,
    default: i64,
    is_fixed: bool,
) -> bool {
    let flags = if is_fixed {
        raw::REDISMODULE_CONFIG_IMMUTABLE
    } else {
        raw::REDISMODULE_CONFIG_DEFAULT
    };
    // SAFETY: the server copies the name, and gives the setting, which stays, to the callbacks.
    let status = unsafe {
        call!(RedisModule_RegisterBoolConfig(
            ctx.ctx,
            name.as_ptr(),
            c_int::from(default != 0),
            flags,
            Some(get_word),
            Some(set_word),
            None,
            setting.as_data(),
        ))
    };
    status == Status::Ok as c_int
}

/// Registers a setting that is one of these words, by its place among them. False if the server
/// refuses.
pub(crate) fn add_word_setting(
    ctx: &Context,
    name: &CStr,
    setting: &'static NumberSetting,
    default: i64,
    words: &[&CStr],
) -> bool {
    let (Ok(default), Ok(count)) = (c_int::try_from(default), c_int::try_from(words.len())) else {
        return false;
    };
    let mut names: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    let numbers: Vec<c_int> = (0..count).collect();
    // SAFETY: the server copies the names and the numbers, of which there are `count` each, and
    // gives the setting, which stays, to the callbacks.
    let status = unsafe {
        call!(RedisModule_RegisterEnumConfig(
            ctx.ctx,
            name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT as c_uint,
            names.as_mut_ptr(),
            numbers.as_ptr(),
            count,
            Some(get_word),
            Some(set_word),
            None,
            setting.as_data(),
        ))
    };
    status == Status::Ok as c_int
}

/// Registers a setting of bytes. False if the server refuses.
pub(crate) fn add_bytes_setting(
    ctx: &Context,
    name: &CStr,
    setting: &'static BytesSetting,
    default: &CStr,
) -> bool {
    // SAFETY: the server copies the name and the default, and gives the setting, which stays, to the
    // callbacks.
    let status = unsafe {
        call!(RedisModule_RegisterStringConfig(
            ctx.ctx,
            name.as_ptr(),
            default.as_ptr(),
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_bytes),
            Some(set_bytes),
            None,
            ptr::from_ref(setting).cast_mut().cast(),
        ))
    };
    status == Status::Ok as c_int
}

/// Sets all settings that are registered: to what the configuration file says, else to their
/// defaults. False if that says what they refuse.
pub(crate) fn load_settings(ctx: &Context) -> bool {
    // SAFETY: the context is alive.
    let status = unsafe { call!(RedisModule_LoadConfigs(ctx.ctx)) };
    status == Status::Ok as c_int
}

/// The module's part of INFO.
pub(crate) struct Info(*mut raw::RedisModuleInfoCtx);

impl Info {
    /// Begins the module's one section; false if INFO isn't asked for it.
    pub(crate) fn section(&self) -> bool {
        // SAFETY: the context is that of the call; no name stands for the module's own.
        let status = unsafe { call!(RedisModule_InfoAddSection(self.0, c"".as_ptr())) };
        status == Status::Ok as c_int
    }

    /// The server puts the module's name before the field's.
    pub(crate) fn field(&self, name: &CStr, value: u64) {
        // SAFETY: the context is that of the call, the name is copied.
        unsafe {
            call!(RedisModule_InfoAddFieldULongLong(
                self.0,
                name.as_ptr(),
                value
            ))
        };
    }
}

/// Makes INFO call [`stats::tell`]. False if the server refuses.
pub(crate) fn add_info(ctx: &Context) -> bool {
    /// The server calls it in its crash report, too: so it allocates nothing.
    unsafe extern "C" fn on_info(info: *mut raw::RedisModuleInfoCtx, _in_crash_report: c_int) {
        command::guard(|| stats::tell(&Info(info)));
    }
    // SAFETY: the context is alive; the entry stays as long as the module is loaded.
    let status = unsafe { call!(RedisModule_RegisterInfoFunc(ctx.ctx, Some(on_info))) };
    status == Status::Ok as c_int
}

/// Makes the server call [`sweeper::step`] some times a second.
pub(crate) fn add_cron(ctx: &Context) -> bool {
    unsafe extern "C" fn on_cron(
        ctx: *mut raw::RedisModuleCtx,
        _: raw::RedisModuleEvent,
        _: u64,
        _: *mut c_void,
    ) {
        command::guard(|| sweeper::step(&Context::new(ctx)));
    }
    let event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_CRON_LOOP,
        dataver: 1,
    };
    raw::subscribe_to_server_event(ctx.ctx, event, Some(on_cron)) == Status::Ok
}

#[cfg(feature = "deliberate-panic")]
pub(crate) fn panic_on_flush(ctx: &Context) {
    unsafe extern "C" fn on_flush(
        _: *mut raw::RedisModuleCtx,
        _: raw::RedisModuleEvent,
        _: u64,
        _: *mut c_void,
    ) {
        command::guard(|| command::panic::on_purpose("an event"));
    }
    let event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_FLUSHDB,
        dataver: 1,
    };
    raw::subscribe_to_server_event(ctx.ctx, event, Some(on_flush));
}
