//! The settings: `rl.*` of CONFIG GET and SET, of the configuration file, and as load arguments.

use std::ffi::{CStr, CString};
use std::ops::RangeInclusive;

use redis_module::Context;

use crate::api::{self, Argument, BytesSetting, NumberSetting};
use crate::limiter;

/// What a hit is answered that would have to make a limiter while the server is out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OomPolicy {
    Error,
    Allow,
    Refuse,
}

pub(crate) fn oom_policy() -> OomPolicy {
    match OOM_POLICY.get() {
        1 => OomPolicy::Allow,
        2 => OomPolicy::Refuse,
        _ => OomPolicy::Error,
    }
}

/// Whether a refusal is a keyspace event.
pub(crate) fn notify_refused() -> bool {
    NOTIFY_REFUSED.get() != 0
}

/// Whether there is a CL.THROTTLE.
pub(crate) fn has_cl_throttle() -> bool {
    CL_THROTTLE.get() != 0
}

/// The names of the keys that the sweeper repairs; with none it doesn't run.
pub(crate) fn sweep_pattern() -> Vec<u8> {
    SWEEP_PATTERN.get()
}

/// What the sweeper gives as expiry; with 0 it doesn't run.
pub(crate) fn sweep_window_ms() -> i64 {
    SWEEP_WINDOW_SECONDS.get().saturating_mul(1_000)
}

pub(crate) fn sweep_keys_per_second() -> i64 {
    SWEEP_KEYS_PER_SECOND.get()
}

static CL_THROTTLE: NumberSetting = NumberSetting::new(0);
static OOM_POLICY: NumberSetting = NumberSetting::new(0);
static NOTIFY_REFUSED: NumberSetting = NumberSetting::new(0);
static SWEEP_PATTERN: BytesSetting = BytesSetting::new();
static SWEEP_WINDOW_SECONDS: NumberSetting = NumberSetting::new(0);
static SWEEP_KEYS_PER_SECOND: NumberSetting = NumberSetting::new(1_000);

struct Setting {
    /// Behind the module's name and a dot, which the server adds.
    name: &'static CStr,
    kind: Kind,
}

enum Kind {
    /// One of these words, the first by default.
    Words(&'static NumberSetting, &'static [&'static CStr]),
    /// No by default. If it is fixed, it stays what it is when the module is loaded.
    YesNo {
        setting: &'static NumberSetting,
        is_fixed: bool,
    },
    Integer {
        setting: &'static NumberSetting,
        default: i64,
        range: RangeInclusive<i64>,
    },
    /// Empty by default.
    Bytes(&'static BytesSetting),
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: c"cl-throttle",
        kind: Kind::YesNo {
            setting: &CL_THROTTLE,
            is_fixed: true,
        },
    },
    Setting {
        name: c"oom-policy",
        kind: Kind::Words(&OOM_POLICY, &[c"error", c"allow", c"refuse"]),
    },
    Setting {
        name: c"notify-refused",
        kind: Kind::YesNo {
            setting: &NOTIFY_REFUSED,
            is_fixed: false,
        },
    },
    Setting {
        name: c"sweep-pattern",
        kind: Kind::Bytes(&SWEEP_PATTERN),
    },
    Setting {
        name: c"sweep-window-seconds",
        kind: Kind::Integer {
            setting: &SWEEP_WINDOW_SECONDS,
            default: 0,
            // A hundred years.
            range: 0..=3_155_760_000,
        },
    },
    Setting {
        name: c"sweep-keys-per-second",
        kind: Kind::Integer {
            setting: &SWEEP_KEYS_PER_SECOND,
            default: 1_000,
            range: 1..=1_000_000,
        },
    },
];

/// Registers the settings. A load argument (`oom-policy allow`, or `rl.oom-policy allow`) takes the
/// place of the default, so what the configuration file says wins.
///
/// # Errors
///
/// Says what is wrong with the load arguments, or that the server refuses.
pub(crate) fn load(ctx: &Context, arguments: &[Argument]) -> Result<(), String> {
    let mut given = Vec::new();
    let mut words = arguments.iter();
    while let Some(name) = words.next() {
        let shown = name.bytes().escape_ascii();
        let setting = SETTINGS
            .iter()
            .find(|setting| setting.is_named(name.bytes()))
            .ok_or_else(|| format!("not loaded: '{shown}' is no load argument"))?;
        let value = words
            .next()
            .ok_or_else(|| format!("not loaded: the load argument '{shown}' has no value"))?;
        if given.iter().any(|(other, _)| *other == setting.name) {
            return Err(format!(
                "not loaded: the load argument '{shown}' stands twice"
            ));
        }
        given.push((setting.name, value.bytes()));
    }
    for setting in SETTINGS {
        let value = given
            .iter()
            .find(|(name, _)| *name == setting.name)
            .map(|(_, value)| *value);
        setting.register(ctx, value)?;
    }
    if !api::load_settings(ctx) {
        return Err("not loaded: the configuration file has an impossible rl.* setting".into());
    }
    Ok(())
}

/// Gives back what the settings hold.
pub(crate) fn release() {
    for setting in SETTINGS {
        if let Kind::Bytes(setting) = setting.kind {
            setting.release();
        }
    }
}

impl Setting {
    fn is_named(&self, name: &[u8]) -> bool {
        let name = match name.split_at_checked(3) {
            Some((prefix, rest)) if prefix.eq_ignore_ascii_case(b"rl.") => rest,
            _ => name,
        };
        name.eq_ignore_ascii_case(self.name.to_bytes())
    }

    /// `value` is the load argument's.
    fn register(&self, ctx: &Context, value: Option<&[u8]>) -> Result<(), String> {
        let name = self.name;
        let impossible = |possible: String| {
            format!(
                "not loaded: '{}' is no value for the load argument {}, which is {possible}",
                value.unwrap_or_default().escape_ascii(),
                name.to_string_lossy()
            )
        };
        let registered = match &self.kind {
            Kind::Words(setting, words) => {
                let default = value.map_or(Ok(0), |value| {
                    place(words, value).ok_or_else(|| impossible(list(words)))
                })?;
                api::add_word_setting(ctx, name, setting, default, words)
            }
            Kind::YesNo { setting, is_fixed } => {
                const WORDS: &[&CStr] = &[c"no", c"yes"];
                let default = value.map_or(Ok(0), |value| {
                    place(WORDS, value).ok_or_else(|| impossible(list(WORDS)))
                })?;
                api::add_yes_no_setting(ctx, name, setting, default, *is_fixed)
            }
            Kind::Integer {
                setting,
                default,
                range,
            } => {
                let default = value.map_or(Ok(*default), |value| {
                    limiter::integer(value)
                        .filter(|value| range.contains(value))
                        .ok_or_else(|| impossible(format!("{} to {}", range.start(), range.end())))
                })?;
                api::add_integer_setting(ctx, name, setting, default, range.clone())
            }
            Kind::Bytes(setting) => {
                let default = CString::new(value.unwrap_or_default())
                    .map_err(|_| impossible("without a NUL byte".into()))?;
                api::add_bytes_setting(ctx, name, setting, &default)
            }
        };
        if !registered {
            return Err(format!(
                "not loaded: the server refuses the setting rl.{}",
                name.to_string_lossy()
            ));
        }
        Ok(())
    }
}

/// Which of the words it is.
fn place(words: &[&CStr], value: &[u8]) -> Option<i64> {
    let place = words
        .iter()
        .position(|word| word.to_bytes().eq_ignore_ascii_case(value))?;
    i64::try_from(place).ok()
}

fn list(words: &[&CStr]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" or ")
}
