//! The drawings in docs/algorithms.md: the same traffic through each algorithm, drawn from what it
//! decides. `make drawings` writes them; the test here fails when they are not up to date.

use std::fmt::Write;
use std::path::Path;

use super::testing::{rule, Key, NOW_MS};
use super::Algorithm;

const LIMIT: i64 = 10;
const WINDOW_MS: i64 = 10_000;
const SPAN_MS: i64 = 45_000;
/// Hits are drawn together, a bar for each of these.
const BAR_MS: i64 = 500;

// The place of the diagram, in the units of the drawing.
const WIDTH: i64 = 760;
const HEIGHT: i64 = 300;
const LEFT: i64 = 44;
const RIGHT: i64 = 744;
const TOP: i64 = 66;
const BOTTOM: i64 = 262;
/// The most hits that the vertical axis has room for.
const MOST: i64 = 22;

/// When hits come: one starts a window, twelve each come just before and just after its end, a steady two
/// a second for a while, and after a pause one burst more.
fn traffic_ms() -> Vec<i64> {
    let burst = |start_ms: i64, hits: i64| (0..hits).map(move |n| start_ms + 100 * n);
    let steady = (17_000..32_000).step_by(500);
    std::iter::once(0)
        .chain(burst(8_600, 12))
        .chain(burst(10_200, 12))
        .chain(steady)
        .chain(burst(40_000, 14))
        .collect()
}

struct Hit {
    at_ms: i64,
    allowed: bool,
}

fn hits(algorithm: Algorithm) -> Vec<Hit> {
    let mut key = Key::default();
    let rule = rule(algorithm, LIMIT, WINDOW_MS, 1);
    let decide = |at_ms| Hit {
        at_ms,
        allowed: key.hit(&rule, NOW_MS + at_ms).allowed,
    };
    traffic_ms().into_iter().map(decide).collect()
}

/// How many were admitted in the window's length up to and with this time.
fn admitted_within_a_window(hits: &[Hit], at_ms: i64) -> i64 {
    let within = at_ms - WINDOW_MS + 1..=at_ms;
    let admitted = hits.iter().filter(|hit| hit.allowed);
    let count = admitted.filter(|hit| within.contains(&hit.at_ms)).count();
    i64::try_from(count).unwrap()
}

/// As the page describes the drawing to those who can't see it.
fn in_words(hits: &[Hit]) -> String {
    let most = (0..SPAN_MS).map(|at_ms| admitted_within_a_window(hits, at_ms));
    format!("at most {} hits within 10 seconds", most.max().unwrap())
}

fn x(at_ms: i64) -> i64 {
    LEFT + at_ms * (RIGHT - LEFT) / SPAN_MS
}

fn y(hits: i64) -> i64 {
    BOTTOM - hits * (BOTTOM - TOP) / MOST
}

/// Its own background, in light and in dark, so that it can be read on any page.
const STYLE: &str = "\
  <style>
    .paper { fill: #ffffff; }
    .ink { fill: #1f2328; }
    .soft { fill: #59636e; }
    .admitted { fill: #1a7f37; }
    .refused { fill: #e5a3a0; }
    .line { stroke: #0969da; stroke-width: 2; fill: none; }
    .limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 6 4; }
    .axis { stroke: #8c959f; stroke-width: 1; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; }
      .ink { fill: #e6edf3; }
      .soft { fill: #9198a1; }
      .admitted { fill: #3fb950; }
      .refused { fill: #8e3b38; }
      .line { stroke: #58a6ff; }
      .limit { stroke: #ff7b72; }
      .axis { stroke: #656c76; }
    }
    text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; }
    .title { font-weight: 600; font-size: 15px; }
  </style>
";

fn svg(title: &str, algorithm: Algorithm) -> String {
    let hits = hits(algorithm);
    let mut svg = String::new();
    let mut line = |text: String| writeln!(svg, "{text}").unwrap();
    line(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">"
    ));
    line(format!("  <title>{title}: {}</title>", in_words(&hits)));
    line(STYLE.trim_end().into());
    line(format!(
        "  <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>"
    ));
    line(format!(
        "  <text class=\"ink title\" x=\"{LEFT}\" y=\"24\">{title}</text>"
    ));

    // The legend.
    let mut at = LEFT;
    for (mark, label, width) in [
        ("admitted", "admitted", 90),
        ("refused", "refused (hits in half a second)", 222),
    ] {
        line(format!(
            "  <rect class=\"{mark}\" x=\"{at}\" y=\"37\" width=\"10\" height=\"10\"/>"
        ));
        line(format!(
            "  <text class=\"soft\" x=\"{}\" y=\"47\">{label}</text>",
            at + 16
        ));
        at += width;
    }
    for (mark, label, width) in [
        ("line", "admitted within the last 10 s", 226),
        ("limit", "limit", 0),
    ] {
        line(format!(
            "  <line class=\"{mark}\" x1=\"{at}\" y1=\"42\" x2=\"{}\" y2=\"42\"/>",
            at + 22
        ));
        line(format!(
            "  <text class=\"soft\" x=\"{}\" y=\"47\">{label}</text>",
            at + 28
        ));
        at += width;
    }

    // The axes.
    for count in (0..=MOST).step_by(5) {
        line(format!(
            "  <text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{count}</text>",
            LEFT - 8,
            y(count) + 4
        ));
    }
    for at_ms in (0..=SPAN_MS).step_by(5_000) {
        let seconds = at_ms / 1_000;
        line(format!(
            "  <text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{seconds} s</text>",
            x(at_ms),
            BOTTOM + 20
        ));
    }
    line(format!(
        "  <path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>"
    ));

    // What was admitted and what was refused, on top of each other.
    for start_ms in (0..SPAN_MS).step_by(BAR_MS as usize) {
        let bar = start_ms..start_ms + BAR_MS;
        let count = |allowed: bool| {
            let hits = hits.iter().filter(|hit| bar.contains(&hit.at_ms));
            let count = hits.filter(|hit| hit.allowed == allowed).count();
            i64::try_from(count).unwrap()
        };
        let (admitted, refused) = (count(true), count(false));
        for (mark, from, to) in [
            ("admitted", 0, admitted),
            ("refused", admitted, admitted + refused),
        ] {
            if to > from {
                line(format!(
                    "  <rect class=\"{mark}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                    x(start_ms),
                    y(to),
                    x(BAR_MS) - x(0) - 1,
                    y(from) - y(to)
                ));
            }
        }
    }

    // The limit, and how near to it what was admitted comes.
    line(format!(
        "  <line class=\"limit\" x1=\"{LEFT}\" y1=\"{0}\" x2=\"{RIGHT}\" y2=\"{0}\"/>",
        y(LIMIT)
    ));
    let mut steps = format!("M{LEFT} {BOTTOM}");
    let mut before = 0;
    for at_ms in 0..=SPAN_MS {
        let now = admitted_within_a_window(&hits, at_ms);
        if now != before {
            write!(steps, "H{}V{}", x(at_ms), y(now)).unwrap();
            before = now;
        }
    }
    line(format!("  <path class=\"line\" d=\"{steps}H{RIGHT}\"/>"));
    line("</svg>".into());
    svg
}

#[test]
fn the_drawings_show_what_the_algorithms_do() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = std::fs::read_to_string(docs.join("algorithms.md")).unwrap();
    let page = page.replace('\n', " ");
    let directory = docs.join("drawings");
    for (name, title, algorithm) in [
        ("fixed", "FIXED, 10 in 10 seconds", Algorithm::Fixed),
        ("sliding", "SLIDING, 10 in 10 seconds", Algorithm::Sliding),
        (
            "bucket",
            "BUCKET 10, refilled by 10 in 10 seconds",
            Algorithm::Bucket { capacity: LIMIT },
        ),
    ] {
        let path = directory.join(name).with_extension("svg");
        let svg = svg(title, algorithm);
        if std::env::var_os("WRITE_DRAWINGS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &svg).unwrap();
        }
        let drawn = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(drawn == svg, "{path:?} is out of date: make drawings");
        let described = format!("{}](drawings/{name}.svg)", in_words(&hits(algorithm)));
        assert!(page.contains(&described), "{described}");
    }
}
